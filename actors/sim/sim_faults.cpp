#include "actors/sim/sim_faults.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace seer {
namespace {

constexpr int64_t kSettleUs = 60'000'000;  // a pull whose lender died ends after its timeout
constexpr int64_t kSlownessMax = 20;
constexpr int64_t kDownUsMax = 10'000'000;  // below no_instance_us: without any machine for that long, a rollout ends
constexpr int32_t kRestartsMax = 1 << 30;

struct KindWords {
  const char *one, *many;
};
constexpr std::array<KindWords, kFaultKinds> kWords{{{"instance crash", "instance crashes"},
                                                 {"pool crash", "pool crashes"},
                                                 {"machine crash", "machine crashes"},
                                                 {"slow instance", "slow instances"},
                                                 {"burst of flipped bits", "bursts of flipped bits"},
                                                 {"draft server crash", "draft server crashes"},
                                                 {"directory crash", "directory crashes"},
                                                 {"drained machine", "drained machines"},
                                                 {"cancel", "cancels"},
                                                 {"lost message", "lost messages"},
                                                 {"late message", "late messages"},
                                                 {"lost transfer", "lost transfers"},
                                                 {"late transfer", "late transfers"},
                                                 {"corrupt disk block", "corrupt disk blocks"},
                                                 {"disk error", "disk errors"},
                                                 {"full disk", "full disks"}}};

/// Draws the faults and counts them. Must outlive the cluster.
class FaultSource {
 public:
  explicit FaultSource(const SimFaultConfig& config) : config_(config), rng_(mix64(config.seed)) {
    const auto share = [&](uint64_t percent_max) { return from(0, 1) ? rng_() % (percent_max + 1) * 10 : 0; };
    message_lost_ = share(3);
    message_late_ = share(30);
    transfer_lost_ = share(30);
    transfer_late_ = share(30);
    disk_error_ = share(20);
    disk_corrupt_ = share(20);
    disk_full_ = share(30);
    for (size_t kind = 0; kind < strikes_.size(); ++kind) strikes_[kind] = from(0, 3);
  }

  void hook_into(SimClusterOptions& o) {
    o.has_links = true;
    o.link_faults.is_lost = [this] { return happens(FaultKind::kLostMessage, message_lost_); };
    o.link_faults.late_us = [this] { return late_us(FaultKind::kLateMessage, message_late_); };
    o.transfer_fault = [this] { return fault(FaultKind::kLostTransfer, transfer_lost_, Code::kUnavailable); };
    o.transfer_late_us = [this] { return late_us(FaultKind::kLateTransfer, transfer_late_); };
    o.cold_faults = {.put = [this](const BlockKey&) { return disk_fault(true); },
                     .get = [this](const BlockKey&) { return disk_fault(false); }};
  }

  int64_t next_gap_us() { return from(1, 2 * config_.gap_us); }

  /// Makes one crash, slow-down or burst of flipped bits, if it finds something to hit.
  void strike(SimCluster& cluster) {
    const int64_t all = std::accumulate(strikes_.begin(), strikes_.end(), int64_t{0});
    if (all == 0) return;
    int64_t drawn = from(1, all);
    size_t kind = 0;
    while (drawn > strikes_[kind]) drawn -= strikes_[kind++];
    const auto instance = static_cast<uint32_t>(from(0, cluster.options.instances - 1));
    uint32_t node = instance % cluster.options.nodes;
    if (!cluster.is_up(node)) return;
    if (cluster.options.kv_nodes > 0 && from(0, 1) == 0) node = cluster.options.nodes + static_cast<uint32_t>(from(0, cluster.options.kv_nodes - 1));
    if (!cluster.is_up(node)) return;
    if (strike(cluster, static_cast<FaultKind>(kind), instance, node)) ++counts_[kind];
  }

  void stop(SimCluster& cluster) {
    on_ = false;
    std::fill(cluster.slowness.begin(), cluster.slowness.end(), 1);
  }
  const std::array<int64_t, kFaultKinds>& counts() const { return counts_; }

 private:
  bool strike(SimCluster& cluster, FaultKind kind, uint32_t instance, uint32_t node) {
    // What crashed a moment ago, or while its machine leaves, is not there.
    const bool has_pool = cluster.options.dram_blocks > 0 && cluster.kv_node(node);
    switch (kind) {
      case FaultKind::kInstanceCrash:
        if (!cluster.instance(instance)) return false;
        cluster.kill_instance(InstanceId{instance});
        return true;
      case FaultKind::kPoolCrash:
        if (has_pool) cluster.kill_kv_node(node);
        return has_pool;
      case FaultKind::kMachineCrash:
        cluster.crash_node(node, from(1, std::min(kDownUsMax, 4 * config_.gap_us)));
        return true;
      case FaultKind::kSlowInstance:
        cluster.slowness[instance] = from(2, kSlownessMax);
        cluster.world.after(from(1, 4 * config_.gap_us), [&cluster, instance] { cluster.slowness[instance] = 1; });
        return true;
      case FaultKind::kDraftServerCrash:
        if (!cluster.options.draft_servers || node >= cluster.options.nodes) return false;
        cluster.kill_draft_server(node);
        return true;
      case FaultKind::kDirectoryCrash:
        if (!has_pool || !cluster.directory_is_up) return false;
        cluster.crash_directory(from(1, std::min(kDownUsMax, 4 * config_.gap_us)));
        return true;
      case FaultKind::kDrain:
        if (cluster.node_state(node).draining) return false;
        cluster.drain_node(node, from(1, std::min(kDownUsMax, 8 * config_.gap_us)), from(1, std::min(kDownUsMax, 4 * config_.gap_us)));
        return true;
      case FaultKind::kCancel:
        return cancel(cluster);
      default:
        return has_pool && flip_bits(*cluster.kv_node_state(node).parts.arena);
    }
  }

