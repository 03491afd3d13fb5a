#include "gpu/step_planner.h"

#include <algorithm>
#include <numeric>

#include "protocols/check.h"

namespace seer {
namespace {

bool decodes(const RunningSequence& s) { return s.wants_sampling && s.kv_tokens == s.known_tokens - 1; }

// What is left to hand out in this step.
struct Budget {
  int64_t rows;
  int64_t prefill_tokens;
  int64_t blocks;
};

// Rows that a sequence can add after `tokens` positions in a table of `table_blocks`, with the blocks left.
int64_t room(int64_t tokens, int64_t table_blocks, int64_t blocks_left, uint32_t block_tokens) {
  return (table_blocks + blocks_left) * block_tokens - tokens;
}

void plan_decode_rows(std::span<const RunningSequence> sequences, uint32_t block_tokens, Budget& left, StepPlan& plan) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    const RunningSequence& s = sequences[i];
    if (!decodes(s)) continue;
    if (left.rows == 0) {
      plan.is_cut = plan.rows_short = true;
      return;
    }
    const int32_t new_blocks = blocks_needed(s.known_tokens, s.table_blocks, block_tokens);
    SEER_CHECK(new_blocks <= 1, s.id, s.kv_tokens, s.table_blocks);
    if (new_blocks > left.blocks) {
      ++plan.blocks_short;
      plan.is_cut = true;
      continue;
    }
    left.blocks -= new_blocks;
    --left.rows;
    plan.sequences.push_back({static_cast<int32_t>(i), 1, 0, 1, new_blocks});
  }
}

/// For the first `decoding` of the planned sequences.
void plan_drafts(std::span<const RunningSequence> sequences, uint32_t block_tokens, size_t decoding, Budget& left, StepPlan& plan) {
  for (PlannedRows& planned : std::span(plan.sequences).first(decoding)) {
    const RunningSequence& s = sequences[static_cast<size_t>(planned.sequence)];
    const int64_t fits = room(s.known_tokens, s.table_blocks + planned.new_blocks, left.blocks, block_tokens);
    planned.draft_tokens = static_cast<int32_t>(std::min({int64_t{s.draft_tokens}, left.rows, fits}));
    plan.is_cut |= planned.draft_tokens < s.draft_tokens;
    plan.rows_short |= left.rows < std::min(int64_t{s.draft_tokens}, fits);
    planned.rows += planned.draft_tokens;
    planned.sample_rows = planned.rows;
    left.rows -= planned.draft_tokens;
    const int32_t new_blocks = blocks_needed(s.kv_tokens + planned.rows, s.table_blocks, block_tokens);
    left.blocks -= new_blocks - planned.new_blocks;
    planned.new_blocks = new_blocks;
    plan.decode_rows += planned.rows;
    plan.new_blocks += new_blocks;
  }
}

void plan_prefill(std::span<const RunningSequence> sequences, uint32_t block_tokens, bool alone, Budget& left,
                  StepPlan& plan) {
  for (size_t i = 0; i < sequences.size() && left.prefill_tokens > 0; ++i) {
    const RunningSequence& s = sequences[i];
    if (decodes(s) || s.kv_tokens == s.known_tokens) continue;
    const int64_t may = std::min(s.known_tokens - s.kv_tokens, left.prefill_tokens);
    const int64_t wanted = std::min(may, left.rows);
    const int64_t rows = std::min(wanted, room(s.kv_tokens, s.table_blocks, left.blocks, block_tokens));
    plan.prefill_cut |= rows < may;
    plan.rows_short |= rows == left.rows && rows < may;
    if (rows > 0) {
      const bool to_the_end = s.kv_tokens + rows == s.known_tokens;
      const int32_t new_blocks = blocks_needed(s.kv_tokens + rows, s.table_blocks, block_tokens);
      plan.sequences.push_back(
          {static_cast<int32_t>(i), static_cast<int32_t>(rows), 0, to_the_end && s.wants_sampling ? 1 : 0, new_blocks});
      plan.prefill_rows += static_cast<int32_t>(rows);
      plan.new_blocks += new_blocks;
      left.rows -= rows;
      left.prefill_tokens -= rows;
      left.blocks -= new_blocks;
    } else if (alone && wanted > 0 && plan.sequences.empty() && plan.blocks_short == 0) {
      plan.blocks_short = 1;
    }
    if (rows < may) return;
  }
}

}  // namespace

void plan_step(std::span<const RunningSequence> sequences, const StepPlannerConfig& config, uint32_t block_tokens,
               int32_t available_blocks, StepPlan& plan, int64_t rows_taken) {
  SEER_CHECK(block_tokens > 0);
  SEER_CHECK(available_blocks >= 0, available_blocks);
  plan.sequences.clear();
  plan.decode_rows = plan.prefill_rows = plan.new_blocks = plan.blocks_short = 0;
  plan.is_cut = plan.prefill_cut = plan.rows_short = false;
  Budget left{config.rows_max - rows_taken, config.prefill_tokens_max, available_blocks};
  plan_decode_rows(sequences, block_tokens, left, plan);
  const size_t decoding = plan.sequences.size();
  plan_prefill(sequences, block_tokens, rows_taken == 0, left, plan);
  plan_drafts(sequences, block_tokens, decoding, left, plan);
}

std::vector<int32_t> pick_victims(std::span<const RunningSequence> sequences, int32_t blocks_short,
                                  uint32_t block_tokens, const std::function<int32_t(int32_t)>& sole_blocks) {
  std::vector<int32_t> left(sequences.size());  // a heap: its front gives way first
  std::iota(left.begin(), left.end(), 0);
  const auto before = [&](int32_t a, int32_t b) {
    const RunningSequence &x = sequences[static_cast<size_t>(a)], &y = sequences[static_cast<size_t>(b)];
    return x.yield_rank != y.yield_rank ? x.yield_rank < y.yield_rank : x.id < y.id;
  };
  std::ranges::make_heap(left, before);
  std::vector<int32_t> victims;
  while (left.size() > 1 && blocks_short > 0) {
    std::ranges::pop_heap(left, before);
    const RunningSequence& s = sequences[static_cast<size_t>(left.back())];
    blocks_short -= sole_blocks(left.back());
    if (decodes(s)) blocks_short -= blocks_needed(s.known_tokens, s.table_blocks, block_tokens);
    victims.push_back(left.back());
    left.pop_back();
  }
  return victims;
}

}  // namespace seer
