// The cuts of sampling.cuh: top-k, top-p and min-p over a row of logits, maybe with a repetition penalty or banned ids. See
// gpu/sampler.h for the rules and gpu/sampler.cpp for the order of each sum.
#pragma once
#include "gpu/cuda/kernel_args.h"
#include "gpu/cuda/kernels/gpu.h"
#include "gpu/philox.h"

namespace seer::cuda {
namespace {

constexpr float kHighestLogit = 3.40282347e+38f;
constexpr float kNoWeightBelow = -87.336f;  // exp_f32() is 0 from here down
constexpr int kBuckets = 2048, kSampleWarps = kSampleThreads / 32;

// exp_f32(x) with less work. REQUIRES: x <= 0.
GPU_INLINE float exp_below(float x) { return exp_lanes<OneLane, true>(x); }
GPU_INLINE float clamp_logit(float x) { return fminf(x > -kHighestLogit ? x : -kHighestLogit, kHighestLogit); }

// Orders floats as integers: equal for both zeros and all denormals.
GPU_INLINE int32_t order_key(float x) {
  const uint32_t bits = float_bits(x);
  if ((bits & 0x7f800000) == 0) return 0;
  return static_cast<int32_t>(bits & 0x80000000 ? 0x80000000 - bits : bits);
}

struct LogitRow {
  const float* logits;
  int vocab;
  const uint32_t* penalized = nullptr;  // a bit per token; null: no penalty
  float penalty = 1;
  bool is_changed = false;              // by a penalty or ban: what is known of its parts no longer holds

  GPU_INLINE float at(int id) const {
    const float x = clamp_logit(logits[id]);
    if (!penalized || !(penalized[id / 32] >> id % 32 & 1) || x <= -kHighestLogit) return x;
    return clamp_logit(x > 0.0f ? x / penalty : x * penalty);
  }
};

// Shared memory of a block, cut up.
struct SampleShared {
  double* masses;               // [kPartsMax]: of parts, relative to the largest logit of the row
  double* logprob_masses;       // [kPartsMax]: the same at the temperature of log-probabilities
  double* through;              // [kPartsMax]: the mass through each part
  unsigned long long* buckets;  // [kBuckets], in place of the two before: cuts come after the totals
  float* maxima;                // [kPartsMax]: largest logits of parts
  float* weights;               // [kPart]
  unsigned long long* counts;   // [kSampleWarps]
  double* sums;                 // [kSampleWarps]
  float* floats;                // [kSampleWarps]
  double& target;
  double& total;
  double& kept_logprob;  // in the place of `total`, which is not needed any more
  double& logprob_total;
  double& log_total;  // the logarithm of that
  unsigned long long& count;
  unsigned long long& found;
  int& part;
  GPU_INLINE explicit SampleShared(unsigned char* p)
      : masses(reinterpret_cast<double*>(p)),
        logprob_masses(masses + kPartsMax),
        through(logprob_masses + kPartsMax),
        buckets(reinterpret_cast<unsigned long long*>(logprob_masses)),
        maxima(reinterpret_cast<float*>(through + kPartsMax)),
        weights(maxima + kPartsMax),
        counts(reinterpret_cast<unsigned long long*>(weights + kPart)),
        sums(reinterpret_cast<double*>(counts + kSampleWarps)),
        floats(reinterpret_cast<float*>(sums + kSampleWarps)),
        target(*reinterpret_cast<double*>(floats + kSampleWarps)),
        total((&target)[1]),
        kept_logprob((&target)[1]),
        logprob_total((&target)[2]),
        log_total((&target)[3]),
        count(reinterpret_cast<unsigned long long*>(&target)[4]),
        found((&count)[1]),
        part(*reinterpret_cast<int*>(&count + 2)) {}
};
static_assert(kBuckets == 2 * kPartsMax);

// Sums over parts take sixteen at a time, so that loads are ahead of additions; masses beyond the last part are zeros.
constexpr int kAhead = 16;
GPU_INLINE int padded_parts(int parts) { return (parts + kAhead - 1) / kAhead * kAhead; }
// The sum in order. through: what it is after each part, or null.
GPU_INLINE double sum_in_order(const double* masses, int parts, double* through) {
  double total = 0;
#pragma unroll 1
  for (int p = 0; p < parts; p += kAhead) {
    double ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ahead[i] = masses[p + i];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      total += ahead[i];
      if (through) through[p + i] = total;
    }
  }
  return total;
}

GPU_INLINE float block_max(float x, SampleShared& shared) {
#pragma unroll
  for (int n = 16; n > 0; n /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, n));
  __syncthreads();
  if (thread_index() % 32 == 0) shared.floats[thread_index() / 32] = x;
  __syncthreads();
  for (int w = 0; w < kSampleWarps; ++w) x = fmaxf(x, shared.floats[w]);
  return x;
}
// The sum before each thread, in order of threads, and of all. All threads call it.
GPU_INLINE unsigned long long block_scan(unsigned long long value, SampleShared& shared, unsigned long long& all) {
  const int lane = thread_index() % 32, warp = thread_index() / 32;
  unsigned long long sum = value;
#pragma unroll
  for (int n = 1; n < 32; n *= 2) {
    const unsigned long long other = __shfl_up_sync(~0u, sum, n);
    if (lane >= n) sum += other;
  }
  __syncthreads();  // counts may still be read from the time before
  if (lane == 31) shared.counts[warp] = sum;
  __syncthreads();
  unsigned long long before = sum - value;
  all = 0;
  for (int w = 0; w < kSampleWarps; ++w) {  // the last warp is before no other
    if (w < kSampleWarps - 1 && w < warp) before += shared.counts[w];
    all += shared.counts[w];
  }
  return before;
}

