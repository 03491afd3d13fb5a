#include "gpu/step_planner.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

using namespace seer;

namespace {

constexpr uint32_t kBlockTokens = 4;

StepPlan plan_of(const std::vector<RunningSequence>& sequences, const StepPlannerConfig& config, int32_t available) {
  StepPlan plan;
  plan_step(sequences, config, kBlockTokens, available, plan);
  return plan;
}

// All blocks of a sequence are its own.
std::vector<int32_t> victims_of(std::span<const RunningSequence> sequences, int32_t blocks_short) {
  return pick_victims(sequences, blocks_short, kBlockTokens,
                      [&](int32_t i) { return sequences[static_cast<size_t>(i)].table_blocks; });
}

// A sequence whose KV fills its table as tightly as it can.
RunningSequence sequence(uint64_t id, int64_t known, int64_t kv, int32_t draft = 0) {
  RunningSequence s{.id = id, .known_tokens = known, .kv_tokens = kv, .draft_tokens = draft};
  s.table_blocks = blocks_needed(kv, 0, kBlockTokens);
  return s;
}

bool decodes(const RunningSequence& s) { return s.wants_sampling && s.kv_tokens == s.known_tokens - 1; }

// The obvious reference: hands out one row at a time, recomputing all sums each time.
class SlowPlanner {
 public:
  SlowPlanner(const std::vector<RunningSequence>& sequences, const StepPlannerConfig& config, int32_t available)
      : sequences_(sequences), config_(config), available_(available), rows_(sequences.size()) {}

  StepPlan plan() {
    StepPlan out;
    for (size_t i = 0; i < sequences_.size(); ++i)
      if (decodes(i) && !give(i, config_.rows_max) && all_rows() < config_.rows_max) ++out.blocks_short;
    const int rows_max = std::min(config_.rows_max, all_rows() + config_.prefill_tokens_max);
    std::vector<size_t> prefills;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      if (decodes(i)) continue;
      const auto missing = sequences_[i].known_tokens - sequences_[i].kv_tokens;
      while (rows_[i] < missing && give(i, rows_max)) {
      }
      if (rows_[i] > 0) prefills.push_back(i);
      if (rows_[i] == 0 && missing > 0 && all_rows() == 0 && rows_max > 0 && out.blocks_short == 0)
        out.blocks_short = 1;
      if (rows_[i] < missing) break;
    }
    const int prefill_rows = std::accumulate(prefills.begin(), prefills.end(), 0, [&](int sum, size_t i) { return sum + rows_[i]; });
    for (size_t i = 0; i < sequences_.size(); ++i)
      while (decodes(i) && rows_[i] > 0 && rows_[i] < 1 + sequences_[i].draft_tokens && give(i, config_.rows_max)) {
      }
    for (size_t i = 0; i < sequences_.size(); ++i)
      if (decodes(i) && rows_[i] > 0)
        out.sequences.push_back({static_cast<int>(i), rows_[i], rows_[i] - 1, rows_[i], blocks(i)});
    for (size_t i : prefills) {
      const auto& s = sequences_[i];
      const bool sampled = s.wants_sampling && s.kv_tokens + rows_[i] == s.known_tokens;
      out.sequences.push_back({static_cast<int>(i), rows_[i], 0, sampled ? 1 : 0, blocks(i)});
    }
    out.decode_rows = all_rows() - prefill_rows;
    out.prefill_rows = prefill_rows;
    out.new_blocks = all_blocks();
    return out;
  }

 private:
  bool decodes(size_t i) const {
    return sequences_[i].wants_sampling && sequences_[i].kv_tokens + 1 == sequences_[i].known_tokens;
  }
  bool give(size_t i, int rows_max) {
    ++rows_[i];
    if (all_rows() <= rows_max && all_blocks() <= available_) return true;
    --rows_[i];
    return false;
  }
  int all_rows() const {
    int sum = 0;
    for (int rows : rows_) sum += rows;
    return sum;
  }
  int all_blocks() const {
    int sum = 0;
    for (size_t i = 0; i < rows_.size(); ++i) sum += blocks(i);
    return sum;
  }
  int blocks(size_t i) const {
    if (rows_[i] == 0) return 0;
    int added = 0;
    while ((sequences_[i].table_blocks + added) * int64_t{kBlockTokens} < sequences_[i].kv_tokens + rows_[i]) ++added;
    return added;
  }

