#include "cli/run_warnings.h"

#include "cli/machine_memory.h"

namespace seer {

std::vector<std::string> run_warnings(const RolloutOptions& options, const RolloutWork& work, int64_t cores) {
  std::vector<std::string> found;
  if (cores > 0 && options.runs_here() && options.device == DeviceKind::kCpu && options.instances > cores)
    found.push_back(cat(options.instances, " instances on ", cores, cores == 1 ? " core" : " cores",
                        ": the instances wait for each other"));
  if (std::string many = many_requests_text(requests_of(work), kRolloutRequestBytes); !many.empty())
    found.push_back(std::move(many));
  int64_t cut_prompts = 0;
  for (size_t i = 0; i < work.groups.size(); ++i)
    if (work.groups[i].sampling.max_tokens < work.lines[i].sampling.max_tokens) ++cut_prompts;
  if (cut_prompts > 0)
    found.push_back(cat("the max tokens of ", cut_prompts, " of ", work.groups.size(),
                        " prompts are cut to what the model's context of ", work.config.context_tokens_max,
                        " tokens leaves after the prompt"));
  return found;
}

}  // namespace seer
