#include "storage/spill_order.h"

#include <algorithm>
#include <iterator>
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
  return {spill_class, urgency.next_use, owner, urgency.guest};
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
    if (rank) ranks_[rank->guest].erase(*rank);
  groups_.erase(it);
}

void SpillOrder::add(const SpillPlace& place, const BlockKey& key) {
  Group& group = groups_[place.owner];
  Blocks& blocks = place.shared ? group.shared : group.own;
  const bool was_empty = blocks.empty();
  const bool added = blocks.add(place.index, key);
  SEER_CHECK(added, place.owner, place.index);
  if (was_empty) changed(place.owner, group);  // which may sort
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
      if (known) ranks_[known->guest].erase(*known);
      if (now) ranks_[now->guest].insert(*now);
      known = now;
    }
  }
  stale_.clear();
}

/// REQUIRES: `fits` refuses only a few.
template <class Fits>
std::optional<SpillCandidate> SpillOrder::first_that(Fits fits) const {
  sort();
  const Rank* first = nullptr;
  for (const std::set<Rank>& ranks : ranks_)
    if (const auto found = std::ranges::find_if(ranks, fits); found != ranks.end() && (first == nullptr || *found < *first)) first = &*found;
  if (first == nullptr) return std::nullopt;
  return candidate(*first);
}

std::optional<SpillCandidate> SpillOrder::first() const {
  return first_that([](const Rank&) { return true; });
}

std::optional<SpillCandidate> SpillOrder::first_at_home() const {
  sort();
  if (ranks_[false].empty()) return std::nullopt;
  return candidate(*ranks_[false].begin());
}

std::optional<SpillCandidate> SpillOrder::first_not_of(OwnerId owner) const {
  // An owner has one rank for its own blocks and one for shared ones, so that at most one is skipped.
  return first_that([owner](const Rank& r) { return r.owner != owner || r.spill_class >= SpillClass::kShared; });
}

std::optional<ParkedOwner> SpillOrder::last_parked() const {
  sort();
  const Rank after_parked{SpillClass::kRunning, UINT64_MAX, OwnerId{}, false};
  const Rank* last = nullptr;
  for (const std::set<Rank>& ranks : ranks_) {
    const auto end = ranks.lower_bound(after_parked);
    if (end != ranks.begin() && (last == nullptr || *last < *std::prev(end))) last = &*std::prev(end);
  }
  if (last == nullptr) return std::nullopt;
  return ParkedOwner{last->owner, last->next_use};
}

SpillCandidate SpillOrder::candidate(const Rank& r) const {
  const Group& group = groups_.at(r.owner);
  const Blocks& blocks = r.spill_class >= SpillClass::kShared ? group.shared : group.own;
  return {blocks.tail(), r.owner, r.spill_class, r.next_use};
}

}  // namespace seer
