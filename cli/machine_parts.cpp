#include "cli/machine_parts.h"

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

#include "actors/policy/draft/group_drafter.h"
#include "cli/engine_source.h"
#include "cli/kv_size.h"
#include "cli/policy_auto.h"
#include "cli/step_calibration.h"
#include "gpu/cuda/cuda_device.h"
#include "gpu/model/weight_store.h"
#include "gpu/step_profile.h"
#include "protocols/cpu_time.h"
#include "storage/local_transport.h"
#ifdef SEER_HAVE_ROCKSDB
#include "storage/rocksdb_store.h"
#endif
#ifdef SEER_HAVE_UCX
#include "storage/ucx_transport.h"
#endif

namespace seer {
namespace {

int32_t threads_of(const MachineOptions& options) {
  if (options.threads_per_instance > 0) return static_cast<int32_t>(options.threads_per_instance);
  return std::max(1, static_cast<int32_t>(find_cpus() / options.instances));
}

Result<StepCost> step_cost(const MachineOptions& options, const std::shared_ptr<const Model>& model) {
  if (options.draft_profile.empty()) return calibrate_step_cost(engine_source(options, model));
  SEER_ASSIGN_OR_RETURN(const StepProfile profile, read_step_profile(options.draft_profile));
  return profile.cost;
}

Drafting make_drafting(const MachineOptions& options, const DraftBudget::StepNs& step_ns) {
  GroupDrafterConfig drafter;
  drafter.tree.own_history_only = draft_source(options) == DraftSource::kOwn;
  const bool paths = options.draft_shape != DraftShapes::kTree;
  const bool trees = options.draft_shape != DraftShapes::kPath;
  DraftBudgetConfig budget{.rule = options.draft_rule,
                           .rows_max = {paths ? options.draft_tokens_max : 0, trees ? options.draft_tokens_max : 0},
                           .lambda = options.draft_lambda,
                           .wait_ns = 1e5};  // as far as nothing is measured yet
  return {std::make_shared<GroupDrafter>(drafter), budget, step_ns, {}, thread_cpu_ns};
}

Status check_dram_bytes(const MachineOptions& options, int64_t block_bytes) {
  if (options.dram_bytes == 0 || options.dram_bytes >= block_bytes) return {};
  return fail(Code::kInvalidArgument, "--dram-bytes ", options.dram_bytes,
              ": expected 0, or room for a KV block; one of this model needs ", block_bytes);
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> load_tokenizer_of(const MachineOptions& options) {
  auto tokenizer = load_tokenizer(options.model);
  if (!tokenizer.ok() && tokenizer.error().code == Code::kNotFound) return std::shared_ptr<const Tokenizer>();
  return tokenizer;
}

Result<LoadedModel> load_model_of(const MachineOptions& options) {
  LoadedModel loaded;
  SEER_ASSIGN_OR_RETURN(auto model, load_model(options.model, options.weights));
  loaded.loader = std::make_shared<ModelLoader>(ModelLoader::Weights{std::move(model), WeightVersion{static_cast<uint64_t>(options.weight_version)}},
                                                [](const std::string& what, int64_t bytes) { return check_memory({{what, bytes, bytes}}, find_memory()); });
  SEER_ASSIGN_OR_RETURN(loaded.tokenizer, load_tokenizer_of(options));
  return loaded;
}

CpuEngineConfig engine_config(const MachineOptions& options, InstanceId id) {
  const int32_t threads = threads_of(options);
  return {.threads = threads,
          .first_core = options.pin ? static_cast<int32_t>(id.value % kNodeInstancesMax) * threads : -1,
          .kv_bytes = options.kv_bytes,
          .block_tokens = static_cast<uint32_t>(options.block_tokens),
          .kv_type = options.kv_dtype,
          .version = WeightVersion{static_cast<uint64_t>(options.weight_version)}};
}

int32_t step_rows_max(const MachineOptions& options) {
  return static_cast<int32_t>(std::min<int64_t>(options.max_batch + options.prefill_tokens, 1 << 16));
}

InstanceConfig instance_config(const MachineOptions& options) {
  return {.id = {},
          .planner = {.prefill_tokens_max = static_cast<int32_t>(options.prefill_tokens),
                      .rows_max = step_rows_max(options)},
          .rows_max = static_cast<int32_t>(options.max_batch),
          .step_depth = static_cast<int32_t>(options.step_depth)};
}

Status check_sizes(const MachineOptions& options, const ModelConfig& model) {
  SEER_RETURN_IF_ERROR(check_device(options));
  const int64_t least = kv_block_bytes_of(options, model);
  SEER_RETURN_IF_ERROR(check_kv_bytes(options.kv_bytes, least, options.block_tokens));
  return check_dram_bytes(options, least);
}

std::vector<MemoryDemand> kv_demands(const MachineOptions& options, std::optional<int64_t> nodes, int64_t fillable_bytes) {
  std::vector<MemoryDemand> demands;
  if (options.device == DeviceKind::kCpu && options.instances > 0) {
    const int64_t kv = bytes_of(options.kv_bytes, options.instances);
    demands.push_back({cat("--kv-bytes ", options.kv_bytes, " for --instances ", options.instances), kv, std::min(kv, fillable_bytes)});
  }
  const int64_t dram = bytes_of(options.dram_bytes, nodes.value_or(1));
  demands.push_back({cat("--dram-bytes ", options.dram_bytes, nodes ? cat(" for --nodes ", *nodes) : ""), dram, std::min(dram, fillable_bytes)});
  return demands;
}

Status check_memory_to_stay(const MachineOptions& options, std::optional<int64_t> nodes, const MachineMemory& machine) {
  std::vector<MemoryDemand> demands = kv_demands(options, nodes, std::numeric_limits<int64_t>::max());
  if (options.instances > 0) demands.push_back(demand_of_weights(options.model, options.weights));
  return check_memory(demands, machine);
}

Result<std::unique_ptr<ColdStore>> open_cold_store(const MachineOptions& options, [[maybe_unused]] const std::string& folder) {
#ifdef SEER_HAVE_ROCKSDB
  return open_rocksdb_store({.dir = folder, .capacity_bytes = options.cold_bytes});
#else
  return fail(Code::kUnavailable, "--cold-dir ", options.cold_dir,
              " needs RocksDB, but this build was made without it: apt-get install librocksdb-dev, and build again");
#endif
}

Result<ClusterTransport> make_cluster_transport([[maybe_unused]] bool is_of_this_host) {
#ifdef SEER_HAVE_UCX
  SEER_ASSIGN_OR_RETURN(std::shared_ptr<UcxTransport> transport,
                        UcxTransport::create(is_of_this_host ? UcxTransportConfig{.network_devices = "lo", .get_transports = ""}
                                                             : UcxTransportConfig{}));
  return ClusterTransport{transport, {.allocate = transport->slab_allocator()}};
#else
  return ClusterTransport{};
#endif
}

Result<NodeMakers> make_pool_makers(const MachineOptions& options, int64_t block_bytes, SlowWork& aside, const ClusterTransport& transport) {
  SEER_RETURN_IF_ERROR(check_dram_bytes(options, block_bytes));
  NodeMakers makers;
  makers.transport = transport.transport;
  makers.aside = [&aside](std::function<void()> f) { aside.put(std::move(f)); };
  SlabMaker slabs = transport.slabs;
  if (options.device == DeviceKind::kCuda && options.instances > 0) slabs.registrars.push_back(cuda::pin_host_memory);
  if (options.dram_bytes > 0)
    makers.make_arena = [&options, slabs = std::move(slabs), block_bytes](NodeId) {
      return HostArena::create({.dram_bytes = options.dram_bytes, .block_bytes = block_bytes}, slabs);
    };
  if (!options.cold_dir.empty()) makers.open_cold = [&options](NodeId) { return open_cold_store(options, options.cold_dir); };
  return makers;
}

Result<NodeMakers> make_node_makers(const MachineOptions& options, const LoadedModel& loaded, SlowWork& aside,
                                    const ClusterTransport& transport) {
  SEER_ASSIGN_OR_RETURN(NodeMakers makers, make_pool_makers(options, kv_block_bytes_of(options, loaded.model()->config), aside, transport));
  makers.tokenizer = loaded.tokenizer;
  makers.loader = loaded.loader;
  makers.make_engine = [source = engine_source(options, loaded.model(), loaded.loader)](InstanceId id)
      -> Result<std::shared_ptr<Engine>> {
    SEER_ASSIGN_OR_RETURN(std::shared_ptr<Engine> engine, source.make(id, 0));
    return engine;
  };
  if (draft_source(options) != DraftSource::kOff) {
    SEER_ASSIGN_OR_RETURN(const StepCost cost, step_cost(options, loaded.model()));
    makers.make_drafting = [&options, cost](InstanceId) -> Result<Drafting> {
      return make_drafting(options, [cost](const StepShape& shape) { return 1000 * cost.predict_us(shape); });
    };
  }
  return makers;
}

FleetConfig fleet_config(const MachineOptions& options, int64_t nodes) {
  FleetConfig config{.nodes = static_cast<uint32_t>(nodes),
                     .instances = static_cast<uint32_t>(options.instances),
                     .instance = instance_config(options),
                     .node = {}};
  if (draft_source(options) == DraftSource::kGrouped) config.node.draft_server = DraftServerConfig{};
  return config;
}

Result<NodeMakers> make_local_makers(const MachineOptions& options, int64_t nodes, const LoadedModel& loaded, SlowWork& aside) {
  SEER_ASSIGN_OR_RETURN(NodeMakers makers, make_node_makers(options, loaded, aside));
  if (nodes == 1) return makers;
  if (makers.open_cold)
    makers.open_cold = [&options](NodeId node) { return open_cold_store(options, cat(options.cold_dir, "/node-", node)); };
  makers.transport = std::make_shared<LocalTransport>();
  return makers;
}

}  // namespace seer
