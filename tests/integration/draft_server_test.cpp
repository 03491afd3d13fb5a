// Draft servers of a real rollout, on real engines and threads, are killed again and again: no bit of any response changes.
#include <doctest/doctest.h>

#include <bit>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "actors/fleet.h"
#include "actors/policy/draft/group_drafter.h"
#include "cli/engine_source.h"
#include "cli/rollout_run.h"
#include "cli/scratch.h"
#include "gpu/cpu/cpu_engine.h"
#include "integration/optional_parts.h"
#include "protocols/workers.h"

using namespace seer;

namespace {

using Bits = std::pair<std::vector<int32_t>, std::vector<uint32_t>>;  // tokens, log-probabilities
using Answers = std::map<RequestId, Bits>;

Bits bits_of(const Response& r) {
  Bits bits{r.output.ids, {}};
  for (const float p : r.output.logprobs) bits.second.push_back(std::bit_cast<uint32_t>(p));
  return bits;
}

constexpr uint32_t kNodes = 2;

FleetConfig fleet_config() {
  return {.nodes = kNodes,
          .instances = kNodes,
          .instance = {.id = {}, .planner = {.prefill_tokens_max = 64}, .rows_max = 4},
          .node = {.kv_node = {}, .draft_server = DraftServerConfig{}, .restarts_max = 1'000'000}};
}

using SlowWork = Workers<std::function<void()>>;

NodeMakers make_makers(const RolloutWork& work, SlowWork& aside) {
  NodeMakers makers;
  makers.tokenizer = work.tokenizer;
  makers.make_engine = [&work](InstanceId) -> Result<std::shared_ptr<Engine>> {
    SEER_ASSIGN_OR_RETURN(auto engine, make_cpu_engine(work.loaded.model(), {.threads = 1, .kv_bytes = 16 << 20}));
    return std::shared_ptr<Engine>(std::move(engine));
  };
  makers.make_drafting = [](InstanceId) -> Result<Drafting> {
    // As if rows cost next to nothing, so that the budget drafts as much as allowed.
    return Drafting{std::make_shared<GroupDrafter>(GroupDrafterConfig{}), {.rows_max = {6, 8}, .draft_ns = 0},
                    [](const StepShape& shape) { return 1e6 + static_cast<double>(shape.rows); }, {.sync_us = 1000}, {}};
  };
  makers.aside = [&aside](std::function<void()> f) { aside.put(std::move(f)); };
  return makers;
}

struct Killed {
  Answers answers;
  RolloutSummary summary;
  int kills = 0, ups = 0;  // of servers, also the first ones
};

/// Runs the work on two machines, and kills one of the draft servers after every few responses.
Killed run_and_kill(const RolloutWork& work, int responses_between) {
  SlowWork aside({}, [](std::function<void()>& f) { f(); });
  SeerConfig config;
  rt::system system{config};
  Killed run;
  rt::Inbox<RolloutEvents> events(system);
  rt::Inbox<InstanceSink> sink(system);  // between nodes and rollout, to learn of the servers
  Fleet fleet(system, {.to_directory = {}, .to_rollout = [&](const InstanceSink&) { return sink.handle(); }});
  const Status started = fleet.start_nodes(fleet_config(), std::make_shared<const NodeMakers>(make_makers(work, aside)));
  REQUIRE_MESSAGE(started.ok(), started.error().detail);
  const RolloutHandle rollout =
      fleet.start_rollout({.scheduler = {.policy = "seer", .chunk_tokens = 40}, .instances_expected = kNodes},
                          {work.groups}, events.handle());
  std::map<NodeId, DraftServerHandle> servers;
  bool over = false, twice = false;
  const RolloutListener listener{.response =
                                     [&](const Response& r) {
                                       twice |= !run.answers.emplace(r.request, bits_of(r)).second;
                                       if (std::ssize(run.answers) % responses_between == 0)
                                         rt::kill(servers[NodeId{static_cast<uint32_t>(run.kills++) % kNodes}]);
                                     },
                                 .progress = {},
                                 .summary =
                                     [&](RolloutSummary& s) {
                                       run.summary = std::move(s);
                                       over = true;
                                     }};
  while (!over) {
    sink.receive(
        0, [&](const InstanceUp& up) { rt::post(rollout, up); },
        [&](const DraftServerUp& up) {
          servers[up.node] = up.handle;
          ++run.ups;
          rt::post(rollout, up);
        },
        [&](const PartLost& lost) { rt::post(rollout, lost); });
    receive_event(events, 1000, listener);
  }
  CHECK(!twice);
  return run;
}

}  // namespace

