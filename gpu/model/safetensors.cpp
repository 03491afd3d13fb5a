#include "gpu/model/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "gpu/model/model_config.h"
#include "gpu/text/json_text.h"

namespace seer {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr uint64_t kHeaderBytesMax = 100'000'000;  // the format's own limit
constexpr int64_t kIndexBytesMax = 100'000'000;
constexpr size_t kFileNameBytesMax = 255;  // of usual file systems
constexpr const char* kSingleFile = "model.safetensors";

struct KnownType {
  const char* name;
  TensorType type;
  uint64_t element_bytes;
};
constexpr KnownType kTypes[] = {
    {"F32", TensorType::kF32, 4},    {"F16", TensorType::kF16, 2},       {"BF16", TensorType::kBf16, 2},
    {"F64", TensorType::kOther, 8},  {"I64", TensorType::kOther, 8},     {"U64", TensorType::kOther, 8},
    {"I32", TensorType::kOther, 4},  {"U32", TensorType::kOther, 4},     {"I16", TensorType::kOther, 2},
    {"U16", TensorType::kOther, 2},  {"I8", TensorType::kOther, 1},      {"U8", TensorType::kOther, 1},
    {"BOOL", TensorType::kOther, 1}, {"F8_E4M3", TensorType::kOther, 1}, {"F8_E5M2", TensorType::kOther, 1},
};

bool is_size(const Json& v) { return v.is_number_unsigned(); }

// One entry of the header, whose begin is counted from that of the data; the error says what is wrong with it.
Result<StoredTensor> parse_entry(const Json& entry, uint64_t data_bytes) {
  if (!entry.is_object()) return fail(Code::kCorrupt, "is not an object");
  const auto dtype = entry.find("dtype"), shape = entry.find("shape"), offsets = entry.find("data_offsets");
  if (dtype == entry.end() || !dtype->is_string()) return fail(Code::kCorrupt, "has no dtype");
  if (shape == entry.end() || !shape->is_array()) return fail(Code::kCorrupt, "has no shape");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 || !is_size((*offsets)[0]) ||
      !is_size((*offsets)[1]))
    return fail(Code::kCorrupt, "has no data_offsets [begin, end]");
  StoredTensor tensor;
  tensor.type_name = dtype->get<std::string>();
  const KnownType* known = nullptr;
  for (const KnownType& type : kTypes)
    if (tensor.type_name == type.name) known = &type;
  if (!known) return fail(Code::kCorrupt, "has the unknown dtype ", shortened(tensor.type_name));
  tensor.type = known->type;
  uint64_t bytes = known->element_bytes;
  for (const Json& size : *shape) {
    if (!is_size(size)) return fail(Code::kCorrupt, "has a shape that is not made of sizes");
    const auto n = size.get<uint64_t>();
    if (n > uint64_t{1} << 48 || __builtin_mul_overflow(bytes, n, &bytes))
      return fail(Code::kCorrupt, "has an impossible shape");
    tensor.shape.push_back(static_cast<int64_t>(n));
  }
  const auto begin = (*offsets)[0].get<uint64_t>(), end = (*offsets)[1].get<uint64_t>();
  if (begin > end || end - begin != bytes)
    return fail(Code::kCorrupt, "has data_offsets [", begin, ", ", end, "], its dtype and shape need ", bytes,
                " bytes");
  if (end > data_bytes)
    return fail(Code::kCorrupt, "ends at data byte ", end, ", the file has ", data_bytes, ": it is truncated");
  tensor.begin = begin;
  tensor.bytes = bytes;
  return tensor;
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += cat(i ? ", " : "", shape[i]);
  return shortened(text + "]");
}

// The format allows neither overlaps nor holes: a file that has them is broken, or hides something. Returns the data's end.
Result<uint64_t> check_cover(const std::string& name, const std::map<std::string, StoredTensor>& tensors) {
  using Entry = std::pair<const std::string, StoredTensor>;
  std::vector<const Entry*> by_place;
  for (const Entry& entry : tensors) by_place.push_back(&entry);
  std::ranges::sort(by_place, {}, [](const Entry* e) { return std::pair(e->second.begin, e->second.bytes); });
  uint64_t end = 0;
  const Entry* before = nullptr;
  for (const Entry* entry : by_place) {
    const uint64_t begin = entry->second.begin;
    if (begin < end)
      return fail(Code::kCorrupt, name, ": tensor ", shortened(entry->first, 120), " begins at data byte ", begin,
                  ", inside tensor ", shortened(before->first, 120), ", which ends at ", end);
    if (begin > end)
      return fail(Code::kCorrupt, name, ": the data bytes from ", end, " to ", begin, " belong to no tensor");
    end = begin + entry->second.bytes;
    before = entry;
  }
  return end;
}

}  // namespace

Status StoredTensor::read(uint64_t first, std::span<std::byte> to) const {
  SEER_CHECK(first <= bytes && to.size() <= bytes - first, first, to.size(), bytes);
  return file->read(begin + first, to);
}

