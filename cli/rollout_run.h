// Runs a rollout under a policy: on instances of this process, on a cluster, or on servers of others. Used by rollout_command,
// benchmarks and the exactness tests.
#pragma once
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/config.h"
#include "cli/report.h"
#include "cli/rollout_work.h"
#include "cli/run_journal.h"
#include "cli/timeline.h"
#include "gpu/step_profile.h"
#include "protocols/chunk.h"
#include "protocols/result.h"

namespace seer {

/// Groups that came while a rollout runs.
struct MoreGroups {
  std::vector<GroupSpec> groups;
  bool closed = false;  // no more will come
  Status error;         // why no more will come, if not because the stream ended
};

/// Callbacks of a run, on the caller's thread.
struct RolloutHooks {
  std::function<Status(const Response&)> response;         // an error stops the rollout
  std::function<void(const RolloutProgress&)> progress;
  std::function<void(const std::string&)> weights_named;   // what servers of others call their weights, before the first response
  std::function<MoreGroups()> more;                        // never waits. Empty: the work has all groups
  const std::atomic<bool>* stop = nullptr;                 // when set, the run ends in order and keeps finished responses
  EventLog log = {};
};

struct RolloutOutcome {
  RolloutReport report;
  bool complete = false;                    // false: stopped
  std::optional<Result<StepProfile>> learned;  // of the servers of others; none: they are not
  Status prompts;                           // MoreGroups::error
  std::vector<InstanceTimeline> instances;  // empty unless options.html is set
  std::vector<double> completions_s;        // time of each finished response; likewise
  RunJournal journal;                       // the caller clears it once the responses are safe elsewhere
};

/// Runs all groups once under one policy; for "auto" it chooses one.
Result<RolloutOutcome> run_rollout(const RolloutOptions& options, const RolloutWork& work, const std::string& policy,
                                   const RolloutHooks& hooks);

}  // namespace seer
