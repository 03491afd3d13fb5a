#include "cli/sim/sim_partial.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "protocols/check.h"

namespace seer {
namespace {

/// An endless supply of the workload's groups.
class GroupSupply {
 public:
  GroupSupply(const Workload& workload, uint64_t seed) : workload_(workload), seed_(seed) {}
  GroupLengths next() {
    if (taken_ == drawn_.size()) draw_more();
    return drawn_[taken_++];
  }

 private:
  void draw_more() {
    const std::vector<GroupLengths> more = draw_lengths(workload_, seed_, std::ssize(drawn_));
    drawn_.insert(drawn_.end(), more.begin(), more.end());
  }

  const Workload& workload_;
  const uint64_t seed_;
  std::vector<GroupLengths> drawn_;
  size_t taken_ = 0;
};

/// A request that carries over. Its next iteration starts with the generated tokens as part of the prompt.
struct Carried {
  int64_t prompt_tokens = 0, generated_tokens = 0, left_tokens = 0;
};

}  // namespace

Result<SimRun> simulate_partial(const ClusterModel& cluster, const Workload& workload, uint64_t seed, double over_issue,
                                const ChunkSchedulerConfig& scheduler, const std::optional<SimDrafting>& drafting,
                                const EventLog& log, const std::atomic<bool>* stop) {
  SEER_CHECK(over_issue >= 1, over_issue);
  const int64_t target = requests_of(workload);
  const auto issued = static_cast<int64_t>(std::ceil(over_issue * static_cast<double>(target)));
  GroupSupply supply(workload, seed);
  std::vector<Carried> carried;
  SimRun run;
  for (int64_t iteration = 0; iteration < kPartialIterations; ++iteration) {
    SimWork work{.max_gen = workload.lengths.max_gen, .target_requests = target, .stop = stop};
    std::vector<int64_t> generated_before;  // by group
    for (const Carried& c : carried) {
      work.groups.push_back({c.prompt_tokens + c.generated_tokens, {c.left_tokens}});
      generated_before.push_back(c.generated_tokens);
    }
    for (int64_t requests = std::ssize(carried); requests < issued;) {
      work.groups.push_back(supply.next());
      requests += std::ssize(work.groups.back().output_tokens);
      generated_before.push_back(0);
    }
    for (size_t g = 0; g < work.groups.size(); ++g)
      work.context_tokens_max = std::max(work.context_tokens_max,
                                         work.groups[g].prompt_tokens - generated_before[g] + work.max_gen);

    std::vector<StoppedRequest> stopped;
    SEER_ASSIGN_OR_RETURN(run, simulate_rollout(cluster, work, scheduler, drafting, &stopped, log));
    for (const int64_t tokens : generated_before) run.output_tokens += tokens;  // less those of the unfinished, below
    carried.clear();
    for (const StoppedRequest& s : stopped) {
      const auto group = static_cast<size_t>(s.group);
      const int64_t before = generated_before[group];
      run.output_tokens -= before;
      const GroupLengths& lengths = work.groups[group];
      carried.push_back({lengths.prompt_tokens - before, before + s.generated_tokens,
                         lengths.output_tokens[static_cast<size_t>(s.sample)] - s.generated_tokens});
    }
  }
  run.policy = kPartialPolicy;
  run.is_synchronous = false;
  run.tokens_per_s = static_cast<double>(run.output_tokens) / run.total_s;
  return run;
}

}  // namespace seer
