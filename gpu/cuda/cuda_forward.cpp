#include "gpu/cuda/cuda_forward.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "gpu/cpu/rope_table.h"
#include "protocols/check.h"

namespace seer::cuda {
namespace {

constexpr int32_t rounded_up(int32_t n, int32_t by) { return (n + by - 1) / by; }
constexpr float kLog2E = 1.44269504f;
// Of a graph, which has blocks for up to twice the splits of the longest context. One without work takes about 4 ns per KV head and layer (an
// estimate): with more of them a graph may cost more than it saves.
constexpr int32_t kGraphRowSplitsMax = kRowSplitsLeast;
constexpr double kBesideShare = 0.95;  // of free memory: CUDA, graphs and NCCL need the rest. A single set of weights may use more

ModelConfig share_of(const ModelConfig& model, Share share) {
  ModelConfig own = model;
  own.heads = share.size(model.heads);
  own.kv_heads = share.size(model.kv_heads);
  own.intermediate_size = share.size(model.intermediate_size);
  return own;
}

}  // namespace

int32_t kv_dim(const ModelConfig& model, bool f32) {
  if (f32) return model.head_dim <= 128 ? model.head_dim : 0;
  for (const int32_t dim : {32, 64, 128})
    if (model.head_dim <= dim) return dim;
  return 0;
}

int64_t kv_block_bytes(const ModelConfig& model, bool f32, int32_t block_tokens) {
  return int64_t{2} * model.layers * model.kv_heads * block_tokens * std::max(kv_dim(model, f32), model.head_dim) * (f32 ? 4 : 2);
}

int64_t gather_bytes_max(const ModelConfig& model, const ForwardConfig& config, int32_t ranks) {
  const int64_t sums = int64_t{config.sum_parts / ranks} * config.rows_max * padded(model.hidden_size, kGemmColumns);
  const int64_t logits = int64_t{kSamplesMax} * Share{.ranks = ranks}.head_rows(model.vocab_size);
  return std::max(sums, logits) * 4;
}

Result<std::unique_ptr<CudaForward>> CudaForward::make(const Model& model, const ForwardConfig& config, Communicator* peers, Device& device,
                                                       bool weights_beside) {
  DeviceMemory memory;
  const Share share = peers ? Share{.rank = peers->rank(), .ranks = peers->ranks()} : Share{};
  std::unique_ptr<CudaForward> forward(new CudaForward(model, config, share, peers, weights_beside, memory));
  SEER_RETURN_IF_ERROR(memory.reserve(device));
  memory.clear(device);
  SEER_RETURN_IF_ERROR(forward->begin(device, model));
  return forward;
}

bool CudaForward::fits_beside(const Model& model, const ForwardConfig& config, int32_t ranks, const Device& device) {
  return static_cast<double>(bytes_needed(model, config, ranks, true)) <= kBesideShare * static_cast<double>(device.properties().free_bytes);
}

int64_t CudaForward::bytes_needed(const Model& model, const ForwardConfig& config, int32_t ranks, bool weights_beside) {
  DeviceMemory memory;
  const CudaForward asks(model, config, {.ranks = ranks}, nullptr, weights_beside, memory);
  return memory.bytes();
}

CudaForward::CudaForward(const Model& model, const ForwardConfig& config, const Share& share, Communicator* peers, bool weights_beside,
                         DeviceMemory& memory)
    : share_(share),
      peers_(peers),
      model_(share_of(model.config, share_)),
      config_(config),
      dim_(kv_dim(model.config, config.f32)),
      block_bytes_(kv_block_bytes(model_, config.f32, config.block_tokens)) {
  for (size_t i = 0; i < (weights_beside ? 2 : 1); ++i) weights_[i] = std::make_unique<DeviceWeights>(model, config.f32, share_, memory);
  using enum DeviceMemory::Use;
  SEER_CHECK(dim_ > 0, model_.head_dim);
  const ModelConfig& c = model_;
  const int64_t rows = config.rows_max, samples = kSamplesMax, element_bytes = config.f32 ? 4 : 2;
  const int64_t row_splits = config.row_splits_max, parts = rounded_up(c.vocab_size, kPart);
  memory.want(kKv, kv_, block_bytes_ * config.blocks);
  memory.want(kWorkspace, slots_, config.slots);
  memory.want(kWorkspace, tables_, int64_t{config.slots} * config.table_stride);
  memory.want(kWorkspace, log_, int64_t{config.blocks} * config.block_tokens);
  memory.want(kWorkspace, plan_, plan_bytes(config.rows_max));
  memory.want(kWorkspace, changes_, kChangesBytes);
  memory.want(kWorkspace, rows_, rows);
  memory.want(kWorkspace, rope_, int64_t{config.table_stride} * config.block_tokens * c.head_dim);
  memory.want(kWorkspace, hidden_, rows * padded(c.hidden_size, kGemmSteps));
  memory.want(kWorkspace, qkv_, qkv_parts() * rows * padded(c.query_size() + 2 * c.kv_size(), kGemmColumns));
  memory.want(kWorkspace, projected_, config.sum_parts * rows * padded(c.hidden_size, kGemmColumns));
  if (config.f32) memory.want(kWorkspace, gate_up_, rows * padded(2 * c.intermediate_size, kGemmColumns));
  const int64_t head_rows = padded(share_.head_rows(c.vocab_size), kGemmColumns);
  memory.want(kWorkspace, logits_, samples * share_.ranks * head_rows);
  if (share_.ranks > 1) memory.want(kWorkspace, logit_parts_, samples * share_.ranks * head_rows);
  memory.want(kWorkspace, normed_, rows * padded(c.hidden_size, kGemmSteps) * element_bytes);
  memory.want(kWorkspace, query_, rows * c.heads * dim_ * element_bytes);
  memory.want(kWorkspace, attended_, rows * padded(c.query_size(), kGemmSteps) * element_bytes);
  memory.want(kWorkspace, activated_, rows * padded(c.intermediate_size, kGemmSteps) * element_bytes);
  if (config.tree_rows_max > 0) {
    memory.want(kWorkspace, paths_, int64_t{config.tree_rows_max} * c.kv_heads * 2 * kPathPositions * dim_ * element_bytes);
    memory.want(kWorkspace, accepted_, config.tree_rows_max);
  }
  memory.want(kWorkspace, partial_, row_splits * c.heads * (config.f32 ? kSplit : dim_));
  memory.want(kWorkspace, stats_, config.f32 ? 0 : row_splits * c.heads * 2);
  memory.want(kWorkspace, maxima_, samples * parts);
  memory.want(kWorkspace, sums_, samples * parts);
  memory.want(kWorkspace, logprob_sums_, samples * parts);
  memory.want(kWorkspace, candidates_, samples * c.vocab_size);
  memory.want(kWorkspace, bucket_, samples * c.vocab_size);
  memory.want(kWorkspace, penalized_, samples * rounded_up(c.vocab_size, 32));
  memory.want(kWorkspace, sampled_, rows);
  memory.want(kWorkspace, kept_counts_, rows);
  memory.want(kWorkspace, kept_, rows * kKeptStride);
}

Status CudaForward::begin(Device& device, const Model& model) {
  const int64_t positions = int64_t{config_.table_stride} * config_.block_tokens, half = model_.head_dim / 2;
  RopeTable table(model_);
  table.reserve(positions);
  std::vector<float> rope(static_cast<size_t>(positions * model_.head_dim));
  for (int64_t p = 0; p < positions; ++p) {
    std::copy_n(table.cosines(p), half, rope.data() + p * model_.head_dim);
    std::copy_n(table.sines(p), half, rope.data() + p * model_.head_dim + half);
  }
  device.copy_in(Stream::kSteps, rope_, rope.data(), std::ssize(rope) * 4);
  SEER_RETURN_IF_ERROR(device.wait(device.record(Stream::kSteps)));  // `rope` must live until then
  for (const auto& weights : weights_)
    if (weights) SEER_RETURN_IF_ERROR(weights->reserve_staging(device));
  return upload(device, Stream::kSteps, *weights_[0], model);
}

Status CudaForward::upload(Device& device, Stream stream, DeviceWeights& to, const Model& model) {
  return to.upload(device, stream, model, [&](EventId event) { return peers_ ? peers_->wait(event) : device.wait(event); });
}

Status CudaForward::stage_weights(Device& device, const Model& model) {
  return weights_[1] ? upload(device, Stream::kCopies, *weights_[1 - running_], model) : Status();
}

Status CudaForward::switch_weights(Device& device, const Model& model) {
  if (!weights_[1]) return upload(device, Stream::kSteps, *weights_[0], model);
  running_ = 1 - running_;
  return {};
}

// ---- what a pass needs to be told ------------------------------------------------------------------------------------

int64_t CudaForward::plan_bytes(int32_t rows_max) {
  return static_cast<int64_t>(sizeof(Plan)) +
         rows_max * static_cast<int64_t>(sizeof(PlanRow) + sizeof(PlanSample) + sizeof(PlanTile) + sizeof(PlanTree));
}

int64_t CudaForward::write_plan(const Pass& pass, std::byte* staged) {
  const Plan header{.rows = static_cast<int32_t>(pass.rows.size()),
                    .samples = static_cast<int32_t>(pass.samples.size()),
                    .tiles = static_cast<int32_t>(pass.tiles.size()),
                    .trees = static_cast<int32_t>(pass.trees.size()),
                    .split_rows = pass.split_rows};
  std::byte* to = staged;
  const auto put = [&to](const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    to += bytes;
  };
  put(&header, sizeof header);
  put(pass.rows.data(), pass.rows.size() * sizeof(PlanRow));
  put(pass.samples.data(), pass.samples.size() * sizeof(PlanSample));
  put(pass.trees.data(), pass.trees.size() * sizeof(PlanTree));
  put(pass.tiles.data(), pass.tiles.size() * sizeof(PlanTile));
  return to - staged;
}

void CudaForward::load_plan(Device& device, const std::byte* staged, int64_t bytes) const {
  device.copy_in(Stream::kSteps, plan_, staged, bytes);
}

void CudaForward::apply_changes(Device& device, const std::byte* staged, int64_t bytes, int32_t count) const {
  device.copy_in(Stream::kSteps, changes_, staged, bytes);
  device.launch(Stream::kSteps, KernelId::k_apply_changes, {rounded_up(count, 128)},
                ChangesArgs{.changes = reinterpret_cast<const Changes*>(changes_),
                            .slots = slots_,
                            .tables = tables_,
                            .log = log_,
                            .table_stride = config_.table_stride,
                            .block_tokens = config_.block_tokens});
}

// ---- a pass ----------------------------------------------------------------------------------------------------------

void CudaForward::run(Device& device, const Pass& pass) {
  const auto size = [](const auto& list) { return static_cast<int32_t>(list.size()); };
  Shape shape{size(pass.rows), size(pass.samples), size(pass.tiles), std::max(1, rounded_up(pass.split_positions, kSplit)), size(pass.trees),
              pass.split_rows > 0};
  const int32_t rows = std::min(config_.rows_max, static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(shape.rows))));
  const auto splits = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(shape.splits)));
  const bool decodes = shape.samples == shape.rows && shape.tiles == shape.rows && shape.trees == 0;
  if (!config_.graphs || !decodes || shape.rows * splits > std::min(config_.row_splits_max, kGraphRowSplitsMax)) return launch(device, shape);
  const Shape of_class{rows, rows, rows, splits, 0, true};
  auto [graph, is_new] = graphs_.try_emplace({rows, splits, static_cast<int32_t>(running_)});
  if (is_new) {
    device.begin_graph();
    launch(device, of_class);
    graph->second = device.end_graph();
    // Where a rank has no memory for it, no rank uses its own: a gather in a graph and one outside do not meet in NCCL.
    if (peers_ && !peers_->agree(graph->second.has_value())) graph->second.reset();
  }
  graph->second ? device.launch_graph(*graph->second) : launch(device, of_class);
}

