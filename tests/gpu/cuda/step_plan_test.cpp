#include "gpu/cuda/step_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <set>

using namespace seer;
using namespace seer::cuda;

namespace {

SequenceStep step_of(int64_t start, int32_t rows, int32_t sample_rows) {
  SequenceStep step{.start = start, .tokens = {}, .sample_rows = sample_rows,
                    .sampling = std::make_shared<const SamplingParams>()};
  for (int32_t i = 0; i < rows; ++i) step.tokens.push_back(static_cast<int32_t>(start) + i);
  for (int64_t block = 0; block * 16 < start + rows; ++block) step.blocks.push_back(static_cast<int32_t>(100 + block));
  return step;
}

}  // namespace

TEST_CASE("step plan: passes have every row and sample once, in order, within the limits") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 rng(seed);
    const auto below = [&](int n) { return static_cast<int32_t>(rng() % static_cast<uint64_t>(n)); };
    std::vector<SequenceStep> steps;
    for (int32_t i = 0, n = 1 + below(12); i < n; ++i) {
      const int32_t rows = 1 + below(90);
      steps.push_back(step_of(below(600), rows, below(rows + 1)));
    }
    std::vector<PlannedSequence> sequences;
    for (const SequenceStep& s : steps) sequences.push_back({.slot = static_cast<int32_t>(sequences.size()), .step = &s});
    const PassLimits limits{.rows = 64, .row_splits = 100, .splits_all = seed % 4 == 0, .sequences = 5, .tile_tokens = 1 + below(16)};
    std::vector<std::vector<int32_t>> rows(steps.size()), samples(steps.size());
    std::vector<int32_t> begun;
    for (const Pass& pass : plan_passes(sequences, limits)) {
      CHECK(std::ssize(pass.rows) <= limits.rows);
      const int32_t splits = (pass.split_positions + kSplit - 1) / kSplit;
      CHECK(pass.split_rows * splits <= limits.row_splits);
      int32_t next_split_row = 0;
      begun.insert(begun.end(), pass.begun.begin(), pass.begun.end());
      std::set<int32_t> in_pass;
      for (const PlanRow& row : pass.rows) {
        in_pass.insert(row.slot);
        const auto& step = steps[static_cast<size_t>(row.slot)];
        CHECK(row.token == step.tokens[static_cast<size_t>(row.offset)]);
        if (row.split_row >= 0) {
          CHECK(row.split_row == next_split_row++);
          CHECK(step.start + row.offset < pass.split_positions);
        }
        rows[static_cast<size_t>(row.slot)].push_back(row.offset);
      }
      CHECK(next_split_row == pass.split_rows);
      CHECK(std::ssize(in_pass) <= limits.sequences);
      int32_t next_row = 0;
      for (const PlanTile& tile : pass.tiles) {  // cover the rows, each of one slot, at following positions
        CHECK(tile.first_row == next_row);
        CHECK(tile.rows <= limits.tile_tokens);
        const int32_t slot = pass.rows[static_cast<size_t>(next_row)].slot;
        const auto tiles_of_slot = std::ranges::count_if(pass.tiles, [&](const PlanTile& t) { return pass.rows[static_cast<size_t>(t.first_row)].slot == slot; });
        CHECK((tile.first_split_row < 0) == (tiles_of_slot > 1 && !limits.splits_all));  // with one tile, blocks share the context
        for (int32_t i = 0; i < tile.rows; ++i) {
          const PlanRow &first = pass.rows[static_cast<size_t>(next_row)], &row = pass.rows[static_cast<size_t>(next_row + i)];
          CHECK(row.slot == first.slot);
          CHECK(row.split_row == (tile.first_split_row < 0 ? -1 : tile.first_split_row + i));
          CHECK(row.offset == first.offset + i);
        }
        next_row += tile.rows;
      }
      CHECK(next_row == std::ssize(pass.rows));
      REQUIRE(pass.samples.size() == pass.destinations.size());
      for (size_t i = 0; i < pass.samples.size(); ++i) {
        const PlanRow& row = pass.rows[static_cast<size_t>(pass.samples[i].row)];
        CHECK(row.slot == pass.destinations[i].sequence);
        samples[static_cast<size_t>(row.slot)].push_back(row.offset);
      }
    }
    for (size_t i = 0; i < steps.size(); ++i) {
      std::vector<int32_t> all(steps[i].tokens.size());
      std::iota(all.begin(), all.end(), 0);
      CHECK(rows[i] == all);
      CHECK(samples[i] == std::vector(all.end() - steps[i].sample_rows, all.end()));
      CHECK(begun[i] == static_cast<int32_t>(i));
    }
  }
}

