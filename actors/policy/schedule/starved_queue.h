// StarvedQueue: waiting requests by how long they have waited. Now and then the first of them goes before the policy's own order.
// Used by DividedScheduler and SeerPlusScheduler. Single owner, not thread-safe.
#pragma once
#include <cstdint>
#include <optional>
#include <set>

#include "actors/policy/schedule/ledger_scheduler.h"

namespace seer {

/// At most one placement in this many goes to a starved request. When waiting takes far longer than the limit, every
/// request is starved; without this bound Algorithm 2 would become first come, first served.
inline constexpr int64_t kStarvedEvery = 16;

class StarvedQueue {
 public:
  /// A request that waited for more than `starve_us` is starved; nothing: none is.
  explicit StarvedQueue(std::optional<int64_t> starve_us) : starve_us_(starve_us) {}

  /// REQUIRES: the request waits, and `waiting` has its priority.
  void add(const RequestState& request, const WaitingRequest& waiting);
  void remove(const RequestState& request, const WaitingRequest& waiting);
  /// The request that should be placed next; nothing: none is starved, or one was placed not long ago.
  std::optional<RequestId> due(const RequestBuffer& requests, int64_t now_us) const;
  void placed(bool was_due) { starts_since_ = was_due ? 1 : starts_since_ + 1; }

 private:
  const std::optional<int64_t> starve_us_;
  std::set<WaitingRequest> by_wait_;       // rank: waiting since
  int64_t starts_since_ = kStarvedEvery;   // so that the first starved request is placed at once
};

}  // namespace seer
