// A rollout that stays open: groups come and are cancelled while it runs.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "actors/context_actor.h"
#include "actors/cluster_checks.h"

using namespace seer;

namespace {

/// A cluster whose groups are given to an open rollout one after the other.
struct OpenRollout {
  explicit OpenRollout(SimClusterOptions options, RolloutConfig config = {}) : cluster(std::move(options)), groups(cluster.groups) {
    config.scheduler = cluster.options.scheduler;
    config.instances_expected = cluster.options.instances;
    config.open = true;
    events = collect_events(cluster.world, seen, true);
    const bool has_pool = cluster.options.dram_blocks > 0;
    rollout = cluster.world.spawn<RolloutActor>(
        config, RolloutParts{{}, cluster.world.spawn<ContextActor>(), has_pool ? cluster.directory() : KvDirectoryHandle{}, events});
  }
  void attach() {
    for (uint32_t n = 0; n < cluster.options.nodes; ++n) rt::post(cluster.node(n), AttachRollout{rollout});
    cluster.run_for(0);
  }
  /// Asks the rollout and waits for its answer.
  template <class Answer, class Question>
  Answer ask(Question question) {
    std::optional<Answer> got;
    // The unused argument is for CAF 0.17: see rt::spawn().
    cluster.world.system.spawn([&](caf::event_based_actor* self, char) {
      rt::ask(self, rollout, rt::kControlTimeoutUs, question).then([&](Answer& answer) { got = std::move(answer); });
    }, char{});
    cluster.world.run_until(cluster.world.now_us() + rt::kControlTimeoutUs, [&] { return got.has_value(); });
    REQUIRE(got.has_value());
    return *std::move(got);
  }
  GroupsAdded add(size_t first, size_t count) {
    return ask<GroupsAdded>(AddGroups{{groups.begin() + static_cast<ptrdiff_t>(first),
                                       groups.begin() + static_cast<ptrdiff_t>(first + count)}});
  }
  Cancelled cancel(GroupId group) { return ask<Cancelled>(CancelGroup{group}); }
  void close_and_finish() {
    rt::post(rollout, CloseRollout{});
    cluster.world.run_until(600'000'000, [this] { return !seen.summaries.empty(); });
    REQUIRE(seen.summaries.size() == 1);
  }
  /// Checks that each request was answered once, with the right response, or its beginning if the request was cancelled.
  void check_responses(size_t expected) const {
    std::set<RequestId> answered;
    for (const Response& r : seen.responses) {
      CAPTURE(r.request);
      CHECK(answered.insert(r.request).second);
      const OutputTokens right = cluster.answer(groups[r.request.group.index], r.request.sample);
      REQUIRE(r.output.ids.size() <= right.ids.size());
      CHECK(std::equal(r.output.ids.begin(), r.output.ids.end(), right.ids.begin()));
      if (cluster.options.has_kv) CHECK(std::equal(r.output.logprobs.begin(), r.output.logprobs.end(), right.logprobs.begin()));
      if (r.finish != FinishReason::kAborted) CHECK(r.output.ids.size() == right.ids.size());
    }
    CHECK(answered.size() == expected);
  }
  int64_t aborted() const {
    return std::ranges::count(seen.responses, FinishReason::kAborted, &Response::finish);
  }

  SimCluster cluster;
  std::vector<GroupSpec> groups;
  SimEvents seen;
  RolloutEvents events;
  RolloutHandle rollout;
};

SimClusterOptions options_for(const std::string& policy) {
  SimClusterOptions o;
  o.scheduler.policy = policy;
  o.device_blocks = 60;  // two requests of 110 tokens fill it
  return o;
}

constexpr int64_t kSettleUs = 1'000'000;  // for what is still under way after the end

}  // namespace

