#include "actors/policy/schedule/divided_scheduler.h"

#include "protocols/check.h"

namespace seer {

DividedScheduler::DividedScheduler(const ServeOrder& order, const ChunkSchedulerConfig& config)
    : LedgerScheduler(chunk_promise(config), config.inflight_spread_max, place_rules(config)),
      serve_order_(order),
      config_(config),
      starved_(order.guards_starving || config.is_open ? std::optional(config.starve_us) : std::nullopt) {}

Status DividedScheduler::add_group(const GroupSpec& group, int64_t now_us) {
  SEER_CHECK(now_us >= 0, now_us);
  if (serve_order_.needs_lengths) SEER_RETURN_IF_ERROR(check_known_tokens(group, config_.policy));
  SEER_RETURN_IF_ERROR(ledger_.add_group(group, now_us));
  for (const RequestState& request : requests().group(group.id).members) enqueue(request);
  return {};
}

std::optional<Placement> DividedScheduler::next(int64_t now_us) {
  const std::optional<RequestId> starved = starved_.due(requests(), now_us);
  if (auto placed = place_starved(starved)) return placed;
  return place_in_order(kv_blocks_below(config_.is_open ? starved : std::nullopt));
}

std::optional<Placement> DividedScheduler::place_starved(const std::optional<RequestId>& starved) {
  const auto instance = starved ? ledger_.pick(requests().at(*starved)) : std::nullopt;
  if (!instance) return std::nullopt;
  return place(requests().at(*starved), *instance, true);
}

std::optional<Placement> DividedScheduler::place_in_order(int64_t kv_blocks_below) {
  Misses misses;
  for (const WaitingRequest& next : order_) {
    const RequestState& request = requests().at(next.request);
    if (const auto instance = ledger_.pick(request, PlaceBy::kCached, kv_blocks_below)) return place(request, *instance, false);
    if (is_enough(misses, request, config_)) break;
  }
  return std::nullopt;
}

Placement DividedScheduler::place(const RequestState& request, InstanceId instance, bool was_starved) {
  dequeue(request);
  starved_.placed(was_starved);
  return ledger_.start(request, instance, yield_rank(serve_order_, request, requests().group(request.id.group).estimated_tokens, ++starts_));
}

void DividedScheduler::chunk_ended(RequestId request, int64_t generated_tokens, ChunkEnd end, int64_t now_us) {
  SEER_CHECK(now_us >= 0, now_us);
  ledger_.ended(request, generated_tokens, end, now_us);
  if (!is_over(end)) enqueue(requests().at(request));
}

void DividedScheduler::cancel(RequestId request, int64_t now_us) {
  dequeue(requests().at(request));
  ledger_.cancel(request, now_us);
}

// Waiting members are ranked by the old estimate, so they leave the queues before the estimate changes.
void DividedScheduler::estimate_changed(GroupId id, int64_t estimated_tokens) {
  const GroupState& group = requests().group(id);
  if (group.estimated_tokens == estimated_tokens) return;
  auto each_waiting = [&](auto&& act) {
    for (const RequestState& request : group.members)
      if (request.phase == RequestPhase::kWaiting) act(request);
  };
  each_waiting([&](const RequestState& request) { dequeue(request); });
  ledger_.set_estimate(id, estimated_tokens);
  each_waiting([&](const RequestState& request) { enqueue(request); });
}

void DividedScheduler::enqueue(const RequestState& request) {
  order_.insert(by_rank(request));
  starved_.add(request, by_rank(request));
}

void DividedScheduler::dequeue(const RequestState& request) {
  const size_t erased = order_.erase(by_rank(request));
  SEER_CHECK(erased == 1, request.id);
  starved_.remove(request, by_rank(request));
}

WaitingRequest DividedScheduler::by_rank(const RequestState& request) const {
  return queued(request, serve_order_.rank(request, requests().group(request.id.group).estimated_tokens));
}

}  // namespace seer
