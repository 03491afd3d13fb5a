#include "protocols/step_cost.h"

#include <doctest/doctest.h>

#include <random>
#include <set>
#include <string>

using namespace seer;

namespace {

double amount(const std::string& name, const StepShape& shape) {
  for (const StepFeature& feature : kStepFeatures)
    if (feature.name == name) return feature.amount(shape);
  FAIL("no feature ", name);
  return 0;
}

}  // namespace

TEST_CASE("step shape: sequences add up to rows, KV read and pairs attended") {
  StepShape shape;
  shape.add(10, 1, 1);  // decode: the row attends to 11 positions
  shape.add(4, 3, 0);   // prefill: 5 + 6 + 7
  CHECK(shape == StepShape{.sequences = 2, .rows = 4, .sampled_rows = 1, .kv_tokens = 18, .attended = 29});
}

TEST_CASE("step features: each bend is where its name says, and its two sides add up to the whole") {
  for (const int64_t rows : {0, 3, 4, 5, 16, 17, 64, 65, 500}) {
    CAPTURE(rows);
    const StepShape shape{.rows = rows};
    CHECK(amount("rows", shape) == rows);
    CHECK(amount("rows_up_to_4", shape) + amount("rows_above_4", shape) == rows);
    CHECK(amount("rows_up_to_16", shape) + amount("rows_above_16", shape) == rows);
    CHECK(amount("rows_up_to_4", shape) == (rows < 4 ? rows : 4));
    CHECK(amount("rows_up_to_16", shape) == (rows < 16 ? rows : 16));
    CHECK(amount("rows_above_64", shape) == (rows > 64 ? rows - 64 : 0));
  }
  for (const int64_t kv_tokens : {0, 4096, 4097, 32768, 32769}) {
    CAPTURE(kv_tokens);
    const StepShape shape{.kv_tokens = kv_tokens, .attended = 4 * kv_tokens + 3};
    CHECK(amount("kv_tokens_above_4096", shape) == (kv_tokens > 4096 ? kv_tokens - 4096 : 0));
    CHECK(amount("kv_tokens_above_32768", shape) == (kv_tokens > 32768 ? kv_tokens - 32768 : 0));
    CHECK(amount("attended_above_4", shape) == 3);
  }
  CHECK(amount("attended_above_4", {.kv_tokens = 10, .attended = 39}) == 0);
  CHECK(amount("sampling_step", {.rows = 5}) == 0);
  CHECK(amount("sampling_step", {.rows = 5, .sampled_rows = 3}) == 1);
}

TEST_CASE("step features: each has a name of its own, since files of profiles refer to it") {
  std::set<std::string> names;
  for (const StepFeature& feature : kStepFeatures) names.insert(feature.name);
  CHECK(names.size() == kStepFeatures.size());
}

TEST_CASE("step cost: a prediction is the sum of amounts times costs") {
  StepShape shape;
  shape.add(100, 1, 1);
  shape.add(0, 20, 0);
  StepCost cost;
  CHECK(cost.predict_us(shape) == 0);
  double expected = 0;
  for (size_t i = 0; i < kStepFeatures.size(); ++i) {
    cost.us[i] = static_cast<double>(i + 1);
    expected += static_cast<double>(i + 1) * kStepFeatures[i].amount(shape);
  }
  CHECK(cost.predict_us(shape) == expected);
}

TEST_CASE("step features: one more sequence lowers no feature except the pairs above 4 of a position") {
  std::mt19937_64 rng(1);
  for (int turn = 0; turn < 2000; ++turn) {
    CAPTURE(turn);
    StepShape shape;
    for (uint64_t i = rng() % 20; i > 0; --i)
      shape.add(static_cast<int64_t>(rng() % 3000), 1 + static_cast<int64_t>(rng() % 40), 1);
    StepShape more = shape;
    more.add(static_cast<int64_t>(rng() % 3000), 1 + static_cast<int64_t>(rng() % 40), 1);
    for (const StepFeature& feature : kStepFeatures) {
      const std::string name = feature.name;
      CAPTURE(name);
      if (name == "attended_above_4") continue;  // a decode has one pair for each position that it reads
      CHECK(feature.amount(more) >= feature.amount(shape));
    }
  }
}
