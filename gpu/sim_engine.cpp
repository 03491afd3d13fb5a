#include "gpu/sim_engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "protocols/check.h"
#include "protocols/kv.h"

namespace seer {

namespace {

StepShape shape_of(const StepBatch& batch) {
  StepShape shape;
  for (const SequenceStep& s : batch.sequences) shape.add(s.start, std::ssize(s.tokens), s.sample_rows);
  return shape;
}

}  // namespace

SimEngine::SimEngine(SimEngineConfig config, Oracle oracle, After after, Clock clock)
    : config_(std::move(config)), oracle_(std::move(oracle)), after_(std::move(after)), clock_(std::move(clock)) {
  const EngineInfo& info = config_.info;
  SEER_CHECK(info.steps_max == 1 || (!config_.has_kv && config_.last_position), info.steps_max);
  if (!config_.has_kv) {
    SEER_CHECK(clock_.now_ns);
    return;
  }
  SEER_CHECK(info.block_bytes >= kSimTokenBytes * info.block_tokens, info.block_bytes);
  memory_.resize(static_cast<size_t>(info.block_bytes * info.device_blocks));
}

void SimEngine::submit(EngineWork work) {
  SEER_CHECK(queue_.size() < kEngineQueueMax, queue_.size());
  if (const auto* copy = std::get_if<CopyBatch>(&work); copy != nullptr && !config_.has_kv) return copy_beside(*copy);
  queue_.push_back(std::move(work));
  if (!busy_) start_next();
}

std::vector<EngineResult> SimEngine::take_results() { return std::exchange(results_, {}); }

int64_t SimEngine::step_ns(const StepShape& shape) const {
  if (config_.step_ns) return config_.step_ns(shape);
  return 1000 * (config_.step_us_base + config_.step_us_row * shape.rows);
}

/// When each step of the batch ends.
void SimEngine::plan_steps(const StepBatch& batch) {
  ends_ns_.clear();
  taken_steps_ = 0;
  shape_ = shape_of(batch);
  StepShape shape = shape_;
  int64_t end_ns = 0;
  auto add_step = [&] {
    end_ns += step_ns(shape);
    ends_ns_.push_back(end_ns);
    shape.kv_tokens += shape.sequences;
    shape.attended += shape.rows;
  };
  SEER_CHECK(batch.steps <= config_.info.steps_max, batch.steps);
  int64_t steps = batch.steps;
  if (steps > 1) {
    for (const SequenceStep& s : batch.sequences) {
      SEER_CHECK(s.tokens.size() == 1 && s.sample_rows == 1, s.tokens.size(), s.sample_rows);
      if (!s.sampling->ignore_eos) steps = std::min(steps, config_.last_position(s.seed) - s.start);
    }
  }
  do add_step();
  while (std::ssize(ends_ns_) < steps);
}

/// Work takes effect when its time is over, in order.
void SimEngine::start_next() {
  if (queue_.empty()) return;
  busy_ = true;
  if (const auto* step = std::get_if<StepBatch>(&queue_.front())) {
    plan_steps(*step);
    if (clock_.now_ns) started_ns_ = clock_.now_ns();
    end_front_after(ends_ns_.back());
  } else {
    end_front_after(1000 * config_.copy_us_block * std::ssize(std::get<CopyBatch>(queue_.front()).blocks));
  }
}

/// The copy starts when the step that runs and the copies before it are over.
void SimEngine::copy_beside(const CopyBatch& batch) {
  const int64_t now = clock_.now_ns();
  const int64_t step_ends = busy_ ? started_ns_ + ends_ns_[running_step()] : now;
  copies_end_ns_ = std::max(copies_end_ns_, step_ends) + 1000 * config_.copy_us_block * std::ssize(batch.blocks);
  after_(copies_end_ns_ - now, [this, result = run(batch), alive = std::weak_ptr<uint64_t>(timer_)] {
    if (alive.expired()) return;
    results_.push_back(result);
    notify_();
  });
}

/// Of the batch at the front: the step that runs now, whose end has not come.
size_t SimEngine::running_step() const {
  const auto running = std::upper_bound(ends_ns_.begin(), ends_ns_.end() - 1, clock_.fired_ns() - started_ns_);
  return static_cast<size_t>(running - ends_ns_.begin());
}

void SimEngine::end_front_after(int64_t delay_ns) {
  after_(delay_ns, [this, mine = ++*timer_, newest = std::weak_ptr<uint64_t>(timer_)] {
    if (const auto timer = newest.lock(); timer && *timer == mine) finish_front();
  });
}

void SimEngine::finish_front() {
  const EngineWork work = std::move(queue_.front());
  queue_.pop_front();
  if (const auto* batch = std::get_if<StepBatch>(&work))
    results_.push_back(batch->steps == 1 ? run(*batch) : result_of(*batch, taken_steps_, ends_ns_.size()));
  else
    results_.push_back(run(std::get<CopyBatch>(work)));
  busy_ = false;
  start_next();
  notify_();
}

std::optional<StepResult> SimEngine::split_step() {
  const auto* batch = busy_ ? std::get_if<StepBatch>(&queue_.front()) : nullptr;
  if (batch == nullptr || batch->steps == 1) return std::nullopt;
  const size_t done = running_step();
  if (done + 1 < ends_ns_.size()) {
    ends_ns_.resize(done + 1);
    end_front_after(started_ns_ + ends_ns_.back() - clock_.now_ns());
  }
  if (done == taken_steps_) return std::nullopt;
  StepResult result = result_of(*batch, taken_steps_, done);
  taken_steps_ = done;
  return result;
}

/// Of the steps [first_step, end_step) of the batch at the front.
StepResult SimEngine::result_of(const StepBatch& batch, size_t first_step, size_t end_step) {
  StepResult result{.id = batch.id, .sampled = {}};
  result.sampled.reserve(batch.sequences.size());
  for (const SequenceStep& s : batch.sequences) {
    std::vector<SampledToken>& sampled = result.sampled.emplace_back();
    sampled.reserve(end_step - first_step);
    for (size_t step = first_step; step < end_step; ++step)
      sampled.push_back({oracle_(s.seed, s.start + static_cast<int64_t>(step) + 1), -1.0f});
  }
  const int64_t ns = ends_ns_[end_step - 1] - (first_step == 0 ? 0 : ends_ns_[first_step - 1]);
  result.step_us = ns / 1000;
  if (config_.on_steps) config_.on_steps(shape_, ns, static_cast<int64_t>(end_step - first_step));
  return result;
}

std::byte* SimEngine::token_at(const SequenceStep& sequence, int64_t position) {
  const auto block = static_cast<size_t>(position / config_.info.block_tokens);
  SEER_CHECK(block < sequence.blocks.size(), position, sequence.blocks.size());
  return memory_.data() + static_cast<int64_t>(sequence.blocks[block]) * config_.info.block_bytes +
         position % config_.info.block_tokens * kSimTokenBytes;
}

StepResult SimEngine::run(const StepBatch& batch) {
  StepResult result{.id = batch.id, .sampled = {}, .step_us = ends_ns_[0] / 1000};
  if (config_.on_steps) config_.on_steps(shape_, ends_ns_[0], 1);
  for (const SequenceStep& sequence : batch.sequences) {
    if (!config_.has_kv) {
      std::vector<SampledToken> sampled;
      for (int64_t row = std::ssize(sequence.tokens) - sequence.sample_rows; row < std::ssize(sequence.tokens); ++row)
        sampled.push_back({oracle_(sequence.seed, sequence.start + row + 1), -1.0f});
      result.sampled.push_back(std::move(sampled));
      continue;
    }
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
  if (!config_.has_kv) {
    for (const BlockCopy& copy : batch.blocks) result.crc32c.push_back(copy.crc32c);
    return result;
  }
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
