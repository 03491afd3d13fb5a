#include "actors/policy/schedule/seer_plus_scheduler.h"

#include <algorithm>

#include "actors/policy/schedule/serve_order.h"
#include "protocols/check.h"

namespace seer {

SeerPlusScheduler::SeerPlusScheduler(const ChunkSchedulerConfig& config)
    : LedgerScheduler(chunk_promise(config), config.inflight_spread_max, place_rules(config)),
      config_(config),
      outlook_(config.unexplained_before),
      starved_(config.is_open ? std::optional(config.starve_us) : std::nullopt) {
  for (const SeerPlusPart& part : kSeerPlusParts)
    if (std::ranges::find(config.without, part.name) != config.without.end()) parts_.*part.part = false;
  parts_.probes &= outlook_.predicts();
}

Status SeerPlusScheduler::add_group(const GroupSpec& spec, int64_t now_us) {
  SEER_CHECK(now_us >= 0, now_us);
  SEER_RETURN_IF_ERROR(ledger_.add_group(spec, now_us));
  const GroupState& group = requests().group(spec.id);
  outlook_.add_group(group);
  for (const RequestState& request : group.members) enqueue(group, request);
  return {};
}

std::optional<Placement> SeerPlusScheduler::next(int64_t now_us) {
  const std::optional<RequestId> starved = starved_.due(requests(), now_us);
  if (auto placed = place_starved(starved)) return placed;
  const int64_t blocks_below = kv_blocks_below(starved);
  const bool few = parts_.spread && waiting_count() < ledger_.picker().open_count();
  Misses misses;
  for (auto next = order_.begin(); next != order_.end(); ++next) {
    const RequestState& request = requests().at(next->request);
    if (const auto instance = ledger_.pick(request, few ? PlaceBy::kFewestRunning : PlaceBy::kMostRoom, blocks_below))
      return place(few || !parts_.nearby ? next : nearby(next, *instance), *instance, false);
    if (is_enough(misses, request, config_)) break;
  }
  return std::nullopt;
}

std::optional<Placement> SeerPlusScheduler::place_starved(const std::optional<RequestId>& starved) {
  const auto instance = starved ? ledger_.pick(requests().at(*starved), PlaceBy::kMostRoom) : std::nullopt;
  if (!instance) return std::nullopt;
  return place(order_.find(queued(requests().at(*starved), ranks_.at(*starved))), *instance, true);
}

/// The request to place on an instance that has room for `first`: `first` itself or, if its KV is elsewhere, one of the next few
/// whose KV is on that instance's machine.
SeerPlusScheduler::Order::iterator SeerPlusScheduler::nearby(Order::iterator first, InstanceId instance) {
  const NodeId node = ledger_.picker().limits(instance).node;
  const NodeId first_node = requests().at(first->request).node;
  if (first_node == kNoNode || first_node == node || passed_by_ == kPassedByMax) {
    passed_by_ = 0;
    return first;
  }
  auto other = first;
  for (int seen = 0; seen < kNearbyMax && ++other != order_.end() && other->behind == first->behind; ++seen) {
    const RequestState& request = requests().at(other->request);
    if (request.node != node || !ledger_.fits(request, instance)) continue;
    ++passed_by_;
    return other;
  }
  passed_by_ = 0;
  return first;
}

Placement SeerPlusScheduler::place(Order::iterator next, InstanceId instance, bool was_starved) {
  starved_.remove(requests().at(next->request), *next);
  starved_.placed(was_starved);
  const Placement placement = ledger_.start(requests().at(next->request), instance, parts_.yield ? next->rank : ++starts_);
  ranks_.erase(next->request);
  order_.erase(next);
  return placement;
}

void SeerPlusScheduler::cancel(RequestId id, int64_t now_us) {
  const auto rank = ranks_.find(id);
  SEER_CHECK(rank != ranks_.end(), id);
  const RequestState& request = requests().at(id);
  order_.erase(queued(request, rank->second));
  starved_.remove(request, queued(request, rank->second));
  ranks_.erase(rank);
  ledger_.cancel(id, now_us);
}

void SeerPlusScheduler::chunk_ended(RequestId id, int64_t generated_tokens, ChunkEnd end, int64_t now_us) {
  SEER_CHECK(now_us >= 0, now_us);
  ledger_.ended(id, generated_tokens, end, now_us);
  const GroupState& group = requests().group(id.group);
  const RequestState& request = requests().at(id);
  if (outlook_.observe(group, request)) judge(group);
  if (!is_over(end)) enqueue(group, request);
  if (const GroupState* swept = outlook_.sweep(requests())) judge(*swept);
}

uint64_t SeerPlusScheduler::rank_of(const GroupState& group, const RequestState& request) {
  if (parts_.probes && request.probe && !outlook_.any_finished(group.id)) return probe_rank(request);
  if (!parts_.need) return longest_waiting_rank(request, 0);
  return most_first_rank(outlook_.could_need_tokens(group, request, waiting_count() + running_count()));
}

void SeerPlusScheduler::judge(const GroupState& group) {
  for (const RequestState& request : group.members) {
    auto rank = ranks_.find(request.id);
    if (rank == ranks_.end()) continue;
    const uint64_t now = rank_of(group, request);
    if (now == rank->second) continue;
    const size_t erased = order_.erase(queued(request, rank->second));
    SEER_CHECK(erased == 1, request.id);
    order_.insert(queued(request, now));
    rank->second = now;
  }
}

void SeerPlusScheduler::enqueue(const GroupState& group, const RequestState& request) {
  const uint64_t rank = rank_of(group, request);
  order_.insert(queued(request, rank));
  starved_.add(request, queued(request, rank));
  ranks_[request.id] = rank;
}

}  // namespace seer
