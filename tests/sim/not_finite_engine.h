// NotFiniteEngine: an engine whose logits stop being finite at some position of some sequences, however these are computed.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "gpu/engine.h"

namespace seer {

class NotFiniteEngine final : public Engine {
 public:
  /// The first position of the sequence with this seed whose token cannot be sampled; nor can those after it.
  using FailsAt = std::function<int64_t(uint64_t seed)>;
  NotFiniteEngine(std::shared_ptr<Engine> engine, FailsAt fails_at)
      : engine_(std::move(engine)), fails_at_(std::move(fails_at)) {}

  const EngineInfo& info() const override { return engine_->info(); }
  void set_notify(std::function<void()> notify) override { engine_->set_notify(std::move(notify)); }

  void submit(EngineWork work) override {
    if (auto* step = std::get_if<StepBatch>(&work)) positions_[step->id] = sampled_positions(*step);
    engine_->submit(std::move(work));
  }
  std::vector<EngineResult> take_results() override {
    std::vector<EngineResult> results = engine_->take_results();
    for (EngineResult& result : results) {
      auto* step = std::get_if<StepResult>(&result);
      if (step == nullptr) continue;
      const auto positions = positions_.extract(step->id);
      for (size_t i = 0; i < step->sampled.size(); ++i)
        for (size_t row = 0; row < step->sampled[i].size(); ++row)
          if (const Position& at = positions.mapped()[i][row]; at.position >= fails_at_(at.seed))
            step->sampled[i][row] = {kNotFinite, 0};
    }
    return results;
  }

 private:
  struct Position {
    uint64_t seed;
    int64_t position;  // of the sampled token
  };
  static std::vector<std::vector<Position>> sampled_positions(const StepBatch& batch) {
    std::vector<std::vector<Position>> all;
    for (const SequenceStep& s : batch.sequences) {
      std::vector<int64_t> depths;
      for (size_t row = 0; row < s.tokens.size(); ++row) {
        const int32_t parent = s.parents.empty() ? static_cast<int32_t>(row) - 1 : s.parents[row];
        depths.push_back(parent < 0 ? 0 : depths[static_cast<size_t>(parent)] + 1);
      }
      auto& positions = all.emplace_back();
      for (size_t row = s.tokens.size() - static_cast<size_t>(s.sample_rows); row < s.tokens.size(); ++row)
        positions.push_back({s.seed, s.start + depths[row] + 1});
    }
    return all;
  }

  std::shared_ptr<Engine> engine_;
  FailsAt fails_at_;
  std::map<uint64_t, std::vector<std::vector<Position>>> positions_;  // of the sampled rows, by step
};

}  // namespace seer