  const std::vector<RunningSequence>& sequences_;
  const StepPlannerConfig& config_;
  const int available_;
  std::vector<int> rows_;
};

}  // namespace

TEST_CASE("step planner: the blocks needed cover the positions and no more") {
  CHECK(blocks_needed(0, 0, 16) == 0);
  CHECK(blocks_needed(1, 0, 16) == 1);
  CHECK(blocks_needed(16, 1, 16) == 0);
  CHECK(blocks_needed(17, 1, 16) == 1);
  CHECK(blocks_needed(17, 5, 16) == 0);
}

TEST_CASE("step planner: decode rows go first, prefill pieces fill up first come first served") {
  const std::vector<RunningSequence> sequences = {sequence(0, 100, 0), sequence(1, 9, 8), sequence(2, 10, 0),
                                                  sequence(3, 6, 5, 3)};
  const StepPlan plan = plan_of(sequences, {.prefill_tokens_max = 105, .rows_max = 1000}, 1000);
  const std::vector<PlannedRows> expected = {{1, 1, 0, 1, 1}, {3, 4, 3, 4, 1}, {0, 100, 0, 1, 25}, {2, 5, 0, 0, 2}};
  CHECK(plan.sequences == expected);
  CHECK(plan.decode_rows == 5);
  CHECK(plan.prefill_rows == 105);
  CHECK(plan.new_blocks == 29);
  CHECK(plan.blocks_short == 0);
}

TEST_CASE("step planner: drafts take no row and no block that a prompt can use") {
  const std::vector<RunningSequence> sequences = {sequence(0, 8, 7, 6), sequence(1, 8, 7, 6), sequence(2, 20, 0)};
  const StepPlan rows = plan_of(sequences, {.prefill_tokens_max = 16, .rows_max = 20}, 1000);
  CHECK(rows.sequences == std::vector<PlannedRows>{{0, 3, 2, 3, 1}, {1, 1, 0, 1, 0}, {2, 16, 0, 0, 4}});
  const StepPlan blocks = plan_of(sequences, {.prefill_tokens_max = 100, .rows_max = 100}, 6);
  CHECK(blocks.sequences == std::vector<PlannedRows>{{0, 5, 4, 5, 1}, {1, 1, 0, 1, 0}, {2, 20, 0, 1, 5}});
}

TEST_CASE("step planner: a decode row is never lost to a draft") {
  const std::vector<RunningSequence> sequences = {sequence(0, 2, 1, 5), sequence(1, 2, 1, 5), sequence(2, 2, 1)};
  const StepPlan plan = plan_of(sequences, {.prefill_tokens_max = 8, .rows_max = 5}, 1000);
  const std::vector<PlannedRows> expected = {{0, 3, 2, 3, 0}, {1, 1, 0, 1, 0}, {2, 1, 0, 1, 0}};
  CHECK(plan.sequences == expected);
}

TEST_CASE("step planner: a later prompt never overtakes one that lacks blocks") {
  RunningSequence roomy = sequence(1, 10, 5);
  roomy.table_blocks = 3;
  const std::vector<RunningSequence> sequences = {sequence(0, 20, 4), roomy};
  const StepPlan plan = plan_of(sequences, {}, 2);
  CHECK(plan.sequences == std::vector<PlannedRows>{{0, 8, 0, 0, 2}});
  CHECK(plan.blocks_short == 0);
}

TEST_CASE("step planner: without blocks for decode rows it says how many are short and plans the others") {
  const std::vector<RunningSequence> sequences = {sequence(0, 5, 4), sequence(1, 6, 5), sequence(2, 9, 8)};
  const StepPlan plan = plan_of(sequences, {}, 1);
  CHECK(plan.sequences == std::vector<PlannedRows>{{0, 1, 0, 1, 1}, {1, 1, 0, 1, 0}});
  CHECK(plan.blocks_short == 1);
}

