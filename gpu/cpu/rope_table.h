// RopeTable: cosines and sines of every position, computed in double by exact_math and rounded once to float, so that
// they are the same on every machine. Grows for longer contexts. Used by CpuForward: one thread calls reserve(), then any
// thread may read.
#pragma once
#include <cstdint>
#include <vector>

#include "gpu/model/model_config.h"

namespace seer {

class RopeTable {
 public:
  explicit RopeTable(const ModelConfig& config)
      : frequencies_(rope_frequencies(config)), factor_(config.rope.attention_factor) {}

  /// Makes positions [0, positions) readable.
  void reserve(int64_t positions);
  int32_t half() const { return static_cast<int32_t>(frequencies_.size()); }
  /// half() floats each. REQUIRES: position below what was reserved.
  const float* cosines(int64_t position) const {
    return segments_[position / kSegment].data() + position % kSegment * 2 * half();
  }
  const float* sines(int64_t position) const { return cosines(position) + half(); }

 private:
  static constexpr int64_t kSegment = 512;  // positions computed at a time

  std::vector<double> frequencies_;
  double factor_;
  std::vector<std::vector<float>> segments_;  // each [kSegment][cosines, sines]
};

}  // namespace seer
