#include "gpu/cpu/rope_table.h"

#include <doctest/doctest.h>

#include <cmath>

using namespace seer;

namespace {

ModelConfig model(double factor) {
  ModelConfig config;
  config.head_dim = 16;
  config.rope.theta = 10000;
  config.rope.attention_factor = factor;
  return config;
}

}  // namespace

TEST_CASE("rope table: cosine and sine of position times frequency, times the attention factor") {
  const ModelConfig config = model(1.5);
  RopeTable table(config);
  table.reserve(2000);
  REQUIRE(table.half() == 8);
  for (const int64_t position : {0, 1, 17, 511, 512, 1023, 1999})
    for (int32_t i = 0; i < 8; ++i) {
      const double angle = static_cast<double>(position) * rope_frequencies(config)[static_cast<size_t>(i)];
      CHECK(table.cosines(position)[i] == doctest::Approx(std::cos(angle) * 1.5).epsilon(1e-6));
      CHECK(table.sines(position)[i] == doctest::Approx(std::sin(angle) * 1.5).epsilon(1e-6));
    }
  CHECK(table.cosines(0)[0] == 1.5f);
  CHECK(table.sines(0)[7] == 0.0f);
}

TEST_CASE("rope table: growing it changes no bit of what was there, and does not move it") {
  RopeTable grown(model(1)), at_once(model(1));
  grown.reserve(1);
  const float* const first = grown.cosines(0);
  grown.reserve(600);
  grown.reserve(3000);
  at_once.reserve(3000);
  CHECK(grown.cosines(0) == first);
  size_t differ = 0;
  for (int64_t position = 0; position < 3000; ++position)
    for (int32_t i = 0; i < 8; ++i)
      differ += grown.cosines(position)[i] != at_once.cosines(position)[i] || grown.sines(position)[i] != at_once.sines(position)[i] ? 1 : 0;
  CHECK(differ == 0);
}
