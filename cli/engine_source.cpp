#include "cli/engine_source.h"

#include <algorithm>
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
          .slots_max = static_cast<int32_t>(std::min<int64_t>(2 * options.max_batch, 1 << 16)),
          .rows_max = rows,
          .tree_rows_max = trees ? 256 : 0,
          .version = WeightVersion{static_cast<uint64_t>(options.weight_version)}};
}

/// The GPUs of a machine are dealt to its instances in turn, as many to each as it computes on.
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
  if (count < options.tensor_parallel)
    return fail(Code::kUnavailable, "--tensor-parallel ", options.tensor_parallel, ": this machine has ", count, " GPUs");
  for (int64_t i = 0; i < options.tensor_parallel; ++i) {
    SEER_ASSIGN_OR_RETURN(auto device, cuda::open_cuda_device(static_cast<int32_t>((first + i) % count)));
    devices.push_back(std::move(device));
  }
  return devices;
}

/// Room for new weights beside the old ones is taken where no other instance may need it.
bool has_own_devices(const MachineOptions& options) {
  if (options.device != DeviceKind::kCuda) return true;
  const Result<int32_t> count = cuda::count_cuda_devices();
  return count.ok() && options.instances * options.tensor_parallel <= *count;
}

}  // namespace

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
    source.make = [&options, model, loader](InstanceId id, int32_t device_blocks) {
      CpuEngineConfig config = engine_config(options, id);
      config.device_blocks = device_blocks;
      config.loader = loader;
      return make_cpu_engine(model, config);
    };
    return source;
  }
  const CudaEngineConfig config = cuda_config(options);
  EngineSource source{.context_tokens_max = model->config.context_tokens_max,
                      .block_tokens = config.block_tokens,
                      .block_bytes = cuda_kv_block_bytes(model->config, config),
                      .kv_bytes = config.kv_bytes,
                      .threads = 0};
  source.make = [&options, model, loader, config](InstanceId id, int32_t device_blocks) -> Result<std::unique_ptr<Engine>> {
    SEER_ASSIGN_OR_RETURN(auto devices, open_devices(options, id));
    CudaEngineConfig own = config;
    own.device_blocks = device_blocks;
    own.weights_beside = has_own_devices(options);
    own.loader = loader;
    return make_cuda_engine(model, std::move(devices), own);
  };
  return source;
}

int64_t kv_block_bytes_of(const MachineOptions& options, const ModelConfig& model) {
  if (options.device == DeviceKind::kCpu) return kv_block_bytes(model, engine_config(options, InstanceId{0}));
  return cuda_kv_block_bytes(model, cuda_config(options));
}

Status check_device(const MachineOptions& options) {
  if (options.device == DeviceKind::kCpu) return {};
  if (options.weights == WeightType::kInt8)
    return fail(Code::kInvalidArgument, "--weights int8: expected stored with --device ",
                kDeviceKindNames[static_cast<size_t>(options.device)], ", whose engine computes weights as stored");
  return {};
}

}  // namespace seer
