#include "gpu/step_runner.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <utility>
#include <variant>

#include "protocols/check.h"
#include "protocols/kv.h"

namespace seer {
namespace {

int64_t blocks_of_one(const SequenceShape& s, int64_t block_tokens) {
  return (s.start + s.rows + block_tokens - 1) / block_tokens;
}

}  // namespace

StepRunner::StepRunner(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {
  engine_->set_notify([this] {
    const std::lock_guard lock(mutex_);
    ready_ = true;
    wake_.notify_one();
  });
}

EngineResult StepRunner::run_work(EngineWork work) {
  engine_->submit(std::move(work));
  return wait();
}

EngineResult StepRunner::wait() {
  while (results_.empty()) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return ready_; });
    ready_ = false;
    for (EngineResult& result : engine_->take_results()) results_.push_back(std::move(result));
  }
  EngineResult result = std::move(results_.front());
  results_.pop_front();
  return result;
}

StepResult StepRunner::run(StepBatch batch) {
  auto result = std::get<StepResult>(run_work(std::move(batch)));
  if (status_.ok()) status_ = result.status;
  return result;
}

double StepRunner::decoding_step_us(std::span<const SequenceShape> sequences, int32_t steps) {
  constexpr int32_t kFirst = 4;  // that do not count
  const int32_t orders = kFirst + steps;
  StepSequences with_room(sequences.begin(), sequences.end());
  for (SequenceShape& s : with_room) s.rows += orders + info().orders_max;
  StepRun* const slots = engine_->step_run();
  SEER_CHECK(slots != nullptr);
  StepBatch batch = synthetic_step(info(), with_room);
  SamplingParams endless;
  endless.ignore_eos = true;
  const auto sampling = std::make_shared<const SamplingParams>(endless);
  for (int32_t slot = 0; slot < std::ssize(batch.sequences); ++slot) {
    SequenceStep& s = batch.sequences[static_cast<size_t>(slot)];
    s.tokens.resize(1);
    s.sample_rows = 1;
    s.sampling = sampling;
    slots->join(slot, s, StepsLimit{.gain_max = 2 * orders, .covered = std::ssize(s.blocks) * static_cast<int64_t>(info().block_tokens)});
  }
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin;
  int32_t submitted = 0;
  for (int32_t done = 0; done < orders; ++done) {
    for (; submitted < std::min(orders, done + info().orders_max); ++submitted) engine_->submit(StepOrder{});
    const auto result = std::get<StepResult>(wait());
    if (status_.ok()) status_ = result.status;
    if (!status_.ok()) return 0;
    if (done + 1 == kFirst) begin = Clock::now();
    GainedTokens gained;
    for (int32_t slot = 0; slot < std::ssize(batch.sequences); ++slot) slots->take(slot, 1, gained);
  }
  const double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  for (int32_t slot = 0; slot < std::ssize(batch.sequences); ++slot) slots->leave(slot);
  return us / steps;
}

void StepRunner::fill_blocks(int32_t count, std::span<std::byte> bytes) {
  const uint32_t crc = crc32c(bytes);
  CopyBatch copies;
  copies.direction = CopyBatch::Direction::kImport;
  for (int32_t block = 0; block < count; ++block) copies.blocks.push_back({.block = block, .host = bytes, .crc32c = crc});
  run_work(std::move(copies));
}

void StepRunner::zero_blocks(int32_t count) {
  std::vector<std::byte> zeros(static_cast<size_t>(info().block_bytes));
  fill_blocks(count, zeros);
}

StepShape step_shape(std::span<const SequenceShape> sequences) {
  StepShape shape;
  for (const SequenceShape& s : sequences) shape.add(s.start, s.rows, s.sample_rows);
  return shape;
}

int64_t blocks_of(std::span<const SequenceShape> sequences, int64_t block_tokens) {
  int64_t blocks = 0;
  for (const SequenceShape& s : sequences) blocks += blocks_of_one(s, block_tokens);
  return blocks;
}

StepBatch synthetic_step(const EngineInfo& info, std::span<const SequenceShape> sequences) {
  SEER_CHECK(blocks_of(sequences, info.block_tokens) <= info.device_blocks, info.device_blocks);
  const auto sampling = std::make_shared<const SamplingParams>();
  StepBatch batch;
  DeviceBlockId next_block = 0;
  for (const SequenceShape& s : sequences) {
    SequenceStep step;
    step.start = s.start;
    for (int32_t r = 0; r < s.rows; ++r)
      step.tokens.push_back(static_cast<int32_t>(((s.start + r) * 7919 + next_block * 13) % info.vocab_size));
    step.blocks.resize(static_cast<size_t>(blocks_of_one(s, info.block_tokens)));
    std::iota(step.blocks.begin(), step.blocks.end(), next_block);
    next_block += static_cast<DeviceBlockId>(step.blocks.size());
    step.sample_rows = s.sample_rows;
    step.seed = static_cast<uint64_t>(next_block);
    step.sampling = sampling;
    batch.sequences.push_back(std::move(step));
  }
  return batch;
}

double typical_step_us(StepRunner& engine, std::span<const SequenceShape> sequences) {
  constexpr int64_t kVisitUs = 10'000, kSlowUs = 300'000;
  constexpr size_t kStepsMin = 3, kStepsMax = 15;
  std::vector<int64_t> step_us;
  int64_t spent_us = 0;
  engine.run(synthetic_step(engine.info(), sequences));
  while (step_us.size() < kStepsMin ? spent_us < kSlowUs : spent_us < kVisitUs && step_us.size() < kStepsMax) {
    step_us.push_back(std::max<int64_t>(1, engine.run(synthetic_step(engine.info(), sequences)).step_us));
    spent_us += step_us.back();
  }
  std::nth_element(step_us.begin(), step_us.begin() + static_cast<ptrdiff_t>(step_us.size() / 2), step_us.end());
  return static_cast<double>(step_us[step_us.size() / 2]);
}

StepNeighbours::StepNeighbours(std::vector<std::unique_ptr<Engine>> engines, std::vector<StepSequences> steps)
    : steps_(std::move(steps)) {
  for (std::unique_ptr<Engine>& engine : engines)
    threads_.emplace_back([this, engine = std::move(engine)](const std::stop_token& stop) mutable {
      StepRunner runner(std::move(engine));
      runner.zero_blocks(runner.info().device_blocks);
      while (!stop.stop_requested()) runner.run(synthetic_step(runner.info(), steps_[step_.load()]));
    });
}

}  // namespace seer
