#include "gpu/sim/hardware_catalog.h"

#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <variant>

#include "gpu/model/model_config.h"
#include "protocols/check.h"

namespace seer {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kHardwareJson =
#include "embedded/hardware.json.inc"
    ;
constexpr int64_t kHardwareBytesMax = int64_t{16} << 20;

/// One constant of a section: its field and which values are right.
struct Constant {
  const char* name;
  std::variant<double*, int64_t*> field;
  double low = 0, high = 0;
  bool required = true;
};

bool is_whole(const Constant& constant) { return std::holds_alternative<int64_t*>(constant.field); }

std::string expectation(const Constant& constant) {
  return cat(is_whole(constant) ? "a whole number" : "a number", " from ", constant.low, " to ", constant.high);
}

std::string shown(const Json& value) {
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

Error wrong(const std::string& place, const Json& found, const std::string& expected) {
  return fail(Code::kInvalidArgument, place, " is ", shown(found), ": expected ", expected);
}

/// `json` is {"value": ..., "source": "...", "note"?: "..."}; the place names file and field.
Status take_constant(const Constant& constant, const Json& json, const std::string& place) {
  const auto source = json.is_object() ? json.find("source") : json.end();
  if (!json.is_object() || !json.contains("value")) return wrong(place, json, "{\"value\": ..., \"source\": \"...\"}");
  if (source == json.end() || !source->is_string() || source->get<std::string>().empty())
    return fail(Code::kInvalidArgument, place, " has no source: expected where its value is from, or \"assumption\"");
  const Json& value = json["value"];
  const bool typed = is_whole(constant) ? value.is_number_integer() : value.is_number();
  if (!typed || value.get<double>() < constant.low || value.get<double>() > constant.high)
    return wrong(cat(place, ".value"), value, expectation(constant));
  std::visit([&](auto* field) { *field = value.get<std::decay_t<decltype(*field)>>(); }, constant.field);
  return {};
}

/// All constants of one table. An unknown name is an error: it is likely a typing mistake.
Status take_constants(std::span<const Constant> constants, const Json& json, const std::string& place) {
  if (!json.is_object()) return wrong(place, json, "a table of constants");
  for (const auto& [key, value] : json.items()) {
    const Constant* constant = nullptr;
    for (const Constant& c : constants)
      if (key == c.name) constant = &c;
    if (!constant) {
      std::string names;
      for (const Constant& c : constants) names += cat(names.empty() ? "" : ", ", c.name);
      return fail(Code::kInvalidArgument, place, ".", key, " is not a known field: expected one of ", names);
    }
    SEER_RETURN_IF_ERROR(take_constant(*constant, value, cat(place, ".", key)));
  }
  for (const Constant& c : constants)
    if (c.required && !json.contains(c.name))
      return fail(Code::kInvalidArgument, place, ".", c.name, " is missing: expected ", expectation(c));
  return {};
}

Result<GpuSpec> parse_gpu(const std::string& name, const Json& json, const std::string& place) {
  GpuSpec gpu;
  gpu.name = name;
  const std::array constants{
      Constant{"hbm_gb", &gpu.hbm_gb, 1, 1e5},
      Constant{"hbm_tb_per_s", &gpu.hbm_tb_per_s, 1e-3, 1e3},
      Constant{"bf16_tflops", &gpu.bf16_tflops, 1e-2, 1e6},
      Constant{"fp8_tflops", &gpu.fp8_tflops, 0, 1e6},
      Constant{"nvlink_gb_per_s", &gpu.nvlink_gb_per_s, 1e-2, 1e5},
      Constant{"nic_gb_per_s", &gpu.nic_gb_per_s, 1e-2, 1e5},
      Constant{"gpus_per_node", &gpu.gpus_per_node, 1, 1024},
  };
  SEER_RETURN_IF_ERROR(take_constants(constants, json, place));
  return gpu;
}

/// Checks that the numbers of a model fit each other.
Status check_model(const ModelSpec& m, const std::string& place) {
  const auto missing = [&](const char* field, const char* why) {
    return fail(Code::kInvalidArgument, place, ".", field, " is missing: expected a number above 0, as ", why);
  };
  if (m.is_mla()) {
    if (m.qk_nope == 0) return missing("qk_nope", "kv_lora_rank is given");
    if (m.qk_rope == 0) return missing("qk_rope", "kv_lora_rank is given");
    if (m.v_head == 0) return missing("v_head", "kv_lora_rank is given");
  } else {
    if (m.kv_heads == 0) return missing("kv_heads", "kv_lora_rank is not given");
    if (m.head_dim == 0) return missing("head_dim", "kv_lora_rank is not given");
    if (m.heads % m.kv_heads != 0)
      return fail(Code::kInvalidArgument, place, ".kv_heads is ", m.kv_heads, ": expected a divisor of heads, ",
                  m.heads);
  }
  if (m.moe_layers() < m.layers && m.dense_inter == 0) return missing("dense_inter", "some layers have no experts");
  if (m.experts == 0) return {};
  if (m.moe_inter == 0) return missing("moe_inter", "experts is given");
  if (m.experts_per_token == 0 || m.experts_per_token > m.experts)
    return fail(Code::kInvalidArgument, place, ".experts_per_token is ", m.experts_per_token,
                ": expected a whole number from 1 to experts, ", m.experts);
  if (m.first_dense_layers >= m.layers)
    return fail(Code::kInvalidArgument, place, ".first_dense_layers is ", m.first_dense_layers,
                ": expected less than layers, ", m.layers);
  return {};
}

Result<ModelSpec> parse_model(const std::string& name, const Json& json, const std::string& place) {
  ModelSpec m;
  m.name = name;
  const std::array constants{
      Constant{"layers", &m.layers, 1, 1024},
      Constant{"hidden", &m.hidden, 1, 1 << 20},
      Constant{"heads", &m.heads, 1, 4096},
      Constant{"vocab", &m.vocab, 1, 1 << 24},
      Constant{"kv_heads", &m.kv_heads, 1, 4096, false},
      Constant{"head_dim", &m.head_dim, 1, 4096, false},
      Constant{"kv_lora_rank", &m.kv_lora_rank, 1, 1 << 16, false},
      Constant{"q_lora_rank", &m.q_lora_rank, 0, 1 << 16, false},
      Constant{"qk_nope", &m.qk_nope, 1, 4096, false},
      Constant{"qk_rope", &m.qk_rope, 1, 4096, false},
      Constant{"v_head", &m.v_head, 1, 4096, false},
      Constant{"dense_inter", &m.dense_inter, 1, 1 << 20, false},
      Constant{"first_dense_layers", &m.first_dense_layers, 0, 1024, false},
      Constant{"experts", &m.experts, 1, 1 << 16, false},
      Constant{"experts_per_token", &m.experts_per_token, 1, 1 << 16, false},
      Constant{"shared_experts", &m.shared_experts, 0, 1024, false},
      Constant{"moe_inter", &m.moe_inter, 1, 1 << 20, false},
      Constant{"extra_params", &m.extra_params, 0, 1e13, false},
      Constant{"weight_bytes", &m.weight_bytes, 0.25, 4},
      Constant{"head_bytes", &m.head_bytes, 0.25, 4},
      Constant{"kv_bytes", &m.kv_bytes, 0.25, 4},
  };
  SEER_RETURN_IF_ERROR(take_constants(constants, json, place));
  SEER_RETURN_IF_ERROR(check_model(m, place));
  return m;
}

/// Costs that are not named keep their values.
Status take_costs(HardwareCosts& c, const Json& json, const std::string& place) {
  const std::array constants{
      Constant{"weight_bandwidth_share", &c.weight_bandwidth_share, 1e-3, 1, false},
      Constant{"kv_bandwidth_share", &c.kv_bandwidth_share, 1e-3, 1, false},
      Constant{"expert_bandwidth_share", &c.expert_bandwidth_share, 1e-3, 1, false},
      Constant{"linear_flops_share", &c.linear_flops_share, 1e-3, 1, false},
      Constant{"attention_flops_share", &c.attention_flops_share, 1e-3, 1, false},
      Constant{"nvlink_share", &c.nvlink_share, 1e-3, 1, false},
      Constant{"nic_share", &c.nic_share, 1e-3, 1, false},
      Constant{"dispatch_bytes", &c.dispatch_bytes, 0.25, 4, false},
      Constant{"combine_bytes", &c.combine_bytes, 0.25, 4, false},
      Constant{"all_reduce_us", &c.all_reduce_us, 0, 1e6, false},
      Constant{"all_to_all_us", &c.all_to_all_us, 0, 1e6, false},
      Constant{"step_us", &c.step_us, 0, 1e6, false},
      Constant{"layer_us", &c.layer_us, 0, 1e6, false},
      Constant{"sequence_us", &c.sequence_us, 0, 1e6, false},
      Constant{"expert_imbalance", &c.expert_imbalance, 1, 100, false},
      Constant{"verify_factor", &c.verify_factor, 1, 100, false},
      Constant{"dense_verify_factor", &c.dense_verify_factor, 1, 100, false},
  };
  return take_constants(constants, json, place);
}

}  // namespace

double ModelSpec::attention_params() const {
  const auto h = static_cast<double>(hidden), n = static_cast<double>(heads);
  if (!is_mla()) return h * static_cast<double>(head_dim) * (2 * n + 2 * static_cast<double>(kv_heads));  // q, o, k, v
  const auto latent = static_cast<double>(kv_lora_rank), rope = static_cast<double>(qk_rope);
  const auto nope = static_cast<double>(qk_nope), v = static_cast<double>(v_head);
  const auto q_latent = static_cast<double>(q_lora_rank);
  const double query = q_lora_rank > 0 ? h * q_latent + q_latent * n * (nope + rope) : h * n * (nope + rope);
  return query + h * (latent + rope) + latent * n * (nope + v) + n * v * h;  // keys and values down, up; output
}

double ModelSpec::expert_params() const { return 3.0 * static_cast<double>(hidden) * static_cast<double>(moe_inter); }

double ModelSpec::routed_params() const {
  return static_cast<double>(moe_layers()) * static_cast<double>(experts) * expert_params();
}

double ModelSpec::unrouted_params() const {
  const auto h = static_cast<double>(hidden), moe = static_cast<double>(moe_layers());
  const double dense = 3 * h * static_cast<double>(dense_inter);
  const double shared_and_router =
      static_cast<double>(shared_experts) * expert_params() + h * static_cast<double>(experts);
  return static_cast<double>(layers) * attention_params() + (static_cast<double>(layers) - moe) * dense +
         moe * shared_and_router;
}

double ModelSpec::head_params() const { return static_cast<double>(vocab) * static_cast<double>(hidden); }

double ModelSpec::active_params() const {
  const double chosen = static_cast<double>(moe_layers()) * static_cast<double>(experts_per_token) * expert_params();
  return unrouted_params() + chosen + 2 * head_params();
}

const HardwareCatalog& builtin_hardware() {
  static const HardwareCatalog catalog = [] {
    Result<HardwareCatalog> parsed = parse_hardware(kHardwareJson, "deploy/sim/hardware.json", {});
    SEER_CHECK(parsed.ok(), parsed.error());
    return *std::move(parsed);
  }();
  return catalog;
}

Result<HardwareCatalog> parse_hardware(std::string_view json, const std::string& name, HardwareCatalog known) {
  const Json root = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) return fail(Code::kInvalidArgument, name, " is not valid JSON");
  if (!root.is_object()) return wrong(name, root, "an object with gpus, models or costs");
  for (const auto& [section, entries] : root.items()) {
    const std::string place = cat(name, ": ", section);
    if (section == "costs") {
      SEER_RETURN_IF_ERROR(take_costs(known.costs, entries, place));
      continue;
    }
    if (section != "gpus" && section != "models")
      return fail(Code::kInvalidArgument, place, " is not a known section: expected one of gpus, models, costs");
    if (!entries.is_object()) return wrong(place, entries, "an object with one entry per name");
    for (const auto& [entry, constants] : entries.items()) {
      if (section == "gpus") {
        SEER_ASSIGN_OR_RETURN(known.gpus[entry], parse_gpu(entry, constants, cat(place, ".", entry)));
      } else {
        SEER_ASSIGN_OR_RETURN(known.models[entry], parse_model(entry, constants, cat(place, ".", entry)));
      }
    }
  }
  return known;
}

Result<HardwareCatalog> read_hardware(const std::filesystem::path& path, HardwareCatalog known) {
  SEER_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kHardwareBytesMax));
  return parse_hardware(text, path.string(), std::move(known));
}

}  // namespace seer
