// KvCache: the engine's own KV memory, cut into blocks. Layout of one block, which is also what a copy of it holds:
//   [layer][KV head][tile of 16 positions][K | V]        (tiles: kernels.h)
// Used by CpuForward (writes rows, gives views) and CpuEngine (copies whole blocks). Not thread-safe, except that
// different positions may be written at the same time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "gpu/cpu/aligned_array.h"
#include "gpu/cpu/kernels.h"
#include "gpu/engine.h"
#include "gpu/model/model_config.h"

namespace seer {

/// Sizes of a block; block_tokens is a multiple of kTilePositions.
struct KvLayout {
  int32_t layers = 0, kv_heads = 0, head_dim = 0;
  int32_t block_tokens = 16;
  bool bf16 = true;

  int32_t head_dim_padded() const { return (head_dim + 15) / 16 * 16; }
  int32_t block_tiles() const { return block_tokens / kTilePositions; }
  int64_t tile_elements() const { return int64_t{2} * head_dim_padded() * kTilePositions; }
  int64_t element_bytes() const { return bf16 ? 2 : 4; }
  int64_t head_bytes() const { return tile_elements() * block_tiles() * element_bytes(); }
  int64_t block_bytes() const { return head_bytes() * kv_heads * layers; }
};

class KvCache {
 public:
  KvCache() = default;
  /// Takes memory for `blocks` blocks; blocks() is 0 if the system lacks it.
  KvCache(const KvLayout& layout, int32_t blocks);

  const KvLayout& layout() const { return layout_; }
  int32_t blocks() const { return blocks_; }
  std::span<std::byte> block(DeviceBlockId id);

  /// Writes K and V (head_dim floats each) of one position; a bf16 cache rounds them to nearest even.
  void write(std::span<const DeviceBlockId> table, int64_t position, int32_t layer, int32_t head, const float* key,
             const float* value);
  KvView view(std::span<const DeviceBlockId> table, int32_t layer, int32_t head) const;
  int64_t tile_bytes() const { return layout_.tile_elements() * layout_.element_bytes(); }
  /// The tile that holds a position.
  std::byte* tile(std::span<const DeviceBlockId> table, int64_t position, int32_t layer, int32_t head);
  /// Copies K and V of one position between two tiles, perhaps the same one; `from` and `to` are taken modulo 16.
  void copy_position(const std::byte* from_tile, int64_t from, std::byte* to_tile, int64_t to) const;

 private:
  int64_t offset_bytes(int32_t layer, int32_t head) const {
    return (static_cast<int64_t>(layer) * layout_.kv_heads + head) * layout_.head_bytes();
  }

  KvLayout layout_;
  int32_t blocks_ = 0;
  AlignedArray<std::byte> memory_;
};

}  // namespace seer
