// The step planner: which rows the next step of an instance computes (continuous batching with chunked prefill), which
// KV blocks they need, and who gives way when there are too few. Pure functions over plain structs, called by
// instance_actor before every step; O(sequences), no allocation once the plan's vector has grown.
//
// A sequence knows some tokens (prompt and output so far), and the first kv_tokens of them have their KV. When all but
// the last have it, the sequence decodes: one row feeds the last token, and one more row verifies each token of its
// draft, if it has one. Until then it prefills: pieces of the known tokens, the last piece sampled at its end.
//
// Rows, KV blocks and prefill tokens are handed out in this order, each first come first served:
//   1. the decode row of every decoding sequence, so that nobody waits for a long prompt of another;
//   2. prefill pieces. A prompt that lacks rows or blocks ends the list: later ones never overtake it;
//   3. draft tokens: a guess takes nothing from work that must be done.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace seer {

struct StepPlannerConfig {
  int32_t prefill_tokens_max = 512;  // prefill rows of one step, over all sequences
  int32_t rows_max = 1024;           // rows of one step of all kinds; >= running sequences, else the last ones wait
};

struct RunningSequence {
  uint64_t id = 0;             // by arrival
  int64_t known_tokens = 0;    // prompt and output; >= 1
  int64_t kv_tokens = 0;       // of these, from the start, have their KV; < known_tokens unless there is nothing to do
  int32_t draft_tokens = 0;    // proposed to follow the last known token; used only when the sequence decodes
  int32_t table_blocks = 0;    // device blocks it holds; they cover kv_tokens at least
  uint64_t yield_rank = 0;     // the largest gives way first. Read by pick_victims() only
  bool wants_sampling = true;  // false: only its KV is wanted, no token
};

/// What one sequence does in the step: feeds tokens [kv_tokens, kv_tokens + rows) of its known tokens and draft.
struct PlannedRows {
  int32_t sequence = 0;  // index into the sequences given
  int32_t rows = 0;
  int32_t draft_tokens = 0;  // the last rows that feed draft tokens
  int32_t sample_rows = 0;  // the last rows that are sampled: 0 mid-prefill, 1 decode and end of prefill, all in verify
  int32_t new_blocks = 0;   // device blocks to allocate for it first
  bool operator==(const PlannedRows&) const = default;
};

struct StepPlan {
  std::vector<PlannedRows> sequences;  // decode and verify first, then prefill; each in order of arrival
  int32_t decode_rows = 0;             // verify rows included
  int32_t prefill_rows = 0;
  int32_t new_blocks = 0;    // sum over sequences; <= the blocks available
  int32_t blocks_short = 0;  // missing for decode rows that had to be left out; 1 if only prefill is left and has no room
                             // at all. The planned rows can run without them
  bool is_cut = false;       // some decode row or draft token was left out
  bool prefill_cut = false;  // some prefill rows were left out for want of rows or blocks
  bool rows_short = false;   // something was left out because rows_max was reached
};

/// Device blocks to add to a table of `table_blocks` so that it covers `tokens` positions.
constexpr int32_t blocks_needed(int64_t tokens, int32_t table_blocks, uint32_t block_tokens) {
  const int64_t covered = (tokens + block_tokens - 1) / block_tokens;
  return covered > table_blocks ? static_cast<int32_t>(covered - table_blocks) : 0;
}

/// Plans one step into `plan`, whose memory is reused. `rows_taken` of its rows belong to others that are not in `sequences`.
/// REQUIRES: sequences in order of arrival; block_tokens > 0; available_blocks >= 0; rows_taken <= config.rows_max.
void plan_step(std::span<const RunningSequence> sequences, const StepPlannerConfig& config, uint32_t block_tokens,
               int32_t available_blocks, StepPlan& plan, int64_t rows_taken = 0);

/// Chooses who yields so that the others get `blocks_short` more blocks: indices by falling yield_rank, then falling id, as
/// few as suffice, never the last remaining sequence. A victim gives up the blocks that only it uses (`sole_blocks` of its
/// index, called for victims only) and needs no block for its decode row. Blocks shared among victims only are not counted,
/// so there may be one victim too many, but never too few unless only one sequence is left.
std::vector<int32_t> pick_victims(std::span<const RunningSequence> sequences, int32_t blocks_short,
                                  uint32_t block_tokens, const std::function<int32_t(int32_t)>& sole_blocks);

}  // namespace seer
