// What a machine of this process is made of, from its options: real engines, memory, disks and drafts, as the makers of its
// node (NodeMakers). Used by `seer rollout` and `seer node`.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "actors/fleet.h"
#include "actors/node_actor.h"
#include "cli/config.h"
#include "gpu/cpu/cpu_engine.h"
#include "protocols/workers.h"
#include "storage/kv_transport.h"
#include "storage/slab.h"

namespace seer {

/// Runs what takes long, outside of any actor's handler.
using SlowWork = Workers<std::function<void()>>;

struct LoadedModel {
  std::shared_ptr<const Model> model;
  std::shared_ptr<const Tokenizer> tokenizer;  // null where the model's folder has none
};
/// Errors: as load_model() and load_tokenizer() say, but for a folder without a tokenizer.
Result<LoadedModel> load_model_of(const MachineOptions& options);
/// The tokenizer alone; null where the folder has none.
Result<std::shared_ptr<const Tokenizer>> load_tokenizer_of(const MachineOptions& options);

CpuEngineConfig engine_config(const MachineOptions& options, InstanceId id);
InstanceConfig instance_config(const MachineOptions& options);
/// What no part can be made without, found out before any is. Errors name the flag.
Status check_sizes(const MachineOptions& options, const ModelConfig& model);
Result<std::unique_ptr<ColdStore>> open_cold_store(const MachineOptions& options, const std::string& folder);

/// What moves KV between the machines of a cluster, and makes the memory that it moves fastest.
struct ClusterTransport {
  std::shared_ptr<KvTransport> transport;  // null in a build without UCX: KV stays where it is
  SlabMaker slabs;
};
/// `is_of_this_host`: so is the cluster, and nobody else reaches what listens. Errors: as UcxTransport::create() says.
Result<ClusterTransport> make_cluster_transport(bool is_of_this_host);

/// Makers of all parts. Without a profile for drafting, steps are measured here.
/// REQUIRES: options and aside outlive the makers.
Result<NodeMakers> make_node_makers(const MachineOptions& options, const LoadedModel& loaded, SlowWork& aside,
                                    const ClusterTransport& transport = {});

/// All machines of this process: `nodes` of them, to which the instances are dealt.
FleetConfig fleet_config(const MachineOptions& options, int64_t nodes);
/// Their makers: each has its own folder of the cold tier, and KV moves between them by copying. As make_node_makers() otherwise.
Result<NodeMakers> make_local_makers(const MachineOptions& options, int64_t nodes, const LoadedModel& loaded, SlowWork& aside);

}  // namespace seer
