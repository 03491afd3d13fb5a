// LedgerScheduler: what every policy does alike: what happens to requests and instances is noted in the ledger. A policy
// overrides what it has to notice too, and notes it there first.
#pragma once
#include "actors/policy/schedule/chunk_ledger.h"
#include "actors/policy/schedule/chunk_scheduler.h"

namespace seer {

/// What a policy with chunks promises a chunk that starts.
inline KvPromise chunk_promise(const ChunkSchedulerConfig& config) {
  return {.chunk_tokens = config.chunk_tokens,
          .reserve_share = config.reserve_share,
          .headroom_tokens = kHeadroomTokens};
}

class LedgerScheduler : public ChunkScheduler {
 public:
  Status add_instance(const InstanceLimits& limits) override { return ledger_.add_instance(limits); }
  void remove_instance(InstanceId instance) override { ledger_.remove_instance(instance); }
  void progressed(RequestId request, int64_t generated_tokens) final { ledger_.progressed(request, generated_tokens); }
  void estimate_changed(GroupId group, int64_t estimated_tokens) override {
    ledger_.set_estimate(group, estimated_tokens);
  }
  Status stalled() const final { return ledger_.stalled(); }
  const RequestBuffer& requests() const final { return ledger_.buffer(); }

 protected:
  LedgerScheduler(const KvPromise& promise, int32_t inflight_spread_max) : ledger_(promise, inflight_spread_max) {}

  ChunkLedger ledger_;
};

}  // namespace seer
