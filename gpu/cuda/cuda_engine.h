// CudaEngine: the engine on a GPU, behind the running-batch contract of engine.h. The state of the batch is on the device: per slot
// the last token, the position, the block table and the sampling parameters. So a step sends what changed and reads the sampled
// tokens. It also computes given rows, for `seer score` and `seer profile`.
//
// Two steps may be in flight: per GPU one thread queues work on the device and another waits for it (cuda_rank.h). KV moves on a
// stream of its own, ordered with the steps by events.
//
// Exact: the bits of a sequence do not depend on the batch, on chunking, on the block table or on who else moves KV. In f32 mode
// with a model in f32 they are those of the CPU engine with f32 KV. Between GPUs of different kinds bits may differ.
//
// On several GPUs (tensor parallelism) each computes its heads, its part of the MLP and of the vocabulary. The bits depend on sum_parts,
// the order of sums over columns, and not on how many GPUs have them.
//
// A draft tree has up to kTreeRows rows.
//
// The host memory of a copy is its owner's again when its CopyResult is there. One exception: if the GPU failed, and its copies did not
// end within ten seconds, it may write there until the engine is gone.
#pragma once
#include <array>
#include <memory>
#include <vector>

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
  /// Bounds the partial sums of attention: rows computed at once, but for those of prompts in bf16, times the splits of 256 positions of
  /// the longest context. 0: all slots, each with the longest context that fits, if the sums then take at most a 64th of the KV's memory;
  /// else what that holds, but at least 8192.
  int32_t row_splits_max = 0;
  bool graphs = true;            // steps that only decode are launched as graphs, one per size class; the bits are the same
  int32_t tree_rows_max = 0;     // rows in draft trees computed at once, 0 or at least kTreeRows; 0: no step has a tree
  int32_t sum_parts = 0;         // parts in which sums over columns are taken, a multiple of the GPUs; 0: 4 or 2, as the model
                                         // and the GPUs allow, or one for each GPU
  int64_t peer_timeout_us = 60'000'000;  // after which a GPU that others wait for has failed
  bool weights_beside = true;    // new weights are put beside the old ones where the memory allows; else in their place
  WeightVersion version{1};      // of the model that it starts with
  /// Loads new weights; engines that share it share them. Null: the engine gets one of its own.
  std::shared_ptr<ModelLoader> loader = nullptr;
};

/// Bytes of one KV block of an engine with this config.
int64_t cuda_kv_block_bytes(const ModelConfig& model, const CudaEngineConfig& config);

/// The most bytes of KV with which an engine for this model needs no more than `device_bytes` on each of `ranks` devices. Not used:
/// kv_bytes and device_blocks of the config. Errors: kInvalidArgument, as below; kFull: not even one block fits.
Result<int64_t> cuda_kv_bytes_that_fit(const Model& model, const CudaEngineConfig& config, int32_t ranks, int64_t device_bytes);

/// An engine for this model on these devices. Waits until the weights are there. The heads of the model, its KV heads and its
/// intermediate_size must be multiples of the number of devices.
/// Errors: kInvalidArgument (a field of the config; a model that the kernels do not know), kFull (a device lacks the memory),
/// kUnavailable (a device fails, or the way between them).
Result<std::unique_ptr<Engine>> make_cuda_engine(std::shared_ptr<const Model> model, std::vector<std::unique_ptr<cuda::Device>> devices,
                                                 const CudaEngineConfig& config);
inline Result<std::unique_ptr<Engine>> make_cuda_engine(std::shared_ptr<const Model> model, std::unique_ptr<cuda::Device> device,
                                                        const CudaEngineConfig& config) {
  std::vector<std::unique_ptr<cuda::Device>> devices;
  devices.push_back(std::move(device));
  return make_cuda_engine(std::move(model), std::move(devices), config);
}

}  // namespace seer