TEST_CASE("step planner: prefill that cannot begin asks for a block only when nothing else runs") {
  CHECK(plan_of({sequence(0, 9, 4), sequence(1, 9, 4)}, {}, 0).blocks_short == 1);
  CHECK(plan_of({sequence(0, 9, 4), sequence(1, 6, 5)}, {}, 0).blocks_short == 0);
}

TEST_CASE("step planner: a sequence that wants no token is prefilled to its end and then left alone") {
  RunningSequence s = sequence(0, 5, 4);
  s.wants_sampling = false;
  CHECK(plan_of({s}, {}, 9).sequences == std::vector<PlannedRows>{{0, 1, 0, 0, 1}});
  s = sequence(0, 5, 5);
  s.wants_sampling = false;
  CHECK(plan_of({s}, {}, 9).sequences.empty());
}

TEST_CASE("step planner: random plans agree with the slow obvious reference") {
  StepPlan plan;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 rng(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
    std::vector<RunningSequence> sequences;
    for (int64_t i = below(8); i >= 0; --i) {
      const int64_t known = 1 + below(30), kv = below(2) == 0 ? known - 1 : below(known);
      auto s = sequence(static_cast<uint64_t>(i), known, kv, static_cast<int32_t>(below(6)));
      s.table_blocks += static_cast<int32_t>(below(2) * below(3));
      s.wants_sampling = below(5) != 0;
      sequences.push_back(s);
    }
    const StepPlannerConfig config{.prefill_tokens_max = static_cast<int32_t>(1 + below(20)),
                                   .rows_max = static_cast<int32_t>(1 + below(30))};
    const auto available = static_cast<int32_t>(below(below(2) == 0 ? 4 : 30));
    plan_step(sequences, config, kBlockTokens, available, plan);
    const StepPlan expected = SlowPlanner(sequences, config, available).plan();
    REQUIRE(plan.sequences == expected.sequences);
    REQUIRE(plan.decode_rows == expected.decode_rows);
    REQUIRE(plan.prefill_rows == expected.prefill_rows);
    REQUIRE(plan.new_blocks == expected.new_blocks);
    REQUIRE(plan.blocks_short == expected.blocks_short);
    int64_t decoding = 0, prefilling = 0;  // rows that could be used
    for (const RunningSequence& s : sequences) (decodes(s) ? decoding : prefilling) += decodes(s) ? 1 + s.draft_tokens : s.known_tokens - s.kv_tokens;
    prefilling = std::min<int64_t>(prefilling, config.prefill_tokens_max);
    REQUIRE(plan.is_cut == (plan.decode_rows < decoding));
    REQUIRE(plan.prefill_cut == (plan.prefill_rows < prefilling));
    if (plan.rows_short) REQUIRE(plan.decode_rows + plan.prefill_rows == config.rows_max);
  }
}

TEST_CASE("step planner: sequences that need no blocks can be planned first, and the others get the same as in a common plan") {
  int64_t planned_before = 0, short_of_rows = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 rng(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
    std::vector<RunningSequence> all, others;
    std::vector<int32_t> of_all;  // others[i] is all[of_all[i]]
    int64_t rows_taken = 0;
    for (int64_t i = below(8); i >= 0; --i) {
      const int64_t known = 1 + below(30), kv = below(2) == 0 ? known - 1 : below(known);
      all.push_back(sequence(static_cast<uint64_t>(i), known, kv, static_cast<int32_t>(below(6))));
      RunningSequence& s = all.back();
      s.table_blocks += static_cast<int32_t>(below(3));
      if (decodes(s) && blocks_needed(s.known_tokens + s.draft_tokens, s.table_blocks, kBlockTokens) == 0) {
        rows_taken += 1 + s.draft_tokens;
      } else {
        others.push_back(s);
        of_all.push_back(static_cast<int32_t>(all.size()) - 1);
      }
    }
    const StepPlannerConfig config{.prefill_tokens_max = static_cast<int32_t>(1 + below(20)),
                                   .rows_max = static_cast<int32_t>(rows_taken + below(20))};
    const auto available = static_cast<int32_t>(below(6));
    const StepPlan together = plan_of(all, config, available);
    StepPlan apart;
    plan_step(others, config, kBlockTokens, available, apart, rows_taken);
    if (together.rows_short) REQUIRE(apart.rows_short);
    short_of_rows += apart.rows_short ? 1 : 0;
    if (apart.rows_short) continue;
    planned_before += rows_taken > 0 ? 1 : 0;
    std::vector<PlannedRows> expected = together.sequences;
    std::erase_if(expected, [&](const PlannedRows& r) { return std::ranges::find(of_all, r.sequence) == of_all.end(); });
    for (PlannedRows& rows : apart.sequences) rows.sequence = of_all[static_cast<size_t>(rows.sequence)];
    REQUIRE(apart.sequences == expected);
    REQUIRE(apart.blocks_short == together.blocks_short);
    REQUIRE(apart.is_cut == together.is_cut);
    REQUIRE(apart.prefill_cut == together.prefill_cut);
  }
  CHECK(planned_before > 500);
  CHECK(short_of_rows > 100);
}

