// GivenTimes: an engine that computes nothing, for tests of what measures engines: a step takes the time that it is given, at once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>
#include <variant>
#include <vector>

#include "gpu/engine.h"
#include "protocols/kv.h"
#include "protocols/step_cost.h"

namespace seer {

class GivenTimes final : public Engine {
 public:
  static constexpr int64_t kBlockBytes = 64;
  using StepUs = std::function<int64_t(const StepShape&)>;

  explicit GivenTimes(StepUs step_us = [](const StepShape&) { return 1; }, int32_t blocks = 8)
      : step_us_(std::move(step_us)), memory(static_cast<size_t>(blocks * kBlockBytes), std::byte{1}) {
    info_.vocab_size = 50;
    info_.block_tokens = 16;
    info_.block_bytes = kBlockBytes;
    info_.device_blocks = blocks;
  }
  const EngineInfo& info() const override { return info_; }
  void set_notify(std::function<void()> notify) override { notify_ = std::move(notify); }
  void submit(EngineWork work) override {
    if (const auto* copy = std::get_if<CopyBatch>(&work)) {
      for (const BlockCopy& one : copy->blocks)
        if (crc32c(one.host) == one.crc32c) std::memcpy(memory.data() + one.block * kBlockBytes, one.host.data(), kBlockBytes);
      results_.push_back(CopyResult{.id = copy->id, .direction = copy->direction, .crc32c = {}});
    } else {
      const auto& batch = std::get<StepBatch>(work);
      StepShape shape;
      for (const SequenceStep& s : batch.sequences) shape.add(s.start, std::ssize(s.tokens), s.sample_rows);
      ++steps;
      results_.push_back(StepResult{.id = batch.id, .sampled = {}, .step_us = step_us_(shape)});
    }
    notify_();
  }
  std::vector<EngineResult> take_results() override { return std::exchange(results_, {}); }

 private:
  StepUs step_us_;
  EngineInfo info_;
  std::function<void()> notify_;
  std::vector<EngineResult> results_;

 public:
  std::vector<std::byte> memory;
  int64_t steps = 0;
};

}  // namespace seer