void CudaForward::launch(Device& device, const Shape& shape) const {
  const auto* plan = reinterpret_cast<const Plan*>(plan_);
  const int32_t rows = shape.rows;
  device.launch(Stream::kSteps, KernelId::k_begin_rows, {rounded_up(rows, 128)},
                BeginArgs{.plan = plan, .slots = slots_, .tables = tables_, .log = log_, .rows = rows_,
                          .table_stride = config_.table_stride, .block_tokens = config_.block_tokens});
  const auto pieces = static_cast<int32_t>(std::clamp<int64_t>(block_bytes_ / (128 * 16 * 4), 1, 64));
  device.launch(Stream::kSteps, KernelId::k_clear_blocks, {pieces, rows},
                ClearArgs{.plan = plan, .rows = rows_, .kv = reinterpret_cast<unsigned char*>(kv_), .block_bytes = block_bytes_,
                          .block_tokens = config_.block_tokens});
  device.launch(Stream::kSteps, config_.f32 ? KernelId::k_embed_f32 : KernelId::k_embed_bf16,
                {rounded_up(model_.hidden_size, 128 * 4), rows},
                EmbedArgs{.plan = plan, .rows = rows_, .table = weights().embedding(), .hidden = hidden_,
                          .columns = model_.hidden_size, .table_stride = weights().embedding_stride(),
                          .hidden_stride = padded(model_.hidden_size, kGemmSteps)});
  for (int32_t i = 0; i < model_.layers; ++i) layer(device, i, shape);
  if (shape.samples > 0) sample(device, shape.samples, shape.rows);
  if (shape.trees > 0) keep_accepted(device, shape.trees);
}

