#include "cli/step_calibration.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gpu/step_profile.h"
#include "gpu/step_runner.h"

namespace seer {

Result<StepCost> calibrate_step_cost(const std::shared_ptr<const Model>& model, CpuEngineConfig config) {
  const int64_t context = std::min<int64_t>(1024, model->config.context_tokens_max / 2);
  std::vector<std::vector<SequenceShape>> steps;
  for (const int32_t rows : {1, 2, 4, 6, 9}) {
    const SequenceShape verify{.start = context, .rows = rows, .sample_rows = rows};
    const SequenceShape early{.start = 8, .rows = rows, .sample_rows = rows};
    steps.push_back({verify});
    for (const size_t sequences : {1, 4, 16, 64}) steps.emplace_back(sequences, early);
  }
  config.kv_bytes = 0;
  for (const auto& step : steps)
    config.device_blocks = std::max(config.device_blocks, static_cast<int32_t>(blocks_of(step, config.block_tokens)));
  SEER_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, make_cpu_engine(model, config));
  StepRunner runner(std::move(engine));
  runner.zero_blocks(config.device_blocks);
  std::vector<ProfilePoint> points;
  for (const auto& step : steps)
    points.push_back({"verify", step_shape(step), typical_step_us(runner, step), false});
  return fit_step_cost(points);
}

}  // namespace seer
