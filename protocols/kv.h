// KV blocks: how they are named and described. A KV block is K and V of `block_tokens` consecutive tokens of one
// sequence, all layers; a partial block holds fewer tokens (the tail of a parked request).
#pragma once
#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <functional>
#include <ostream>
#include <span>
#include <vector>

#include "protocols/crc32c.h"  // checksum of a block's bytes
#include "protocols/ids.h"
#include "protocols/token_log.h"

namespace seer {

/// A hash of a whole token prefix. Equal prefixes have equal hashes; for others see extend_prefix() and block_chain().
struct PrefixHash {
  uint64_t hi = 0, lo = 0;
  constexpr auto operator<=>(const PrefixHash&) const = default;
  SEER_FIELDS(PrefixHash, hi, lo)
};

/// Name of a block's content (32 bytes): the same key always means the same bits, also where clients choose tokens to break that.
struct BlockKey {
  WeightVersion version;   // KV of other weights can never match
  uint64_t kv_hash = 0;    // of weights and KV layout, as in EngineInfo
  PrefixHash prefix;       // every token up to and including the last one in the block, by block_chain()
  constexpr auto operator<=>(const BlockKey&) const = default;
  SEER_FIELDS(BlockKey, version, kv_hash, prefix)
};
inline std::ostream& operator<<(std::ostream& out, const BlockKey& k) {
  return out << "v" << k.version << "/" << std::hex << k.prefix.hi << std::dec;
}

/// Hash of `tokens` appended to the prefix whose hash is `before` (all zero: the empty prefix), in 122 bits, the same in pieces as at
/// once. Other tokens have it by accident only, but can be found on purpose.
PrefixHash extend_prefix(PrefixHash before, std::span<const int32_t> tokens);

/// A block as its owner sees it: its name and how many tokens of it are filled.
struct BlockRef {
  BlockKey key;
  uint32_t tokens = 0;  // 1..block_tokens
  SEER_FIELDS(BlockRef, key, tokens)
};
std::vector<BlockKey> keys_of(const std::vector<BlockRef>& blocks);

/// Keys of the blocks that hold the first `tokens` tokens of a log, in order; the last one may be partial. Each is SHA-256, cut to 128
/// bits, of the one before and the block's tokens.
std::vector<BlockRef> block_chain(WeightVersion version, uint64_t kv_hash, const TokenLog& log, int64_t tokens,
                                  uint32_t block_tokens);
/// Extends such a chain, all of whole blocks, to the first `tokens` tokens of the log.
void extend_chain(std::vector<BlockRef>& chain, WeightVersion version, uint64_t kv_hash, const TokenLog& log, int64_t tokens,
                  uint32_t block_tokens);

}  // namespace seer

template <>
struct std::hash<seer::BlockKey> {
  size_t operator()(const seer::BlockKey& k) const {
    return k.prefix.hi ^ (k.version.value * 0x9e3779b97f4a7c15ull) ^ k.kv_hash;
  }
};
