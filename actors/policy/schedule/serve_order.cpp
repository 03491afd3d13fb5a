#include "actors/policy/schedule/serve_order.h"

#include <algorithm>

#include "protocols/check.h"

namespace seer {
namespace {

// "Most first" as a rank is kMostFirst - tokens. Tokens stay far below 2^55, so this is larger than any plain token
// count. So Algorithm 2's probes, whose rank is a token count, go before all other requests.
constexpr uint64_t kMostFirst = uint64_t{1} << 55;
constexpr int kRankBits = 56;

}  // namespace

uint64_t probe_rank(const RequestState& request) { return static_cast<uint64_t>(request.generated_tokens); }

uint64_t most_first_rank(int64_t tokens) {
  SEER_CHECK(tokens >= 0, tokens);
  return kMostFirst - std::min(static_cast<uint64_t>(tokens), kMostFirst);
}

uint64_t submission_rank(const RequestState& request, int64_t) { return static_cast<uint64_t>(request.submitted); }

uint64_t longest_waiting_rank(const RequestState& request, int64_t) {
  return static_cast<uint64_t>(request.waiting_since_us);
}

uint64_t least_generated_rank(const RequestState& request, int64_t) {
  return static_cast<uint64_t>(request.generated_tokens);
}

uint64_t longest_group_rank(const RequestState& request, int64_t group_estimate_tokens) {
  if (request.probe) return probe_rank(request);
  // A request that has outgrown its group's estimate is at least as long as it is now.
  return most_first_rank(std::max(group_estimate_tokens, request.generated_tokens));
}

uint64_t most_remaining_rank(const RequestState& request, int64_t) {
  return most_first_rank(std::max<int64_t>(0, request.known_tokens - request.generated_tokens));
}

uint64_t rank_of_all(uint64_t rank, int32_t priority) {
  SEER_CHECK(rank >> kRankBits == 0, rank);
  const auto behind = static_cast<uint64_t>(127 - std::clamp(priority, -128, 127));
  return behind << kRankBits | rank;
}

uint64_t yield_rank(const ServeOrder& order, const RequestState& request, int64_t group_estimate_tokens, uint64_t starts) {
  return order.latest_yields ? starts : order.rank(request, group_estimate_tokens);
}

}  // namespace seer
