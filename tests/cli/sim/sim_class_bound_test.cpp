#include "cli/sim/sim_class_bound.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

#include "cli/sim/sim_bound.h"
#include "small_cluster.h"

using namespace seer;

namespace {

/// The fastest schedule, by trying all: whenever an instance is free, it starts a step with any set of requests that run nowhere
/// else and whose KV fits, or waits for another instance's step to end.
class FastestSchedule {
 public:
  FastestSchedule(const ClusterModel& cluster, const SimWork& work) : cluster_(cluster) {
    for (size_t g = 0; g < work.groups.size(); ++g)
      for (const int64_t tokens : work.groups[g].output_tokens)
        requests_.push_back({g, work.groups[g].prompt_tokens, tokens - 1});
  }

  int64_t total_ns() {
    State state{{}, std::vector<Instance>(static_cast<size_t>(cluster_.instances))};
    for (const Request& r : requests_) state.left.push_back(r.steps);
    return rest_ns(state);
  }

 private:
  struct Request {
    size_t group;
    int64_t prompt, steps;
  };
  struct Instance {
    uint32_t running = 0;  // requests, as bits; 0: free
    int64_t left_ns = 0;   // of its step
    bool waits = false;    // free until another's step ends
    auto operator<=>(const Instance&) const = default;
  };
  struct State {
    std::vector<int64_t> left;  // steps of each request
    std::vector<Instance> instances;
    auto operator<=>(const State&) const = default;
  };

  int64_t rest_ns(const State& state) {
    if (std::ranges::all_of(state.left, [](int64_t left) { return left == 0; }) &&
        std::ranges::all_of(state.instances, [](const Instance& i) { return i.running == 0; }))
      return 0;
    if (const auto known = known_.find(state); known != known_.end()) return known->second;
    const auto free = std::ranges::find_if(state.instances, [](const Instance& i) { return i.running == 0 && !i.waits; });
    int64_t least = kNever;
    if (free == state.instances.end()) {
      least = after_next_end(state);
    } else {
      const auto index = static_cast<size_t>(free - state.instances.begin());
      uint32_t taken = 0;
      for (const Instance& i : state.instances) taken |= i.running;
      for (uint32_t chosen = 1; chosen < (1u << requests_.size()); ++chosen) {
        const int64_t ns = (chosen & taken) != 0 ? kNever : step_ns(state, chosen);
        if (ns == kNever) continue;
        State next = state;
        next.instances[index] = {chosen, ns, false};
        least = std::min(least, rest_ns(next));
      }
      State next = state;
      next.instances[index].waits = true;
      least = std::min(least, rest_ns(next));
    }
    known_[state] = least;
    return least;
  }

  int64_t after_next_end(const State& state) {
    int64_t ns = kNever;
    for (const Instance& i : state.instances)
      if (i.running != 0) ns = std::min(ns, i.left_ns);
    if (ns == kNever) return kNever;  // all wait
    State next = state;
    for (Instance& i : next.instances) {
      i.waits = false;
      if (i.running == 0) continue;
      i.left_ns -= ns;
      if (i.left_ns > 0) continue;
      for (size_t r = 0; r < requests_.size(); ++r)
        if ((i.running >> r & 1) != 0) --next.left[r];
      i = {};
    }
    const int64_t rest = rest_ns(next);
    return rest == kNever ? kNever : ns + rest;
  }

  /// kNever: the step is not possible.
  int64_t step_ns(const State& state, uint32_t chosen) const {
    StepShape shape;
    int64_t held = 0;
    std::vector<bool> has_prompt(requests_.size());
    for (size_t r = 0; r < requests_.size(); ++r) {
      if ((chosen >> r & 1) == 0) continue;
      if (state.left[r] == 0) return kNever;
      const Request& request = requests_[r];
      const int64_t generated = request.steps - state.left[r] + 1;
      held += generated + (has_prompt[request.group] ? 0 : request.prompt);
      has_prompt[request.group] = true;
      shape.kv_tokens += request.prompt + generated;
      ++shape.sequences;
    }
    if (shape.sequences > cluster_.rows_max || held > cluster_.kv_tokens) return kNever;
    shape.rows = shape.sampled_rows = shape.sequences;
    shape.attended = shape.kv_tokens;
    return cluster_.step_ns(shape);
  }

  static constexpr int64_t kNever = int64_t{1} << 60;
  const ClusterModel& cluster_;
  std::vector<Request> requests_;
  std::map<State, int64_t> known_;
};

}  // namespace