RolloutOptions shipped_options(int64_t prompts) {
  RolloutOptions options;
  options.model = SEER_SOURCE_DIR "/deploy/models/scratchpad-1m8";
  options.prompts = SEER_SOURCE_DIR "/deploy/examples/scratchpad/prompts.jsonl";
  options.limit = prompts;
  options.group_size = 6;
  options.sampling.max_tokens = 200;
  REQUIRE(choose_instances(options).ok());
  return options;
}

struct Ran {
  Answers answers;
  RolloutReport report;

  int64_t fetched_draft_tokens() const {
    int64_t tokens = 0;
    for (const DraftServerReport& server : report.rollout.draft_servers) tokens += server.fetched_tokens;
    return tokens;
  }
};
Ran run(const RolloutOptions& options, const RolloutWork& work) {
  Ran ran;
  const RolloutHooks hooks{.response =
                               [&](const Response& r) {
                                 ran.answers.emplace(r.request, bits_of(r));
                                 return Status{};
                               },
                           .progress = {},
                           .stop = nullptr};
  const auto outcome = run_rollout(options, work, "seer", hooks);
  REQUIRE_MESSAGE(outcome.ok(), outcome.error().detail);
  ran.report = outcome->report;
  return ran;
}

TEST_CASE("draft servers: killed again and again in a real rollout, they change no bit of any response") {
  const RolloutOptions options = shipped_options(12);
  const auto work = load_work(options);
  REQUIRE_MESSAGE(work.ok(), work.error().detail);
  const Answers right = run(options, *work).answers;
  REQUIRE(right.size() == 72);

  const Killed killed = run_and_kill(*work, 5);
  CHECK(killed.summary.complete);
  CHECK(killed.ups > kNodes);  // servers came back, and were killed again
  CHECK(killed.answers == right);
  int64_t accepted = 0;
  for (const InstanceReport& i : killed.summary.instances) accepted += i.drafting.all().accepted;
  CHECK(accepted > 100);  // drafts were made and accepted all the while
}

TEST_CASE("draft history: the next rollout drafts from the responses of the last, and no bit of it changes") {
  if (!has_rocksdb()) return;
  ScratchFolder folder;
  RolloutOptions options = shipped_options(4);
  const auto work = load_work(options);
  REQUIRE_MESSAGE(work.ok(), work.error().detail);
  const Answers right = run(options, *work).answers;

  options.drafting = DraftSource::kGrouped;
  options.draft_history = folder.path("history");
  options.instances = 1;  // which lacks nothing that was written in the same rollout
  const Ran first = run(options, *work), second = run(options, *work);
  CHECK(first.answers == right);
  CHECK(second.answers == right);
  CHECK(first.report.past_groups == 0);
  CHECK(second.report.past_groups == 4);
  CHECK(first.report.unkept_groups + second.report.unkept_groups == 0);
  // The first step of a chunk is followed by a fetch, however long steps take. How much is drafted from it depends on
  // measured times: tests/actors/draft_server_actor_test.cpp checks that, on a virtual clock.
  CHECK(first.fetched_draft_tokens() == 0);
  CHECK(second.fetched_draft_tokens() > 0);

  folder.write("taken", "no folder");
  options.draft_history = folder.path("taken");
  const auto refused = run_rollout(options, *work, "seer", {});
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().detail.find(options.draft_history) != std::string::npos);
}
