#include "gpu/cpu/packed_matrix.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "gpu/cpu/float_bits.h"
#include "protocols/check.h"

namespace seer {
namespace {

constexpr int32_t kHalfRows = 16;
constexpr int32_t kBlockColumns = 32;

constexpr float kSmallestMagnitude = 0x1p-110f;  // far above denormals, which some modes of the processor flush

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

// The scale of a group of weights with `count` >= 1 members. The same bits in every denormal mode.
float group_scale(const float* weights, int32_t count) {
  uint32_t largest = 0;  // bits of the largest magnitude: they sort like the values, with NaN above all
  for (int32_t i = 0; i < count; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(weights[i]) & 0x7fffffffu);
  if (largest >= 0x7f800000u) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = std::bit_cast<float>(largest);
  return magnitude < kSmallestMagnitude ? 0.0f : magnitude / 127.0f;
}

// weight / scale to the nearest integer. REQUIRES: scale is that of its group, and not 0 or NaN.
int8_t quantize(float weight, float scale) {
  // 1.5 * 2^23 + v has the integer nearest to v, two's complement, in its low bits.
  return static_cast<int8_t>(std::bit_cast<uint32_t>(weight / scale + 12582912.0f));
}

}  // namespace

PackedMatrix::PackedMatrix(int32_t rows, int32_t columns, MatrixType type, PageArena* arena)
    : type_(type), rows_(rows), columns_(columns) {
  const size_t size = static_cast<size_t>(rows_padded()) * columns_padded();
  if (type == MatrixType::kBf16)
    bf16_data_ = AlignedArray<uint16_t>(size, arena);
  else if (type == MatrixType::kF32)
    f32_data_ = AlignedArray<float>(size, arena);
  else
    int8_data_ = AlignedArray<int8_t>(group_offset(rows_padded(), 0), arena);
}

int32_t PackedMatrix::integer_index(int32_t row, int32_t column) const {
  const int32_t half = row % kPanelRows / kHalfRows, r = row % kHalfRows, k = column % kInt8GroupColumns;
  if (type_ == MatrixType::kW8a8) return half * 1024 + k / 4 * 64 + r * 4 + k % 4;
  return k / 32 * 1024 + half * 512 + k % 32 / 2 * 32 + k % 2 * 16 + r;
}

size_t PackedMatrix::group_offset(int32_t row, int32_t column) const {
  const auto groups = static_cast<size_t>(int8_groups(columns_));
  return (row / kPanelRows * groups + column / kInt8GroupColumns) * kInt8GroupBytes;
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
  SEER_CHECK(has_integers() || (tensor.type == TensorType::kBf16) == (type_ == MatrixType::kBf16),
             to_string(tensor.type));
  const size_t row_bytes = static_cast<size_t>(columns_) * element_bytes(tensor.type);
  const auto row_end = static_cast<int32_t>(row_begin + tensor.shape[0]);
  const std::byte* in = tensor.bytes.data();
  for (int32_t row = row_begin; row < row_end;) {
    const int32_t count = std::min(row_end - row, kHalfRows - row % kHalfRows);
    if (type_ == MatrixType::kBf16)
      fill_bf16(row, count, in);
    else if (type_ == MatrixType::kF32)
      fill_f32(row, count, in, tensor.type);
    else
      fill_integers(row, count, in, tensor.type);
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

void PackedMatrix::fill_integers(int32_t row, int32_t count, const std::byte* in, TensorType from) {
  const size_t row_bytes = static_cast<size_t>(columns_) * element_bytes(from);
  const int step = type_ == MatrixType::kW8a8 ? 4 : 1;  // of the rows of a half
  const int8_t bias = type_ == MatrixType::kW8a8 ? -128 : 0;  // 128, modulo 256
  for (int32_t column = 0; column < columns_; column += kInt8GroupColumns) {
    const int32_t taken = std::min(kInt8GroupColumns, columns_ - column);
    int8_t* group = int8_data_.data() + group_offset(row, column);
    int8_t integers[kHalfRows][kInt8GroupColumns];
    for (int32_t r = 0; r < count; ++r) {
      float weights[kInt8GroupColumns];
      read_floats(in + r * row_bytes + static_cast<size_t>(column) * element_bytes(from), from, taken, weights);
      const float scale = group_scale(weights, taken);
      std::memcpy(group + (row % kPanelRows + r) * 4, &scale, 4);
      if (scale > 0)
        for (int32_t k = 0; k < taken; ++k) integers[r][k] = quantize(weights[k], scale);
      else
        std::memset(integers[r], 0, sizeof integers[r]);
    }
    for (int32_t k = 0; k < taken; ++k) {
      int8_t* const weights = group + kPanelRows * 4 + integer_index(row, k);
      for (int32_t r = 0; r < count; ++r) weights[r * step] = static_cast<int8_t>(integers[r][k] ^ bias);
    }
  }
}

void PackedMatrix::read_row(int32_t row, float* out) const {
  SEER_CHECK(row >= 0, row);
  SEER_CHECK(row < rows_, row, rows_);
  for (int32_t column = 0; column < columns_; ++column) {
    if (has_integers()) {
      const int8_t* group = int8_data_.data() + group_offset(row, column);
      float scale;
      std::memcpy(&scale, group + row % kPanelRows * 4, 4);
      const int8_t stored = group[kPanelRows * 4 + integer_index(row, column)];
      out[column] = static_cast<float>(type_ == MatrixType::kW8a8 ? static_cast<int8_t>(stored ^ -128) : stored) * scale;
      continue;
    }
    const size_t i = index_of(row, column);
    out[column] = type_ == MatrixType::kBf16 ? bf16_to_float(bf16_data_[i]) : f32_data_[i];
  }
}

}  // namespace seer
