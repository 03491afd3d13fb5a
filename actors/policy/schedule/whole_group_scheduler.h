// WholeGroupScheduler: base of the policies without divided rollout. A group has one home, the instance where all its requests
// run from start to end. Each instance serves its queue in order, as an engine like vLLM does. The first request is admitted
// once its KV (prompt and generated tokens) and one more block fit beside the KV held now, with watermark_share to spare.
// KV held now is what the instance says, if that is more than the ledger counts: a prompt that ends with a block is counted once per
// group, though each member computes that block itself, and drafts reach into blocks that the text does not need yet. Without these
// blocks a preempted request would come back at once, into room that is not there, and be preempted again.
// Lengths play no part, so KV runs short as requests grow. Then the request admitted last is preempted: its KV is dropped, and
// it goes to the front of the queue, to be computed again. The policy decides which group goes where and how many requests run
// on an instance. Single owner, not thread-safe.
//
// A group moves only when its instance is gone. Invariants:
//  (1) a waiting request is in the queue of its group's home, or in homeless_ if the group has none;
//  (2) every home is an open instance that can hold the group's longest response;
//  (3) an instance not in may_admit_ cannot admit the front of its queue.
#pragma once
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "actors/policy/schedule/ledger_scheduler.h"

namespace seer {

class WholeGroupScheduler : public LedgerScheduler {
 public:
  explicit WholeGroupScheduler(const ChunkSchedulerConfig& config);

  Status add_group(const GroupSpec& group, int64_t now_us) override;
  Status add_instance(const InstanceLimits& limits) override;
  void remove_instance(InstanceId instance) override;
  std::optional<Placement> next(int64_t now_us) override;
  void kv_in_use(InstanceId instance, int64_t blocks) override { in_use_blocks_[instance] = blocks; }
  void chunk_ended(RequestId request, int64_t generated_tokens, ChunkEnd end, int64_t now_us) override;
  void cancel(RequestId request, int64_t now_us) override;

 protected:
  struct Home {
    GroupId group;
    InstanceId instance;
  };
  /// Homes for these groups, in the order in which the instances serve them. Groups that no open instance can hold are left
  /// out; they are dealt again when the instances change.
  virtual std::vector<Home> deal(const std::vector<GroupId>& homeless) = 0;
  /// How many requests may run on the instance at a time; at least 1.
  virtual int64_t running_max(InstanceId instance) const { return ledger_.picker().limits(instance).rows_max; }

  const std::map<GroupId, InstanceId>& homes() const { return homes_; }

 private:
  void deal_homeless();
  void enqueue(InstanceId instance, std::span<const RequestId> requests, bool ahead);

  const double watermark_share_;
  std::map<GroupId, InstanceId> homes_;
  std::map<InstanceId, std::deque<RequestId>> queues_;  // of the open instances
  std::map<GroupId, std::vector<RequestId>> homeless_;  // waiting requests
  bool deal_ = false;  // homeless_ or the set of instances changed since the last dealing
  std::set<InstanceId> may_admit_;
  std::map<InstanceId, int64_t> in_use_blocks_;     // as the chunk that ends now says
  std::map<InstanceId, int64_t> uncounted_blocks_;  // in use, but not in the ledger, when a chunk ended last
  uint64_t starts_ = 0;
};

}  // namespace seer
