// DividedScheduler: divided rollout. Requests run in chunks, each on the instance that suits best at its start. All
// waiting requests are in one order (serve_order.h), which the policy chooses: `divided`, `divided-rr`, `las`, `seer` (Algorithm 2)
// and `oracle` differ only in it. Single owner, not thread-safe.
//
// Invariants:
//  (1) order_ holds exactly the waiting requests, each under its current rank;
//  (2) so does starved_.
#pragma once
#include <compare>
#include <optional>
#include <set>

#include "actors/policy/schedule/ledger_scheduler.h"
#include "actors/policy/schedule/serve_order.h"
#include "actors/policy/schedule/starved_queue.h"

namespace seer {

class DividedScheduler final : public LedgerScheduler {
 public:
  DividedScheduler(const ServeOrder& order, const ChunkSchedulerConfig& config);

  Status add_group(const GroupSpec& group, int64_t now_us) override;
  std::optional<Placement> next(int64_t now_us) override;
  void chunk_ended(RequestId request, int64_t generated_tokens, ChunkEnd end, int64_t now_us) override;
  void cancel(RequestId request, int64_t now_us) override;
  void estimate_changed(GroupId group, int64_t estimated_tokens) override;
  const InstancePicker& picker() const { return ledger_.picker(); }

 private:
  std::optional<Placement> place_starved(const std::optional<RequestId>& starved);
  std::optional<Placement> place_in_order(int64_t kv_blocks_below);
  Placement place(const RequestState& request, InstanceId instance, bool was_starved);
  void enqueue(const RequestState& request);
  void dequeue(const RequestState& request);
  WaitingRequest by_rank(const RequestState& request) const;

  const ServeOrder serve_order_;
  const ChunkSchedulerConfig config_;
  std::set<WaitingRequest> order_;
  StarvedQueue starved_;
  uint64_t starts_ = 0;
};

}  // namespace seer
