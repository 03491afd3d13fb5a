#include "actors/policy/seer_plus_scheduler.h"

#include "actors/policy/serve_order.h"
#include "protocols/check.h"

namespace seer {

SeerPlusScheduler::SeerPlusScheduler(const ChunkSchedulerConfig& config)
    : LedgerScheduler(chunk_promise(config), config.inflight_spread_max),
      config_(config),
      outlook_(config.unexplained_before) {}

Status SeerPlusScheduler::add_group(const GroupSpec& spec, int64_t now_us) {
  SEER_CHECK(now_us >= 0, now_us);
  SEER_RETURN_IF_ERROR(ledger_.add_group(spec, now_us));
  const GroupState& group = requests().group(spec.id);
  outlook_.add_group(group);
  for (const RequestState& request : group.members) enqueue(group, request);
  return {};
}

// As in DividedScheduler: what fits nowhere is passed by up to misses_max others, and while nothing runs the whole
// queue is looked at, as no event would bring another try.
std::optional<Placement> SeerPlusScheduler::next(int64_t) {
  const bool idle = running_count() == 0;
  const bool few = waiting_count() < ledger_.picker().open_count();
  int64_t misses = 0;
  for (auto waiting = order_.begin(); waiting != order_.end(); ++waiting) {
    const RequestState& request = requests().at(waiting->request);
    if (const auto instance = ledger_.pick(request, few ? PlaceBy::kFewestRunning : PlaceBy::kMostRoom)) {
      Placement placement = ledger_.start(request, *instance);
      placement.yield_rank = waiting->rank;
      ranks_.erase(request.id);
      order_.erase(waiting);
      return placement;
    }
    if (++misses >= config_.misses_max && !idle) break;
  }
  return std::nullopt;
}

void SeerPlusScheduler::chunk_ended(RequestId id, int64_t generated_tokens, ChunkEnd end, int64_t now_us) {
  SEER_CHECK(now_us >= 0, now_us);
  ledger_.ended(id, generated_tokens, end, now_us);
  const GroupState& group = requests().group(id.group);
  const RequestState& request = requests().at(id);
  if (outlook_.observe(group, request)) judge(group);
  if (end != ChunkEnd::kFinished) enqueue(group, request);
  if (const GroupState* swept = outlook_.sweep(requests())) judge(*swept);
}

uint64_t SeerPlusScheduler::rank_of(const GroupState& group, const RequestState& request) {
  if (request.probe && !outlook_.any_finished(group.id)) return probe_rank(request);
  return most_first_rank(outlook_.could_need_tokens(group, request, waiting_count() + running_count()));
}

void SeerPlusScheduler::judge(const GroupState& group) {
  for (const RequestState& request : group.members) {
    auto rank = ranks_.find(request.id);
    if (rank == ranks_.end()) continue;
    const uint64_t now = rank_of(group, request);
    if (now == rank->second) continue;
    const size_t erased = order_.erase({rank->second, request.id});
    SEER_CHECK(erased == 1, request.id);
    order_.insert({now, request.id});
    rank->second = now;
  }
}

void SeerPlusScheduler::enqueue(const GroupState& group, const RequestState& request) {
  const uint64_t rank = rank_of(group, request);
  order_.insert({rank, request.id});
  ranks_[request.id] = rank;
}

}  // namespace seer
