#include <doctest/doctest.h>

#include <numeric>
#include <random>

#include "actors/policy/draft/group_drafter.h"
#include "actors/policy/draft/group_logs.h"

using namespace seer;

namespace {

RequestId request(uint32_t group, uint32_t sample) { return {GroupId{group}, sample}; }

std::vector<int32_t> text(uint64_t seed, size_t tokens) {
  std::mt19937_64 rng(seed);
  std::vector<int32_t> t;
  for (size_t i = 0; i < tokens; ++i) t.push_back(static_cast<int32_t>(rng() % 5000));
  return t;
}

/// Tokens of `output` that the drafter's proposals would have gained in a rollout, and the number of drafts.
struct Replay {
  int64_t accepted = 0, drafts = 0;
};
Replay replay(GroupDrafter& drafter, RequestId id, const std::vector<int32_t>& prompt, const std::vector<int32_t>& output) {
  Replay seen;
  Draft draft;
  TokenLog log(prompt);
  for (size_t at = 0; at < output.size();) {
    drafter.draft({id, log}, {.max_tokens = 8}, draft);
    const std::vector<int32_t>& tokens = draft.tokens;
    REQUIRE(tokens.size() <= 8);
    REQUIRE(draft.is_path());
    size_t stand = 0;
    while (stand < tokens.size() && at + stand < output.size() && tokens[stand] == output[at + stand]) ++stand;
    seen.accepted += static_cast<int64_t>(stand);
    seen.drafts += tokens.empty() ? 0 : 1;
    const size_t gained = std::min(stand + 1, output.size() - at);
    log.append(std::span(output).subspan(at, gained));
    at += gained;
  }
  return seen;
}

}  // namespace

TEST_CASE("group drafter: drafts what another request of the group has written, not what other groups have") {
  GroupDrafter drafter({});
  const auto prompt = text(1, 20), output = text(2, 400);
  CHECK(replay(drafter, request(0, 0), prompt, output).accepted < 20);
  CHECK(replay(drafter, request(1, 0), prompt, output).accepted < 20);  // another group
  CHECK(replay(drafter, request(0, 1), prompt, output).accepted > 250);
  CHECK(drafter.group_count() == 2);
}

TEST_CASE("group drafter: with own history only, a request drafts from itself and not from its group") {
  GroupDrafter drafter({.tree = {.own_history_only = true}});
  const auto prompt = text(1, 20);
  auto output = text(2, 300);
  replay(drafter, request(0, 0), prompt, output);
  CHECK(replay(drafter, request(0, 1), prompt, output).accepted < 20);
  const std::vector<int32_t> once = output;
  output.insert(output.end(), once.begin(), once.end());
  CHECK(replay(drafter, request(0, 2), prompt, output).accepted > 150);
}

TEST_CASE("group drafter: a request that comes with an output, as from another instance, is known at once") {
  GroupDrafter drafter({});
  const auto prompt = text(1, 20), output = text(2, 400);
  TokenLog log(prompt);
  log.append(output);
  Draft draft;
  drafter.draft({request(0, 0), log}, {}, draft);
  CHECK(replay(drafter, request(0, 1), prompt, output).accepted > 250);
  drafter.learn({request(1, 0), log});  // without a draft
  CHECK(replay(drafter, request(1, 1), prompt, output).accepted > 250);
}

TEST_CASE("group drafter: memory stays below its bound by dropping the groups asked for longest ago") {
  GroupDrafter unbounded({});
  const auto prompt = text(1, 20);
  for (uint32_t g = 0; g < 20; ++g) replay(unbounded, request(g, 0), prompt, text(g, 300));
  CHECK(unbounded.group_count() == 20);
  GroupDrafter drafter({.bytes_max = unbounded.bytes() / 4});
  for (uint32_t g = 0; g < 20; ++g) {
    drafter.running(std::vector{GroupId{g}});
    replay(drafter, request(g, 0), prompt, text(g, 300));
    CHECK(drafter.bytes() <= unbounded.bytes() / 4);
  }
  CHECK(drafter.group_count() >= 2);
  CHECK(drafter.group_count() < 10);
  CHECK(drafter.losses().dropped_trees >= 10);
  CHECK(replay(drafter, request(19, 1), prompt, text(19, 300)).accepted > 150);  // the newest is still there
  drafter.forget(RolloutId{});
  CHECK(drafter.group_count() == 0);
  CHECK(drafter.bytes() == 0);
}

TEST_CASE("group drafter: a group that is over leaves nothing, and the others stay") {
  GroupDrafter drafter({});
  const auto prompt = text(1, 20);
  replay(drafter, request(1, 0), prompt, text(1, 400));
  const size_t bytes = drafter.bytes();
  for (uint32_t g = 2; g < 50; ++g) {
    replay(drafter, request(g, 0), prompt, text(g, 400));
    drafter.forget(GroupId{g});
    drafter.forget(GroupId{g});  // told twice
    drafter.forget(GroupId{1000 + g});
    CHECK(drafter.group_count() == 1);
    CHECK(drafter.bytes() == bytes);
    CHECK_FALSE(drafter.cursor(GroupId{g}));
  }
  std::vector<CstTokens> parts;
  drafter.take_updates([](GroupId) { return true; }, 1 << 20, parts);
  for (const CstTokens& part : parts) CHECK(part.group == GroupId{1});
  CHECK(drafter.losses().dropped_trees == 0);
  CHECK(replay(drafter, request(1, 1), prompt, text(1, 400)).accepted > 250);
}

