// EngineRunner: drives an Engine synchronously in tests, and keeps sequences with their block tables.
#pragma once
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <vector>

#include "gpu/cpu/cpu_engine.h"
#include "protocols/kv.h"

namespace seer {

inline SamplingParams greedy_sampling() {
  SamplingParams params;
  params.temperature = 0.0f;
  return params;
}

struct TestSequence {
  std::vector<int32_t> tokens;  // all so far
  int64_t computed = 0;         // of them, have their KV in `blocks`
  std::vector<DeviceBlockId> blocks;
  uint64_t seed = 0;
  int64_t ends_from = 0;        // as in SequenceStep
  std::shared_ptr<const SamplingParams> sampling = std::make_shared<const SamplingParams>(greedy_sampling());
};

class EngineRunner {
 public:
  explicit EngineRunner(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {
    free_.resize(static_cast<size_t>(engine_->info().device_blocks));
    std::iota(free_.rbegin(), free_.rend(), 0);
    engine_->set_notify([this] {
      const std::lock_guard lock(mutex_);
      wake_.notify_one();
    });
  }

  const EngineInfo& info() const { return engine_->info(); }
  Engine& engine() { return *engine_; }

  EngineResult run(EngineWork work) {
    submit(std::move(work));
    return wait();
  }
  void submit(EngineWork work) { engine_->submit(std::move(work)); }
  /// The next result, in the order of the work.
  EngineResult wait() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] {
      for (EngineResult& result : engine_->take_results()) taken_.push_back(std::move(result));
      return !taken_.empty();
    });
    EngineResult result = std::move(taken_.front());
    taken_.pop_front();
    return result;
  }
  StepResult step(std::vector<SequenceStep> sequences) {
    auto result = std::get<StepResult>(run(StepBatch{.id = ++id_, .sequences = std::move(sequences)}));
    if (!result.status.ok()) SEER_CHECK(false, result.status.error());
    return result;
  }

  /// A step in which each sequence computes all of its tokens and gets one more. Returns what was sampled, by sequence.
  std::vector<SampledToken> advance(std::span<TestSequence> live) {
    std::vector<SequenceStep> steps;
    for (TestSequence& s : live) steps.push_back(plan(s, std::ssize(s.tokens) - s.computed, 1));
    const StepResult result = step(std::move(steps));
    std::vector<SampledToken> sampled;
    for (size_t i = 0; i < live.size(); ++i) {
      sampled.push_back(result.sampled[i][0]);
      live[i].tokens.push_back(sampled.back().token);
    }
    return sampled;
  }

  /// The next `rows` uncomputed tokens of a sequence, growing its block table; the last `sample_rows` are sampled.
  SequenceStep plan(TestSequence& s, int64_t rows, int32_t sample_rows) {
    SequenceStep step;
    step.start = s.computed;
    step.tokens.assign(s.tokens.begin() + s.computed, s.tokens.begin() + s.computed + rows);
    s.computed += rows;
    const auto block_tokens = static_cast<int64_t>(info().block_tokens);
    while (static_cast<int64_t>(s.blocks.size()) * block_tokens < s.computed) s.blocks.push_back(take_block());
    step.blocks = s.blocks;
    step.sample_rows = sample_rows;
    step.seed = s.seed;
    step.sampling = s.sampling;
    step.ends_from = s.ends_from;
    if (s.sampling->repetition_penalty != 1.0f) step.history.assign(s.tokens.begin(), s.tokens.begin() + step.start);
    return step;
  }

  /// Decodes `count` tokens one by one after computing what is uncomputed in one piece.
  std::vector<SampledToken> decode(TestSequence& s, int count) {
    std::vector<SampledToken> out;
    for (int i = 0; i < count; ++i) {
      const auto rows = static_cast<int64_t>(s.tokens.size()) - s.computed;
      const StepResult result = step({plan(s, rows, 1)});
      out.push_back(result.sampled.at(0).at(0));
      s.tokens.push_back(out.back().token);
    }
    return out;
  }

  /// Stages the weights of a folder and, if they are taken, switches to them. `kv_hash`: as in StageWeights.
  Status update(WeightVersion version, const std::filesystem::path& folder, uint64_t kv_hash = 0) {
    const auto staged = std::get<WeightResult>(run(StageWeights{++id_, version, folder.string(), kv_hash}));
    if (!staged.status.ok()) return staged.status;
    return std::get<WeightResult>(run(SwitchWeights{++id_})).status;
  }

  std::vector<std::byte> export_block(DeviceBlockId block, uint32_t* crc = nullptr) {
    std::vector<std::byte> bytes(static_cast<size_t>(info().block_bytes));
    CopyBatch batch{
        .id = ++id_, .direction = CopyBatch::Direction::kExport, .blocks = {{.block = block, .host = bytes}}};
    const auto result = std::get<CopyResult>(run(std::move(batch)));
    if (crc) *crc = result.crc32c.at(0);
    return bytes;
  }
  /// Returns the checksum found.
  uint32_t import_block(DeviceBlockId block, std::vector<std::byte> bytes, uint32_t crc) {
    CopyBatch batch{.id = ++id_,
                    .direction = CopyBatch::Direction::kImport,
                    .blocks = {{.block = block, .host = bytes, .crc32c = crc}}};
    return std::get<CopyResult>(run(std::move(batch))).crc32c.at(0);
  }

  DeviceBlockId take_block() {
    const DeviceBlockId id = free_.back();
    free_.pop_back();
    return id;
  }
  std::vector<DeviceBlockId>& free_blocks() { return free_; }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<EngineResult> taken_;
  uint64_t id_ = 0;
  std::vector<DeviceBlockId> free_;
  std::unique_ptr<Engine> engine_;  // last: its thread calls notify
};

}  // namespace seer
