// since(): what an instance or a draft server did between two of its reports, which count from its start. Used by the rollout actor, since
// machines of a cluster outlive rollouts. Pure.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "actors/policy/draft/draft_history.h"
#include "protocols/chunk.h"
#include "protocols/draft.h"
#include "protocols/fields.h"

namespace seer {

/// Subtracts every count, at any depth but in lists.
template <class T>
void subtract_counts(T&, const T&) {}
inline void subtract_counts(int64_t& count, const int64_t& before) { count -= before; }
template <HasFields T>
void subtract_counts(T& counts, const T& before) {
  counts.visit_fields([&](auto&... fields) {
    before.visit_fields([&](const auto&... fields_before) { (subtract_counts(fields, fields_before), ...); });
  });
}

/// If it is the same history, the first slice is the one in which `before` ended.
inline DraftHistory since(DraftHistory now, DraftHistory before) {
  if (before.slices.empty() || before.number != now.number) return now;
  while (before.slice_us < now.slice_us) double_slices(before);
  for (size_t i = 0; i < std::min(now.slices.size(), before.slices.size()); ++i) subtract_counts(now.slices[i], before.slices[i]);
  now.slices.erase(now.slices.begin(), now.slices.begin() + static_cast<ptrdiff_t>(std::min(now.slices.size(), before.slices.size() - 1)));
  return now;
}

inline InstanceReport since(const InstanceReport& now, const InstanceReport& before) {
  InstanceReport done = now;
  subtract_counts(done, before);
  done.kv_blocks_total = now.kv_blocks_total;  // these are no counts
  done.kv_blocks_used = now.kv_blocks_used;
  done.kv_blocks_peak = now.kv_blocks_peak;
  done.kv_block_bytes = now.kv_block_bytes;
  done.chunks = now.chunks;
  done.drafting.history = since(now.drafting.history, before.drafting.history);
  return done;
}

inline DraftServerReport since(const DraftServerReport& now, const DraftServerReport& before) {
  DraftServerReport done = now;
  subtract_counts(done, before);
  done.groups = now.groups;
  done.tokens = now.tokens;
  done.bytes = now.bytes;
  return done;
}

}  // namespace seer
