#include "gpu/cpu/packed_matrix.h"

#include <algorithm>
#include <cstring>

#include "gpu/float_bits.h"
#include "protocols/check.h"

namespace seer {
namespace {

constexpr int32_t kHalfRows = 16;
constexpr int32_t kBlockColumns = 32;

size_t element_bytes(TensorType type) { return type == TensorType::kF32 ? 4 : 2; }

// `count` elements of a file, perhaps not aligned, as floats.
void read_floats(const std::byte* in, TensorType from, int32_t count, float* out) {
  if (from == TensorType::kF32) {
    std::memcpy(out, in, static_cast<size_t>(count) * 4);
    return;
  }
  for (int32_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, in + i * 2, 2);
    out[i] = from == TensorType::kBf16 ? bf16_to_float(bits) : half_to_float(bits);
  }
}

}  // namespace

PackedMatrix::PackedMatrix(int32_t rows, int32_t columns, MatrixType type)
    : type_(type), rows_(rows), columns_(columns) {
  const size_t size = static_cast<size_t>(rows_padded()) * columns_padded();
  if (type == MatrixType::kBf16)
    bf16_data_ = AlignedArray<uint16_t>(size);
  else
    f32_data_ = AlignedArray<float>(size);
}

size_t PackedMatrix::index_of(int32_t row, int32_t column) const {
  const size_t panel = static_cast<size_t>(row / kPanelRows) * kPanelRows * columns_padded();
  const int32_t r = row % kPanelRows, k = column % 32;
  if (type_ == MatrixType::kF32) return panel + static_cast<size_t>(column) * kPanelRows + r;
  return panel + static_cast<size_t>(column / 32) * 1024 + (r / 16) * 512 + (k / 2) * 32 + (r % 16) * 2 + k % 2;
}

void PackedMatrix::fill(int32_t row_begin, const TensorView& tensor) {
  SEER_CHECK(tensor.shape.size() == 2);
  SEER_CHECK(tensor.shape[1] == columns_, tensor.shape[1], columns_);
  SEER_CHECK(row_begin + tensor.shape[0] <= rows_, row_begin, tensor.shape[0], rows_);
  SEER_CHECK((tensor.type == TensorType::kBf16) == (type_ == MatrixType::kBf16), to_string(tensor.type));
  const size_t row_bytes = static_cast<size_t>(columns_) * element_bytes(tensor.type);
  const auto row_end = static_cast<int32_t>(row_begin + tensor.shape[0]);
  const std::byte* in = tensor.bytes.data();
  for (int32_t row = row_begin; row < row_end;) {
    const int32_t count = std::min(row_end - row, kHalfRows - row % kHalfRows);
    if (type_ == MatrixType::kBf16)
      fill_bf16(row, count, in);
    else
      fill_f32(row, count, in, tensor.type);
    row += count;
    in += row_bytes * count;
  }
}

void PackedMatrix::fill_bf16(int32_t row, int32_t count, const std::byte* in) {
  const size_t row_bytes = static_cast<size_t>(columns_) * 2;
  for (int32_t column = 0; column < columns_; column += kBlockColumns) {
    uint32_t pairs[kHalfRows][kBlockColumns / 2] = {};
    const size_t taken = static_cast<size_t>(std::min(kBlockColumns, columns_ - column)) * 2;
    for (int32_t r = 0; r < count; ++r)
      std::memcpy(pairs[r], in + r * row_bytes + static_cast<size_t>(column) * 2, taken);
    uint16_t* lines = bf16_data_.data() + index_of(row, column);
    for (int32_t pair = 0; pair < kBlockColumns / 2; ++pair)
      for (int32_t r = 0; r < count; ++r) std::memcpy(lines + pair * 32 + r * 2, &pairs[r][pair], 4);
  }
}

void PackedMatrix::fill_f32(int32_t row, int32_t count, const std::byte* in, TensorType from) {
  const size_t row_bytes = static_cast<size_t>(columns_) * element_bytes(from);
  for (int32_t column = 0; column < columns_; column += kBlockColumns) {
    float values[kHalfRows][kBlockColumns];
    const int32_t taken = std::min(kBlockColumns, columns_ - column);
    for (int32_t r = 0; r < count; ++r)
      read_floats(in + r * row_bytes + static_cast<size_t>(column) * element_bytes(from), from, taken, values[r]);
    float* lines = f32_data_.data() + index_of(row, column);
    for (int32_t k = 0; k < taken; ++k)
      for (int32_t r = 0; r < count; ++r) lines[k * kPanelRows + r] = values[r][k];
  }
}

void PackedMatrix::read_row(int32_t row, float* out) const {
  SEER_CHECK(row >= 0, row);
  SEER_CHECK(row < rows_, row, rows_);
  for (int32_t column = 0; column < columns_; ++column) {
    const size_t i = index_of(row, column);
    out[column] = type_ == MatrixType::kBf16 ? bf16_to_float(bf16_data_[i]) : f32_data_[i];
  }
}

}  // namespace seer
