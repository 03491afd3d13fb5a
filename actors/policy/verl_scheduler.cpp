#include "actors/policy/verl_scheduler.h"

#include "actors/policy/serve_order.h"
#include "protocols/check.h"

namespace seer {

// No chunks, no reserve and no headroom: an engine's own admission looks at the KV in use and one block of room.
VerlScheduler::VerlScheduler(const ChunkSchedulerConfig& config) : ledger_({}, config.inflight_spread_max) {}

Status VerlScheduler::add_group(const GroupSpec& group, int64_t now_us) {
  SEER_RETURN_IF_ERROR(ledger_.add_group(group, now_us));
  for (const RequestState& request : requests().group(group.id).members) undealt_.push_back(request.id);
  deal_ = true;
  return {};
}

Status VerlScheduler::add_instance(const InstanceLimits& limits) {
  SEER_RETURN_IF_ERROR(ledger_.add_instance(limits));
  queues_[limits.id];
  deal_ = true;
  return {};
}

void VerlScheduler::remove_instance(InstanceId instance) {
  ledger_.remove_instance(instance);
  auto queue = queues_.find(instance);
  if (queue == queues_.end()) return;
  undealt_.insert(undealt_.end(), queue->second.begin(), queue->second.end());
  queues_.erase(queue);
  may_admit_.erase(instance);
  std::erase_if(homes_, [&](const auto& home) { return home.second == instance; });
  deal_ = true;
}

std::optional<Placement> VerlScheduler::next(int64_t) {
  deal_waiting();
  while (!may_admit_.empty()) {
    const InstanceId instance = *may_admit_.begin();
    std::deque<RequestId>& queue = queues_.at(instance);
    if (queue.empty() || !ledger_.fits(requests().at(queue.front()), instance)) {
      may_admit_.erase(instance);
      continue;
    }
    const RequestState& request = requests().at(queue.front());
    queue.pop_front();
    Placement placement = ledger_.start(request, instance);
    placement.yield_rank = yield_rank(ChunkPolicy::kVerl, request, 0, ++starts_);
    placement.keep_kv = false;
    return placement;
  }
  return std::nullopt;
}

void VerlScheduler::progressed(RequestId request, int64_t generated_tokens) {
  ledger_.progressed(request, generated_tokens);
}

void VerlScheduler::chunk_ended(RequestId id, int64_t generated_tokens, ChunkEnd end, int64_t now_us) {
  const InstanceId instance = requests().at(id).instance;
  ledger_.ended(id, generated_tokens, end, now_us);
  if (queues_.contains(instance)) may_admit_.insert(instance);
  if (end == ChunkEnd::kFinished) return;
  if (auto home = home_of(id.group)) {
    queues_.at(*home).push_front(id);
    may_admit_.insert(*home);
  } else {
    undealt_.push_back(id);
  }
}

void VerlScheduler::estimate_changed(GroupId group, int64_t estimated_tokens) {
  ledger_.set_estimate(group, estimated_tokens);
}

// Dealing waits for next(), so that groups are dealt over all instances even when they were added before them.
void VerlScheduler::deal_waiting() {
  if (!deal_) return;
  deal_ = false;
  std::deque<RequestId> left;
  for (RequestId request : undealt_) {
    if (auto home = home_of(request.group)) {
      queues_.at(*home).push_back(request);
      may_admit_.insert(*home);
    } else {
      left.push_back(request);
    }
  }
  undealt_.swap(left);
}

std::optional<InstanceId> VerlScheduler::home_of(GroupId id) {
  if (auto home = homes_.find(id); home != homes_.end()) return home->second;
  const GroupState& group = requests().group(id);
  const std::vector<InstanceId> instances = ledger_.picker().open_instances();
  for (size_t tried = 0; tried < instances.size(); ++tried) {
    const InstanceId instance = instances[deals_++ % instances.size()];
    if (!ledger_.can_hold(instance, group)) continue;
    homes_[id] = instance;
    return instance;
  }
  return std::nullopt;
}

}  // namespace seer
