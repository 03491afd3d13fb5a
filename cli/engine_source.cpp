#include "cli/engine_source.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "cli/machine_parts.h"
#include "gpu/cuda/cuda_device.h"
#include "gpu/cuda/cuda_engine.h"
#ifdef SEER_HAVE_SIMT
#include "simt/simt_device.h"
#endif

namespace seer {
namespace {

CudaEngineConfig cuda_config(const MachineOptions& options) {
  const auto rows = static_cast<int32_t>(std::clamp<int64_t>(options.max_batch + options.prefill_tokens, 256, 2048));
  const bool trees = draft_source(options) != DraftSource::kOff && options.draft_shape != DraftShapes::kPath;
  return {.type = options.kv_dtype == KvType::kF32 ? CudaType::kF32 : CudaType::kBf16,
          .kv_bytes = options.kv_bytes,
          .block_tokens = static_cast<uint32_t>(options.block_tokens),
          .slots_max = step_rows_max(options),  // several rollouts may have more than max_batch together
          .rows_max = rows,
          .graphs = options.tensor_parallel == 1,  // several GPUs' gathers in graphs have not run on hardware yet: docs/cuda.md
          .tree_rows_max = trees ? 256 : 0,
          .version = WeightVersion{static_cast<uint64_t>(options.weight_version)}};
}

/// The GPUs of a machine are dealt to its instances in turn, as many to each as it computes on. Only instances of one GPU each may share:
/// between GPUs, the gathers of two instances that share some would wait for each other.
Result<std::vector<std::unique_ptr<cuda::Device>>> open_devices(const MachineOptions& options, InstanceId id) {
  const auto first = static_cast<int64_t>(id.value % kNodeInstancesMax) * options.tensor_parallel;
  std::vector<std::unique_ptr<cuda::Device>> devices;
#ifdef SEER_HAVE_SIMT
  if (options.device == DeviceKind::kSimt) {
    for (int64_t i = 0; i < options.tensor_parallel; ++i)
      devices.push_back(simt::make_simt_device({.seed = static_cast<uint64_t>(first + i) + 1}));
    return devices;
  }
#endif
  SEER_CHECK((options.device == DeviceKind::kCuda));
  SEER_ASSIGN_OR_RETURN(const int32_t count, cuda::count_cuda_devices());
  if (count == 0) return fail(Code::kUnavailable, "--device cuda: this machine has no GPU that CUDA can use");
  if (options.tensor_parallel > 1 && first + options.tensor_parallel > count)
    return fail(Code::kUnavailable, "--tensor-parallel ", options.tensor_parallel, ": this machine has ", count, " GPUs, enough for ",
                count / options.tensor_parallel, " instances: expected no more --instances, since GPUs that compute together serve one");
  for (int64_t i = 0; i < options.tensor_parallel; ++i) {
    SEER_ASSIGN_OR_RETURN(auto device, cuda::open_cuda_device(static_cast<int32_t>((first + i) % count)));
    devices.push_back(std::move(device));
  }
  return devices;
}

/// The most instances that have a part of the same GPU.
Result<int64_t> instances_per_device(const MachineOptions& options) {
  if (options.device != DeviceKind::kCuda) return 1;
  SEER_ASSIGN_OR_RETURN(const int32_t count, cuda::count_cuda_devices());
  return (options.instances * options.tensor_parallel + count - 1) / std::max(count, 1);
}

/// Room for new weights beside the old ones is taken where no other instance may need it.
bool has_own_devices(const MachineOptions& options) {
  const Result<int64_t> sharing = instances_per_device(options);
  return sharing.ok() && *sharing == 1;
}

/// The least that a device of an instance has free.
Result<int64_t> free_device_bytes(const MachineOptions& options) {
  int64_t least = std::numeric_limits<int64_t>::max();
  std::set<int32_t> seen;
  for (int64_t i = 0; i < options.instances; ++i) {
    SEER_ASSIGN_OR_RETURN(const auto devices, open_devices(options, InstanceId{static_cast<uint32_t>(i)}));
    for (const auto& device : devices) least = std::min(least, device->properties().free_bytes);
    if (!seen.insert(devices[0]->properties().index).second) break;  // from here on the same ones
  }
  return least;
}

/// What an engine starts with: the loader's weights, which it frees when it has others, or this model for ever.
std::function<ModelLoader::Weights()> weights_from(const MachineOptions& options, std::shared_ptr<const Model> model,
                                                   const std::shared_ptr<ModelLoader>& loader) {
  if (loader != nullptr && loader->current().model != nullptr) return [loader] { return loader->current(); };
  return [model = std::move(model), version = WeightVersion{static_cast<uint64_t>(options.weight_version)}] {
    return ModelLoader::Weights{model, version};
  };
}

constexpr int64_t kInstances = 2;                 // on a CPU
constexpr int64_t kKvBytes = int64_t{256} << 20;  // likewise
constexpr double kDeviceShare = 0.9;              // of what a GPU has free; the rest is for CUDA, its graphs and NCCL

}  // namespace

Status choose_instances(MachineOptions& options, int64_t nodes) {
  if (options.device == DeviceKind::kCpu && options.kv_bytes == kAutoNumber) options.kv_bytes = kKvBytes;
  if (options.device == DeviceKind::kCuda && options.tensor_parallel > 1 && nodes > 1)
    return fail(Code::kInvalidArgument, "--nodes ", nodes, " with --tensor-parallel ", options.tensor_parallel,
                ": expected 1, since the machines of one process would use the same GPUs");
  if (options.instances != kAutoNumber) return {};
  options.instances = kInstances;
  if (options.device == DeviceKind::kCuda) {
    SEER_ASSIGN_OR_RETURN(const int32_t count, cuda::count_cuda_devices());
    options.instances = std::max<int64_t>(1, count / options.tensor_parallel);
  }
  options.instances = std::max(options.instances, nodes);
  return {};
}

Status choose_kv_bytes(MachineOptions& options, const Model& model, bool takes_weights) {
  if (options.kv_bytes != kAutoNumber) return {};
  SEER_ASSIGN_OR_RETURN(const int64_t free_bytes, free_device_bytes(options));
  SEER_ASSIGN_OR_RETURN(const int64_t sharing, instances_per_device(options));
  const auto device_bytes = static_cast<int64_t>(kDeviceShare * static_cast<double>(free_bytes)) / sharing;
  const auto fitting = [&](bool weights_beside) {
    CudaEngineConfig config = cuda_config(options);
    config.weights_beside = weights_beside;
    return cuda_kv_bytes_that_fit(model, config, static_cast<int32_t>(options.tensor_parallel), device_bytes);
  };
  SEER_ASSIGN_OR_RETURN(const int64_t most, fitting(false));
  options.kv_bytes = most;
  if (!takes_weights || sharing > 1) return {};
  if (const Result<int64_t> beside = fitting(true); beside.ok() && *beside >= most / 2) options.kv_bytes = *beside;
  return {};
}

EngineSource cpu_engine_source(std::shared_ptr<const Model> model, const CpuEngineConfig& config) {
  EngineSource source{.context_tokens_max = model->config.context_tokens_max,
                      .block_tokens = config.block_tokens,
                      .block_bytes = kv_block_bytes(model->config, config),
                      .kv_bytes = config.kv_bytes,
                      .threads = config.threads};
  source.make = [model = std::move(model), config](InstanceId, int32_t device_blocks) {
    CpuEngineConfig own = config;
    own.device_blocks = device_blocks;
    return make_cpu_engine(model, own);
  };
  return source;
}

EngineSource engine_source(const MachineOptions& options, std::shared_ptr<const Model> model, std::shared_ptr<ModelLoader> loader) {
  if (options.device == DeviceKind::kCpu) {
    EngineSource source = cpu_engine_source(model, engine_config(options, InstanceId{0}));
    source.make = [&options, weights = weights_from(options, std::move(model), loader), loader](InstanceId id, int32_t device_blocks) {
      const ModelLoader::Weights now = weights();
      CpuEngineConfig config = engine_config(options, id);
      config.device_blocks = device_blocks;
      config.loader = loader;
      config.version = now.version;
      return make_cpu_engine(now.model, config);
    };
    return source;
  }
  const CudaEngineConfig config = cuda_config(options);
  EngineSource source{.context_tokens_max = model->config.context_tokens_max,
                      .block_tokens = config.block_tokens,
                      .block_bytes = cuda_kv_block_bytes(model->config, config),
                      .kv_bytes = config.kv_bytes,
                      .threads = 0};
  source.make = [&options, weights = weights_from(options, std::move(model), loader), loader, config](
                    InstanceId id, int32_t device_blocks) -> Result<std::unique_ptr<Engine>> {
    SEER_ASSIGN_OR_RETURN(auto devices, open_devices(options, id));
    const ModelLoader::Weights now = weights();
    CudaEngineConfig own = config;
    own.version = now.version;
    own.device_blocks = device_blocks;
    own.weights_beside = loader != nullptr && has_own_devices(options);
    own.loader = loader;
    return make_cuda_engine(now.model, std::move(devices), own);
  };
  return source;
}

int64_t kv_block_bytes_of(const MachineOptions& options, const ModelConfig& model) {
  if (options.device == DeviceKind::kCpu) return kv_block_bytes(model, engine_config(options, InstanceId{0}));
  return cuda_kv_block_bytes(model, cuda_config(options));
}

Status check_device(const MachineOptions& options) {
  if (options.device == DeviceKind::kCpu) return {};
  if (options.weights != WeightType::kAsStored)
    return fail(Code::kInvalidArgument, "--weights ", kWeightTypeNames[static_cast<size_t>(options.weights)], ": expected stored with --device ",
                kDeviceKindNames[static_cast<size_t>(options.device)], ", whose engine computes weights as stored");
  return {};
}

}  // namespace seer
