#include "cli/policy_auto.h"

#include <doctest/doctest.h>

#include "cli/scratch.h"
#include "cli/sim/workload.h"
#include "gpu/model/weight_store.h"
#include "gpu/sim/hardware_model.h"
#include "gpu/step_profile.h"

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
    CHECK(choice.policy == kSeerPlusPolicy);
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
  const InstanceWork work = instance_work(groups, options);
  CHECK(work.rows_max == 7);
  CHECK(work.requests == 12);
  CHECK(work.prompt_tokens == 20);
  CHECK(work.limit_tokens == 900);
}

TEST_CASE("policy auto: the steps of a profile decide, or measured ones") {
  const auto model = load_model(SEER_SOURCE_DIR "/deploy/models/scratchpad-1m8");
  REQUIRE_MESSAGE(model.ok(), model.error().detail);
  const ScratchFolder folder;
  const auto profile_with = [&](double step_us, double row_us) {
    StepProfile profile;
    profile.threads = 1;
    profile.block_tokens = 16;
    for (size_t i = 0; i < kStepFeatures.size(); ++i) {
      const std::string name = kStepFeatures[i].name;
      profile.cost.us[i] = name == "step" ? step_us : name == "rows" ? row_us : 0;
    }
    profile.points.push_back({"decode", decode_shape(1, 1), 1, false});
    return folder.write("profile.json", step_profile_json(profile));
  };
  GroupSpec group;
  group.samples = 100;
  group.prompt_ids.resize(50);
  group.sampling.max_tokens = 1000;
  RolloutOptions options;
  options.instances = 1;
  const CpuEngineConfig engine{.threads = 1, .kv_bytes = int64_t{8} << 20};
  const auto choose = [&] { return choose_policy(cpu_engine_source(*model, engine), instance_work({group}, options), options, options.scheduler); };

  options.draft_profile = profile_with(10'000, 1);
  auto choice = choose();
  REQUIRE_MESSAGE(choice.ok(), choice.error().detail);
  CHECK(choice->policy == kSeerPlusPolicy);
  const TypicalBatches batches = choice->batches;
  CHECK(batches.full_sequences > batches.held_sequences);

  options.draft_profile = profile_with(0, 1'000);  // the gap between steps alone is no reason
  choice = choose();
  REQUIRE(choice.ok());
  CHECK(choice->policy == kSeerPolicy);

  options.draft_profile = folder.path("missing.json");
  choice = choose();
  REQUIRE(!choice.ok());
  CHECK(choice.error().detail.find("missing.json") != std::string::npos);

  options.draft_profile.clear();  // which one is taken depends on the machine
  choice = choose();
  REQUIRE(choice.ok());
  CHECK(choice->batches.full_sequences == batches.full_sequences);
  CHECK(choice->saving < 1);
}

TEST_CASE("policy auto: steps that are measured before any work is known decide as those of the work do") {
  const auto model = load_model(SEER_SOURCE_DIR "/deploy/models/scratchpad-1m8");
  REQUIRE_MESSAGE(model.ok(), model.error().detail);
  ServeOptions options;
  options.instances = 1;
  options.max_batch = 64;
  const EngineSource source = cpu_engine_source(*model, {.threads = 1, .kv_bytes = int64_t{8} << 20});
  const auto steps = measure_decode_steps(source, options);
  REQUIRE_MESSAGE(steps.ok(), steps.error().detail);
  const double small = (*steps)(decode_shape(2, 100)), large = (*steps)(decode_shape(32, 100));
  CHECK(small > step_gap_us(2));
  CHECK(large > small);
  // Of the smallest batch, which is measured whatever other programs do. A large one may be extrapolated if they take most of the time.
  CHECK((*steps)(decode_shape(1, 200)) >= (*steps)(decode_shape(1, 100)));

  InstanceWork work{.rows_max = 64, .requests = 64, .prompt_tokens = 50, .limit_tokens = 1000};
  const PolicyChoice choice = choose_policy(*steps, source, work, options, options.scheduler);
  work.kv_tokens = (int64_t{8} << 20) / source.block_bytes * source.block_tokens;
  CHECK(choice.batches.full_sequences == typical_batches(work, options.scheduler).full_sequences);
  CHECK(choice.saving < 1);

  options.draft_profile = "missing.json";
  CHECK(!measure_decode_steps(source, options).ok());
}

TEST_CASE("policy auto: the choice in words fits a line") {
  PolicyChoice choice{.batches = {.context_tokens = 815, .held_sequences = 26, .full_sequences = 53}, .saving = -0.219};
  CHECK(choice_text({.policy = kAutoPolicy}, choice) == "a batch of 53 costs 1.22 of one of 26 per token; seer+ below 0.95");
  choice.rows_max = 8;
  choice.cap_saving = 0.38;
  CHECK(choice_text({.policy = kAutoPolicy}, choice) == "at most 8 running: a token costs 0.62 of one in a batch of 26");
  choice.rows_max = 0;
  choice.batches.held_sequences = 53;
  CHECK(choice_text({.policy = kAutoPolicy}, choice) == "a batch has 53 under seer and seer+ alike");
}

TEST_CASE("policy auto: seer+ by name promises as much as seer where a fuller batch saves too little, unless its reserve is given") {
  PolicyChoice choice{.batches = {.context_tokens = 815, .held_sequences = 26, .full_sequences = 53}, .saving = -0.219, .rows_max = 8};
  ChunkSchedulerConfig named{.policy = kSeerPlusPolicy};
  CHECK(is_measured(named));
  CHECK(reserve_of(named) == 0.1);
  const ChunkSchedulerConfig slow = chosen(named, choice);
  CHECK(slow.policy == kSeerPlusPolicy);
  CHECK(slow.running_max == 0);
  CHECK(reserve_of(slow) == 1);
  CHECK(choice_text(named, choice) == "reserve 1: a batch of 53 costs 1.22 of one of 26 per token; 0.1 below 0.95");

  choice.policy = kSeerPlusPolicy;
  choice.saving = 0.21;
  CHECK(reserve_of(chosen(named, choice)) == 0.1);
  CHECK(choice_text(named, choice) == "reserve 0.1: a batch of 53 costs 0.79 of one of 26 per token; 0.1 below 0.95");

  choice = {.batches = {.context_tokens = 815, .held_sequences = 53, .full_sequences = 53}};  // KV is not short
  CHECK(reserve_of(chosen(named, choice)) == 0.1);
  CHECK(choice_text(named, choice) == "reserve 0.1: a batch has 53 with any");

  named.reserve_share = 0.5;
  CHECK(!is_measured(named));
  CHECK(is_measured({.policy = kAutoPolicy, .reserve_share = 0.5}));
  CHECK(!is_measured({.policy = kSeerPolicy}));
}
