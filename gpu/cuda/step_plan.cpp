#include "gpu/cuda/step_plan.h"

#include <algorithm>
#include <utility>

#include "gpu/sampler.h"
#include "protocols/check.h"

namespace seer::cuda {

static_assert(kEndingIds == kEndingIdsMax);

void ChangeList::add_sequence(int32_t slot, const SequenceStep& step, int32_t block_tokens, const std::vector<int32_t>& eos_ids) {
  SlotState state{.seed = step.seed, .next = {static_cast<int32_t>(step.start), step.tokens[0]}};
  if (step.sample_rows > 0) {
    const SamplingParams& s = *step.sampling;
    state.temperature = s.temperature;
    state.top_p = s.top_p;
    state.min_p = s.min_p;
    state.top_k = s.top_k;
    state.repetition_penalty = s.repetition_penalty;
    state.gives_kept = s.logprob_mode == LogprobMode::kKept;
    state.logprob_temperature = s.temperature == 0.0f || s.logprob_mode == LogprobMode::kRaw ? 1.0f : s.temperature;
    const int64_t first_sampled = step.start + std::ssize(step.tokens) - step.sample_rows + 1;
    if (first_sampled < step.ends_from) {
      state.ends_from = static_cast<int32_t>(std::min<int64_t>(step.ends_from, INT32_MAX));
      const std::vector<int32_t> ids = ending_ids(s, eos_ids);
      SEER_CHECK(std::ssize(ids) <= kEndingIdsMax, ids.size());
      std::ranges::fill(state.ending_ids, -1);
      std::ranges::copy(ids, state.ending_ids);
    }
    if (s.repetition_penalty != 1.0f)
      for (int32_t p = 0; p < std::ssize(step.history); ++p)
        logs.push_back({step.blocks[static_cast<size_t>(p / block_tokens)], p % block_tokens, step.history[static_cast<size_t>(p)]});
  }
  slots.push_back({.slot = slot, .state = state});
  for (int32_t i = 0; i < std::ssize(step.blocks); ++i) tables.push_back({slot, i, step.blocks[static_cast<size_t>(i)]});
}

void ChangeList::drop_slot(int32_t slot) {
  std::erase_if(slots, [slot](const SlotChange& c) { return c.slot == slot; });
  std::erase_if(tables, [slot](const TableChange& c) { return c.slot == slot; });
}

void ChangeList::unite_logs() {
  const auto place = [](const LogChange& c) { return std::pair(c.block, c.offset); };
  std::ranges::reverse(logs);
  std::ranges::stable_sort(logs, {}, place);
  const auto is_same_place = [&](const LogChange& a, const LogChange& b) { return place(a) == place(b); };
  logs.erase(std::unique(logs.begin(), logs.end(), is_same_place), logs.end());
}

int32_t row_splits_for(int64_t sequences, int64_t splits, int64_t affordable) {
  return static_cast<int32_t>(std::clamp<int64_t>(std::min(sequences * splits, affordable), kRowSplitsLeast, kRowSplitsMost));
}

std::vector<Pass> plan_passes(std::span<const PlannedSequence> sequences, const PassLimits& limits) {
  std::vector<Pass> passes;
  int32_t in_pass = 0;  // sequences
  for (int32_t index = 0; index < std::ssize(sequences); ++index) {
    const PlannedSequence& planned = sequences[static_cast<size_t>(index)];
    const SequenceStep& step = *planned.step;
    const auto total = static_cast<int32_t>(step.tokens.size()), first_sampled = total - step.sample_rows;
    const auto start = static_cast<int32_t>(step.start);
    const bool is_tree = !step.parents.empty();
    const bool gives_kept = step.gives_kept();
    const int32_t together = is_tree ? 1 : limits.tile_tokens;  // each row of a tree has a path of its own
    for (int32_t first = 0; first < total;) {
      const int32_t left = total - first;
      // Several tiles are blocks enough without a split of the context.
      const auto are_whole = [&](int32_t rows) { return !is_tree && !limits.splits_all && rows > together; };
      const auto fitting = [&](const Pass& pass) {
        const int32_t rows = std::min(left, limits.rows - static_cast<int32_t>(pass.rows.size()));
        if (are_whole(rows)) return rows;
        const int32_t longest = std::max(pass.split_positions, start + total), splits = (longest + kSplit - 1) / kSplit;
        const int32_t split_rows = std::min(rows, limits.row_splits / splits - pass.split_rows);
        return is_tree ? std::min(split_rows, limits.tree_rows - pass.tree_rows) : split_rows;
      };
      if (passes.empty() || in_pass == limits.sequences || fitting(passes.back()) < (is_tree ? total : 1)) {
        passes.emplace_back();
        in_pass = 0;
      }
      Pass& pass = passes.back();
      if (first == 0) pass.begun.push_back(index);
      const int32_t taken = std::max(1, fitting(pass));
      const bool is_whole = are_whole(taken);
      const auto first_row = static_cast<int32_t>(pass.rows.size());
      for (int32_t i = first; i < first + taken; ++i) {
        PlanRow& row = pass.rows.emplace_back(PlanRow{.slot = planned.slot,
                                                      .offset = i,
                                                      .token = planned.goes_on ? -1 : step.tokens[static_cast<size_t>(i)],
                                                      .place = i,
                                                      .split_row = is_whole ? -1 : pass.split_rows + i - first});
        if (is_tree) {
          const int32_t parent = step.parents[static_cast<size_t>(i)];
          row.parent = parent < 0 ? -1 : first_row + parent;
          row.offset = parent < 0 ? 0 : pass.rows[static_cast<size_t>(row.parent)].offset + 1;
          row.tree = pass.tree_rows++;
        }
        if (i < first_sampled) continue;
        const int32_t sample = i - first_sampled;
        pass.samples.push_back({.row = first_row + i - first,
                                .target = step.targets.empty() ? -1 : step.targets[static_cast<size_t>(sample)],
                                .advances_slot = planned.goes_on ? planned.slot : -1});
        pass.destinations.push_back({index, sample, gives_kept});
      }
      for (int32_t i = 0; i < taken; i += together)
        pass.tiles.push_back({.first_row = first_row + i,
                              .rows = std::min(together, taken - i),
                              .first_split_row = is_whole ? -1 : pass.split_rows + i});
      if (is_tree)
        pass.trees.push_back({.first_row = first_row, .rows = total, .first_sample = static_cast<int32_t>(std::ssize(pass.samples)) - total});
      if (!is_whole) {
        pass.split_rows += taken;
        pass.split_positions = std::max(pass.split_positions, start + first + taken);
      }
      first += taken;
      ++in_pass;
    }
  }
  return passes;
}

}  // namespace seer::cuda
