#include "storage/spill_order.h"

#include <utility>

#include "protocols/check.h"

namespace seer {

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
  const bool added = blocks.emplace(place.index, key).second;
  SEER_CHECK(added, place.owner, place.index);
  ++size_;
}

void SpillOrder::remove(const SpillPlace& place) {
  const auto it = groups_.find(place.owner);
  SEER_CHECK(it != groups_.end(), place.owner);
  Blocks& blocks = place.shared ? it->second.shared : it->second.own;
  const size_t removed = blocks.erase(place.index);
  SEER_CHECK(removed == 1, place.owner, place.index);
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
  return {blocks.begin()->second, r.owner, r.spill_class, r.next_use};
}

}  // namespace seer
