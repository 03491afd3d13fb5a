#include "gpu/cpu/kv_cache.h"

#include <cstring>

#include "gpu/cpu/float_bits.h"
#include "protocols/check.h"

namespace seer {

KvCache::KvCache(const KvLayout& layout, int32_t blocks) : layout_(layout) {
  SEER_CHECK(blocks > 0, blocks);
  SEER_CHECK(layout.block_tokens % kTilePositions == 0, layout.block_tokens);
  memory_ = AlignedArray<std::byte>::try_make(static_cast<size_t>(layout.block_bytes()) * blocks);
  if (!memory_.empty()) blocks_ = blocks;
}

std::span<std::byte> KvCache::block(DeviceBlockId id) {
  SEER_CHECK(id >= 0, id);
  SEER_CHECK(id < blocks_, id, blocks_);
  return {memory_.data() + layout_.block_bytes() * id, static_cast<size_t>(layout_.block_bytes())};
}

void KvCache::write(std::span<const DeviceBlockId> table, int64_t position, int32_t layer, int32_t head,
                    const float* key, const float* value) {
  const int32_t padded = layout_.head_dim_padded(), head_dim = layout_.head_dim;
  const auto at = static_cast<int32_t>(position % kTilePositions);
  std::byte* to = tile(table, position, layer, head);
  if (layout_.bf16) {
    auto* k = reinterpret_cast<uint16_t*>(to);
    uint16_t* v = k + padded * kTilePositions;
    for (int32_t d = 0; d < head_dim; ++d) {
      k[d / 2 * 32 + at * 2 + d % 2] = float_to_bf16(key[d]);
      v[d / 16 * 256 + at / 2 * 32 + d % 16 * 2 + at % 2] = float_to_bf16(value[d]);
    }
  } else {
    auto* k = reinterpret_cast<float*>(to);
    float* v = k + padded * kTilePositions;
    for (int32_t d = 0; d < head_dim; ++d) {
      k[d * kTilePositions + at] = key[d];
      v[at * padded + d] = value[d];
    }
  }
}

std::byte* KvCache::tile(std::span<const DeviceBlockId> table, int64_t position, int32_t layer, int32_t head) {
  const int64_t slot = position % layout_.block_tokens;
  return block(table[static_cast<size_t>(position / layout_.block_tokens)]).data() + offset_bytes(layer, head) +
         slot / kTilePositions * tile_bytes();
}

void KvCache::copy_position(const std::byte* from_tile, int64_t from, std::byte* to_tile, int64_t to) const {
  const int32_t padded = layout_.head_dim_padded();
  const auto a = static_cast<int32_t>(from % kTilePositions), b = static_cast<int32_t>(to % kTilePositions);
  if (layout_.bf16) {
    const auto* k_from = reinterpret_cast<const uint16_t*>(from_tile);
    const uint16_t* v_from = k_from + padded * kTilePositions;
    auto* k_to = reinterpret_cast<uint16_t*>(to_tile);
    uint16_t* v_to = k_to + padded * kTilePositions;
    for (int32_t pair = 0; pair < padded / 2; ++pair)
      std::memcpy(k_to + pair * 32 + b * 2, k_from + pair * 32 + a * 2, 4);
    for (int32_t d = 0; d < padded; ++d) {
      const int32_t line = d / 16 * 256 + d % 16 * 2;
      v_to[line + b / 2 * 32 + b % 2] = v_from[line + a / 2 * 32 + a % 2];
    }
  } else {
    const auto* k_from = reinterpret_cast<const float*>(from_tile);
    auto* k_to = reinterpret_cast<float*>(to_tile);
    for (int32_t d = 0; d < padded; ++d) k_to[d * kTilePositions + b] = k_from[d * kTilePositions + a];
    std::memmove(k_to + (kTilePositions + b) * padded, k_from + (kTilePositions + a) * padded,
                 static_cast<size_t>(padded) * 4);
  }
}

KvView KvCache::view(std::span<const DeviceBlockId> table, int32_t layer, int32_t head) const {
  return {.memory = memory_.data(),
          .blocks = table.data(),
          .block_bytes = layout_.block_bytes(),
          .offset_bytes = offset_bytes(layer, head),
          .block_tiles = layout_.block_tiles(),
          .bf16 = layout_.bf16};
}

}  // namespace seer
