// SeerPlusScheduler: `seer+`, online scheduling that does not rely on a correct estimate. Requests that could still need the
// most tokens go first (LengthOutlook). At first those are the ones with the fewest tokens. Once earlier iterations have shown
// lengths to be predictable, the other members of the group make this more exact, and the first request of a group is its probe:
// it goes before all others until a member has finished. (Without predictions, probes would only make other long requests late.)
//
// Unlike Algorithm 2 it does not hold memory back. Only part of a chunk is promised (reserve_share), and requests run until KV
// is full; then the one that could need the fewest tokens yields, and its KV goes to the pool. A request goes to the instance
// with the most room, or stays where its KV is if that is about as good. Of the next few waiting requests, one whose KV is
// already there goes first. Once fewer requests wait than there are instances, each goes to the instance where the fewest run.
// In an open rollout new requests could go before some old one for ever, so now and then one that has waited long goes first.
// Single owner, not thread-safe.
//
// Lengths come with chunk_ended(); the estimate of Algorithm 2 is kept for reports only.
//
// Invariant: order_ holds exactly the waiting requests, each under the rank in ranks_. Source: divided rollout as in
// the paper (3.1); docs/policy_choice.md has what else was tried.
#pragma once
#include <compare>
#include <optional>
#include <set>
#include <unordered_map>

#include "actors/policy/schedule/ledger_scheduler.h"
#include "actors/policy/schedule/length_outlook.h"
#include "actors/policy/schedule/starved_queue.h"

namespace seer {

/// The first request in order lets one of the next kNearbyMax go before it if that one's KV is on the machine of the instance
/// that has room, at most kPassedByMax times in a row. In `seer simulate` this moves 2 600 instead of 6 700 chunks of an
/// iteration for Qwen2-VL-72B and 1 300 instead of 3 400 for Kimi-K2, in the same time (within 0.1 %, 6 seeds).
inline constexpr int kNearbyMax = 64, kPassedByMax = 32;

/// What it does beside filling the KV cache. ChunkSchedulerConfig::without leaves parts out, so that a simulation shows what each is worth.
struct SeerPlusParts {
  bool probes = true, need = true, yield = true, nearby = true, spread = true;
};
struct SeerPlusPart {
  const char* name;
  bool SeerPlusParts::*part;
  const char* what;
};
inline constexpr SeerPlusPart kSeerPlusParts[] = {
    {"probes", &SeerPlusParts::probes, "where lengths are predicted, a group's first request goes first until a member has finished"},
    {"need", &SeerPlusParts::need, "what could need the most tokens goes first; without it, what waited longest"},
    {"yield", &SeerPlusParts::yield, "when KV is full, what could need the fewest tokens yields; without it, what started last"},
    {"nearby", &SeerPlusParts::nearby, "a request with KV on the machine may go before the first one in order"},
    {"spread", &SeerPlusParts::spread, "once few wait, they go to where the fewest run; without it, always to the most room"}};

class SeerPlusScheduler final : public LedgerScheduler {
 public:
  explicit SeerPlusScheduler(const ChunkSchedulerConfig& config);

  Status add_group(const GroupSpec& group, int64_t now_us) override;
  std::optional<Placement> next(int64_t now_us) override;
  void chunk_ended(RequestId request, int64_t generated_tokens, ChunkEnd end, int64_t now_us) override;
  void cancel(RequestId request, int64_t now_us) override;
  const LengthOutlook& outlook() const { return outlook_; }

 private:
  using Order = std::set<WaitingRequest>;

  Order::iterator nearby(Order::iterator first, InstanceId instance);
  std::optional<Placement> place_starved(const std::optional<RequestId>& starved);
  Placement place(Order::iterator next, InstanceId instance, bool was_starved);
  uint64_t rank_of(const GroupState& group, const RequestState& request);
  /// Ranks the group's waiting members again.
  void judge(const GroupState& group);
  void enqueue(const GroupState& group, const RequestState& request);

  const ChunkSchedulerConfig config_;
  SeerPlusParts parts_;
  LengthOutlook outlook_;
  Order order_;
  StarvedQueue starved_;  // of `order_`
  uint64_t starts_ = 0;
  int passed_by_ = 0;  // times in a row that the first one let another go before it
  std::unordered_map<RequestId, uint64_t> ranks_;  // of the waiting; only looked up
};

}  // namespace seer