GPU_INLINE int block_min(int x, SampleShared& shared) {
#pragma unroll
  for (int n = 16; n > 0; n /= 2) x = min(x, __shfl_xor_sync(~0u, x, n));
  __syncthreads();
  if (thread_index() % 32 == 0) shared.counts[thread_index() / 32] = static_cast<unsigned long long>(x);
  __syncthreads();
  for (int w = 0; w < kSampleWarps; ++w) x = min(x, static_cast<int>(shared.counts[w]));
  return x;
}

GPU_INLINE float largest_of(const LogitRow& row, SampleShared& shared) {
  float best = -kHighestLogit;
#pragma unroll 4
  for (int i = thread_index(); i < row.vocab; i += kSampleThreads) best = fmaxf(best, row.at(i));
  return block_max(best, shared);
}
// The lowest id of [begin, end) whose logit has this key.
GPU_INLINE int first_with_key(const LogitRow& row, int begin, int end, int32_t key, SampleShared& shared) {
  int first = end;
#pragma unroll 4
  for (int i = begin + thread_index(); i < end; i += kSampleThreads)
    if (order_key(row.at(i)) == key) first = min(first, i);
  return block_min(first, shared);
}

// Which logits top-k keeps: those with a greater key, and the first `ties` with this one.
struct TopK {
  uint32_t key = 0;  // order_key() of the scaled logit, as unsigned
  unsigned long long ties = ~0ull;
};
GPU_INLINE uint32_t unsigned_key(float scaled) { return static_cast<uint32_t>(order_key(scaled)) ^ 0x80000000u; }

// Descends through the bits of the keys: histograms of 11, 11 and 10 bits of those that pass.
template <class Passes>
GPU_INLINE TopK find_top_k(int vocab, unsigned long long k, SampleShared& shared, Passes passes) {
  TopK top;
  unsigned long long above = 0;
  int shift = 32;
  for (int level = 0; level < 3; ++level) {
    const int bits = level < 2 ? 11 : 10, buckets = 1 << bits, per_thread = buckets / kSampleThreads;
    __syncthreads();
#pragma unroll 1
    for (int i = thread_index(); i < buckets; i += 4 * kSampleThreads)
#pragma unroll
      for (int j = 0; j < 4; ++j) shared.buckets[i + j * kSampleThreads] = 0;
    UNLESS_PLANTED(7) __syncthreads();
    for (int i = thread_index(); i < vocab; i += kSampleThreads) {
      uint32_t key = 0;
      if (passes(i, key) && (level == 0 || key >> shift == top.key >> shift))
        atomicAdd(&shared.buckets[key >> (shift - bits) & (buckets - 1)], 1ull);
    }
    __syncthreads();
    // Buckets from the greatest keys down: thread t has those from buckets - 1 - t * per_thread.
    const int first = buckets - 1 - thread_index() * per_thread;
    unsigned long long own = 0, all = 0;
    for (int i = 0; i < per_thread; ++i) own += shared.buckets[first - ((i + thread_index()) & (per_thread - 1))];
    const unsigned long long before = above + block_scan(own, shared, all);
    if (before < k && before + own >= k) {  // one thread
      unsigned long long sum = before;
      int bucket = first;
      while (sum + shared.buckets[bucket] < k) sum += shared.buckets[bucket--];
      shared.found = static_cast<unsigned long long>(bucket);
      shared.count = sum;
    }
    __syncthreads();
    shift -= bits;
    top.key |= static_cast<uint32_t>(shared.found) << shift;
    above = shared.count;
  }
  top.ties = k - above;
  return top;
}

// A candidate: its weight's bits, then its id from the greatest down. So a greater one is more probable, or has the lower id.
GPU_INLINE unsigned long long candidate_of(float weight, int id) {
  return static_cast<unsigned long long>(float_bits(weight)) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}
