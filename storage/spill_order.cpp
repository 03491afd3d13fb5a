#include "storage/spill_order.h"

#include <utility>

#include "protocols/check.h"

namespace seer {

bool SpillOrder::Blocks::add(uint32_t index, const BlockKey& key) {
  if (index >= by_index_.size()) by_index_.resize(size_t{index} + 1);
  if (by_index_[index]) return false;
  by_index_[index] = key;
  return true;
}

bool SpillOrder::Blocks::remove(uint32_t index) {
  if (index >= by_index_.size() || !by_index_[index]) return false;
  by_index_[index].reset();
  while (!by_index_.empty() && !by_index_.back()) by_index_.pop_back();
  return true;
}

SpillOrder::Rank SpillOrder::rank(OwnerId owner, Urgency urgency, bool shared) {
  const auto spill_class = static_cast<SpillClass>((shared ? 2 : 0) + (urgency.pinned ? 1 : 0));
  return {spill_class, urgency.next_use, owner};
}

void SpillOrder::set_urgency(OwnerId owner, Urgency urgency) {
  Group& group = groups_[owner];
  group.urgency = urgency;
  changed(owner, group);
}

void SpillOrder::forget(OwnerId owner) {
  const auto it = groups_.find(owner);
  if (it == groups_.end()) return;
  const Group& group = it->second;
  SEER_CHECK(group.own.empty(), owner);
  SEER_CHECK(group.shared.empty(), owner);
  for (const auto& rank : {group.own_rank, group.shared_rank})
    if (rank) ranks_.erase(*rank);
  groups_.erase(it);
}

void SpillOrder::add(const SpillPlace& place, const BlockKey& key) {
  Group& group = groups_[place.owner];
  Blocks& blocks = place.shared ? group.shared : group.own;
  if (blocks.empty()) changed(place.owner, group);
  const bool added = blocks.add(place.index, key);
  SEER_CHECK(added, place.owner, place.index);
  ++size_;
}

void SpillOrder::remove(const SpillPlace& place) {
  const auto it = groups_.find(place.owner);
  SEER_CHECK(it != groups_.end(), place.owner);
  Blocks& blocks = place.shared ? it->second.shared : it->second.own;
  const bool removed = blocks.remove(place.index);
  SEER_CHECK(removed, place.owner, place.index);
  if (blocks.empty()) changed(place.owner, it->second);
  --size_;
}

void SpillOrder::changed(OwnerId owner, Group& group) {
  constexpr size_t kStaleMin = 64;
  if (std::exchange(group.is_stale, true)) return;
  stale_.push_back(owner);
  if (stale_.size() > kStaleMin + 2 * groups_.size()) sort();  // most of them are owners that are gone
}

void SpillOrder::sort() const {
  for (const OwnerId owner : stale_) {
    const auto it = groups_.find(owner);
    if (it == groups_.end()) continue;
    Group& group = it->second;
    group.is_stale = false;
    for (const bool shared : {false, true}) {
      std::optional<Rank>& known = shared ? group.shared_rank : group.own_rank;
      std::optional<Rank> now;
      if (!(shared ? group.shared : group.own).empty()) now = rank(owner, group.urgency, shared);
      if (now == known) continue;
      if (known) ranks_.erase(*known);
      if (now) ranks_.insert(*now);
      known = now;
    }
  }
  stale_.clear();
}

std::optional<SpillCandidate> SpillOrder::first() const {
  sort();
  if (ranks_.empty()) return std::nullopt;
  return candidate(*ranks_.begin());
}

std::optional<SpillCandidate> SpillOrder::first_not_of(OwnerId owner) const {
  sort();
  // An owner has one rank for its own blocks and one for shared ones, so that at most one is skipped.
  for (const Rank& r : ranks_)
    if (r.owner != owner || r.spill_class >= SpillClass::kShared) return candidate(r);
  return std::nullopt;
}

SpillCandidate SpillOrder::candidate(const Rank& r) const {
  const Group& group = groups_.at(r.owner);
  const Blocks& blocks = r.spill_class >= SpillClass::kShared ? group.shared : group.own;
  return {blocks.tail(), r.owner, r.spill_class, r.next_use};
}

}  // namespace seer
