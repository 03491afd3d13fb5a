#include "actors/policy/schedule/streamrl_oracle_scheduler.h"

#include <algorithm>
#include <tuple>

#include "protocols/check.h"

namespace seer {
namespace {

/// Instances of each bucket: one each; every further one goes to the bucket with the most work per instance.
/// REQUIRES: at most as many buckets as instances.
std::vector<int64_t> share_out(int64_t instances, const std::vector<double>& work) {
  std::vector<int64_t> counts(work.size(), 1);
  const auto each = [&](size_t i) { return work[i] / static_cast<double>(counts[i]); };
  for (int64_t left = instances - std::ssize(work); left > 0; --left) {
    size_t most = 0;
    for (size_t i = 1; i < work.size(); ++i)
      if (each(i) > each(most)) most = i;
    ++counts[most];
  }
  return counts;
}

}  // namespace

Status StreamrlOracleScheduler::add_group(const GroupSpec& group, int64_t now_us) {
  SEER_RETURN_IF_ERROR(check_known_tokens(group, "streamrl-oracle"));
  return WholeGroupScheduler::add_group(group, now_us);
}

std::vector<WholeGroupScheduler::Home> StreamrlOracleScheduler::deal(const std::vector<GroupId>& homeless) {
  const std::vector<InstanceId> instances = ledger_.picker().open_instances();
  if (instances.empty() || homeless.empty()) return {};
  update_row_kv();
  std::map<InstanceId, double> work;
  for (const InstanceId instance : instances) work[instance] = 0;
  for (const auto& [group, instance] : homes()) work.at(instance) += known(group).work;

  const std::vector<Bucket> buckets = buckets_of(homeless, std::ssize(instances));
  std::vector<double> bucket_work;
  for (const Bucket& bucket : buckets) bucket_work.push_back(bucket.work);
  const std::vector<int64_t> counts = share_out(std::ssize(instances), bucket_work);
  std::vector<Home> dealt;
  auto first = instances.begin();
  for (size_t b = 0; b < buckets.size(); ++b) {
    const auto last = first + counts[b];
    for (const KnownGroup& group : buckets[b].groups) {
      // Looks among the bucket's instances and, if none of them can hold the group, among all.
      const auto least_work = [&](auto begin, auto end) {
        auto best = end;
        for (auto i = begin; i != end; ++i)
          if (ledger_.can_hold(*i, requests().group(group.id)) && (best == end || work[*i] < work[*best])) best = i;
        return best;
      };
      auto chosen = least_work(first, last);
      if (chosen == last) chosen = least_work(instances.begin(), instances.end());
      if (chosen == instances.end()) continue;
      work[*chosen] += group.work;
      dealt.push_back({group.id, *chosen});
    }
    first = last;
  }
  update_concurrency(dealt);
  return dealt;
}

StreamrlOracleScheduler::KnownGroup StreamrlOracleScheduler::known(GroupId id) const {
  const GroupState& group = requests().group(id);
  KnownGroup known{.id = id};
  for (const RequestState& request : group.members) {
    known.longest_tokens = std::max(known.longest_tokens, request.known_tokens);
    if (request.phase == RequestPhase::kFinished) continue;
    const auto kv_tokens = static_cast<double>(group.prompt_tokens + request.known_tokens);
    known.work += static_cast<double>(request.known_tokens) * std::max(kv_tokens, row_kv_tokens_);
  }
  return known;
}

void StreamrlOracleScheduler::update_row_kv() {
  double kv_tokens = 0, rows = 0;
  for (const InstanceId instance : ledger_.picker().open_instances()) {
    const InstanceLimits& limits = ledger_.picker().limits(instance);
    kv_tokens += static_cast<double>(limits.kv_blocks) * limits.block_tokens;
    rows += limits.rows_max;
  }
  row_kv_tokens_ = kv_tokens / rows;
}

std::vector<StreamrlOracleScheduler::Bucket> StreamrlOracleScheduler::buckets_of(const std::vector<GroupId>& ids,
                                                                                 int64_t instances) const {
  std::vector<KnownGroup> groups;
  for (const GroupId id : ids) groups.push_back(known(id));
  std::sort(groups.begin(), groups.end(), [](const KnownGroup& a, const KnownGroup& b) {
    return std::tie(b.longest_tokens, a.id) < std::tie(a.longest_tokens, b.id);
  });
  std::vector<Bucket> buckets;
  double total = 0;
  for (const KnownGroup& group : groups) {
    const bool alike = !buckets.empty() && kBucketRatio * static_cast<double>(group.longest_tokens) >=
                                               static_cast<double>(buckets.back().groups.front().longest_tokens);
    if (!alike) buckets.emplace_back();
    buckets.back().groups.push_back(group);
    buckets.back().work += group.work;
    total += group.work;
  }
  while (buckets.size() > 1) {
    const auto least = std::min_element(buckets.begin(), buckets.end(),
                                        [](const Bucket& a, const Bucket& b) { return a.work < b.work; });
    const double least_instances = least->work / total * static_cast<double>(instances);
    if (least_instances >= 0.5 && std::ssize(buckets) <= instances) break;
    auto into = least == buckets.begin() ? least + 1 : least - 1;
    if (least + 1 != buckets.end() && (least + 1)->work < into->work) into = least + 1;
    const auto longer = std::min(least, into), shorter = std::max(least, into);
    longer->groups.insert(longer->groups.end(), shorter->groups.begin(), shorter->groups.end());
    longer->work += shorter->work;
    buckets.erase(shorter);
  }
  return buckets;
}

void StreamrlOracleScheduler::update_concurrency(const std::vector<Home>& dealt) {
  struct Sum {
    int64_t kv_tokens = 0, requests = 0;
  };
  std::map<InstanceId, Sum> sums;
  const auto add = [&](GroupId id, InstanceId instance) {
    const GroupState& group = requests().group(id);
    Sum& sum = sums[instance];
    for (const RequestState& request : group.members) sum.kv_tokens += group.prompt_tokens + request.known_tokens;
    sum.requests += std::ssize(group.members);
  };
  for (const auto& [group, instance] : homes()) add(group, instance);
  for (const Home& home : dealt) add(home.group, home.instance);
  running_max_.clear();
  for (const auto& [instance, sum] : sums) {
    const InstanceLimits& limits = ledger_.picker().limits(instance);
    running_max_[instance] =
        std::max<int64_t>(1, limits.kv_blocks * limits.block_tokens * sum.requests / sum.kv_tokens);
  }
}

}  // namespace seer
