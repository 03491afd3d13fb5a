// What the host and the kernels of the CUDA engine agree on: the plan of a step, the state of slots, the arguments of each
// kernel and the table of all kernels. Plain data, read by the host compiler and by nvcc.
//
// A kernel takes one struct. Pointers in it are device memory. Grids may be larger than the plan: a block with nothing to do
// ends at once, so that the same launches serve every step of a size class.
#pragma once
#include <cstddef>
#include <cstdint>

#include "protocols/kept_ids.h"

namespace seer::cuda {

struct alignas(8) SlotNext {
  int32_t start = 0;       // positions before its first row
  int32_t last_token = 0;  // a decode row feeds it
};
constexpr int kEndingIds = 16;
/// What a slot needs for its next step, in device memory.
struct SlotState {
  uint64_t seed = 0;
  SlotNext next;
  float temperature = 1, top_p = 1, min_p = 0, repetition_penalty = 1;
  int32_t top_k = 0;
  float logprob_temperature = 1;
  int32_t gives_kept = 0;  // 1: LogprobMode::kKept
  int32_t ends_from = 0;   // as in SequenceStep
  int32_t ending_ids[kEndingIds] = {};  // that are not sampled before that; negative: none
};

constexpr int kTreeRows = 65;             // of a draft tree, at most
constexpr int kPathPositions = 5 * 16;    // that a path may have, from its root's sixteen positions on

// ---- the changes before a step: a header and three arrays, one after the other ------------------------------------------
struct SlotChange {
  int32_t slot = 0, unused = 0;
  SlotState state;
};
struct TableChange {  // of a block table
  int32_t slot = 0, index = 0, block = 0;
};
struct LogChange {  // of the token log
  int32_t block = 0, offset = 0, token = 0;
};
struct Changes {
  int32_t slots = 0, tables = 0, logs = 0, unused = 0;
};

// ---- the plan of a pass: a header and arrays of rows, samples, trees and tiles (the larger first, for alignment). It stays on the
// device while the same slots go on ---------------------------------------------------------------------------------------------
struct PlanRow {
  int32_t slot = 0;
  int32_t offset = 0;   // its position is the slot's start + offset
  int32_t token = -1;   // or -1: the slot's last token
  int32_t place = 0;    // its KV is where the position start + place belongs. Without a tree: its offset
  int32_t parent = -1;  // in a tree: a row of the pass; -1: it is the root
  int32_t tree = -1;    // >= 0: it is this one of the pass's rows in trees
  int32_t split_row = -1;  // among the rows of split tiles; -1: its tile is whole
  int32_t unused = 0;
};
struct PlanSample {
  int32_t row = 0;
  int32_t target = -1;        // >= 0: score this token
  int32_t advances_slot = -1;  // >= 0: this slot goes on with the sampled token
  int32_t unused = 0;
};
struct PlanTile {  // rows of one slot that attend together
  int32_t first_row = 0, rows = 0;
  int32_t first_split_row = -1;  // a block for each split of the context, and this is split_row of its first row; -1: one block for all of it
  int32_t unused = 0;
};
struct PlanTree {  // a draft tree; its rows are sampled
  int32_t first_row = 0, rows = 0, first_sample = 0, unused = 0;
};
struct Plan {
  int32_t rows = 0, samples = 0, tiles = 0, trees = 0;
  int32_t split_rows = 0;
  int32_t unused[3] = {};
};

/// A row of the pass at hand, resolved on the device. Its KV is in `block`, where the position `place` belongs.
struct RowState {
  int32_t slot, position, token, block, place;
  int32_t root;  // in a tree: the position of its root; else none is as large
  int32_t parent, tree;
};
/// The accepted rows of a tree: its i-th has its KV where the position start + rows[i] belongs, and moves to start + i.
struct AcceptedPath {
  int32_t slot, start, count;
  int32_t rows[kTreeRows];
};

struct Sampled {
  int32_t token;
  float logprob;
};

// ---- arguments --------------------------------------------------------------------------------------------------------
struct ChangesArgs {
  const Changes* changes;
  SlotState* slots;
  int32_t* tables;  // [slot][table_stride]
  int32_t* log;     // [block][block_tokens]: the token at each position
  int32_t table_stride, block_tokens;
};
struct BeginArgs {
  const Plan* plan;
  const SlotState* slots;
  const int32_t* tables;
  int32_t* log;
  RowState* rows;
  int32_t table_stride, block_tokens;
};
struct ClearArgs {  // blocks whose first position is written
  const Plan* plan;
  const RowState* rows;
  unsigned char* kv;
  int64_t block_bytes;
  int32_t block_tokens;
};
struct EmbedArgs {
  const Plan* plan;
  const RowState* rows;
  const void* table;  // [vocab][table_stride]
  float* hidden;      // [row][hidden_stride]
  int32_t columns, table_stride, hidden_stride;  // strides: multiples of 4
};
/// x = hidden + (added + bias); out = x / sqrt(mean(x^2) + eps) * weight. Without `samples` hidden becomes x. What is added are the
/// sums of the parts of a matrix, added in their order. Strides are multiples of 4, and vectors have zeros from `size` on to such a one.
struct NormArgs {
  const Plan* plan;
  float* hidden;
  const float* added;  // [part][row][added_stride], or null
  const float* bias;   // or null
  const float* weight;
  void* out;
  int64_t part_stride;
  int32_t parts;
  int32_t size, hidden_stride, added_stride, out_stride;
  float eps;
  int32_t samples;       // 1: out has a row per sample of the plan, from first_sample on
  int32_t first_sample;
};
/// c = a * w^T, or with offsets into `a` and `w` the part of it that some columns give. The rows of `a` are those of the plan, or its
/// samples from first_sample on.
struct GemmArgs {
  const Plan* plan;
  const void* a;  // [row][stride]
  const void* w;  // bf16: [n][stride]; f32: [k][n]
  float* c;       // [part][row][n]
  int64_t part_stride;
  void* activated;       // or, for gate and up in bf16: silu(gate + bias) * (up + bias), [row][activated_stride]; c is not used
  const float* bias;     // of these, [2 * inner], or null
  int32_t activated_stride, inner;
  int32_t n, k, stride;  // k: of a part
  int32_t samples, first_sample;
};
struct RopeArgs {
  const Plan* plan;
  const RowState* rows;
  const float* qkv;       // [part][row][qkv_stride]: query heads, key heads, value heads; the sum of the parts in their order
  int64_t part_stride;
  const float* bias;      // or null
  const float* q_norm;    // [head_dim], or null
  const float* k_norm;
  const float* rope;      // [position][cosines, sines][head_dim / 2]
  void* query;            // [row][heads][padded_dim]
  void* kv;
  int64_t kv_block_elements, kv_layer_elements;  // of a block; from its start to this layer
  int32_t parts, qkv_stride, heads, kv_heads, head_dim, padded_dim, block_tokens;
  float eps;
};
/// KV of the path of each row in a tree, from its root's sixteen positions on, as it would be without the other rows.
struct PathArgs {
  const Plan* plan;
  const RowState* rows;
  const int32_t* tables;
  const unsigned char* kv;
  unsigned char* paths;  // [tree row][KV head][K, V][kPathPositions][padded_dim]
  int64_t kv_block_bytes, kv_layer_bytes;
  int32_t table_stride, block_tokens, kv_heads, head_bytes;  // of a position of a head
};
struct AcceptArgs {
  const Plan* plan;
  const RowState* rows;
  const Sampled* sampled;
  const int32_t* tables;
  int32_t* log;
  AcceptedPath* accepted;  // [tree]
  int32_t table_stride, block_tokens;
};
struct MoveArgs {
  const Plan* plan;
  const AcceptedPath* accepted;
  const int32_t* tables;
  unsigned char* kv;
  int64_t kv_block_bytes;
  int32_t table_stride, block_tokens, head_bytes;
};
struct AttentionArgs {
  const Plan* plan;
  const RowState* rows;
  const int32_t* tables;
  const void* query;
  const void* kv;
  const void* paths;      // of PathArgs
  void* out;              // [row][out_stride]
  float* partial;         // bf16: [split row][head][splits][padded_dim]; f32: [row][head][splits * kSplit]
  void* stats;            // bf16: [KV head][splits][split row][head of the group]: the largest score, in units of log2, and the sum
  int64_t kv_block_elements, kv_layer_elements;
  int32_t table_stride, block_tokens, heads, kv_heads, head_dim, padded_dim, splits, out_stride;
  float scale;            // head_dim^-1/2; bf16: times log2(e)
};
struct SwigluArgs {
  const Plan* plan;
  const float* gate_up;  // [row][stride]: gate, then up
  const float* bias;     // [2 * size], or null
  void* out;
  int32_t size, stride, out_stride;
};
/// Logits of each rank's part of the vocabulary -> rows of logits.
struct JoinArgs {
  const Plan* plan;
  const float* parts;  // [rank][rows][part]
  float* logits;       // [row][stride]
  int32_t part, stride, rows, first_sample;
};
/// Sets `found` if some of the numbers is NaN or infinite.
struct CheckArgs {
  const void* data;  // bf16, or f32
  uint32_t* found;
  int64_t count;
  int32_t f32;
};
struct SampleArgs {
  const Plan* plan;
  const RowState* rows;
  const SlotState* slots;
  const int32_t* tables;
  const int32_t* log;
  float* logits;               // [sample - first_sample][vocab_stride]
  float* maxima;               // [sample - first_sample][parts]: of the parts of a row, see sampling.cuh
  double *sums, *logprob_sums;  // likewise
  unsigned long long* candidates;   // [sample - first_sample][vocab]
  unsigned long long* bucket;       // likewise
  uint32_t* penalized;              // [sample - first_sample][penalized_stride]: a bit per token
  Sampled* sampled;                 // [sample]
  int32_t* kept_counts;             // [sample]: ids that the cuts left, at most kKeptStride; only of slots that give them
  int32_t* kept;                    // [sample][kKeptStride]: these ids, ascending
  int32_t vocab, vocab_stride, parts, penalized_stride, table_stride, block_tokens, first_sample;
};
struct FinishArgs {
  const Plan* plan;
  const Sampled* sampled;
  SlotState* slots;
};

// ---- sizes ------------------------------------------------------------------------------------------------------------
constexpr int kSplit = 256;          // positions of one attention split, at multiples of it
constexpr int kTilePositions = 64;   // of KV in shared memory
constexpr int kTileRows = 64;        // query rows (token, head of the group) that share a read of KV
constexpr int kNormThreads = 512, kNormF32Threads = 128, kAttentionThreads = 128, kSampleThreads = 256;
constexpr int kNormPieces = 4;       // of 4 elements, that a thread of norm_bf16 keeps in registers: rows of 8192
constexpr int kSplitsAtOnce = 8;     // whose sums attention_combine has on their way
constexpr int kPart = 1024;          // ids whose sum is taken by itself: kPartIds of row_softmax.h
constexpr int kPartsMax = 1024;      // of a row
constexpr int kPartThreads = 128;    // that weigh a part
constexpr int kWeighedParts = kSampleThreads / kPartThreads;  // of a block
constexpr int kWeighedStride = kPart + 16;  // of weights in shared memory: sixteen threads each read two parts, from all banks
constexpr int kKeptStride = static_cast<int>(kKeptIdsMax) + 1;  // with one more the response ends
constexpr int kSamplesMax = 128;      // rows whose logits are in memory at a time
constexpr int kGemmColumns = 64;     // n is padded to it, k to kGemmSteps
constexpr int kGemmSteps = 64;
constexpr int kF32Rows = 4;          // rows of a block of gemm_f32
constexpr int kJoined = 2048;        // logits that a block of join_logits copies

constexpr int gemm_shared_bytes(int tile_rows, int tile_columns, int stages) { return stages * (tile_rows + tile_columns) * kGemmSteps * 2; }
// Keys and values of two tiles, the query, and where the KV of two splits is.
constexpr int attention_shared_bytes(int dim) {
  return 4 * kTilePositions * dim * 2 + kTileRows * dim * 2 + 2 * kSplit / 16 * 16;
}
constexpr int kWeighSharedBytes = 2 * kWeighedParts * kWeighedStride * 4 + kSampleThreads / 32 * 4;
constexpr int kSampleSharedBytes = 3 * kPartsMax * 8 + kPartsMax * 4 + kPart * 4 + 256;

// ---- all kernels: name, arguments, threads of a block, bytes of shared memory, registers at most, blocks of a multiprocessor at least
#define SEER_CUDA_KERNELS(X)                                                                                  \
  X(apply_changes, ChangesArgs, 128, 0, 32, 16)                                                               \
  X(begin_rows, BeginArgs, 128, 0, 32, 16)                                                                    \
  X(clear_blocks, ClearArgs, 128, 0, 32, 16)                                                                  \
  X(embed_bf16, EmbedArgs, 128, 0, 16, 16)                                                                    \
  X(embed_f32, EmbedArgs, 128, 0, 16, 16)                                                                     \
  X(norm_bf16, NormArgs, kNormThreads, kNormThreads / 32 * 4, 120, 1)                                         \
  X(norm_f32, NormArgs, kNormF32Threads, 16 * 4, 32, 16)                                                      \
  X(gemm_bf16_16_32, GemmArgs, 64, gemm_shared_bytes(16, 32, 10), 120, 3)                                     \
  X(gemm_bf16_16_32_more, GemmArgs, 64, gemm_shared_bytes(16, 32, 8), 96, 4)                                  \
  X(gemm_bf16_64_64, GemmArgs, 128, gemm_shared_bytes(64, 64, 4), 128, 3)                                     \
  X(gemm_bf16_128_256, GemmArgs, 256, gemm_shared_bytes(128, 256, 3), 255, 1)                                 \
  X(gemm_groups_64_64, GemmArgs, 128, gemm_shared_bytes(64, 64, 12), 128, 1)                                  \
  X(gemm_groups_64_128, GemmArgs, 128, gemm_shared_bytes(64, 128, 8), 168, 1)                                 \
  X(gemm_groups_64_192, GemmArgs, 256, gemm_shared_bytes(64, 192, 7), 168, 1)                                 \
  X(gemm_groups_64_288, GemmArgs, 256, gemm_shared_bytes(64, 288, 5), 168, 1)                                 \
  X(gemm_groups_128_64, GemmArgs, 256, gemm_shared_bytes(128, 64, 8), 96, 1)                                  \
  X(gemm_groups_128_96, GemmArgs, 256, gemm_shared_bytes(128, 96, 8), 128, 1)                                 \
  X(gemm_groups_128_128, GemmArgs, 256, gemm_shared_bytes(128, 128, 6), 128, 1)                               \
  X(gemm_groups_128_256, GemmArgs, 512, gemm_shared_bytes(128, 256, 4), 128, 1)                               \
  X(gemm_groups_128_288, GemmArgs, 512, gemm_shared_bytes(128, 288, 4), 128, 1)                               \
  X(gemm_f32, GemmArgs, 64, 0, 64, 16)                                                                        \
  X(rope_bf16, RopeArgs, 128, 0, 72, 7)                                                                       \
  X(rope_f32, RopeArgs, 128, 0, 72, 7)                                                                        \
  X(attention_32, AttentionArgs, kAttentionThreads, attention_shared_bytes(32), 144, 3)                       \
  X(attention_64, AttentionArgs, kAttentionThreads, attention_shared_bytes(64), 200, 2)                       \
  X(attention_128, AttentionArgs, kAttentionThreads, attention_shared_bytes(128), 255, 2)                     \
  X(copy_paths, PathArgs, 128, kTreeRows * 4, 40, 12)                                                         \
  X(accept_trees, AcceptArgs, 32, 0, 40, 32)                                                                  \
  X(move_accepted, MoveArgs, 128, 0, 40, 12)                                                                  \
  X(attention_combine, AttentionArgs, kAttentionThreads, 0, 72, 7)                                            \
  X(attention_f32, AttentionArgs, kAttentionThreads, 1024, 72, 7)                                             \
  X(swiglu_f32, SwigluArgs, 128, 0, 40, 12)                                                                   \
  X(join_logits, JoinArgs, 128, 0, 32, 16)                                                                    \
  X(weigh_logits, SampleArgs, kSampleThreads, kWeighSharedBytes, 64, 4)                                       \
  X(sample_rows, SampleArgs, kSampleThreads, kSampleSharedBytes, 80, 3)                                       \
  X(check_finite, CheckArgs, 128, 0, 32, 16)                                                                  \
  X(finish_rows, FinishArgs, 128, 0, 32, 16)

enum class KernelId : int32_t {
#define X(name, ...) k_##name,
  SEER_CUDA_KERNELS(X)
#undef X
  kCount
};
struct KernelInfo {
  const char* name;
  size_t args_bytes;
  int threads, shared_bytes, registers_max, blocks_min;
};
inline constexpr KernelInfo kKernels[] = {
#define X(name, Args, threads, shared_bytes, registers, blocks) {#name, sizeof(Args), threads, shared_bytes, registers, blocks},
    SEER_CUDA_KERNELS(X)
#undef X
};
constexpr const KernelInfo& info_of(KernelId kernel) { return kKernels[static_cast<int32_t>(kernel)]; }

/// The GEMM kernels in bf16. All give the same bits.
struct GemmKernel {
  KernelId id;
  int32_t tile_rows, tile_columns;
  int32_t rows_min, rows_max;  // for which it was found to be fast
  enum Needs : uint8_t { kAnyGpu, kNoGroupMma, kGroupMma } gpu;
};
inline constexpr int32_t kAnyRows = 1 << 30;
inline constexpr GemmKernel kGemmKernels[] = {
    {KernelId::k_gemm_bf16_16_32, 16, 32, 1, 16, GemmKernel::kAnyGpu},
    {KernelId::k_gemm_bf16_16_32_more, 16, 32, 1, 16, GemmKernel::kAnyGpu},
    {KernelId::k_gemm_bf16_64_64, 64, 64, 17, kAnyRows, GemmKernel::kNoGroupMma},
    {KernelId::k_gemm_bf16_128_256, 128, 256, 129, kAnyRows, GemmKernel::kNoGroupMma},
    {KernelId::k_gemm_groups_64_64, 64, 64, 17, 64, GemmKernel::kGroupMma},
    {KernelId::k_gemm_groups_64_128, 64, 128, 17, 64, GemmKernel::kGroupMma},
    {KernelId::k_gemm_groups_64_192, 64, 192, 17, 64, GemmKernel::kGroupMma},
    {KernelId::k_gemm_groups_64_288, 64, 288, 17, 64, GemmKernel::kGroupMma},
    {KernelId::k_gemm_groups_128_64, 128, 64, 65, 128, GemmKernel::kGroupMma},
    {KernelId::k_gemm_groups_128_96, 128, 96, 65, 128, GemmKernel::kGroupMma},
    {KernelId::k_gemm_groups_128_128, 128, 128, 65, kAnyRows, GemmKernel::kGroupMma},
    {KernelId::k_gemm_groups_128_256, 128, 256, 129, kAnyRows, GemmKernel::kGroupMma},
    {KernelId::k_gemm_groups_128_288, 128, 288, 65, 128, GemmKernel::kGroupMma}};

/// Kernels that begin with what the kernel before does not touch, wait for it themselves, and say when the next may begin.
constexpr bool waits_itself(KernelId kernel) {
  for (const GemmKernel& gemm : kGemmKernels)
    if (gemm.id == kernel) return true;
  return false;
}

}  // namespace seer::cuda
