#include "gpu/model/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "gpu/model/json_text.h"
#include "gpu/model/model_config.h"

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

// One entry of the header as a view into `data`; the error says what is wrong with it.
Result<TensorView> parse_entry(const Json& entry, std::span<const std::byte> data) {
  if (!entry.is_object()) return fail(Code::kCorrupt, "is not an object");
  const auto dtype = entry.find("dtype"), shape = entry.find("shape"), offsets = entry.find("data_offsets");
  if (dtype == entry.end() || !dtype->is_string()) return fail(Code::kCorrupt, "has no dtype");
  if (shape == entry.end() || !shape->is_array()) return fail(Code::kCorrupt, "has no shape");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 || !is_size((*offsets)[0]) ||
      !is_size((*offsets)[1]))
    return fail(Code::kCorrupt, "has no data_offsets [begin, end]");
  TensorView view;
  view.type_name = dtype->get<std::string>();
  const KnownType* known = nullptr;
  for (const KnownType& type : kTypes)
    if (view.type_name == type.name) known = &type;
  if (!known) return fail(Code::kCorrupt, "has the unknown dtype ", shortened(view.type_name));
  view.type = known->type;
  uint64_t bytes = known->element_bytes;
  for (const Json& size : *shape) {
    if (!is_size(size)) return fail(Code::kCorrupt, "has a shape that is not made of sizes");
    const auto n = size.get<uint64_t>();
    if (n > uint64_t{1} << 48 || __builtin_mul_overflow(bytes, n, &bytes))
      return fail(Code::kCorrupt, "has an impossible shape");
    view.shape.push_back(static_cast<int64_t>(n));
  }
  const auto begin = (*offsets)[0].get<uint64_t>(), end = (*offsets)[1].get<uint64_t>();
  if (begin > end || end - begin != bytes)
    return fail(Code::kCorrupt, "has data_offsets [", begin, ", ", end, "], its dtype and shape need ", bytes,
                " bytes");
  if (end > data.size())
    return fail(Code::kCorrupt, "ends at data byte ", end, ", the file has ", data.size(), ": it is truncated");
  view.bytes = data.subspan(begin, bytes);
  return view;
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += cat(i ? ", " : "", shape[i]);
  return shortened(text + "]");
}

// The format allows neither overlaps nor holes: a file that has them is broken, or hides something. Returns the data's end.
Result<size_t> check_cover(const std::string& name, std::span<const std::byte> data, const std::map<std::string, TensorView>& tensors) {
  using Entry = std::pair<const std::string, TensorView>;
  std::vector<const Entry*> by_place;
  for (const Entry& entry : tensors) by_place.push_back(&entry);
  std::ranges::sort(by_place, {},
                    [](const Entry* e) { return std::pair(e->second.bytes.data(), e->second.bytes.size()); });
  size_t end = 0;
  const Entry* before = nullptr;
  for (const Entry* entry : by_place) {
    const auto begin = static_cast<size_t>(entry->second.bytes.data() - data.data());
    if (begin < end)
      return fail(Code::kCorrupt, name, ": tensor ", shortened(entry->first, 120), " begins at data byte ", begin,
                  ", inside tensor ", shortened(before->first, 120), ", which ends at ", end);
    if (begin > end)
      return fail(Code::kCorrupt, name, ": the data bytes from ", end, " to ", begin, " belong to no tensor");
    end = begin + entry->second.bytes.size();
    before = entry;
  }
  return end;
}

struct ParsedFile {
  std::map<std::string, TensorView> tensors;
  size_t header_bytes = 0;
  size_t bytes = 0;  // of the whole file
};

// The file at the begin of `mapped`; what follows its last tensor is left alone.
Result<ParsedFile> parse_file(const std::string& name, std::span<const std::byte> mapped) {
  if (mapped.size() < 8) return fail(Code::kCorrupt, name, " has ", mapped.size(), " bytes: too short for a safetensors file");
  const auto* text = reinterpret_cast<const char*>(mapped.data()) + 8;
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | static_cast<uint8_t>(mapped[i]);
  if (header_bytes > kHeaderBytesMax || header_bytes > mapped.size() - 8) {
    if (const std::string_view format = known_format({text - 8, mapped.size()}); !format.empty())
      return fail(Code::kCorrupt, name, " is ", format, ", not a safetensors file");
    return fail(Code::kCorrupt, name, ": the header should have ", header_bytes, " bytes, the file has ",
                mapped.size(), ": truncated, or not a safetensors file");
  }
  Result<Json> header = parse_json({text, header_bytes}, name + " (header)");
  if (!header.ok()) return fail(Code::kCorrupt, header.error().detail);
  if (!header->is_object()) return fail(Code::kCorrupt, name, ": the header is not a JSON object");
  const std::span<const std::byte> data = mapped.subspan(8 + header_bytes);
  ParsedFile file{.tensors = {}, .header_bytes = header_bytes};
  for (const auto& [key, entry] : header->items()) {
    if (key == "__metadata__") continue;
    Result<TensorView> view = parse_entry(entry, data);
    if (!view.ok()) return fail(view.error().code, name, ": tensor ", shortened(key, 120), " ", view.error().detail);
    file.tensors.emplace(key, *std::move(view));
  }
  SEER_ASSIGN_OR_RETURN(const size_t data_bytes, check_cover(name, data, file.tensors));
  file.bytes = 8 + header_bytes + data_bytes;
  return file;
}

}  // namespace

