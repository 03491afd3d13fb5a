// RowEngine: an engine that computes given rows at once. At each position it samples a token that depends only on the
// position, and it keeps its input for the test to check.
#pragma once
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "gpu/engine.h"

namespace seer {

class RowEngine final : public Engine {
 public:
  static constexpr int32_t kEos = 9;

  explicit RowEngine(int32_t device_blocks = 16, size_t queue_max = 64) {
    info_.block_tokens = 4;
    info_.block_bytes = 64;
    info_.device_blocks = device_blocks;
    info_.queue_max = queue_max;
    info_.eos_ids = {kEos};
    info_.context_tokens_max = 1 << 20;
    info_.kv_hash = 7;
    info_.orders_max = 2;
  }
  /// Of the token at this position.
  static int32_t token(int64_t position) { return 100 + static_cast<int32_t>(position); }

  const EngineInfo& info() const override { return info_; }
  void set_notify(std::function<void()>) override {}
  void submit(EngineWork work) override {
    if (auto* const copy = std::get_if<CopyBatch>(&work)) {
      copies.push_back(*copy);
      CopyResult result{.id = copy->id, .direction = copy->direction};
      for (const BlockCopy& block : copy->blocks) result.crc32c.push_back(block.crc32c);
      results_.emplace_back(std::move(result));
      return;
    }
    auto& batch = std::get<StepBatch>(work);
    for (SequenceStep& s : batch.sequences)
      if (s.fed_by >= 0) s.tokens[0] = last_tokens_.at(static_cast<size_t>(s.fed_by));
    steps.push_back(batch.sequences);
    StepResult result{.id = batch.id, .step_us = 10};
    for (const SequenceStep& s : batch.sequences) result.sampled.push_back(sample(s));
    last_tokens_.clear();
    for (const auto& sampled : result.sampled) last_tokens_.push_back(sampled.empty() ? 0 : sampled.back().token);
    result.spent = std::move(batch.sequences);
    results_.emplace_back(std::move(result));
  }
  std::vector<EngineResult> take_results() override { return std::exchange(results_, {}); }

  std::vector<std::vector<SequenceStep>> steps;  // the rows of each step so far
  std::vector<CopyBatch> copies;
  std::map<int64_t, int32_t> special;            // tokens at positions where they are not token()

 private:
  std::vector<SampledToken> sample(const SequenceStep& s) const {
    std::vector<int64_t> depths;
    std::vector<SampledToken> sampled;
    for (size_t row = 0; row < s.tokens.size(); ++row) {
      const int32_t parent = s.parents.empty() ? static_cast<int32_t>(row) - 1 : s.parents[row];
      depths.push_back(parent < 0 ? 0 : depths[static_cast<size_t>(parent)] + 1);
      const int64_t next = s.start + depths.back() + 1;
      if (row + static_cast<size_t>(s.sample_rows) < s.tokens.size()) continue;
      sampled.push_back({special.contains(next) ? special.at(next) : token(next), -1.0f});
    }
    return sampled;
  }

  EngineInfo info_;
  std::vector<EngineResult> results_;
  std::vector<int32_t> last_tokens_;  // per sequence of the last step
};

}  // namespace seer
