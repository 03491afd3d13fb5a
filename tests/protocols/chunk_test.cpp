#include "protocols/chunk.h"

#include <doctest/doctest.h>

#include <tuple>

using namespace seer;

namespace {

/// Fills the number fields with 1, 2, 4, ... times `unit`, so that no sum can be mistaken for another.
template <class T>
T numbered(int64_t unit) {
  T made;
  made.visit_fields([&](auto&... fields) { ((fields = unit, unit *= 2), ...); });
  return made;
}
template <class T>
std::vector<int64_t> numbers(const T& of) {
  return of.visit_fields([](const auto&... fields) { return std::vector<int64_t>{fields...}; });
}
/// Adding must reach every field, also one that is added to the struct some day.
template <class T>
void check_adds_every_field() {
  T sum = numbered<T>(1);
  sum += numbered<T>(1000);
  std::vector<int64_t> expected = numbers(numbered<T>(1001));
  CHECK(numbers(sum) == expected);
}

}  // namespace

TEST_CASE("chunk messages: figures add up field by field") {
  check_adds_every_field<DraftCounts>();
  check_adds_every_field<StepTimes>();
  check_adds_every_field<DraftLosses>();
}

TEST_CASE("draft counts: the acceptance length counts the bonus token") {
  CHECK(DraftCounts{.verifies = 4, .drafted = 12, .accepted = 6}.acceptance_length() == 2.5);
  CHECK(DraftCounts{.verifies = 4, .drafted = 12, .accepted = 0}.acceptance_length() == 1);
}

TEST_CASE("draft figures: probes and others, paths and trees are two ways to split the same drafts") {
  DraftFigures figures;
  figures.probe_paths = {1, 10, 100};
  figures.probe_trees = {2, 20, 200};
  figures.other_paths = {4, 40, 400};
  figures.other_trees = {8, 80, 800};
  CHECK(figures.paths() == DraftCounts{5, 50, 500});
  CHECK(figures.trees() == DraftCounts{10, 100, 1000});
  CHECK(figures.probes() == DraftCounts{3, 30, 300});
  CHECK(figures.others() == DraftCounts{12, 120, 1200});
  CHECK(figures.all() == DraftCounts{15, 150, 1500});
}
