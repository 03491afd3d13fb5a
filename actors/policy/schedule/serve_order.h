// Serve order: what makes one scheduling policy differ from another, as a number per request. A request with a smaller
// rank is served sooner; of the requests that run on an instance short of KV, the one with the largest gives way first.
// So the one that would be served last yields first, which keeps the order even where room was promised too freely.
// Used by DividedScheduler and the factory in chunk_scheduler.cpp. Pure functions.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "actors/policy/schedule/request_buffer.h"

namespace seer {

enum class ChunkPolicy : uint8_t {
  kVerl,      // baseline: groups fixed to instances, requests not divided
  kDivided,   // chunks, longest waiting first
  kLas,       // chunks, least generated first
  kSeer,      // chunks, probes first, then the longest group estimate (Algorithm 2)
  kSeerPlus,  // chunks, probes first, then what could still need the most tokens (LengthOutlook)
  kOracle,    // chunks, longest remaining first, lengths known
  kStreamrlOracle,  // groups fixed to instances by length, requests not divided, lengths known
};

inline constexpr ChunkPolicy kChunkPolicies[] = {ChunkPolicy::kVerl, ChunkPolicy::kDivided,  ChunkPolicy::kLas,
                                                 ChunkPolicy::kSeer, ChunkPolicy::kSeerPlus, ChunkPolicy::kOracle,
                                                 ChunkPolicy::kStreamrlOracle};
constexpr const char* to_string(ChunkPolicy policy) {
  switch (policy) {
    case ChunkPolicy::kVerl:
      return "verl";
    case ChunkPolicy::kDivided:
      return "divided";
    case ChunkPolicy::kLas:
      return "las";
    case ChunkPolicy::kSeer:
      return "seer";
    case ChunkPolicy::kSeerPlus:
      return "seer+";
    case ChunkPolicy::kOracle:
      return "oracle";
    case ChunkPolicy::kStreamrlOracle:
      return "streamrl-oracle";
  }
  return "unknown";
}
/// Whether the policy takes the lengths of responses as known.
constexpr bool needs_known_tokens(ChunkPolicy policy) {
  return policy == ChunkPolicy::kOracle || policy == ChunkPolicy::kStreamrlOracle;
}
std::optional<ChunkPolicy> parse_chunk_policy(std::string_view name);
/// Whether a policy of this name takes the lengths of responses as known; no for a name that is none of them.
bool needs_lengths(std::string_view name);

/// Ranks that two policies and more are made of: a probe before all others, the least generated first, and the most
/// tokens first. REQUIRES: tokens >= 0.
uint64_t probe_rank(const RequestState& request);
uint64_t most_first_rank(int64_t tokens);

/// Rank among waiting requests; ties go by request id. REQUIRES: policy is neither kVerl nor kStreamrlOracle, whose queues
/// are per instance, nor kSeerPlus, whose ranks need the lengths of other requests (SeerPlusScheduler).
uint64_t serve_rank(ChunkPolicy policy, const RequestState& request, int64_t group_estimate_tokens);

/// Rank among running requests, for a chunk that starts as the `starts`-th one. First come, first served policies make
/// the latest started give way, so that work nearly done is not set aside.
uint64_t yield_rank(ChunkPolicy policy, const RequestState& request, int64_t group_estimate_tokens, uint64_t starts);

}  // namespace seer
