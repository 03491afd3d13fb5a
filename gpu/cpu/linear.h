// Linear: y = W x for the rows of a step, spread over a thread pool. The one place from which the engine calls the GEMM
// kernels; the benchmarks run the same code. Loops are split over outputs, never over a sum.
#pragma once
#include <cstdint>

#include "gpu/cpu/aligned_array.h"
#include "gpu/cpu/kernels.h"
#include "gpu/cpu/packed_matrix.h"
#include "gpu/cpu/thread_pool.h"

namespace seer {

/// A matrix of activations: rows of floats whose stride is padded to 32 with zeros.
struct Activations {
  int64_t stride = 0;
  AlignedArray<float> data;
  explicit Activations(int32_t width = 0) : stride((int64_t{width} + 31) / 32 * 32) {}
  /// Loses its contents if it has to grow.
  void reserve_rows(int32_t rows);
  float* row(int32_t r) { return data.data() + r * stride; }
};

class Linear {
 public:
  /// Both are borrowed and outlive this.
  Linear(const CpuKernels& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

  /// out.row(m)[n] = dot(in.row(m), W[n]) for m in [0, rows) and the panels [panel_begin, panel_end) of W (-1: to its
  /// last). REQUIRES: if W rounds its inputs, `in` holds bf16 values; `out` has room for the rows.
  void multiply(const PackedMatrix& weights, Activations& in, int32_t rows, Activations& out, int32_t panel_begin = 0,
                int32_t panel_end = -1);

  /// multiply() in pieces, for callers that spread the work themselves: prepare() once, then multiply_here() for any of
  /// the rows [row, row + rows) and panels, on any thread at the same time. out[m * out_stride] is the first output of
  /// panel_begin.
  void prepare(const PackedMatrix& weights, Activations& in, int32_t rows);
  void multiply_here(const PackedMatrix& weights, Activations& in, int32_t row, int32_t rows, int32_t panel_begin,
                     int32_t panel_end, float* out, int64_t out_stride) const;

 private:
  // What the kernels read instead of floats.
  void prepare_bf16_rows(Activations& in, int32_t rows, int32_t width);
  void prepare_quantized_rows(Activations& in, int32_t rows, int32_t width);
  // Whether this many rows are multiplied by a kernel with tiles, which reads them as bf16; the others read floats.
  bool reads_bf16_rows(const PackedMatrix& weights, int32_t rows) const {
    if (!weights.rounds_inputs() || kernels_.gemm_bf16_tiles == nullptr) return false;
    return weights.type() != MatrixType::kInt8 || rows >= kernels_.int8_tile_rows_min;
  }

  const CpuKernels& kernels_;
  ThreadPool& pool_;
  // Of the matrix at hand:
  AlignedArray<uint16_t> bf16_rows_;             // [rows][columns_padded]
  AlignedArray<QuantizedGroup> quantized_rows_;  // [rows][groups]
};

}  // namespace seer
