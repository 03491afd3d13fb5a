#include "actors/gateway_bench.h"

using namespace seer;

namespace {

using Bench = GatewayBench;

}  // namespace

TEST_CASE("gateway: requests with equal prompts that come together become one group, and each gets its own response") {
  Bench b;
  for (uint32_t group = 0; group < 6; ++group)
    for (uint32_t sample = 0; sample < 4; ++sample) b.ask(group, sample, sample + 1);
  b.finish();
  CHECK(b.responses.size() == 24);
  CHECK(b.state().loads().groups == 6);
  CHECK(b.state().loads().finished == 24);
  b.check_exact();
}

TEST_CASE("gateway: grouping does not change the responses") {
  Bench b;
  for (uint32_t sample = 0; sample < 4; ++sample) {
    b.ask(0, sample, sample + 1);
    b.run_for(10'000);
  }
  b.ask(1, 0, 4);  // n = 4 in one request
  b.finish();
  CHECK(b.state().loads().groups == 5);
  CHECK(b.responses.size() == 5);
  b.check_exact();
}

TEST_CASE("gateway: a group of a known size is awaited, but not for ever") {
  Bench b;
  const GatewayRequest named{.ticket = {}, .rid = {}, .group = "a", .group_size = 4, .prompt_ids = {}, .sampling = {}, .seeds = {}};
  b.ask(0, 0, 2, named);
  b.run_for(50'000);
  CHECK(b.state().loads().groups == 0);
  b.ask(0, 2, 4, named);
  b.run_for(1'000);
  CHECK(b.state().loads().groups == 1);
  b.ask(1, 0, 2, named);
  b.finish();
  CHECK(b.state().loads().groups == 2);
  CHECK(b.responses.size() == 3);
  b.check_exact();
}

TEST_CASE("gateway: requests with equal names or prompts but different sampling, priority or group are not mixed") {
  Bench b;
  GatewayRequest urgent;
  urgent.priority = 3;
  GatewayRequest named;
  named.group = "mine";
  b.ask(0, 0, 1);
  b.ask(0, 1, 2, urgent);
  b.ask(0, 2, 3, named);
  b.ask(0, 3, 4);
  b.finish();
  CHECK(b.state().loads().groups == 3);
  b.check_exact();
}

TEST_CASE("gateway: a request that streams gets its tokens in order, all of them before or with its response") {
  Bench b;
  GatewayRequest streams;
  streams.tokens_to = TokensTo::kClient;
  const Ticket ticket = b.ask(0, 0, 1, streams);
  b.ask(1, 0, 4);
  b.run_for(5'000);
  const auto& groups = rt::look<RolloutActor>(b.state().rollouts.begin()->second.handle).groups;
  REQUIRE(groups.size() == 2);
  for (const auto& group : groups) CHECK(group.spec.is_live == (group.spec.samples == 1));
  b.finish();
  CHECK(b.streamed.size() == 1);
  CHECK(b.streamed.at({ticket, 0}) == b.responses.at(ticket).at(0).output.ids);
}

TEST_CASE("gateway: an abort answers running and waiting requests whose name begins so, with the tokens they have") {
  Bench b({.length_max = 200});
  GatewayRequest mine, other;
  mine.rid = "mine-1";
  other.rid = "other";
  b.ask(0, 0, 4, mine);
  b.ask(1, 0, 4, other);
  b.run_for(100'000);
  b.ask(2, 0, 4, mine);
  int64_t ended = 0;
  b.tell([&](GatewayActor& gateway) { ended = gateway.abort("mine"); });
  b.run_for(20'000);
  const size_t aborted = b.count(FinishReason::kAborted);
  CHECK(aborted > 4);
  CHECK(static_cast<int64_t>(aborted) <= ended);
  b.finish();
  CHECK(b.responses.size() == 3);
  for (const auto& [sample, response] : b.responses.at(Ticket{2})) CHECK(response.finish == FinishReason::kStop);
  b.check_exact(false);
}

TEST_CASE("gateway: an abort of some requests leaves others alone, also those of the same name") {
  Bench b({.length_max = 200});
  const Ticket runs = b.ask(0, 0, 4), other = b.ask(1, 0, 4);
  b.run_for(100'000);
  const Ticket waits = b.ask(2, 0, 4);
  b.tell([=](GatewayActor& gateway) { gateway.abort(std::set<Ticket>{runs, waits, Ticket{77}}); });
  b.finish();
  CHECK(b.responses.size() == 3);
  for (const auto& [sample, response] : b.responses.at(other)) CHECK(response.finish == FinishReason::kStop);
  for (const auto& [sample, response] : b.responses.at(waits)) CHECK(response.finish == FinishReason::kAborted);
  b.check_exact(false);
}

TEST_CASE("gateway: responses that were begun go on with their tokens, unless these are of other weights") {
  for (const WeightVersion version : {WeightVersion{1}, WeightVersion{2}}) {
    CAPTURE(version);
    Bench b;
    GatewayRequest request;
    request.tokens_to = TokensTo::kJournal;
    for (uint32_t sample = 0; sample < 3; ++sample) {  // with half of its tokens, with all, with none
      OutputTokens right = b.cluster.answer({GroupId{0}, sample});
      right.cut(sample == 0 ? right.size() / 2 : sample == 1 ? right.size() : 0);
      request.begun.push_back({right, version});
    }
    const Ticket ticket = b.ask(0, 0, 3, request);
    b.finish();
    CHECK(b.responses.at(ticket).size() == 3);
    b.check_exact();
    for (uint32_t sample = 0; sample < 3; ++sample) {
      CHECK(b.told_versions.at({ticket, sample}) == WeightVersion{1});
      const bool goes_on = version == WeightVersion{1} && sample < 2;
      CHECK(b.first_told.at({ticket, sample}) == (goes_on ? std::ssize(request.begun[sample].output.ids) - 1 : 0));
    }
  }
}

TEST_CASE("gateway: tokens for a journal are told anew when their request starts anew; a client that heard them is not told twice") {
  for (const TokensTo to : {TokensTo::kJournal, TokensTo::kClient}) {
    CAPTURE(static_cast<int>(to));
    Bench b({.length_max = 200});
    GatewayRequest request;
    request.tokens_to = to;
    const Ticket ticket = b.ask(0, 0, 4, request);
    b.run_for(100'000);
    b.tell([](GatewayActor& gateway) { gateway.pause(InFlight::kRedo); });
    b.run_for(1'000'000);
    b.tell([](GatewayActor& gateway) { gateway.go_on(); });
    b.finish();
    CHECK((b.restarts > 0) == (to == TokensTo::kJournal));
    CHECK((b.count(FinishReason::kAborted) > 0) == (to == TokensTo::kClient));
    for (const auto& [sample, response] : b.responses.at(ticket)) CHECK(b.streamed.at({ticket, sample}) == response.output.ids);
    b.check_exact(to == TokensTo::kJournal);
  }
}

TEST_CASE("gateway: a cancelled request is not answered, and leaves nothing") {
  Bench b;
  const Ticket first = b.ask(0, 0, 4);
  b.run_for(30'000);
  const Ticket second = b.ask(1, 0, 4);
  b.tell([=](GatewayActor& gateway) {
    gateway.cancel(first);
    gateway.cancel(second);
  });
  b.ask(2, 0, 4);
  b.finish();
  CHECK(b.responses.size() == 1);
  CHECK(b.state().open.empty());
  CHECK(b.state().running.empty());
  CHECK(b.state().loads().waiting == 0);
  b.check_exact();
}

TEST_CASE("gateway: while it is paused requests wait; running ones are aborted, start again, or finish") {
  for (const InFlight in_flight : {InFlight::kAbort, InFlight::kRedo, InFlight::kFinish}) {
    CAPTURE(static_cast<int>(in_flight));
    Bench b({.length_max = 200});
    b.ask(0, 0, 4);
    b.run_for(100'000);
    int told_idle = 0;
    b.tell([&, in_flight](GatewayActor& gateway) { gateway.pause(in_flight, [&] { told_idle += b.state().running.empty() ? 1 : 100; }); });
    b.ask(1, 0, 4);
    CHECK(told_idle == 0);
    b.run_for(10'000'000);
    CHECK(told_idle == 1);
    CHECK(b.responses[Ticket{2}].empty());
    CHECK((b.count(FinishReason::kAborted) > 0) == (in_flight == InFlight::kAbort));
    CHECK(b.state().loads().running == 0);
    b.tell([](GatewayActor& gateway) { gateway.go_on(); });
    b.finish();
    CHECK(b.responses.at(Ticket{1}).size() == 4);
    CHECK(b.responses.at(Ticket{2}).size() == 4);
    b.check_exact(in_flight != InFlight::kAbort);
  }
}

TEST_CASE("gateway: whoever paused hears when nothing runs any more, or when it goes on") {
  Bench b({.length_max = 200});
  b.ask(0, 0, 4);
  b.run_for(100'000);
  int told_idle = 0;
  for (int i = 0; i < 2; ++i) b.tell([&](GatewayActor& gateway) { gateway.pause(InFlight::kFinish, [&] { ++told_idle; }); });
  b.run_for(1'000);
  CHECK(told_idle == 0);
  b.tell([](GatewayActor& gateway) { gateway.go_on(); });
  b.run_for(1'000);
  CHECK(b.state().loads().running > 0);
  CHECK(told_idle == 2);
  b.finish();
  CHECK(told_idle == 2);
}

TEST_CASE("gateway: it flushes only when nothing runs; what waits has no KV") {
  Bench b({.length_max = 200});
  Status flushed;
  b.ask(0, 0, 4);
  b.run_for(100'000);
  b.tell([&](GatewayActor& gateway) { flushed = gateway.flush(); });
  b.run_for(1'000);
  CHECK(flushed.error().code == Code::kUnavailable);
  b.tell([](GatewayActor& gateway) { gateway.pause(InFlight::kRedo); });
  b.run_for(10'000'000);
  b.tell([&](GatewayActor& gateway) { flushed = gateway.flush(); });
  b.run_for(1'000);
  CHECK(flushed.ok());
  CHECK(b.state().loads().waiting > 0);
  b.tell([](GatewayActor& gateway) { gateway.go_on(); });
  b.finish();
  b.tell([&](GatewayActor& gateway) { flushed = gateway.flush(); });
  b.run_for(1'000'000);
  CHECK(flushed.ok());
  CHECK(b.state().loads().rollouts == 0);
}

TEST_CASE("gateway: a rollout with rollout_responses is replaced by another one, and nothing is lost") {
  GatewayConfig config;
  config.rollout_responses = 8;  // two groups
  SimClusterOptions options;
  options.groups = 9;
  Bench b(options, config);
  for (uint32_t group = 0; group < 9; ++group) b.ask(group, 0, 4);
  b.finish();
  CHECK(b.responses.size() == 9);
  CHECK(b.state().last_rollout == RolloutId{5});
  CHECK(b.state().loads().rollouts == 1);
  b.check_exact();
}

TEST_CASE("gateway: a schedule is chosen once, for as many responses as tell what the work is like, and all later ones follow it") {
  std::vector<std::vector<GroupSpec>> asked;
  std::function<void(GatewaySchedule)> then;
  Bench b({}, {.choose_responses = 6}, [&](std::vector<GroupSpec> like, std::function<void(GatewaySchedule)> answer) {
    asked.push_back(std::move(like));
    then = std::move(answer);
  });
  const auto running_max = [&] { return rt::look<RolloutActor>(b.state().rollouts.at(b.state().current).handle).config.scheduler.running_max; };
  b.ask(0, 0, 2);
  b.run_for(5'000);
  CHECK(asked.empty());
  CHECK(b.state().running.size() == 2);  // too few to tell
  CHECK(running_max() == 0);

  b.ask(1, 0, 4);
  b.ask(2, 0, 4);
  b.run_for(50'000);
  REQUIRE(asked.size() == 1);
  REQUIRE(asked[0].size() == 3);  // those that run are like the others
  CHECK(asked[0][2].prompt_ids == b.cluster.groups[2].prompt_ids);
  CHECK(asked[0][2].samples == 4);
  CHECK(b.state().running.size() <= 2);  // they wait for the answer

  then({.scheduler = {.policy = "las", .running_max = 1}, .why = "test"});
  b.ask(3, 0, 4);
  b.ask(4, 0, 4);
  b.run_for(5'000);
  CHECK(running_max() == 1);
  b.finish();
  CHECK(asked.size() == 1);
  CHECK(b.state().loads().finished == 18);
  b.check_exact();
}

TEST_CASE("gateway: beyond its limit a request is answered with an error that says so") {
  GatewayConfig config;
  config.responses_max = 6;
  Bench b({}, config);
  b.ask(0, 0, 4);
  const Ticket refused = b.ask(1, 0, 4);
  b.run_for(10'000);
  CHECK(b.responses.at(refused).size() == 4);
  CHECK(b.responses.at(refused).at(0).error == "the server has 6 responses open, which is its limit");
  b.finish();
  CHECK(b.count(FinishReason::kStop) == 4);
}

TEST_CASE("gateway: the time that a request waits before its rollout is in its queue time; paused ones end when the server does") {
  Bench b;
  b.tell([](GatewayActor& gateway) { gateway.pause(InFlight::kAbort); });
  GatewayRequest journalled;
  journalled.tokens_to = TokensTo::kJournal;
  const Ticket kept = b.ask(0, 0, 1, journalled), asked = b.ask(1, 0, 1);
  b.run_for(2'000'000);
  b.tell([](GatewayActor& gateway) { gateway.drain(); });
  b.run_for(1'000);
  REQUIRE(b.responses.contains(asked));
  CHECK(b.responses.at(asked).at(0).finish == FinishReason::kAborted);
  CHECK(b.responses.at(asked).at(0).queue_us >= 2'000'000);
  CHECK_FALSE(b.responses.contains(kept));
  b.tell([](GatewayActor& gateway) { gateway.go_on(); });
  b.finish();
  const Response& r = b.responses.at(kept).at(0);
  CHECK(r.finish == FinishReason::kStop);
  CHECK(r.queue_us >= 2'000'000);
  CHECK(r.first_token_us >= 2'000'000);
  CHECK(r.first_token_us <= r.queue_us + r.run_us);
}

TEST_CASE("gateway: when the server ends, a paused request that runs to its end does so, and one that would begin anew is answered") {
  for (const InFlight how : {InFlight::kFinish, InFlight::kRedo}) {
    CAPTURE(static_cast<int>(how));
    Bench b;
    const Ticket asked = b.ask(0, 0, 1);
    b.run_for(20'000);
    b.tell([&](GatewayActor& gateway) {
      REQUIRE(gateway.running.size() == 1);
      gateway.pause(how);
      gateway.drain();
    });
    b.finish();
    CHECK(b.responses.at(asked).at(0).finish == (how == InFlight::kFinish ? FinishReason::kStop : FinishReason::kAborted));
  }
}

TEST_CASE("gateway: requests that ask for more tokens than an instance has KV for get what there is room for") {
  SimClusterOptions options;
  options.instances = 1;
  Bench b(options);
  b.cluster.groups[0].sampling.max_tokens = 1 << 20;
  b.ask(0, 0, 4);
  b.finish();
  CHECK(b.count(FinishReason::kError) == 0);
  CHECK(b.count(FinishReason::kStop) == 4);
  b.check_exact();
}

TEST_CASE("gateway: when a rollout fails, each of its requests is answered with its error") {
  SimClusterOptions options;
  options.instances = 1;
  options.restarts_max = 0;
  Bench b(options);
  b.ask(0, 0, 4);
  b.run_for(30'000);
  b.cluster.kill_instance(InstanceId{0});
  b.finish();
  CHECK(b.count(FinishReason::kError) == 4);
  for (const auto& [sample, response] : b.responses.at(Ticket{1})) CHECK(response.error != "");
  CHECK(b.state().loads().rollouts == 0);
}

TEST_CASE("gateway: requests that are cancelled while it is paused take no memory") {
  Bench b;
  b.tell([](GatewayActor& gateway) { gateway.pause(InFlight::kAbort); });
  for (int i = 0; i < 5000; ++i) {
    const Ticket ticket = b.ask(static_cast<uint32_t>(i % 6), 0, 1);
    b.tell([ticket](GatewayActor& gateway) { gateway.cancel(ticket); });
    if (i % 100 == 0) b.run_for(1'000);
  }
  b.run_for(1'000);
  size_t pieces = 0;
  for (const auto& [id, group] : b.state().waiting) pieces += group.pieces.size();
  CHECK(pieces <= 1024);
  CHECK(b.state().loads().waiting == 0);
}

TEST_CASE("gateway: a request that was aborted is answered, also if all others are to start again before it is") {
  Bench b({.length_max = 200});
  b.ask(0, 0, 4);
  b.run_for(10'000);
  b.tell([](GatewayActor& gateway) {
    CHECK(gateway.abort_all() == 4);
    gateway.pause(InFlight::kRedo);
  });
  b.run_for(1'000'000);
  CHECK(b.count(FinishReason::kAborted) == 4);
}

TEST_CASE("gateway: without an id for a rollout requests wait until there is one") {
  Bench b;
  RolloutId id;
  b.next_rollout = [&] { return std::exchange(id, {}); };
  b.ask(0, 0, 4);
  b.run_for(100'000);
  CHECK(b.responses.empty());
  CHECK(b.state().loads().waiting == 4);
  id = RolloutId{77};
  b.finish();
  CHECK(b.responses.at(Ticket{1}).size() == 4);
  CHECK(b.state().last_rollout == RolloutId{77});
  b.check_exact();
}

TEST_CASE("gateway: its loads count each response once, by how it ended") {
  SimClusterOptions options;
  options.length_max = 200;
  GatewayConfig config;
  config.rollout.progress_us = 20'000;
  Bench b(options, config);
  GatewayRequest mine;
  mine.rid = "mine";
  b.ask(0, 0, 4);
  b.ask(1, 0, 4, mine);
  b.run_for(100'000);
  const GatewayLoads before = b.state().loads();
  CHECK(before.running == 8 - before.finished);
  CHECK(before.on_instances > 0);
  CHECK(before.on_instances <= before.running);
  CHECK(before.oldest_us > 90'000);
  CHECK(before.oldest_us <= 100'000);
  b.tell([](GatewayActor& gateway) { gateway.abort("mine"); });
  b.finish();
  const GatewayLoads now = b.state().loads();
  CHECK(now.aborted == static_cast<int64_t>(b.count(FinishReason::kAborted)));
  CHECK(now.aborted > 0);
  CHECK(now.at_length == static_cast<int64_t>(b.count(FinishReason::kLength)));
  CHECK(now.finished + now.aborted == 8);
  CHECK(now.failed == 0);
  CHECK(now.prompt_tokens == 2 * options.prompt_tokens);
  CHECK(now.on_instances == 0);
  CHECK(now.oldest_us == 0);
  int64_t tokens = 0;
  for (const auto& [ticket, by_sample] : b.responses)
    for (const auto& [sample, r] : by_sample) {
      tokens += std::ssize(r.output.ids);
      CHECK((r.first_token_us > 0) == !r.output.ids.empty());
      CHECK(r.first_token_us <= r.queue_us + r.run_us);
    }
  CHECK(now.output_tokens == tokens);
}

TEST_CASE("gateway: a rollout's tail begins when 90 % of its responses have ended, and again when more are asked for") {
  SimClusterOptions options;
  options.groups = 6;
  options.samples = 10;
  Bench b(options);
  for (uint32_t group = 0; group < 3; ++group) b.ask(group, 0, 10);
  b.cluster.world.run_until(600'000'000, [&] { return b.responses.size() == 3 && b.state().loads().finished >= 26; });
  GatewayReport report = b.report();
  REQUIRE(report.rollouts.size() == 1);
  CHECK(report.rollouts[0].responses == 30);
  if (report.rollouts[0].ended < 27) CHECK(report.rollouts[0].tail_us == 0);
  b.finish();
  report = b.report();
  CHECK_FALSE(report.rollouts[0].is_over);
  CHECK(report.rollouts[0].ended == 30);
  CHECK(report.rollouts[0].output_tokens == report.loads.output_tokens);
  CHECK(report.rollouts[0].tail_us > 0);
  CHECK(report.rollouts[0].tail_us < report.rollouts[0].busy_us);
  const GatewayRollout first = report.rollouts[0];
  b.run_for(5'000'000);  // nothing runs
  CHECK(b.report().rollouts[0].busy_us == first.busy_us);
  for (uint32_t group = 3; group < 6; ++group) b.ask(group, 0, 10);
  b.run_for(5'000);
  CHECK(b.report().rollouts[0].tail_us == 0);
  b.finish();
  CHECK(b.report().rollouts[0].tail_us > 0);
  CHECK(b.report().rollouts[0].busy_us > first.busy_us + 5'000'000);
}

TEST_CASE("gateway: it remembers a bounded number of rollouts that are over, and reports them by id") {
  GatewayConfig config;
  config.rollout_responses = 1;
  SimClusterOptions options;
  options.groups = 20;
  options.samples = 1;
  Bench b(options, config);
  for (uint32_t group = 0; group < 20; ++group) b.ask(group, 0, 1);
  b.finish();
  const GatewayReport report = b.report();
  REQUIRE(report.rollouts.size() == 17);  // 16 that are over, and the open one
  for (size_t i = 0; i < report.rollouts.size(); ++i) {
    if (i > 0) CHECK(report.rollouts[i - 1].id < report.rollouts[i].id);
    CHECK(report.rollouts[i].is_over == (i < 16));
    CHECK(report.rollouts[i].ended == 1);
  }
  CHECK(report.rollouts.back().id == RolloutId{20});
}

TEST_CASE("gateway: its report has what every machine says of its instances and its pool, and leaves out one that is silent") {
  SimClusterOptions options;
  options.nodes = 2;
  Bench b(options);
  b.ask(0, 0, 4);
  b.finish();
  const GatewayReport report = b.report();
  REQUIRE(report.nodes.size() == 2);
  int64_t sampled = 0, cached = 0;
  for (const NodeReport& node : report.nodes) {
    REQUIRE(node.instances.size() == 1);
    REQUIRE(node.pool.size() == 1);
    sampled += node.instances[0].output_tokens;
    cached += node.instances[0].cached_tokens;
  }
  CHECK(sampled == report.loads.output_tokens);
  CHECK(cached > 0);  // chunks after a response's first one
  rt::kill(b.cluster.fleet.node(NodeId{1}));
  b.run_for(1'000);
  CHECK(b.report().nodes.size() == 1);
}

TEST_CASE("gateway: a request that is aborted, cancelled or refused leaves one line, and none that ends well") {
  GatewayConfig config;
  config.responses_max = 12;
  SimClusterOptions options;
  options.length_max = 200;
  Bench b(options, config);
  GatewayRequest mine, other;
  mine.rid = "mine\x1b[2J\n9.0 info forged";
  other.rid = "other";
  b.ask(0, 0, 4, mine);
  const Ticket cancelled = b.ask(1, 0, 4, other);
  b.ask(2, 0, 4);
  b.ask(3, 0, 4);
  b.run_for(100'000);
  b.tell([=](GatewayActor& gateway) {
    gateway.abort("mine");
    gateway.cancel(cancelled);
  });
  b.finish();
  CAPTURE(b.lines.str());
  CHECK(b.logged("request_") == 3);
  CHECK(b.logged("request_aborted ticket=1 rid=\"mine\\x1b[2J 9.0 info forged\" aborted=") == 1);
  CHECK(b.logged("request_cancelled ticket=2 rid=other responses_left=") == 1);
  CHECK(b.logged("request_failed ticket=4 rid=\"\" error=\"the server has 12 responses open, which is its limit\"") == 1);
  CHECK(b.lines.str().find("\n9.0 info forged") == std::string::npos);
}

TEST_CASE("gateway: an instance that is made again does not hold up requests for the others") {
  GatewayBench b({.remake_us = 60'000'000});
  b.run_for(1'000);
  b.cluster.kill_instance(InstanceId{1});
  b.run_for(1'000);
  b.ask(0, 0, 4);
  b.run_for(5'000'000);
  CHECK(b.count(FinishReason::kStop) == 4);
  b.check_exact();
}

TEST_CASE("gateway: what a machine held that has been lost for long limits no request") {
  GatewayBench b({.length_max = 100}, {.rollout_responses = 1});
  b.run_for(1'000);
  b.state().note_kv({{.instance = InstanceId{5 * kNodeInstancesMax}, .tokens = 4000, .is_up = false}});
  b.tell([](GatewayActor& gateway) { gateway.lose_node(NodeId{5}); });
  for (const bool is_long_ago : {false, true}) {
    CAPTURE(is_long_ago);
    const Ticket asked{++b.last};
    GatewayRequest request{.ticket = asked, .prompt_ids = b.cluster.groups[0].prompt_ids, .sampling = b.cluster.groups[0].sampling, .seeds = {b.cluster.groups[0].seeds[0]}};
    request.sampling.max_tokens = 3000;  // only that machine has room for them
    b.tell([request](GatewayActor& gateway) { gateway.submit(request); });
    b.run_for(100'000'000);
    CHECK(b.responses.at(asked).at(0).finish == (is_long_ago ? FinishReason::kStop : FinishReason::kError));
    b.run_for(3'600'000'000);
  }
}
