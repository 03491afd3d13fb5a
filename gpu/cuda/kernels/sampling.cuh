// A row of logits -> a token and its log-probability, deciding exactly as gpu/sampler.h on equal logits: the same parts, the same
// sums in the same order, the same exp and log. One block per row.
// What is summed in an order (a part's sixteen sums, parts, the walk to the drawn token) is so here too; what is exact in any
// order (largest, counts, the mass of a bucket of nearly equal weights) is done by all threads. No full sort: only the bucket in
// which top-p ends is sorted, as on the CPU.
// Bytes: vocab * 4, read 3 times without cuts and 4 to 7 times with them (from L2 after the first).
#pragma once
#include "gpu/cuda/kernels/sampling_cuts.cuh"

namespace seer::cuda {
namespace {

// Largest logit and sums of exp((logit - largest) / temperature) of each part; NaN: some logit is not finite.
// Sixteen threads take a part. A null array is not wanted.
GPU_INLINE void sum_parts(const LogitRow& row, int parts, float temperature, float logprob_temperature, float* maxima,
                          double* sums, double* logprob_sums) {
  const int group = thread_index() / 16, lane = thread_index() % 16;
  for (int first = 0; first < parts; first += kSampleThreads / 16) {
    const int part = first + group;
    const int begin = part * kPart, end = part < parts ? min(begin + kPart, row.vocab) : begin;
    float largest = -kHighestLogit, spoiled = 0;
    for (int i = begin + lane; i < end; i += 16) {
      const float x = row.logits[i];
      spoiled += x - x;
      largest = fmaxf(largest, clamp_logit(x));
    }
#pragma unroll
    for (int n = 8; n > 0; n /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, n));
      spoiled += __shfl_xor_sync(~0u, spoiled, n);
    }
    double sum = 0, logprob_sum = 0;
    for (int i = begin + lane; i < end; i += 16) {
      const float below = clamp_logit(row.logits[i]) - largest;
      if (sums) sum += static_cast<double>(exp_f32(below / temperature));
      if (logprob_sums) logprob_sum += static_cast<double>(exp_f32(below / logprob_temperature));
    }
#pragma unroll
    for (int n = 8; n > 0; n /= 2) {
      sum += __shfl_xor_sync(~0u, sum, n);
      logprob_sum += __shfl_xor_sync(~0u, logprob_sum, n);
    }
    if (lane != 0 || part >= parts) continue;
    maxima[part] = spoiled == 0.0f ? largest : kNanF;
    if (sums) sums[part] = sum;
    if (logprob_sums) logprob_sums[part] = logprob_sum;
  }
}

// The mass of each part relative to the largest logit of the row. All threads call it.
GPU_INLINE void weigh_parts(const float* maxima, const double* sums, int parts, float largest, float temperature, double* masses) {
  __syncthreads();
#pragma unroll 1
  for (int p = thread_index(); p < parts; p += kSampleThreads)
    masses[p] = sums[p] * static_cast<double>(exp_f32((maxima[p] - largest) / temperature));
  __syncthreads();
}
GPU_INLINE double sum_in_order(const double* masses, int parts) {
  double total = 0;
#pragma unroll 1
  for (int p = 0; p < parts; ++p) total += masses[p];
  return total;
}

// The token at which the cumulative weight passes the drawn one, without cuts: first the part, then within it.
GPU_INLINE int draw_from_parts(const LogitRow& row, const float* maxima, const double* masses, int parts, float largest,
                               float temperature, double uniform, SampleShared& shared) {
  if (thread_index() == 0) {
    const double target = uniform * sum_in_order(masses, parts);
    // Rounding may leave the target just above the whole mass: then it is the last token of the last part with any.
    shared.target = kInf;
    double before = 0;
#pragma unroll 1
    for (int p = 0; p < parts; ++p) {
      if (masses[p] == 0.0) continue;
      shared.part = p;
      if (before + masses[p] > target) {
        shared.target = (target - before) / static_cast<double>(exp_f32((maxima[p] - largest) / temperature));
        break;
      }
      before += masses[p];
    }
  }
  __syncthreads();
  const int first = shared.part * kPart, count = min(kPart, row.vocab - first);
  const float part_largest = maxima[shared.part];
#pragma unroll 1
  for (int i = thread_index(); i < count; i += kSampleThreads)
    shared.weights[i] = exp_f32((clamp_logit(row.logits[first + i]) - part_largest) / temperature);
  __syncthreads();
  int token = -1;
  if (thread_index() == 0) {
    double cumulative = 0;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      if (shared.weights[i] == 0.0f) continue;
      token = first + i;
      cumulative += static_cast<double>(shared.weights[i]);
      if (cumulative > shared.target) break;
    }
  }
  return token;  // of thread 0
}

