// StepCost: how long a step of an engine takes: a sum over features of the step, the amount of each times its cost per unit
// on this engine. Scheduling policies, the draft budget and the simulator all predict with this one model. `seer profile`
// measures the costs (gpu/step_profile.h holds them with their file format). Pure data.
//
// The features: a constant per step (the weights of the layers, read once; handing work to threads); the head's weights, read
// when any row is sampled; counts of sequences, rows and sampled rows; KV that is read; and products of a row with a position
// it attends to. Time over rows is a line with bends: up to some number of rows, reading the weights takes longer than their
// arithmetic, and small tiles of rows cost more per row. So there are features min(rows, k) and max(0, rows - k) for a few k.
// KV has bends too: the more there is, the less of it fits into a cache, and the few rows of a verify share one read at less
// cost than the many rows of a prefill. No cost is negative. Adding a sequence lowers no feature but attended_above_4: a
// decode adds one pair per position, so next to a long prefill it may lower the predicted time.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace seer {

/// What is in one step, summed over its sequences.
struct StepShape {
  int64_t sequences = 0;
  int64_t rows = 0;          // tokens fed
  int64_t sampled_rows = 0;  // of them sampled or scored
  int64_t kv_tokens = 0;     // positions whose K and V are read, those of the rows included
  int64_t attended = 0;      // (row, position) pairs: a row attends to all positions up to its own

  /// One more sequence: `rows` rows from position `start` on, the last `sampled` of them sampled. Decode: 1 row,
  /// sampled; verify: all rows sampled; prefill: 0 or 1 sampled.
  void add(int64_t start, int64_t sequence_rows, int64_t sampled) {
    sequences += 1;
    rows += sequence_rows;
    sampled_rows += sampled;
    kv_tokens += start + sequence_rows;
    attended += sequence_rows * start + sequence_rows * (sequence_rows + 1) / 2;
  }
  bool operator==(const StepShape&) const = default;
};

struct StepFeature {
  const char* name;  // in the profile's file
  const char* unit;  // what the cost is per
  double (*amount)(const StepShape& shape);
};

/// min(rows, kKnee) and max(0, rows - kKnee).
template <int64_t kKnee>
constexpr double rows_up_to(const StepShape& s) {
  return static_cast<double>(s.rows < kKnee ? s.rows : kKnee);
}
template <int64_t kKnee>
constexpr double rows_above(const StepShape& s) {
  return static_cast<double>(s.rows > kKnee ? s.rows - kKnee : 0);
}
/// max(0, kv_tokens - kKnee).
template <int64_t kKnee>
constexpr double kv_tokens_above(const StepShape& s) {
  return static_cast<double>(s.kv_tokens > kKnee ? s.kv_tokens - kKnee : 0);
}

/// max(0, attended - kPairs * kv_tokens).
template <int64_t kPairs>
constexpr double attended_above(const StepShape& s) {
  return static_cast<double>(s.attended > kPairs * s.kv_tokens ? s.attended - kPairs * s.kv_tokens : 0);
}

inline constexpr std::array kStepFeatures{
    StepFeature{"step", "step", [](const StepShape&) { return 1.0; }},
    StepFeature{"sampling_step", "step with a sampled row",
                [](const StepShape& s) { return s.sampled_rows > 0 ? 1.0 : 0.0; }},
    StepFeature{"sequences", "sequence", [](const StepShape& s) { return static_cast<double>(s.sequences); }},
    StepFeature{"rows", "row", [](const StepShape& s) { return static_cast<double>(s.rows); }},
    StepFeature{"rows_up_to_4", "row of the first 4", rows_up_to<4>},
    StepFeature{"rows_up_to_16", "row of the first 16", rows_up_to<16>},
    StepFeature{"rows_above_4", "row after the first 4", rows_above<4>},
    StepFeature{"rows_above_16", "row after the first 16", rows_above<16>},
    StepFeature{"rows_above_64", "row after the first 64", rows_above<64>},
    StepFeature{"sampled_rows", "sampled row", [](const StepShape& s) { return static_cast<double>(s.sampled_rows); }},
    StepFeature{"kv_tokens", "position whose K and V are read",
                [](const StepShape& s) { return static_cast<double>(s.kv_tokens); }},
    StepFeature{"kv_tokens_above_4096", "position read after the first 4096", kv_tokens_above<4096>},
    StepFeature{"kv_tokens_above_32768", "position read after the first 32768", kv_tokens_above<32768>},
    StepFeature{"attended", "pair of a row and a position it attends to",
                [](const StepShape& s) { return static_cast<double>(s.attended); }},
    StepFeature{"attended_above_4", "such pair after the first 4 of a position", attended_above<4>},
};

/// What one unit of each feature costs, in microseconds.
struct StepCost {
  std::array<double, kStepFeatures.size()> us{};

  double predict_us(const StepShape& shape) const {
    double total = 0;
    for (size_t i = 0; i < kStepFeatures.size(); ++i) total += us[i] * kStepFeatures[i].amount(shape);
    return total;
  }
};

}  // namespace seer
