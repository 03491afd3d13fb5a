#include "cli/ineffective_options.h"

#include <algorithm>

#include "actors/policy/schedule/policies.h"
#include "cli/option.h"
#include "cli/policy_auto.h"
#include "cli/sim/sim_policy.h"

namespace seer {
namespace {

/// Options that have an effect only if `is_met`. `what` ends "--option has no effect ...".
struct Need {
  std::vector<const char*> options;
  bool is_met;
  std::string what;
};

std::vector<std::string> sentences(const std::vector<Need>& needs, const std::set<std::string>& given) {
  std::vector<std::string> found;
  std::set<std::string> named;  // each option gets one sentence: its first unmet need
  for (const Need& need : needs)
    for (const char* option : need.options)
      if (!need.is_met && given.contains(option) && named.insert(option).second)
        found.push_back(cat("--", option, " has no effect ", need.what));
  return found;
}

/// Needs of drafts, KV tiers and the log. `chooses`: a policy that needs step times too is used.
std::vector<Need> machine_needs(const MachineOptions& o, bool chooses) {
  const bool drafts = draft_source(o) != DraftSource::kOff;
  const std::string without = o.drafting == DraftSource::kAuto ? "on a GPU without --drafting" : "with --drafting off";
  return {{{"draft-max", "draft-shape", "draft-rule", "draft-lambda"}, drafts, without},
          {{"draft-profile"}, drafts || chooses, without + " and without --policy auto, or seer+ without --reserve"},
          {{"draft-lambda"}, o.draft_rule != DraftRule::kUniform, "with --draft-rule uniform"},
          {{"cold-bytes"}, !o.cold_dir.empty(), "without --cold-dir"},
          {{"log-file"}, o.log.level != LogLevel::kOff, "with --log-level off"},
          {{"threads-per-instance", "pin"}, o.device == DeviceKind::kCpu, "on a GPU"},
          {{"tensor-parallel"}, o.device != DeviceKind::kCpu, "with --device cpu"},
          {{"cold-dir", "cold-bytes"}, o.dram_bytes > 0, "with --dram-bytes 0: KV goes to disk from DRAM"}};
}

/// These, and the options of instances with engines of this process.
std::vector<const char*> with_instance_options(std::vector<const char*> options) {
  for (const char* option : {"device", "tensor-parallel", "instances", "threads-per-instance", "pin", "weights", "max-batch", "prefill-tokens", "step-depth",
                             "kv-bytes", "kv-dtype", "block-tokens", "drafting", "draft-max", "draft-shape", "draft-rule", "draft-lambda", "draft-profile"})
    options.push_back(option);
  return options;
}

/// For the options of machines within this process. --weight-version counts for servers of others too.
Need local_need(const std::string& cluster, bool has_engines = false) {
  Need need{with_instance_options({"nodes", "dram-bytes", "cold-dir", "cold-bytes"}), cluster.empty() && !has_engines,
            has_engines ? "with --engines, whose servers have their own" : "with --cluster, whose machines have their own"};
  if (!has_engines) need.options.push_back("weight-version");
  return need;
}

Need router_need(const RouterOptions& o) {
  return {{"engine-token-file", "engine-ca", "engine-insecure", "engine-rows", "engine-stream-tokens", "engine-silence", "shared-kv"},
          !o.engines.empty(), "without --engines"};
}

}  // namespace

std::vector<std::string> ineffective_options(const ServeOptions& o, const std::set<std::string>& given) {
  std::vector<Need> needs{local_need(o.cluster, !o.router.engines.empty()),
                          router_need(o.router),
                          {{"controller-wait", "cluster-tls-cert", "cluster-tls-key", "cluster-tls-ca", "cluster-secret-file", "cluster-insecure"},
                           !o.cluster.empty(), "without --cluster"}};
  const std::vector<Need> machine = machine_needs(o, is_measured(o.scheduler));
  needs.insert(needs.end(), machine.begin(), machine.end());
  return sentences(needs, given);
}

std::vector<std::string> ineffective_options(const NodeOptions& o, const std::set<std::string>& given) {
  const NodeRoles roles = roles_of(o);
  std::vector<Need> needs{
      {with_instance_options({"model", "weight-version"}), roles.has(NodeRole::kInstances) || o.roles.empty(), "without the role instances"},
      {{"dram-bytes", "cold-dir", "cold-bytes"}, roles.has(NodeRole::kKv) || o.roles.empty(), "without the role kv"}};
  const std::vector<Need> machine = machine_needs(o, false);
  needs.insert(needs.end(), machine.begin(), machine.end());
  return sentences(needs, given);
}

std::vector<std::string> ineffective_options(const RolloutOptions& o, const std::set<std::string>& given) {
  const std::vector<std::string> policies = o.compare.empty() ? std::vector{o.scheduler.policy} : o.compare;
  const bool chooses = std::ranges::any_of(policies, [&](const std::string& policy) {
    ChunkSchedulerConfig scheduler = o.scheduler;
    scheduler.policy = policy;
    return is_measured(scheduler);
  });
  const auto takes_lengths = [](const SchedulingPolicy& policy) { return policy.needs_lengths; };
  const std::vector<std::string> oracles = chunk_policy_names(takes_lengths);
  const bool any_oracle = std::ranges::find_first_of(policies, oracles) != policies.end();
  std::vector<Need> needs{
      {{"policy"}, o.compare.empty(), "beside --compare, which names the policies"},
      {{"lengths"}, any_oracle, "without a policy that takes lengths: " + joined(oracles)},
      local_need(o.cluster, !o.router.engines.empty()),
      router_need(o.router),
      {{"profile-out"}, !o.router.engines.empty(), "without --engines"}};
  needs.push_back({{"controller-wait", "tls-cert", "tls-key", "tls-ca", "secret-file", "insecure"}, !o.cluster.empty(), "without --cluster"});
  const std::vector<Need> machine = machine_needs(o, chooses);
  needs.insert(needs.end(), machine.begin(), machine.end());
  return sentences(needs, given);
}

std::vector<std::string> ineffective_options(const SimulateOptions& o, const std::set<std::string>& given) {
  std::vector<SimPolicy> policies;
  for (const std::string& name : o.policies) policies.push_back(sim_policy(name));
  const bool any_drafts = std::ranges::any_of(policies, &SimPolicy::drafts);
  const bool any_partial = std::ranges::any_of(policies, &SimPolicy::is_partial);
  const bool any_seer_plus = std::ranges::find(policies, kSeerPlusPolicy, &SimPolicy::scheduling) != policies.end();
  const auto sweeps = [&](std::string_view key) { return std::ranges::any_of(o.sweep, [key](const std::string& axis) { return axis.starts_with(key); }); };
  return sentences({{{"draft-acceptance", "drafter", "drafting", "draft-rule", "dram-bytes", "cold-bytes", "block-tokens", "reward-s",
                      "train-s", "update-s"}, !o.faults, "with --faults"},
                    {{"ssd-read-gb-per-s", "ssd-write-gb-per-s"}, o.cold_bytes > 0 || sweeps("cold="), "without --cold-bytes"},
                    {{"reward-workers"}, o.iteration.reward_s > 0, "without --reward-s"},
                    {{"sweep-runs-max"}, !o.sweep.empty(), "without --sweep"},
                    {{"instances"}, !sweeps("instances="), "beside --sweep instances=..."},
                    {{"kv-bytes-per-token"}, !o.profile.empty(), "without --profile"},
                    {{"draft-acceptance", "drafter", "drafting", "draft-rule", "draft-max"}, any_drafts, "without a policy that ends in +sd"},
                    {{"log-file"}, o.log.level != LogLevel::kOff, "with --log-level off"},
                    {{"over-issue"}, any_partial, cat("without the policy ", kPartialPolicy)},
                    {{"unexplained", "without"}, any_seer_plus, cat("without the policy ", kSeerPlusPolicy)}},
                   given);
}

}  // namespace seer
