#include "cli/policy_auto.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "cli/figure_text.h"
#include "gpu/step_profile.h"
#include "protocols/check.h"

namespace seer {
namespace {

constexpr int64_t kMeasuredKvBytesMax = int64_t{256} << 20;  // of all engines: larger than most caches, yet quickly filled

int64_t median(std::vector<int64_t> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
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
  const auto tokens_in = [&](int64_t bytes) { return bytes / source.block_bytes * source.block_tokens; };
  work.kv_tokens = std::max<int64_t>(1, tokens_in(source.kv_bytes));
  const TypicalBatches batches = typical_batches(work, scheduler);
  if (!options.draft_profile.empty()) {
    SEER_ASSIGN_OR_RETURN(const StepProfile profile, read_step_profile(options.draft_profile));
    return choose_policy(batches, [&](const StepShape& shape) { return profile.predict_us(shape) + kStepGapUs; });
  }
  // No more engines than the cores can run at a time; one on a GPU.
  const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const int64_t engines = source.threads == 0 ? 1 : std::clamp<int64_t>(cores / source.threads, 1, options.instances);
  const TypicalBatches measured = scaled_to(batches, tokens_in(kMeasuredKvBytesMax / engines));
  const std::vector<int64_t> sizes = batch_sizes(measured);
  std::vector<StepSequences> steps;
  for (const int64_t size : sizes) steps.push_back(decode_step(size, measured.context_tokens));
  SEER_ASSIGN_OR_RETURN(const std::vector<double> us, measure_steps_us(source, engines, steps));
  return choose_policy(measured, [&](const StepShape& shape) {
    return us[static_cast<size_t>(std::ranges::lower_bound(sizes, shape.sequences) - sizes.begin())] + kStepGapUs;
  });
}

ChunkSchedulerConfig chosen(ChunkSchedulerConfig scheduler, const PolicyChoice& choice) {
  scheduler.policy = choice.policy;
  scheduler.running_max = choice.rows_max;
  return scheduler;
}

std::string choice_text(const PolicyChoice& choice) {
  const TypicalBatches& b = choice.batches;
  const auto ratio = [](double saving) { return decimal_text(1 - saving, 2); };
  if (choice.rows_max > 0) {
    const int64_t own = b.of(choice.policy);
    return cat("at most ", choice.rows_max, " running: a token costs ", ratio(choice.cap_saving), " of one in a batch of ", own);
  }
  if (b.full_sequences == b.held_sequences)
    return cat("a batch has ", b.full_sequences, " under seer and seer+ alike");
  return cat("a batch of ", b.full_sequences, " costs ", ratio(choice.saving), " of one of ", b.held_sequences,
             " per token; seer+ below ", ratio(kSeerPlusSavingMin));
}

}  // namespace seer
