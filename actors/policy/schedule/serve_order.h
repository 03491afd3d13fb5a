// Serve order: the order in which a policy with chunks serves waiting requests, as a rank per request. A smaller rank is
// served sooner. When KV runs short, the running request with the largest rank gives way first, so the order holds even if too
// much room was promised. Ranks are below 2^56.
// Used by ChunkLedger, DividedScheduler, SeerPlusScheduler (some of the ranks) and the table in policies.cpp. Pure functions.
#pragma once
#include <cstdint>

#include "actors/policy/schedule/request_buffer.h"

namespace seer {

struct ServeOrder {
  /// Rank among waiting requests; ties go by request id.
  uint64_t (*rank)(const RequestState& request, int64_t group_estimate_tokens);
  bool latest_yields = false;  // the request started last gives way, not the one with the largest rank, so that work
                               // nearly done goes on
  bool guards_starving = false;  // a request that waited longer than starve_us goes first now and then (Algorithm 2), also
                                 // in a rollout that is not open
  bool needs_lengths = false;    // the rank reads known_tokens
};

/// Ranks that several policies use: probes go before all others, those with the fewest tokens first; and the most tokens first.
/// REQUIRES: tokens >= 0.
uint64_t probe_rank(const RequestState& request);
uint64_t most_first_rank(int64_t tokens);

uint64_t submission_rank(const RequestState& request, int64_t group_estimate_tokens);
uint64_t longest_waiting_rank(const RequestState& request, int64_t group_estimate_tokens);
uint64_t least_generated_rank(const RequestState& request, int64_t group_estimate_tokens);
uint64_t longest_group_rank(const RequestState& request, int64_t group_estimate_tokens);
uint64_t most_remaining_rank(const RequestState& request, int64_t group_estimate_tokens);

inline constexpr ServeOrder kFirstSubmittedFirst{.rank = submission_rank};
inline constexpr ServeOrder kLongestWaitingFirst{.rank = longest_waiting_rank, .latest_yields = true};
inline constexpr ServeOrder kLeastGeneratedFirst{.rank = least_generated_rank};
inline constexpr ServeOrder kLongestGroupFirst{.rank = longest_group_rank, .guards_starving = true};
inline constexpr ServeOrder kMostRemainingFirst{.rank = most_remaining_rank, .needs_lengths = true};

/// Among requests of all priorities, for one with this rank among its own: those of lower priority have larger ranks, whatever their own.
/// Priorities beyond -128 and 127 count as these. REQUIRES: rank < 2^56.
uint64_t rank_of_all(uint64_t rank, int32_t priority);

/// Rank among running requests, for a chunk that starts as the `starts`-th one.
uint64_t yield_rank(const ServeOrder& order, const RequestState& request, int64_t group_estimate_tokens, uint64_t starts);

}  // namespace seer
