// LostEngine: an engine whose device is lost at some step or copy; from then on every result says so.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "gpu/engine.h"

namespace seer {

class LostEngine final : public Engine {
 public:
  /// `results_before`: how many results come before the loss.
  LostEngine(std::shared_ptr<Engine> engine, int64_t results_before) : engine_(std::move(engine)), left_(results_before) {}

  const EngineInfo& info() const override { return engine_->info(); }
  void set_notify(std::function<void()> notify) override { engine_->set_notify(std::move(notify)); }
  void submit(EngineWork work) override { engine_->submit(std::move(work)); }
  std::vector<EngineResult> take_results() override {
    std::vector<EngineResult> results = engine_->take_results();
    for (EngineResult& result : results)
      if (--left_ < 0) std::visit([](auto& of) { of = {.id = of.id, .status = fail(Code::kUnavailable, "device lost")}; }, result);
    return results;
  }

 private:
  std::shared_ptr<Engine> engine_;
  int64_t left_;
};

}  // namespace seer
