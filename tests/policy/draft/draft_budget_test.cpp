#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "actors/policy/draft/draft_budget.h"

using namespace seer;

namespace {

using Class = DraftBudget::Class;
using Tokens = DraftBudget::Tokens;
constexpr DraftShape kPath = DraftShape::kPath, kTree = DraftShape::kTree;

StepShape decode_of(int64_t sequences) {
  StepShape shape;
  for (int64_t i = 0; i < sequences; ++i) shape.add(1000, 1, 1);
  return shape;
}

/// A step costs `base` and a fixed time per row.
DraftBudget::StepNs rows_cost(double base, double row) {
  return [=](const StepShape& s) { return base + row * static_cast<double>(s.rows); };
}

/// Drafts whose first rows are accepted.
void teach(DraftBudget& budget, Class of, int64_t drafted, int64_t accepted, int times, DraftShape shape = kPath) {
  std::vector<int32_t> rows(static_cast<size_t>(accepted) + 1);
  std::iota(rows.begin(), rows.end(), 0);
  for (int i = 0; i < times; ++i) budget.verified(of, shape, drafted, drafted, rows);
}

/// Without a minimum saving and without scouts.
DraftBudgetConfig plain_config(DraftBudgetConfig config = {}) {
  config.min_saving = 0;
  config.scouts = 0;
  return config;
}

}  // namespace

TEST_CASE("draft budget: drafts while rows are free, none where each row costs a step") {
  const DraftBudgetConfig config = plain_config({.draft_ns = 0});
  DraftBudget free(config, rows_cost(1e6, 0));
  CHECK(free.choose(decode_of(8), {0, 8}).tokens == Tokens{8, 8});
  DraftBudget dear(config, rows_cost(0, 1e6));
  CHECK(dear.choose(decode_of(8), {0, 8}).tokens == Tokens{0, 0});
  CHECK(!free.choose(StepShape{}, {0, 0}).drafts());
}

TEST_CASE("draft budget: the least time per token, worked out by hand") {
  // Row i is accepted with probability 0.5^i: gains 1, 1.5, 1.75, 1.875. A row costs a tenth of the base: one sequence takes 1.1, 1.2 / 1.5 =
  // 0.8, 1.3 / 1.75 = 0.743, 1.4 / 1.875 = 0.747.
  DraftBudget budget(plain_config({.draft_ns = 0}), rows_cost(1e6, 1e5));
  const DraftBudget::Choice choice = budget.choose(decode_of(1), {0, 1});
  CHECK(choice.tokens == Tokens{2, 2});
  CHECK(choice.token_ns == doctest::Approx(1.3e6 / 1.75));
  CHECK(choice.min_probability == doctest::Approx(1e5 / (1.3e6 / 1.75)));  // what a row costs, in tokens
  // The time to make drafts counts: with a fifth of the base it is 1.1 against 1.4 / 1.5, 1.5 / 1.75, 1.6 / 1.875 =
  // 0.853, 1.7 / 1.9375 = 0.877.
  DraftBudget slow(plain_config({.draft_ns = 2e5}), rows_cost(1e6, 1e5));
  CHECK(slow.choose(decode_of(1), {0, 1}).tokens == Tokens{3, 3});
  // Drafts that save too little are not made: 0.743 is 32 % less than 1.1.
  DraftBudget strict({.draft_ns = 0, .min_saving = 0.33, .scouts = 0}, rows_cost(1e6, 1e5));
  CHECK(!strict.choose(decode_of(1), {0, 1}).drafts());
}

TEST_CASE("draft budget: learns each row's acceptance, and forgets") {
  DraftBudget budget(plain_config({.memory = 100}), rows_cost(1e6, 1e5));
  for (int i = 0; i < 1000; ++i) teach(budget, Class::kLow, 4, i % 2 == 0 ? 3 : 0, 1);  // stand 0.5, 0.5, 0.5, 0
  budget.choose(decode_of(1), {0, 1});
  CHECK(budget.accept_share(Class::kLow, kPath, 1) == doctest::Approx(0.5).epsilon(0.05));
  CHECK(budget.acceptance(Class::kLow, kPath, 2) > 0.85);
  CHECK(budget.acceptance(Class::kLow, kPath, 4) < 0.2);
  CHECK(budget.acceptance(Class::kHigh, kPath, 1) == 0.5);  // nothing was learned of the other class
  CHECK(budget.expected_gain(Class::kLow, kPath, 2) ==
        doctest::Approx(1 + budget.acceptance(Class::kLow, kPath, 1) * (1 + budget.acceptance(Class::kLow, kPath, 2))));
  teach(budget, Class::kLow, 4, 4, 1000);
  budget.choose(decode_of(1), {0, 1});
  CHECK(budget.accept_share(Class::kLow, kPath, 1) > 0.85);
}

