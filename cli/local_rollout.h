// Local rollout: runs a rollout in this process, on a cluster, or on servers of others. Loads and checks the work once, then runs it under any policy.
// Used by seer.cpp, by benchmarks and by the exactness tests.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/config.h"
#include "cli/jsonl.h"
#include "cli/machine_parts.h"
#include "cli/report.h"
#include "cli/run_journal.h"
#include "cli/timeline.h"
#include "gpu/model/weight_store.h"
#include "gpu/step_profile.h"
#include "gpu/text/tokenizer.h"
#include "protocols/chunk.h"
#include "protocols/result.h"

namespace seer {

class ChatPrompts;

/// The work of a rollout: model, tokenizer and groups. Immutable; several runs share it.
struct RolloutWork {
  ModelConfig config;
  LoadedModel loaded;                          // without weights if the engines are elsewhere
  std::shared_ptr<const Tokenizer> tokenizer;  // null if the model's folder has none
  std::shared_ptr<const ChatPrompts> chat;     // null until a line has messages, or if the model's folder has no template
  std::vector<PromptLine> lines;               // line i is group i
  std::vector<GroupSpec> groups;
};

int64_t requests_of(const RolloutWork& work);

/// Bookkeeping of a request (specification, state in the scheduler, token log without its tokens, queues), as measured with
/// groups of 100 000 and of 1 000 000 requests: 960 to 1000 B.
inline constexpr int64_t kRolloutRequestBytes = 1000;

/// Loads model, tokenizer, prompts and lengths. Every error is one sentence with file, line and what was expected. Work that does
/// not fit in the memory of this machine is an error too.
Result<RolloutWork> load_work(const RolloutOptions& options);
/// Does the same with prompts that were read already. REQUIRES: prompts is not empty.
Result<RolloutWork> load_work(const RolloutOptions& options, std::vector<PromptLine> prompts);
/// Adds prompts that came later; `added` gets their groups. The first wrong prompt is an error; those before it are added.
Status add_prompts(const RolloutOptions& options, std::vector<PromptLine> prompts, RolloutWork& work,
                   std::vector<GroupSpec>& added);
/// A warning if the cold tier may fill its disk, which costs time; else empty.
std::string disk_warning(const RolloutOptions& options, const RolloutWork& work);

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
