#include "storage/block_index.h"

#include <algorithm>
#include <utility>

#include "protocols/check.h"

namespace seer {

SpillOrder* BlockIndex::order_of(const Block& b) {
  if (b.leases > 0 || b.owners.empty()) return nullptr;
  return b.state == BlockState::kSealed ? &order_ : b.state == BlockState::kSpilled ? &cold_order_ : nullptr;
}

SpillPlace BlockIndex::place(const Block& b) {
  return {b.owners.front(), b.prompt || b.owners.size() > 1, b.index};
}

template <class F>
void BlockIndex::change(Block& block, F&& change) {
  if (SpillOrder* const order = order_of(block)) order->remove(place(block));
  change();
  if (SpillOrder* const order = order_of(block)) order->add(place(block), block.key);
}

Block* BlockIndex::in_slot(uint32_t slot) { return slot < slots_.size() ? slots_[slot] : nullptr; }

Block& BlockIndex::add(const BlockRef& ref, uint32_t index, bool prompt) {
  SEER_CHECK(find(ref.key) == nullptr, ref.key);
  if (unused_.empty()) unused_.push_back(&memory_.emplace_back());
  Block& block = *unused_.back();
  unused_.pop_back();
  block.key = ref.key;
  by_key_.add(block);
  block.tokens = ref.tokens;
  block.index = index;
  block.prompt = prompt;
  ++counts_.by_state[static_cast<int>(BlockState::kFree)];
  apply(block, BlockEvent::kReserve);
  return block;
}

void BlockIndex::remove(Block& block) {
  SEER_CHECK(block.state == BlockState::kFree, block.key, block.state);
  SEER_CHECK(block.owners.empty(), block.key);
  SEER_CHECK(!block.has_outstanding_operation(), block.key);
  SEER_CHECK(block.slot == kNoSlot, block.key, block.slot);
  set_cold_copy(block, false);
  --counts_.by_state[static_cast<int>(BlockState::kFree)];
  by_key_.remove(block);
  block = {};
  unused_.push_back(&block);
}

void BlockIndex::apply(Block& block, BlockEvent event) {
  const auto next = next_state(block.state, event);
  SEER_CHECK(next.has_value(), block.key, block.state, event);
  change(block, [&] {
    --counts_.by_state[static_cast<int>(block.state)];
    block.state = *next;
    ++counts_.by_state[static_cast<int>(block.state)];
  });
}

void BlockIndex::set_slot(Block& block, uint32_t slot) {
  if (block.slot != kNoSlot) slots_[block.slot] = nullptr;
  block.slot = slot;
  if (slot == kNoSlot) return;
  if (slot >= slots_.size()) slots_.resize(size_t{slot} + 1);
  SEER_CHECK(slots_[slot] == nullptr, slot);
  slots_[slot] = &block;
}

void BlockIndex::set_cold_copy(Block& block, bool has) {
  counts_.cold += static_cast<int64_t>(has) - static_cast<int64_t>(block.has_cold_copy);
  block.has_cold_copy = has;
}

void BlockIndex::add_lease(Block& block) {
  change(block, [&] {
    if (block.leases++ == 0) ++counts_.leased;
  });
}

void BlockIndex::drop_lease(Block& block) {
  SEER_CHECK(block.leases > 0, block.key);
  change(block, [&] {
    if (--block.leases == 0) --counts_.leased;
  });
}

Block* BlockIndex::retain(OwnerId owner, Block& block) {
  Owner& by = owners_[owner];
  if (block.index >= by.chain.size()) by.chain.resize(size_t{block.index} + 1);
  if (by.chain[block.index] == &block) return nullptr;
  Block* const before = std::exchange(by.chain[block.index], &block);
  if (before == nullptr) ++by.held;
  change(block, [&] { block.owners.push_back(owner); });
  if (before == nullptr) return nullptr;
  change(*before, [&] { std::erase(before->owners, owner); });
  return before->owners.empty() ? before : nullptr;
}

bool BlockIndex::release(OwnerId owner, Block& block) {
  const auto it = owners_.find(owner);
  SEER_CHECK(it != owners_.end(), owner);
  SEER_CHECK(block.index < it->second.chain.size(), owner, block.key);
  SEER_CHECK(it->second.chain[block.index] == &block, owner, block.key);
  let_go(it->second, block.index);
  change(block, [&] { std::erase(block.owners, owner); });
  return block.owners.empty();
}

/// The chain always ends with a held block, so that its length is bounded by what is held here.
void BlockIndex::let_go(Owner& owner, uint32_t index) {
  owner.chain[index] = nullptr;
  --owner.held;
  while (!owner.chain.empty() && owner.chain.back() == nullptr) owner.chain.pop_back();
}

std::vector<Block*> BlockIndex::release_all(OwnerId owner) {
  std::vector<Block*> orphans;
  for (Block* block : held_from(owner, 0))
    if (release(owner, *block)) orphans.push_back(block);
  owners_.erase(owner);
  order_.forget(owner);
  cold_order_.forget(owner);
  return orphans;
}

void BlockIndex::forget_idle_owners() {
  for (auto it = owners_.begin(); it != owners_.end();) {
    if (it->second.held > 0) {
      ++it;
      continue;
    }
    order_.forget(it->first);
    cold_order_.forget(it->first);
    it = owners_.erase(it);
  }
}

std::vector<Block*> BlockIndex::held_from(OwnerId owner, uint32_t index) const {
  std::vector<Block*> held;
  const auto it = owners_.find(owner);
  if (it == owners_.end()) return held;
  const auto& chain = it->second.chain;
  for (size_t at = chain.size(); at-- > index;)
    if (chain[at] != nullptr) held.push_back(chain[at]);
  return held;
}

bool BlockIndex::holds(OwnerId owner, const Block& block) const {
  return std::find(block.owners.begin(), block.owners.end(), owner) != block.owners.end();
}

void BlockIndex::set_urgency(OwnerId owner, Urgency urgency) {
  owners_[owner].urgency = urgency;
  order_.set_urgency(owner, urgency);
  cold_order_.set_urgency(owner, urgency);
}

Urgency BlockIndex::urgency(OwnerId owner) const {
  const auto it = owners_.find(owner);
  return it == owners_.end() ? Urgency{} : it->second.urgency;
}

void BlockIndex::for_each_owned(const std::function<void(OwnerId, Block&)>& visit) {
  std::vector<OwnerId> in_order;
  for (const auto& [owner, data] : owners_) in_order.push_back(owner);
  std::ranges::sort(in_order);
  for (const OwnerId owner : in_order)
    for (Block* block : owners_.at(owner).chain)
      if (block != nullptr) visit(owner, *block);
}

void BlockIndex::for_each_unordered(const std::function<void(Block&)>& visit) {
  by_key_.for_each_unordered(visit);
}

}  // namespace seer
