// ChunkScheduler: decides which request runs next, on which instance, for how many tokens. Owned by rollout_actor; policies.h
// lists the policies by name. Pure: no clock, no threads; time is passed in. O(log n) per decision in the number of waiting
// requests. Single owner, not thread-safe.
//
// To use it, add the instances, then the groups, then call next() until it is empty; call next() again in this way after every
// event. Instances and groups may be added, and instances removed, at any time. Groups of higher priority (GroupSpec) go first;
// the policy orders requests of equal priority.
//
// Sources: divided rollout (paper 3.1), Algorithm 2 (paper 3.2).
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/policy/schedule/instance_picker.h"
#include "actors/policy/schedule/request_buffer.h"
#include "protocols/result.h"
#include "protocols/rollout.h"

namespace seer {

struct ChunkSchedulerConfig {
  std::string policy = "seer+";  // one of policies.h
  int64_t chunk_tokens = 2048;  // a request gives up its instance after this many new tokens; 0: never
  double reserve_share = -1;    // share of the chunk's KV promised before it starts. With 1.0 (the paper) few requests run
                                // at a time and none yields. Less fills the memory and relies on early yield, which
                                // pays if large batches are cheap (GPUs). Negative: the policy's own (policies.h)
  bool is_open = false;            // new requests may come as long as it runs
  int64_t starve_us = 30'000'000;  // seer, and an open seer+: a request that waited longer goes first now and then, whatever its
                                   // estimate (safeguard of Algorithm 2; see kStarvedEvery)
  double unexplained_before = 1;   // seer+: share of the requests of earlier iterations whose lengths the model did not
                                   // explain; 1: not known, so the model is not used (see LengthOutlook)
  std::vector<std::string> without;  // seer+: its parts that are left out (kSeerPlusParts), to see what each is worth
  double watermark_share = 0.01;   // verl, streamrl-oracle: a busy instance admits a request only if this share of its KV
                                   // stays free for running requests to grow. vLLM's V0 engine has 0.01; its V1 engine
                                   // has 0, so a preempted request comes back sooner, often too soon
  int32_t inflight_spread_max = 32;  // placement follows cached prefixes only while the running requests of instances
                                     // differ by no more than this (paper 3.1; less for small ones, see kSpreadRowsShare)
  int32_t misses_max = 8;            // next() gives up after this many requests that fit nowhere (large ones: kLargeMissesMax)
  int64_t turn_tokens = 0;           // a request whose chunk is full goes on before others of its priority until it has generated this
                                     // many in a row; 0: after each chunk it waits like the others. For instances where going
                                     // on costs less than a change of requests
  bool learns_speeds = false;        // places requests by how fast the instances turn out to be (InstanceSpeeds)
  int64_t running_max = 0;           // most running requests of an instance; 0: as many as it takes
};

/// A decision: run `request` on `instance`.
struct Placement {
  RequestId request;
  InstanceId instance;
  int64_t max_new_tokens = 0;  // min(chunk_tokens, max_tokens - generated), cut to what the instance can hold
  int64_t credit_blocks = 0;   // KV promised at the start, the prompt's shared blocks included
  uint64_t yield_rank = 0;     // when KV runs short, the running chunk with the largest rank gives way first (of equal
                               // ones, the latest started), but never the last one running
  bool keep_kv = true;         // false: its KV never goes to the pool (verl: preemption by recompute)
};

/// A waiting request that fits in no instance.
struct StuckRequest {
  RequestId request;
  std::string why;  // one sentence
};

class ChunkScheduler {
 public:
  virtual ~ChunkScheduler() = default;
  /// Errors: kInvalidArgument if the group is malformed, was added before, lacks the lengths that an oracle needs, or its
  /// longest response (prompt + max_tokens) fits in no instance. Nothing is added then.
  virtual Status add_group(const GroupSpec& group, int64_t now_us) = 0;
  /// Errors: kInvalidArgument if it has no room or its block_tokens differ. REQUIRES: the id is new, or the instance was
  /// removed and all its requests have come back.
  virtual Status add_instance(const InstanceLimits& limits) = 0;
  /// The instance is gone or draining: nothing more is placed there. Its running requests come back through chunk_ended(), which
  /// is called afterwards: before, they could be placed there again.
  virtual void remove_instance(InstanceId instance) = 0;
  /// The next placement, or nothing when no waiting request fits anywhere now. Call until it is empty.
  virtual std::optional<Placement> next(int64_t now_us) = 0;
  /// Tokens generated so far by a running request (bounded lag). REQUIRES: it runs.
  virtual void progressed(RequestId request, int64_t generated_tokens) = 0;
  /// A request on the instance got `tokens` more in us microseconds.
  virtual void ran(InstanceId instance, int64_t tokens, int64_t us, int64_t now_us) = 0;
  /// The instance has this many KV blocks in use, also those that the scheduler cannot count: the blocks that drafts reach into.
  /// Call it before chunk_ended() of the chunk whose end says so.
  virtual void kv_in_use(InstanceId, int64_t /*blocks*/) {}
  /// The running chunk ended. Unless is_over(end), the request waits again. The length of a failed request says only that the
  /// response would have been longer. REQUIRES: it runs, and generated_tokens is not less than when the chunk started.
  virtual void chunk_ended(RequestId request, int64_t generated_tokens, ChunkEnd end, int64_t now_us) = 0;
  /// The request will not run (again). REQUIRES: it waits.
  virtual void cancel(RequestId request, int64_t now_us) = 0;
  /// The group's length estimate changed (context manager).
  virtual void estimate_changed(GroupId group, int64_t estimated_tokens) = 0;
  /// An error if requests wait, nothing runs, and no instance can take any of them. kUnavailable: there is no instance; kFull:
  /// the large ones are gone. REQUIRES: next() just returned nothing.
  virtual Status stalled() const = 0;
  /// The waiting requests that no instance can hold; they are the cause of kFull. REQUIRES: there is an instance.
  virtual std::vector<StuckRequest> stuck() const = 0;
  virtual const RequestBuffer& requests() const = 0;

  int64_t waiting_count() const { return requests().totals().waiting; }
  int64_t running_count() const { return requests().totals().running; }
};

}  // namespace seer
