// Time of one sample_row() per rule and vocabulary, one JSON line each: {"bench", "vocab", "rule", "us_p50", "us_p90"}.
// The lower limit is one pass over the logits: 152064 x 4 B = 0.6 MB, about 15 us at 40 GB/s from the caches.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "gpu/cpu/kernels.h"
#include "gpu/sampler.h"

using namespace seer;

namespace {

struct Rule {
  const char* name;
  float temperature, top_p;
  int32_t top_k;
  float min_p, penalty;
};
constexpr Rule kRules[] = {
    {"greedy", 0, 1, 0, 0, 1},         {"temperature", 1, 1, 0, 0, 1},         {"top_k_20", 1, 1, 20, 0, 1},
    {"top_p_0.95", 1, 0.95f, 0, 0, 1}, {"top_k_20_top_p", 1, 0.95f, 20, 0, 1}, {"min_p_0.05", 1, 1, 0, 0.05f, 1},
    {"penalty_1.1", 1, 1, 0, 0, 1.1f}};

void run(int32_t vocab, const Rule& rule) {
  std::mt19937_64 rng(1);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& x : logits) x = normal(rng);
  std::vector<int32_t> history(4096);
  for (int32_t& token : history) token = static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab));
  SamplingParams params;
  params.temperature = rule.temperature;
  params.top_p = rule.top_p;
  params.top_k = rule.top_k;
  params.min_p = rule.min_p;
  params.repetition_penalty = rule.penalty;
  std::vector<double> us;
  for (int64_t position = 0; position < 200; ++position) {
    auto row = logits;
    const auto start = std::chrono::steady_clock::now();
    sample_row(row, params, 1, position, history);
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(us.begin(), us.end());
  std::cout << nlohmann::json{{"bench", "sampler"},          {"vocab", vocab},
                              {"rule", rule.name},           {"kernels", cpu_kernels(CpuIsa::kAuto)->name},
                              {"us_p50", us[us.size() / 2]}, {"us_p90", us[us.size() * 9 / 10]}}
            << "\n";
}

}  // namespace

int main() {
  for (int32_t vocab : {320, 152'064})
    for (const Rule& rule : kRules) run(vocab, rule);
}