GPU_INLINE float weight_of(unsigned long long candidate) { return bits_float(static_cast<uint32_t>(candidate >> 32)); }
GPU_INLINE int id_of(unsigned long long candidate) { return static_cast<int>(0xffffffffu - static_cast<uint32_t>(candidate)); }

// Sorts from the greatest down: a bitonic network whose comparisons with what is beyond `count` are left out.
GPU_INLINE void sort_down(unsigned long long* x, int count) {
#pragma unroll 1
  for (int size = 2; size / 2 < count; size *= 2)
#pragma unroll 1
    for (int step = size / 2; step > 0; step /= 2) {
#pragma unroll 1
      for (int i = thread_index(); i < count; i += kSampleThreads) {
        const int other = step == size / 2 ? i ^ (size - 1) : i ^ step;
        if (other <= i || other >= count) continue;
        const unsigned long long a = x[i], b = x[other];
        if (a < b) {
          x[i] = b;
          x[other] = a;
        }
      }
      __syncthreads();
    }
}

// The least probable candidate that top-p keeps. Weights that share exponent and three bits of the mantissa are a bucket; their sum
// is exact in 53 bits, so integers give what the CPU adds up in doubles.
GPU_INLINE unsigned long long last_of_top_p(const unsigned long long* candidates, int count, double wanted, unsigned long long* bucket,
                                            SampleShared& shared) {
  constexpr int kShift = 20, kTop = 0x3f800000 >> kShift;  // of weight 1
  __syncthreads();
#pragma unroll 1
  for (int i = thread_index(); i < kBuckets; i += kSampleThreads) shared.buckets[i] = 0;
  if (thread_index() == 0) shared.count = 0;
  __syncthreads();
  for (int i = thread_index(); i < count; i += kSampleThreads) {
    const auto bits = static_cast<uint32_t>(candidates[i] >> 32);
    if (bits != 0) atomicAdd(&shared.buckets[bits >> kShift], static_cast<unsigned long long>((bits & 0x7fffff) | 0x800000));
  }
  __syncthreads();
  if (thread_index() == 0) {
    const auto mass_of = [&](int b) {  // in units of 2^(exponent - 150)
      return static_cast<double>(shared.buckets[b]) * std::bit_cast<double>(static_cast<uint64_t>((b >> 3) - 150 + 1023) << 52);
    };
    int b = kTop;
    double mass = 0;
    while (b > 0 && mass + mass_of(b) < wanted) mass += mass_of(b--);
    shared.found = static_cast<unsigned long long>(b);
    shared.total = mass;
  }
  __syncthreads();
  for (int i = thread_index(); i < count; i += kSampleThreads)
    if (candidates[i] >> (32 + kShift) == shared.found) bucket[atomicAdd(&shared.count, 1ull)] = candidates[i];
  __syncthreads();
  const int members = static_cast<int>(shared.count);
  sort_down(bucket, members);
  if (thread_index() == 0) {
    double mass = shared.total;
    int last = 0;
    while (last + 1 < members && (mass += static_cast<double>(weight_of(bucket[last]))) < wanted) ++last;
    shared.found = bucket[last];
  }
  __syncthreads();
  return shared.found;
}

// Where the ids go that the cuts left of this block's sample.
GPU_INLINE int32_t* kept_of(const SampleArgs& args) { return args.kept + (args.first_sample + block_x()) * int64_t{kKeptStride}; }

