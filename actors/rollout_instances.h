// RolloutInstances: the instances of one rollout: those that are up, those that are leaving, those that are gone for good, and those
// that it refused, with the reasons. Decides whether an instance may join, whether all expected ones are settled, and whether more may
// come. Part of rollout_actor, which talks to them. Single owner, not thread-safe.
//
// Invariants:
//  (1) an instance is up, leaving, or neither, never both;
//  (2) all that are up have the rollout's weights, model and KV layout; the first one that was up set what the rollout did not know;
//  (3) a refused instance, or one that is gone for good, is forgotten as such when its node says again that it is up.
#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "protocols/actors.h"

namespace seer {

struct RolloutInstancesConfig {
  WeightVersion version{1};
  uint64_t weights = 0;              // checksum of these; 0: those of the first instance
  size_t expected = 1;               // how many there will be
  bool machines_may_join = false;    // of a cluster, at any time
  int64_t return_us = 30'000'000;    // an instance that was lost may be back within this time
  int64_t change_us = 3'000'000;     // one with older weights may get the rollout's within this time from its start
  bool waits_for_all = true;         // false: once one is up, the others are waited for during change_us only
  std::map<InstanceId, int64_t> kv_tokens = {};  // what instances hold that may come back
};

class RolloutInstances {
 public:
  struct Instance {
    InstanceHandle handle;
    int64_t kv_blocks = 0;
    int64_t kv_blocks_used = 0;
    int64_t up_us = 0;          // when its node said last that it is up
    std::vector<GroupId> over;  // for RunChunk::over of the next chunk there
  };

  RolloutInstances(RolloutInstancesConfig config, int64_t now_us);

  const std::map<InstanceId, Instance>& up() const { return up_; }
  /// The instance; null if it is not up.
  Instance* find(InstanceId id);
  Instance& at(InstanceId id) { return up_.at(id); }
  bool has(InstanceId id) const { return up_.contains(id) || leaving_.contains(id); }
  /// REQUIRES: has(id).
  InstanceHandle handle_of(InstanceId id) const;
  /// Of those that are up or leaving.
  std::map<InstanceId, InstanceHandle> handles() const;

  /// Checks that its model, KV layout and weights fit. Notes the reason if they do not.
  Status admit(const InstanceUp& up);
  /// False: it was up before at some time, and may still run chunks. REQUIRES: admitted; !has(up.instance).
  bool add(const InstanceUp& up, int64_t now_us);
  /// It died, or is given up. False: it was leaving. REQUIRES: has(id).
  bool lose(InstanceId id, int64_t now_us);
  /// They leave once their chunks have come back. Returns those of them that were up.
  std::vector<InstanceId> drain(const std::vector<InstanceId>& ids, int64_t now_us);
  /// They will not come back.
  void gone(const PartLost& lost);
  void started(int64_t now_us);

  /// Each of the expected instances is up, or need not be waited for.
  bool all_settled(int64_t now_us) const;
  /// None is up, and none can come back: no machine may join, and all that were expected are gone for good or refused.
  bool none_can_come(int64_t now_us) const;
  /// None has been up for return_us.
  bool none_came(int64_t now_us) const { return up_.empty() && now_us - empty_since_us_ > config_.return_us; }
  /// An instance that was lost not long ago may be started again, and on a cluster another machine may take the place of one that left.
  bool one_may_come(int64_t now_us) const;
  /// Reasons for the missing instances, after a colon; empty if none is known.
  std::string why_missing() const;
  /// Why parts were lost, oldest first.
  const std::vector<std::string>& parts_lost() const { return parts_lost_; }

  /// What each instance holds, also lost ones. Without those that left in order.
  const std::map<InstanceId, int64_t>& kv_tokens() const { return kv_tokens_; }
  /// Tokens that the largest one holds. Lost ones count: where a response ends must not depend on failures.
  int64_t kv_tokens_max() const;

 private:
  struct Refusal {
    std::string why;
    bool may_change = false;  // it has older weights, and may get those of the rollout
  };

  void note_departure(int64_t now_us);

  RolloutInstancesConfig config_;
  std::map<InstanceId, Instance> up_;
  std::map<InstanceId, InstanceHandle> leaving_;  // their chunks come back early
  std::set<InstanceId> gone_;                     // for good
  std::map<InstanceId, Refusal> refused_;
  std::set<InstanceId> seen_;                     // that were up at some time
  std::map<InstanceId, int64_t> kv_tokens_;
  std::vector<std::string> parts_lost_;
  std::optional<ClusterIdentity> identity_;       // of all that were up
  int64_t started_us_;
  int64_t empty_since_us_;                        // since when none is up
  std::optional<int64_t> lost_us_;                // when an instance last was lost or began to leave
};

}  // namespace seer
