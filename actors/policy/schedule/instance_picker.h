// InstancePicker: counts how full every instance is, in KV credits, and picks the instance for a request. Used by
// ChunkLedger. Pure; O(log instances) per decision plus the instances of one machine and of one group, O(instances) where their speeds
// are known. Single owner.
//
// Room: a request fits on an instance if credits used + its need <= kv_blocks and running < rows_max. The whole blocks
// of a prompt are immutable and shared by the members of its group that run on the same instance, so they are counted
// once per instance and group. An idle instance takes a request whose next token fits, even if the reserve does not.
// Otherwise a request near the size of an instance would wait for ever.
//
// Speed: where it is known how fast instances are (set_token_us), those that are slower than kSlowerMax times the fastest one with room
// take nothing. So slow ones work while the others are full, and get none of the last requests. A request leaves the instance where it
// last ran only if that is slower than kLeftMax times the fastest one: equal instances whose measured speeds differ a little would
// else exchange their requests after each chunk.
//
// Choice among the other instances that have room (PlaceBy):
//  kCached (paper 3.1): while the instances are evenly loaded, the one with the longest cached prefix (where the
//    request last ran, then its machine); else the least loaded;
//  kMostRoom: the least loaded, or the one where the request last ran if that is charged hardly more (kStayShare);
//  kFewestRunning: the one with the fewest running requests, so that the last requests of an iteration have instances
//    to themselves; the one where the request last ran if that is as good. O(instances).
//
// Invariants:
//  (1) used_blocks of an instance == the own blocks of its running requests + the prompt blocks of their groups;
//  (2) right after a placement, used_blocks <= kv_blocks;
//  (3) an instance that was removed is never picked; it is forgotten when its last request has come back.
#pragma once
#include <compare>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "protocols/ids.h"
#include "protocols/result.h"

namespace seer {

/// What an instance can hold. Blocks are KV blocks of block_tokens tokens.
struct InstanceLimits {
  InstanceId id;
  NodeId node;
  int64_t kv_blocks = 0;
  uint32_t block_tokens = 16;
  int32_t rows_max = 256;  // running requests at most (--max-batch)
};

/// KV that a request needs for its next chunk.
struct KvNeed {
  GroupId group;
  int64_t prompt_blocks = 0;     // whole blocks of the prompt: one copy serves all members on an instance
  int64_t own_blocks = 0;        // the rest, with the reserve
  int64_t own_blocks_least = 0;  // enough for the next token; an idle instance accepts that
  // Instances known to be slower than this do not take it; the one where it last ran may be as slow as the second says.
  double token_us_max = std::numeric_limits<double>::infinity(), token_us_left = std::numeric_limits<double>::infinity();
  int64_t kv_blocks_below = std::numeric_limits<int64_t>::max();  // only instances smaller than this take it
};

/// Where the longest cached prefix of a request is.
struct CachedAt {
  InstanceId instance = kNoInstance;
  NodeId node = kNoNode;
};

enum class PlaceBy : uint8_t { kCached, kMostRoom, kFewestRunning };

inline constexpr double kSlowerMax = 1.25, kLeftMax = 1.6;

/// kMostRoom: a request stays where its KV is if that instance is charged at most this share of its KV more than the
/// least loaded one.
inline constexpr double kStayShare = 0.03;

/// The paper measured a spread of 32 with instances of 256 rows. Instances with fewer rows get the same share of their
/// rows; otherwise one of 8 rows would stay idle while its neighbours are full.
inline constexpr int32_t kSpreadRowsShare = 8;

class InstancePicker {
 public:
  /// Cached prefixes decide only while the running requests of instances differ by no more than inflight_spread_max.
  explicit InstancePicker(int32_t inflight_spread_max) : inflight_spread_max_(inflight_spread_max) {}

  /// Errors: kInvalidArgument if it has no room at all, or its block_tokens differ from those of the others (KV could
  /// not move between them). REQUIRES: the id is new, or the instance was removed and all its requests came back.
  Status add(const InstanceLimits& limits);
  /// Nothing more is placed there. No effect if it is not known.
  void remove(InstanceId instance);

