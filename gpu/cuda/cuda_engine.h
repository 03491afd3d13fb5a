// CudaEngine: the engine on a GPU, behind the running-batch contract of engine.h. The state of the batch is on the device: per slot
// the last token, the position, the block table and the sampling parameters. So a step sends what changed and reads the sampled
// tokens. It also computes given rows, for `seer score` and `seer profile`.
//
// Two steps may be in flight: one thread queues work on the device, another waits for it and hands out results. KV moves on a
// stream of its own, ordered with the steps by events.
//
// Exact: the bits of a sequence do not depend on the batch, on chunking, on the block table or on who else moves KV. In f32 mode
// with a model in f32 they are those of the CPU engine with f32 KV. Between GPUs of different kinds bits may differ.
//
// Draft trees are not supported: a verify is a path.
#pragma once
#include <array>
#include <memory>

#include "gpu/cuda/device.h"
#include "gpu/engine.h"
#include "gpu/model/model_loader.h"
#include "gpu/model/weight_store.h"

namespace seer {

enum class CudaType : uint8_t { kBf16, kF32 };  // of weights, activations and KV; f32 is slow and for comparison
inline constexpr std::array<const char*, 2> kCudaTypeNames{"bf16", "f32"};  // by value

struct CudaEngineConfig {
  CudaType type = CudaType::kBf16;
  int64_t kv_bytes = 256 << 20;  // memory for KV blocks; used if device_blocks is 0
  int32_t device_blocks = 0;     // KV blocks, or 0: as many as fit in kv_bytes
  uint32_t block_tokens = 16;    // a multiple of 16
  int32_t slots_max = 256;       // sequences of a running batch
  int32_t rows_max = 1024;       // rows computed at once; a step with more takes several passes
  /// Bounds the partial sums of attention: rows computed at once times the splits of 256 positions of the longest context.
  int32_t row_splits_max = 8192;
  bool graphs = true;            // steps that only decode are launched as graphs, one per size class; the bits are the same
  WeightVersion version{1};      // of the model that it starts with
  /// Loads new weights; engines that share it share them. Null: the engine gets one of its own.
  std::shared_ptr<ModelLoader> loader = nullptr;
};

/// Bytes of one KV block of an engine with this config.
int64_t cuda_kv_block_bytes(const ModelConfig& model, const CudaEngineConfig& config);

/// An engine for this model on this device. Waits until the weights are on the device.
/// Errors: kInvalidArgument (a field of the config; a model that the kernels do not know), kFull (the device lacks the memory),
/// kUnavailable (the device fails).
Result<std::unique_ptr<Engine>> make_cuda_engine(std::shared_ptr<const Model> model, std::unique_ptr<cuda::Device> device,
                                                 const CudaEngineConfig& config);

}  // namespace seer
