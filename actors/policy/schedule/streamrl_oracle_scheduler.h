// StreamrlOracleScheduler: `streamrl-oracle`, skewness-aware dispatching with lengths known beforehand, the strongest
// baseline that does not divide groups (StreamRL, arXiv 2504.15930; as the Seer paper runs it). Groups of like length
// share instances, so that long ones run in small batches, whose steps are short, and short ones in large batches. See
// WholeGroupScheduler for how the instances serve their queues. Single owner, not thread-safe.
//
// The rules, in which a group is as long as its longest response:
//  - A bucket is the longest group left and all that are at least half as long (kBucketRatio).
//  - The work of a response of L tokens is L / concurrency, where concurrency is the requests of its length that run on
//    an instance at a time: KV of the instance / (prompt + L), at most rows_max.
//  - Instances are dealt to buckets in proportion to their work: one each, and every further one where the work per
//    instance is most. A bucket that would leave its instance idle for more than half of the time, or for which there is
//    none, is first put together with its neighbour of less work.
//  - In a bucket the longest group left goes to the instance with the least work; instances serve in that order.
//  - Concurrency: as many requests run on an instance as it has KV for responses of its mean KV at their end. So the
//    longer the bucket, the fewer; and about as many as can be finished without preemption.
// Dealing is final: how long a step takes is not known here, so instances are as level as this estimate of their work.
#pragma once
#include <map>

#include "actors/policy/schedule/whole_group_scheduler.h"

namespace seer {

/// Longest over shortest in a bucket at most: with 2, all requests there need the same KV, within a factor of two.
inline constexpr double kBucketRatio = 2;

class StreamrlOracleScheduler final : public WholeGroupScheduler {
 public:
  using WholeGroupScheduler::WholeGroupScheduler;

  Status add_group(const GroupSpec& group, int64_t now_us) override;

 private:
  struct KnownGroup {
    GroupId id;
    int64_t longest_tokens = 0;
    double work = 0;  // of the unfinished members
  };
  struct Bucket {
    std::vector<KnownGroup> groups;  // the longest first
    double work = 0;
  };

  std::vector<Home> deal(const std::vector<GroupId>& homeless) override;
  int64_t running_max(InstanceId instance) const override { return running_max_.at(instance); }
  KnownGroup known(GroupId group) const;
  void update_row_kv();
  std::vector<Bucket> buckets_of(const std::vector<GroupId>& groups, int64_t instances) const;
  void update_concurrency(const std::vector<Home>& dealt);

  double row_kv_tokens_ = 0;                   // KV of the instances / their rows: a request counts as that at least
  std::map<InstanceId, int64_t> running_max_;  // of every instance that is some group's home
};

}  // namespace seer