TEST_CASE("step plan: rows of a long prompt need no room for partial sums, so that a pass has as many as of a short one") {
  const SequenceStep prompt = step_of(32'000, 512, 0), decode = step_of(32'000, 1, 1);
  std::vector<PlannedSequence> sequences{{.slot = 0, .step = &prompt}};
  for (int32_t slot = 1; slot <= 64; ++slot) sequences.push_back({.slot = slot, .step = &decode});
  const PassLimits limits{.rows = 1024, .row_splits = 8192, .sequences = 256, .tile_tokens = 16};
  CHECK(plan_passes(sequences, limits).size() == 1);
}

TEST_CASE("step plan: a step with a few long contexts is one pass, where the KV's memory is large enough for its partial sums") {
  const SequenceStep far = step_of(40'000, 1, 1), near = step_of(2'000, 1, 1);
  std::vector<PlannedSequence> sequences;
  for (int32_t slot = 0; slot < 256; ++slot) sequences.push_back({.slot = slot, .step = slot % 50 == 0 ? &far : &near});
  const auto passes = [&](int64_t affordable) {
    return plan_passes(sequences, {.rows = 1024, .row_splits = row_splits_for(256, 157, affordable), .sequences = 256, .tile_tokens = 16}).size();
  };
  CHECK(passes(1 << 20) == 1);
  CHECK(passes(256 * 157) == 1);
  CHECK(passes(0) == 5);  // 8192 / 157 splits = 52 rows in each
  CHECK(row_splits_for(256, 157, 1 << 20) == 256 * 157);
  CHECK(row_splits_for(1, 1, 0) == kRowSplitsLeast);
  CHECK(row_splits_for(1 << 16, 1 << 12, int64_t{1} << 40) == kRowSplitsMost);
}

TEST_CASE("step plan: a sequence that goes on feeds its slot's last token, and moves the slot on") {
  const SequenceStep decode = step_of(40, 1, 1);
  const PlannedSequence planned{.slot = 7, .step = &decode, .goes_on = true};
  const std::vector<Pass> passes = plan_passes({&planned, 1}, {.rows = 64, .row_splits = 64, .sequences = 4, .tile_tokens = 4});
  REQUIRE(passes.size() == 1);
  CHECK(passes[0].rows.at(0).token == -1);
  CHECK(passes[0].samples.at(0).advances_slot == 7);
}

TEST_CASE("step plan: the device is told of a sequence once, and of each place in the token log once") {
  SequenceStep step = step_of(20, 2, 1);
  SamplingParams sampling;
  sampling.repetition_penalty = 1.5f;
  step.sampling = std::make_shared<const SamplingParams>(sampling);
  for (int32_t i = 0; i < 20; ++i) step.history.push_back(1000 + i);
  ChangeList changes;
  changes.add_sequence(3, step, 16);
  changes.add_sequence(4, step, 16);  // shares the blocks
  CHECK(changes.logs.size() == 40);
  changes.unite_logs();
  REQUIRE(changes.logs.size() == 20);
  CHECK(std::ranges::is_sorted(changes.logs, {}, [](const LogChange& c) { return std::pair(c.block, c.offset); }));
  CHECK(changes.logs[17].token == 1017);
  changes.drop_slot(3);
  REQUIRE(changes.slots.size() == 1);
  CHECK(changes.slots[0].slot == 4);
  CHECK(changes.slots[0].state.repetition_penalty == 1.5f);
  CHECK(changes.tables.size() == 2);
}

TEST_CASE("step plan: the device is told which tokens are not sampled yet, unless they already may be") {
  SequenceStep step = step_of(20, 5, 3);  // samples the tokens at 23, 24 and 25
  step.sampling = std::make_shared<const SamplingParams>(SamplingParams{.stop_token_ids = {8}});
  const auto told = [&](int64_t ends_from) {
    step.ends_from = ends_from;
    ChangeList changes;
    changes.add_sequence(3, step, 16, {4});
    return changes.slots.at(0).state;
  };
  CHECK(told(23).ends_from == 0);
  const SlotState state = told(24);
  CHECK(state.ends_from == 24);
  CHECK(std::vector(state.ending_ids, state.ending_ids + 3) == std::vector{4, 8, -1});
  CHECK(told(int64_t{1} << 40).ends_from == std::numeric_limits<int32_t>::max());
}
