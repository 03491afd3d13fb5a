#include "gpu/device_blocks.h"

#include <algorithm>

#include "protocols/check.h"

namespace seer {

DeviceBlocks::DeviceBlocks(int32_t total_blocks, uint32_t block_tokens)
    : block_tokens_(block_tokens), named_(static_cast<size_t>(std::max(total_blocks, 0))) {
  SEER_CHECK(total_blocks >= 0, total_blocks);
  SEER_CHECK(block_tokens > 0);
  blocks_.resize(static_cast<size_t>(total_blocks));
  free_.reserve(blocks_.size());
  for (DeviceBlockId block = total_blocks - 1; block >= 0; --block) free_.push_back(block);  // block 0 is on top
}

Status DeviceBlocks::allocate(int32_t count, std::vector<DeviceBlockId>& table) {
  SEER_CHECK(count >= 0, count);
  const BlockCounts now = counts();
  if (count > now.available())
    return fail(Code::kFull, "no room for ", count, " KV blocks: ", now.free, " free and ", now.cached, " cached of ",
                now.total);
  for (int32_t i = 0; i < count; ++i) {
    if (free_.empty()) drop_name_of(oldest_cached_);
    const DeviceBlockId block = free_.back();
    free_.pop_back();
    blocks_[block].users = 1;
    table.push_back(block);
  }
  in_use_peak_ = std::max(in_use_peak_, counts().in_use);
  return {};
}

int32_t DeviceBlocks::retain_run(std::span<const BlockRef> chain, std::vector<DeviceBlockId>& table) {
  int32_t retained = 0;
  for (const BlockRef& ref : chain) {
    const Block* const block = named_.find(ref.key);
    if (block == nullptr) break;
    if (block->named_tokens != ref.tokens) break;  // not the chain of this engine: its blocks are cut otherwise
    if (block->named_tokens < block_tokens_ && block->users > 0) break;
    add_user(id_of(*block));
    table.push_back(id_of(*block));
    ++retained;
  }
  in_use_peak_ = std::max(in_use_peak_, counts().in_use);
  return retained;
}

void DeviceBlocks::release(std::span<const DeviceBlockId> table) {
  for (size_t i = table.size(); i-- > 0;) {
    Block& block = at(table[i]);
    SEER_CHECK(block.users > 0, table[i]);
    if (--block.users > 0) continue;
    if (block.named_tokens > 0)
      append_cached(table[i]);
    else
      free_.push_back(table[i]);
  }
}

bool DeviceBlocks::name(DeviceBlockId id, const BlockRef& ref) {
  Block& block = at(id);
  SEER_CHECK(block.users > 0, id);
  SEER_CHECK(ref.tokens >= 1, id);
  SEER_CHECK(ref.tokens <= block_tokens_, id, ref.tokens, block_tokens_);
  SEER_CHECK(ref.tokens == block_tokens_ || block.users == 1, id, ref.tokens, block.users);
  if (block.named_tokens > 0) {
    SEER_CHECK(block.key == ref.key, id, block.key, ref.key);
    return true;
  }
  if (named_.find(ref.key) != nullptr) return false;
  block.key = ref.key;
  named_.add(block);
  block.named_tokens = ref.tokens;
  return true;
}

void DeviceBlocks::will_write(DeviceBlockId id) {
  const Block& block = at(id);
  SEER_CHECK(block.users == 1, id, block.users);
  SEER_CHECK(block.named_tokens < block_tokens_, id, block.key);
  if (block.named_tokens > 0) drop_name_of(id);
}

bool DeviceBlocks::drop_name(const BlockKey& key) {
  const Block* const found = named_.find(key);
  if (found == nullptr) return false;
  drop_name_of(id_of(*found));
  return true;
}

int32_t DeviceBlocks::drop_names_below(WeightVersion version) {
  int32_t dropped = 0;
  for (size_t i = blocks_.size(); i-- > 0;) {
    if (blocks_[i].named_tokens == 0 || blocks_[i].key.version >= version) continue;
    drop_name_of(static_cast<DeviceBlockId>(i));
    ++dropped;
  }
  return dropped;
}

BlockCounts DeviceBlocks::counts() const {
  const auto total = static_cast<int32_t>(blocks_.size());
  const auto free = static_cast<int32_t>(free_.size());
  return {.total = total,
          .free = free,
          .cached = cached_count_,
          .in_use = total - free - cached_count_,
          .in_use_peak = in_use_peak_};
}

int32_t DeviceBlocks::sole_user_count(std::span<const DeviceBlockId> table) const {
  return static_cast<int32_t>(std::count_if(table.begin(), table.end(), [&](auto id) { return at(id).users == 1; }));
}

std::optional<BlockRef> DeviceBlocks::name_of(DeviceBlockId id) const {
  const Block& block = at(id);
  if (block.named_tokens == 0) return std::nullopt;
  return BlockRef{block.key, block.named_tokens};
}

std::optional<DeviceBlockId> DeviceBlocks::find(const BlockKey& key) const {
  const Block* const found = named_.find(key);
  if (found == nullptr) return std::nullopt;
  return id_of(*found);
}

const DeviceBlocks::Block& DeviceBlocks::at(DeviceBlockId id) const {
  SEER_CHECK(id >= 0, id);
  SEER_CHECK(static_cast<size_t>(id) < blocks_.size(), id, blocks_.size());
  return blocks_[static_cast<size_t>(id)];
}

void DeviceBlocks::add_user(DeviceBlockId id) {
  if (blocks_[id].users++ == 0) unlink_cached(id);
}

// The block can no longer be found; without users it is free from here on.
void DeviceBlocks::drop_name_of(DeviceBlockId id) {
  Block& block = blocks_[id];
  named_.remove(block);
  block.named_tokens = 0;
  if (block.users > 0) return;
  unlink_cached(id);
  free_.push_back(id);
}

void DeviceBlocks::append_cached(DeviceBlockId id) {
  blocks_[id].older = newest_cached_;
  blocks_[id].newer = kNoBlock;
  (newest_cached_ == kNoBlock ? oldest_cached_ : blocks_[newest_cached_].newer) = id;
  newest_cached_ = id;
  ++cached_count_;
}

void DeviceBlocks::unlink_cached(DeviceBlockId id) {
  const Block& block = blocks_[id];
  (block.older == kNoBlock ? oldest_cached_ : blocks_[block.older].newer) = block.newer;
  (block.newer == kNoBlock ? newest_cached_ : blocks_[block.newer].older) = block.older;
  --cached_count_;
}

}  // namespace seer