void CudaForward::keep_accepted(Device& device, int32_t trees) const {
  const auto* plan = reinterpret_cast<const Plan*>(plan_);
  device.launch(Stream::kSteps, KernelId::k_accept_trees, {trees},
                AcceptArgs{.plan = plan, .rows = rows_, .sampled = sampled_, .tables = tables_, .log = log_, .accepted = accepted_,
                           .table_stride = config_.table_stride, .block_tokens = config_.block_tokens});
  device.launch(Stream::kSteps, KernelId::k_move_accepted, {model_.layers * model_.kv_heads, trees},
                MoveArgs{.plan = plan, .accepted = accepted_, .tables = tables_, .kv = reinterpret_cast<unsigned char*>(kv_),
                         .kv_block_bytes = block_bytes_, .table_stride = config_.table_stride, .block_tokens = config_.block_tokens,
                         .head_bytes = head_bytes()});
}

/// `added`: null, or parts with `added_rows` rows each.
void CudaForward::norm(Device& device, int32_t rows, const float* weight, const float* added, int32_t added_rows,
                       const float* bias, int32_t first_sample) const {
  const int32_t added_stride = padded(model_.hidden_size, kGemmColumns);
  device.launch(Stream::kSteps, config_.f32 ? KernelId::k_norm_f32 : KernelId::k_norm_bf16, {rows},
                NormArgs{.plan = reinterpret_cast<const Plan*>(plan_),
                         .hidden = hidden_,
                         .added = added,
                         .bias = bias,
                         .weight = weight,
                         .out = normed_,
                         .part_stride = int64_t{added_rows} * added_stride,
                         .parts = config_.sum_parts,
                         .size = model_.hidden_size,
                         .hidden_stride = padded(model_.hidden_size, kGemmSteps),
                         .added_stride = added_stride,
                         .out_stride = padded(model_.hidden_size, kGemmSteps),
                         .eps = model_.rms_norm_eps,
                         .samples = first_sample >= 0,
                         .first_sample = std::max(0, first_sample)});
}

