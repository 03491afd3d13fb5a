#include "cli/watched_engine.h"

#include <algorithm>
#include <utility>

namespace seer {
namespace {

/// Samples of a group share blocks: each counts once.
double kv_used_share(const StepBatch& step, int32_t device_blocks) {
  if (device_blocks == 0) return 0;
  std::vector<DeviceBlockId> used;
  for (const SequenceStep& sequence : step.sequences) used.insert(used.end(), sequence.blocks.begin(), sequence.blocks.end());
  std::ranges::sort(used);
  return static_cast<double>(std::unique(used.begin(), used.end()) - used.begin()) / device_blocks;
}

class WatchedEngine : public Engine {
 public:
  WatchedEngine(std::shared_ptr<Engine> engine, std::shared_ptr<LoadHistory> history)
      : engine_(std::move(engine)), history_(std::move(history)) {}
  const EngineInfo& info() const override { return engine_->info(); }
  void set_notify(std::function<void()> notify) override { engine_->set_notify(std::move(notify)); }
  void submit(EngineWork work) override {
    if (const auto* step = std::get_if<StepBatch>(&work)) history_->step_begins(*step, info().device_blocks);
    engine_->submit(std::move(work));
  }
  std::vector<EngineResult> take_results() override {
    std::vector<EngineResult> results = engine_->take_results();
    for (const EngineResult& result : results)
      if (std::holds_alternative<StepResult>(result)) history_->step_ends();
    return results;
  }
  StepRun* step_run() override { return engine_->step_run(); }

 private:
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<LoadHistory> history_;
};

}  // namespace

double LoadHistory::Clock::seconds() {
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  if (!std::exchange(has_started_, true)) start_ = now;
  return std::chrono::duration<double>(now - start_).count();
}

void LoadHistory::step_begins(const StepBatch& step, int32_t device_blocks) {
  const double now_s = clock_->seconds();
  const std::lock_guard lock(mutex_);
  if (open_steps_ > 0) close(now_s);
  ++open_steps_;
  const bool is_kept = recorder_.keeps(now_s);  // most steps are not kept, and counting blocks takes time
  open_ = {now_s, std::ssize(step.sequences), is_kept ? kv_used_share(step, device_blocks) : 0};
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
