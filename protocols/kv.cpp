#include "protocols/kv.h"

#include "protocols/check.h"
#include "protocols/hash.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace seer {

namespace {

// Polynomials over the field of the prime 2^61 - 1: state = sum of (token + 1) * K^(tokens behind it). They can be
// extended token by token, and many at a time: their products do not wait for each other, and one reduction does for all
// of them (16 products of 2^32 and 2^61, with the state's of 2^122, stay below 2^128). Two prefixes of n tokens are taken
// for the same with a chance of about (n / 2^61)^2.
constexpr uint64_t kPrime = (1ull << 61) - 1;
constexpr size_t kAtOnce = 16;
__extension__ using Wide = unsigned __int128;

constexpr uint64_t reduced(Wide x) {
  const uint64_t sum = (static_cast<uint64_t>(x) & kPrime) + static_cast<uint64_t>((x >> 61) & kPrime) +
                       static_cast<uint64_t>(x >> 122);
  const uint64_t folded = (sum & kPrime) + (sum >> 61);
  return folded >= kPrime ? folded - kPrime : folded;
}

struct Lane {
  std::array<uint64_t, kAtOnce + 1> power{1};  // of K
  explicit constexpr Lane(uint64_t k) {
    for (size_t i = 1; i <= kAtOnce; ++i) power[i] = reduced(Wide{power[i - 1]} * (k % kPrime));
  }
  /// REQUIRES: count <= kAtOnce.
  uint64_t extend(uint64_t state, const int32_t* tokens, size_t count) const {
    Wide sum = Wide{state} * power[count];
    for (size_t i = 0; i < count; ++i) sum += Wide{uint64_t{static_cast<uint32_t>(tokens[i])} + 1} * power[count - 1 - i];
    return reduced(sum);
  }
};
constexpr Lane kHi(0x9e3779b97f4a7c15ull), kLo(0xd6e8feb86659fd93ull);

}  // namespace

PrefixHash extend_prefix(PrefixHash before, std::span<const int32_t> tokens) {
  auto [hi, lo] = before;
  size_t i = 0;
  for (; i + kAtOnce <= tokens.size(); i += kAtOnce) {
    hi = kHi.extend(hi, &tokens[i], kAtOnce);
    lo = kLo.extend(lo, &tokens[i], kAtOnce);
  }
  hi = kHi.extend(hi, tokens.data() + i, tokens.size() - i);
  lo = kLo.extend(lo, tokens.data() + i, tokens.size() - i);
  return {hi, lo};
}

std::vector<BlockRef> block_chain(WeightVersion version, uint64_t layout, std::span<const int32_t> tokens,
                                  uint32_t block_tokens) {
  SEER_CHECK(block_tokens > 0);
  std::vector<BlockRef> chain;
  chain.reserve((tokens.size() + block_tokens - 1) / block_tokens);
  PrefixHash prefix;
  for (size_t at = 0; at < tokens.size(); at += block_tokens) {
    const auto part = tokens.subspan(at, std::min<size_t>(block_tokens, tokens.size() - at));
    prefix = extend_prefix(prefix, part);
    chain.push_back({{version, layout, prefix}, static_cast<uint32_t>(part.size())});
  }
  return chain;
}

namespace {

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? 0x82f63b78u ^ (c >> 1) : c >> 1;
    table[i] = c;
  }
  return table;
}
constexpr auto kCrcTable = make_crc_table();

uint32_t crc32c_table(const unsigned char* p, size_t n, uint32_t crc) {
  for (size_t i = 0; i < n; ++i) crc = kCrcTable[(crc ^ p[i]) & 0xff] ^ (crc >> 8);
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(const unsigned char* p, size_t n, uint32_t crc) {
  uint64_t c = crc;
  for (; n >= 8; n -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    c = _mm_crc32_u64(c, word);
  }
  auto c32 = static_cast<uint32_t>(c);
  for (; n > 0; --n, ++p) c32 = _mm_crc32_u8(c32, *p);
  return c32;
}
#endif

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc) {
#if defined(__x86_64__)
  static const bool in_hardware = __builtin_cpu_supports("sse4.2");
  if (in_hardware) return ~crc32c_sse42(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), ~crc);
#endif
  return crc32c_portable(bytes, crc);
}

uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t crc) {
  return ~crc32c_table(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), ~crc);
}

}  // namespace seer