  bool cancel(SimCluster& cluster) {
    const GroupSpec& group = cluster.groups[static_cast<size_t>(from(0, std::ssize(cluster.groups) - 1))];
    if (from(0, 3) == 0)
      cluster.cancel(group.id);
    else
      cluster.cancel(RequestId{group.id, static_cast<uint32_t>(from(0, group.samples - 1))});
    return true;
  }

  /// Flips one bit in about half of the blocks in use. Fewer would rarely be noticed, because few blocks are read again.
  bool flip_bits(HostArena& arena) {
    bool flipped = false;
    for (uint32_t slot = 0; slot < arena.slot_count(); ++slot) {
      if (!arena.is_taken(slot) || from(0, 1) == 0) continue;
      arena.span(slot)[static_cast<size_t>(from(0, arena.block_bytes() - 1))] ^= std::byte{1} << from(0, 7);
      flipped = true;
    }
    return flipped;
  }

  std::optional<Code> disk_fault(bool put) {
    if (auto code = fault(FaultKind::kDiskError, disk_error_, Code::kIo)) return code;
    if (auto code = fault(FaultKind::kDiskCorrupt, disk_corrupt_, Code::kCorrupt)) return code;
    return put ? fault(FaultKind::kDiskFull, disk_full_, Code::kFull) : std::nullopt;
  }
  std::optional<Code> fault(FaultKind kind, uint64_t permille, Code code) {
    return happens(kind, permille) ? std::optional(code) : std::nullopt;
  }
  int64_t late_us(FaultKind kind, uint64_t permille) { return happens(kind, permille) ? from(1, 2 * config_.gap_us) : 0; }
  bool happens(FaultKind kind, uint64_t permille) {
    if (!on_ || rng_() % 1000 >= permille) return false;
    ++counts_[static_cast<size_t>(kind)];
    return true;
  }
  int64_t from(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(rng_() % static_cast<uint64_t>(most - least + 1));
  }

  const SimFaultConfig config_;
  std::mt19937_64 rng_;
  bool on_ = true;
  uint64_t message_lost_, message_late_, transfer_lost_, transfer_late_, disk_error_, disk_corrupt_, disk_full_;  // of 1000
  static constexpr auto kStrikes = static_cast<size_t>(FaultKind::kLostMessage);
  std::array<int64_t, kStrikes> strikes_;  // how often each of the first kinds is drawn, relative to the others
  std::array<int64_t, kFaultKinds> counts_{};
};

}  // namespace

const char* to_string(FaultKind kind) { return kWords[static_cast<size_t>(kind)].one; }

std::string SimFaultRun::counts_text() const {
  std::string text;
  for (size_t kind = 0; kind < kFaultKinds; ++kind)
    if (counts[kind] > 0)
      text += cat(text.empty() ? "" : ", ", counts[kind], " ", counts[kind] == 1 ? kWords[kind].one : kWords[kind].many);
  return text.empty() ? "no fault" : text;
}

SimFaultRun run_with_faults(SimClusterOptions options, const SimFaultConfig& config) {
  FaultSource faults(config);
  faults.hook_into(options);
  options.restarts_max = kRestartsMax;
  options.machines_may_join = true;
  SimCluster cluster(std::move(options));
  cluster.start();
  for (int64_t next_us = faults.next_gap_us(); next_us < config.until_us; next_us += faults.next_gap_us()) {
    cluster.finish(next_us);
    if (cluster.over()) break;
    faults.strike(cluster);
  }
  if (!cluster.over()) cluster.finish(config.until_us);
  faults.stop(cluster);
  cluster.finish(config.limit_us);

  SimFaultRun run{.counts = faults.counts(), .events_hash = cluster.events_hash(), .requests = static_cast<int64_t>(cluster.requests)};
  run.verdict = cluster.exact();
  if (!run.verdict.ok()) return run;
  run.total_s = static_cast<double>(cluster.seen.summaries[0].wall_us) / 1e6;
  cluster.run_for(kSettleUs);
  run.verdict = cluster.exact();  // again, for what came late
  if (run.verdict.ok()) run.verdict = cluster.drained();
  return run;
}

}  // namespace seer
