#include <doctest/doctest.h>

#include <algorithm>

#include "actors/cluster_checks.h"
#include "actors/recorder.h"

using namespace seer;

namespace {

constexpr int64_t kMs = 1000;

struct Server {
  explicit Server(DraftServerConfig config = {.node = NodeId{4}}) : client(world), handle(world.spawn<DraftServerActor>(config)) {}
  template <class Message>
  void tell(Message message) {
    rt::post(handle, std::move(message));
    world.run_until(world.now_us());
  }
  CstFetched fetch(CstCursor cursor) {
    tell(FetchCst{{std::move(cursor)}, client.handle()});
    return client.all<CstFetched>().back();
  }
  DraftServerReport report() { return rt::look<DraftServerActor>(handle).make_report(); }

  SimWorld world;
  Recorder<DraftClient, CstFetched> client;
  DraftServerHandle handle;
};

SimClusterOptions alike_cluster() {
  SimClusterOptions o;
  o.instances = 4;
  o.nodes = 2;
  o.rows_max = 4;
  o.groups = 8;
  o.samples = 8;
  o.length_max = 400;
  o.device_blocks = 512;
  o.draft_tokens_max = 4;
  o.draft_from_group = o.draft_servers = true;
  o.alike_share = 0.97;
  return o;
}

DraftCounts drafted(const SimCluster& cluster) {
  DraftCounts sum;
  for (const InstanceReport& i : cluster.seen.summaries[0].instances) sum += i.drafting.all();
  return sum;
}

int64_t tokens_on_servers(SimCluster& cluster) {
  int64_t tokens = 0;
  for (uint32_t n = 0; n < cluster.options.nodes; ++n) tokens += cluster.draft_server_state(n).logs.token_count();
  return tokens;
}

/// Tokens of groups that are not finished, as the rollout knows them.
int64_t tokens_in_open_groups(SimCluster& cluster) {
  const RolloutActor& rollout = rt::look<RolloutActor>(cluster.fleet.rollout());
  int64_t tokens = 0;
  for (const auto& group : rollout.groups)
    for (const auto& request : group.requests)
      if (group.open_requests > 0) tokens += request.tokens.output_tokens();
  return tokens;
}

}  // namespace

TEST_CASE("draft server: what one instance sends, another fetches") {
  Server s;
  s.tell(RegisterGroups{{GroupId{1}}, 1000 * kMs});
  s.tell(UpdateCst{{{GroupId{1}, 0, 0, {5, 6, 7}}, {GroupId{2}, 0, 0, {8}}}});
  const CstFetched answer = s.fetch({GroupId{1}, {{0, 1}}});
  CHECK(answer.server == NodeId{4});
  REQUIRE(answer.parts.size() == 1);
  CHECK(answer.parts[0].position == 1);
  CHECK(answer.parts[0].tokens == std::vector<int32_t>{6, 7});
  CHECK(s.fetch({GroupId{2}, {}}).parts.empty());  // was not registered
  CHECK(s.report().appended_tokens == 3);
  CHECK(s.report().fetched_tokens == 2);
  CHECK(s.report().fetches == 2);
  s.tell(DropGroup{GroupId{1}});
  CHECK(s.fetch({GroupId{1}, {}}).parts.empty());
  CHECK(s.report().tokens == 0);
}

TEST_CASE("draft server: responses of earlier iterations are sent to those who lack them") {
  Server s;
  s.tell(RegisterGroups{{GroupId{1}}, 1000 * kMs});
  s.tell(RegisterPast{{GroupId{1}, {{5, 6, 7}, {8}}}});
  s.tell(RegisterPast{{GroupId{1, RolloutId{2}}, {{1}}}});
  const CstFetched answer = s.fetch({GroupId{1}, {}, true});
  REQUIRE(answer.pasts.size() == 1);
  CHECK(answer.pasts[0].responses == std::vector<std::vector<int32_t>>{{5, 6, 7}, {8}});
  CHECK(s.fetch({GroupId{1}, {}, false}).pasts.empty());
}

TEST_CASE("draft server: the same index in another rollout is another group") {
  Server s;
  const GroupId other{1, RolloutId{2}};
  s.tell(RegisterGroups{{GroupId{1}}, 1000 * kMs});
  s.tell(UpdateCst{{{other, 0, 0, {5, 6, 7}}}});
  CHECK(s.report().tokens == 0);
  s.tell(UpdateCst{{{GroupId{1}, 0, 0, {5, 6, 7}}}});
  s.tell(DropGroup{other});
  CHECK(s.fetch({other, {}}).parts.empty());
  CHECK(s.fetch({GroupId{1}, {}}).parts.size() == 1);
}

