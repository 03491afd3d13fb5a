#include "cli/step_calibration.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "gpu/step_profile.h"

namespace seer {
namespace {

/// An engine with KV for the largest of these steps.
Result<std::unique_ptr<Engine>> engine_for(const EngineSource& source, const std::vector<StepSequences>& steps) {
  int32_t device_blocks = 1;
  for (const StepSequences& step : steps)
    device_blocks = std::max(device_blocks, static_cast<int32_t>(blocks_of(step, source.block_tokens)));
  return source.make(InstanceId{0}, device_blocks);
}

/// An engine for these steps, with every byte of its KV written.
Result<std::unique_ptr<StepRunner>> make_runner(const EngineSource& source, const std::vector<StepSequences>& steps) {
  SEER_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, engine_for(source, steps));
  auto runner = std::make_unique<StepRunner>(std::move(engine));
  runner->zero_blocks(runner->info().device_blocks);
  return runner;
}

}  // namespace

Result<StepCost> calibrate_step_cost(const EngineSource& source) {
  constexpr double kTotalUsMax = 750'000;  // after these, steps of several sequences are left out; a slow step runs four times
  const int64_t context = std::min<int64_t>(1024, source.context_tokens_max / 2);
  const auto verify = [](int64_t start, int32_t rows) { return SequenceShape{.start = start, .rows = rows, .sample_rows = rows}; };
  std::vector<StepSequences> steps;
  for (const size_t sequences : {1, 4, 16, 64})
    for (const int32_t rows : {1, 2, 4, 6, 9}) {
      if (sequences == 1) steps.push_back({verify(context, rows)});
      steps.emplace_back(sequences, verify(8, rows));
    }
  SEER_ASSIGN_OR_RETURN(const std::unique_ptr<StepRunner> runner, make_runner(source, steps));
  std::vector<ProfilePoint> points;
  double total_us = 0;
  for (const StepSequences& step : steps) {
    if (step.size() > 1 && total_us > kTotalUsMax) break;
    points.push_back({"verify", step_shape(step), typical_step_us(*runner, step), false});
    total_us += points.back().measured_us;
  }
  return fit_step_cost(points);
}

Result<std::vector<double>> measure_steps_us(const EngineSource& source, int64_t engines, const std::vector<StepSequences>& steps,
                                             double first_us_max) {
  constexpr int kVisitsMin = 3, kVisitsMax = 40, kStepsMax = 8;
  constexpr double kVisitUs = 6'000, kEnoughUs = 300'000, kSlowUs = 2'000'000;
  SEER_ASSIGN_OR_RETURN(const std::unique_ptr<StepRunner> runner, make_runner(source, steps));
  std::vector<std::unique_ptr<Engine>> others;
  for (int64_t i = 1; i < engines; ++i) {
    SEER_ASSIGN_OR_RETURN(std::unique_ptr<Engine> other, engine_for(source, steps));
    others.push_back(std::move(other));
  }
  StepNeighbours neighbours(std::move(others), steps);
  std::vector<double> least_us(steps.size(), std::numeric_limits<double>::infinity());
  double spent_us = 0;
  const auto goes_on = [&](int visits) {
    return visits == 0 || (visits < kVisitsMin && spent_us < kSlowUs) || (visits < kVisitsMax && spent_us < kEnoughUs);
  };
  for (int visits = 0; goes_on(visits); ++visits)
    for (size_t i = 0; i < steps.size() && spent_us < first_us_max; ++i) {
      neighbours.go_to(i);
      // The first step of a visit does not count: it fills the caches, as earlier equal steps would in a rollout. A short one needs
      // several to drive what others left out of the last-level cache.
      double visit_us = 0;
      for (int step = 0; step < 2 || (step < kStepsMax && visit_us < kVisitUs); ++step) {
        const StepResult result = runner->run(synthetic_step(runner->info(), steps[i]));
        const int64_t us = source.threads == 1 && result.cpu_us > 0 ? result.cpu_us : result.step_us;
        if (step > 0) least_us[i] = std::min(least_us[i], std::max(1.0, static_cast<double>(us)));
        visit_us += static_cast<double>(result.step_us);
      }
      spent_us += visit_us;
    }
  return least_us;
}

}  // namespace seer
