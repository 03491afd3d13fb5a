// New weights for a running fleet, on real engines and threads: whatever updates came before or come meanwhile, each response has
// the bits that a fresh process gives with the weights of its rollout.
#include <doctest/doctest.h>

#include <bit>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/fleet.h"
#include "cli/engine_source.h"
#include "cli/rollout_run.h"
#include "cli/scratch.h"
#include "gpu/cpu/cpu_engine.h"
#include "gpu/model/model_loader.h"
#include "gpu/tiny_model.h"
#include "integration/child_process.h"
#include "protocols/workers.h"
#include "storage/local_transport.h"

using namespace seer;

namespace {

using Bits = std::pair<std::vector<int32_t>, std::vector<uint32_t>>;  // tokens, log-probabilities
using Answers = std::map<std::pair<uint32_t, uint32_t>, Bits>;        // by group and sample

constexpr uint32_t kNodes = 2;
constexpr uint32_t kGroups = 3, kSamples = 4;
constexpr int64_t kWaitUs = 60'000'000;

/// The same prompts for the fleet and for `seer rollout`.
RolloutOptions options_of(const std::string& model, const ScratchFolder& scratch) {
  std::string lines;
  for (uint32_t g = 0; g < kGroups; ++g) {
    nlohmann::json ids;
    for (uint32_t i = 0; i < 20; ++i) ids.push_back(3 + (g * 7 + i) % 40);
    lines += nlohmann::json{{"prompt_ids", ids}}.dump() + "\n";
  }
  RolloutOptions o;
  o.model = model;
  o.prompts = scratch.write("prompts.jsonl", lines);
  o.out = scratch.path("out.jsonl");
  o.group_size = kSamples;
  o.sampling.max_tokens = 24;
  REQUIRE(choose_instances(o).ok());
  return o;
}

/// A fleet of two machines with a KV pool each, too little device memory for all, and chunks that move between them.
class RunningFleet {
 public:
  explicit RunningFleet(const std::string& folder) : aside_({}, [](std::function<void()>& f) { f(); }) {
    const auto work = load_work(options_of(folder, ScratchFolder()));
    REQUIRE_MESSAGE(work.ok(), work.error().detail);
    groups_ = work->groups;
    const std::shared_ptr<const Model> model = work->loaded.model();
    CpuEngineConfig engine{.threads = 1, .device_blocks = 10, .block_tokens = 16, .loader = std::make_shared<ModelLoader>()};
    NodeMakers makers;
    makers.make_engine = [model, engine](InstanceId) -> Result<std::shared_ptr<Engine>> {
      SEER_ASSIGN_OR_RETURN(auto made, make_cpu_engine(model, engine));
      return std::shared_ptr<Engine>(std::move(made));
    };
    makers.make_arena = [bytes = kv_block_bytes(model->config, engine)](NodeId) {
      return HostArena::create({.dram_bytes = 64 * bytes, .block_bytes = bytes});
    };
    makers.aside = [this](std::function<void()> f) { aside_.put(std::move(f)); };
    makers.transport = std::make_shared<LocalTransport>();
    const FleetConfig config{.nodes = kNodes, .instances = kNodes, .instance = {.id = {}, .rows_max = 8}, .node = {}};
    const Status started = fleet.start_nodes(config, std::make_shared<const NodeMakers>(std::move(makers)));
    REQUIRE_MESSAGE(started.ok(), started.error().detail);
  }

  void start(RolloutId id, WeightVersion version) {
    for (GroupSpec& group : groups_) group.id.rollout = id;
    fleet.start_rollout({.id = id, .scheduler = {.policy = "divided", .chunk_tokens = 8}, .version = version,
                         .instances_expected = kNodes},
                        {groups_}, events_.handle());
  }
  /// Receives until this rollout is over. One that was started after it may be over first: it waits for weights, not for reports.
  void finish(RolloutId id) {
    while (!over_.contains(id)) receive();
  }
  /// Receives until a response of this rollout is there.
  void wait_for_response(RolloutId id) {
    while (answers[id].empty()) receive();
  }
  void receive() {
    const RolloutListener listener{.response =
                                       [&](const Response& r) {
                                         Bits bits{r.output.ids, {}};
                                         for (const float p : r.output.logprobs) bits.second.push_back(std::bit_cast<uint32_t>(p));
                                         const bool once = answers[r.request.group.rollout]
                                                               .emplace(std::pair{r.request.group.index, r.request.sample}, bits)
                                                               .second;
                                         CHECK(once);
                                         versions[r.request.group.rollout].push_back(r.version);
                                         migrations += r.migrations;
                                       },
                                   .progress = {},
                                   .summary =
                                       [&](const RolloutSummary& s) {
                                         CHECK_MESSAGE(s.complete, s.error);
                                         CHECK(s.failed == 0);
                                         over_.insert(s.rollout);
                                       }};
    receive_event(events_, kWaitUs, listener);
  }
  void ask_update(WeightVersion version, const std::filesystem::path& folder) {
    fleet.update_weights({version, folder.string()}, updates_.handle());
  }
  /// What the machines answered: one error, if any.
  std::string updated() {
    std::string error;
    for (uint32_t n = 0; n < kNodes; ++n)
      updates_.receive(kWaitUs, [&](const WeightsUpdated& u) {
        if (!u.error.empty()) error = u.error;
      });
    return error;
  }