Status SafetensorsFile::read(uint64_t begin, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t n = ::pread(descriptor_, to.data(), to.size(), static_cast<off_t>(begin));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(Code::kIo, "cannot read ", name_, ": ", std::strerror(errno));
    if (n == 0) return fail(Code::kIo, name_, " ends at byte ", begin, " now, it had ", bytes_, ": it must not change while it is read");
    begin += static_cast<uint64_t>(n);
    to = to.subspan(static_cast<size_t>(n));
  }
  return {};
}

// The file at `begin`; what follows its last tensor is left alone.
Result<SafetensorsFile::Part> SafetensorsFile::parse(uint64_t begin, const std::string& part) const {
  constexpr uint64_t kFormatBytes = 64;  // in which other formats are known
  const uint64_t left = bytes_ - begin;
  if (left < 8) return fail(Code::kCorrupt, part, " has ", left, " bytes: too short for a safetensors file");
  std::string text(std::min(left, kFormatBytes), '\0');
  SEER_RETURN_IF_ERROR(read(begin, std::as_writable_bytes(std::span(text))));
  uint64_t header_bytes = 0;
  for (size_t i = 8; i-- > 0;) header_bytes = header_bytes << 8 | static_cast<uint8_t>(text[i]);
  if (header_bytes > kHeaderBytesMax || header_bytes > left - 8) {
    if (const std::string_view format = known_format(text); !format.empty())
      return fail(Code::kCorrupt, part, " is ", format, ", not a safetensors file");
    return fail(Code::kCorrupt, part, ": the header should have ", header_bytes, " bytes, the file has ", left,
                ": truncated, or not a safetensors file");
  }
  text.resize(header_bytes);
  SEER_RETURN_IF_ERROR(read(begin + 8, std::as_writable_bytes(std::span(text))));
  Result<Json> header = parse_json(text, part + " (header)");
  if (!header.ok()) return fail(Code::kCorrupt, header.error().detail);
  if (!header->is_object()) return fail(Code::kCorrupt, part, ": the header is not a JSON object");
  Part found{.tensors = {}, .header_bytes = header_bytes};
  for (const auto& [key, entry] : header->items()) {
    if (key == "__metadata__") continue;
    Result<StoredTensor> tensor = parse_entry(entry, left - 8 - header_bytes);
    if (!tensor.ok()) return fail(tensor.error().code, part, ": tensor ", shortened(key, 120), " ", tensor.error().detail);
    found.tensors.emplace(key, *std::move(tensor));
  }
  SEER_ASSIGN_OR_RETURN(const uint64_t data_bytes, check_cover(part, found.tensors));
  for (auto& [key, tensor] : found.tensors) {
    tensor.begin += begin + 8 + header_bytes;
    tensor.file = this;
  }
  found.bytes = 8 + header_bytes + data_bytes;
  return found;
}

Result<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::open(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // else a FIFO is waited for, by all requests
  if (fd < 0 && errno == ENOENT) return fail(Code::kNotFound, "there is no file ", path.string());
  if (fd < 0) return fail(Code::kIo, "cannot open ", path.string(), ": ", std::strerror(errno));
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd);
    return fail(Code::kIo, path.string(), " is not a file");
  }
  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile(fd, static_cast<uint64_t>(status.st_size), path.string()));
  SEER_ASSIGN_OR_RETURN(Part part, file->parse(0, file->name_));
  if (const uint64_t left = file->bytes_ - part.bytes; left > 0)
    return fail(Code::kCorrupt, path.string(), ": ", left, " bytes follow the end of the last tensor");
  file->tensors_ = std::move(part.tensors);
  return std::shared_ptr<const SafetensorsFile>(std::move(file));
}

Result<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::open(const WeightMemory& memory, const std::string& name) {
  const int fd = ::fcntl(memory.descriptor(), F_DUPFD_CLOEXEC, 0);  // the file may outlive its memory's other users
  if (fd < 0) return fail(Code::kIo, "cannot open ", name, ": ", std::strerror(errno));
  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile(fd, memory.bytes(), name));
  SEER_RETURN_IF_ERROR(file->parse_sequence());
  return std::shared_ptr<const SafetensorsFile>(std::move(file));
}

SafetensorsFile::~SafetensorsFile() { ::close(descriptor_); }

// All headers together have the limit of one, so that what is kept of them is bounded.
Status SafetensorsFile::parse_sequence() {
  uint64_t begin = 0, header_bytes = 0, parts = 0;
  do {
    const std::string name = cat(name_, " (file ", ++parts, ")");
    SEER_ASSIGN_OR_RETURN(Part part, parse(begin, name));
    if (part.tensors.empty()) return fail(Code::kCorrupt, name, " has no tensors");
    header_bytes += part.header_bytes;
    if (header_bytes > kHeaderBytesMax)
      return fail(Code::kCorrupt, name, ": all headers up to here have ", header_bytes, " bytes: expected at most ", kHeaderBytesMax);
    tensors_.merge(part.tensors);
    if (!part.tensors.empty())  // what could not be merged
      return fail(Code::kCorrupt, name, " has the tensor ", shortened(part.tensors.begin()->first, 120), ", which came before");
    begin += part.bytes;
  } while (begin < bytes_);
  return {};
}

