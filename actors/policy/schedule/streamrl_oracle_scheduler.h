// StreamrlOracleScheduler: `streamrl-oracle`, skewness-aware dispatching with lengths known beforehand, the strongest
// baseline that does not divide groups (StreamRL, arXiv 2504.15930; as the Seer paper runs it). Groups of similar length
// share instances, so that long ones run in small batches, whose steps are short, and short ones in large batches. See
// WholeGroupScheduler for how the instances serve their queues. Single owner, not thread-safe.
//
// The rules, in which a group is as long as its longest response:
//  - A bucket is the longest group left and all groups that are at least half as long (kBucketRatio).
//  - The work of a response of L tokens is L / concurrency. Concurrency is the number of requests of its length that run on
//    an instance at a time: KV of the instance / (prompt + L), at most rows_max.
//  - Each bucket gets one instance; every further instance goes to the bucket with the most work per instance. A bucket that
//    would keep its instance idle for more than half of the time, or would get none, is first merged with its neighbour of
//    less work.
//  - In a bucket the longest group left goes to the instance with the least work; instances serve in that order.
//  - An instance runs as many requests as it has room for at their mean final KV. So longer buckets run fewer, about as many
//    as can finish without preemption.
// Groups are dealt once. The scheduler does not know how long a step takes, so instances are balanced by this estimate only.
#pragma once
#include <map>

#include "actors/policy/schedule/whole_group_scheduler.h"

namespace seer {

/// Longest over shortest group in a bucket, at most. With 2, the KV that its requests need differs by at most a factor of two.
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

  double row_kv_tokens_ = 0;                   // KV of the instances / their rows: a request counts at least this much
  std::map<InstanceId, int64_t> running_max_;  // of every instance that is some group's home
};

}  // namespace seer