TEST_CASE("class bound: on tiny clusters no schedule is faster, and it is not far from the fastest") {
  double shares = 0, least_share = 1;
  constexpr uint32_t kSeeds = 150;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto between = [&](int64_t low, int64_t high) { return std::uniform_int_distribution(low, high)(random); };
    ClusterModel cluster = small_cluster();
    cluster.instances = between(1, 2);
    cluster.rows_max = between(1, 4);
    SimWork work{.groups = {}, .max_gen = 8};
    int64_t longest = 0;
    for (int64_t left = between(2, 4); left > 0;) {
      GroupLengths group{.prompt_tokens = between(1, 4), .output_tokens = {}};
      for (int64_t samples = between(1, left); samples > 0; --samples, --left) {
        group.output_tokens.push_back(between(1, cluster.instances == 1 ? 6 : 5));
        longest = std::max(longest, group.prompt_tokens + group.output_tokens.back());
      }
      work.groups.push_back(std::move(group));
    }
    cluster.kv_tokens = longest + between(0, 12);
    const int64_t step = between(0, 50), row = between(0, 20), read = between(0, 4), knee = between(1, 12), steep = between(0, 9);
    cluster.step_ns = [=](const StepShape& s) {
      return 100 * (1 + std::max(step, row * s.rows) + read * s.kv_tokens + steep * std::max<int64_t>(0, s.kv_tokens - knee));
    };
    const double fastest_s = static_cast<double>(FastestSchedule(cluster, work).total_ns()) / 1e9;
    const SimBounds bounds = lower_bounds(cluster, work);
    CHECK(class_bound(cluster, work).bound_s <= fastest_s * (1 + 1e-9));
    CHECK(bounds.tight_s <= fastest_s * (1 + 1e-9));
    CHECK(bounds.tight_s >= bounds.work_s);
    if (fastest_s == 0) continue;
    shares += bounds.tight_s / fastest_s / kSeeds;
    least_share = std::min(least_share, bounds.tight_s / fastest_s);
  }
  MESSAGE("bound over fastest: mean ", shares, ", least ", least_share);
  CHECK(shares > 0.8);
}

TEST_CASE("class bound: long responses leave room for few rows beside them") {
  ClusterModel cluster = small_cluster();
  cluster.instances = 2;
  cluster.rows_max = 64;
  cluster.step_ns = [](const StepShape& s) { return 1'000'000 * (10 + s.rows); };
  SimWork work{.groups = {}, .max_gen = 6000};
  for (int i = 0; i < 2; ++i) work.groups.push_back({.prompt_tokens = 1, .output_tokens = {101}});
  for (int i = 0; i < 100; ++i) work.groups.push_back({.prompt_tokens = 1, .output_tokens = {21}});
  const SimBounds bounds = lower_bounds(cluster, work);
  // By work alone: 2200 rows, 64 in each step of 74 ms.
  CHECK(bounds.work_s == doctest::Approx(2200 * 74 / 64.0 / 2 / 1000).epsilon(0.002));
  // Within T ms, 100 steps of a long one may take T / 100 ms each, so they have T / 100 - 10 rows. Their 200 rows take 2 T / (T / 100 - 10)
  // ms of an instance's time (here the bound lets a step have more rows of a class than the class has responses), and the others, in full
  // batches, 2000 * 74 / 64 ms. Both instances together have 2 T ms.
  const double t = 1000 * bounds.tight_s;
  CHECK(2 * t - 2 * t / (t / 100 - 10) == doctest::Approx(2000 * 74 / 64.0).epsilon(0.005));
  CHECK(bounds.tight_s > 1.1 * bounds.work_s);
}

TEST_CASE("class bound: without long responses it is the bound by work") {
  ClusterModel cluster = small_cluster();
  cluster.instances = 2;
  cluster.kv_tokens = 16384;
  cluster.step_ns = [](const StepShape& s) { return 5'000'000 + 1000 * s.rows + s.kv_tokens; };
  SimWork work{.groups = {}, .max_gen = 6000};
  for (int i = 0; i < 400; ++i) work.groups.push_back({.prompt_tokens = 1, .output_tokens = {2000 + i % 7, 1900}});
  const SimBounds bounds = lower_bounds(cluster, work);
  CHECK(class_bound(cluster, work).bound_s == doctest::Approx(bounds.work_s).epsilon(0.01));
}

TEST_CASE("class bound: responses of one token have no decode step") {
  SimWork work{.groups = {{.prompt_tokens = 5, .output_tokens = {1, 1}}}, .max_gen = 6000};
  CHECK(class_bound(small_cluster(), work).bound_s == 0);
}
