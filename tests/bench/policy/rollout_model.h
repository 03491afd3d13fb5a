// What bench_policy measures on: the paper's three workloads, how long a step of their instances takes, and random
// response lengths. Units: seconds, bytes, tokens. Sources: paper section 6 (workloads), the project's scheduling study
// (cost model, fitted to the paper's veRL totals by one time scale per workload).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace seer::bench {

/// A model on a fleet, and the work of one iteration.
struct Workload {
  std::string name;
  int instances, requests, group_size;
  int64_t mean_tokens, limit_tokens, prompt_tokens;
  int layers;
  double dense_bytes, expert_bytes;  // weights outside and inside of routed experts
  int experts, experts_per_token;    // 0: dense
  double active_params;
  int gpus;  // per instance
  double hidden_size, kv_token_bytes;
  double attention_flop;   // per new token and token of context
  bool expert_parallel;    // else tensor parallel
  double kv_bytes_gpu;     // KV cache per GPU
  double step_overhead_s;  // host and launches
  int rows_max;
  double time_scale;
};

inline const std::vector<Workload>& workloads() {
  static const std::vector<Workload> all = {
      {"moonlight",
       32,
       3200,
       8,
       22386,
       65536,
       512,
       27,
       3.1e9,
       28.8e9,
       64,
       6,
       2.9e9,
       1,
       2048,
       31104,
       2.0 * (576 + 512) * 64 * 27,
       false,
       30e9,
       4e-3,
       256,
       1.75},
      {"qwen2-vl-72b",      16,    9600, 16,   7615, 40960, 1500, 80, 146e9, 0, 0, 0, 72.7e9, 8, 8192, 327680,
       4.0 * 64 * 128 * 80, false, 20e9, 6e-3, 256,  0.94},
      {"kimi-k2",
       8,
       6400,
       8,
       38959,
       98304,
       512,
       61,
       13e9,
       1010e9,
       384,
       8,
       32.6e9,
       32,
       7168,
       70272,
       2.0 * (576 + 512) * 64 * 61,
       true,
       27e9,
       8e-3,
       1024,
       1.80}};
  return all;
}

/// Time of a step = fixed_s + token_s * context tokens of all its rows.
struct StepCost {
  double fixed_s = 0, token_s = 0;
};

/// H800 GPUs: a roofline over weights read, arithmetic and communication, times the workload's scale.
class CostModel {
 public:
  explicit CostModel(const Workload& workload) : w_(workload) {}

  StepCost step(double rows) const {
    const double gpus = w_.gpus;
    const double read_share = w_.experts ? 1 - std::pow(1 - double(w_.experts_per_token) / w_.experts, rows) : 0;
    double weights_s, flops_s, comm_s, kv_share;
    if (w_.expert_parallel) {
      const double rank_rows = std::ceil(rows / gpus);
      weights_s = (w_.dense_bytes + w_.expert_bytes / gpus * read_share) / (kHbm * 0.75);
      flops_s = 2 * w_.active_params * rank_rows / (kFlops * 0.55);
      comm_s = w_.layers * 2 * (60e-6 + rank_rows * w_.experts_per_token * w_.hidden_size * 1.5 / kNic * 0.75);
      kv_share = rank_rows / std::max(1.0, rows);  // read by the busiest rank
    } else {
      weights_s = (w_.dense_bytes + w_.expert_bytes * read_share) / gpus / (kHbm * 0.75);
      flops_s = 2 * w_.active_params * rows / gpus / (kFlops * 0.55);
      const double moved = rows * w_.hidden_size * 4 * (gpus - 1) / gpus / kNvlink;
      comm_s = gpus > 1 ? w_.layers * 2 * (15e-6 + moved) : 0;
      kv_share = 1 / gpus;
    }
    const double token_s = std::max(w_.kv_token_bytes / (kHbm * 0.6), w_.attention_flop / (kFlops * 0.55)) * kv_share;
    return {w_.time_scale * (std::max(weights_s, flops_s) + comm_s + w_.step_overhead_s + 20e-6 * rows),
            w_.time_scale * token_s};
  }
  int64_t capacity_tokens() const { return static_cast<int64_t>(w_.kv_bytes_gpu / w_.kv_token_bytes * w_.gpus); }
  double prefill_s(int64_t tokens) const {
    return w_.time_scale * 2 * w_.active_params * static_cast<double>(tokens) / (kFlops * 0.5 * w_.gpus);
  }
  /// KV pulled from the pool over the instance's network cards.
  double pull_s(int64_t tokens) const {
    return static_cast<double>(tokens) * w_.kv_token_bytes / (kNic * std::min(w_.gpus, 8));
  }

 private:
  static constexpr double kHbm = 3.35e12, kNvlink = 200e9, kNic = 50e9;  // bytes/s
  static constexpr double kFlops = 989e12;                               // bf16, per second

  Workload w_;
};

struct LengthLaw {
  double sigma = 1;          // standard deviation of ln(length)
  double icc = 0.6;          // share of its variance that lies between groups
  double runaway_share = 0;  // responses that go on to the limit, whatever their group
};

/// Log-normal response lengths, group after group, cut at the limit, with the workload's mean after the cut.
inline std::vector<int64_t> draw_lengths(const Workload& w, const LengthLaw& law, uint64_t seed) {
  std::mt19937_64 rng(seed * 7919 + 13);
  std::normal_distribution<double> normal;
  const double between = law.sigma * std::sqrt(law.icc), within = law.sigma * std::sqrt(1 - law.icc);
  std::vector<double> deviations;
  for (int group = 0; group < w.requests / w.group_size; ++group) {
    const double shared = normal(rng) * between;
    for (int sample = 0; sample < w.group_size; ++sample) deviations.push_back(shared + normal(rng) * within);
  }
  std::uniform_real_distribution<double> uniform;
  std::vector<bool> runs_away;
  for (size_t i = 0; i < deviations.size(); ++i) runs_away.push_back(uniform(rng) < law.runaway_share);
  const auto lengths_at = [&](double log_mean) {
    std::vector<int64_t> lengths;
    for (size_t i = 0; i < deviations.size(); ++i) {
      const double length = std::clamp(std::exp(log_mean + deviations[i]), 64.0, double(w.limit_tokens));
      lengths.push_back(runs_away[i] ? w.limit_tokens : static_cast<int64_t>(length));
    }
    return lengths;
  };
  double low = 3, high = 14;
  for (int step = 0; step < 50; ++step) {
    const double middle = 0.5 * (low + high);
    double sum = 0;
    for (int64_t length : lengths_at(middle)) sum += static_cast<double>(length);
    (sum < static_cast<double>(w.mean_tokens) * static_cast<double>(deviations.size()) ? low : high) = middle;
  }
  return lengths_at(low);
}

}  // namespace seer::bench