namespace {

/// A multiprocessor does one tile after the other, or a few at a time, each in about the time that its rows of both matrices take from
/// the L2 cache: the fastest kernel is the one with the least of that.
const GemmKernel& gemm_for(int32_t rows, int32_t n, int32_t parts, const DeviceProperties& device) {
  const auto cost = [&](const GemmKernel& g) {
    const KernelInfo& info = info_of(g.id);
    const bool is_for_gpu = g.gpu == GemmKernel::kAnyGpu || (g.gpu == GemmKernel::kGroupMma) == device.group_mma;
    if (!is_for_gpu || rows < g.rows_min || rows > g.rows_max || info.shared_bytes > device.shared_bytes_max)
      return std::numeric_limits<int64_t>::max();
    const int32_t tiles = rounded_up(rows, g.tile_rows) * rounded_up(n, g.tile_columns) * parts;
    return int64_t{rounded_up(tiles, device.multiprocessors * info.blocks_min)} * info.blocks_min *
           (std::min(rows, g.tile_rows) + g.tile_columns);
  };
  return *std::ranges::min_element(kGemmKernels, {}, cost);
}

}  // namespace

GemmArgs CudaForward::gemm_args(int32_t rows, const void* in, const DeviceMatrix& w, int32_t parts) const {
  return {.plan = reinterpret_cast<const Plan*>(plan_), .a = in, .w = w.data, .part_stride = int64_t{rows} * w.rows_padded(),
          .n = w.rows_padded(), .k = w.columns_padded() / parts, .stride = w.columns_padded()};
}
void CudaForward::launch_gemm(Device& device, int32_t rows, int32_t parts, const GemmArgs& args) const {
  if (config_.f32) {
    device.launch(Stream::kSteps, KernelId::k_gemm_f32, {rounded_up(rows, kF32Rows), args.n / kGemmColumns, parts}, args);
    return;
  }
  const GemmKernel& gemm = gemm_for(rows, args.n, parts, device.properties());
  device.launch(Stream::kSteps, gemm.id, {rounded_up(rows, gemm.tile_rows), rounded_up(args.n, gemm.tile_columns), parts}, args);
}

