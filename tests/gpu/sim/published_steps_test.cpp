// The hardware model beside published measurements. tests/gpu/sim/published_steps.json has each with its source.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "gpu/sim/hardware_model.h"

using namespace seer;
using Json = nlohmann::json;

namespace {

Json read_points() {
  std::ifstream file(SEER_SOURCE_DIR "/tests/gpu/sim/published_steps.json");
  REQUIRE(file.good());
  return Json::parse(file);
}

HardwareModel model_of(const Json& point, const HardwareCatalog& known) {
  HardwareSetup setup;
  setup.gpu = known.gpus.at(point["gpu"]);
  setup.model = known.models.at(point["model"]);
  setup.costs = known.costs;
  setup.tp = point.value("tp", 1);
  setup.dp = point.value("dp", 1);
  setup.ep = point.value("ep", 1);
  setup.gpus_per_instance = setup.tp * setup.dp;
  setup.kv_reserve_share = 0;
  Result<HardwareModel> model = HardwareModel::create(setup);
  REQUIRE_MESSAGE(model.ok(), model.error().detail);
  return *std::move(model);
}

/// A decode step of the batch and, if the point counts them, as many prefills as there are sequences in the time of a response.
double predicted_ms(const Json& point, const HardwareCatalog& known) {
  const HardwareModel model = model_of(point, known);
  const int64_t batch = point["batch"], prefill = point.value("prefill_tokens", 0);
  StepShape decode;
  for (int64_t i = 0; i < batch; ++i) decode.add(point["context_tokens"], 1, 1);
  auto ns = static_cast<double>(model.step_ns(decode));
  if (prefill > 0) {
    StepShape prompt;
    prompt.add(0, prefill, 1);
    ns += static_cast<double>(batch) * static_cast<double>(model.step_ns(prompt)) / point["output_tokens"].get<double>();
  }
  return ns / 1e6;
}

}  // namespace

TEST_CASE("published steps: each is predicted within 25 %, the median within 10 %") {
  const Json file = read_points();
  const Result<HardwareCatalog> known = parse_hardware(file["hardware"].dump(), "published_steps.json", builtin_hardware());
  REQUIRE_MESSAGE(known.ok(), known.error().detail);
  std::vector<double> ratios;  // speeds, predicted over published
  for (const Json& point : file["points"]) {
    const double published = point["published_ms_per_token"], predicted = predicted_ms(point, *known);
    const std::string name = point["name"];
    CAPTURE(name);
    CAPTURE(predicted);
    CAPTURE(published);
    ratios.push_back(published / predicted);
    CHECK(ratios.back() > 0.75);
    CHECK(ratios.back() < 1.25);
    CHECK(!point["source"].get<std::string>().empty());
  }
  REQUIRE(ratios.size() >= 12);
  std::ranges::sort(ratios);
  CHECK(std::abs(ratios[ratios.size() / 2] - 1) < 0.1);
}
