// ChunkLedger: the books that all scheduling policies share. It keeps the requests (RequestBuffer) and the KV credits of the
// instances (InstancePicker) in step: how much KV a chunk is promised, what it is charged as it grows, and that all of it is
// returned when the chunk ends. It does not decide which request goes next. Single owner, not thread-safe.
//
// KV of a request, in blocks of block_tokens tokens:
//   prompt blocks = floor(prompt / block_tokens)   whole blocks, shared by its group on an instance, counted once there
//   own blocks    = ceil((prompt + generated + room) / block_tokens) - prompt blocks
// A chunk is promised room = reserve_share of the chunk, plus one block. Promising all of it (1.0, the paper) leaves
// memory idle, because most chunks of a long tail end early or grow slowly; 0.1 with early yield measured better. A request
// that has outgrown its promise is charged what it holds plus headroom, so that nothing is placed into room that running
// requests are about to need.
//
// Why every request finishes (no livelock), if an instance yields only when it is out of KV and never yields its last
// running request:
//  (1) max_new_tokens is cut to what the instance could hold if the request were alone there, so the last running
//      request always reaches the end of its chunk;
//  (2) therefore each step of a busy instance generates a token, generated_tokens never falls, and the sum of all
//      lengths is bounded: there are finitely many yields and preemptions;
//  (3) when nothing runs, every instance is idle and takes any request whose next token fits, and the schedulers then
//      try all waiting requests. A request that still fits nowhere is refused by add_group() or named by stuck().
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "actors/policy/schedule/chunk_scheduler.h"
#include "actors/policy/schedule/instance_picker.h"
#include "actors/policy/schedule/instance_speeds.h"
#include "actors/policy/schedule/request_buffer.h"

namespace seer {

/// How much KV is promised ahead of what a request holds.
struct KvPromise {
  int64_t chunk_tokens = 0;     // 0: a chunk is the rest of the response
  double reserve_share = 0;     // of the chunk's tokens
  int64_t headroom_tokens = 0;  // a running request is charged at least this much more than it holds
};

/// What depends on the kind of instances.
struct PlaceRules {
  int64_t turn_tokens = 0;     // as in ChunkSchedulerConfig
  bool learns_speeds = false;  // likewise
};

/// An instance that is slower than the fastest gets chunks that are shorter in proportion, so that they take about as long, but not below
/// this.
inline constexpr int64_t kSlowChunkTokensLeast = 16;

/// Without chunks the rest of a response has an unknown length; the reserve is a share of at most this many tokens.
inline constexpr int64_t kReserveTokensMax = 2048;

/// A running request is charged this much more than it holds: room for about as many steps before the next yield. With a tenth
/// of the chunk reserved and KV short (tests/policy/schedule/fleet_sim.h, 150 groups on 4 instances of 200 blocks) 0, 32 and 128
/// gave 7222, 2087 and 681 yields in 39 922, 40 513 and 44 165 steps of `seer`.
inline constexpr int64_t kHeadroomTokens = 32;

/// Errors: kInvalidArgument if the group does not give the length of every response, which the policy needs.
Status check_known_tokens(const GroupSpec& group, std::string_view policy);

class ChunkLedger {
 public:
  ChunkLedger(const KvPromise& promise, int32_t inflight_spread_max, const PlaceRules& rules = {})
      : promise_(promise), rules_(rules), picker_(inflight_spread_max) {}

  /// Errors: kInvalidArgument if the group is malformed or already here, or its longest response fits in no instance.
  Status add_group(const GroupSpec& group, int64_t now_us);
  Status add_instance(const InstanceLimits& limits) { return picker_.add(limits); }
  void remove_instance(InstanceId instance) {
    picker_.remove(instance);
    speeds_.remove(instance);
  }
  void set_estimate(GroupId group, int64_t estimated_tokens) { buffer_.set_estimate(group, estimated_tokens); }

  /// The instance for the request's next chunk, if one has room. `kv_blocks_below`: only smaller ones are asked.
  std::optional<InstanceId> pick(const RequestState& request, PlaceBy by = PlaceBy::kCached,
                                 int64_t kv_blocks_below = std::numeric_limits<int64_t>::max()) const;
  /// Whether the request fits there and, on a busy instance, leaves this share of its KV and so many more blocks free.
  bool fits(const RequestState& request, InstanceId instance, double spare_share = 0, int64_t spare_blocks = 0) const;
  /// Whether the request's next token fits on the smallest instance, were it idle.
  bool fits_smallest(const RequestState& request) const;
  /// Whether the longest response of the group could run on some instance; on this one.
  bool any_can_hold(const GroupState& group) const { return blocks_of(group) <= picker_.kv_blocks_max(); }
  bool can_hold(InstanceId instance, const GroupState& group) const { return blocks_of(group) <= picker_.limits(instance).kv_blocks; }
  int64_t blocks_of(const GroupState& group) const { return blocks_for(group.prompt_tokens + group.max_tokens); }  // its longest response
  /// `yield_rank`: among chunks of equal priority. REQUIRES: fits(request, instance), and the request waits.
  Placement start(const RequestState& request, InstanceId instance, uint64_t yield_rank);
  void progressed(RequestId request, int64_t generated_tokens);
  void ended(RequestId request, int64_t generated_tokens, ChunkEnd end, int64_t now_us);
  void ran(InstanceId instance, int64_t tokens, int64_t us, int64_t now_us);

  void cancel(RequestId request, int64_t now_us) { buffer_.cancel(request, now_us); }

  /// What ChunkScheduler::stalled() and stuck() answer.
  Status stalled() const;
  std::vector<StuckRequest> stuck() const;
  const RequestBuffer& buffer() const { return buffer_; }
  const InstancePicker& picker() const { return picker_; }
  const InstanceSpeeds& speeds() const { return speeds_; }

 private:
  int64_t chunk_tokens(const RequestState& request, const GroupState& group) const;
  int64_t chunk_tokens_on(InstanceId instance, int64_t tokens) const;
  int64_t blocks_for(int64_t tokens) const;
  int64_t prompt_blocks(const GroupState& group) const { return group.prompt_tokens / picker_.block_tokens(); }
  KvNeed need(const RequestState& request) const;
  void charge_growth(const RequestState& request);

  KvPromise promise_;
  PlaceRules rules_;
  RequestBuffer buffer_;
  InstanceSpeeds speeds_;
  InstancePicker picker_;
};

}  // namespace seer
