// Times are those of the machine; the tests hold however fast it is.
#include "cli/step_calibration.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "gpu/given_times.h"
#include "gpu/tiny_model.h"

using namespace seer;

namespace {

/// A model whose context is shorter than the one measured for longer models.
std::shared_ptr<const Model> small_model(const TestFolder& folder) {
  write_tiny_model(folder.path(), tiny_config("qwen3", {{"max_position_embeddings", 64}}), "BF16", 1);
  auto model = load_model(folder.path());
  REQUIRE_MESSAGE(model.ok(), model.error().detail);
  return *std::move(model);
}

}  // namespace

TEST_CASE("step calibration: the cost is of finite parts, some of them above zero, also with a short context") {
  const TestFolder folder;
  const auto cost = calibrate_step_cost(cpu_engine_source(small_model(folder), {.threads = 1}));
  REQUIRE_MESSAGE(cost.ok(), cost.error().detail);
  for (const double us : cost->us) CHECK((std::isfinite(us) && us >= 0));
  StepShape one, many;
  one.add(10, 1, 1);
  for (int i = 0; i < 64; ++i) many.add(10, 9, 9);
  CHECK(cost->predict_us(one) > 0);
  CHECK(cost->predict_us(many) > cost->predict_us(one));
}

TEST_CASE("step calibration: on a slow engine only small steps are measured; the cost of large ones follows from them") {
  const auto calibrated = [](int64_t row_us) {
    int64_t rows_max = 0, total_us = 0;
    EngineSource source;
    source.context_tokens_max = 4096;
    const auto step_us = [&](const StepShape& step) {
      rows_max = std::max(rows_max, step.rows);
      total_us += row_us * (4 + step.rows);
      return row_us * (4 + step.rows);
    };
    source.make = [&](InstanceId, int32_t blocks) { return Result<std::unique_ptr<Engine>>(std::make_unique<GivenTimes>(step_us, blocks)); };
    const auto cost = calibrate_step_cost(source);
    REQUIRE_MESSAGE(cost.ok(), cost.error().detail);
    StepShape many;
    for (int i = 0; i < 64; ++i) many.add(8, 9, 9);
    CHECK(cost->predict_us(many) == doctest::Approx(static_cast<double>(row_us) * (4 + 64 * 9)).epsilon(0.1));
    return std::pair{rows_max, total_us};
  };
  CHECK(calibrated(10).first == 64 * 9);
  const auto [rows, total_us] = calibrated(6000);
  CHECK(rows < 64);
  CHECK(total_us < 5'000'000);  // all steps: 65 s
  CHECK(calibrated(200'000).first == 9);
}

TEST_CASE("step calibration: each step has its time, in the order of the steps, beside engines that do the same") {
  const TestFolder folder;
  const auto model = small_model(folder);
  const StepSequences small{{.start = 8, .rows = 1, .sample_rows = 1}}, large(40, {.start = 40, .rows = 20, .sample_rows = 20});
  const std::vector<StepSequences> steps{small, large, small};  // there is KV for the largest, wherever it is
  for (const int64_t engines : {1, 2}) {
    CAPTURE(engines);
    const auto us = measure_steps_us(cpu_engine_source(model, {.threads = 1, .kv_bytes = 1}), engines, steps);
    REQUIRE_MESSAGE(us.ok(), us.error().detail);
    REQUIRE(us->size() == 3);
    for (const double step_us : *us) CHECK((std::isfinite(step_us) && step_us >= 1));
    CHECK((*us)[1] > (*us)[0]);  // 800 rows against one
    CHECK((*us)[1] > (*us)[2]);
  }
}

TEST_CASE("step calibration: an engine that cannot be made is its error") {
  const TestFolder folder;
  const auto model = small_model(folder);
  const std::vector<StepSequences> steps{{{}}};
  CHECK(calibrate_step_cost(cpu_engine_source(model, {.threads = 0})).error().code == Code::kInvalidArgument);
  CHECK(measure_steps_us(cpu_engine_source(model, {.threads = 0}), 1, steps).error().code == Code::kInvalidArgument);
}