 private:
  std::vector<GroupSpec> groups_;
  SeerConfig config_{2};
  Workers<std::function<void()>> aside_;
  rt::system system_{config_};
  rt::Inbox<RolloutEvents> events_{system_};
  rt::Inbox<WeightsSink> updates_{system_};
  std::set<RolloutId> over_;

 public:
  Fleet fleet{system_};
  std::map<RolloutId, Answers> answers;
  std::map<RolloutId, std::vector<WeightVersion>> versions;
  int64_t migrations = 0;  // of all requests
};

/// Of a process of its own.
Answers fresh_answers(const std::string& model) {
  const ScratchFolder scratch;
  const RolloutOptions o = options_of(model, scratch);
  ChildProcess seer({SEER_PROGRAM, "rollout", "--model", o.model, "--prompts", o.prompts, "--out", o.out, "--group-size",
                     cat(o.group_size), "--max-tokens", cat(o.sampling.max_tokens)});
  REQUIRE(seer.wait(static_cast<int>(kWaitUs / 1000)));
  REQUIRE_MESSAGE(seer.exit_code() == 0, seer.err());
  Answers answers;
  std::ifstream lines(o.out);
  for (std::string text; std::getline(lines, text);) {
    const auto line = nlohmann::json::parse(text);
    Bits bits{line["output_ids"], {}};
    for (const auto& p : line["logprobs"]) bits.second.push_back(std::bit_cast<uint32_t>(p.get<float>()));
    answers[{line["group"], line["sample"]}] = std::move(bits);
  }
  return answers;
}

struct TwoModels {
  TwoModels() {
    for (uint64_t seed : {1, 2}) write_tiny_model(folders[seed - 1].path(), tiny_config("qwen3"), "BF16", seed);
    for (int i : {0, 1}) right[i] = fresh_answers(folders[i].path().string());
    REQUIRE(right[0].size() == kGroups * kSamples);
    REQUIRE(right[0] != right[1]);
  }
  TestFolder folders[2];
  Answers right[2];
};

}  // namespace

TEST_CASE("weight updates: 100 of them, between and during rollouts, and every response is of one version and exact") {
  const TwoModels models;
  RunningFleet running(models.folders[0].path().string());
  running.start(RolloutId{1}, WeightVersion{1});
  for (uint32_t update = 1; update <= 100; ++update) {
    CAPTURE(update);
    const WeightVersion version{update + 1};
    const bool during = update % 2 == 1;  // else the rollout ends first
    during ? running.wait_for_response(RolloutId{update}) : running.finish(RolloutId{update});
    running.ask_update(version, models.folders[update % 2].path());
    const RolloutId next{update + 1};
    if (during) running.start(next, version);  // it waits until the one before it is over
    running.finish(RolloutId{update});
    REQUIRE(running.updated() == "");
    if (!during) running.start(next, version);
    running.fleet.end_rollout(RolloutId{update});
    CHECK(running.answers.at(RolloutId{update}) == models.right[(update + 1) % 2]);
    CHECK(running.versions.at(RolloutId{update}) == std::vector(kGroups * kSamples, WeightVersion{update}));
  }
  CHECK(running.migrations > 0);
}

TEST_CASE("weight updates: one that does not fit names what is wrong, and the rollouts go on with the old weights") {
  const TwoModels models;
  RunningFleet running(models.folders[0].path().string());
  TestFolder wider;
  auto config = tiny_config("qwen3");
  config["intermediate_size"] = config["intermediate_size"].get<int>() * 2;
  write_tiny_model(wider.path(), config, "BF16", 3);
  running.start(RolloutId{1}, WeightVersion{1});
  running.wait_for_response(RolloutId{1});
  running.ask_update(WeightVersion{2}, wider.path());
  const std::string shape = running.updated();
  CHECK_MESSAGE(shape.find("mlp.gate_proj.weight should have shape") != std::string::npos, shape);
  running.ask_update(WeightVersion{1}, models.folders[1].path());
  const std::string old = running.updated();
  CHECK_MESSAGE(old.find("runs with weight version 1, and 1 is not above it") != std::string::npos, old);
  running.finish(RolloutId{1});
  CHECK(running.answers.at(RolloutId{1}) == models.right[0]);
  // The version is free again.
  running.ask_update(WeightVersion{2}, models.folders[1].path());
  CHECK(running.updated() == "");
  running.start(RolloutId{2}, WeightVersion{2});
  running.finish(RolloutId{2});
  CHECK(running.answers.at(RolloutId{2}) == models.right[1]);
}
