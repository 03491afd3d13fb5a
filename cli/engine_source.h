// EngineSource: the engines that options ask for, on the CPU or on GPUs, for all that make engines: instances, and measurements at
// the start. Used by machine_parts, step_calibration and policy_auto.
#pragma once
#include <functional>
#include <memory>

#include "cli/config.h"
#include "gpu/engine.h"
#include "gpu/model/model_loader.h"
#include "gpu/model/weight_store.h"

namespace seer {

struct EngineSource {
  /// An engine for an instance; device_blocks 0: with kv_bytes of KV.
  std::function<Result<std::unique_ptr<Engine>>(InstanceId id, int32_t device_blocks)> make;
  int64_t context_tokens_max = 0;
  uint32_t block_tokens = 16;
  int64_t block_bytes = 0;
  int64_t kv_bytes = 0;
  int32_t threads = 1;        // CPU threads of an engine; 0: it computes on a GPU
};

/// The options outlive it. Makes no engine yet. Engines read new weights through the loader; null: each has its own.
EngineSource engine_source(const MachineOptions& options, std::shared_ptr<const Model> model,
                           std::shared_ptr<ModelLoader> loader = nullptr);
EngineSource cpu_engine_source(std::shared_ptr<const Model> model, const CpuEngineConfig& config);

/// Chooses what is kAutoNumber, but for kv_bytes on GPUs. `nodes`: machines of this process; each gets an instance. Errors: no such GPUs;
/// several machines would have the same GPUs in instances of several.
Status choose_instances(MachineOptions& options, int64_t nodes = 1);
/// Chooses kv_bytes if it is kAutoNumber: what the GPUs have free beside this model, divided among the instances that share one. Where it
/// leaves at least half of that, `takes_weights` leaves room for new weights too. REQUIRES: instances are chosen.
Status choose_kv_bytes(MachineOptions& options, const Model& model, bool takes_weights);

/// Bytes of a KV block of these engines.
int64_t kv_block_bytes_of(const MachineOptions& options, const ModelConfig& model);
/// Checks what only some devices can do. Errors name the flag.
Status check_device(const MachineOptions& options);

}  // namespace seer
