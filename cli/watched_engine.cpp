#include "cli/watched_engine.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "gpu/slot_engine.h"

namespace seer {
namespace {

/// Samples of a group share blocks: each counts once.
double kv_used_share(const LoadHistory::BlockTables& tables, int32_t device_blocks) {
  if (device_blocks == 0) return 0;
  std::vector<DeviceBlockId> used;
  for (const auto& [slot, blocks] : tables) used.insert(used.end(), blocks.begin(), blocks.end());
  std::ranges::sort(used);
  return static_cast<double>(std::unique(used.begin(), used.end()) - used.begin()) / device_blocks;
}

/// Knows the blocks of the sequences in slots.
class WatchedSteps final : public StepRun {
 public:
  explicit WatchedSteps(StepRun& steps) : steps_(steps) {}
  const LoadHistory::BlockTables& tables() const { return tables_; }

  void join(int32_t slot, const SequenceStep& step, const std::optional<StepsLimit>& limit) override {
    tables_[slot] = step.blocks;
    steps_.join(slot, step, limit);
  }
  void grant(int32_t slot, DeviceBlockId block) override {
    tables_[slot].push_back(block);
    steps_.grant(slot, block);
  }
  void leave(int32_t slot) override {
    tables_.erase(slot);
    steps_.leave(slot);
  }
  void take(int32_t slot, int64_t steps, GainedTokens& gained) override { steps_.take(slot, steps, gained); }
  std::vector<int32_t> take_block_needs(int64_t steps) override { return steps_.take_block_needs(steps); }
  bool all_go_on() const override { return steps_.all_go_on(); }
  int64_t step_running() const override { return steps_.step_running(); }
  void split() override { steps_.split(); }
  std::optional<StepResult> take_steps_over() override { return steps_.take_steps_over(); }

 private:
  StepRun& steps_;
  LoadHistory::BlockTables tables_;
};

class WatchedEngine final : public Engine {
 public:
  WatchedEngine(std::shared_ptr<Engine> engine, std::shared_ptr<LoadHistory> history)
      : engine_(with_slots(std::move(engine))), steps_(*engine_->step_run()), history_(std::move(history)) {}
  const EngineInfo& info() const override { return engine_->info(); }
  void set_notify(std::function<void()> notify) override { engine_->set_notify(std::move(notify)); }
  void submit(EngineWork work) override {
    if (std::holds_alternative<StepOrder>(work)) history_->step_begins(steps_.tables(), info().device_blocks);
    engine_->submit(std::move(work));
  }
  std::vector<EngineResult> take_results() override {
    std::vector<EngineResult> results = engine_->take_results();
    for (const EngineResult& result : results)
      if (std::holds_alternative<StepResult>(result)) history_->step_ends();
    return results;
  }
  StepRun* step_run() override { return &steps_; }

 private:
  std::shared_ptr<Engine> engine_;
  WatchedSteps steps_;
  std::shared_ptr<LoadHistory> history_;
};

}  // namespace

double LoadHistory::Clock::seconds() {
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  if (!std::exchange(has_started_, true)) start_ = now;
  return std::chrono::duration<double>(now - start_).count();
}

void LoadHistory::step_begins(const BlockTables& running, int32_t device_blocks) {
  const double now_s = clock_->seconds();
  const std::lock_guard lock(mutex_);
  if (open_steps_ > 0) close(now_s);
  ++open_steps_;
  const bool is_kept = recorder_.keeps(now_s);  // most steps are not kept, and counting blocks takes time
  open_ = {now_s, std::ssize(running), is_kept ? kv_used_share(running, device_blocks) : 0};
}

void LoadHistory::step_ends() {
  const double now_s = clock_->seconds();
  const std::lock_guard lock(mutex_);
  close(now_s);
  open_.time_s = now_s;  // a step that is queued begins now
  if (open_steps_ > 0) --open_steps_;
}

void LoadHistory::close(double now_s) { recorder_.add(open_.time_s, now_s, open_.running, open_.kv_used_share); }

InstanceTimeline LoadHistory::take(double end_s) {
  const std::lock_guard lock(mutex_);
  return recorder_.take(end_s);
}

std::shared_ptr<Engine> watch_engine(std::shared_ptr<Engine> engine, std::shared_ptr<LoadHistory> history) {
  return std::make_shared<WatchedEngine>(std::move(engine), std::move(history));
}

}  // namespace seer
