// GemmChain: only the GEMMs of a step, as a lower limit for its time: the calls of Linear::multiply that CpuForward
// makes for as many rows, in its order and slabs, on as many threads, with given activations.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>

#include "gpu/cpu/forward.h"
#include "gpu/cpu/head_sampler.h"
#include "gpu/cpu/linear.h"
#include "gpu/cpu/thread_pool.h"
#include "gpu/model/weight_store.h"

namespace seer {

class GemmChain {
 public:
  /// All are borrowed.
  GemmChain(const Model& model, const CpuKernels& kernels, ThreadPool& pool)
      : model_(model),
        linear_(kernels, pool),
        normed_(model.config.hidden_size),
        qkv_(model.layers[0].qkv.rows()),
        attended_(model.config.query_size()),
        projected_(model.config.hidden_size),
        gate_up_(model.layers[0].gate_up.rows()),
        activated_(model.config.intermediate_size),
        logits_(model.config.vocab_size) {
    for (Activations* a : {&normed_, &qkv_, &attended_, &projected_, &gate_up_, &activated_})
      a->reserve_rows(CpuForward::kSlabRows);
    logits_.reserve_rows(HeadSampler::kRowsMax);
    for (Activations* a : {&normed_, &attended_, &activated_}) std::fill_n(a->data.data(), a->data.size(), 0.5f);
  }

  /// Microseconds of the GEMMs of a step of `rows` rows, the last sampled_rows of them sampled.
  double measure_us(int32_t rows, int32_t sampled_rows) {
    const auto begin = std::chrono::steady_clock::now();
    for (int32_t first = 0; first < rows; first += CpuForward::kSlabRows) {
      const int32_t end = std::min(rows, first + CpuForward::kSlabRows);
      run_slab(end - first, std::max(0, end - std::max(first, rows - sampled_rows)));
    }
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  void run_slab(int32_t rows, int32_t sampled_rows) {
    for (const LayerWeights& w : model_.layers) {
      linear_.multiply(w.qkv, normed_, rows, qkv_);
      linear_.multiply(w.output, attended_, rows, projected_);
      linear_.multiply(w.gate_up, normed_, rows, gate_up_);
      linear_.multiply(w.down, activated_, rows, projected_);
    }
    for (int32_t done = 0; done < sampled_rows; done += HeadSampler::kRowsMax)
      linear_.multiply(model_.head, normed_, std::min(HeadSampler::kRowsMax, sampled_rows - done), logits_);
  }

  const Model& model_;
  Linear linear_;
  Activations normed_, qkv_, attended_, projected_, gate_up_, activated_, logits_;
};

}  // namespace seer
