// PackedMatrix: the weights [rows, columns] of a linear layer (y = W x) in the order in which the GEMM kernels read
// them. Built once at load, then immutable and shared by all threads and engines.
//
// kBf16, K padded to 32 with zeros (the layout of AMX tiles: one 64-byte line is 16 outputs of one pair of inputs):
//   [rows / 32][K / 32][2 halves][16 input pairs][16 outputs][2 inputs of the pair]
// kF32 (also for f16 files, which convert exactly), K padded to 32 with zeros:
//   [rows / 32][K][32 outputs]
// kInt8, from a file of any type, K padded to 32 with zeros and stored to whole groups of kInt8GroupColumns:
//   [rows / 32][K / 64] of { [32 scales, f32][64 / 32][2 halves][16 input pairs][2 inputs of the pair][16 outputs] }
// kW8a8, likewise, for inputs that are integers too:
//   [rows / 32][K / 64] of { [32 scales, f32][2 halves][64 / 4][16 outputs][4 inputs] }, an integer plus 128 in a byte
// The last two have a scale per row and group: largest magnitude / 127 in f32. A weight is weight / scale in f32, rounded to the
// nearest integer, ties to even. A group whose largest magnitude is below 2^-110 is zero; the scale of one with an
// infinity or NaN is NaN, so that a broken model is noticed.
//
// In all formats rows are padded to 32 with zeros.
#pragma once
#include <cstdint>

#include "gpu/cpu/aligned_array.h"
#include "gpu/cpu/kernels.h"
#include "gpu/model/safetensors.h"

namespace seer {

inline constexpr int32_t kPanelRows = 32;

enum class MatrixType : uint8_t { kBf16, kF32, kInt8, kW8a8 };

constexpr const char* to_string(MatrixType t) {
  return t == MatrixType::kBf16 ? "bf16" : t == MatrixType::kF32 ? "f32" : t == MatrixType::kInt8 ? "int8" : "w8a8";
}

class PackedMatrix {
 public:
  PackedMatrix() = default;
  /// With an arena the weights lie in it.
  PackedMatrix(int32_t rows, int32_t columns, MatrixType type, PageArena* arena = nullptr);

  /// Copies the tensor into rows [row_begin, row_begin + its rows). REQUIRES: its columns are columns(); it is BF16 for
  /// kBf16, F32 or F16 for kF32, any of them for integers.
  void fill(int32_t row_begin, const TensorView& tensor);
  /// One row as floats: out[0 .. columns). Of integers the products of weight and scale.
  void read_row(int32_t row, float* out) const;

  MatrixType type() const { return type_; }
  /// Whether the inputs of a multiplication with this matrix are rounded to bf16.
  bool rounds_inputs() const { return type_ == MatrixType::kBf16 || type_ == MatrixType::kInt8; }
  int32_t rows() const { return rows_; }
  int32_t columns() const { return columns_; }
  int32_t rows_padded() const { return (rows_ + kPanelRows - 1) / kPanelRows * kPanelRows; }
  int32_t columns_padded() const { return (columns_ + 31) / 32 * 32; }
  int32_t panels() const { return rows_padded() / kPanelRows; }
  int64_t bytes() const {
    return static_cast<int64_t>(bf16_data_.size()) * 2 + static_cast<int64_t>(f32_data_.size()) * 4 +
           static_cast<int64_t>(int8_data_.size());
  }
  /// Elements of the type's data from one panel to the next. REQUIRES: not empty.
  int64_t panel_elements() const {
    return static_cast<int64_t>(bf16_data_.size() + f32_data_.size() + int8_data_.size()) / panels();
  }
  const uint16_t* bf16_data() const { return bf16_data_.data(); }
  const float* f32_data() const { return f32_data_.data(); }
  const int8_t* int8_data() const { return int8_data_.data(); }

 private:
  // Each writes up to 16 rows of one half of a panel; `in` is the first of them in the file.
  void fill_bf16(int32_t row, int32_t count, const std::byte* in);
  void fill_f32(int32_t row, int32_t count, const std::byte* in, TensorType from);
  void fill_integers(int32_t row, int32_t count, const std::byte* in, TensorType from);
  // Index of an element in bf16_data_ or f32_data_.
  size_t index_of(int32_t row, int32_t column) const;
  bool has_integers() const { return type_ == MatrixType::kInt8 || type_ == MatrixType::kW8a8; }
  // Index within a group's integers.
  int32_t integer_index(int32_t row, int32_t column) const;
  // Offset of the first byte of a panel's group.
  size_t group_offset(int32_t row, int32_t column) const;

  MatrixType type_ = MatrixType::kF32;
  int32_t rows_ = 0, columns_ = 0;
  AlignedArray<uint16_t> bf16_data_;
  AlignedArray<float> f32_data_;
  AlignedArray<int8_t> int8_data_;
};

}  // namespace seer
