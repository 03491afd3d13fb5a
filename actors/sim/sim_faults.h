// SimFaults: runs a SimCluster with faults drawn from one seed and gives a verdict: the rollout ended, every request was
// answered exactly once with the right tokens and log-probabilities, and nothing is left in the pool. Used by
// `seer simulate --faults` and tests/sim.
//
// A strike is a crash, an instance that is slow for a while, flipped bits in DRAM, a machine that is drained, or requests that are
// cancelled; strikes come one after the other.
// Messages, transfers and disk operations each fail with a probability that the seed draws too, so that seeds differ in which
// faults are frequent. actors/sim/sim_links.h lists which messages may be lost.
#pragma once
#include <array>
#include <cstdint>
#include <random>
#include <string>

#include "actors/sim/sim_cluster.h"

namespace seer {

enum class FaultKind : uint8_t {
  kInstanceCrash = 0,
  kPoolCrash,      // the KV node of a machine
  kMachineCrash,   // the machine comes back empty
  kSlowInstance,
  kFlippedBits,    // in DRAM blocks that are in use
  kDraftServerCrash,
  kDirectoryCrash,  // the directory comes back empty
  kDrain,           // the machine leaves in order, and comes back empty
  kCancel,          // of a request or a group
  kLostMessage,
  kLateMessage,
  kLostTransfer,
  kLateTransfer,
  kDiskCorrupt,    // a block read from the cold tier, or refused as corrupt when written
  kDiskError,
  kDiskFull,
};
inline constexpr size_t kFaultKinds = 16;
const char* to_string(FaultKind kind);

struct SimFaultConfig {
  uint64_t seed = 1;
  int64_t until_us = 0;  // no fault happens later
  int64_t gap_us = 1;    // average time between two strikes
  int64_t limit_us = 600'000'000;  // a rollout that has not ended by then counts as hung
};

/// What happened, and whether the rollout survived it.
struct SimFaultRun {
  std::array<int64_t, kFaultKinds> counts{};  // by FaultKind
  uint64_t events_hash = 0;
  double total_s = 0;  // virtual
  int64_t requests = 0;
  Status verdict;      // see SimCluster::exact() and drained()

  int64_t count(FaultKind kind) const { return counts[static_cast<size_t>(kind)]; }
  /// "2 instance crashes, 1 full disk": kinds that happened.
  std::string counts_text() const;
};

/// Runs the cluster's rollout with faults. Overwrites the faults in `options` (links, transfers, disks), the number of restarts, and
/// whether machines may join. The same options and config give the same run.
SimFaultRun run_with_faults(SimClusterOptions options, const SimFaultConfig& config);

}  // namespace seer