/// With parts: part i of `out`, of `rows` rows, gets the products of the i-th of equal ranges of columns.
void CudaForward::multiply(Device& device, int32_t rows, const void* in, const DeviceMatrix& w, float* out, int32_t first_sample,
                           int32_t parts) const {
  GemmArgs args = gemm_args(rows, in, w, parts);
  args.c = out;
  args.samples = first_sample >= 0;
  args.first_sample = std::max(0, first_sample);
  launch_gemm(device, rows, parts, args);
}

/// normed_ -> activated_
void CudaForward::gate_and_up(Device& device, int32_t rows, const DeviceLayer& w) const {
  GemmArgs args = gemm_args(rows, normed_, w.gate_up, 1);
  const int32_t stride = padded(model_.intermediate_size, kGemmSteps);
  if (config_.f32) {
    args.c = gate_up_;
    launch_gemm(device, rows, 1, args);
    device.launch(Stream::kSteps, KernelId::k_swiglu_f32, {rows},
                  SwigluArgs{.plan = args.plan, .gate_up = gate_up_, .bias = w.gate_up_bias, .out = activated_,
                             .size = model_.intermediate_size, .stride = args.n, .out_stride = stride});
    return;
  }
  args.activated = activated_;
  args.bias = w.gate_up_bias;
  args.activated_stride = stride;
  args.inner = model_.intermediate_size;
  launch_gemm(device, rows, 1, args);
}

/// Into all parts of projected_.
void CudaForward::multiply_and_gather(Device& device, int32_t rows, const void* in, const DeviceMatrix& w) const {
  const int32_t parts = config_.sum_parts / share_.ranks;  // of this rank
  const int64_t own = int64_t{parts} * rows * w.rows_padded();
  multiply(device, rows, in, w, projected_ + share_.rank * own, -1, parts);
  if (peers_) peers_->all_gather(reinterpret_cast<std::byte*>(projected_), own * 4);
}

