#include "gpu/cpu/kv_cache.h"

#include "gpu/float_bits.h"
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
  const auto slot = static_cast<int32_t>(position % layout_.block_tokens);
  const int32_t at = slot % kTilePositions;
  std::byte* tile = block(table[position / layout_.block_tokens]).data() + offset_bytes(layer, head) +
                    slot / kTilePositions * layout_.tile_elements() * layout_.element_bytes();
  if (layout_.bf16) {
    auto* k = reinterpret_cast<uint16_t*>(tile);
    uint16_t* v = k + padded * kTilePositions;
    for (int32_t d = 0; d < head_dim; ++d) {
      k[d / 2 * 32 + at * 2 + d % 2] = float_to_bf16(key[d]);
      v[d / 16 * 256 + at / 2 * 32 + d % 16 * 2 + at % 2] = float_to_bf16(value[d]);
    }
  } else {
    auto* k = reinterpret_cast<float*>(tile);
    float* v = k + padded * kTilePositions;
    for (int32_t d = 0; d < head_dim; ++d) {
      k[d * kTilePositions + at] = key[d];
      v[at * padded + d] = value[d];
    }
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
