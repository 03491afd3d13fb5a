// Makes the parts of a machine of this process from its options: the makers (NodeMakers) of real engines, memory, disks and
// drafts. Used by `seer rollout`, `seer serve` and `seer node`.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/fleet.h"
#include "actors/node_actor.h"
#include "cli/config.h"
#include "cli/machine_memory.h"
#include "gpu/cpu/cpu_engine.h"
#include "gpu/model/model_loader.h"
#include "protocols/workers.h"
#include "storage/kv_transport.h"
#include "storage/slab.h"

namespace seer {

/// Runs slow work outside of any actor's handler.
using SlowWork = Workers<std::function<void()>>;

struct LoadedModel {
  std::shared_ptr<const Tokenizer> tokenizer;  // null if the model's folder has none
  std::shared_ptr<ModelLoader> loader = std::make_shared<ModelLoader>();  // has the weights; engines of one process read new ones once
  /// The running weights. Not to be held: an update frees them.
  std::shared_ptr<const Model> model() const { return loader->current().model; }
};
/// Errors: those of load_model() and load_tokenizer(); a folder without a tokenizer is no error.
Result<LoadedModel> load_model_of(const MachineOptions& options);
/// The tokenizer alone; null if the folder has none.
Result<std::shared_ptr<const Tokenizer>> load_tokenizer_of(const MachineOptions& options);

CpuEngineConfig engine_config(const MachineOptions& options, InstanceId id);
InstanceConfig instance_config(const MachineOptions& options);
/// Rows of one step of an instance, and so the most sequences in it.
int32_t step_rows_max(const MachineOptions& options);
/// Checks sizes that every part depends on, before any is made. Errors name the flag.
Status check_sizes(const MachineOptions& options, const ModelConfig& model);
/// Memory for KV: of instances that compute on the CPU, and of DRAM tiers. `nodes`: --nodes of the command; none: it has no such flag.
/// No tier can get more than `fillable_bytes`.
std::vector<MemoryDemand> kv_demands(const MachineOptions& options, std::optional<int64_t> nodes, int64_t fillable_bytes);
/// Checks, before anything is loaded or allocated, that weights and KV fit in memory. For machines that stay up, whose KV fills in time.
/// REQUIRES: instances are chosen. Errors: those of check_memory().
Status check_memory_to_stay(const MachineOptions& options, std::optional<int64_t> nodes, const MachineMemory& machine);
Result<std::unique_ptr<ColdStore>> open_cold_store(const MachineOptions& options, const std::string& folder);

/// Moves KV between the machines of a cluster, and makes the memory that it can move fastest.
struct ClusterTransport {
  std::shared_ptr<KvTransport> transport;  // null in a build without UCX: KV stays where it is
  SlabMaker slabs;
};
/// `is_of_this_host`: the whole cluster is on this host, so it listens only on the loopback. Errors: those of
/// UcxTransport::create().
Result<ClusterTransport> make_cluster_transport(bool is_of_this_host);

/// Returns the makers of all parts. With drafting but without a profile, it measures steps first.
/// REQUIRES: options and aside outlive the makers.
Result<NodeMakers> make_node_makers(const MachineOptions& options, const LoadedModel& loaded, SlowWork& aside,
                                    const ClusterTransport& transport = {});

/// The makers of a machine without instances: those of its KV pool alone, if dram_bytes is not 0. Errors name the flag.
/// REQUIRES: as above.
Result<NodeMakers> make_pool_makers(const MachineOptions& options, int64_t block_bytes, SlowWork& aside, const ClusterTransport& transport);

/// The configuration of all machines of this process: `nodes` machines, to which the instances are dealt.
FleetConfig fleet_config(const MachineOptions& options, int64_t nodes);
/// Their makers. Each machine has its own folder of the cold tier, and KV moves between them by copying; else like
/// make_node_makers().
Result<NodeMakers> make_local_makers(const MachineOptions& options, int64_t nodes, const LoadedModel& loaded, SlowWork& aside);

}  // namespace seer
