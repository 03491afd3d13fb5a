// LedgerScheduler: base of all policies. It notes every event of requests and instances in the ledger. A policy overrides the
// events that it must handle too, and calls the base first.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "actors/policy/schedule/chunk_ledger.h"
#include "actors/policy/schedule/chunk_scheduler.h"

namespace seer {

/// The promise of a policy with chunks to a chunk that starts.
inline KvPromise chunk_promise(const ChunkSchedulerConfig& config) {
  return {.chunk_tokens = config.chunk_tokens,
          .reserve_share = config.reserve_share,
          .headroom_tokens = kHeadroomTokens};
}

inline PlaceRules place_rules(const ChunkSchedulerConfig& config) { return {config.turn_tokens, config.learns_speeds}; }

/// next() gives up after this many requests that only larger instances could hold: about a quarter of a millisecond.
inline constexpr int32_t kLargeMissesMax = 512;

/// A waiting request. Sorted first = served first.
struct WaitingRequest {
  int32_t behind = 0;        // its group's priority, reversed
  bool begins_turn = false;  // it does not go on with the one it has
  uint64_t rank = 0;         // the policy's
  RequestId request;
  auto operator<=>(const WaitingRequest&) const = default;
};

class LedgerScheduler : public ChunkScheduler {
 public:
  Status add_instance(const InstanceLimits& limits) override { return ledger_.add_instance(limits); }
  void remove_instance(InstanceId instance) override { ledger_.remove_instance(instance); }
  void progressed(RequestId request, int64_t generated_tokens) final { ledger_.progressed(request, generated_tokens); }
  void ran(InstanceId instance, int64_t tokens, int64_t us, int64_t now_us) final { ledger_.ran(instance, tokens, us, now_us); }
  void estimate_changed(GroupId group, int64_t estimated_tokens) override {
    ledger_.set_estimate(group, estimated_tokens);
  }
  Status stalled() const final { return ledger_.stalled(); }
  std::vector<StuckRequest> stuck() const final { return ledger_.stuck(); }
  const RequestBuffer& requests() const final { return ledger_.buffer(); }

 protected:
  /// In an open rollout smaller requests may come without end, and take all room that comes free. So while a starved one waits for room,
  /// nothing else starts where it could run: only instances smaller than this take other requests.
  int64_t kv_blocks_below(const std::optional<RequestId>& starved) const {
    constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
    if (!starved || running_count() == 0) return kAny;
    const GroupState& group = requests().group(starved->group);
    return ledger_.any_can_hold(group) ? ledger_.blocks_of(group) : kAny;
  }
  /// Requests that fit nowhere, as next() looks past them.
  struct Misses {
    int32_t usual = 0, large = 0;
  };
  /// Counts one. True: next() gives up. Requests too large for the smallest instance are no reason that smaller ones find no room there, so
  /// it looks past more of them. While nothing runs it tries all, because no event would cause another try.
  bool is_enough(Misses& misses, const RequestState& missed, const ChunkSchedulerConfig& config) const {
    if (running_count() == 0) return false;
    return ledger_.fits_smallest(missed) ? ++misses.usual >= config.misses_max : ++misses.large >= kLargeMissesMax;
  }
  WaitingRequest queued(const RequestState& request, uint64_t rank) const {
    return {~requests().group(request.id.group).priority, request.turn_tokens == 0, rank, request.id};
  }
  LedgerScheduler(const KvPromise& promise, int32_t inflight_spread_max, const PlaceRules& rules = {})
      : ledger_(promise, inflight_spread_max, rules) {}

  ChunkLedger ledger_;
};

}  // namespace seer
