#include "gpu/cpu/kv_cache.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

using namespace seer;

namespace {

constexpr int32_t kLayers = 2, kHeads = 3;

KvLayout layout_of(bool bf16, int32_t head_dim, int32_t block_tokens) {
  return {.layers = kLayers, .kv_heads = kHeads, .head_dim = head_dim, .block_tokens = block_tokens, .bf16 = bf16};
}

/// A number of its own for each place, exact in bf16.
float number(int64_t position, int32_t layer, int32_t head, int32_t d, bool value) {
  return static_cast<float>((position * 31 + layer * 17 + head * 11 + d * 3 + (value ? 1 : 0)) % 251);
}

std::vector<float> row(int64_t position, int32_t layer, int32_t head, int32_t head_dim, bool value) {
  std::vector<float> numbers;
  for (int32_t d = 0; d < head_dim; ++d) numbers.push_back(number(position, layer, head, d, value));
  return numbers;
}

void write_all(KvCache& cache, std::span<const DeviceBlockId> table, int64_t position) {
  for (int32_t layer = 0; layer < kLayers; ++layer)
    for (int32_t head = 0; head < kHeads; ++head)
      cache.write(table, position, layer, head, row(position, layer, head, cache.layout().head_dim, false).data(),
                  row(position, layer, head, cache.layout().head_dim, true).data());
}

std::vector<std::byte> bytes_of(KvCache& cache, DeviceBlockId id) {
  const auto block = cache.block(id);
  return {block.begin(), block.end()};
}

}  // namespace

TEST_CASE("kv cache: a block has the bytes of all layers and heads, K and V, with the head's width rounded up to 16") {
  const KvLayout layout = layout_of(true, 20, 32);
  CHECK(layout.head_dim_padded() == 32);
  CHECK(layout.block_tiles() == 2);
  CHECK(layout.block_bytes() == kLayers * kHeads * 32 * (32 + 32) * 2);
  CHECK(layout_of(false, 16, 16).block_bytes() == kLayers * kHeads * 16 * (16 + 16) * 4);
}

TEST_CASE("kv cache: the bytes of a block depend on its positions, not on its place in memory") {
  for (const bool bf16 : {true, false}) {
    CAPTURE(bf16);
    KvCache cache(layout_of(bf16, 24, 32), 4);
    REQUIRE(cache.blocks() == 4);
    for (int32_t id = 0; id < 4; ++id) std::ranges::fill(cache.block(id), std::byte{0});
    const std::vector<DeviceBlockId> one = {2, 0}, other = {1, 3};
    for (int64_t position = 0; position < 64; ++position) write_all(cache, one, position);
    for (int64_t position = 64; position-- > 0;) write_all(cache, other, position);  // in another order
    CHECK(bytes_of(cache, 2) == bytes_of(cache, 1));
    CHECK(bytes_of(cache, 0) == bytes_of(cache, 3));
    CHECK(bytes_of(cache, 2) != bytes_of(cache, 0));
  }
}

TEST_CASE("kv cache: writing one position changes no byte of another, nor of another layer or head") {
  for (const bool bf16 : {true, false}) {
    CAPTURE(bf16);
    const KvLayout layout = layout_of(bf16, 16, 16);
    KvCache cache(layout, 1);
    const std::vector<DeviceBlockId> table = {0};
    std::ranges::fill(cache.block(0), std::byte{0});
    std::vector<char> owner(cache.block(0).size(), 0);
    const std::vector<float> ones(16, -1.0f);  // no byte of it that counts is zero: 0xbf80
    int64_t changed = 0;
    for (int64_t position = 0; position < 16; ++position)
      for (int32_t layer = 0; layer < kLayers; ++layer)
        for (int32_t head = 0; head < kHeads; ++head) {
          const auto before = bytes_of(cache, 0);
          cache.write(table, position, layer, head, ones.data(), ones.data());
          const auto after = bytes_of(cache, 0);
          for (size_t i = 0; i < after.size(); ++i) {
            if (after[i] == before[i]) continue;
            CHECK(owner[i] == 0);  // nobody wrote there before
            owner[i] = 1;
            ++changed;
          }
        }
    // Every number of the block was written once: two bytes that are not zero in each.
    CHECK(changed == layout.block_bytes() / layout.element_bytes() * 2);
  }
}

TEST_CASE("kv cache: a position copied between tiles equals one written there") {
  std::mt19937 random(3);
  for (const bool bf16 : {true, false}) {
    CAPTURE(bf16);
    KvCache cache(layout_of(bf16, 24, 32), 2);
    const std::vector<DeviceBlockId> table = {0, 1};
    for (int round = 0; round < 100; ++round) {
      for (int32_t id = 0; id < 2; ++id) std::ranges::fill(cache.block(id), std::byte{0});
      const int64_t from = random() % 64, to = random() % 64;
      const auto key = row(from, 0, 1, 24, false), value = row(from, 0, 1, 24, true);
      cache.write(table, from, 0, 1, key.data(), value.data());
      cache.write(table, to, 0, 1, key.data(), value.data());
      const auto expected = std::pair(bytes_of(cache, 0), bytes_of(cache, 1));
      const std::vector<float> other(24, 7.0f);
      cache.write(table, to, 0, 1, other.data(), other.data());
      if (to == from) cache.write(table, from, 0, 1, key.data(), value.data());
      cache.copy_position(cache.tile(table, from, 0, 1), from, cache.tile(table, to, 0, 1), to);
      CHECK(std::pair(bytes_of(cache, 0), bytes_of(cache, 1)) == expected);
    }
  }
}

TEST_CASE("kv cache: the view of a sequence names its blocks, its layer's and head's place, and the tiles of a block") {
  KvCache cache(layout_of(true, 16, 32), 2);
  const std::vector<DeviceBlockId> table = {1, 0};
  const KvView view = cache.view(table, 1, 2);
  CHECK(view.block_tiles == 2);
  CHECK(view.memory + view.block_bytes * view.blocks[0] + view.offset_bytes == cache.tile(table, 0, 1, 2));
  CHECK(view.memory + view.block_bytes * view.blocks[1] + view.offset_bytes + cache.tile_bytes() == cache.tile(table, 48, 1, 2));
}

TEST_CASE("kv cache: more memory than the system has gives a cache without blocks") {
  CHECK(KvCache(layout_of(true, 4096, 4096), 2'000'000'000).blocks() == 0);
}
