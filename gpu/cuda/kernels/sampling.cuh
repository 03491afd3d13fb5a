// A row of logits -> a token and its log-probability, deciding exactly as gpu/sampler.h on equal logits: the same parts, the same
// sums in the same order, the same exp and log. weigh_logits takes a few parts per block, sample_rows a row.
// What is summed in an order (a part's sixteen sums, parts, the walk to the drawn token) is so here too; what is exact in any
// order (largest, counts, the mass of a bucket of nearly equal weights) is done by all threads. No full sort: only the bucket in
// which top-p ends is sorted, as on the CPU.
// Without a penalty logits need no clamp: a row with one that is not finite gives no token.
#pragma once
#include "gpu/cuda/kernels/sampling_cuts.cuh"

namespace seer::cuda {
namespace {

// Weights that are wanted of a row: for the draw, for the log-probability. Equal temperatures: the first are both.
struct WantedSums {
  bool draw, logprob;
  GPU_INLINE explicit WantedSums(const SlotState& slot)
      : draw(slot.temperature != 0.0f), logprob(slot.temperature != slot.logprob_temperature) {}
};

// Largest logit and sums of exp((logit - largest) / temperature) of each part; NaN: some logit is not finite.
// A thread has two times four ids and issues their loads before all else. The weights go to shared memory, from which
// sixteen threads per part and temperature add them, a sum each.
// grid: (kWeighedParts each, samples from first_sample on). Bytes: vocab * 4 read; per part 12 written, or 20 with two temperatures.
GPU_INLINE void weigh_logits(const SampleArgs& args) {
  constexpr int kLoads = kPart / kPartThreads / 4;
  const int at = block_y(), thread = thread_index();
  if (at >= launch_rows(args.plan, 1, args.first_sample)) return;
  const int group = thread / kPartThreads, part = block_x() * kWeighedParts + group;
  const int first = part * kPart + thread % kPartThreads * 4;
  const auto id_of = [&](int i) { return first + i / 4 * kPartThreads * 4 + i % 4; };
  const float* logits = args.logits + at * int64_t{args.vocab_stride};
  float x[kLoads * 4];
#pragma unroll
  for (int i = 0; i < kLoads * 4; i += 4) {
    const Float4 four = id_of(i) < args.vocab ? load<Float4>(logits + id_of(i)) : Float4{};
    x[i] = four.at[0];
    x[i + 1] = four.at[1];
    x[i + 2] = four.at[2];
    x[i + 3] = four.at[3];
  }
  const SlotState& slot = args.slots[args.rows[plan_samples(args.plan)[args.first_sample + at].row].slot];
  const WantedSums wanted(slot);

  const bool ends = part * kPart + kPart > args.vocab;  // what is beyond the vocabulary must not count
  if (ends)
#pragma unroll
    for (int i = 0; i < kLoads * 4; ++i) x[i] = id_of(i) < args.vocab ? x[i] : -kHighestLogit;
  float largest = -kHighestLogit, spoiled = 0;
#pragma unroll
  for (int i = 0; i < kLoads * 4; ++i) {
    spoiled += x[i] - x[i];
    largest = fmaxf(largest, x[i]);
  }
#pragma unroll
  for (int n = 16; n > 0; n /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, n));
  if (__ballot_sync(~0u, spoiled != 0.0f) != 0) largest = kNanF;
  auto* weights = reinterpret_cast<float*>(dynamic_shared());  // [temperature][kWeighedParts][kWeighedStride]
  float* maxima = weights + 2 * kWeighedParts * kWeighedStride;  // [warp]
  if (thread % 32 == 0) maxima[thread / 32] = largest;
  __syncthreads();
  bool finite = true;
#pragma unroll
  for (int w = 0; w < kPartThreads / 32; ++w) {
    const float max = maxima[group * (kPartThreads / 32) + w];
    finite = finite && max == max;
    largest = fmaxf(largest, max);
  }
  if (thread % kPartThreads == 0 && part < args.parts) args.maxima[at * int64_t{args.parts} + part] = finite ? largest : kNanF;

#pragma unroll
  for (int i = 0; i < kLoads * 4; ++i) x[i] = ends && id_of(i) >= args.vocab ? -kInfF : x[i] - largest;
#pragma unroll 1
  for (int kind = wanted.draw ? 0 : 1; kind < (wanted.logprob ? 2 : 1); ++kind) {
    const float temperature = kind == 0 ? slot.temperature : slot.logprob_temperature;
    float scaled[kLoads * 4];
#pragma unroll
    for (int i = 0; i < kLoads * 4; ++i) scaled[i] = x[i];
    if (temperature != 1.0f)
#pragma unroll
      for (int i = 0; i < kLoads * 4; ++i) scaled[i] /= temperature;
    // Written as a multiple of 4, nvcc sees that 16 bytes can be stored at once.
    float* to = weights + 4 * ((kind * kWeighedParts + group) * (kWeighedStride / 4) + thread % kPartThreads);
#pragma unroll
    for (int i = 0; i < kLoads * 4; i += 4)
      store(to + i * kPartThreads,
            Float4{{exp_below(scaled[i]), exp_below(scaled[i + 1]), exp_below(scaled[i + 2]), exp_below(scaled[i + 3])}});
  }
  __syncthreads();

