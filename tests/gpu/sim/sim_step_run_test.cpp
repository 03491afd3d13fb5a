#include "gpu/sim/sim_step_run.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>

#include "protocols/hash.h"

using namespace seer;

namespace {

constexpr uint32_t kBlockTokens = 8;
constexpr int64_t kDraftNs = 50;
constexpr int32_t kStepsMax = 40, kPlaces = 6;

/// How many of these draft tokens stand.
int32_t accepted(uint64_t seed, int64_t position, int64_t draft_tokens) {
  return static_cast<int32_t>(hash_pair(seed, static_cast<uint64_t>(position)) % static_cast<uint64_t>(draft_tokens + 1));
}
int64_t last_position(uint64_t seed) { return 30 + static_cast<int64_t>(seed % 200); }
int64_t step_ns(const StepShape& s) {
  return 1000 + 10 * s.rows + s.sampled_rows + 3 * s.kv_tokens + s.attended / 2 + 7 * s.sequences;
}

/// The obvious reference: one step after the other, of all sequences.
struct SlowRun {
  struct Sequence {
    SequenceStep step;
    std::optional<StepsLimit> limit;
    int64_t start = 0, gained = 0, covered = 0;
    bool ended = false;
    std::vector<int32_t> untaken;  // gained by step
  };
  std::map<int32_t, Sequence> at;

  /// Returns the places that need a block behind it, once for each.
  std::vector<int32_t> step(int64_t& ns) {
    StepShape shape;
    std::vector<int32_t> needs;
    int64_t drafts = 0;
    for (const auto& [place, s] : at) {
      shape.add(s.start, std::ssize(s.step.tokens), s.step.sample_rows);
      drafts += s.step.sample_rows > 1 ? 1 : 0;
    }
    ns += step_ns(shape) + kDraftNs * drafts;
    for (auto& [place, s] : at) {
      int32_t gained = std::min(1, s.step.sample_rows);
      if (s.step.sample_rows > 1) gained += accepted(s.step.seed, s.start, s.step.sample_rows - 1);
      if (s.step.sample_rows > 0 && s.limit)
        gained = static_cast<int32_t>(std::min<int64_t>(gained, last_position(s.step.seed) - s.start));
      s.start += gained;
      s.gained += gained;
      s.untaken.push_back(gained);
      s.ended = !s.limit || s.gained > s.limit->gain_max || s.start >= last_position(s.step.seed);
      for (; !s.ended && s.start + std::ssize(s.step.tokens) > s.covered; s.covered += kBlockTokens)
        needs.push_back(place);
    }
    return needs;
  }
};

}  // namespace

TEST_CASE("sim step run: however sequences join, leave and are looked at, each step is what it is alone") {
  int64_t steps_seen = 0, splits = 0, shortages = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 rng(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
    SimStepRun run({.block_tokens = kBlockTokens,
                    .steps_max = kStepsMax,
                    .draft_ns = kDraftNs,
                    .step_ns = step_ns,
                    .last_position = last_position,
                    .accepted = [](uint64_t of, int64_t position, int64_t draft_tokens, std::span<int32_t> stand) {
                      for (int32_t& tokens : stand) {
                        tokens = accepted(of, position, draft_tokens);
                        position += 1 + tokens;
                      }
                    }});
    SlowRun slow;
    const auto sampling = std::make_shared<const SamplingParams>();
    const auto take = [&](int32_t place, int64_t steps) {
      SlowRun::Sequence& s = slow.at.at(place);
      const SimStepRun::Taken taken = run.take(place, steps);
      REQUIRE(taken.steps <= std::ssize(s.untaken));
      const std::vector<int32_t> expected(s.untaken.begin(), s.untaken.begin() + taken.steps);
      int64_t tokens = 0;
      for (const int32_t gained : expected) tokens += gained;
      REQUIRE(taken.tokens == tokens);
      if (s.step.sample_rows > 1) REQUIRE(std::ranges::equal(taken.gained, expected));
      s.untaken.erase(s.untaken.begin(), s.untaken.begin() + taken.steps);
    };
    for (int round = 0; round < 40; ++round) {
      for (int32_t place = 0; place < kPlaces; ++place) {
        if (slow.at.contains(place) && (slow.at[place].ended || below(6) == 0)) {
          if (below(2) == 0) take(place, std::ssize(run.ends_ns()));
          run.leave(place);
          slow.at.erase(place);
        }
        if (slow.at.contains(place) || below(3) > 0) continue;
        SlowRun::Sequence s;
        s.step.seed = rng();
        s.step.start = below(25);
        s.step.sampling = sampling;
        const bool prefills = below(4) == 0;
        s.step.sample_rows = static_cast<int32_t>(prefills ? below(2) : 1 + below(2) * below(5));
        s.step.tokens.assign(static_cast<size_t>(prefills ? 2 + below(9) : s.step.sample_rows), 5);
        s.start = s.step.start;
        s.covered = (s.start + std::ssize(s.step.tokens) + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
        if (!prefills) s.limit = StepsLimit{.gain_max = below(60), .covered = s.covered};
        run.join(place, s.step, s.limit);
        slow.at.emplace(place, std::move(s));
      }
      if (slow.at.empty()) continue;
      const int64_t steps_max = 1 + below(kStepsMax), blocks_free = below(3) == 0 ? below(4) : 1000;
      run.plan(steps_max, blocks_free);
      const int64_t planned = std::ssize(run.ends_ns());
      const int64_t steps = below(3) == 0 ? 1 + below(planned) : planned;
      run.shorten(static_cast<size_t>(steps));
      splits += steps < planned ? 1 : 0;
      int64_t ns = 0, blocks = 0;
      const int64_t looked_at = below(steps);
      std::vector<int32_t> needs;
      for (int64_t step = 0; step < steps; ++step) {
        if (step == looked_at) {
          std::vector<int32_t> told = run.take_block_needs(step);
          REQUIRE(std::ranges::is_permutation(told, needs));
          needs.clear();
        }
        const std::vector<int32_t> more = slow.step(ns);
        needs.insert(needs.end(), more.begin(), more.end());
        blocks += std::ssize(more);
        REQUIRE(run.ends_ns()[static_cast<size_t>(step)] == ns);
        const bool ended = std::ranges::any_of(slow.at, [](const auto& s) { return s.second.ended; });
        const bool is_last = ended || blocks > blocks_free || step + 1 == steps_max;
        if (steps == planned) REQUIRE(is_last == (step + 1 == steps));
        if (steps < planned) REQUIRE(!is_last);
        shortages += blocks > blocks_free ? 1 : 0;
        ++steps_seen;
      }
      std::vector<int32_t> ended;
      for (const auto& [place, s] : slow.at)
        if (s.ended) ended.push_back(place);
      REQUIRE(std::ranges::is_permutation(run.pass(), ended));
      REQUIRE(std::ranges::is_permutation(run.take_block_needs(steps), needs));
      for (int32_t place = 0; place < kPlaces; ++place)
        if (slow.at.contains(place) && below(3) == 0) take(place, steps - below(2));
    }
  }
  CHECK(steps_seen > 20'000);
  CHECK(splits > 500);
  CHECK(shortages > 100);
}
