#include "cli/learned_steps.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <string>

#include "protocols/hash.h"

using namespace seer;

namespace {

struct Request {
  std::string rid;
  int64_t context = 0, left = 0;
  bool decodes = false;
};

/// A server with rows of its own: each step prefills what waits and gives a token to each request that decodes. Its tokens come in
/// parts of up to `part` steps.
struct Server {
  StepCost cost;
  int64_t rows = 8, part = 1;
  int64_t us = 0;
  uint64_t held_up_one_in = 0;  // steps: those take up to 20 ms more; 0: none

  /// Runs `requests` requests with prompts of up to prompt_max tokens; returns the sum of all steps' times.
  int64_t run(LearnedSteps& steps, int requests, int64_t prompt_max, uint64_t seed) {
    std::mt19937_64 rng(seed), others(seed);
    std::vector<Request> running;
    std::vector<int64_t> untold;
    int begun = 0;
    const int64_t before = us;
    while (begun < requests || !running.empty()) {
      while (begun < requests && std::ssize(running) < rows) {
        running.push_back({cat(seed, ".", begun++), 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(prompt_max)), 20 + static_cast<int64_t>(rng() % 300)});
        untold.push_back(0);
        steps.asked(running.back().rid, running.back().context, us);
      }
      StepShape shape;
      for (const Request& r : running) r.decodes ? shape.add(r.context, 1, 1) : shape.add(0, r.context, 1);
      us += std::llround(cost.predict_us(shape));
      if (held_up_one_in > 0 && others() % held_up_one_in == 0) us += static_cast<int64_t>(others() % 20'000);
      for (size_t i = 0; i < running.size();) {
        Request& r = running[i];
        ++untold[i];
        --r.left;
        const bool is_first = !std::exchange(r.decodes, true);
        r.context += 1;
        if (is_first || untold[i] == part || r.left == 0) steps.came(r.rid, std::exchange(untold[i], 0), 0, us);
        if (r.left > 0) {
          ++i;
          continue;
        }
        steps.ended(r.rid, us);
        running.erase(running.begin() + static_cast<ptrdiff_t>(i));
        untold.erase(untold.begin() + static_cast<ptrdiff_t>(i));
      }
    }
    return us - before;
  }
};

StepCost cost_of(std::initializer_list<std::pair<const char*, double>> us) {
  StepCost cost;
  for (const auto& [name, value] : us)
    for (size_t i = 0; i < kStepFeatures.size(); ++i)
      if (std::string(kStepFeatures[i].name) == name) cost.us[i] = value;
  return cost;
}

}  // namespace

TEST_CASE("learned steps: what decode steps cost is learned from when tokens come, however many come at once") {
  for (const int64_t part : {1, 4}) {
    CAPTURE(part);
    Server server{.cost = cost_of({{"step", 5000}, {"rows", 120}, {"kv_tokens", 0.8}}), .part = part};
    LearnedSteps steps;
    server.run(steps, 300, 400, 1);
    const auto profile = learned_profile(steps.points(), "m", "test");
    REQUIRE(profile.ok());
    for (const int64_t batch : {2, 4, 8})
      for (const int64_t context : {200, 400}) {
        CAPTURE(batch);
        CAPTURE(context);
        StepShape shape;
        for (int64_t i = 0; i < batch; ++i) shape.add(context, 1, 1);
        CHECK(profile->predict_us(shape) == doctest::Approx(server.cost.predict_us(shape)).epsilon(0.06));
      }
  }
}

TEST_CASE("learned steps: prefills are told from decodes by how they slow these down") {
  Server server{.cost = cost_of({{"step", 2000}, {"rows", 30}})};
  LearnedSteps steps;
  server.run(steps, 400, 300, 2);
  const auto profile = learned_profile(steps.points(), "m", "test");
  REQUIRE(profile.ok());
  StepShape with_prefill;
  for (int i = 0; i < 7; ++i) with_prefill.add(200, 1, 1);
  with_prefill.add(0, 150, 1);
  CHECK(profile->predict_us(with_prefill) == doctest::Approx(server.cost.predict_us(with_prefill)).epsilon(0.2));
}

TEST_CASE("learned steps: other work on the same server takes the time that a profile of the work before predicts") {
  Server server{.cost = cost_of({{"step", 1500}, {"rows", 200}, {"kv_tokens", 0.5}, {"attended", 0.002}})};
  LearnedSteps steps;
  server.run(steps, 300, 500, 3);
  const auto profile = learned_profile(steps.points(), "m", "test");
  REQUIRE(profile.ok());
  LearnedSteps ignored;
  const int64_t real_us = server.run(ignored, 100, 250, 4);
  Server replay{.cost = profile->cost};
  CHECK(static_cast<double>(replay.run(ignored, 100, 250, 4)) == doctest::Approx(static_cast<double>(real_us)).epsilon(0.05));
}

TEST_CASE("learned steps: a profile of few steps, some of them held up by other programs, is right about their sum") {
  double real_sum_us = 0, replayed_sum_us = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Server server{.cost = cost_of({{"step", 400}, {"rows", 10}, {"kv_tokens", 0.05}, {"attended", 0.02}}), .part = 4, .held_up_one_in = 20};
    LearnedSteps steps, ignored;
    const int64_t real_us = server.run(steps, 40, 500, seed);
    const auto profile = learned_profile(steps.points(), "m", "test");
    REQUIRE(profile.ok());
    Server replay{.cost = profile->cost};
    const int64_t replayed_us = replay.run(ignored, 40, 500, seed);
    CHECK(static_cast<double>(replayed_us) == doctest::Approx(static_cast<double>(real_us)).epsilon(0.25));
    real_sum_us += static_cast<double>(real_us);
    replayed_sum_us += static_cast<double>(replayed_us);
  }
  CHECK(replayed_sum_us == doctest::Approx(real_sum_us).epsilon(0.05));
}

TEST_CASE("learned steps: two servers that are alike are learned from together, and too little is refused") {
  Server server{.cost = cost_of({{"step", 1000}, {"rows", 100}})};
  LearnedSteps one, other, none;
  server.run(one, 40, 100, 5);
  server.run(other, 40, 100, 6);
  const size_t before = one.points().size();
  one.add(other);
  CHECK(one.points().size() >= before);
  CHECK(learned_profile(one.points(), "m", "test").ok());
  CHECK(learned_profile(none.points(), "m", "test").error().detail.starts_with("steps of 0 kinds were seen often enough"));
}

TEST_CASE("learned steps: answers that are late, empty or of unknown requests change nothing") {
  LearnedSteps steps;
  steps.came("x", 5, 0, 100);
  steps.ended("x", 200);
  steps.asked("a", 10, 300);
  steps.came("a", 0, 0, 400);
  steps.ended("a", 500);
  steps.came("a", 3, 0, 600);
  CHECK(steps.points().empty());
}
