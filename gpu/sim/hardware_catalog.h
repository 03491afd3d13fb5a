// HardwareCatalog: the published numbers of GPUs and models that a step time is computed from, and the costs that no
// data sheet gives. They are read from JSON, each with its source: {"value": 80, "source": "..."}; the
// shipped deploy/sim/hardware.json is compiled in. Used by HardwareModel and by the reader of workloads. Plain data.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "protocols/result.h"

namespace seer {

/// One GPU and its links. GB are 1e9 bytes; rates are dense peaks, links in one direction.
struct GpuSpec {
  std::string name;
  double hbm_gb = 0, hbm_tb_per_s = 0;
  double bf16_tflops = 0;
  double fp8_tflops = 0;  // 0: none, fp8 weights are multiplied as bf16
  double nvlink_gb_per_s = 0;
  double nic_gb_per_s = 0;  // the GPU's share of its node's network
  int64_t gpus_per_node = 0;
};

/// The sizes of a model that its speed depends on. kv_lora_rank > 0: latent attention (MLA), else grouped queries.
struct ModelSpec {
  std::string name;
  int64_t layers = 0, hidden = 0, heads = 0, vocab = 0;
  int64_t kv_heads = 0, head_dim = 0;                                               // grouped queries
  int64_t kv_lora_rank = 0, q_lora_rank = 0, qk_nope = 0, qk_rope = 0, v_head = 0;  // MLA; q_lora_rank 0: none
  int64_t dense_inter = 0;                                                          // of layers without experts
  int64_t first_dense_layers = 0;  // with experts: leading layers without
  int64_t experts = 0, experts_per_token = 0, shared_experts = 0, moe_inter = 0;  // experts 0: none
  double extra_params = 0;  // in memory, but not used by a text step: a vision tower
  double weight_bytes = 0;  // per parameter outside embedding and head; 1: fp8
  double head_bytes = 0;    // per parameter of embedding and head
  double kv_bytes = 0;      // per element of the KV cache

  bool is_mla() const { return kv_lora_rank > 0; }
  int64_t moe_layers() const { return experts > 0 ? layers - first_dense_layers : 0; }
  /// Parameters of one layer's attention, of one expert, of the routed experts of all layers, of all other layers'
  /// weights, and of the head (the embedding has as many; they are counted as two matrices).
  double attention_params() const;
  double expert_params() const;
  double routed_params() const;
  double unrouted_params() const;
  double head_params() const;
  double total_params() const { return routed_params() + unrouted_params() + 2 * head_params() + extra_params; }
  /// Parameters that a token is multiplied with, embedding and head included.
  double active_params() const;
};

/// Which share of the peaks real steps reach, in (0, 1], and their fixed costs.
struct HardwareCosts {
  double weight_bandwidth_share = 0, kv_bandwidth_share = 0;
  double expert_bandwidth_share = 0;  // as weight_bandwidth_share, for the grouped matrices of routed experts
  double linear_flops_share = 0, attention_flops_share = 0;
  double nvlink_share = 0, nic_share = 0;
  double dispatch_bytes = 0, combine_bytes = 0;  // per element of a hidden state, to an expert and back
  double all_reduce_us = 0, all_to_all_us = 0;   // of each, whatever its size
  double step_us = 0, layer_us = 0, sequence_us = 0;
  double expert_imbalance = 1;  // expert-parallel: rows of the busiest GPU's experts / those if the router were even
  double verify_factor = 1, dense_verify_factor = 1;  // of a step that verifies drafts, with experts and without: hardware_model.h
};

/// All known GPUs and models, by name, and the costs.
struct HardwareCatalog {
  std::map<std::string, GpuSpec> gpus;
  std::map<std::string, ModelSpec> models;
  HardwareCosts costs;
};
/// deploy/sim/hardware.json as it was when this was built.
const HardwareCatalog& builtin_hardware();
/// `known` with the gpus, models and costs of a JSON text added or replaced; every section is optional, and so is each
/// cost. `name` is the text's name in errors.
/// Errors: kInvalidArgument (one sentence: name, field, value, what was expected).
Result<HardwareCatalog> parse_hardware(std::string_view json, const std::string& name, HardwareCatalog known);
/// The same from a file. Errors also: kNotFound, kIo.
Result<HardwareCatalog> read_hardware(const std::filesystem::path& path, HardwareCatalog known);

}  // namespace seer
