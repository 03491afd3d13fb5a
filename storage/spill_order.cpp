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
  for (const bool shared : {false, true}) {
    if ((shared ? group.shared : group.own).empty()) continue;
    ranks_.erase(rank(owner, group.urgency, shared));
    ranks_.insert(rank(owner, urgency, shared));
  }
  group.urgency = urgency;
}

void SpillOrder::forget(OwnerId owner) {
  const auto it = groups_.find(owner);
  if (it == groups_.end()) return;
  SEER_CHECK(it->second.own.empty(), owner);
  SEER_CHECK(it->second.shared.empty(), owner);
  groups_.erase(it);
}

void SpillOrder::add(const SpillPlace& place, const BlockKey& key) {
  Group& group = groups_[place.owner];
  Blocks& blocks = place.shared ? group.shared : group.own;
  if (blocks.empty()) ranks_.insert(rank(place.owner, group.urgency, place.shared));
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
  if (blocks.empty()) ranks_.erase(rank(place.owner, it->second.urgency, place.shared));
  --size_;
}

std::optional<SpillCandidate> SpillOrder::first() const {
  if (ranks_.empty()) return std::nullopt;
  return candidate(*ranks_.begin());
}

std::optional<SpillCandidate> SpillOrder::first_not_of(OwnerId owner) const {
  // An owner has one rank among the own blocks and one among the shared ones, so that at most one is passed over.
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
