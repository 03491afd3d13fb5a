// DeviceWeights: a rank's share of a model's weights in device memory, in the layouts of the kernels: matrices [rows][columns] in
// bf16, or [columns][rows] in f32, rows padded to kGemmColumns and columns to kGemmSteps with zeros; norms and biases in f32. The columns
// of embeddings and the vectors of hidden_size are padded likewise.
//
// A rank has whole heads: their rows of the query, key and value matrices and their columns of the output projection. It has as many
// rows of gate and up and the same columns of down, and a part of the head's rows. Norms, embeddings and the biases of sums are whole.
// Used by CudaForward. Single owner.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "gpu/cuda/device.h"
#include "gpu/cuda/device_memory.h"
#include "gpu/model/weight_store.h"

namespace seer::cuda {

constexpr int32_t padded(int32_t n, int32_t step) { return (n + step - 1) / step * step; }

/// Which part of a model a rank has.
struct Share {
  int32_t rank = 0, ranks = 1;
  int32_t begin(int32_t size) const { return size / ranks * rank; }
  int32_t size(int32_t all) const { return all / ranks; }
  /// Rows of the head; the last ranks may have fewer of the vocabulary.
  int32_t head_rows(int32_t vocab) const { return ranks == 1 ? vocab : padded((vocab + ranks - 1) / ranks, kGemmColumns); }
};

struct DeviceMatrix {
  std::byte* data = nullptr;
  int32_t rows = 0, columns = 0;
  int32_t rows_padded() const { return padded(rows, kGemmColumns); }
  int32_t columns_padded() const { return padded(columns, kGemmSteps); }
};

struct DeviceLayer {
  float *input_norm = nullptr, *post_norm = nullptr, *q_norm = nullptr, *k_norm = nullptr;  // null: the model has none
  DeviceMatrix qkv, output, gate_up, down;
  float *qkv_bias = nullptr, *output_bias = nullptr, *gate_up_bias = nullptr, *down_bias = nullptr;
};

class DeviceWeights {
 public:
  /// Asks for the memory. `f32`: matrices are floats.
  DeviceWeights(const Model& model, bool f32, Share share, DeviceMemory& memory);
  DeviceWeights(const DeviceWeights&) = delete;
  DeviceWeights& operator=(const DeviceWeights&) = delete;

  /// Pinned memory of the host, which upload() needs. Once, before steps run: they might wait for it.
  Status reserve_staging(Device& device);
  /// Copies the weights of a model of the same shape, after what is queued on the stream, and waits until they are there.
  /// Errors: kUnavailable (the device's own), kCorrupt (what arrived has a number that is not finite).
  Status upload(Device& device, Stream stream, const Model& model, const std::function<Status(EventId)>& wait);

  const std::vector<DeviceLayer>& layers() const { return layers_; }
  const float* final_norm() const { return final_norm_; }
  const DeviceMatrix& head() const { return head_; }
  /// [vocab][embedding_stride]
  const std::byte* embedding() const { return embedding_.data ? embedding_.data : head_.data; }
  int32_t embedding_stride() const { return head_.columns_padded(); }

 private:
  class Uploader;
  void check_finite(Device& device, Stream stream) const;

  const bool f32_;
  const Share share_;
  const int32_t head_dim_;
  std::vector<DeviceLayer> layers_;
  float* final_norm_ = nullptr;
  DeviceMatrix head_;
  DeviceMatrix embedding_;  // [rows][columns padded]; none if the head can be read in its place
  std::byte* staging_ = nullptr;  // pinned
  uint32_t* not_finite_ = nullptr;
};

}  // namespace seer::cuda