Result<Checkpoint> Checkpoint::open(const fs::path& path) {
  Checkpoint checkpoint;
  checkpoint.name_ = path.string();
  std::error_code ec;
  const bool is_file = fs::is_regular_file(path, ec);
  const fs::path single = is_file ? path : path / kSingleFile, index_path = path / "model.safetensors.index.json";
  if (!is_file && fs::exists(index_path, ec)) {
    SEER_RETURN_IF_ERROR(checkpoint.read_index(index_path, fs::exists(single, ec)));
    return checkpoint;
  }
  SEER_ASSIGN_OR_RETURN(auto file, SafetensorsFile::open(single));
  checkpoint.add(std::move(file));
  return checkpoint;
}

Result<Checkpoint> Checkpoint::open(const WeightMemory& memory, const std::string& name) {
  Checkpoint checkpoint;
  checkpoint.name_ = name;
  SEER_ASSIGN_OR_RETURN(auto file, SafetensorsFile::open(memory, name));
  checkpoint.add(std::move(file));
  return checkpoint;
}

void Checkpoint::add(std::shared_ptr<const SafetensorsFile> file) {
  for (const auto& [name, tensor] : file->tensors()) tensors_[name] = &tensor;
  files_.push_back(std::move(file));
}

Status Checkpoint::read_index(const fs::path& index_path, bool beside_single) {
  SEER_ASSIGN_OR_RETURN(const std::string text, read_text_file(index_path, kIndexBytesMax));
  SEER_ASSIGN_OR_RETURN(const Json index, parse_json(text, index_path.string()));
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    return fail(Code::kInvalidArgument, index_path.string(), ": weight_map is missing or not an object");
  const Json& map = index["weight_map"];
  if (map.empty()) return fail(Code::kInvalidArgument, index_path.string(), ": weight_map is empty");
  const fs::path folder = index_path.parent_path();
  std::map<std::string, size_t> opened;  // file name -> index in files_
  for (const auto& [name, file] : map.items()) {
    if (!file.is_string() || file.get_ref<const std::string&>().size() > kFileNameBytesMax ||
        fs::path(file.get<std::string>()).filename() != file.get<std::string>())
      return fail(Code::kInvalidArgument, index_path.string(), ": weight_map.", shortened(name, 120),
                  " is not the name of a file beside it");
    const auto file_name = file.get<std::string>();
    if (beside_single && file_name != kSingleFile)
      return fail(Code::kInvalidArgument, index_path.string(), ": weight_map says that ", shortened(name, 120),
                  " is in ", shortened(file_name), ", but the folder has ", kSingleFile, " too: remove one of the two");
    if (!opened.contains(file_name)) {
      SEER_ASSIGN_OR_RETURN(auto shard, SafetensorsFile::open(folder / file_name));
      opened[file_name] = files_.size();
      files_.push_back(std::move(shard));
    }
    const auto& tensors = files_[opened[file_name]]->tensors();
    const auto it = tensors.find(name);
    if (it == tensors.end())
      return fail(Code::kCorrupt, (folder / file_name).string(), " has no tensor ", shortened(name, 120), ", which ",
                  index_path.string(), " says it has");
    tensors_[name] = &it->second;
  }
  for (const auto& [file_name, i] : opened)
    for (const auto& [name, tensor] : files_[i]->tensors())
      if (const auto it = tensors_.find(name); it == tensors_.end() || it->second != &tensor)
        return fail(Code::kCorrupt, (folder / file_name).string(), " has the tensor ", shortened(name, 120), ", which ",
                    index_path.string(), it == tensors_.end() ? " does not list" : " says is in another file");
  return {};
}

const StoredTensor* Checkpoint::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : it->second;
}

Result<const StoredTensor*> Checkpoint::get(const std::string& name, std::span<const int64_t> shape) const {
  const StoredTensor* tensor = find(name);
  if (!tensor)
    return fail(Code::kNotFound, name_, ": tensor ", shortened(name, 120), " of shape ", shape_text(shape),
                " is missing");
  if (!std::equal(tensor->shape.begin(), tensor->shape.end(), shape.begin(), shape.end()))
    return fail(Code::kInvalidArgument, name_, ": tensor ", name, " should have shape ", shape_text(shape),
                ", found ", shape_text(tensor->shape));
  if (tensor->type == TensorType::kOther)
    return fail(Code::kInvalidArgument, name_, ": tensor ", name, " should have dtype F32, F16 or BF16, found ",
                tensor->type_name);
  return tensor;
}

}  // namespace seer