void CudaForward::layer(Device& device, int32_t index, const Shape& shape) const {
  const int32_t rows = shape.rows;
  const DeviceLayer& w = weights().layers()[static_cast<size_t>(index)];
  const DeviceLayer* before = index > 0 ? &weights().layers()[static_cast<size_t>(index - 1)] : nullptr;
  const auto* plan = reinterpret_cast<const Plan*>(plan_);
  const int64_t block_elements = block_bytes_ / (config_.f32 ? 4 : 2), layer_elements = block_elements / model_.layers * index;

  norm(device, rows, w.input_norm, before ? projected_ : nullptr, rows, before ? before->down_bias : nullptr);
  multiply(device, rows, normed_, w.qkv, qkv_, -1, qkv_parts());
  device.launch(Stream::kSteps, config_.f32 ? KernelId::k_rope_f32 : KernelId::k_rope_bf16,
                {rounded_up(model_.heads + model_.kv_heads, 4), rows},
                RopeArgs{.plan = plan, .rows = rows_, .qkv = qkv_, .part_stride = int64_t{rows} * w.qkv.rows_padded(), .bias = w.qkv_bias,
                         .q_norm = w.q_norm, .k_norm = w.k_norm,
                         .rope = rope_, .query = query_, .kv = kv_, .kv_block_elements = block_elements,
                         .kv_layer_elements = layer_elements, .parts = qkv_parts(), .qkv_stride = w.qkv.rows_padded(), .heads = model_.heads,
                         .kv_heads = model_.kv_heads, .head_dim = model_.head_dim, .padded_dim = dim_,
                         .block_tokens = config_.block_tokens, .eps = model_.rms_norm_eps});
  if (shape.trees > 0)
    device.launch(Stream::kSteps, KernelId::k_copy_paths, {model_.kv_heads, rows},
                  PathArgs{.plan = plan, .rows = rows_, .tables = tables_, .kv = reinterpret_cast<const unsigned char*>(kv_),
                           .paths = reinterpret_cast<unsigned char*>(paths_), .kv_block_bytes = block_bytes_,
                           .kv_layer_bytes = block_bytes_ / model_.layers * index, .table_stride = config_.table_stride,
                           .block_tokens = config_.block_tokens, .kv_heads = model_.kv_heads, .head_bytes = head_bytes()});
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(model_.head_dim));
  const AttentionArgs attention{.plan = plan, .rows = rows_, .tables = tables_, .query = query_, .kv = kv_, .paths = paths_, .out = attended_,
                                .partial = partial_, .stats = stats_,
                                .kv_block_elements = block_elements, .kv_layer_elements = layer_elements,
                                .table_stride = config_.table_stride, .block_tokens = config_.block_tokens,
                                .heads = model_.heads, .kv_heads = model_.kv_heads, .head_dim = model_.head_dim,
                                .padded_dim = dim_, .splits = shape.splits, .out_stride = padded(model_.query_size(), kGemmSteps),
                                .scale = config_.f32 ? scale : scale * kLog2E};
  if (config_.f32) {
    device.launch(Stream::kSteps, KernelId::k_attention_f32, {model_.heads, rows}, attention);
  } else {
    const KernelId kernel = dim_ == 32 ? KernelId::k_attention_32 : dim_ == 64 ? KernelId::k_attention_64 : KernelId::k_attention_128;
    device.launch(Stream::kSteps, kernel, {shape.splits, model_.kv_heads, shape.tiles}, attention);
    if (shape.has_split_tiles)
      device.launch(Stream::kSteps, KernelId::k_attention_combine, {rounded_up(model_.heads * dim_, 2 * kAttentionThreads), rows}, attention);
  }
  multiply_and_gather(device, rows, attended_, w.output);
  norm(device, rows, w.post_norm, projected_, rows, w.output_bias);
  gate_and_up(device, rows, w);
  multiply_and_gather(device, rows, activated_, w.down);
}

/// `pass_rows`: of projected_.
void CudaForward::sample(Device& device, int32_t samples, int32_t pass_rows) const {
  const auto* plan = reinterpret_cast<const Plan*>(plan_);
  const DeviceLayer& last = weights().layers().back();
  const int32_t part = weights().head().rows_padded(), stride = share_.ranks * part;
  for (int32_t first = 0; first < samples; first += kSamplesMax) {
    const int32_t rows = std::min(kSamplesMax, samples - first);
    norm(device, rows, weights().final_norm(), projected_, pass_rows, last.down_bias, first);
    if (peers_) {
      multiply(device, rows, normed_, weights().head(), logit_parts_ + int64_t{share_.rank} * rows * part, first);
      peers_->all_gather(reinterpret_cast<std::byte*>(logit_parts_), int64_t{rows} * part * 4);
      device.launch(Stream::kSteps, KernelId::k_join_logits, {rows, share_.ranks, rounded_up(part, kJoined)},
                    JoinArgs{.plan = plan, .parts = logit_parts_, .logits = logits_, .part = part, .stride = stride, .rows = rows,
                             .first_sample = first});
    } else {
      multiply(device, rows, normed_, weights().head(), logits_, first);
    }
    const SampleArgs args{.plan = plan, .rows = rows_, .slots = slots_, .tables = tables_, .log = log_, .logits = logits_,
                          .maxima = maxima_, .sums = sums_, .logprob_sums = logprob_sums_,
                          .candidates = candidates_, .bucket = bucket_, .penalized = penalized_, .sampled = sampled_,
                          .kept_counts = kept_counts_, .kept = kept_,
                          .vocab = model_.vocab_size, .vocab_stride = stride,
                          .parts = rounded_up(model_.vocab_size, kPart), .penalized_stride = rounded_up(model_.vocab_size, 32),
                          .table_stride = config_.table_stride, .block_tokens = config_.block_tokens, .first_sample = first};
    device.launch(Stream::kSteps, KernelId::k_weigh_logits, {rounded_up(args.parts, kWeighedParts), rows}, args);
    device.launch(Stream::kSteps, KernelId::k_sample_rows, {rows}, args);
  }
  device.launch(Stream::kSteps, KernelId::k_finish_rows, {rounded_up(samples, 128)},
                FinishArgs{.plan = plan, .sampled = sampled_, .slots = slots_});
}

}  // namespace seer::cuda
