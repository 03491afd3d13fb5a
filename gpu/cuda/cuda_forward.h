// CudaForward: the kernels of a pass, in order, and the device memory that they work in. Owned by CudaRank and called on its thread
// only. Queues work and never waits for it, except for weights.
//
// With tensor parallelism each rank has a share of the heads, of the inner size of the MLP and of the vocabulary. Twice per layer the
// ranks gather the sums of their columns (of the output projection, of down) and each adds them all, in their order; and the logits.
// So all of them get the same bits and sample the same tokens, and no rank tells another what to do next.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "gpu/cuda/communicator.h"
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
  /// In how many parts the columns of the output projection and of down are summed: a multiple of the ranks. The order of the sums, so
  /// the bits, depend on it, and not on the number of ranks.
  int32_t sum_parts = 1;
  int32_t tree_rows_max = 0;  // in trees, of a pass
};

/// The dimensions of KV heads in device memory: the kernels know these. 0: none is large enough.
int32_t kv_dim(const ModelConfig& model, bool f32);
int64_t kv_block_bytes(const ModelConfig& model, bool f32, int32_t block_tokens);
/// Bytes that a rank gives to a gather, at most.
int64_t gather_bytes_max(const ModelConfig& model, const ForwardConfig& config, int32_t ranks);

class CudaForward {
 public:
  /// Reserves the memory on the device and puts the weights there. `weights_beside`: with room for other weights.
  /// `peers`: null for a rank that is alone; else it outlives this. Errors: kFull, kUnavailable.
  static Result<std::unique_ptr<CudaForward>> make(const Model& model, const ForwardConfig& config, Communicator* peers, Device& device,
                                                   bool weights_beside);
  /// Whether each of `ranks` devices like this one has room for other weights beside those that run.
  static bool fits_beside(const Model& model, const ForwardConfig& config, int32_t ranks, const Device& device);
  /// The bytes that make() would reserve on each of `ranks` devices.
  static int64_t bytes_needed(const Model& model, const ForwardConfig& config, int32_t ranks, bool weights_beside);

  /// Puts other weights of the same model beside the running ones, while those are used, and waits until they are there. Without
  /// room for them it does nothing.
  Status stage_weights(Device& device, const Model& model);
  /// What is queued from now on uses the staged weights. Those without room take the old ones' place, after all that is queued before.
  /// REQUIRES: stage_weights() of this model has succeeded since the last switch.
  Status switch_weights(Device& device, const Model& model);

  /// The plan of the pass, uploaded unless the device has it. `staged` is host memory that holds plan_bytes().
  static int64_t plan_bytes(int32_t rows_max);
  static int64_t write_plan(const Pass& pass, std::byte* staged);  // returns its bytes
  void load_plan(Device& device, const std::byte* staged, int64_t bytes) const;
  /// Copies up to kChangesMax changes likewise; they take effect.
  static constexpr int32_t kChangesMax = 16384;
  static constexpr int64_t kChangesBytes = sizeof(Changes) + kChangesMax * static_cast<int64_t>(sizeof(SlotChange));
  void apply_changes(Device& device, const std::byte* staged, int64_t bytes, int32_t count) const;

  /// Computes the pass whose plan is loaded. Sampled tokens are in sampled(). The launches of a pass that only decodes are a graph
  /// per size class: its kernels read the number of rows from the plan.
  void run(Device& device, const Pass& pass);
  const Sampled* sampled() const { return sampled_; }
  /// How many ids the cuts left, and which, for each sample that gives them (SampleArgs).
  const int32_t* kept_counts() const { return kept_counts_; }
  const int32_t* kept() const { return kept_; }
  std::byte* block(DeviceBlockId id) const { return kv_ + id * block_bytes_; }
  int64_t block_bytes() const { return block_bytes_; }

 private:
  CudaForward(const Model& model, const ForwardConfig& config, const Share& share, Communicator* peers, bool weights_beside, DeviceMemory& memory);
  Status begin(Device& device, const Model& model);
  Status upload(Device& device, Stream stream, DeviceWeights& to, const Model& model);
  const DeviceWeights& weights() const { return *weights_[running_]; }

  /// The size class of a pass: its launches have room for this many of each.
  struct Shape {
    int32_t rows = 0, samples = 0, tiles = 0, splits = 0, trees = 0;
    bool has_split_tiles = false;  // whose sums of splits are in memory
  };
  void launch(Device& device, const Shape& shape) const;
  void layer(Device& device, int32_t index, const Shape& shape) const;
  void norm(Device& device, int32_t rows, const float* weight, const float* added, int32_t added_rows, const float* bias,
            int32_t first_sample = -1) const;
  GemmArgs gemm_args(int32_t rows, const void* in, const DeviceMatrix& w, int32_t parts) const;
  void launch_gemm(Device& device, int32_t rows, int32_t parts, const GemmArgs& args) const;
  void gate_and_up(Device& device, int32_t rows, const DeviceLayer& w) const;
  void multiply(Device& device, int32_t rows, const void* in, const DeviceMatrix& w, float* out, int32_t first_sample = -1,
                int32_t parts = 1) const;
  void multiply_and_gather(Device& device, int32_t rows, const void* in, const DeviceMatrix& w) const;
  void sample(Device& device, int32_t samples, int32_t rows) const;
  void keep_accepted(Device& device, int32_t trees) const;

  const Share share_;
  Communicator* const peers_;
  const ModelConfig model_;  // this rank's share: its heads and inner size
  const ForwardConfig config_;
  const int32_t dim_;  // of a KV head in memory
  /// In how many parts the products with qkv are summed: in bf16 two, so that a few rows keep a whole GPU busy.
  int32_t qkv_parts() const { return !config_.f32 && model_.hidden_size % (2 * kGemmSteps) == 0 ? 2 : 1; }
  int32_t head_bytes() const { return dim_ * (config_.f32 ? 4 : 2); }
  const int64_t block_bytes_;
  std::array<std::unique_ptr<DeviceWeights>, 2> weights_;  // the second: null without room beside
  size_t running_ = 0;

  std::map<std::array<int32_t, 3>, std::optional<GraphId>> graphs_;  // by rows, splits and which weights

  std::byte* kv_ = nullptr;
  SlotState* slots_ = nullptr;
  int32_t *tables_ = nullptr, *log_ = nullptr;
  std::byte *plan_ = nullptr, *changes_ = nullptr;
  RowState* rows_ = nullptr;
  float* rope_ = nullptr;
  float *hidden_ = nullptr, *qkv_ = nullptr, *gate_up_ = nullptr /* f32 mode */, *logits_ = nullptr;
  float* projected_ = nullptr;    // [part][rows of the pass][hidden_size padded]: all ranks' sums
  float* logit_parts_ = nullptr;  // [rank][rows][rows of the head]; null without peers
  std::byte *normed_ = nullptr, *query_ = nullptr, *attended_ = nullptr, *activated_ = nullptr;  // bf16, or float
  std::byte* paths_ = nullptr;  // this and the next: null without trees
  AcceptedPath* accepted_ = nullptr;
  float *partial_ = nullptr, *stats_ = nullptr;
  float* maxima_ = nullptr;
  double *sums_ = nullptr, *logprob_sums_ = nullptr;
  unsigned long long *candidates_ = nullptr, *bucket_ = nullptr;
  uint32_t* penalized_ = nullptr;
  Sampled* sampled_ = nullptr;
  int32_t *kept_counts_ = nullptr, *kept_ = nullptr;
};

}  // namespace seer::cuda
