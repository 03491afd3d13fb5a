#include "actors/policy/schedule/serve_order.h"

#include <algorithm>

#include "protocols/check.h"

namespace seer {
namespace {

// "Most first" as a rank: tokens stay far below 2^62, so the difference never wraps, and every such rank is larger than
// any plain token count. That also puts Algorithm 2's probes before all other requests.
constexpr uint64_t kMostFirst = uint64_t{1} << 62;

}  // namespace

std::optional<ChunkPolicy> parse_chunk_policy(std::string_view name) {
  for (ChunkPolicy policy : kChunkPolicies)
    if (name == to_string(policy)) return policy;
  return std::nullopt;
}

bool needs_lengths(std::string_view name) {
  const auto policy = parse_chunk_policy(name);
  return policy && needs_known_tokens(*policy);
}

uint64_t probe_rank(const RequestState& request) { return static_cast<uint64_t>(request.generated_tokens); }

uint64_t most_first_rank(int64_t tokens) {
  SEER_CHECK(tokens >= 0, tokens);
  return kMostFirst - static_cast<uint64_t>(tokens);
}

uint64_t serve_rank(ChunkPolicy policy, const RequestState& request, int64_t group_estimate_tokens) {
  switch (policy) {
    case ChunkPolicy::kDivided:
      return static_cast<uint64_t>(request.waiting_since_us);
    case ChunkPolicy::kLas:
      return static_cast<uint64_t>(request.generated_tokens);
    case ChunkPolicy::kSeer:
      if (request.probe) return probe_rank(request);
      // A request that has outgrown its group's estimate is at least as long as it is now.
      return most_first_rank(std::max(group_estimate_tokens, request.generated_tokens));
    case ChunkPolicy::kOracle:
      return most_first_rank(std::max<int64_t>(0, request.known_tokens - request.generated_tokens));
    case ChunkPolicy::kVerl:
    case ChunkPolicy::kSeerPlus:
    case ChunkPolicy::kStreamrlOracle:
      break;
  }
  SEER_CHECK(false, to_string(policy));
  return 0;
}

uint64_t yield_rank(ChunkPolicy policy, const RequestState& request, int64_t group_estimate_tokens, uint64_t starts) {
  if (policy == ChunkPolicy::kVerl || policy == ChunkPolicy::kDivided) return starts;
  return serve_rank(policy, request, group_estimate_tokens);
}

}  // namespace seer