TensorView TensorView::rows(int64_t begin, int64_t end) const {
  TensorView view = *this;
  const size_t row_bytes = shape[0] == 0 ? 0 : bytes.size() / static_cast<size_t>(shape[0]);
  view.shape[0] = end - begin;
  view.bytes = bytes.subspan(static_cast<size_t>(begin) * row_bytes, static_cast<size_t>(end - begin) * row_bytes);
  return view;
}

void drop_pages(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t begin = (address + page - 1) / page * page, end = (address + bytes.size()) / page * page;
  // Only advice: if it is refused, the pages stay until the file is closed.
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
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
  auto file = map(fd, static_cast<size_t>(status.st_size), path.string());
  ::close(fd);
  if (!file.ok()) return file.error();
  SEER_ASSIGN_OR_RETURN(ParsedFile parsed, parse_file(path.string(), (*file)->mapped_));
  if (const size_t left = (*file)->mapped_.size() - parsed.bytes; left > 0)
    return fail(Code::kCorrupt, path.string(), ": ", left, " bytes follow the end of the last tensor");
  (*file)->tensors_ = std::move(parsed.tensors);
  return std::shared_ptr<const SafetensorsFile>(*std::move(file));
}

Result<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::map(const WeightMemory& memory, const std::string& name) {
  SEER_ASSIGN_OR_RETURN(auto file, map(memory.descriptor(), memory.bytes(), name));
  SEER_RETURN_IF_ERROR(file->parse_sequence(name));
  return std::shared_ptr<const SafetensorsFile>(std::move(file));
}

Result<std::shared_ptr<SafetensorsFile>> SafetensorsFile::map(int descriptor, size_t size, const std::string& name) {
  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile);
  if (size == 0) return file;  // which cannot be mapped
  void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (mapped == MAP_FAILED) return fail(Code::kIo, "cannot map ", name, ": ", std::strerror(errno));
  file->mapped_ = {static_cast<const std::byte*>(mapped), size};
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  if (!mapped_.empty()) ::munmap(const_cast<std::byte*>(mapped_.data()), mapped_.size());
}

// All headers together have the limit of one, so that what is kept of them is bounded.
Status SafetensorsFile::parse_sequence(const std::string& name) {
  std::span<const std::byte> rest = mapped_;
  size_t header_bytes = 0, part = 0;
  do {
    const std::string part_name = cat(name, " (file ", ++part, ")");
    SEER_ASSIGN_OR_RETURN(ParsedFile file, parse_file(part_name, rest));
    if (file.tensors.empty()) return fail(Code::kCorrupt, part_name, " has no tensors");
    header_bytes += file.header_bytes;
    if (header_bytes > kHeaderBytesMax)
      return fail(Code::kCorrupt, part_name, ": all headers up to here have ", header_bytes, " bytes: expected at most ", kHeaderBytesMax);
    tensors_.merge(file.tensors);
    if (!file.tensors.empty())  // what could not be merged
      return fail(Code::kCorrupt, part_name, " has the tensor ", shortened(file.tensors.begin()->first, 120), ", which came before");
    rest = rest.subspan(file.bytes);
  } while (!rest.empty());
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
  SEER_ASSIGN_OR_RETURN(auto file, SafetensorsFile::map(memory, name));
  checkpoint.add(std::move(file));
  return checkpoint;
}

void Checkpoint::add(std::shared_ptr<const SafetensorsFile> file) {
  for (const auto& [name, view] : file->tensors()) tensors_[name] = &view;
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
    for (const auto& [name, view] : files_[i]->tensors())
      if (const auto it = tensors_.find(name); it == tensors_.end() || it->second != &view)
        return fail(Code::kCorrupt, (folder / file_name).string(), " has the tensor ", shortened(name, 120), ", which ",
                    index_path.string(), it == tensors_.end() ? " does not list" : " says is in another file");
  return {};
}

const TensorView* Checkpoint::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : it->second;
}

Result<const TensorView*> Checkpoint::get(const std::string& name, std::span<const int64_t> shape) const {
  const TensorView* view = find(name);
  if (!view)
    return fail(Code::kNotFound, name_, ": tensor ", shortened(name, 120), " of shape ", shape_text(shape),
                " is missing");
  if (!std::equal(view->shape.begin(), view->shape.end(), shape.begin(), shape.end()))
    return fail(Code::kInvalidArgument, name_, ": tensor ", name, " should have shape ", shape_text(shape),
                ", found ", shape_text(view->shape));
  if (view->type == TensorType::kOther)
    return fail(Code::kInvalidArgument, name_, ": tensor ", name, " should have dtype F32, F16 or BF16, found ",
                view->type_name);
  return view;
}

}  // namespace seer
