#include <doctest/doctest.h>

#include <cmath>

#include "actors/policy/draft_budget.h"

using namespace seer;

namespace {

using Class = DraftBudget::Class;
using Lengths = DraftBudget::Lengths;

StepShape decode_of(int64_t sequences) {
  StepShape shape;
  for (int64_t i = 0; i < sequences; ++i) shape.add(1000, 1, 1);
  return shape;
}

/// A step costs `base` and so much per row.
DraftBudget::StepNs rows_cost(double base, double row) {
  return [=](const StepShape& s) { return base + row * static_cast<double>(s.rows); };
}

void teach(DraftBudget& budget, Class of, int64_t drafted, int64_t accepted, int times) {
  for (int i = 0; i < times; ++i) budget.verified(of, drafted, accepted);
}

}  // namespace

TEST_CASE("draft budget: drafts while rows are free, none where each row costs a step") {
  DraftBudgetConfig config{.draft_ns = 0};
  DraftBudget free(config, rows_cost(1e6, 0));
  CHECK(free.choose(decode_of(8), {0, 8}) == Lengths{{8, 8}});
  DraftBudget dear(config, rows_cost(0, 1e6));
  CHECK(dear.choose(decode_of(8), {0, 8}) == Lengths{{0, 0}});
  CHECK(free.choose(StepShape{}, {0, 0}) == Lengths{});
}

TEST_CASE("draft budget: the least time per token, worked out by hand") {
  // b = 0.5 everywhere: gains 1, 1.5, 1.75, 1.875. A row costs a tenth of the base: one sequence takes 1.1, 1.2 / 1.5 =
  // 0.8, 1.3 / 1.75 = 0.743, 1.4 / 1.875 = 0.747.
  DraftBudget budget({.draft_ns = 0}, rows_cost(1e6, 1e5));
  CHECK(budget.choose(decode_of(1), {0, 1}) == Lengths{{2, 2}});
  // The time to make drafts counts: with a fifth of the base it is 1.1 against 1.4 / 1.5, 1.5 / 1.75, 1.6 / 1.875 =
  // 0.853, 1.7 / 1.9375 = 0.877.
  DraftBudget slow({.draft_ns = 2e5}, rows_cost(1e6, 1e5));
  CHECK(slow.choose(decode_of(1), {0, 1}) == Lengths{{3, 3}});
}

TEST_CASE("draft budget: learns each position's acceptance, and forgets") {
  DraftBudget budget({.memory = 100}, rows_cost(1e6, 1e5));
  for (int i = 0; i < 1000; ++i) budget.verified(Class::kLow, 4, i % 2 == 0 ? 3 : 0);  // stand 0.5, 1, 1, 0
  budget.choose(decode_of(1), {0, 1});
  CHECK(budget.acceptance(Class::kLow, 1) == doctest::Approx(0.5).epsilon(0.03));
  CHECK(budget.acceptance(Class::kLow, 2) > 0.85);
  CHECK(budget.acceptance(Class::kLow, 4) < 0.2);
  CHECK(budget.acceptance(Class::kHigh, 1) == 0.5);  // nothing was learned of the other class
  CHECK(budget.expected_gain(Class::kLow, 2) ==
        doctest::Approx(1 + budget.acceptance(Class::kLow, 1) * (1 + budget.acceptance(Class::kLow, 2))));
  teach(budget, Class::kLow, 4, 4, 1000);
  budget.choose(decode_of(1), {0, 1});
  CHECK(budget.acceptance(Class::kLow, 1) > 0.85);
}

TEST_CASE("draft budget: switches off when nothing stands, and on again") {
  DraftBudget budget({.memory = 200}, rows_cost(1e6, 1e5));
  teach(budget, Class::kLow, 2, 0, 1000);
  CHECK(budget.choose(decode_of(4), {0, 4}) == Lengths{{0, 0}});
  teach(budget, Class::kLow, 2, 2, 1000);
  CHECK(budget.choose(decode_of(4), {0, 4}).tokens[Class::kLow] > 0);
}

TEST_CASE("draft budget: Algorithm 1 as printed deals out by the fall in acceptance, the corrected one by the gain") {
  // Two probes and two others; 2 rows each are worth it for all, so the budget is g* x 4.
  const auto taught = [](DraftRule rule) {
    DraftBudget budget({.rule = rule, .gamma_max = 4, .lambda = 1.5, .draft_ns = 0}, rows_cost(1e6, 1e4));
    for (int i = 0; i < 4000; ++i) budget.verified(Class::kHigh, 4, i % 10 == 0 ? 0 : 4);  // 0.9, 1, 1, 1
    for (int i = 0; i < 4000; ++i) budget.verified(Class::kLow, 4, i % 2 == 0 ? 0 : 1);    // 0.5, 0, -, -
    return budget;
  };
  DraftBudget marginal = taught(DraftRule::kMarginal);
  const Lengths by_gain = marginal.choose(decode_of(4), {2, 2});
  CHECK(by_gain.tokens[Class::kHigh] == 4);  // each more stands with 0.9, against at most 0.5
  DraftBudget printed = taught(DraftRule::kPrinted);
  const Lengths by_fall = printed.choose(decode_of(4), {2, 2});
  CHECK(by_fall.tokens[Class::kHigh] == 1);  // 0.9 -> 1 -> 1: no fall, so the others get the rest
  CHECK(by_fall.tokens[Class::kLow] > by_gain.tokens[Class::kLow] - 4);
}

TEST_CASE("draft budget: never more rows than the uniform rule's, never over gamma_max") {
  for (const DraftRule rule : {DraftRule::kPrinted, DraftRule::kMarginal}) {
    for (int64_t high = 0; high <= 5; ++high) {
      for (int64_t low = 0; low <= 5; ++low) {
        if (high + low == 0) continue;
        DraftBudgetConfig config{.rule = rule, .gamma_max = 5, .draft_ns = 0};
        DraftBudget dealt(config, rows_cost(1e6, 8e4));
        config.rule = DraftRule::kUniform;
        DraftBudget uniform(config, rows_cost(1e6, 8e4));
        const Lengths a = dealt.choose(decode_of(high + low), {high, low});
        const Lengths b = uniform.choose(decode_of(high + low), {high, low});
        CHECK(a.tokens[0] * high + a.tokens[1] * low <= b.tokens[0] * high + b.tokens[1] * low);
        CHECK(std::max(a.tokens[0], a.tokens[1]) <= 5);
      }
    }
  }
}
