#include "actors/policy/draft/draft_scores.h"

#include <doctest/doctest.h>

#include <random>

using namespace seer;

namespace {

DraftScores::Evidence evidence_of(uint32_t match_tokens, uint32_t count, uint32_t total) {
  DraftScores::Evidence e = {};
  e.cells.fill(DraftScores::kNoCell);
  e.cells[0] = static_cast<DraftScores::Cell>(DraftScores::context_cells(match_tokens, total) +
                                              DraftScores::share(count, total));
  e.weight_set = DraftScores::weight_set(match_tokens, DraftScores::Source::kNone, false);
  return e;
}

float probability_of(const DraftScores& scores, const DraftScores::Evidence& e) {
  return DraftScores::probability(scores.logit(e));
}

}  // namespace

TEST_CASE("draft scores: before anything is learned, a larger share of the counts is likelier") {
  const DraftScores scores;
  float before = 0;
  for (uint32_t count : {0u, 2u, 10u, 20u}) {
    const float p = probability_of(scores, evidence_of(4, count, 20));
    CHECK(p > before);
    before = p;
  }
}

TEST_CASE("draft scores: probabilities become the shares that came true") {
  for (const float truth : {0.1f, 0.5f, 0.9f}) {
    CAPTURE(truth);
    std::mt19937 random(7);
    DraftScores scores;
    DraftScores::Evidence e = evidence_of(6, 3, 4);
    double sum = 0;
    constexpr int kLearned = 5000, kAveraged = 2000;
    for (int i = 0; i < kLearned; ++i) {
      e.probability = probability_of(scores, e);
      if (i >= kLearned - kAveraged) sum += static_cast<double>(e.probability) / kAveraged;
      scores.learn(e, static_cast<float>(random() % 1000) < truth * 1000);
    }
    CHECK(sum == doctest::Approx(truth).epsilon(0.1));
  }
}

TEST_CASE("draft scores: every match length, count and age has a cell of its table") {
  for (uint32_t match = 0; match <= 40; ++match)
    for (uint32_t total = 1; total < 600; total += 7)
      for (uint32_t count = 0; count <= total; count += 5)
        CHECK(DraftScores::context_cells(match, total) + DraftScores::share(count, total) < DraftScores::kNoCell);
  for (uint32_t match = 0; match <= 40; ++match)
    for (uint32_t run = 0; run < 60; ++run)
      for (uint32_t misses = 0; misses < 5; ++misses)
        CHECK(DraftScores::source_cell(run, misses, match, false, true) < DraftScores::kNoCell);
  CHECK(DraftScores::age_cells(40, DraftScores::Seen::kHere, 1 << 30) + 15 < DraftScores::kNoCell);
  CHECK(DraftScores::age_cells(40, DraftScores::Seen::kInPast, 0) + 15 < DraftScores::kNoCell);
  CHECK(DraftScores::share(20, 20) == 15);
  CHECK(DraftScores::share(19, 20) < 15);
}

TEST_CASE("draft scores: text of earlier iterations weighs less at first, and is learned separately") {
  DraftScores scores;
  DraftScores::Evidence present = evidence_of(6, 3, 4), past = present;
  past.weight_set = DraftScores::weight_set(6, DraftScores::Source::kNone, true);
  for (const auto& [e, seen] : {std::pair(&present, DraftScores::Seen::kElsewhere), {&past, DraftScores::Seen::kInPast}})
    e->cells[DraftScores::kContexts + 1] =
        static_cast<DraftScores::Cell>(DraftScores::age_cells(6, seen, 0) + DraftScores::share(3, 4));
  CHECK(probability_of(scores, past) < probability_of(scores, present));
  for (int i = 0; i < 2000; ++i) {
    past.probability = probability_of(scores, past);
    scores.learn(past, true);
    present.probability = probability_of(scores, present);
    scores.learn(present, false);
  }
  CHECK(probability_of(scores, past) > 0.7f);
  CHECK(probability_of(scores, present) < 0.3f);
}