// A bit for each token that the sequence has up to this row; in a tree, on its path.
GPU_INLINE void mark_penalized(const SampleArgs& args, const RowState& at, int sampled_row, uint32_t* bits) {
#pragma unroll 1
  for (int i = thread_index(); i < args.penalized_stride; i += kSampleThreads) bits[i] = 0;
  __syncthreads();
  if (thread_index() == 0)
    for (int row = at.tree < 0 ? -1 : sampled_row; row >= 0; row = args.rows[row].parent)
      bits[args.rows[row].token / 32] |= 1u << args.rows[row].token % 32;
  __syncthreads();
#pragma unroll 1
  for (int p = thread_index(); p <= at.position && p < at.root; p += kSampleThreads) {
    const int block = args.tables[at.slot * int64_t{args.table_stride} + p / args.block_tokens];
    const int token = args.log[block * int64_t{args.block_tokens} + p % args.block_tokens];
    atomicOr(&bits[token / 32], 1u << token % 32);
  }
  __syncthreads();
}

// grid: samples from first_sample on
GPU_INLINE void sample_rows(const SampleArgs& args) {
  const int at = block_x(), thread = thread_index();
  if (at >= launch_rows(args.plan, 1, args.first_sample)) return;
  const PlanSample planned = plan_samples(args.plan)[args.first_sample + at];
  const RowState state = args.rows[planned.row];
  const SlotState& slot = args.slots[state.slot];
  SampleShared shared(dynamic_shared());
  LogitRow row{.logits = args.logits + at * int64_t{args.vocab_stride}, .vocab = args.vocab};
  float* maxima = args.maxima + at * int64_t{args.parts};
  double* sums = args.sums + at * int64_t{args.parts};
  double* logprob_sums = args.logprob_sums + at * int64_t{args.parts};
  double* masses = args.masses + at * int64_t{args.parts};
  const float temperature = slot.temperature, logprob_temperature = slot.logprob_temperature;
  const bool greedy = temperature == 0.0f, two_sums = temperature != logprob_temperature;

  sum_parts(row, args.parts, temperature, logprob_temperature, maxima, greedy ? nullptr : sums,
            two_sums ? logprob_sums : nullptr);
  __syncthreads();
  float largest = -kHighestLogit;
  bool finite = true;
#pragma unroll 1
  for (int p = 0; p < args.parts; ++p) {
    finite = finite && maxima[p] == maxima[p];
    largest = fmaxf(largest, maxima[p]);
  }
  if (!finite) {
    if (thread == 0) args.sampled[args.first_sample + at] = {-1, 0.0f};
    return;
  }
  int token = planned.target;
  if (token < 0) {
    const double uniform = philox_uniform(slot.seed, state.position + 1);
    const bool has_cuts = slot.top_k != 0 || slot.top_p != 1.0f || slot.min_p != 0.0f;
    if (slot.repetition_penalty != 1.0f) {
      row.penalty = slot.repetition_penalty;
      row.penalized = args.penalized + at * int64_t{args.penalized_stride};
      mark_penalized(args, state, planned.row, args.penalized + at * int64_t{args.penalized_stride});
    }
    if (greedy) {
      token = first_largest(row, shared);
    } else if (row.penalized == nullptr && !has_cuts) {
      weigh_parts(maxima, sums, args.parts, largest, temperature, masses);
      token = draw_from_parts(row, maxima, masses, args.parts, largest, temperature, uniform, shared);
    } else {
      token = draw_with_cuts(row, slot, args.candidates + at * int64_t{args.vocab}, args.bucket + at * int64_t{args.vocab}, masses,
                             args.parts, uniform, shared);
    }
  }
  weigh_parts(maxima, two_sums ? logprob_sums : sums, args.parts, largest, logprob_temperature, masses);
  if (thread != 0) return;
  const float logit = row.logits[token];
  float logprob = -kInfF;
  if (clamp_logit(logit) != -kHighestLogit || largest <= -kHighestLogit) {
    const float scaled = (clamp_logit(logit) - largest) / logprob_temperature;
    logprob = static_cast<float>(static_cast<double>(scaled) - log_f64(sum_in_order(masses, args.parts)));
  }
  args.sampled[args.first_sample + at] = {token, logprob};
}

}  // namespace
}  // namespace seer::cuda
