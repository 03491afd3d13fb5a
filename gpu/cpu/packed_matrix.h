// PackedMatrix: the weights [rows, columns] of a linear layer (y = W x) in the order in which the GEMM kernels read
// them. Built once at load, then immutable and shared by all threads and engines.
//
// kBf16, K padded to 32 with zeros (the layout of AMX tiles: one 64-byte line is 16 outputs of one pair of inputs):
//   [rows / 32][K / 32][2 halves][16 input pairs][16 outputs][2 inputs of the pair]
// kF32 (also for f16 files, which convert exactly):
//   [rows / 32][K][32 outputs]
// Rows are padded to 32 with zeros in both.
#pragma once
#include <cstdint>

#include "gpu/cpu/aligned_array.h"
#include "gpu/safetensors.h"

namespace seer {

inline constexpr int32_t kPanelRows = 32;

enum class MatrixType : uint8_t { kBf16, kF32 };

class PackedMatrix {
 public:
  PackedMatrix() = default;
  PackedMatrix(int32_t rows, int32_t columns, MatrixType type);

  /// Copies the tensor into rows [row_begin, row_begin + its rows). REQUIRES: its columns are columns(); it is BF16 for
  /// kBf16, F32 or F16 for kF32.
  void fill(int32_t row_begin, const TensorView& tensor);
  /// One row as floats: out[0 .. columns).
  void read_row(int32_t row, float* out) const;

  MatrixType type() const { return type_; }
  /// Whether the inputs of a multiplication with this matrix are rounded to bf16.
  bool rounds_inputs() const { return type_ != MatrixType::kF32; }
  int32_t rows() const { return rows_; }
  int32_t columns() const { return columns_; }
  int32_t rows_padded() const { return (rows_ + kPanelRows - 1) / kPanelRows * kPanelRows; }
  int32_t columns_padded() const { return (columns_ + 31) / 32 * 32; }
  int32_t panels() const { return rows_padded() / kPanelRows; }
  int64_t bytes() const {
    return static_cast<int64_t>(bf16_data_.size()) * 2 + static_cast<int64_t>(f32_data_.size()) * 4;
  }
  const uint16_t* bf16_data() const { return bf16_data_.data(); }
  const float* f32_data() const { return f32_data_.data(); }

 private:
  // Both write up to 16 rows that lie in one half of a panel; `in` is the first of them in the file.
  void fill_bf16(int32_t row, int32_t count, const std::byte* in);
  void fill_f32(int32_t row, int32_t count, const std::byte* in, TensorType from);
  size_t index_of(int32_t row, int32_t column) const;

  MatrixType type_ = MatrixType::kF32;
  int32_t rows_ = 0, columns_ = 0;
  AlignedArray<uint16_t> bf16_data_;
  AlignedArray<float> f32_data_;
};

}  // namespace seer