  std::optional<InstanceId> pick(const KvNeed& need, CachedAt cached, PlaceBy by = PlaceBy::kCached) const;
  bool fits(InstanceId instance, const KvNeed& need) const;

  /// Counts the request. Returns the own blocks charged: need.own_blocks, or all of an idle instance if that has fewer.
  /// REQUIRES: fits(instance, need).
  int64_t start(InstanceId instance, const KvNeed& need);
  /// Changes the own blocks charged for a running request.
  void recharge(InstanceId instance, int64_t delta_blocks);
  /// The request left. `need.own_blocks`: its last charge.
  void end(InstanceId instance, const KvNeed& need);

  /// How long the instance takes per token; 0: not known. REQUIRES: it is open.
  void set_token_us(InstanceId instance, double token_us) {
    at(instance).token_us = token_us;
    knows_speeds_ |= token_us > 0;
  }
  double token_us(InstanceId instance) const { return at(instance).token_us; }
  double token_us_least() const;  // of the open instances; 0: of none it is known

  bool is_open(InstanceId instance) const;
  const InstanceLimits& limits(InstanceId instance) const { return at(instance).limits; }
  int64_t used_blocks(InstanceId instance) const { return at(instance).used_blocks; }
  int32_t running(InstanceId instance) const { return at(instance).running; }
  std::vector<InstanceId> open_instances() const;  // by id
  int64_t open_count() const { return static_cast<int64_t>(running_counts_.size()); }
  int64_t kv_blocks_max() const { return kv_blocks_max_; }  // of the open instances; 0: none
  int64_t kv_blocks_min() const { return kv_blocks_min_; }
  uint32_t block_tokens() const { return block_tokens_; }   // 0 until the first instance
  int64_t inflight_spread() const;                          // of the open instances

 private:
  struct Instance {
    InstanceLimits limits;
    int64_t used_blocks = 0;
    int32_t running = 0;
    double token_us = 0;
    bool open = true;
  };
  struct Load {  // fewest credits first, then fewest running, then id
    int64_t used_blocks;
    int32_t running;
    InstanceId id;
    auto operator<=>(const Load&) const = default;
  };
  struct Site {
    const Instance* instance;
    int32_t members;  // running there, > 0
  };

  const Instance& at(InstanceId instance) const;
  Instance& at(InstanceId instance);
  /// Whether a request that last ran there has room there, and no reason to leave.
  bool may_stay(InstanceId last, KvNeed need) const;
  bool fits(const Instance& instance, const KvNeed& need) const;
  /// The least time per token of the open instances that `which` holds for; 0: of none it is known.
  template <class Which>
  double token_us_least(Which&& which) const;
  bool has_prompt(const Instance& instance, GroupId group) const;
  /// `best`, or the load of `instance` if that is lighter (or `best` is none), it is open and has room.
  std::optional<Load> lighter(std::optional<Load> best, const Instance& instance, const KvNeed& need) const;
  std::optional<InstanceId> cached_or_least_loaded(const KvNeed& need, CachedAt cached) const;
  std::optional<InstanceId> most_room(const KvNeed& need, InstanceId last) const;
  std::optional<InstanceId> fewest_running(const KvNeed& need, InstanceId last) const;
  std::optional<InstanceId> least_loaded(const KvNeed& need) const;
  void index(const Instance& instance);    // adds it to the orders below
  void unindex(const Instance& instance);  // removes it; call before it changes
  void update_fleet_limits();

  int32_t inflight_spread_max_;
  bool knows_speeds_ = false;
  uint32_t block_tokens_ = 0;
  int64_t kv_blocks_max_ = 0, kv_blocks_min_ = 0;
  int32_t spread_max_ = 0;                                // inflight_spread_max, or less for instances with few rows
  std::map<InstanceId, Instance> instances_;              // a map, so that the pointers below stay valid
  std::map<NodeId, std::vector<const Instance*>> nodes_;  // open instances
  std::unordered_map<GroupId, std::vector<Site>> sites_;  // only looked up, never walked
  std::set<Load> by_load_;                                // open instances with a free row
  std::multiset<int32_t> running_counts_;                 // of open instances
};

}  // namespace seer
