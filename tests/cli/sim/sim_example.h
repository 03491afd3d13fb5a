// A toy rollout for tests of reports: requests of a group have similar lengths, instances run a fixed number at a time,
// and a policy is a way to deal requests. Its shapes are plausible, its figures are not meant to be right.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "cli/sim/sim_report.h"

namespace seer {

struct SimExamplePolicy {
  std::string name;
  bool grouped = false;        // a group's requests stay on the instance that the group was dealt to
  bool longest_first = false;  // else in the order of the groups
  double speed = 1;            // of every request, as if from drafting
  double done_share = 1;       // the iteration ends when so many are done
};

struct SimExampleShape {
  std::string workload = "moonlight";
  int64_t instances = 8;
  int64_t groups = 60;
  int64_t group_requests = 8;
  int64_t slots = 12;      // requests that an instance runs at a time
  double token_s = 0.045;  // time of a token of one request
};

inline SimRun sim_example(const SimExampleShape& shape, const SimExamplePolicy& policy, uint64_t seed) {
  struct Request {
    double tokens;
    int64_t instance;
  };
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<Request> waiting;
  double all_tokens = 0, longest = 0;
  for (int64_t group = 0; group < shape.groups; ++group) {
    const double typical = 9.4 + 0.8 * normal(random);
    for (int64_t i = 0; i < shape.group_requests; ++i) {
      const double tokens = std::min(std::exp(typical + 0.3 * normal(random)), 65536.0);
      waiting.push_back({tokens, policy.grouped ? group % shape.instances : -1});
      all_tokens += tokens;
      longest = std::max(longest, tokens);
    }
  }
  const auto ending = static_cast<size_t>(static_cast<double>(waiting.size()) * policy.done_share);
  if (policy.longest_first)
    std::ranges::stable_sort(waiting, std::greater{}, [](const Request& r) { return r.tokens; });

  SimRun run{.workload = shape.workload, .policy = policy.name, .seed = seed, .is_synchronous = policy.done_share == 1};
  run.instances.resize(static_cast<size_t>(shape.instances));
  std::vector<int64_t> running(run.instances.size(), 0);
  std::priority_queue<std::pair<double, size_t>, std::vector<std::pair<double, size_t>>, std::greater<>> ends;
  double now_s = 0, busy_s = 0;
  const auto fill = [&](size_t at) {
    for (auto r = waiting.begin(); r != waiting.end() && running[at] < shape.slots;) {
      if (r->instance >= 0 && r->instance != static_cast<int64_t>(at)) {
        ++r;
        continue;
      }
      ends.push({now_s + r->tokens * shape.token_s / policy.speed, at});
      run.output_tokens += static_cast<int64_t>(r->tokens);
      ++running[at];
      r = waiting.erase(r);
    }
    const double used = static_cast<double>(running[at]) / static_cast<double>(shape.slots);
    run.instances[at].push_back({now_s, running[at], used * (0.85 + 0.15 * std::sin(now_s / 90))});
  };
  for (size_t i = 0; i < running.size(); ++i) fill(i);
  while (!ends.empty() && run.completions_s.size() < ending) {
    const auto [end_s, at] = ends.top();
    ends.pop();
    for (const int64_t count : running) busy_s += count > 0 ? end_s - now_s : 0;
    now_s = end_s;
    run.completions_s.push_back(now_s);
    --running[at];
    fill(at);
  }
  run.requests = std::ssize(run.completions_s);
  run.total_s = now_s;
  run.tail_s = now_s - run.completions_s[(run.completions_s.size() * 9 + 9) / 10 - 1];
  // Every slot busy all the time, and no request faster than alone.
  run.bound_total_s =
      shape.token_s / policy.speed * std::max(all_tokens / static_cast<double>(shape.slots * shape.instances), longest);
  run.tokens_per_s = static_cast<double>(run.output_tokens) / run.total_s;
  run.idle_share = 1 - busy_s / (run.total_s * static_cast<double>(shape.instances));
  run.preemptions = policy.grouped ? 4000 + static_cast<int64_t>(seed % 97) * 13 : 0;
  run.reprefill_tokens = run.preemptions * 9000;
  run.migrations = policy.grouped ? 0 : run.requests * 3;
  if (policy.longest_first) run.estimate_error = 0.2 + 0.01 * normal(random);
  run.events_hash = random();
  return run;
}

inline std::vector<SimExamplePolicy> sim_example_policies() {
  return {{"verl", true},
          {"verl+sd", true, false, 1.16},
          {"streamrl", true, true},
          {"streamrl+sd", true, true, 1.2},
          {"divided", false},
          {"context", false, true},
          {"seer", false, true, 1.3},
          {"seer-linear", false, true, 1.25},
          {"oracle", false, true, 1.32},
          {"partial", false, false, 1, 0.8}};
}

}  // namespace seer