  const int kind = thread / (16 * kWeighedParts), lane = thread % 16;
  if (!(kind == 0 && wanted.draw) && !(kind == 1 && wanted.logprob)) return;
  const int adds = thread / 16 % kWeighedParts, added_part = block_x() * kWeighedParts + adds;
  const float* from = weights + (kind * kWeighedParts + adds) * kWeighedStride + lane;
  double sum = 0;
#pragma unroll 16
  for (int i = 0; i < kPart; i += 16) sum += static_cast<double>(from[i]);
#pragma unroll
  for (int n = 8; n > 0; n /= 2) sum += __shfl_xor_sync(~0u, sum, n);
  if (lane == 0 && added_part < args.parts) (kind == 0 ? args.sums : args.logprob_sums)[at * int64_t{args.parts} + added_part] = sum;
}
static_assert(kPartThreads % 32 == 0 && kWeighedParts % 2 == 0);  // the sums of a temperature are whole warps

// Fills in shared.maxima, masses, through and the totals from the parts of a row. Returns the largest logit; infinity: some logit is
// not finite. All threads call it.
GPU_INLINE float add_parts(const SampleArgs& args, const SlotState& slot, WantedSums wanted, SampleShared& shared) {
  const int64_t row = block_x() * int64_t{args.parts};
  float largest = -kHighestLogit;
#pragma unroll 1
  for (int p = thread_index(); p < args.parts; p += kSampleThreads) {
    const float max = args.maxima[row + p];
    shared.maxima[p] = max;
    if (wanted.draw) shared.masses[p] = args.sums[row + p];
    if (wanted.logprob) shared.logprob_masses[p] = args.logprob_sums[row + p];
    largest = fmaxf(largest, max == max ? max : kInfF);
  }
  largest = block_max(largest, shared);
  if (largest == kInfF) return largest;
#pragma unroll 1
  for (int p = thread_index(); p < padded_parts(args.parts); p += kSampleThreads) {
    const bool is_part = p < args.parts;
    const float below = is_part ? shared.maxima[p] - largest : 0.0f;
    const auto weigh = [&](double* masses, float temperature) {
      masses[p] = is_part ? masses[p] * static_cast<double>(exp_below(below / temperature)) : 0.0;
    };
    if (wanted.draw) weigh(shared.masses, slot.temperature);
    if (wanted.logprob) weigh(shared.logprob_masses, slot.logprob_temperature);
  }
  __syncthreads();
  if (thread_index() == 0 && wanted.draw) shared.total = sum_in_order(shared.masses, args.parts, shared.through);
  if (thread_index() == 32 && wanted.logprob) shared.logprob_total = sum_in_order(shared.logprob_masses, args.parts, nullptr);
  __syncthreads();
  return largest;
}

// The first of shared.weights at which their sum in order passes shared.target. Returns it to thread 0.
// One thread needs long for that sum, so all threads first add in another order. In any order, a sum of n weights of at most 1024 has
// a relative error below 1024 * 2^-53, so two orders differ by less than 2^-42 of it. Unless one of these sums is nearer than 2^-40 to
// the target, both orders pass it at the same weight.
GPU_INLINE int walk_to_target(SampleShared& shared) {
  const int lane = thread_index() % 32, warp = thread_index() / 32;
  const double target = shared.target;
  const Float4 four = load<Float4>(shared.weights + thread_index() * 4);
  double through[4] = {static_cast<double>(four.at[0]), static_cast<double>(four.at[1]), static_cast<double>(four.at[2]),
                       static_cast<double>(four.at[3])};
#pragma unroll
  for (int i = 1; i < 4; ++i) through[i] += through[i - 1];
  double sum = through[3];
#pragma unroll
  for (int n = 1; n < 32; n *= 2) {
    const double other = __shfl_up_sync(~0u, sum, n);
    if (lane >= n) sum += other;
  }
  if (lane == 31) shared.sums[warp] = sum;
  double before = __shfl_up_sync(~0u, sum, 1);
  if (lane == 0) before = 0;
  __syncthreads();
  for (int w = 0; w < warp; ++w) before += shared.sums[w];
  unsigned long long not_through = 0, all = 0;  // or kPart more: it is not sure
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const double beyond = before + through[i] - target;
    not_through += beyond <= 0.0;
    if (PLANTED(10) || !(fabs(beyond) > target * 0x1p-40)) not_through += kPart;
  }
  block_scan(not_through, shared, all);
  if (all < kPart) return static_cast<int>(all);
  if (thread_index() != 0) return -1;
  int found = -1;
  double cumulative = 0;
#pragma unroll 1
  for (int i = 0; i < kPart && cumulative <= target; ++i) {
    if (shared.weights[i] == 0.0f) continue;
    found = i;
    cumulative += static_cast<double>(shared.weights[i]);
  }
  return found;
}

