#include "actors/policy/schedule/whole_group_scheduler.h"

#include <algorithm>

#include "protocols/check.h"

namespace seer {

// No chunks, no reserve and no headroom: an engine's own admission checks only the KV in use.
WholeGroupScheduler::WholeGroupScheduler(const ChunkSchedulerConfig& config)
    : LedgerScheduler({}, config.inflight_spread_max), watermark_share_(config.watermark_share) {}

Status WholeGroupScheduler::add_group(const GroupSpec& group, int64_t now_us) {
  SEER_RETURN_IF_ERROR(ledger_.add_group(group, now_us));
  for (const RequestState& request : requests().group(group.id).members) homeless_[group.id].push_back(request.id);
  deal_ = true;
  return {};
}

Status WholeGroupScheduler::add_instance(const InstanceLimits& limits) {
  SEER_RETURN_IF_ERROR(ledger_.add_instance(limits));
  queues_[limits.id];
  deal_ = true;
  return {};
}

void WholeGroupScheduler::remove_instance(InstanceId instance) {
  ledger_.remove_instance(instance);
  auto queue = queues_.find(instance);
  if (queue == queues_.end()) return;
  for (const RequestId request : queue->second) homeless_[request.group].push_back(request);
  queues_.erase(queue);
  may_admit_.erase(instance);
  uncounted_blocks_.erase(instance);
  std::erase_if(homes_, [&](const auto& home) { return home.second == instance; });
  deal_ = true;
}

std::optional<Placement> WholeGroupScheduler::next(int64_t) {
  if (deal_) deal_homeless();
  while (!may_admit_.empty()) {
    const InstanceId instance = *may_admit_.begin();
    std::deque<RequestId>& queue = queues_.at(instance);
    if (queue.empty() || ledger_.picker().running(instance) >= running_max(instance) ||
        !ledger_.fits(requests().at(queue.front()), instance, watermark_share_, uncounted_blocks_[instance])) {
      may_admit_.erase(instance);
      continue;
    }
    const RequestState& request = requests().at(queue.front());
    queue.pop_front();
    Placement placement = ledger_.start(request, instance, ++starts_);  // the latest started gives way
    placement.keep_kv = false;
    return placement;
  }
  return std::nullopt;
}

void WholeGroupScheduler::chunk_ended(RequestId id, int64_t generated_tokens, ChunkEnd end, int64_t now_us) {
  const InstanceId instance = requests().at(id).instance;
  ledger_.ended(id, generated_tokens, end, now_us);
  const auto in_use = in_use_blocks_.extract(instance);
  if (queues_.contains(instance)) {
    may_admit_.insert(instance);
    uncounted_blocks_[instance] =
        in_use.empty() ? 0 : std::max<int64_t>(0, in_use.mapped() - ledger_.picker().used_blocks(instance));
  }
  if (is_over(end)) return;
  if (auto home = homes_.find(id.group); home != homes_.end()) {
    enqueue(home->second, {&id, 1}, true);
    may_admit_.insert(home->second);
  } else {
    homeless_[id.group].push_back(id);
    deal_ = true;
  }
}

/// Puts requests of one group after those of higher priority and, unless `ahead`, after those of the same priority.
void WholeGroupScheduler::enqueue(InstanceId instance, std::span<const RequestId> ids, bool ahead) {
  std::deque<RequestId>& queue = queues_.at(instance);
  const auto priority = [this](RequestId id) { return requests().group(id.group).priority; };
  const auto before = [&](RequestId queued) {
    return ahead ? priority(queued) > priority(ids.front()) : priority(queued) >= priority(ids.front());
  };
  queue.insert(std::ranges::partition_point(queue, before), ids.begin(), ids.end());
}

void WholeGroupScheduler::cancel(RequestId id, int64_t now_us) {
  ledger_.cancel(id, now_us);
  if (const auto waiting = homeless_.find(id.group); waiting != homeless_.end()) {
    std::erase(waiting->second, id);
    if (waiting->second.empty()) homeless_.erase(waiting);
  }
  const auto home = homes_.find(id.group);
  if (home == homes_.end()) return;
  std::erase(queues_.at(home->second), id);
  may_admit_.insert(home->second);  // the next one may be smaller
}

// Called by next(), not when groups are added, so that groups added before the instances are dealt over all of them.
void WholeGroupScheduler::deal_homeless() {
  deal_ = false;
  std::vector<GroupId> groups;
  for (const auto& [group, waiting] : homeless_) groups.push_back(group);
  for (const Home& home : deal(groups)) {
    auto waiting = homeless_.extract(home.group);
    SEER_CHECK(!waiting.empty(), home.group);
    homes_[home.group] = home.instance;
    enqueue(home.instance, waiting.mapped(), false);
    may_admit_.insert(home.instance);
  }
}

}  // namespace seer