TEST_CASE("step planner: victims have the largest yield rank, ties by the larger id, and one sequence always stays") {
  std::vector<RunningSequence> sequences = {sequence(7, 20, 3), sequence(8, 20, 7), sequence(9, 20, 7),
                                            sequence(5, 20, 15)};
  const uint64_t ranks[] = {4, 6, 6, 1};
  for (size_t i = 0; i < 4; ++i) sequences[i].yield_rank = ranks[i];
  CHECK(victims_of(sequences, 0).empty());
  CHECK(victims_of(sequences, 2) == std::vector<int32_t>{2});
  CHECK(victims_of(sequences, 3) == std::vector<int32_t>{2, 1});
  CHECK(victims_of(sequences, 5) == std::vector<int32_t>{2, 1, 0});
  CHECK(victims_of(sequences, 100) == std::vector<int32_t>{2, 1, 0});
  CHECK(victims_of(std::span(sequences).first(1), 3).empty());
}

TEST_CASE("step planner: a victim that decodes no longer asks for its own block") {
  std::vector<RunningSequence> sequences = {sequence(0, 5, 4), sequence(1, 5, 4)};
  sequences[1].yield_rank = 1;
  const auto shares_all = [](int32_t) { return 0; };
  CHECK(pick_victims(sequences, 1, kBlockTokens, shares_all) == std::vector<int32_t>{1});
}

TEST_CASE("step planner: planning and yielding until nothing is left completes every sequence on a small device") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 rng(seed);
    const int32_t total = 12;  // 48 tokens
    int32_t free = total;
    std::vector<RunningSequence> running, parked;
    std::vector<int64_t> target(6);
    for (uint64_t id = 0; id < 6; ++id) {
      RunningSequence s = sequence(id, 1 + static_cast<int64_t>(rng() % 30), 0);
      s.yield_rank = rng() % 3;
      target[id] = s.known_tokens + 1 + static_cast<int64_t>(rng() % 17);  // at most 47 tokens with KV
      running.push_back(s);
    }
    StepPlan plan;
    for (int step = 0; !running.empty() || !parked.empty(); ++step) {
      REQUIRE(step < 1000);
      if (running.empty()) std::swap(running, parked);
      plan_step(running, {.prefill_tokens_max = 8, .rows_max = 16}, kBlockTokens, free, plan);
      if (plan.blocks_short > 0) {
        auto victims = victims_of(running, plan.blocks_short);
        REQUIRE(!victims.empty());
        std::sort(victims.rbegin(), victims.rend());
        for (int32_t v : victims) {
          RunningSequence s = running[static_cast<size_t>(v)];
          free += s.table_blocks;
          s.kv_tokens = s.table_blocks = 0;
          parked.push_back(s);
          running.erase(running.begin() + v);
        }
        continue;
      }
      REQUIRE(!plan.sequences.empty());
      for (const PlannedRows& rows : plan.sequences) {
        RunningSequence& s = running[static_cast<size_t>(rows.sequence)];
        free -= rows.new_blocks;
        REQUIRE(free >= 0);
        s.table_blocks += rows.new_blocks;
        s.kv_tokens += rows.rows;
        if (rows.sample_rows > 0) ++s.known_tokens;
      }
      std::erase_if(running, [&](const RunningSequence& s) {
        if (s.known_tokens < target[s.id]) return false;
        free += s.table_blocks;
        return true;
      });
    }
    REQUIRE(free == total);
  }
}
