// What the host tells the device of a step: the changes of slots since the last one, and passes over rows. Pure functions, used
// by CudaEngine.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/cuda/kernel_args.h"
#include "gpu/engine.h"

namespace seer::cuda {

struct ChangeList {
  std::vector<SlotChange> slots;
  std::vector<TableChange> tables;
  std::vector<LogChange> logs;

  /// All that the device must know of a sequence before its next rows: its state, its block table and, with a repetition
  /// penalty, its tokens so far. `eos_ids`: the model's.
  void add_sequence(int32_t slot, const SequenceStep& step, int32_t block_tokens, const std::vector<int32_t>& eos_ids = {});
  /// Forgets what was to be told of a slot.
  void drop_slot(int32_t slot);
  /// Keeps one change, the last, of each place in the token log: sequences of a group share blocks.
  void unite_logs();
};

/// Rows that the device computes at once. A step has several if its rows do not fit.
struct Pass {
  struct Destination {
    int32_t sequence, sample;
    bool gives_kept = false;
  };
  ChangeList changes;  // before it
  std::vector<PlanRow> rows;
  std::vector<PlanSample> samples;
  std::vector<PlanTile> tiles;
  std::vector<PlanTree> trees;
  int32_t tree_rows = 0;
  std::vector<Destination> destinations;  // of the samples, in the result of the step
  std::vector<int32_t> begun;             // sequences whose first row is in it
  int32_t split_rows = 0;                 // rows of split tiles (PlanTile)
  int32_t split_positions = 0;            // of the longest context of these
};

inline constexpr int32_t kRowSplitsLeast = 8192, kRowSplitsMost = 1 << 24;
/// A value for PassLimits::row_splits that lets all sequences decode in one pass. splits: of the longest context. affordable: how many
/// row splits there is memory for; the value is not larger, unless that is below kRowSplitsLeast.
int32_t row_splits_for(int64_t sequences, int64_t splits, int64_t affordable);

struct PassLimits {
  int32_t rows = 0;         // of a pass
  int32_t row_splits = 0;   // split rows times the splits of the longest of their contexts; at least the splits of the longest there is
  bool splits_all = false;  // no tile is whole
  int32_t sequences = 0;    // of a pass
  int32_t tile_tokens = 1;  // rows of a sequence that attend together
  int32_t tree_rows = 0;    // of all trees of a pass; 0: there are none
};

/// A sequence of a step. If it goes on, it is in a slot whose state the device moves on.
struct PlannedSequence {
  int32_t slot = 0;
  const SequenceStep* step = nullptr;
  bool goes_on = false;  // it decodes: one row, which feeds the slot's last token
};

/// The passes of a step. Their changes are empty. REQUIRES: each tree fits into a pass.
std::vector<Pass> plan_passes(std::span<const PlannedSequence> sequences, const PassLimits& limits);

}  // namespace seer::cuda
