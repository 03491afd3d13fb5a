#include "actors/policy/schedule/starved_queue.h"

namespace seer {
namespace {

/// Whether it goes on with its turn does not count.
WaitingRequest by_wait(const RequestState& request, WaitingRequest waiting) {
  waiting.rank = static_cast<uint64_t>(request.waiting_since_us);
  waiting.begins_turn = true;
  return waiting;
}

}  // namespace

void StarvedQueue::add(const RequestState& request, const WaitingRequest& waiting) {
  if (starve_us_) by_wait_.insert(by_wait(request, waiting));
}

void StarvedQueue::remove(const RequestState& request, const WaitingRequest& waiting) {
  if (starve_us_) by_wait_.erase(by_wait(request, waiting));
}

std::optional<RequestId> StarvedQueue::due(const RequestBuffer& requests, int64_t now_us) const {
  if (by_wait_.empty() || starts_since_ < kStarvedEvery) return std::nullopt;
  const RequestId first = by_wait_.begin()->request;
  if (now_us - requests.at(first).waiting_since_us <= *starve_us_) return std::nullopt;
  return first;
}

}  // namespace seer
