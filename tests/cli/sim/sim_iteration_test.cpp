#include "cli/sim/sim_iteration.h"

#include <doctest/doctest.h>

#include <vector>

using namespace seer;

TEST_CASE("sim iteration: rewards that keep up add one judgement, then come training and the update") {
  const std::vector<double> done_s{30, 10, 20};
  CHECK(iteration_s(30, done_s, {.reward_s = 2, .reward_workers = 1, .train_s = 7, .update_s = 1}) == 40);
  CHECK(iteration_s(30, done_s, {.train_s = 7}) == 37);
}

TEST_CASE("sim iteration: responses wait for a free reward worker, in the order of completion") {
  const std::vector<double> done_s{10, 11, 12, 13};
  CHECK(rewards_end_s(done_s, {.reward_s = 8, .reward_workers = 1}) == 42);
  CHECK(rewards_end_s(done_s, {.reward_s = 8, .reward_workers = 2}) == 27);  // 10 to 18 to 26, 11 to 19 to 27
  CHECK(rewards_end_s(done_s, {.reward_s = 8, .reward_workers = 4}) == 21);
}

TEST_CASE("sim iteration: without given times there is no iteration to report") {
  CHECK(!IterationTimes{}.is_given());
  CHECK(IterationTimes{.update_s = 1}.is_given());
}
