// VerlScheduler: the baseline. Groups are dealt round robin to the instances, every request stays with its group's
// instance, and each instance serves its queue first come, first served, admitting a request as soon as its prompt (and
// what it has generated) fits beside the KV held now. Responses are not divided and their length is not foreseen, so
// the instance runs short as they grow; the latest admitted is preempted, its KV dropped, and goes to the front of the
// queue. Single owner, not thread-safe.
//
// A group moves only when its instance is gone. Invariants:
//  (1) a waiting request is in the queue of its group's home, or in undealt_ if the group has none;
//  (2) every home is an open instance that can hold the group's longest response;
//  (3) an instance not in may_admit_ cannot admit the front of its queue.
#pragma once
#include <deque>
#include <map>
#include <optional>
#include <set>

#include "actors/policy/chunk_ledger.h"

namespace seer {

class VerlScheduler final : public ChunkScheduler {
 public:
  explicit VerlScheduler(const ChunkSchedulerConfig& config);

  Status add_group(const GroupSpec& group, int64_t now_us) override;
  Status add_instance(const InstanceLimits& limits) override;
  void remove_instance(InstanceId instance) override;
  std::optional<Placement> next(int64_t now_us) override;
  void progressed(RequestId request, int64_t generated_tokens) override;
  void chunk_ended(RequestId request, int64_t generated_tokens, ChunkEnd end, int64_t now_us) override;
  void estimate_changed(GroupId group, int64_t estimated_tokens) override;
  Status stalled() const override { return ledger_.stalled(); }
  const RequestBuffer& requests() const override { return ledger_.buffer(); }

 private:
  /// The group's instance; deals it to the next one in turn if it has none. Nothing when no open instance can hold it.
  std::optional<InstanceId> home_of(GroupId group);
  void deal_waiting();

  ChunkLedger ledger_;
  std::map<GroupId, InstanceId> homes_;
  std::map<InstanceId, std::deque<RequestId>> queues_;  // of the open instances
  std::deque<RequestId> undealt_;
  bool deal_ = false;  // undealt_ or the set of instances changed since the last dealing
  std::set<InstanceId> may_admit_;
  uint64_t deals_ = 0;
  uint64_t starts_ = 0;
};

}  // namespace seer
