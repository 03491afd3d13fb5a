#include "cli/policy_auto.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <thread>
#include <utility>

#include "cli/decode_times.h"
#include "cli/figure_text.h"
#include "cli/machine_memory.h"
#include "gpu/step_profile.h"
#include "protocols/check.h"

namespace seer {
namespace {

constexpr double kFirstVisitUsMax = 3e6;  // larger batches are not measured when those before took so long
constexpr int64_t kMeasuredKvBytesMax = int64_t{256} << 20;  // of all engines: larger than most caches, yet quickly filled

int64_t median(std::vector<int64_t> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

int64_t tokens_in(int64_t kv_bytes, const EngineSource& source) { return kv_bytes / source.block_bytes * source.block_tokens; }

/// Engines that are measured side by side: no more than the cores can run at a time; one on a GPU.
int64_t engines_measured(const EngineSource& source, const MachineOptions& options) {
  return source.threads == 0 ? 1 : std::clamp<int64_t>(find_cpus() / source.threads, 1, options.instances);
}

/// Tokens that the KV of a measured engine holds at most.
int64_t kv_tokens_measured(const EngineSource& source, const MachineOptions& options) {
  return tokens_in(std::min(source.kv_bytes, kMeasuredKvBytesMax / engines_measured(source, options)), source);
}

TypicalBatches batches_of(const EngineSource& source, InstanceWork& work, const ChunkSchedulerConfig& scheduler) {
  work.kv_tokens = std::max<int64_t>(1, tokens_in(source.kv_bytes, source));
  return typical_batches(work, scheduler);
}

/// Scales the batches down if they need more KV than `kv_tokens_max`.
TypicalBatches scaled_to(TypicalBatches batches, int64_t kv_tokens_max) {
  const int64_t fit = std::max<int64_t>(2, kv_tokens_max / (batches.context_tokens + 1));
  if (batches.full_sequences <= fit) return batches;
  batches.held_sequences = std::max<int64_t>(1, batches.held_sequences * fit / batches.full_sequences);
  batches.full_sequences = fit;
  return batches;
}

StepSequences decode_step(int64_t sequences, int64_t context_tokens) {
  return StepSequences(static_cast<size_t>(sequences), SequenceShape{.start = context_tokens});
}

Result<DecodeStepUs> profiled_steps(const MachineOptions& options) {
  SEER_ASSIGN_OR_RETURN(StepProfile profile, read_step_profile(options.draft_profile));
  return DecodeStepUs([profile = std::move(profile)](const StepShape& shape) {
    return profile.predict_us(shape) + step_gap_us(shape.sequences);
  });
}

/// A batch and its context, to be measured.
struct DecodeBatch {
  int64_t sequences = 1;
  int64_t context_tokens = 1;
};

/// Sizes up to `rows_max`, doubled, each with contexts from kContextMin up to the largest that fits, times 4. Smaller batches first.
std::vector<DecodeBatch> batches_to_measure(int64_t rows_max, int64_t context_tokens_max, int64_t kv_tokens) {
  constexpr int64_t kContextMin = 64, kContextStep = 4;
  std::vector<DecodeBatch> batches;
  for (int64_t size = 1; size == 1 || (size <= rows_max && kv_tokens / size > 2 * kContextMin); size *= 2) {
    const int64_t last = std::max<int64_t>(2, std::min(context_tokens_max, kv_tokens / size) - 1);
    for (int64_t context = std::min(kContextMin, last / 2); context * 4 / 3 <= last; context *= kContextStep) batches.push_back({size, context});
    batches.push_back({size, last});
  }
  return batches;
}

std::string ratio_text(double saving) { return decimal_text(1 - saving, 2); }
std::string cost_text(const PolicyChoice& choice) {
  return cat("a batch of ", choice.batches.full_sequences, " costs ", ratio_text(choice.saving), " of one of ",
             choice.batches.held_sequences, " per token");
}

}  // namespace

InstanceWork instance_work(const std::vector<GroupSpec>& groups, const MachineOptions& options) {
  SEER_CHECK(!groups.empty());
  std::vector<int64_t> prompts, limits;
  int64_t requests = 0;
  for (const GroupSpec& group : groups) {
    prompts.push_back(std::ssize(group.prompt_ids));
    limits.push_back(group.sampling.max_tokens);
    requests += group.samples;
  }
  const auto at_least_1 = [](int64_t value) { return std::max<int64_t>(1, value); };
  return {.kv_tokens = 1,
          .rows_max = options.max_batch,
          .requests = at_least_1(requests / options.instances),
          .prompt_tokens = at_least_1(median(std::move(prompts))),
          .limit_tokens = at_least_1(median(std::move(limits)))};
}

Result<PolicyChoice> choose_policy(const EngineSource& source, InstanceWork work, const MachineOptions& options,
                                   const ChunkSchedulerConfig& scheduler) {
  const TypicalBatches batches = batches_of(source, work, scheduler);
  if (!options.draft_profile.empty()) {
    SEER_ASSIGN_OR_RETURN(const DecodeStepUs step_us, profiled_steps(options));
    return choose_policy(batches, step_us);
  }
  const TypicalBatches measured = scaled_to(batches, kv_tokens_measured(source, options));
  const std::vector<int64_t> sizes = batch_sizes(measured);
  std::vector<StepSequences> steps;
  for (const int64_t size : sizes) steps.push_back(decode_step(size, measured.context_tokens));
  SEER_ASSIGN_OR_RETURN(const std::vector<double> us, measure_steps_us(source, engines_measured(source, options), steps));
  return choose_policy(measured, [&](const StepShape& shape) {
    return us[static_cast<size_t>(std::ranges::lower_bound(sizes, shape.sequences) - sizes.begin())] + step_gap_us(shape.sequences);
  });
}

Result<DecodeStepUs> measure_decode_steps(const EngineSource& source, const MachineOptions& options) {
  if (!options.draft_profile.empty()) return profiled_steps(options);
  const std::vector<DecodeBatch> batches =
      batches_to_measure(options.max_batch, source.context_tokens_max, kv_tokens_measured(source, options));
  std::vector<StepSequences> steps;
  for (const DecodeBatch& batch : batches) steps.push_back(decode_step(batch.sequences, batch.context_tokens));
  SEER_ASSIGN_OR_RETURN(const std::vector<double> us, measure_steps_us(source, engines_measured(source, options), steps, kFirstVisitUsMax));
  DecodeTimes times;
  for (size_t i = 0; i < batches.size(); ++i)
    if (std::isfinite(us[i])) times.add(batches[i].sequences, batches[i].context_tokens, us[i]);
  return DecodeStepUs([times = std::move(times)](const StepShape& shape) {
    return times.step_us(shape.sequences, shape.kv_tokens / shape.sequences - 1) + step_gap_us(shape.sequences);
  });
}

PolicyChoice choose_policy(const DecodeStepUs& step_us, const EngineSource& source, InstanceWork work, const MachineOptions& options,
                           const ChunkSchedulerConfig& scheduler) {
  const TypicalBatches batches = batches_of(source, work, scheduler);
  return choose_policy(options.draft_profile.empty() ? scaled_to(batches, kv_tokens_measured(source, options)) : batches, step_us);
}

bool is_measured(const ChunkSchedulerConfig& scheduler) {
  return scheduler.policy == kAutoPolicy || (scheduler.policy == kSeerPlusPolicy && scheduler.reserve_share < 0);
}

ChunkSchedulerConfig chosen(ChunkSchedulerConfig scheduler, const PolicyChoice& choice) {
  SEER_CHECK(is_measured(scheduler), scheduler.policy);
  if (scheduler.policy == kSeerPlusPolicy) {
    scheduler.reserve_share = choice.seer_plus_reserve();
    return scheduler;
  }
  scheduler.policy = choice.policy;
  scheduler.running_max = choice.rows_max;
  return scheduler;
}

std::string choice_text(const ChunkSchedulerConfig& scheduler, const PolicyChoice& choice) {
  const TypicalBatches& b = choice.batches;
  if (scheduler.policy == kSeerPlusPolicy) {
    const std::string reserve = cat("reserve ", reserve_of(chosen(scheduler, choice)), ": ");
    if (b.full_sequences == b.held_sequences) return cat(reserve, "a batch has ", b.full_sequences, " with any");
    return cat(reserve, cost_text(choice), "; ", reserve_of(scheduler), " below ", ratio_text(kSeerPlusSavingMin));
  }
  if (choice.rows_max > 0) {
    const int64_t own = b.of(choice.policy);
    return cat("at most ", choice.rows_max, " running: a token costs ", ratio_text(choice.cap_saving), " of one in a batch of ", own);
  }
  if (b.full_sequences == b.held_sequences) return cat("a batch has ", b.full_sequences, " under seer and seer+ alike");
  return cat(cost_text(choice), "; seer+ below ", ratio_text(kSeerPlusSavingMin));
}

}  // namespace seer
