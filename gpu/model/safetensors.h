// Safetensors: named tensors in files, and the checkpoint of a model folder (one file, or shards with an index). Nothing in a file is
// trusted: every offset, size and product is checked against the file before it is used, every byte of the data belongs to exactly one
// tensor, and an index lists exactly what its shards hold. Files are read, not mapped: one that is cut or removed meanwhile, as by a
// trainer that saves again, is an error of who reads it, and bytes that were checked are those that are used.
//
// File:  u64 header_bytes (little endian) | JSON header | data
//        header: {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, "__metadata__": {...}}
//
// Memory that a client filled may hold several files, each right after the one before: whoever gathers tensors one by one need not
// know the last of them to send the first.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gpu/model/weight_memory.h"
#include "protocols/result.h"

namespace seer {

enum class TensorType : uint8_t { kF32, kF16, kBf16, kOther };
constexpr const char* to_string(TensorType t) {
  return t == TensorType::kF32 ? "F32" : t == TensorType::kF16 ? "F16" : t == TensorType::kBf16 ? "BF16" : "other";
}

/// A tensor in memory, or some of its rows: row-major, little endian, perhaps not aligned.
struct TensorView {
  TensorType type = TensorType::kOther;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

class SafetensorsFile;

/// A tensor in a file, likewise. Valid while the file is open.
struct StoredTensor {
  TensorType type = TensorType::kOther;
  std::string type_name;  // as the file spells it
  std::vector<int64_t> shape;
  uint64_t begin = 0, bytes = 0;  // in the file
  const SafetensorsFile* file = nullptr;

  /// Reads bytes from `first` on, counted from its own begin. REQUIRES: it has them. Errors: kIo (the file has become shorter).
  Status read(uint64_t first, std::span<std::byte> to) const;
};

/// One file, or memory with one or several. Immutable once open, thread-safe.
class SafetensorsFile {
 public:
  /// Errors: kNotFound, kIo, kCorrupt (bad header, tensors that overlap, bytes that belong to none).
  static Result<std::shared_ptr<const SafetensorsFile>> open(const std::filesystem::path& path);
  /// `name`: of the memory, in errors. Errors: kIo, kCorrupt (also: a tensor twice, a file without tensors).
  static Result<std::shared_ptr<const SafetensorsFile>> open(const WeightMemory& memory, const std::string& name);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  /// Errors: kIo.
  Status read(uint64_t begin, std::span<std::byte> to) const;

 private:
  struct Part {
    std::map<std::string, StoredTensor> tensors;
    uint64_t header_bytes = 0, bytes = 0;  // the second: of all of it
  };
  SafetensorsFile(int descriptor, uint64_t bytes, std::string name) : descriptor_(descriptor), bytes_(bytes), name_(std::move(name)) {}
  /// `part`: the name in errors of what begins there.
  Result<Part> parse(uint64_t begin, const std::string& part) const;
  Status parse_sequence();

  const int descriptor_;
  const uint64_t bytes_;
  const std::string name_;
  std::map<std::string, StoredTensor> tensors_;
};

/// All tensors of a model: of a folder (model.safetensors, or the shards that model.safetensors.index.json lists), of a single
/// safetensors file, or of memory.
class Checkpoint {
 public:
  /// Errors: those of SafetensorsFile, and kInvalidArgument for a bad index. An index beside a single file, which Hugging Face
  /// would ignore, must list exactly the tensors of that file. `path`: the folder or the file, which may lie in shared memory
  /// (/dev/shm/NAME) or in that of another process (/proc/PID/fd/N).
  static Result<Checkpoint> open(const std::filesystem::path& path);
  static Result<Checkpoint> open(const WeightMemory& memory, const std::string& name);

  /// Where the tensors come from, for errors.
  const std::string& name() const { return name_; }
  const std::map<std::string, const StoredTensor*>& tensors() const { return tensors_; }
  /// Null if there is none of that name.
  const StoredTensor* find(const std::string& name) const;
  /// The tensor, whose shape must be `shape`. Errors: kNotFound; kInvalidArgument (shape, or a type that is not
  /// F32, F16, BF16), both naming the tensor, what was expected and what was found.
  Result<const StoredTensor*> get(const std::string& name, std::span<const int64_t> shape) const;

 private:
  void add(std::shared_ptr<const SafetensorsFile> file);
  Status read_index(const std::filesystem::path& index_path, bool beside_single);

  std::string name_;
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  std::map<std::string, const StoredTensor*> tensors_;
};

}  // namespace seer
