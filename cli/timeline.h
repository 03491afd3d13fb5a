// Timeline: the load of an instance over a rollout, in at most about kSamplesMax samples, however long the rollout is.
// Written by `seer rollout` and `seer simulate`, drawn by sim_html.h. Single owner, not thread-safe.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace seer {

/// The load from time_s until the next sample.
struct LoadSample {
  double time_s = 0;         // since the iteration started
  int64_t running = 0;       // requests
  double kv_used_share = 0;  // KV blocks in use / KV blocks of the instance, 0..1
};
using InstanceTimeline = std::vector<LoadSample>;  // in order of time_s

/// Records a timeline. Drops every second sample when there are too many, so that they stay evenly spaced.
class TimelineRecorder {
 public:
  static constexpr size_t kSamplesMax = 1024;

  /// `running` requests ran from time_s until end_s. Between two such stretches the instance is idle.
  void add(double time_s, double end_s, int64_t running, double kv_used_share) {
    if (!samples_.empty() && time_s > end_s_ + gap_s_) samples_.push_back({end_s_, 0, 0});
    end_s_ = end_s;
    if (!keeps(time_s)) return;
    samples_.push_back({time_s, running, kv_used_share});
    if (samples_.size() < kSamplesMax) return;
    size_t kept = 0;
    for (size_t i = 0; i < samples_.size(); i += 2) samples_[kept++] = samples_[i];
    samples_.resize(kept);
    gap_s_ = 2 * std::max(gap_s_, samples_.back().time_s / static_cast<double>(kSamplesMax));
  }
  /// False if time_s is too soon after the last sample for a new one.
  bool keeps(double time_s) const { return samples_.empty() || time_s >= samples_.back().time_s + gap_s_; }
  InstanceTimeline take(double end_s) {
    if (!samples_.empty()) samples_.push_back({end_s_, 0, 0});
    if (samples_.empty() || end_s > end_s_) samples_.push_back({end_s, 0, 0});
    return std::move(samples_);
  }

 private:
  InstanceTimeline samples_;
  double gap_s_ = 0;
  double end_s_ = 0;  // of the last stretch
};

}  // namespace seer