TEST_CASE("group drafter: drafts use earlier iterations of a group, and they are fetched again if there is room") {
  GroupDrafter drafter({.bytes_max = 8 << 20});
  const auto prompt = text(1, 20);
  const std::vector<std::vector<int32_t>> past = {text(2, 400), text(3, 400)};
  const CstFetched answer{.server = NodeId{0}, .parts = {}, .pasts = {{GroupId{0}, past}}, .wanted = {}};
  drafter.fetched(answer);
  CHECK(drafter.group_count() == 0);  // a group that does not run here
  replay(drafter, request(0, 0), prompt, text(4, 100));
  CHECK(drafter.cursor(GroupId{0})->lacks_past);
  drafter.fetched(answer);
  CHECK_FALSE(drafter.cursor(GroupId{0})->lacks_past);
  CHECK(replay(drafter, request(0, 1), prompt, past[1]).accepted > 250);
  for (uint32_t g = 1; drafter.cursor(GroupId{0}); ++g) {
    REQUIRE(g < 100);
    drafter.running(std::vector{GroupId{g}});
    replay(drafter, request(g, 0), prompt, text(10 + g, 2000));
  }
  drafter.learn({request(0, 2), TokenLog(prompt)});
  CHECK(drafter.cursor(GroupId{0})->lacks_past);
  drafter.fetched(answer);
  CHECK(drafter.bytes() <= 8 << 20);
  CHECK(replay(drafter, request(0, 2), prompt, past[1]).accepted > 250);
  CHECK(drafter.losses().refused_groups == 0);
}

namespace {

constexpr size_t kManyMembers = 4;
constexpr uint32_t kManyGroups = 12;

/// An instance that runs member 0 of each group, in sync with a server that has all tokens.
struct ManyGroups {
  explicit ManyGroups(size_t bytes_max) : drafter({.bytes_max = bytes_max}) {
    for (uint32_t g = 0; g < kManyGroups; ++g) ids.push_back(GroupId{g});
    server.register_groups(ids, 1'000'000, 0);
    for (uint32_t g = 0; g < kManyGroups; ++g)
      for (uint32_t m = 0; m < kManyMembers; ++m) server.append({ids[g], m, 0, text(100 * g + m, 3000)}, 0);
  }
  /// Returns how many tokens were fetched.
  int64_t sync(std::span<const GroupId> groups) {
    drafter.running(groups);
    CstFetched answer{.server = NodeId{0}, .parts = {}, .pasts = {}, .wanted = {}};
    int64_t tokens = 0;
    for (GroupId id : groups) {
      TokenLog log(text(1, 20));
      log.append(text(100 * id.index, 3000));
      drafter.learn({{id, 0}, log});
    }
    for (GroupId id : groups) tokens += server.fetch(*drafter.cursor(id), 8000 - tokens, 0, answer);
    drafter.fetched(answer);
    return tokens;
  }
  GroupDrafter drafter;
  GroupLogs server{{}};
  std::vector<GroupId> ids;
};

}  // namespace

TEST_CASE("group drafter: if groups do not fit into memory, no token is fetched twice while they run") {
  ManyGroups all(1 << 30);
  while (all.sync(all.ids) > 0) {}
  REQUIRE(all.drafter.losses().dropped_tokens == 0);
  const size_t bytes_max = all.drafter.bytes() / 2;
  ManyGroups many(bytes_max);
  int64_t fetched = 0;
  for (int i = 0; i < 100; ++i) {
    fetched += many.sync(many.ids);
    REQUIRE(many.drafter.bytes() <= bytes_max);
  }
  CHECK(fetched == kManyGroups * (kManyMembers - 1) * 3000);
  CHECK(many.sync(many.ids) == 0);
  CHECK(many.drafter.group_count() == kManyGroups);
  CHECK(many.drafter.losses().dropped_tokens > fetched / 4);
  const std::vector<int32_t> last = text(303, 3000);  // drafts come from what is left
  CHECK(replay(many.drafter, request(3, 9), text(1, 20), {last.end() - 800, last.end()}).accepted > 500);
}

TEST_CASE("group drafter: a group that comes back when memory is full gets only later text, and is counted") {
  ManyGroups all(1 << 30);
  while (all.sync(all.ids) > 0) {}
  ManyGroups many(all.drafter.bytes());
  const auto sync_all = [&](GroupId id) {
    int64_t fetched = 0;
    while (const int64_t more = many.sync(std::vector{id})) fetched += more;
    return fetched;
  };
  int64_t refetched = 0, refused = 0;
  for (int round = 0; round < 4; ++round)
    for (GroupId id : many.ids) {
      const int64_t refused_before = many.drafter.losses().refused_groups;
      const int64_t fetched = sync_all(id);
      const bool was_refused = many.drafter.losses().refused_groups > refused_before;
      if (round == 0) CHECK(fetched == (kManyMembers - 1) * 3000);
      if (was_refused) CHECK(fetched == 0);
      if (round > 0) refetched += fetched;
      refused += was_refused;
    }
  CAPTURE(refetched);
  CHECK(refused > 0);
  CHECK(many.drafter.bytes() <= all.drafter.bytes());
}
