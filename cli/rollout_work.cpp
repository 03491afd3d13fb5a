#include "cli/rollout_work.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "cli/chat_prompts.h"
#include "cli/engine_source.h"
#include "gpu/model/model_folder.h"
#include "gpu/sampler.h"

namespace seer {
namespace {

/// Checks that the model supports the line's sampling. REQUIRES: it supports that of the flags.
Status check_sampling(const RolloutOptions& options, const RolloutWork& work, const PromptLine& line) {
  const auto wrong = [&](const auto&... what) {
    return fail(Code::kInvalidArgument, options.prompts_name(), ":", line.line, ": ", what...);
  };
  if (const Status valid = validate(line.sampling); !valid.ok()) return wrong(valid.error().detail);
  if (!line.sampling.stop.empty() && work.tokenizer == nullptr)
    return wrong("stop needs a tokenizer, and ", options.model, " has none; use stop_token_ids instead");
  for (const int32_t id : line.sampling.stop_token_ids)
    if (id >= work.config.vocab_size)
      return wrong("stop_token_ids has ", id, ": expected ids of the vocabulary of ", work.config.vocab_size);
  if (const Status fits = check_ending_ids(line.sampling, work.config.eos_ids); !fits.ok()) return wrong(fits.error().detail);
  return {};
}

/// Loads the chat template with the first conversation.
Status load_chat_for(const RolloutOptions& options, const PromptLine& line, RolloutWork& work) {
  if (line.chat.empty() || work.chat != nullptr || work.tokenizer == nullptr) return {};
  auto chat = ChatPrompts::load(options.model, work.tokenizer);
  if (chat.ok()) work.chat = *std::move(chat);
  return chat.ok() || chat.error().code == Code::kNotFound ? Status{} : Status{chat.error()};
}

Result<GroupSpec> make_group(const RolloutOptions& options, RolloutWork& work, const PromptLine& line, uint32_t id) {
  SEER_RETURN_IF_ERROR(load_chat_for(options, line, work));
  SEER_ASSIGN_OR_RETURN(std::vector<int32_t> prompt_ids,
                        prompt_ids_of(line, {options.model, work.tokenizer.get(), work.chat.get()},
                                      cat(options.prompts_name(), ":", line.line, ": ")));
  GroupSpec group{.id = GroupId{id},
                  .prompt_ids = std::move(prompt_ids),
                  .samples = static_cast<uint32_t>(line.samples),
                  .sampling = line.sampling,
                  .seeds = {},
                  .known_tokens = {},
                  .length_hint = line.length_hint};
  const ModelConfig& model = work.config;
  SEER_RETURN_IF_ERROR(
      check_prompt(options.prompts_name(), line.line, group.prompt_ids, model.vocab_size, model.context_tokens_max));
  SEER_RETURN_IF_ERROR(check_sampling(options, work, line));
  group.sampling.max_tokens = std::min(group.sampling.max_tokens,
                                       model.context_tokens_max - static_cast<int64_t>(group.prompt_ids.size()));
  for (uint32_t sample = 0; sample < group.samples; ++sample)
    group.seeds.push_back(prompt_sample_seed(line, options.seed, id, sample));
  return group;
}

MemoryDemand demand_of_requests(int64_t requests) {
  const int64_t bytes = bytes_of(requests, kRolloutRequestBytes);
  return {cat("the bookkeeping of ", requests, " requests"), bytes, bytes};
}

/// Checks before loading that model and requests fit in memory.
Status check_memory_to_load(const RolloutOptions& options, const std::vector<PromptLine>& lines) {
  int64_t requests = 0;
  for (const PromptLine& line : lines) requests += line.samples;
  return check_memory({demand_of_weights(options.model, options.weights), demand_of_requests(requests)},
                      find_memory());
}

/// KV of all responses at their longest; no tier ever holds more.
int64_t work_kv_bytes(const RolloutOptions& options, const RolloutWork& work) {
  int64_t blocks = 0;
  for (const GroupSpec& group : work.groups) {
    const int64_t tokens = static_cast<int64_t>(group.prompt_ids.size()) + group.sampling.max_tokens;
    blocks += group.samples * (tokens / options.block_tokens + 1);
  }
  return bytes_of(blocks, kv_block_bytes_of(options, work.config));
}

Status check_memory_to_run(const RolloutOptions& options, const RolloutWork& work) {
  int64_t requests = 0;
  for (const GroupSpec& group : work.groups) requests += group.samples;
  std::vector<MemoryDemand> demands = kv_demands(options, options.nodes, work_kv_bytes(options, work));
  demands.push_back(demand_of_requests(requests));
  return check_memory(demands, find_memory());
}

}  // namespace

int64_t requests_of(const RolloutWork& work) {
  int64_t requests = 0;
  for (const GroupSpec& group : work.groups) requests += group.samples;
  return requests;
}

Result<RolloutWork> load_work(const RolloutOptions& options) {
  SEER_RETURN_IF_ERROR(validate(options.sampling));
  SEER_ASSIGN_OR_RETURN(auto prompts, read_prompts(options.prompts, options.limit,
                                                   {.samples = options.group_size, .sampling = options.sampling}));
  return load_work(options, std::move(prompts));
}

Status add_prompts(const RolloutOptions& options, std::vector<PromptLine> prompts, RolloutWork& work,
                   std::vector<GroupSpec>& added) {
  for (PromptLine& line : prompts) {
    SEER_ASSIGN_OR_RETURN(GroupSpec group, make_group(options, work, line, static_cast<uint32_t>(work.groups.size())));
    work.lines.push_back(std::move(line));
    work.groups.push_back(group);
    added.push_back(std::move(group));
  }
  return {};
}

Result<RolloutWork> load_work(const RolloutOptions& options, std::vector<PromptLine> prompts) {
  SEER_RETURN_IF_ERROR(validate(options.sampling));
  RolloutWork work;
  work.lines = std::move(prompts);
  if (options.runs_here()) {
    SEER_RETURN_IF_ERROR(check_memory_to_load(options, work.lines));
    SEER_ASSIGN_OR_RETURN(work.loaded, load_model_of(options));
    work.tokenizer = work.loaded.tokenizer;
    work.config = work.loaded.model()->config;
  } else {
    SEER_RETURN_IF_ERROR(check_model_folder(options.model, ModelFiles::kWithoutWeights));
    SEER_ASSIGN_OR_RETURN(work.config, read_model_config(options.model));
    SEER_ASSIGN_OR_RETURN(work.tokenizer, load_tokenizer_of(options));
  }
  if (!options.sampling.stop.empty() && work.tokenizer == nullptr)
    return fail(Code::kInvalidArgument, "--stop needs a tokenizer, and ", options.model,
                " has none; use --stop-token-ids instead");
  for (const int32_t id : options.sampling.stop_token_ids)
    if (id >= work.config.vocab_size)
      return fail(Code::kInvalidArgument, "--stop-token-ids ", id, " is outside the vocabulary of ",
                  work.config.vocab_size);
  for (uint32_t i = 0; i < work.lines.size(); ++i) {
    SEER_ASSIGN_OR_RETURN(GroupSpec group, make_group(options, work, work.lines[i], i));
    work.groups.push_back(std::move(group));
  }
  if (options.runs_here()) SEER_RETURN_IF_ERROR(check_memory_to_run(options, work));
  if (options.lengths.empty()) return work;
  std::vector<int64_t> group_sizes;
  for (const PromptLine& line : work.lines) group_sizes.push_back(line.samples);
  SEER_ASSIGN_OR_RETURN(auto lengths, read_lengths(options.lengths, group_sizes));
  for (size_t i = 0; i < work.groups.size(); ++i) work.groups[i].known_tokens = std::move(lengths[i]);
  return work;
}

std::string disk_warning(const RolloutOptions& options, const RolloutWork& work) {
  if (options.cold_dir.empty()) return "";
  std::error_code unknown;
  std::filesystem::path folder = std::filesystem::absolute(options.cold_dir, unknown);
  while (!std::filesystem::exists(folder, unknown) && folder.has_relative_path()) folder = folder.parent_path();
  const std::filesystem::space_info space = std::filesystem::space(folder, unknown);
  const int64_t used = std::min(bytes_of(options.cold_bytes, options.nodes), work_kv_bytes(options, work));
  if (unknown || used <= static_cast<int64_t>(space.available)) return "";
  return cat("--cold-bytes ", options.cold_bytes, " for --nodes ", options.nodes, " may take ", size_text(used), " in ",
             options.cold_dir, ", and ", size_text(static_cast<int64_t>(space.available)),
             " are free there: KV that does not fit is computed again");
}

}  // namespace seer
