#include "protocols/kv.h"

#include <openssl/evp.h>

#include <algorithm>
#include <memory>

#include "protocols/check.h"
#include "protocols/hash.h"

namespace seer {

namespace {

// Polynomials over the field of the prime 2^61 - 1: state = sum of (token + 1) * K^(tokens after it). They can be
// extended by one token or by many at a time: the products are independent and share one reduction. Two different prefixes
// of n tokens collide with a probability of about (n / 2^61)^2.
constexpr uint64_t kPrime = (1ull << 61) - 1;
constexpr size_t kAtOnce = 64;
__extension__ using Wide = unsigned __int128;

constexpr uint64_t reduced(Wide x) {
  const uint64_t sum = (static_cast<uint64_t>(x) & kPrime) + static_cast<uint64_t>((x >> 61) & kPrime) +
                       static_cast<uint64_t>(x >> 122);
  const uint64_t folded = (sum & kPrime) + (sum >> 61);
  return folded >= kPrime ? folded - kPrime : folded;
}

struct Lane {
  // A power is three limbs of 21 bits, so that kAtOnce products of a limb and a token sum to less than 2^64. A vector
  // instruction makes several such products at once.
  static constexpr size_t kLimbs = 3, kLimbBits = 21;
  std::array<uint64_t, kAtOnce + 1> power{1};                        // of K
  std::array<std::array<uint32_t, kAtOnce>, kLimbs> limbs{};         // of the powers that kAtOnce tokens are multiplied by
  Wide sum_of_powers = 0;                                            // of these
  explicit constexpr Lane(uint64_t k) {
    for (size_t i = 1; i <= kAtOnce; ++i) power[i] = reduced(Wide{power[i - 1]} * (k % kPrime));
    for (size_t i = 0; i < kAtOnce; ++i) {
      const uint64_t factor = power[kAtOnce - 1 - i];
      for (size_t limb = 0; limb < kLimbs; ++limb)
        limbs[limb][i] = static_cast<uint32_t>(factor >> (limb * kLimbBits) & ((1u << kLimbBits) - 1));
      sum_of_powers += factor;
    }
  }
  /// REQUIRES: count < kAtOnce. All terms together stay below 2^123.
  uint64_t extend(uint64_t state, const int32_t* tokens, size_t count) const {
    Wide sum = Wide{state} * power[count];
    for (size_t i = 0; i < count; ++i) sum += Wide{uint64_t{static_cast<uint32_t>(tokens[i])} + 1} * power[count - 1 - i];
    return reduced(sum);
  }
  /// Extends by kAtOnce tokens.
  [[gnu::always_inline]] uint64_t extend_at_once(uint64_t state, const int32_t* tokens) const {
    Wide sum = Wide{state} * power[kAtOnce] + sum_of_powers;
    for (size_t limb = 0; limb < kLimbs; ++limb) {
      uint64_t products = 0;
      for (size_t i = 0; i < kAtOnce; ++i) products += uint64_t{static_cast<uint32_t>(tokens[i])} * limbs[limb][i];
      sum += Wide{products} << (limb * kLimbBits);
    }
    return reduced(sum);
  }
};
constexpr Lane kHi(0x9e3779b97f4a7c15ull), kLo(0xd6e8feb86659fd93ull);

[[gnu::always_inline]] inline PrefixHash extend_whole(PrefixHash before, const int32_t* tokens, size_t pieces) {
  for (; pieces > 0; --pieces, tokens += kAtOnce)
    before = {kHi.extend_at_once(before.hi, tokens), kLo.extend_at_once(before.lo, tokens)};
  return before;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) PrefixHash extend_whole_avx2(PrefixHash before, const int32_t* tokens, size_t pieces) {
  return extend_whole(before, tokens, pieces);
}
#endif

/// SHA-256 of a block's tokens and the name of the block before. Chosen tokens can give a polynomial that others have too, but not this.
class BlockNamer {
 public:
  BlockNamer() : sha_(EVP_MD_fetch(nullptr, "SHA256", nullptr)), context_(EVP_MD_CTX_new()) {
    SEER_CHECK(sha_ != nullptr);
    SEER_CHECK(context_ != nullptr);
  }
  PrefixHash name(PrefixHash before, const TokenLog& log, int64_t first, int64_t end) {
    const std::array<uint64_t, 2> words{before.hi, before.lo};
    bool is_done = EVP_DigestInit_ex2(context_.get(), sha_.get(), nullptr) == 1 && EVP_DigestUpdate(context_.get(), words.data(), sizeof words) == 1;
    log.visit(first, end, [&](std::span<const int32_t> part) {
      is_done = is_done && EVP_DigestUpdate(context_.get(), part.data(), part.size_bytes()) == 1;
    });
    std::array<uint64_t, 4> digest{};
    is_done = is_done && EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr) == 1;
    SEER_CHECK(is_done);
    return {digest[0], digest[1]};
  }

 private:
  struct Free {
    void operator()(EVP_MD* sha) const { EVP_MD_free(sha); }
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD, Free> sha_;
  std::unique_ptr<EVP_MD_CTX, Free> context_;
};

}  // namespace

PrefixHash extend_prefix(PrefixHash before, std::span<const int32_t> tokens) {
  const size_t pieces = tokens.size() / kAtOnce;
#if defined(__x86_64__)
  static const bool in_hardware = __builtin_cpu_supports("avx2");
  before = in_hardware ? extend_whole_avx2(before, tokens.data(), pieces) : extend_whole(before, tokens.data(), pieces);
#else
  before = extend_whole(before, tokens.data(), pieces);
#endif
  const auto rest = tokens.subspan(pieces * kAtOnce);
  return {kHi.extend(before.hi, rest.data(), rest.size()), kLo.extend(before.lo, rest.data(), rest.size())};
}

std::vector<BlockKey> keys_of(const std::vector<BlockRef>& blocks) {
  std::vector<BlockKey> keys;
  keys.reserve(blocks.size());
  for (const BlockRef& block : blocks) keys.push_back(block.key);
  return keys;
}

std::vector<BlockRef> block_chain(WeightVersion version, uint64_t kv_hash, const TokenLog& log, int64_t tokens,
                                  uint32_t block_tokens) {
  std::vector<BlockRef> chain;
  chain.reserve(static_cast<size_t>(tokens / std::max(1u, block_tokens)) + 1);
  extend_chain(chain, version, kv_hash, log, tokens, block_tokens);
  return chain;
}

void extend_chain(std::vector<BlockRef>& chain, WeightVersion version, uint64_t kv_hash, const TokenLog& log, int64_t tokens,
                  uint32_t block_tokens) {
  SEER_CHECK(block_tokens > 0);
  SEER_CHECK(tokens <= log.size(), tokens, log.size());
  thread_local BlockNamer namer;
  PrefixHash prefix = chain.empty() ? PrefixHash{} : chain.back().key.prefix;
  for (int64_t at = std::ssize(chain) * block_tokens; at < tokens; at += block_tokens) {
    const int64_t end = std::min(tokens, at + block_tokens);
    prefix = namer.name(prefix, log, at, end);
    chain.push_back({{version, kv_hash, prefix}, static_cast<uint32_t>(end - at)});
  }
}

}  // namespace seer