TEST_CASE("draft budget: switches off when nothing is accepted, and on again") {
  DraftBudget budget(plain_config({.memory = 200}), rows_cost(1e6, 1e5));
  teach(budget, Class::kLow, 2, 0, 1000);
  CHECK(!budget.choose(decode_of(4), {0, 4}).drafts());
  teach(budget, Class::kLow, 2, 2, 1000);
  CHECK(budget.choose(decode_of(4), {0, 4}).tokens[Class::kLow] > 0);
}

TEST_CASE("draft budget: rows that are allowed but seldom drafted cost as little as they gain") {
  // Of 8 rows allowed only the first is ever drafted, and it is accepted: as good as one row, at the price of one row.
  DraftBudget budget(plain_config({.draft_ns = 0}), rows_cost(1e6, 5e5));
  const std::vector<int32_t> rows{0, 1};
  for (int i = 0; i < 5000; ++i) budget.verified(Class::kLow, kPath, 8, 1, rows);
  const DraftBudget::Choice choice = budget.choose(decode_of(1), {0, 1});
  CHECK(budget.expected_rows(Class::kLow, kPath, 8) == doctest::Approx(1).epsilon(0.1));
  CHECK(budget.expected_gain(Class::kLow, kPath, 8) == doctest::Approx(2).epsilon(0.05));
  CHECK(choice.drafts());
  CHECK(choice.token_ns == doctest::Approx(1e6).epsilon(0.05));  // (1 + 2 x 0.5) / 2 ms
}

TEST_CASE("draft budget: paths verified together teach the same as paths verified one by one") {
  const std::vector<int32_t> gained{1, 3, 4, 2, 4, 1, 1, 3, 2, 4, 1};
  DraftBudget together(plain_config(), rows_cost(1e6, 1e4)), single = together;
  for (int round = 0; round < 5; ++round) {
    together.verified_paths(Class::kLow, 5, 3, gained);
    for (const int32_t tokens : gained) {
      std::vector<int32_t> rows(static_cast<size_t>(tokens));
      std::iota(rows.begin(), rows.end(), 0);
      single.verified(Class::kLow, kPath, 5, 3, rows);
    }
    const DraftBudget::Choice a = together.choose(decode_of(8), {0, 8}), b = single.choose(decode_of(8), {0, 8});
    CHECK(a.tokens == b.tokens);
    CHECK(a.token_ns == b.token_ns);
    for (int64_t row = 1; row <= 5; ++row) {
      CHECK(together.accept_share(Class::kLow, kPath, row) == single.accept_share(Class::kLow, kPath, row));
      CHECK(together.expected_rows(Class::kLow, kPath, row) == single.expected_rows(Class::kLow, kPath, row));
    }
  }
  CHECK(together.accept_share(Class::kLow, kPath, 1) == doctest::Approx(7.0 / 11).epsilon(0.05));
}

