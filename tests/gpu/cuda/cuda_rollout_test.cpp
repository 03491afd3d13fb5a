// A whole rollout through all actors on emulated GPUs: two instances whose KV moves between them, or one that has room for all, or one
// that fails in the middle: the same bits.
#include <doctest/doctest.h>

#include <atomic>
#include <bit>
#include <map>
#include <utility>
#include <vector>

#include "actors/fleet.h"
#include "cli/rollout_run.h"
#include "gpu/cuda/cuda_bench.h"
#include "protocols/workers.h"
#include "storage/local_transport.h"

namespace seer {
namespace {

using Bits = std::pair<std::vector<int32_t>, std::vector<uint32_t>>;  // tokens, log-probabilities
using Answers = std::map<std::pair<uint32_t, uint32_t>, Bits>;        // by group and sample

constexpr uint32_t kGroups = 3, kSamples = 3;
constexpr int64_t kWaitUs = 60'000'000;

std::vector<GroupSpec> groups() {
  std::vector<GroupSpec> all;
  for (uint32_t g = 0; g < kGroups; ++g) {
    GroupSpec group;
    group.id.rollout = RolloutId{1};
    group.id.index = g;
    for (uint32_t i = 0; i < 20 + 9 * g; ++i) group.prompt_ids.push_back(static_cast<int32_t>(3 + (g * 7 + i) % 40));
    group.samples = kSamples;
    group.sampling.max_tokens = 40;
    if (g == 1) group.sampling.repetition_penalty = 1.2f;
    if (g == 2) group.sampling.top_p = 0.9f, group.sampling.logprob_mode = LogprobMode::kKept;
    for (uint32_t s = 0; s < kSamples; ++s) group.seeds.push_back(100 * g + s);
    all.push_back(std::move(group));
  }
  return all;
}

struct Outcome {
  Answers answers;
  int64_t migrations = 0;
  int64_t engines = 0;  // that were made
};

/// `fail_launch`: of the first engine that is made, on its last GPU.
Outcome run_rollout(const std::shared_ptr<const Model>& model, uint32_t nodes, int32_t device_blocks, int64_t chunk_tokens,
                    int64_t fail_launch = -1, int ranks = 1) {
  Outcome result;
  std::atomic<int64_t> engines = 0;
  {
    SeerConfig system_config{2};
    Workers<std::function<void()>> aside({}, [](std::function<void()>& f) { f(); });
    rt::system system{system_config};
    rt::Inbox<RolloutEvents> events{system};
    const CudaEngineConfig config{.device_blocks = device_blocks, .slots_max = 16, .rows_max = 128, .row_splits_max = 256};
    NodeMakers makers;
    makers.make_engine = [&, config](InstanceId id) -> Result<std::shared_ptr<Engine>> {
      const int64_t made = engines++;
      std::vector<std::unique_ptr<cuda::Device>> devices = simt_devices(ranks - 1, {.seed = id.value + 100});
      devices.push_back(simt::make_simt_device({.seed = id.value + 1, .fail_launch = made == 0 ? fail_launch : -1}));
      SEER_ASSIGN_OR_RETURN(auto engine, make_cuda_engine(model, std::move(devices), config));
      return std::shared_ptr<Engine>(std::move(engine));
    };
    makers.make_arena = [bytes = cuda_kv_block_bytes(model->config, config)](NodeId) {
      return HostArena::create({.dram_bytes = 64 * bytes, .block_bytes = bytes});
    };
    makers.aside = [&](std::function<void()> f) { aside.put(std::move(f)); };
    makers.transport = std::make_shared<LocalTransport>();
    Fleet fleet{system};
    const FleetConfig fleet_config{
        .nodes = nodes, .instances = nodes, .instance = {.id = {}, .rows_max = 8, .step_depth = 2}, .node = {}};
    const Status started = fleet.start_nodes(fleet_config, std::make_shared<const NodeMakers>(std::move(makers)));
    REQUIRE_MESSAGE(started.ok(), started.error().detail);
    fleet.start_rollout({.id = RolloutId{1}, .scheduler = {.policy = "divided", .chunk_tokens = chunk_tokens}, .version = WeightVersion{1},
                         .instances_expected = nodes},
                        {groups()}, events.handle());
    bool over = false;
    const RolloutListener listener{.response =
                                       [&](const Response& r) {
                                         Bits bits{r.output.ids, {}};
                                         for (const float p : r.output.logprobs) bits.second.push_back(std::bit_cast<uint32_t>(p));
                                         const bool gives_kept = r.request.group.index == 2;
                                         CHECK(r.output.kept_ids.tokens() == (gives_kept ? r.output.ids.size() : 0));
                                         bits.second.insert(bits.second.end(), r.output.kept_ids.ids.begin(), r.output.kept_ids.ids.end());
                                         result.answers[{r.request.group.index, r.request.sample}] = bits;
                                         result.migrations += r.migrations;
                                       },
                                   .progress = {},
                                   .summary =
                                       [&](const RolloutSummary& s) {
                                         CHECK_MESSAGE(s.complete, s.error);
                                         CHECK(s.failed == 0);
                                         over = true;
                                       }};
    while (!over) receive_event(events, kWaitUs, listener);
  }
  result.engines = engines;
  return result;
}

/// Two instances with little room give the bits of `whole`, also where KV moved. Whether it moves depends on how fast each instance
/// is: where none moved, it runs again.
void check_moved(const std::shared_ptr<const Model>& model, int ranks, const Outcome& whole) {
  int64_t migrations = 0;
  for (int tries = 0; tries < 10 && migrations == 0; ++tries) {
    const Outcome moved = run_rollout(model, 2, 12, 8, -1, ranks);
    CHECK(moved.answers == whole.answers);
    migrations = moved.migrations;
  }
  CHECK(migrations > 0);
}

}  // namespace

TEST_CASE("cuda rollout: two instances with moving KV give the bits of one instance with room for all") {
  TestFolder folder;
  write_tiny_model(folder.path(), tiny_config("qwen3"), "BF16", 1);
  const auto model = *load_model(folder.path());
  const Outcome one = run_rollout(model, 1, 128, 1000);
  CHECK(one.answers.size() == kGroups * kSamples);
  CHECK(one.migrations == 0);
  check_moved(model, 1, one);
}

TEST_CASE("cuda rollout: an instance whose device fails is lost, and the rollout ends with the same bits") {
  TestFolder folder;
  write_tiny_model(folder.path(), tiny_config("qwen3"), "BF16", 1);
  const auto model = *load_model(folder.path());
  const Outcome whole = run_rollout(model, 1, 128, 1000), failed = run_rollout(model, 2, 64, 8, 200);
  CHECK(failed.engines > 2);  // it was made again
  CHECK(failed.answers == whole.answers);
}

TEST_CASE("cuda rollout: instances on two GPUs each move KV and survive the loss of one, with the same bits") {
  TestFolder folder;
  write_tiny_model(folder.path(), tiny_config("qwen2"), "BF16", 1);
  const auto model = *load_model(folder.path());
  const Outcome whole = run_rollout(model, 1, 128, 1000, -1, 2), failed = run_rollout(model, 2, 64, 8, 200, 2);
  check_moved(model, 2, whole);
  CHECK(failed.engines > 2);
  CHECK(failed.answers == whole.answers);
}

}  // namespace seer
