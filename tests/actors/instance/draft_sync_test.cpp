#include "actors/instance/draft_sync.h"

#include <doctest/doctest.h>

#include <numeric>

#include "actors/draft_server_actor.h"
#include "actors/policy/draft/group_drafter.h"
#include "actors/recorder.h"

using namespace seer;

namespace {

constexpr GroupId kGroup{1};
constexpr DraftSyncConfig kConfig{.sync_us = 50'000, .silence_us = 1'000'000, .message_tokens_max = 16};

/// An instance's side, and the draft server of its only group.
struct Bench {
  Bench() : client(world), server(world.spawn<DraftServerActor>(DraftServerConfig{})) {
    text.resize(100);
    std::iota(text.begin(), text.end(), 7);
    rt::post(server, RegisterGroups{{kGroup}, 3'600'000'000});
    sync.set_servers({{{NodeId{0}, server}}});
    sync.chunk_came();
  }
  void learn(size_t tokens) { drafter->learn({{kGroup, 0}, TokenLog(std::span(text).first(tokens), 0)}); }
  void run_sync(const std::vector<GroupId>& groups) {
    sync.sync(groups, client.handle(), world.now_us());
    world.run_until(world.now_us());
  }
  int64_t server_tokens() { return rt::look<DraftServerActor>(server).logs.token_count(); }
  int64_t server_fetches() { return rt::look<DraftServerActor>(server).report.fetches; }

  SimWorld world;
  Recorder<DraftClient, CstFetched> client;
  DraftServerHandle server;
  std::shared_ptr<GroupDrafter> drafter = std::make_shared<GroupDrafter>(GroupDrafterConfig{});
  DraftSync sync{kConfig, drafter};
  std::vector<int32_t> text;
};

}  // namespace

TEST_CASE("draft sync: tokens too many for one update follow with the next, or at once if nothing runs any more") {
  Bench b;
  b.learn(100);
  b.run_sync({kGroup});
  CHECK(b.server_tokens() == 16);
  b.run_sync({kGroup});
  CHECK(b.server_tokens() == 32);
  b.run_sync({});
  CHECK(b.server_tokens() == 100);
}

TEST_CASE("draft sync: if nothing runs, nothing is fetched, and tokens that a server still lacks are sent when it asks") {
  Bench b;
  b.learn(100);
  b.run_sync({});
  CHECK(b.server_fetches() == 0);
  rt::post(b.server, RegisterGroups{{kGroup}, 3'600'000'000});  // starts empty, as after a restart
  b.world.run_until(b.world.now_us());
  REQUIRE(b.server_tokens() == 0);
  b.sync.fetched({.server = NodeId{0}, .parts = {}, .pasts = {}, .wanted = {{kGroup, {{0, 0}}}}, .has_more = true},
                 b.client.handle(), b.world.now_us());
  b.world.run_until(b.world.now_us());
  CHECK(b.server_tokens() == 100);
  CHECK(b.server_fetches() == 0);
}

TEST_CASE("draft sync: an open fetch delays the next one, but not that of the next rollout") {
  Bench b;
  b.learn(10);
  b.run_sync({kGroup});
  b.run_sync({kGroup});  // the answer has not been given to b.sync
  CHECK(b.server_fetches() == 1);
  b.drafter->forget(RolloutId{});
  b.sync.forget(RolloutId{});
  b.sync.chunk_came();
  b.learn(10);
  b.run_sync({kGroup});
  CHECK(b.server_fetches() == 2);
}