// The token at which the cumulative weight passes the drawn one, without cuts: first the part, then within it. Returns it to thread 0.
GPU_INLINE int draw_from_parts(const LogitRow& row, int parts, float largest, float temperature, double uniform, SampleShared& shared) {
  const double target = uniform * shared.total;  // below the total: `uniform` is at most 1 - 2^-53
#pragma unroll 1
  for (int p = thread_index(); p < parts; p += kSampleThreads) {
    const double before = p == 0 ? 0.0 : shared.through[p - 1];
    if (before > target || shared.through[p] <= target) continue;
    shared.part = p;  // by one thread: the mass through a part never falls
    shared.target = (target - before) / static_cast<double>(exp_below((shared.maxima[p] - largest) / temperature));
  }
  __syncthreads();
  const int first = shared.part * kPart, own = first + thread_index() * 4;
  const float part_largest = shared.maxima[shared.part];
  const Float4 four = own < row.vocab ? load<Float4>(row.logits + own) : Float4{};
  const auto weight = [&](float logit, int id) { return id < row.vocab ? exp_below((logit - part_largest) / temperature) : 0.0f; };
  store(shared.weights + thread_index() * 4,
        Float4{{weight(four.at[0], own), weight(four.at[1], own + 1), weight(four.at[2], own + 2), weight(four.at[3], own + 3)}});
  __syncthreads();
  return first + walk_to_target(shared);
}
static_assert(kSampleThreads * 4 == kPart);

