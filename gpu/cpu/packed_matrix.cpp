#include "gpu/cpu/packed_matrix.h"

#include <cstring>

#include "gpu/float_bits.h"
#include "protocols/check.h"

namespace seer {

PackedMatrix::PackedMatrix(int32_t rows, int32_t columns, bool bf16) : bf16_(bf16), rows_(rows), columns_(columns) {
  const size_t size = static_cast<size_t>(rows_padded()) * columns_padded();
  if (bf16)
    bf16_data_ = AlignedArray<uint16_t>(size);
  else
    f32_data_ = AlignedArray<float>(size);
}

size_t PackedMatrix::index_of(int32_t row, int32_t column) const {
  const size_t panel = static_cast<size_t>(row / kPanelRows) * kPanelRows * columns_padded();
  const int32_t r = row % kPanelRows, k = column % 32;
  if (!bf16_) return panel + static_cast<size_t>(column) * kPanelRows + r;
  return panel + static_cast<size_t>(column / 32) * 1024 + (r / 16) * 512 + (k / 2) * 32 + (r % 16) * 2 + k % 2;
}

void PackedMatrix::fill(int32_t row_begin, const TensorView& tensor) {
  SEER_CHECK(tensor.shape.size() == 2);
  SEER_CHECK(tensor.shape[1] == columns_, tensor.shape[1], columns_);
  SEER_CHECK(row_begin + tensor.shape[0] <= rows_, row_begin, tensor.shape[0], rows_);
  SEER_CHECK((tensor.type == TensorType::kBf16) == bf16_, to_string(tensor.type));
  const std::byte* in = tensor.bytes.data();  // perhaps not aligned: read by memcpy
  for (int32_t row = row_begin; row < row_begin + tensor.shape[0]; ++row) {
    for (int32_t column = 0; column < columns_; ++column) {
      if (tensor.type == TensorType::kF32) {
        std::memcpy(&f32_data_[index_of(row, column)], in, 4);
        in += 4;
        continue;
      }
      uint16_t bits;
      std::memcpy(&bits, in, 2);
      in += 2;
      if (bf16_)
        bf16_data_[index_of(row, column)] = bits;
      else
        f32_data_[index_of(row, column)] = half_to_float(bits);
    }
  }
}

void PackedMatrix::read_row(int32_t row, float* out) const {
  SEER_CHECK(row >= 0, row);
  SEER_CHECK(row < rows_, row, rows_);
  for (int32_t column = 0; column < columns_; ++column) {
    const size_t i = index_of(row, column);
    out[column] = bf16_ ? bf16_to_float(bf16_data_[i]) : f32_data_[i];
  }
}

}  // namespace seer
