#include "gpu/sim/hardware_model.h"

#include <algorithm>
#include <cmath>

#include "gpu/cpu/exact_math.h"
#include "protocols/check.h"

namespace seer {
namespace {

/// Amounts on one rank; with sequences dealt evenly they need not be whole.
struct Load {
  double sequences, rows, sampled_rows, kv_tokens, attended;
};

Load load_of(const StepShape& s) {
  return {static_cast<double>(s.sequences), static_cast<double>(s.rows), static_cast<double>(s.sampled_rows),
          static_cast<double>(s.kv_tokens), static_cast<double>(s.attended)};
}

double hbm_bytes_per_s(const HardwareSetup& s) { return s.gpu.hbm_tb_per_s * 1e12; }

/// FLOP/s that matrices of weights with this many bytes per parameter reach.
double linear_flops(const HardwareSetup& s, double bytes_per_param) {
  const double tflops = bytes_per_param <= 1 && s.gpu.fp8_tflops > 0 ? s.gpu.fp8_tflops : s.gpu.bf16_tflops;
  return tflops * 1e12 * s.costs.linear_flops_share;
}

/// Matrices with `params_read` parameters, of which each of `rows` rows is multiplied with `params_per_row`. They are read at
/// this share of the peak.
double matrix_s(const HardwareSetup& s, double params_read, double bytes_per_param, double rows,
                double params_per_row, double bandwidth_share) {
  const double read_s = params_read * bytes_per_param / (hbm_bytes_per_s(s) * bandwidth_share);
  return std::max(read_s, 2 * rows * params_per_row / linear_flops(s, bytes_per_param));
}

/// The rows that choose experts: all but those of drafts, whose experts are a part of verify_factor.
double choosing_rows(const Load& load) { return load.rows - std::max(0.0, load.sampled_rows - load.sequences); }

/// The routed experts of all MoE layers, on the busiest GPU.
double experts_s(const HardwareSetup& s, const Load& rank, const Load& instance) {
  const ModelSpec& m = s.model;
  if (m.moe_layers() == 0) return 0;
  const double layer_params = static_cast<double>(m.moe_layers()) * m.expert_params();
  const auto k = static_cast<double>(m.experts_per_token);
  if (s.ep == 1) {  // the rank's own rows on its own copy of all experts, cut in tp pieces
    const double piece = layer_params / static_cast<double>(s.tp);
    return matrix_s(s, expected_experts(choosing_rows(rank), m.experts_per_token, m.experts) * piece, m.weight_bytes, rank.rows,
                    k * piece, s.costs.expert_bandwidth_share);
  }
  // The rows of the whole instance on the experts that this GPU holds. Each row goes to k GPUs at most.
  const auto gpus = static_cast<double>(s.ep);
  const double touched = expected_experts(choosing_rows(instance), m.experts_per_token, m.experts) / gpus;
  const double read = busiest_of(touched, static_cast<double>(m.experts) / gpus, s.ep);
  const double even = busiest_of(instance.rows * k / gpus, instance.rows * k, s.ep);
  const double rows = std::min(instance.rows * k, even * s.costs.expert_imbalance);
  return matrix_s(s, read * layer_params, m.weight_bytes, rows, layer_params, s.costs.expert_bandwidth_share);
}

double matrices_s(const HardwareSetup& s, const Load& rank, const Load& instance) {
  const ModelSpec& m = s.model;
  const auto tp = static_cast<double>(s.tp);
  const double unrouted = m.unrouted_params() / tp;
  const double head = rank.sampled_rows > 0 ? m.head_params() / tp : 0;
  const double share = s.costs.weight_bandwidth_share;
  return matrix_s(s, unrouted, m.weight_bytes, rank.rows, unrouted, share) + experts_s(s, rank, instance) +
         matrix_s(s, head, m.head_bytes, rank.sampled_rows, head, share);
}

/// Bytes of K and V of one token on each GPU of its rank. Latents are not cut by tp; of grouped queries each GPU holds
/// at least one KV head.
double kv_bytes_per_gpu_token(const HardwareSetup& s) {
  const ModelSpec& m = s.model;
  const int64_t elements = m.is_mla() ? m.kv_lora_rank + m.qk_rope : 2 * ((m.kv_heads + s.tp - 1) / s.tp) * m.head_dim;
  return static_cast<double>(m.layers * elements) * m.kv_bytes;
}

/// FLOPs of attention. Per pair of a row and a position, query x key and probability x value. MLA has two ways: in the
/// space of the latents (decode), or with keys and values made from them first (prefill). The cheaper one is taken for the
/// whole step; a step that mixes both could be cheaper still.
double attention_flops(const HardwareSetup& s, const Load& rank) {
  const ModelSpec& m = s.model;
  const double heads_x_layers = static_cast<double>(m.heads * m.layers) / static_cast<double>(s.tp);
  if (!m.is_mla()) return 2 * rank.attended * heads_x_layers * static_cast<double>(2 * m.head_dim);
  const double latent = rank.attended * static_cast<double>(2 * m.kv_lora_rank + m.qk_rope);
  const double expanded = rank.attended * static_cast<double>(m.qk_nope + m.qk_rope + m.v_head) +
                          rank.kv_tokens * static_cast<double>(m.kv_lora_rank * (m.qk_nope + m.v_head));
  return 2 * heads_x_layers * std::min(latent, expanded);
}

double attention_s(const HardwareSetup& s, const Load& rank) {
  const double read_s = rank.kv_tokens * kv_bytes_per_gpu_token(s) / (hbm_bytes_per_s(s) * s.costs.kv_bandwidth_share);
  return std::max(read_s, attention_flops(s, rank) / (s.gpu.bf16_tflops * 1e12 * s.costs.attention_flops_share));
}

/// All-reduces of hidden states and the gathering of logits within a rank (ring: each GPU sends (tp - 1) / tp of the
/// bytes, twice for a reduction), in bf16; all-to-alls between all GPUs.
double links_s(const HardwareSetup& s, const Load& rank) {
  const ModelSpec& m = s.model;
  const double nvlink = s.gpu.nvlink_gb_per_s * 1e9 * s.costs.nvlink_share;
  const auto tp = static_cast<double>(s.tp);
  double total = 0;
  if (s.tp > 1) {
    const double sent_share = (tp - 1) / tp;
    const double reduced_bytes = 2 * rank.rows * static_cast<double>(m.hidden) * 2 * sent_share;
    total += 2 * static_cast<double>(m.layers) * (s.costs.all_reduce_us * 1e-6 + reduced_bytes / nvlink);
    total += rank.sampled_rows * static_cast<double>(m.vocab) * 2 * sent_share / nvlink;
  }
  if (s.ep > 1)
    total += static_cast<double>(m.moe_layers()) * (all_to_all_s(s, rank.rows / tp, s.costs.dispatch_bytes) +
                                                    all_to_all_s(s, rank.rows / tp, s.costs.combine_bytes));
  return total;
}

/// What a step takes whatever its KV.
RowsTime rows_time(const HardwareSetup& s, const Load& rank, const StepShape& instance) {
  const double host_us =
      s.costs.step_us + static_cast<double>(s.model.layers) * s.costs.layer_us + rank.sequences * s.costs.sequence_us;
  const bool verifies = instance.sampled_rows > instance.sequences;
  const double verify_factor = s.model.experts > 0 ? s.costs.verify_factor : s.costs.dense_verify_factor;
  return {.matrices_s = matrices_s(s, rank, load_of(instance)),
          .links_s = links_s(s, rank),
          .host_s = host_us * 1e-6,
          .factor = s.time_scale * (verifies ? verify_factor : 1)};
}

int64_t total_ns(const HardwareSetup& s, const RowsTime& rows, const Load& rank) {
  const double seconds = rows.matrices_s + attention_s(s, rank) + rows.links_s + rows.host_s;
  return std::max<int64_t>(1, static_cast<int64_t>(std::floor(seconds * rows.factor * 1e9 + 0.5)));
}

/// What the busiest rank has of a step whose sequences are alike.
Load busiest_rank(const HardwareSetup& s, const StepShape& shape) {
  const int64_t sequences = (shape.sequences + s.dp - 1) / s.dp;
  const double share = std::min(1.0, s.rank_skew * static_cast<double>(sequences) / static_cast<double>(shape.sequences));
  const Load all = load_of(shape);
  return {all.sequences * share, all.rows * share, all.sampled_rows * share, all.kv_tokens * share, all.attended * share};
}

void check_shape(const StepShape& shape) {
  SEER_CHECK(shape.sequences >= 1, shape.sequences);
  SEER_CHECK(shape.rows >= shape.sequences, shape.rows, shape.sequences);
}

Status check_layout(const HardwareSetup& s) {
  const auto wrong = [&](const char* field, int64_t value, const auto&... expected) {
    return fail(Code::kInvalidArgument, field, " is ", value, ": expected ", expected...);
  };
  if (s.tp < 1 || s.gpu.gpus_per_node % s.tp != 0 || s.model.heads % s.tp != 0)
    return wrong("tp", s.tp, "a divisor of the ", s.gpu.gpus_per_node, " GPUs of a node and of the ", s.model.heads,
                 " heads of ", s.model.name);
  if (s.dp < 1) return wrong("dp", s.dp, "at least 1");
  if (s.tp * s.dp != s.gpus_per_instance)
    return wrong("gpus-per-instance", s.gpus_per_instance, "tp x dp = ", s.tp, " x ", s.dp);
  if (s.ep != 1 && s.ep != s.gpus_per_instance)
    return wrong("ep", s.ep, "1 or gpus-per-instance, ", s.gpus_per_instance);
  if (s.ep > 1 && (s.model.experts == 0 || s.model.experts % s.ep != 0))
    return wrong("ep", s.ep, "1 or a divisor of the ", s.model.experts, " experts of ", s.model.name);
  return {};
}

}  // namespace

Result<HardwareModel> HardwareModel::create(HardwareSetup setup) {
  SEER_RETURN_IF_ERROR(check_layout(setup));
  if (!(setup.kv_reserve_share >= 0 && setup.kv_reserve_share < 1))
    return fail(Code::kInvalidArgument, "kv-reserve-share is ", setup.kv_reserve_share,
                ": expected a number from 0 to below 1");
  if (!(setup.rank_skew >= 1 && setup.rank_skew <= static_cast<double>(setup.dp)))
    return fail(Code::kInvalidArgument, "rank-skew is ", setup.rank_skew, ": expected a number from 1 to dp, ", setup.dp);
  if (!(setup.time_scale > 0 && setup.time_scale <= 1e6))
    return fail(Code::kInvalidArgument, "time-scale is ", setup.time_scale, ": expected a number above 0, at most 1e6");
  HardwareModel model(std::move(setup));
  const HardwareSetup& s = model.setup_;
  const double free_bytes = s.gpu.hbm_gb * 1e9 * (1 - s.kv_reserve_share) - model.weight_bytes_per_gpu();
  const double rank_tokens = std::floor(free_bytes / kv_bytes_per_gpu_token(s));
  if (rank_tokens < 1)
    return fail(Code::kInvalidArgument, "the weights of ", s.model.name,
                " do not fit: ", model.weight_bytes_per_gpu() / 1e9, " GB on each ", s.gpu.name, " (tp ", s.tp, ", dp ",
                s.dp, ", ep ", s.ep, "), which has ", s.gpu.hbm_gb, " GB less a reserve of ",
                s.gpu.hbm_gb * s.kv_reserve_share);
  model.kv_capacity_tokens_ = static_cast<int64_t>(static_cast<double>(s.dp) * rank_tokens / s.rank_skew);
  HardwareSetup whole = s;
  whole.tp = 1;
  model.kv_bytes_per_token_ = static_cast<int64_t>(kv_bytes_per_gpu_token(whole));
  return model;
}

double HardwareModel::weight_bytes_per_gpu() const {
  const ModelSpec& m = setup_.model;
  const auto tp = static_cast<double>(setup_.tp);
  const double expert_gpus = setup_.ep > 1 ? static_cast<double>(setup_.ep) : tp;
  return (m.unrouted_params() + m.extra_params) * m.weight_bytes / tp + 2 * m.head_params() * m.head_bytes / tp +
         m.routed_params() * m.weight_bytes / expert_gpus;
}

int64_t HardwareModel::step_ns(const StepShape& shape) const {
  check_shape(shape);
  const Load rank = busiest_rank(setup_, shape);
  return total_ns(setup_, rows_time(setup_, rank, shape), rank);
}

int64_t HardwareModel::step_ns(const StepShape& rank, const StepShape& instance) const {
  check_shape(rank);
  check_shape(instance);
  const Load load = load_of(rank);
  return total_ns(setup_, rows_time(setup_, load, instance), load);
}

int64_t HardwareStepTimes::operator()(const StepShape& shape) {
  check_shape(shape);
  const HardwareSetup& setup = model_.setup();
  const Load rank = busiest_rank(setup, shape);
  if (shape.sequences != last_.sequences || shape.rows != last_.rows || shape.sampled_rows != last_.sampled_rows) {
    last_ = shape;
    rows_ = rows_time(setup, rank, shape);
  }
  return total_ns(setup, rows_, rank);
}

double expected_experts(double tokens, int64_t experts_per_token, int64_t experts) {
  const auto e = static_cast<double>(experts);
  const double missed_by_one = 1 - static_cast<double>(experts_per_token) / e;
  return missed_by_one > 0 ? e * (1 - exact_exp(tokens * exact_log(missed_by_one))) : tokens > 0 ? e : 0;
}

double busiest_of(double mean, double most, int64_t ranks) {
  const double deviation = std::sqrt(mean * (1 - mean / most));
  return std::min(most, mean + deviation * std::sqrt(2 * exact_log(static_cast<double>(ranks))));
}

double all_to_all_s(const HardwareSetup& s, double rows, double bytes_per_element) {
  const auto gpus = static_cast<double>(s.ep), local = static_cast<double>(std::min(s.ep, s.gpu.gpus_per_node));
  const double bytes =
      rows * static_cast<double>(s.model.experts_per_token) * static_cast<double>(s.model.hidden) * bytes_per_element;
  const double nic_s = bytes * (gpus - local) / gpus / (s.gpu.nic_gb_per_s * 1e9 * s.costs.nic_share);
  const double nvlink_s = bytes * (local - 1) / gpus / (s.gpu.nvlink_gb_per_s * 1e9 * s.costs.nvlink_share);
  return s.costs.all_to_all_us * 1e-6 + std::max(nic_s, nvlink_s);
}

}  // namespace seer