// The lowest id with the largest logit. If no logit is changed it is in the first part with that maximum.
GPU_INLINE int first_largest(const LogitRow& row, int parts, float largest, SampleShared& shared) {
  const int32_t key = order_key(largest);
  int begin = 0, end = row.vocab;
  if (!row.is_changed) {
    int part = parts;
#pragma unroll 1
    for (int p = thread_index(); p < parts; p += kSampleThreads)
      if (order_key(shared.maxima[p]) == key) part = min(part, p);
    begin = block_min(part, shared) * kPart;
    end = min(begin + kPart, row.vocab);
  }
  return first_with_key(row, begin, end, key, shared);
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

// The row's log-probabilities do not need their logits any more.
GPU_INLINE void ban_ending_ids(const SlotState& slot, float* logits) {
  if (thread_index() < kEndingIds) {
    const int32_t id = slot.ending_ids[thread_index()];
    if (id >= 0) logits[id] = -kHighestLogit;
  }
  __syncthreads();
}

// grid: samples from first_sample on. Bytes: 12 to 20 per part and at most kPart * 4 without cuts, penalty and ban; vocab * 4, read 2 to 7
// times, with them; 4 per kept id that is given back.
GPU_INLINE void sample_rows(const SampleArgs& args) {
  const int at = block_x(), thread = thread_index();
  if (at >= launch_rows(args.plan, 1, args.first_sample)) return;
  const PlanSample planned = plan_samples(args.plan)[args.first_sample + at];
  const RowState state = args.rows[planned.row];
  const SlotState& slot = args.slots[state.slot];
  const WantedSums wanted(slot);
  const double uniform = philox_uniform(slot.seed, state.position + 1);
  SampleShared shared(dynamic_shared());
  const float largest = add_parts(args, slot, wanted, shared);
  const int sample = args.first_sample + at;
  if (largest == kInfF) {
    if (thread == 0) args.sampled[sample] = {-1, 0.0f};
    return;
  }

  LogitRow row{.logits = args.logits + at * int64_t{args.vocab_stride}, .vocab = args.vocab};
  const double logprob_total = wanted.logprob ? shared.logprob_total : shared.total;
  int token = planned.target;
  const bool gives_kept = token < 0 && slot.gives_kept;
  if (token < 0) {
    const bool has_cuts = slot.top_k != 0 || slot.top_p != 1.0f || slot.min_p != 0.0f;
    if (slot.repetition_penalty != 1.0f) {
      row.penalty = slot.repetition_penalty;
      row.penalized = args.penalized + at * int64_t{args.penalized_stride};
      mark_penalized(args, state, planned.row, args.penalized + at * int64_t{args.penalized_stride});
    }
    const bool bans = state.position + 1 < slot.ends_from;
    if (bans) ban_ending_ids(slot, args.logits + at * int64_t{args.vocab_stride});
    row.is_changed = row.penalized || bans;
    const float max = row.is_changed ? largest_of(row, shared) : largest;
    if (slot.temperature == 0.0f)
      token = first_largest(row, args.parts, max, shared);
    else if (!row.is_changed && !has_cuts)
      token = draw_from_parts(row, args.parts, largest, slot.temperature, uniform, shared);
    else
      token = draw_with_cuts(args, row, max, slot, uniform, gives_kept, shared);
  }
  if (thread == 32) shared.log_total = log_parts(logprob_total).high;  // while thread 0 looks for the token
  __syncthreads();
  if (thread != 0) return;
  const float logit = row.logits[token];
  float logprob = -kInfF;
  if (gives_kept && slot.temperature == 0.0f) {
    args.kept_counts[sample] = 1;
    *kept_of(args) = token;
    logprob = 0;
  } else if (gives_kept) {
    logprob = static_cast<float>(shared.kept_logprob);
  } else if (logit != -kHighestLogit || largest <= -kHighestLogit) {
    const float scaled = (logit - largest) / slot.logprob_temperature;
    logprob = static_cast<float>(static_cast<double>(scaled) - shared.log_total);
  }
  args.sampled[sample] = {token, logprob};
}

}  // namespace
}  // namespace seer::cuda