TEST_CASE("open rollout: groups that come while it runs are answered exactly; it ends when it is closed, not before") {
  for (const std::string& policy : chunk_policy_names()) {
    CAPTURE(policy);
    OpenRollout o(options_for(policy));
    CHECK(o.add(0, 1).first == GroupId{0});  // before there is an instance
    o.attach();
    CHECK(o.add(1, 2).first == GroupId{1});
    o.cluster.run_for(20'000);
    CHECK(o.add(3, 1).first == GroupId{3});
    o.cluster.run_for(60'000'000);
    CHECK(o.seen.responses.size() == 4 * o.cluster.options.samples);
    CHECK(o.seen.summaries.empty());
    const auto so_far = o.ask<RolloutSummary>(GetReport{});
    CHECK(so_far.complete);
    CHECK(so_far.finished == 4 * o.cluster.options.samples);
    CHECK(so_far.instances.size() == o.cluster.options.instances);
    CHECK(o.add(4, 2).first == GroupId{4});
    o.close_and_finish();
    o.check_responses(o.cluster.requests);
    CHECK(o.seen.summaries[0].complete);
    CHECK(o.add(0, 1).error == "the rollout has ended");
    o.cluster.run_for(kSettleUs);
    check_drained(o.cluster);
  }
}

TEST_CASE("open rollout: a cancelled group ends with what it has, whether it waits, runs or moves; the others go on") {
  for (const std::string& policy : chunk_policy_names()) {
    for (const bool many_steps : {false, true}) {
      for (const int64_t after_us : {0, 1'000, 7'000, 15'000, 31'000}) {
        CAPTURE(policy);
        CAPTURE(many_steps);
        CAPTURE(after_us);
        auto options = options_for(policy);
        options.scheduler.chunk_tokens = 9;
        options.nodes = 2;
        options.has_kv = !many_steps;
        options.steps_max = many_steps ? 64 : 1;
        OpenRollout o(options);
        o.attach();
        o.add(0, 6);
        o.cluster.run_for(after_us);
        int64_t cancelled = 0;
        for (uint32_t g : {1u, 3u, 4u}) {
          const Cancelled reply = o.cancel(GroupId{g});
          CHECK_MESSAGE(reply.error == "", reply.error);
          cancelled += reply.requests;
          o.cluster.run_for(2'000);
        }
        const Cancelled one = o.ask<Cancelled>(CancelRequest{{GroupId{5}, 2}});
        cancelled += one.requests;
        o.close_and_finish();
        o.check_responses(o.cluster.requests);
        CHECK(o.aborted() > 0);
        CHECK(o.aborted() <= cancelled);
        CHECK(o.seen.summaries[0].aborted == o.aborted());
        CHECK(o.seen.summaries[0].complete);
        o.cluster.run_for(kSettleUs);
        check_drained(o.cluster);
      }
    }
  }
}

TEST_CASE("open rollout: what is cancelled before the start is answered at once and never runs") {
  OpenRollout o(options_for("seer+"));
  o.add(0, 2);
  CHECK(o.cancel(GroupId{0}).requests == o.cluster.options.samples);
  CHECK(o.ask<Cancelled>(CancelRequest{{GroupId{1}, 3}}).requests == 1);
  CHECK(o.ask<Cancelled>(CancelRequest{{GroupId{1}, 3}}).error == "request 1.3 is over");
  CHECK(o.cancel(GroupId{0}).error == "group 0 is over");
  o.cluster.run_for(0);
  CHECK(o.seen.responses.size() == o.cluster.options.samples + 1);
  o.attach();
  o.close_and_finish();
  o.check_responses(2 * o.cluster.options.samples);
  CHECK(o.aborted() == o.cluster.options.samples + 1);
  for (const Response& r : o.seen.responses)
    if (r.finish == FinishReason::kAborted) CHECK(r.chunks == 0);
}

TEST_CASE("open rollout: a cancel that is not possible is refused with the reason") {
  OpenRollout o(options_for("divided"));
  o.attach();
  o.add(0, 2);
  CHECK(o.cancel(GroupId{2}).error == "group 2 is unknown: the rollout has 2 groups");
  CHECK(o.cancel(GroupId{0, RolloutId{7}}).error == "group 7:0 is not of rollout 0");
  CHECK(o.ask<Cancelled>(CancelRequest{{GroupId{1}, 4}}).error == "request 1.4 is unknown: the group has 4 samples");
  CHECK(o.ask<Cancelled>(CancelRequest{{GroupId{1}, 3}}).requests == 1);
  o.cluster.run_for(10'000);
  CHECK(o.ask<Cancelled>(CancelRequest{{GroupId{1}, 3}}).error == "request 1.3 is over");
  o.cluster.run_for(60'000'000);
  CHECK(o.cancel(GroupId{0}).error == "group 0 is over");
  o.close_and_finish();
  CHECK(o.cancel(GroupId{0}).error == "the rollout has ended");
}

TEST_CASE("open rollout: malformed groups are refused together, with a sentence") {
  OpenRollout o(options_for("divided"));
  o.groups[1].seeds.pop_back();
  CHECK(o.add(0, 2).error == "new group 1 has 3 seeds for 4 samples");
  o.groups[1].prompt_ids.clear();
  CHECK(o.add(0, 2).error == "new group 1 has an empty prompt");
  CHECK(o.add(0, 1).first == GroupId{0});
  rt::post(o.rollout, CloseRollout{});
  CHECK(o.add(2, 1).error == "the rollout is closed: no groups can be added");
}

TEST_CASE("open rollout: a request that no instance can take fails alone, with an error") {
  for (const std::string& policy : chunk_policy_names()) {
    CAPTURE(policy);
    OpenRollout o(options_for(policy));
    o.groups[0].sampling.max_tokens = o.groups[2].sampling.max_tokens = 300;  // an instance holds 240 tokens
    o.add(0, 2);
    o.attach();
    o.add(2, 1);
    o.close_and_finish();
    const RolloutSummary& summary = o.seen.summaries[0];
    CHECK(summary.complete);
    CHECK(summary.failed == 8);
    CHECK(summary.finished == 12);
    for (const Response& r : o.seen.responses) {
      CHECK((r.finish == FinishReason::kError) == (r.request.group != GroupId{1}));
      if (r.finish == FinishReason::kError)
        CHECK_MESSAGE(r.error.find("needs 78 KV blocks; the largest instance holds 60") != std::string::npos, r.error);
    }
  }
}

TEST_CASE("open rollout: responses are kept until they are acknowledged, and no chunk starts while too many are") {
  auto options = options_for("divided");
  options.rows_max = 1;
  options.instances = 1;
  OpenRollout o(options, {.responses_kept_max = 3});
  o.attach();
  o.add(0, 2);
  o.cluster.run_for(60'000'000);
  REQUIRE(o.seen.responses.size() == 3);
  SimEvents other;
  rt::post(o.rollout, AttachEvents{collect_events(o.cluster.world, other, true)});
  o.cluster.run_for(1'000'000);
  CHECK(other.responses.size() == 3);  // once more, to who came
  rt::post(o.rollout, AckResponses{{other.responses[0].request, other.responses[1].request}});
  o.cluster.run_for(60'000'000);
  CHECK(other.responses.size() == 5);
  CHECK(o.seen.responses.size() == 3);
  for (int i = 0; i < 8; ++i) {
    AckResponses all;
    for (const Response& r : other.responses) all.requests.push_back(r.request);
    rt::post(o.rollout, all);
    o.cluster.run_for(60'000'000);
  }
  CHECK(other.responses.size() == 8);
  CHECK(rt::look<RolloutActor>(o.rollout).kept.empty());
}

TEST_CASE("open rollout: groups of higher priority are served first, under every policy") {
  for (const std::string& policy : chunk_policy_names()) {
    CAPTURE(policy);
    auto options = options_for(policy);
    options.instances = 1;
    options.rows_max = 1;
    options.samples = 2;
    options.scheduler.chunk_tokens = 0;
    OpenRollout o(options);
    const std::vector<int32_t> priorities = {0, INT32_MAX, INT32_MIN, 2, 0, 1};
    for (size_t g = 0; g < o.groups.size(); ++g) o.groups[g].priority = priorities[g];
    o.add(0, o.groups.size());
    o.attach();
    o.close_and_finish();
    o.check_responses(o.cluster.requests);
    std::vector<int32_t> order;
    for (const Response& r : o.seen.responses) order.push_back(priorities[r.request.group.index]);
    CHECK(std::ranges::is_sorted(order, std::greater<>()));
  }
}

TEST_CASE("open rollout: requests that another process began go on with the tokens they had, and end as they must") {
  for (const std::string& policy : chunk_policy_names()) {
    CAPTURE(policy);
    OpenRollout o(options_for(policy));
    AddGroups add{{o.groups[0], o.groups[1]}};
    for (uint32_t sample = 0; sample < 3; ++sample) {  // some of its tokens; all but the response; the response too
      OutputTokens had = o.cluster.answer(o.groups[1], sample);
      if (sample == 0) had.cut(had.size() / 2);
      add.resumed.push_back({RequestId{GroupId{1}, sample}, had, sample == 2});
    }
    o.attach();
    CHECK(o.ask<GroupsAdded>(add).error.empty());
    o.close_and_finish();
    o.check_responses(o.groups[0].samples + o.groups[1].samples - 1);
    add.resumed[0].request.sample = 1000;
    OpenRollout other(options_for(policy));
    CHECK(other.ask<GroupsAdded>(add).error == "request 1.1000 was begun before, but is none of those to be added");
  }
}
