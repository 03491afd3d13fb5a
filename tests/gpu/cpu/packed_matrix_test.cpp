// Checks the layouts drawn in packed_matrix.h, element by element. linear_test.cpp tests the kernels on them.
#include "gpu/cpu/packed_matrix.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "gpu/cpu/float_bits.h"

namespace seer {
namespace {

constexpr int32_t kRows = 45, kColumns = 70;

/// Small integers, which are exact in bf16.
float value(int32_t row, int32_t column) { return static_cast<float>((row * 31 + column * 7) % 251 - 125); }

template <class T>
TensorView view(const std::vector<T>& data, TensorType type, int64_t columns) {
  return {type, {std::ssize(data) / columns, columns}, std::as_bytes(std::span(data))};
}

std::vector<float> f32_rows(int32_t begin, int32_t end) {
  std::vector<float> data;
  for (int32_t r = begin; r < end; ++r)
    for (int32_t c = 0; c < kColumns; ++c) data.push_back(value(r, c));
  return data;
}

std::vector<uint16_t> bf16_rows(int32_t begin, int32_t end) {
  std::vector<uint16_t> data;
  for (const float x : f32_rows(begin, end)) data.push_back(float_to_bf16(x));
  return data;
}

float padded_value(int32_t row, int32_t column) { return row < kRows && column < kColumns ? value(row, column) : 0.0f; }

TEST_CASE("packed matrix: bf16 lies in lines of 16 outputs of a pair of inputs, padded with zeros") {
  PackedMatrix matrix(kRows, kColumns, MatrixType::kBf16);
  // In two pieces, as the heads of a layer are; the cut is in the middle of a line.
  matrix.fill(0, view(bf16_rows(0, 7), TensorType::kBf16, kColumns));
  matrix.fill(7, view(bf16_rows(7, kRows), TensorType::kBf16, kColumns));
  CHECK(matrix.rows_padded() == 64);
  CHECK(matrix.columns_padded() == 96);
  CHECK(matrix.panels() == 2);
  CHECK(matrix.bytes() == 64 * 96 * 2);
  CHECK(matrix.panel_elements() == 32 * 96);
  int bad = 0;
  const uint16_t* at = matrix.bf16_data();
  for (int32_t panel = 0; panel < 2; ++panel)
    for (int32_t block = 0; block < 3; ++block)
      for (int32_t half = 0; half < 2; ++half)
        for (int32_t pair = 0; pair < 16; ++pair)
          for (int32_t output = 0; output < 16; ++output)
            for (int32_t input = 0; input < 2; ++input)
              bad += bf16_to_float(*at++) != padded_value(panel * 32 + half * 16 + output, block * 32 + pair * 2 + input);
  CHECK(bad == 0);
}

TEST_CASE("packed matrix: f32 lies column by column of 32 outputs, also from f16 files") {
  PackedMatrix matrix(kRows, kColumns, MatrixType::kF32);
  matrix.fill(0, view(f32_rows(0, 20), TensorType::kF32, kColumns));
  matrix.fill(20, view(f32_rows(20, kRows), TensorType::kF32, kColumns));
  CHECK(matrix.bytes() == 64 * 96 * 4);
  int bad = 0;
  const float* at = matrix.f32_data();
  for (int32_t panel = 0; panel < 2; ++panel)
    for (int32_t column = 0; column < 96; ++column)
      for (int32_t output = 0; output < 32; ++output) bad += *at++ != padded_value(panel * 32 + output, column);
  CHECK(bad == 0);

  PackedMatrix halves(1, 3, MatrixType::kF32);
  halves.fill(0, view(std::vector<uint16_t>{0x3c00, 0xc000, 0x0001}, TensorType::kF16, 3));
  float row[3];
  halves.read_row(0, row);
  CHECK(row[0] == 1.0f);
  CHECK(row[1] == -2.0f);
  CHECK(row[2] == 0x1p-24f);
}

PackedMatrix integer_matrix(MatrixType type) {
  PackedMatrix matrix(kRows, kColumns, type);
  matrix.fill(0, view(bf16_rows(0, 7), TensorType::kBf16, kColumns));
  matrix.fill(7, view(f32_rows(7, kRows), TensorType::kF32, kColumns));
  return matrix;
}

TEST_CASE("packed matrix: int8 groups have the scales of 32 outputs, then their integers, rounded to even") {
  const PackedMatrix matrix = integer_matrix(MatrixType::kInt8);
  CHECK(matrix.bytes() == 2 * 2 * kInt8GroupBytes);
  int bad = 0;
  const int8_t* at = matrix.int8_data();
  for (int32_t panel = 0; panel < 2; ++panel)
    for (int32_t group = 0; group < 2; ++group) {
      std::vector<float> scales(32);
      for (int32_t output = 0; output < 32; ++output) {
        float largest = 0;
        for (int32_t c = group * 64; c < group * 64 + 64; ++c)
          largest = std::max(largest, std::fabs(padded_value(panel * 32 + output, c)));
        scales[static_cast<size_t>(output)] = largest / 127.0f;
        bad += reinterpret_cast<const float*>(at)[output] != largest / 127.0f;
      }
      at += 32 * 4;
      for (int32_t block = 0; block < 2; ++block)
        for (int32_t half = 0; half < 2; ++half)
          for (int32_t pair = 0; pair < 16; ++pair)
            for (int32_t input = 0; input < 2; ++input)
              for (int32_t output = 0; output < 16; ++output) {
                const float scale = scales[static_cast<size_t>(half * 16 + output)];
                const float weight = padded_value(panel * 32 + half * 16 + output, group * 64 + block * 32 + pair * 2 + input);
                bad += *at++ != (scale == 0 ? 0.0f : std::nearbyint(weight / scale));
              }
    }
  CHECK(bad == 0);
  float row[kColumns];
  matrix.read_row(44, row);
  for (int32_t c = 0; c < kColumns; ++c) CHECK(std::fabs(row[c] - value(44, c)) <= 0.5f * 125.0f / 127.0f * 1.001f);
}

TEST_CASE("packed matrix: w8a8 has int8's scales and integers, four inputs of an output together, plus 128") {
  const PackedMatrix matrix = integer_matrix(MatrixType::kW8a8), int8 = integer_matrix(MatrixType::kInt8);
  REQUIRE(matrix.bytes() == int8.bytes());
  int bad = 0;
  for (int32_t group = 0; group < 4; ++group) {  // of both panels
    const int8_t *at = matrix.int8_data() + group * kInt8GroupBytes, *other = int8.int8_data() + group * kInt8GroupBytes;
    bad += std::memcmp(at, other, 32 * 4) != 0;
    at += 32 * 4;
    other += 32 * 4;
    for (int32_t half = 0; half < 2; ++half)
      for (int32_t column = 0; column < 64; ++column)
        for (int32_t output = 0; output < 16; ++output) {
          const int integer = other[column / 32 * 1024 + half * 512 + column % 32 / 2 * 32 + column % 2 * 16 + output];
          const int stored = static_cast<uint8_t>(at[half * 1024 + column / 4 * 64 + output * 4 + column % 4]);
          // Past the last output and the last input nothing is stored.
          const bool is_padding = group / 2 * 32 + half * 16 + output >= kRows || group % 2 * 64 + column >= kColumns;
          bad += stored != (is_padding ? 0 : integer + 128);
        }
  }
  CHECK(bad == 0);
  float row[kColumns], other[kColumns];
  for (int32_t r = 0; r < kRows; ++r) {
    matrix.read_row(r, row);
    int8.read_row(r, other);
    CHECK(std::memcmp(row, other, sizeof row) == 0);
  }
}

TEST_CASE("packed matrix: a group of integers that is tiny is zero, and one that is not finite is NaN") {
  for (const MatrixType type : {MatrixType::kInt8, MatrixType::kW8a8}) {
    PackedMatrix matrix(3, 2, type);
    const float infinity = std::numeric_limits<float>::infinity();
    matrix.fill(0, view(std::vector<float>{0x1p-111f, -0x1p-120f, 1.0f, infinity, 0x1p-110f, 0}, TensorType::kF32, 2));
    float row[2];
    matrix.read_row(0, row);
    CHECK(row[0] == 0.0f);
    matrix.read_row(1, row);
    CHECK(std::isnan(row[0]));
    matrix.read_row(2, row);
    CHECK(row[0] == doctest::Approx(0x1p-110).epsilon(1e-6));
    CHECK(row[0] > 0.0f);
  }
}

}  // namespace
}  // namespace seer
