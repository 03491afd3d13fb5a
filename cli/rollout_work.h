// RolloutWork: what a rollout works on: the model, its tokenizer, and the prompts as groups. Loads and checks it before anything runs.
// Used by rollout_command, rollout_run, benchmarks and the exactness tests.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cli/config.h"
#include "cli/jsonl.h"
#include "cli/machine_parts.h"
#include "gpu/model/model_config.h"
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

}  // namespace seer
