// New weights while machines of a cluster come and go.
#include "sim/sim_controller.h"

using namespace seer;

TEST_CASE("cluster: requests whose weights no machine has any more start again with those of now, unless their clients heard tokens") {
  // Messages to an instance take so long that its machine has new weights before it hears of the rollout.
  const SimLinkFaults slow{.late_us = [] { return int64_t{20'000}; }};
  GatewayBench b({.instances = 1, .nodes = 1, .has_links = true, .link_faults = slow, .joins_cluster = true});
  SimController controller(b);
  b.run_for(10'000);
  constexpr int64_t kLeavesUs = 200'000;
  controller.drain(0, kLeavesUs, kLeavesUs);
  b.run_for(1'000);
  const Ticket whole = b.ask(0, 0, 4), streamed = b.ask(1, 0, 4, {.tokens_to = TokensTo::kClient});  // nothing runs them yet
  b.run_for(50'000);
  std::optional<Status> done;
  b.tell([&](GatewayActor& gateway) {
    gateway.update_weights({.what = {WeightVersion{2}, "weights"}, .in_flight = InFlight::kFinish, .done = [&](Status status) { done = status; }});
  });
  b.finish();
  REQUIRE(done);
  CHECK_MESSAGE(done->ok(), done->error().detail);
  REQUIRE(b.responses[whole].size() == 4);
  for (const auto& [sample, response] : b.responses[whole]) {
    CHECK(response.version == WeightVersion{2});
    CHECK(response.output.ids == b.right_of(whole, sample, WeightVersion{2}).ids);
  }
  REQUIRE(b.responses[streamed].size() == 4);
  for (const auto& [sample, response] : b.responses[streamed])
    CHECK(response.error == "no instance is left to run on: instance 0 is refused: its weight version is 2, expected 1");
}
