#include "gpu/sim_engine.h"

#include <cstring>
#include <utility>

#include "protocols/check.h"
#include "protocols/kv.h"

namespace seer {

SimEngine::SimEngine(SimEngineConfig config, Oracle oracle, After after)
    : config_(std::move(config)),
      oracle_(std::move(oracle)),
      after_(std::move(after)),
      memory_(static_cast<size_t>(config_.info.block_bytes * config_.info.device_blocks)) {
  SEER_CHECK(config_.info.block_bytes >= kSimTokenBytes * config_.info.block_tokens, config_.info.block_bytes);
}

void SimEngine::submit(EngineWork work) {
  SEER_CHECK(queue_.size() < kEngineQueueMax, queue_.size());
  queue_.push_back(std::move(work));
  if (!busy_) start_next();
}

std::vector<EngineResult> SimEngine::take_results() { return std::exchange(results_, {}); }

/// Work takes effect when its time is over, in order.
void SimEngine::start_next() {
  if (queue_.empty()) return;
  busy_ = true;
  int64_t us = 0;
  if (const auto* step = std::get_if<StepBatch>(&queue_.front())) {
    us = config_.step_us_base;
    for (const SequenceStep& s : step->sequences) us += config_.step_us_row * static_cast<int64_t>(s.tokens.size());
  } else {
    us = config_.copy_us_block * static_cast<int64_t>(std::get<CopyBatch>(queue_.front()).blocks.size());
  }
  after_(us, [this, us, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired()) return;
    EngineWork work = std::move(queue_.front());
    queue_.pop_front();
    results_.push_back(std::visit([this](const auto& w) -> EngineResult { return run(w); }, work));
    if (auto* step = std::get_if<StepResult>(&results_.back())) step->step_us = us;
    busy_ = false;
    start_next();
    notify_();
  });
}

std::byte* SimEngine::token_at(const SequenceStep& sequence, int64_t position) {
  const auto block = static_cast<size_t>(position / config_.info.block_tokens);
  SEER_CHECK(block < sequence.blocks.size(), position, sequence.blocks.size());
  return memory_.data() + static_cast<int64_t>(sequence.blocks[block]) * config_.info.block_bytes +
         position % config_.info.block_tokens * kSimTokenBytes;
}

StepResult SimEngine::run(const StepBatch& batch) {
  StepResult result{.id = batch.id, .sampled = {}};
  for (const SequenceStep& sequence : batch.sequences) {
    PrefixHash prefix;
    if (sequence.start > 0) std::memcpy(&prefix, token_at(sequence, sequence.start - 1), sizeof prefix);
    const auto rows = static_cast<int64_t>(sequence.tokens.size());
    std::vector<SampledToken> sampled;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t position = sequence.start + row;
      prefix = extend_prefix(prefix, std::span(&sequence.tokens[static_cast<size_t>(row)], 1));
      std::memcpy(token_at(sequence, position), &prefix, sizeof prefix);
      if (row < rows - sequence.sample_rows) continue;
      // The log-probability carries the prefix hash: a response whose KV was ever wrong shows it.
      sampled.push_back({oracle_(sequence.seed, position + 1), -1.0f - static_cast<float>(prefix.hi & 0xffff) / 65536.0f});
    }
    result.sampled.push_back(std::move(sampled));
  }
  return result;
}

CopyResult SimEngine::run(const CopyBatch& batch) {
  CopyResult result{.id = batch.id, .direction = batch.direction, .crc32c = {}};
  for (const BlockCopy& copy : batch.blocks) {
    const std::span device(memory_.data() + static_cast<int64_t>(copy.block) * config_.info.block_bytes,
                           static_cast<size_t>(config_.info.block_bytes));
    if (batch.direction == CopyBatch::Direction::kExport) {
      std::memcpy(copy.host.data(), device.data(), device.size());
      result.crc32c.push_back(crc32c(copy.host));
    } else {
      result.crc32c.push_back(crc32c(copy.host));
      if (result.crc32c.back() == copy.crc32c) std::memcpy(device.data(), copy.host.data(), device.size());
    }
  }
  return result;
}

}  // namespace seer