// Draws from what the cuts leave. Returns the token to thread 0, and if these are to be given back its log-probability
// among them in shared.kept_logprob. `max`: the largest logit, with the penalty. REQUIRES: temperature > 0.
GPU_INLINE int draw_with_cuts(const SampleArgs& args, const LogitRow& row, float max, const SlotState& slot, double uniform, bool gives_kept,
                              SampleShared& shared) {
  unsigned long long* const candidates = args.candidates + block_x() * int64_t{args.vocab};
  unsigned long long* const bucket = args.bucket + block_x() * int64_t{args.vocab};
  const int parts = args.parts;
  const int thread = thread_index(), vocab = row.vocab;
  const float temperature = slot.temperature;
  const auto scaled = [&](int id) { return (row.at(id) - max) / temperature; };

  const bool has_top_k = slot.top_k > 0 && slot.top_k < vocab, has_top_p = slot.top_p < 1.0f;
  // Scaled logits below the floor cannot come through the cuts; sampler.cpp says why.
  float floor = kNoWeightBelow;
  double total = 0;
  if (has_top_p && !has_top_k) {
    for (int first = 0; first < parts; first += kSampleThreads / 16) {
      const int part = first + thread / 16, begin = part * kPart, end = part < parts ? min(begin + kPart, vocab) : begin;
      double sum = 0;
      for (int i = begin + thread % 16; i < end; i += 16) sum += static_cast<double>(exp_f32(scaled(i)));
#pragma unroll
      for (int n = 8; n > 0; n /= 2) sum += __shfl_xor_sync(~0u, sum, n);
      if (thread % 16 == 0 && part < parts) shared.masses[part] = sum;
    }
    __syncthreads();
    total = sum_in_order(shared.masses, parts, nullptr);
    const double share = (1.0 - static_cast<double>(slot.top_p)) / static_cast<double>(vocab);
    floor = fmaxf(floor, static_cast<float>(log_parts(share * total).high));
  }
  const float floor_below_max = (floor - 0.01f) * temperature;
  const auto passes = [&](int id, uint32_t& key) {
    if (row.at(id) - max < floor_below_max) return false;
    key = unsigned_key(scaled(id));
    return true;
  };

  TopK top;
  if (has_top_k) {
    unsigned long long passing = 0, all = 0;
    for (int i = thread; i < vocab; i += kSampleThreads) {
      uint32_t key;
      passing += passes(i, key);
    }
    block_scan(passing, shared, all);
    if (all > static_cast<unsigned long long>(slot.top_k))
      top = find_top_k(vocab, static_cast<unsigned long long>(slot.top_k), shared, passes);
  }
  // Candidates in order of ids, four per thread at a time. Before each are those with greater keys, and the ties that are kept.
  constexpr int kIds = 4;
  constexpr unsigned long long kTie = 1ull << 32;  // counts of both are in one number
  unsigned long long seen = 0;
  const auto greater = [](unsigned long long n) { return static_cast<uint32_t>(n); };
  const auto kept_ties = [&](unsigned long long n) { return static_cast<uint32_t>(n >> 32 < top.ties ? n >> 32 : top.ties); };
#pragma unroll 1
  for (int first = 0; first < vocab; first += kSampleThreads * kIds) {
    const int id = first + thread * kIds;
    uint32_t keys[kIds];  // 0: does not pass. No key is 0
    unsigned long long own = 0, all = 0;
#pragma unroll
    for (int i = 0; i < kIds; ++i) {
      keys[i] = 0;
      if (id + i < vocab && passes(id + i, keys[i])) own += keys[i] > top.key ? 1 : keys[i] == top.key ? kTie : 0;
    }
    unsigned long long before = seen + block_scan(own, shared, all);
    seen += all;
#pragma unroll
    for (int i = 0; i < kIds; ++i) {
      const bool ties = keys[i] == top.key;
      if (keys[i] == 0 || keys[i] < top.key) continue;
      if (!ties || before >> 32 < top.ties)
        candidates[greater(before) + kept_ties(before)] = candidate_of(exp_below(scaled(id + i)), id + i);
      before += ties ? kTie : 1;
    }
  }
  const int count = static_cast<int>(greater(seen) + kept_ties(seen));
  __syncthreads();

  unsigned long long last = 0;
  if (has_top_p) {
    if (has_top_k)
#pragma unroll 8
      for (int i = 0; i < count; ++i) total += static_cast<double>(weight_of(candidates[i]));
    last = last_of_top_p(candidates, count, static_cast<double>(slot.top_p) * total, bucket, shared);
  }
  const auto is_kept = [&](unsigned long long c) { return c >= last && weight_of(c) >= slot.min_p; };
  if (gives_kept) {
    unsigned long long before = 0;
#pragma unroll 1
    for (int first = 0; first < count && before < kKeptStride; first += kSampleThreads) {
      const unsigned long long candidate = first + thread < count ? candidates[first + thread] : 0;
      const bool keeps = candidate != 0 && is_kept(candidate);
      unsigned long long all = 0;
      const unsigned long long at = before + block_scan(keeps, shared, all);
      if (keeps && at < kKeptStride) kept_of(args)[at] = id_of(candidate);
      before += all;
    }
    if (thread == 0) args.kept_counts[args.first_sample + block_x()] = static_cast<int32_t>(before < kKeptStride ? before : kKeptStride);
  }
  int token = -1;
  if (thread == 0) {
    const auto kept_weight = [&](unsigned long long c) { return is_kept(c) ? weight_of(c) : 0.0f; };
    double kept_total = static_cast<double>(kept_weight(candidates[0])), cumulative = 0;
#pragma unroll 8
    for (int i = 1; i < count; ++i) kept_total += static_cast<double>(kept_weight(candidates[i]));
    const double target = uniform * kept_total;
#pragma unroll 1
    for (int i = 0;; ++i) {  // ends: `uniform` is at most 1 - 2^-53
      const float weight = kept_weight(candidates[i]);
      if (weight == 0.0f) continue;
      token = id_of(candidates[i]);
      cumulative += static_cast<double>(weight);
      if (cumulative > target) break;
    }
    if (gives_kept) shared.kept_logprob = static_cast<double>(scaled(token)) - log_parts(kept_total).high;
  }
  return token;
}

}  // namespace
}  // namespace seer::cuda