TEST_CASE("draft server: groups that are not used any more are dropped after their TTL") {
  Server s({.node = NodeId{0}, .expire_us = 50 * kMs});
  s.tell(RegisterGroups{{GroupId{1}, GroupId{2}}, 200 * kMs});
  for (int i = 0; i < 10; ++i) {
    s.world.run_until(s.world.now_us() + 100 * kMs);
    s.fetch({GroupId{2}, {}});
  }
  CHECK(s.report().groups == 1);
  CHECK(s.report().expired_groups == 1);
}

TEST_CASE("draft servers: requests draft from what their group writes on other instances") {
  auto o = alike_cluster();
  SimCluster sharing(o);
  sharing.run();
  check_exact(sharing);
  o.draft_servers = false;
  SimCluster alone(o);
  alone.run();
  check_exact(alone);
  const DraftCounts shared = drafted(sharing), own = drafted(alone);
  CHECK(shared.verifies > 500);
  const auto gain = [](const DraftCounts& d) { return static_cast<double>(d.accepted) / static_cast<double>(d.verifies); };
  CHECK(gain(shared) > 1.1 * gain(own));
  CHECK(sharing.draft_server_state(0).report.fetched_tokens > 0);
  CHECK(sharing.draft_server_state(1).report.fetched_tokens > 0);  // both have groups
}

TEST_CASE("draft servers: with responses of an earlier iteration, more draft tokens are accepted") {
  auto o = alike_cluster();
  o.alike_share = 0;  // no response tells anything of another one
  SimCluster without(o);
  without.run();
  check_exact(without);
  o.draft_past = true;
  SimCluster with(o);
  with.run();
  check_exact(with);
  CHECK(drafted(without).accepted < drafted(without).verifies / 10);
  CHECK(drafted(with).accepted > 3 * drafted(with).verifies);  // of 4 at most
  CHECK(drafted(with).verifies > 500);
}

TEST_CASE("draft servers: the servers get the tokens of the rollout, and drop them with the groups") {
  SimCluster cluster(alike_cluster());
  cluster.start();
  for (int i = 0; i < 10; ++i) {
    cluster.run_for(20 * kMs);
    if (cluster.over()) break;
    CHECK(tokens_on_servers(cluster) <= tokens_in_open_groups(cluster) + 4 * 4 * 5 * 100);
    if (i > 1) CHECK(tokens_on_servers(cluster) > tokens_in_open_groups(cluster) / 2);
  }
  cluster.finish();
  check_exact(cluster);
  cluster.run_for(1000 * kMs);
  CHECK(tokens_on_servers(cluster) == 0);
}

TEST_CASE("draft servers: groups that wait for long are not dropped before they run") {
  auto o = alike_cluster();
  o.instances = o.nodes = 1;
  o.rows_max = 2;
  o.step_ns = [](const StepShape&) { return 100'000'000; };
  SimCluster cluster(o);
  cluster.start();
  cluster.run_for(4 * SimCluster::kDraftTtlUs);
  REQUIRE_FALSE(cluster.over());
  const auto open = std::ranges::count_if(rt::look<RolloutActor>(cluster.fleet.rollout()).groups, [](const auto& group) { return group.open_requests > 0; });
  CHECK(open > 2);
  CHECK(cluster.draft_server_state(0).report.expired_groups == 0);
  CHECK(static_cast<int64_t>(cluster.draft_server_state(0).logs.group_count()) == open);
}

TEST_CASE("draft servers: one that was killed comes back, is filled again, and no response changes") {
  for (const uint32_t nodes : {1u, 2u}) {
    CAPTURE(nodes);
    auto o = alike_cluster();
    o.nodes = nodes;
    SimCluster cluster(o);
    cluster.start();
    cluster.run_for(150 * kMs);
    const DraftServerHandle first = cluster.draft_server(0);
    const int64_t before = tokens_on_servers(cluster);
    REQUIRE(before > 1000);
    cluster.kill_draft_server(0);
    cluster.run_for(0);
    CHECK(cluster.draft_server(0) != first);
    CHECK(cluster.draft_server_state(0).logs.group_count() > 0);
    cluster.run_for(20 * kMs);
    REQUIRE(!cluster.over());
    CHECK(tokens_on_servers(cluster) > tokens_in_open_groups(cluster) * 9 / 10);
    cluster.finish();
    check_exact(cluster);
    cluster.run_for(1000 * kMs);
    CHECK(tokens_on_servers(cluster) == 0);
  }
}

TEST_CASE("draft servers: when a machine leaves, another server takes over its groups, and returns them when it is back") {
  SimCluster cluster(alike_cluster());
  cluster.start();
  cluster.run_for(100 * kMs);
  const size_t groups = cluster.draft_server_state(1).logs.group_count();
  cluster.crash_node(0, 30 * kMs);
  cluster.run_for(10 * kMs);
  CHECK(cluster.draft_server_state(1).logs.group_count() > groups);
  cluster.run_for(40 * kMs);
  REQUIRE(!cluster.over());
  CHECK(cluster.draft_server_state(0).logs.group_count() > 0);
  cluster.finish();
  check_exact(cluster);
}
