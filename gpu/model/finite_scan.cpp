#include "gpu/model/finite_scan.h"

#include <cstring>

#include "protocols/check.h"

namespace seer {
namespace {

// A number is not finite when all bits of its exponent are set. Only then does adding 1 to the exponent field carry into
// the sign bit. So one integer operation tests several numbers, in any denormal mode.
struct Lanes {
  uint64_t exponent;  // the exponent's bits of each number in a word
  uint64_t one;       // the lowest of them
  uint64_t sign;
  size_t element_bytes;
};
constexpr Lanes lanes_of(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return {0x7f800000'7f800000, 0x00800000'00800000, 0x80000000'80000000, 4};
    case TensorType::kF16:
      return {0x7c007c00'7c007c00, 0x04000400'04000400, 0x80008000'80008000, 2};
    default:
      return {0x7f807f80'7f807f80, 0x00800080'00800080, 0x80008000'80008000, 2};
  }
}

uint64_t word_at(const std::byte* p, size_t bytes) {
  uint64_t word = 0;  // the rest of a last, short word is zeros: finite numbers
  std::memcpy(&word, p, bytes);
  return word;
}

// A loop without an early exit, so that the compiler vectorises it.
bool all_finite(const std::byte* p, size_t bytes, const Lanes& lanes) {
  uint64_t carried = 0;
  const size_t whole = bytes / 8 * 8;
  for (size_t i = 0; i < whole; i += 8) carried |= (word_at(p + i, 8) & lanes.exponent) + lanes.one;
  if (whole < bytes) carried |= (word_at(p + whole, bytes - whole) & lanes.exponent) + lanes.one;
  return (carried & lanes.sign) == 0;
}

}  // namespace

int64_t first_not_finite(std::span<const std::byte> bytes, TensorType type) {
  SEER_CHECK(type != TensorType::kOther);
  const Lanes lanes = lanes_of(type);
  if (all_finite(bytes.data(), bytes.size(), lanes)) return -1;
  size_t at = 0;
  while (all_finite(bytes.data() + at, lanes.element_bytes, lanes)) at += lanes.element_bytes;
  return static_cast<int64_t>(at / lanes.element_bytes);
}

}  // namespace seer
