#include "actors/policy/draft/draft_scores.h"

#include <doctest/doctest.h>

#include <random>

using namespace seer;

namespace {

using Seen = DraftScores::Seen;

/// Of a candidate that followed the only context `count` times of `total`.
DraftScores::Evidence evidence_of(uint32_t match_tokens, uint32_t count, uint32_t total, std::optional<DraftScores::LastSeen> last = {},
                                  std::optional<DraftScores::Source> source = {}) {
  return DraftScores::Row({&match_tokens, 1}, {&total, 1}, source).evidence({&count, 1}, false, last);
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
      for (uint32_t count = 0; count <= total; count += 5) CHECK(evidence_of(match, count, total).cells[0] < DraftScores::kNoCell);
  for (uint32_t match = 0; match <= 40; ++match)
    for (uint32_t run = 0; run < 60; ++run)
      for (uint32_t misses = 0; misses < 5; ++misses)
        CHECK(evidence_of(match, 1, 2, {}, {{run, misses, true}}).cells[DraftScores::kContexts] < DraftScores::kNoCell);
  for (const DraftScores::LastSeen last : {DraftScores::LastSeen{Seen::kHere, 0}, {Seen::kHere, 1 << 30}, {Seen::kInPast}})
    CHECK(evidence_of(40, 20, 20, last).cells[DraftScores::kContexts + 1] < DraftScores::kNoCell);
  CHECK(evidence_of(4, 20, 20).cells[0] % 16 == 15);
  CHECK(evidence_of(4, 19, 20).cells[0] % 16 < 15);
}

TEST_CASE("draft scores: what was seen later here has other evidence, up to 4096 tokens ago") {
  const auto age = [](int64_t tokens_ago) { return evidence_of(6, 3, 4, {{Seen::kHere, tokens_ago}}).cells[DraftScores::kContexts + 1]; };
  DraftScores::Cell before = age(1);
  for (const int64_t limit : {16, 64, 256, 1024, 4096}) {
    CHECK(age(limit - 1) == before);
    CHECK(age(limit) == before + 16);
    before = age(limit);
  }
  CHECK(age(int64_t{1} << 40) == before);
}

TEST_CASE("draft scores: text of earlier iterations weighs less at first, and is learned separately") {
  DraftScores scores;
  DraftScores::Evidence present = evidence_of(6, 3, 4, {{Seen::kElsewhere}}), past = evidence_of(6, 3, 4, {{Seen::kInPast}});
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
