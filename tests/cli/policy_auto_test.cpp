#include "cli/policy_auto.h"

#include <doctest/doctest.h>

#include "cli/workload.h"
#include "gpu/hardware_model.h"

using namespace seer;

TEST_CASE("policy auto: the GPUs of the built-in workloads get seer+, which is ahead on all three") {
  for (const std::string& name : workload_names()) {
    CAPTURE(name);
    const auto workload = load_workload(name);
    REQUIRE(workload.ok());
    const HardwareSetup& setup = *workload->hardware;
    const auto model = HardwareModel::create(setup);
    REQUIRE(model.ok());
    const InstanceWork work{.kv_tokens = model->kv_capacity_tokens(),
                            .rows_max = 256 * setup.dp,
                            .requests = workload->groups * workload->group_size / workload->instances,
                            .prompt_tokens = workload->prompt_tokens,
                            .limit_tokens = workload->lengths.max_gen};
    const PolicyChoice choice =
        choose_policy(typical_batches(work, {.chunk_tokens = 8192}),  // as seer simulate
                      [&](const StepShape& shape) { return static_cast<double>(model->step_ns(shape)) / 1000; });
    CHECK(choice.policy == ChunkPolicy::kSeerPlus);
    CHECK(choice.saving > 1.5 * kSeerPlusSavingMin);
  }
}

TEST_CASE("policy auto: an instance's work is the medians of the groups and its share of the requests") {
  std::vector<GroupSpec> groups(3);
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i].samples = 8;
    groups[i].prompt_ids.resize(10 * (i + 1));
    groups[i].sampling.max_tokens = static_cast<int64_t>(1000 - 100 * i);
  }
  RolloutOptions options;
  options.instances = 2;
  options.max_batch = 7;
  const InstanceWork work = instance_work(groups, options, 0);
  CHECK(work.kv_tokens == 1);
  CHECK(work.rows_max == 7);
  CHECK(work.requests == 12);
  CHECK(work.prompt_tokens == 20);
  CHECK(work.limit_tokens == 900);
}

TEST_CASE("policy auto: the choice in words fits a line") {
  PolicyChoice choice{.batches = {.context_tokens = 815, .held_sequences = 26, .full_sequences = 53}, .saving = -0.219};
  CHECK(choice_text(choice) == "a batch of 53 costs 1.22 of one of 26 per token; seer+ below 0.95");
  choice.batches.held_sequences = 53;
  CHECK(choice_text(choice) == "a batch has 53 under seer and seer+ alike");
}
