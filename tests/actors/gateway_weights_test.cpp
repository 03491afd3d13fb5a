// Updates of weights through a gateway.
#include "actors/gateway_bench.h"
#include "actors/recorder.h"

using namespace seer;

namespace {

using Bench = GatewayBench;

/// An update to version 2 that all machines hear of too late.
void give_up_update(Bench& b) {
  std::optional<Status> status;
  b.are_lazy = true;
  b.tell([&](GatewayActor& gateway) {
    gateway.update_weights({.what = {WeightVersion{2}, "new"}, .name = "step-2", .done = [&](Status s) { status = std::move(s); }});
  });
  b.run_for(20'001'000);
  REQUIRE(status.has_value());
  CHECK(status->error().detail == "node 0 has not changed its weights within 20 s");
  CHECK(b.runs.empty());
  b.are_lazy = false;
}

}  // namespace

TEST_CASE("gateway: at new weights, running requests are aborted, start again or finish with the old ones; later ones have the new ones") {
  for (const InFlight in_flight : {InFlight::kAbort, InFlight::kRedo, InFlight::kFinish}) {
    CAPTURE(static_cast<int>(in_flight));
    Bench b({.length_max = 200});
    std::optional<Status> done, refused;
    b.ask(0, 0, 4);
    b.run_for(100'000);
    b.tell([&, in_flight](GatewayActor& gateway) {
      gateway.update_weights({{WeightVersion{2}, "weights"}, "", in_flight, [&](Status status) {
                                done = status;
                                CHECK(b.runs == std::vector{WeightVersion{2}});
                              }});
      gateway.update_weights({{WeightVersion{3}, "weights"}, "", in_flight, [&](Status status) { refused = status; }});
    });
    b.ask(1, 0, 4);
    b.finish();
    REQUIRE((done && refused));
    CHECK_MESSAGE(done->ok(), done->error().detail);
    CHECK(refused->error().detail == "an update to weight version 2 is under way");
    CHECK((b.count(FinishReason::kAborted) > 0) == (in_flight == InFlight::kAbort));
    const auto& before = b.responses.at(Ticket{1});
    const bool some_are_new = std::ranges::any_of(before, [](const auto& r) { return r.second.version == WeightVersion{2}; });
    CHECK(some_are_new == (in_flight == InFlight::kRedo));  // but for one that had just ended
    for (const auto& [sample, response] : b.responses.at(Ticket{2})) CHECK(response.version == WeightVersion{2});
    b.check_exact(in_flight != InFlight::kAbort);
  }
}

TEST_CASE("gateway: a request for one weight version gets no token of another, whenever it comes and whatever becomes of it") {
  constexpr const char* kSays = "it is for weight version 1 alone, and version 2 runs";
  GatewayRequest first;
  first.version = WeightVersion{1};
  for (const InFlight in_flight : {InFlight::kAbort, InFlight::kRedo, InFlight::kFinish}) {
    CAPTURE(static_cast<int>(in_flight));
    Bench b({.length_max = 200});
    const Ticket runs = b.ask(0, 0, 4, first), any = b.ask(1, 0, 4);
    b.run_for(100'000);
    b.tell([in_flight](GatewayActor& gateway) { gateway.update_weights({{WeightVersion{2}, "weights"}, "", in_flight, [](Status) {}}); });
    const Ticket during = b.ask(2, 0, 4, first);
    b.finish();
    const Ticket after = b.ask(2, 0, 4, first);
    GatewayRequest second;
    second.version = WeightVersion{2};
    const Ticket right = b.ask(3, 0, 4, second);
    b.finish();
    CHECK(b.responses.at(any).size() == 4);
    const FinishReason expected = in_flight == InFlight::kRedo    ? FinishReason::kError
                                  : in_flight == InFlight::kAbort ? FinishReason::kAborted
                                                                  : FinishReason::kStop;
    CHECK(std::ranges::any_of(b.responses.at(runs), [&](const auto& r) { return r.second.finish == expected; }));
    for (const auto& [sample, response] : b.responses.at(runs)) {
      CHECK((response.finish == expected || response.finish == FinishReason::kStop));  // some may have ended before
      if (response.finish == FinishReason::kError)
        CHECK(response.error == kSays);
      else
        CHECK(response.version == WeightVersion{1});
    }
    for (const Ticket late : {during, after})
      for (const auto& [sample, response] : b.responses.at(late)) CHECK((response.error == kSays && response.output.empty()));
    for (const auto& [sample, response] : b.responses.at(right))
      CHECK((response.finish == FinishReason::kStop && response.version == WeightVersion{2}));
    CHECK(b.state().open.empty());
  }
}

TEST_CASE("gateway: an update waits for no machine that is lost, or silent for too long, and says which") {
  for (const bool is_lost : {true, false}) {
    CAPTURE(is_lost);
    Bench b({}, {.update_us_max = 20'000'000}, {}, NodeId{7});
    std::optional<Status> status;
    b.tell([&](GatewayActor& gateway) {
      gateway.update_weights({.what = {WeightVersion{2}, "new"}, .done = [&](Status s) { status = std::move(s); }});
    });
    b.ask(0, 0, 4);
    b.run_for(10'000'000);
    CHECK_FALSE(status.has_value());
    if (is_lost) b.tell([](GatewayActor& gateway) { gateway.lose_node(NodeId{7}); });
    b.run_for(is_lost ? 10'000 : 10'001'000);
    REQUIRE(status.has_value());
    CHECK(status->error().detail == (is_lost ? "node 7 was lost while it changed its weights" : "node 7 has not changed its weights within 20 s"));
    b.finish();
    CHECK(b.state().weights.version() == WeightVersion{2});  // the others have it
    CHECK(b.told.size() == 1);
    CHECK(b.told.at(0).nodes.size() == b.cluster.options.nodes);
    CHECK(b.count(FinishReason::kError) == 0);
    for (const auto& [sample, response] : b.responses.at(Ticket{1})) CHECK(response.version == WeightVersion{2});
  }
}

TEST_CASE("gateway: an update while generation is paused ends no request that waits, nor one that the pause made start again") {
  for (const InFlight paused : {InFlight::kRedo, InFlight::kAbort}) {
    CAPTURE(static_cast<int>(paused));
    Bench b({.length_max = 200});
    std::optional<Status> done;
    b.ask(0, 0, 4);
    b.run_for(100'000);
    const size_t before = b.count(FinishReason::kStop), running = 4 - before;
    b.tell([&](GatewayActor& gateway) { gateway.pause(paused); });
    b.ask(1, 0, 4);
    b.tell([&](GatewayActor& gateway) {
      gateway.update_weights({.what = {WeightVersion{2}, "new"}, .done = [&](Status status) { done = std::move(status); }});
    });
    b.run_for(10'000'000);
    REQUIRE(done.has_value());
    CHECK_MESSAGE(done->ok(), done->error().detail);
    CHECK(b.count(FinishReason::kAborted) == (paused == InFlight::kAbort ? running : 0));
    b.tell([](GatewayActor& gateway) { gateway.go_on(); });
    b.finish();
    CHECK(running > 0);
    CHECK(b.count(FinishReason::kStop) == (paused == InFlight::kAbort ? before + 4 : 8));
    for (const auto& [sample, response] : b.responses.at(Ticket{2})) CHECK(response.version == WeightVersion{2});
    b.check_exact(paused != InFlight::kAbort);
  }
}

TEST_CASE("gateway: a machine that found other weights in the folder than those before it does not count as changed") {
  Bench b({}, {}, {}, NodeId{7});
  std::optional<Status> status;
  b.tell([&](GatewayActor& gateway) {
    gateway.update_weights({.what = {WeightVersion{2}, "new"}, .done = [&](Status s) { status = std::move(s); }});
  });
  b.run_for(10'000'000);
  constexpr uint64_t kWrong = 1;
  rt::post(b.handle, WeightsUpdated{NodeId{7}, WeightVersion{2}, "", kWrong});
  b.run_for(10'000);
  REQUIRE(status.has_value());
  CHECK(status->error().detail == "node 7 found other weights in new than the machines before it");
  REQUIRE(b.told.size() == 1);
  CHECK(b.told[0].what.weights > kWrong);
  CHECK(b.told[0].nodes == b.node_names());
  b.ask(0, 0, 4);
  b.finish();
  CHECK(b.count(FinishReason::kStop) == 4);
  b.check_exact();
}

TEST_CASE("gateway: an update waits for requests that may finish, however long they run") {
  Bench b({.length_max = 200}, {.update_us_max = 5'000});
  std::optional<Status> status;
  b.ask(0, 0, 4);
  b.run_for(10'000);
  b.tell([&](GatewayActor& gateway) {
    gateway.update_weights({.what = {WeightVersion{2}, "new"}, .in_flight = InFlight::kFinish, .done = [&](Status s) { status = std::move(s); }});
  });
  b.run_for(10'000);
  CHECK_FALSE(status.has_value());
  b.finish();
  REQUIRE(status.has_value());
  CHECK_MESSAGE(status->ok(), status->error().detail);
  CHECK(b.count(FinishReason::kStop) == 4);
  b.check_exact();
}

TEST_CASE("gateway: weights of an update that was given up are used once all machines have them") {
  Bench b({.nodes = 2}, {.update_us_max = 20'000'000});
  give_up_update(b);
  b.start_late(NodeId{0});
  b.run_for(10'000'000);
  b.ask(0, 0, 4);
  b.finish();
  CHECK(b.runs.empty());  // the other machine does the work
  for (const auto& [sample, response] : b.responses.at(Ticket{1})) CHECK(response.version == WeightVersion{1});
  SUBCASE("the last one changes") {
    b.tell([](GatewayActor& gateway) { CHECK(gateway.flush().ok()); });  // ends the rollout
    b.run_for(1'000'000);
    b.start_late(NodeId{1});
    b.run_for(10'000'000);
    REQUIRE(b.told.size() == 1);
    CHECK(b.told[0].what.version == WeightVersion{2});
    CHECK(b.told[0].what.folder == "new");
    CHECK(b.told[0].nodes == std::vector{NodeId{0}, NodeId{1}});
    CHECK(b.told[0].what.weights != 0);
    b.ask(1, 0, 4);
    b.finish();
    for (const auto& [sample, response] : b.responses.at(Ticket{2})) CHECK(response.version == WeightVersion{2});
    CHECK(b.count(FinishReason::kStop) == 8);
  }
  SUBCASE("the last one without them is lost while it runs requests") {
    b.ask(1, 0, 4);
    b.run_for(10'000);
    b.cluster.crash_node(1, 600'000'000);
    b.tell([](GatewayActor& gateway) { gateway.lose_node(NodeId{1}); });
    b.run_for(1'000'000);
    REQUIRE(b.told.size() == 1);
    CHECK(b.told[0].nodes == std::vector{NodeId{0}});
    b.finish();
    for (const auto& [sample, response] : b.responses.at(Ticket{2})) CHECK(response.version == WeightVersion{2});
    CHECK(b.count(FinishReason::kStop) == 8);
  }
  CHECK(b.runs == std::vector{WeightVersion{2}});
  CHECK(b.names == std::vector<std::string>{"step-2"});
  b.check_exact();
}

TEST_CASE("gateway: a machine that answers an update with an error and turns out to have changed is used with what it has") {
  Bench b({.nodes = 1});
  std::optional<Status> status;
  b.are_lazy = true;
  b.tell([&](GatewayActor& gateway) {
    gateway.update_weights({.what = {WeightVersion{2}, "new"}, .done = [&](Status s) { status = std::move(s); }});
  });
  b.run_for(1'000);
  rt::post(b.handle, WeightsUpdated{NodeId{0}, WeightVersion{2}, "its answer was lost", 0});
  b.run_for(1'000'000);
  REQUIRE(status.has_value());
  CHECK(status->error().detail == "its answer was lost");
  CHECK(b.runs.empty());
  b.start_late();
  b.run_for(1'000'000);
  CHECK(b.runs == std::vector{WeightVersion{2}});
  b.ask(0, 0, 4);
  b.finish();
  for (const auto& [sample, response] : b.responses.at(Ticket{1})) CHECK(response.version == WeightVersion{2});
}

TEST_CASE("gateway: a machine that was lost during an update and comes back changed is used with what it has") {
  Bench b({.nodes = 1}, {.update_us_max = 20'000'000});
  std::optional<Status> status;
  b.are_lazy = true;
  b.tell([&](GatewayActor& gateway) {
    gateway.update_weights({.what = {WeightVersion{2}, "new"}, .done = [&](Status s) { status = std::move(s); }});
  });
  b.tell([](GatewayActor& gateway) { gateway.lose_node(NodeId{0}); });
  b.run_for(1'000'000);
  REQUIRE(status.has_value());
  CHECK(b.runs.empty());
  b.start_late();
  b.run_for(1'000'000);
  CHECK(b.runs == std::vector{WeightVersion{2}});
}

TEST_CASE("gateway: requests that come while all machines change late run with the old weights or the new ones") {
  size_t with_old = 0, with_new = 0;
  for (int64_t wait_us = 0; wait_us <= 3'000; wait_us += 100) {
    CAPTURE(wait_us);
    Bench b({.length_max = 40}, {.update_us_max = 20'000'000});
    give_up_update(b);
    b.ask(0, 0, 4);
    b.run_for(wait_us);
    b.start_late();
    b.finish();
    CHECK(b.count(FinishReason::kStop) == 4);
    b.check_exact();
    for (const auto& [sample, response] : b.responses.at(Ticket{1})) ++(response.version == WeightVersion{2} ? with_new : with_old);
  }
  CHECK(with_old > 0);
  CHECK(with_new > 0);
}

TEST_CASE("gateway: when machines change late while requests run, these start again with the weights that the machines have") {
  Bench b({.length_max = 200}, {.update_us_max = 20'000'000});
  std::optional<Status> second;
  give_up_update(b);
  b.ask(0, 0, 4);
  b.run_for(10'000);
  b.start_late();  // they wait until the rollout is over
  b.run_for(10'000);
  CHECK(b.runs.empty());
  CHECK(b.responses.empty());
  b.tell([&](GatewayActor& gateway) {  // and are busy with the other weights
    gateway.update_weights({.what = {WeightVersion{3}, "newer"}, .in_flight = InFlight::kRedo, .done = [&](Status s) { second = std::move(s); }});
  });
  b.finish();
  REQUIRE(second.has_value());
  CHECK(second->error().detail.find("is changing to weight version 2 already") != std::string::npos);
  CHECK(b.runs == std::vector{WeightVersion{2}});
  CHECK(b.count(FinishReason::kStop) == 4);
  for (const auto& [sample, response] : b.responses.at(Ticket{1})) CHECK(response.version == WeightVersion{2});
  b.check_exact();
}

TEST_CASE("gateway: weights that another process changes can change while nothing runs here, and are used from then on") {
  Bench b({}, {.idle_us = 5'000'000});
  b.ask(0, 0, 4);
  b.finish();
  Recorder<WeightsSink, WeightsUpdated> other(b.cluster.world);
  const size_t nodes = b.cluster.fleet.update_weights({WeightVersion{2}, "new"}, other.handle()).size();
  b.run_for(3'000'000);
  CHECK(other.log().empty());  // more requests may come for the old ones
  b.run_for(2'000'000);
  REQUIRE(other.log().size() == nodes);
  for (const WeightsUpdated& answer : other.all<WeightsUpdated>()) CHECK_MESSAGE(answer.error.empty(), answer.error);
  b.tell([weights = other.all<WeightsUpdated>()[0].weights](GatewayActor& gateway) {
    gateway.follow_weights({{.version = WeightVersion{2}, .folder = "new", .weights = weights}, {}});
    gateway.follow_weights({{.version = WeightVersion{1}, .folder = "old", .weights = 6}, {}});  // late
  });
  b.ask(1, 0, 4);
  b.finish();
  for (const auto& [sample, response] : b.responses.at(Ticket{2})) CHECK(response.version == WeightVersion{2});
  CHECK(b.runs == std::vector{WeightVersion{2}});
  CHECK(b.told.size() == 1);
  b.check_exact();
}

TEST_CASE("gateway: requests of a rollout that has not begun finish before an update that lets them") {
  GatewayBench b({.remake_us = 20'000'000});
  b.run_for(1'000);
  b.cluster.kill_instance(InstanceId{1});
  b.run_for(1'000);
  b.ask(0, 0, 4);
  b.run_for(1'000'000);  // the rollout waits for the other instance
  std::optional<Status> status;
  b.tell([&](GatewayActor& gateway) {
    gateway.update_weights({.what = {WeightVersion{2}, "new"}, .in_flight = InFlight::kFinish, .done = [&](Status s) { status = std::move(s); }});
  });
  b.run_for(120'000'000);
  REQUIRE(status);
  CHECK(status->ok());
  CHECK(b.count(FinishReason::kStop) == 4);
  for (const auto& [sample, response] : b.responses.begin()->second) CHECK(response.version == WeightVersion{1});
  b.check_exact();
}