TEST_CASE("draft budget: trees where rows cost little, paths where they cost more, nothing where they cost most") {
  // A path gains 2.4 at 4 rows, a tree 3 at 10, of which 1.9 at 4.
  const auto taught = [](double row_ns) {
    DraftBudget budget(plain_config({.rows_max = {12, 12}, .draft_ns = 0}), rows_cost(1e6, row_ns));
    const std::vector<int32_t> none{0}, whole{0, 1, 2, 3, 4}, likely{0, 1, 2, 5, 9}, other{0, 3, 8, 10};
    for (int i = 0; i < 4000; ++i) {
      budget.verified(Class::kLow, kPath, 12, 4, i % 100 < 35 ? whole : none);
      budget.verified(Class::kLow, kTree, 12, 12, i % 100 < 35 ? likely : i % 100 < 55 ? other : none);
    }
    return budget;
  };
  const auto choose = [&](double row_ns, int64_t sequences) {
    return taught(row_ns).choose(decode_of(sequences), {0, sequences});
  };
  CHECK(choose(1e3, 1).shape == kTree);
  CHECK(choose(1e3, 1).drafts());
  CHECK(choose(1.5e5, 1).shape == kPath);
  CHECK(choose(1.5e5, 1).drafts());
  CHECK(!choose(1.5e5, 4).drafts());  // the base is shared: a row is dearer, beside it
}

TEST_CASE("draft budget: the more rows cost, the likelier they must be") {
  float before = 0;
  for (const double row_ns : {1e3, 1e4, 1e5, 4e5}) {
    DraftBudget budget(plain_config({.draft_ns = 0}), rows_cost(1e6, row_ns));
    const float p = budget.choose(decode_of(4), {0, 4}).min_probability;
    CHECK(p > before);
    before = p;
  }
  CHECK(before < 1);
}

TEST_CASE("draft budget: steps that take longer than the cost model says correct it") {
  // Drafts add half more than the model says, in steps that are twice as long, so drafts that save time in the model lose.
  DraftBudget budget(plain_config({.draft_ns = 0}), rows_cost(1e6, 8e5));
  CHECK(budget.choose(decode_of(1), {0, 1}).drafts());
  const auto shape = [](int64_t rows) {
    StepShape s;
    s.add(1000, rows, rows);
    return s;
  };
  const auto true_ns = [](int64_t rows) { return 2.9e6 + 2.2e6 * static_cast<double>(rows - 1); };
  for (int i = 0; i < 4000; ++i) {
    const int64_t rows = 1 + i % 4;
    budget.took(shape(1), shape(rows), i % 50 == 0 ? 1e9 : true_ns(rows));  // now and then something else came between
    if (i % 32 == 0) budget.choose(decode_of(1), {0, 1});
  }
  const DraftBudget::Choice choice = budget.choose(decode_of(1), {0, 1});
  CHECK(budget.predict_ns(shape(1), shape(1)) == doctest::Approx(true_ns(1)).epsilon(0.15));
  CHECK(budget.predict_ns(shape(1), shape(4)) == doctest::Approx(true_ns(4)).epsilon(0.15));
  CHECK(!choice.drafts());
}

