// CudaForward: the kernels of a pass, in order, and the device memory that they work in. Owned by CudaEngine and called on its
// thread only. Queues work and never waits for it, except in set_weights().
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "gpu/cuda/device.h"
#include "gpu/cuda/device_memory.h"
#include "gpu/cuda/device_weights.h"
#include "gpu/cuda/step_plan.h"

namespace seer::cuda {

struct ForwardConfig {
  bool f32 = false;
  int32_t blocks = 0;        // of KV
  int32_t block_tokens = 16;
  int32_t slots = 0;         // whose state is on the device
  int32_t table_stride = 0;  // blocks that a sequence may have
  int32_t rows_max = 0;      // of a pass
  int32_t row_splits_max = 0;
  bool graphs = true;
};

/// The dimensions of KV heads in device memory: the kernels know these. 0: none is large enough.
int32_t kv_dim(const ModelConfig& model, bool f32);
int64_t kv_block_bytes(const ModelConfig& model, bool f32, int32_t block_tokens);

class CudaForward {
 public:
  /// Asks for memory. `model` is only read here.
  CudaForward(const Model& model, const ForwardConfig& config, DeviceMemory& memory);

  /// REQUIRES: the memory was reserved and is zero. Waits until the weights are on the device.
  Status begin(Device& device, const Model& model);
  /// Queues other weights of the same model behind all work, and waits for them.
  Status set_weights(Device& device, const Model& model) { return weights_.upload(device, model); }

  /// The plan of the pass, uploaded unless the device has it. `staged` is host memory that holds plan_bytes().
  static int64_t plan_bytes(int32_t rows_max);
  static int64_t write_plan(const Pass& pass, std::byte* staged);  // returns its bytes
  void load_plan(Device& device, const std::byte* staged, int64_t bytes) const;
  /// Likewise up to kChangesMax changes, which take effect.
  static constexpr int32_t kChangesMax = 16384;
  static constexpr int64_t kChangesBytes = sizeof(Changes) + kChangesMax * static_cast<int64_t>(sizeof(SlotChange));
  void apply_changes(Device& device, const std::byte* staged, int64_t bytes, int32_t count) const;

  /// Computes the pass whose plan is loaded. Sampled tokens are in sampled(). The launches of a pass that only decodes are a graph
  /// per size class: its kernels read the number of rows from the plan.
  void run(Device& device, const Pass& pass);
  const Sampled* sampled() const { return sampled_; }
  std::byte* block(DeviceBlockId id) const { return kv_ + id * block_bytes_; }
  int64_t block_bytes() const { return block_bytes_; }

 private:
  /// The size class of a pass: its launches have room for this many of each.
  struct Shape {
    int32_t rows = 0, samples = 0, tiles = 0, splits = 0;
  };
  void launch(Device& device, const Shape& shape) const;
  void layer(Device& device, int32_t index, const Shape& shape) const;
  void norm(Device& device, int32_t rows, const float* weight, const float* added, int32_t added_stride, const float* bias,
            int32_t first_sample = -1) const;
  void multiply(Device& device, int32_t rows, const void* in, const DeviceMatrix& w, float* out, int32_t first_sample = -1) const;
  void sample(Device& device, int32_t samples) const;

  const ModelConfig model_;
  const ForwardConfig config_;
  const int32_t dim_;  // of a KV head in memory
  const int64_t block_bytes_;
  DeviceWeights weights_;

  std::map<std::pair<int32_t, int32_t>, GraphId> graphs_;  // by rows and splits

  std::byte* kv_ = nullptr;
  SlotState* slots_ = nullptr;
  int32_t *tables_ = nullptr, *log_ = nullptr;
  std::byte *plan_ = nullptr, *changes_ = nullptr;
  RowState* rows_ = nullptr;
  float* rope_ = nullptr;
  float *hidden_ = nullptr, *qkv_ = nullptr, *projected_ = nullptr, *gate_up_ = nullptr, *logits_ = nullptr;
  std::byte *normed_ = nullptr, *query_ = nullptr, *attended_ = nullptr, *activated_ = nullptr;  // bf16, or float
  float *partial_ = nullptr, *partial_max_ = nullptr, *partial_sum_ = nullptr;
  float* maxima_ = nullptr;
  double *sums_ = nullptr, *logprob_sums_ = nullptr, *masses_ = nullptr;
  unsigned long long *candidates_ = nullptr, *bucket_ = nullptr;
  uint32_t* penalized_ = nullptr;
  Sampled* sampled_ = nullptr;
};

}  // namespace seer::cuda
