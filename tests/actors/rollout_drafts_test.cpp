#include "actors/rollout_drafts.h"

#include <doctest/doctest.h>

#include <map>
#include <numeric>
#include <set>

#include "actors/sim/sim_world.h"

using namespace seer;

namespace {

/// What draft servers got.
struct Seen {
  std::set<GroupId> groups;
  std::vector<GroupId> dropped, pasts;
  std::map<GroupId, std::map<uint32_t, std::vector<int32_t>>> tokens;  // by sample
  int updates = 0;
};

struct FakeServer {
  using handle = DraftServerHandle;
  static constexpr const char* kActorName = "fake_draft_server";
  FakeServer(rt::self_ptr<FakeServer>, Seen* seen_in) : seen(seen_in) {}
  handle::behavior_type make_behavior() {
    return {[this](const RegisterGroups& all) { seen->groups.insert(all.groups.begin(), all.groups.end()); },
            [this](const RegisterPast& past) { seen->pasts.push_back(past.past.group); },
            [this](const DropGroup& drop) { seen->dropped.push_back(drop.group); },
            [this](const UpdateCst& update) {
              ++seen->updates;
              for (const CstTokens& part : update.parts) {
                std::vector<int32_t>& known = seen->tokens[part.group][part.sample];
                CHECK(part.position == std::ssize(known));
                known.insert(known.end(), part.tokens.begin(), part.tokens.end());
              }
            },
            [](const FetchCst&) {}, [](const Tick&) {}, [](const GetReport&) { return DraftServerReport{}; }};
  }
  Seen* const seen;
};

constexpr uint32_t kGroups = 40, kSamples = 2;
constexpr int64_t kPrompt = 3, kOutput = 50;

struct Bench {
  explicit Bench(RolloutDraftsConfig config = {})
      : drafts(config, {{GroupId{0}, {{1, 2}}}, {GroupId{0}, {{3}}}, {GroupId{7}, {{4}}}}, [this](GroupId) { return logs(); }) {
    std::vector<int32_t> tokens(kPrompt + kOutput);
    std::iota(tokens.begin(), tokens.end(), 0);
    log = TokenLog(tokens, kPrompt);
    for (uint32_t g = 0; g < kGroups; ++g) groups.push_back(GroupId{g});
  }
  std::vector<const TokenLog*> logs() const { return std::vector<const TokenLog*>(kSamples, &log); }
  void come(uint32_t node) {
    CHECK(drafts.server_up({NodeId{node}, world.spawn<FakeServer>(&seen[node])}));
    run();
  }
  void run() { world.run_until(world.now_us() + 1000); }
  /// Which servers have the group with all of its tokens.
  std::vector<uint32_t> holders(GroupId group) {
    const std::vector<int32_t> right(log.output());
    std::vector<uint32_t> found;
    for (auto& [node, s] : seen) {
      auto& had = s.tokens[group];
      if (s.groups.contains(group) && had.size() == kSamples && had[0] == right && had[1] == right) found.push_back(node);
    }
    return found;
  }

  SimWorld world;
  TokenLog log;
  std::vector<GroupId> groups;
  std::map<uint32_t, Seen> seen;
  RolloutDrafts drafts;
};

}  // namespace

TEST_CASE("rollout drafts: each group is with one server, which has its tokens and its past") {
  Bench b;
  b.come(1);
  b.drafts.add(b.groups);
  b.come(2);
  for (const GroupId group : b.groups) {
    const std::vector<uint32_t> holders = b.holders(group);
    const bool moved = b.seen[2].groups.contains(group);
    CHECK(holders == (moved ? std::vector<uint32_t>{1, 2} : std::vector<uint32_t>{1}));
    CHECK((std::ranges::count(b.seen[1].dropped, group) == 1) == moved);
  }
  CHECK(!b.seen[2].groups.empty());
  CHECK(b.seen[2].groups.size() < kGroups);
  CHECK(b.seen[1].pasts == std::vector<GroupId>{GroupId{0}, GroupId{0}, GroupId{7}});
  const std::set<GroupId> of_second = b.seen[2].groups;
  b.drafts.drop(b.groups[0]);
  b.seen[1] = {};
  b.drafts.server_lost(NodeId{2});
  b.run();
  for (const GroupId group : of_second) CHECK((b.holders(group) == std::vector<uint32_t>{1, 2}) == (group != GroupId{0}));
  CHECK(b.seen[1].groups.size() == of_second.size() - of_second.contains(GroupId{0}));
}

TEST_CASE("rollout drafts: a server that comes gets a bounded number of tokens at a time") {
  constexpr int64_t kTick = 3 * kSamples * kOutput;  // of three groups
  Bench b({.message_tokens_max = 20, .tick_tokens_max = kTick});
  b.drafts.add(b.groups);
  b.come(1);
  CHECK(b.seen[1].groups.size() == kGroups);  // before any instance sends tokens of them
  for (int64_t ticks = 0, before = 0; ticks < 13; ++ticks) {
    int64_t whole = 0;
    for (const GroupId group : b.groups) whole += static_cast<int64_t>(b.holders(group).size());
    CHECK(whole - before <= 3);
    CHECK(whole - before >= 2);  // a past counts too
    before = whole;
    b.drafts.tick(0);
    b.run();
  }
  b.drafts.drop(b.groups.back());  // which was still owed, or had just been given
  for (int i = 0; i < 3; ++i) b.drafts.tick(0);
  b.run();
  for (const GroupId group : b.groups)
    if (group != b.groups.back()) CHECK(b.holders(group) == std::vector<uint32_t>{1});
  CHECK(b.seen[1].updates >= static_cast<int>((kGroups - 1) * kSamples * 3));  // of 50 tokens, in parts of 20
}