TEST_CASE("draft budget: the time that drafts take to make is learned") {
  DraftBudget budget(plain_config({.draft_ns = 0}), rows_cost(1e6, 1e5));
  CHECK(budget.choose(decode_of(1), {0, 1}).drafts());
  for (int i = 0; i < 20'000; ++i) budget.drafting_took(1, 1e7);
  CHECK(!budget.choose(decode_of(1), {0, 1}).drafts());
}

TEST_CASE("draft budget: drafts must pay for the time that the engine waits for them, and not for other waits") {
  // Without waits, a row that costs a tenth of the base pays: 1.3 / 1.75 = 0.743 against 1.1, see above.
  DraftBudget budget(plain_config({.draft_ns = 0}), rows_cost(1e6, 1e5));
  for (int i = 0; i < 2000; ++i) budget.engine_waited(false, 9e5), budget.engine_waited(true, 9e5);
  CHECK(budget.choose(decode_of(1), {0, 1}).tokens == Tokens{2, 2});
  // With 0.9 of the base for the wait it is 2.3 / 1.75 = 1.31 and, at most drafts, 2.8 / 1.99 = 1.41.
  for (int i = 0; i < 2000; ++i) budget.engine_waited(false, 0);
  CHECK(budget.choose(decode_of(1), {0, 1}).tokens == Tokens{0, 0});
  CHECK(budget.extra_wait_ns(5e5) == doctest::Approx(5e5).epsilon(0.01));
  DraftBudget unmeasured(plain_config({.draft_ns = 0, .wait_ns = 9e5}), rows_cost(1e6, 1e5));
  CHECK(unmeasured.choose(decode_of(1), {0, 1}).tokens == Tokens{0, 0});
}

/// A step costs `base` and a fixed time per row, and `verify` more if it verifies anything.
DraftBudget::StepNs verify_cost(double base, double row, double verify) {
  return [=](const StepShape& s) {
    return base + row * static_cast<double>(s.rows) + (s.sampled_rows > s.sequences ? verify : 0);
  };
}

TEST_CASE("draft budget: a row is priced by what one more costs, whatever a step with drafts costs at all") {
  // 64 sequences: a step of 10 ms, 2 us per row, and 2.5 ms more if it verifies. 0.5 of the first rows are accepted.
  for (const double verify : {0.0, 2.5e6}) {
    CAPTURE(verify);
    DraftBudget budget(plain_config({.draft_ns = 0}), verify_cost(1e7, 2e3, verify));
    const DraftBudget::Choice choice = budget.choose(decode_of(64), {0, 64});
    CHECK(choice.tokens[Class::kLow] >= 4);
    CHECK(choice.min_probability == doctest::Approx(std::max(0.02, 2e3 / choice.token_ns)));
  }
  // If nothing pays, the price is that of a row beside others, for scouts.
  DraftBudget none(plain_config({.draft_ns = 0}), verify_cost(1e7, 2e3, 1e9));
  const DraftBudget::Choice choice = none.choose(decode_of(64), {0, 64});
  CHECK(!choice.drafts());
  CHECK(choice.min_probability == doctest::Approx(0.02));
}

TEST_CASE("draft budget: scouts take turns, at first one each time, then one per fixed number of drafts") {
  // A row costs so much that drafts pay only if nearly all of them are accepted. The base makes scouts cheap.
  const auto costs = rows_cost(4e6, 1e6);
  DraftBudget budget({.rows_max = {4, 6}, .min_saving = 0, .scouts = 1.0 / 64, .scout_time = 1e9}, costs);
  teach(budget, Class::kLow, 4, 0, 4000);
  teach(budget, Class::kLow, 6, 0, 4000, kTree);
  std::array<int64_t, 2> shapes{};
  for (int i = 0; i < 8; ++i) {
    const DraftBudget::Choice choice = budget.choose(decode_of(16), {0, 16});
    CHECK(choice.scouts == 1);
    CHECK(!choice.drafts());
    ++shapes[static_cast<size_t>(choice.scout_shape)];
  }
  CHECK(shapes == std::array<int64_t, 2>{4, 4});
  int64_t scouts = 0;
  for (int i = 0; i < 400; ++i) scouts += budget.choose(decode_of(16), {0, 16}).scouts;
  CHECK(scouts == 100);
  CHECK(budget.choose(decode_of(256), {0, 256}).scouts == 4);
  DraftBudget trees_only({.rows_max = {0, 6}}, rows_cost(1e6, 1e5));
  for (int i = 0; i < 4; ++i) CHECK(trees_only.choose(decode_of(1), {0, 1}).scout_shape == kTree);
}

TEST_CASE("draft budget: while nothing is drafted, scouts add no more to steps than their share of the time") {
  // Nothing is accepted, and a step that verifies costs 3 ms more than the 10 ms of others. What scouts taught is not forgotten.
  DraftBudget budget({.draft_ns = 0, .scouts = 1.0 / 16, .scout_time = 0.02}, verify_cost(1e7, 1e3, 3e6));
  teach(budget, Class::kLow, 8, 0, 4000);
  double added_ns = 0;
  int64_t scouts = 0, together_least = 1000;
  constexpr int kChoices = 2000;
  for (int i = 0; i < kChoices; ++i) {
    const DraftBudget::Choice choice = budget.choose(decode_of(64), {0, 64});
    REQUIRE(!choice.drafts());
    if (choice.scouts == 0 || i < 100) continue;  // the first come at once
    added_ns += 3e6 + 1e3 * 8 * static_cast<double>(choice.scouts);
    scouts += choice.scouts;
    together_least = std::min(together_least, choice.scouts);
  }
  CHECK(added_ns <= 0.021 * 1e7 * kChoices);
  CHECK(added_ns > 0.015 * 1e7 * kChoices);
  CHECK(together_least >= 32);  // they waited, and went together
  CHECK(scouts > kChoices);
}

TEST_CASE("draft budget: no scouts where drafts would not pay if all of them were accepted") {
  // A row costs as much as a sequence's step: 9 tokens of one draft take 9 times as long.
  DraftBudget never({}, rows_cost(0, 1e6));
  // A draft takes longer to make than nine steps.
  DraftBudget slow({.draft_ns = 1e8}, rows_cost(1e6, 1e3));
  for (int i = 0; i < 100; ++i) {
    CHECK(never.choose(decode_of(16), {0, 16}).scouts == 0);
    CHECK(slow.choose(decode_of(1), {0, 1}).scouts == 0);
  }
}

TEST_CASE("draft budget: Algorithm 1 as printed deals by the fall in acceptance, the corrected one by the gain") {
  // Two probes and two others; 2 rows each pay for all, so the budget is g* x 4.
  const auto taught = [](DraftRule rule) {
    DraftBudget budget(plain_config({.rule = rule, .rows_max = {4, 0}, .lambda = 1.5, .draft_ns = 0}), rows_cost(1e6, 1e4));
    for (int i = 0; i < 4000; ++i) teach(budget, Class::kHigh, 4, i % 10 == 0 ? 0 : 4, 1);  // 0.9, 1, 1, 1
    for (int i = 0; i < 4000; ++i) teach(budget, Class::kLow, 4, i % 2 == 0 ? 0 : 1, 1);    // 0.5, 0, -, -
    return budget;
  };
  DraftBudget marginal = taught(DraftRule::kMarginal);
  const Tokens by_gain = marginal.choose(decode_of(4), {2, 2}).tokens;
  CHECK(by_gain[Class::kHigh] == 4);  // one more is accepted with 0.9, against at most 0.5
  DraftBudget printed = taught(DraftRule::kPrinted);
  const Tokens by_fall = printed.choose(decode_of(4), {2, 2}).tokens;
  CHECK(by_fall[Class::kHigh] == 1);  // 0.9 -> 1 -> 1: no fall, so the others get the rest
  CHECK(by_fall[Class::kLow] > by_gain[Class::kLow] - 4);
}

TEST_CASE("draft budget: never more rows than the uniform rule's, never over rows_max") {
  for (const DraftRule rule : {DraftRule::kPrinted, DraftRule::kMarginal}) {
    for (int64_t high = 0; high <= 5; ++high) {
      for (int64_t low = 0; low <= 5; ++low) {
        if (high + low == 0) continue;
        DraftBudgetConfig config = plain_config({.rule = rule, .rows_max = {5, 0}, .draft_ns = 0});
        DraftBudget dealt(config, rows_cost(1e6, 8e4));
        config.rule = DraftRule::kUniform;
        DraftBudget uniform(config, rows_cost(1e6, 8e4));
        const Tokens a = dealt.choose(decode_of(high + low), {high, low}).tokens;
        const Tokens b = uniform.choose(decode_of(high + low), {high, low}).tokens;
        CHECK(a[0] * high + a[1] * low <= b[0] * high + b[1] * low);
        CHECK(std::max(a[0], a[1]) <= 5);
      }
    }
  }
}

TEST_CASE("draft budget: a step without drafts has a time, however much of the time drafts take") {
  // Verifies of 9 rows take twice as long as the model says, and plain steps are rare: the line through both passes below zero.
  DraftBudget budget(plain_config({.draft_ns = 0}), rows_cost(5e4, 6e4));
  const auto shape = [](int64_t rows) {
    StepShape s;
    s.add(1000, rows, rows);
    return s;
  };
  for (int i = 0; i < 4000; ++i) {
    const int64_t rows = i % 8 == 0 ? 5 : 9;
    budget.took(shape(1), shape(rows), rows == 9 ? 1.1e6 : 3e5);
    if (i % 32 != 0) continue;
    const DraftBudget::Choice choice = budget.choose(decode_of(1), {0, 1});
    CHECK(budget.predict_ns(shape(1), shape(1)) > 1e4);
    CHECK(choice.token_ns > 0);
  }
  CHECK(budget.predict_ns(shape(1), shape(9)) == doctest::Approx(1.1e6).epsilon(0.2));
}
