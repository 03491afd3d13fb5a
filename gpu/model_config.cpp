#include "gpu/model_config.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "gpu/cpu/exact_math.h"

namespace seer {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr int64_t kConfigBytesMax = 16 << 20;
constexpr double kTwoPi = 6.283185307179586;

// The fields of one JSON object, with the file's name for errors. The first error sticks; later reads give defaults, so
// that a list of reads is checked once at its end.
class Fields {
 public:
  Fields(const Json& object, std::string file, Error* error) : object_(object), file_(std::move(file)), error_(error) {}

  const Json* find(const char* name) const {
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool has(const char* name) const { return find(name) != nullptr; }

  int64_t integer(const char* name, int64_t low, int64_t high) {
    if (!has(name)) return wrong(low, name, "is missing");
    return integer_or(name, 0, low, high);
  }
  int64_t integer_or(const char* name, int64_t otherwise, int64_t low, int64_t high) {
    const Json* v = find(name);
    if (!v) return otherwise;
    const bool whole = v->is_number_integer() && !(v->is_number_unsigned() && v->get<uint64_t>() > uint64_t{1} << 62);
    if (!whole || v->get<int64_t>() < low || v->get<int64_t>() > high)
      return wrong(low, name, cat("must be an integer from ", low, " to ", high, ", found ", shown(*v)));
    return v->get<int64_t>();
  }
  double number(const char* name, double low, double high) {
    if (!has(name)) return wrong(low, name, "is missing");
    return number_or(name, 0, low, high);
  }
  double number_or(const char* name, double otherwise, double low, double high) {
    const Json* v = find(name);
    if (!v) return otherwise;
    if (!v->is_number() || !(v->get<double>() >= low) || !(v->get<double>() <= high))
      return wrong(low, name, cat("must be a number from ", low, " to ", high, ", found ", shown(*v)));
    return v->get<double>();
  }
  bool flag_or(const char* name, bool otherwise) {
    const Json* v = find(name);
    if (!v) return otherwise;
    if (!v->is_boolean()) return wrong(otherwise, name, cat("must be true or false, found ", shown(*v)));
    return v->get<bool>();
  }
  std::string text_or(const char* name, std::string otherwise) {
    const Json* v = find(name);
    if (!v) return otherwise;
    if (!v->is_string()) return wrong(otherwise, name, cat("must be a string, found ", shown(*v)));
    return v->get<std::string>();
  }
  /// Records the first error and returns `value`.
  template <class T>
  T wrong(T value, const char* name, const std::string& what) {
    if (error_->detail.empty()) *error_ = fail(Code::kInvalidArgument, file_, ": ", name, " ", what);
    return value;
  }
  static std::string shown(const Json& v) {
    std::string text = v.dump(-1, ' ', false, Json::error_handler_t::replace);
    return text.size() > 60 ? text.substr(0, 57) + "..." : text;
  }

 private:
  const Json& object_;
  std::string file_;
  Error* error_;
};

Result<Json> read_json_object(const fs::path& path) {
  SEER_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kConfigBytesMax));
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& e) {
    const auto* where = dynamic_cast<const Json::parse_error*>(&e);  // else a number beyond double, without a place
    const size_t bytes = where ? std::min(where->byte, text.size()) : 0;
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(bytes), '\n');
    return fail(Code::kInvalidArgument, path.string(), where ? cat(":", line) : "", " is not valid JSON");
  }
  if (!json.is_object()) return fail(Code::kInvalidArgument, path.string(), " must hold a JSON object");
  return json;
}

void read_family(Fields& f, ModelConfig& config) {
  std::string name;
  if (const Json* list = f.find("architectures"); list && list->is_array() && !list->empty() && (*list)[0].is_string())
    name = (*list)[0].get<std::string>();
  else
    name = f.text_or("model_type", "");
  if (name == "LlamaForCausalLM" || name == "llama")
    config.family = ModelFamily::kLlama;
  else if (name == "Qwen2ForCausalLM" || name == "qwen2")
    config.family = ModelFamily::kQwen2;
  else if (name == "Qwen3ForCausalLM" || name == "qwen3")
    config.family = ModelFamily::kQwen3;
  else if (name.empty())
    f.wrong(0, "architectures", "is missing");
  else
    f.wrong(
        0, "architectures",
        cat("names the unknown architecture ", name, "; known: LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"));
}

void read_shape(Fields& f, ModelConfig& config) {
  config.hidden_size = static_cast<int32_t>(f.integer("hidden_size", 1, 1 << 16));
  config.intermediate_size = static_cast<int32_t>(f.integer("intermediate_size", 1, 1 << 20));
  config.layers = static_cast<int32_t>(f.integer("num_hidden_layers", 1, 1024));
  config.heads = static_cast<int32_t>(f.integer("num_attention_heads", 1, 1024));
  config.kv_heads = static_cast<int32_t>(f.integer_or("num_key_value_heads", config.heads, 1, 1024));
  config.vocab_size = static_cast<int32_t>(f.integer("vocab_size", 1, 1 << 24));
  config.context_tokens_max = f.integer("max_position_embeddings", 1, 1 << 24);
  config.rms_norm_eps = static_cast<float>(f.number_or("rms_norm_eps", 1e-6, 0.0, 1.0));
  if (config.heads % config.kv_heads != 0)
    f.wrong(0, "num_attention_heads",
            cat("must be a multiple of num_key_value_heads, found ", config.heads, " and ", config.kv_heads));
  const int64_t whole_dim = config.hidden_size / config.heads;
  if (!f.has("head_dim") && whole_dim * config.heads != config.hidden_size)
    f.wrong(0, "head_dim",
            cat("is missing and hidden_size ", config.hidden_size, " is not a multiple of ", config.heads, " heads"));
  config.head_dim = static_cast<int32_t>(f.integer_or("head_dim", whole_dim, 2, 1024));
  if (config.head_dim % 2 != 0) f.wrong(0, "head_dim", cat("must be even, found ", config.head_dim));
}

void read_options(Fields& f, ModelConfig& config) {
  const bool attention_bias = f.flag_or("attention_bias", false);
  config.qkv_bias = attention_bias || config.family == ModelFamily::kQwen2;
  config.output_bias = attention_bias && config.family != ModelFamily::kQwen2;
  config.mlp_bias = config.family == ModelFamily::kLlama && f.flag_or("mlp_bias", false);
  config.qk_norm = config.family == ModelFamily::kQwen3;
  config.tied_head = f.flag_or("tie_word_embeddings", false);
  if (const std::string act = f.text_or("hidden_act", "silu"); act != "silu" && act != "swish")
    f.wrong(0, "hidden_act", cat("must be silu, found ", act));
  if (f.flag_or("use_sliding_window", false))
    f.wrong(0, "use_sliding_window", "is true: sliding window attention is not supported");
  if (const Json* kinds = f.find("layer_types")) {
    if (!kinds->is_array())
      f.wrong(0, "layer_types", cat("must be a list, found ", Fields::shown(*kinds)));
    else
      for (const Json& kind : *kinds)
        if (kind != "full_attention")
          f.wrong(0, "layer_types", cat("holds ", Fields::shown(kind), ": only \"full_attention\" is supported"));
  }
  if (f.has("quantization_config")) f.wrong(0, "quantization_config", "is set: quantized weights are not supported");
  if (f.number_or("partial_rotary_factor", 1.0, 0.0, 1.0) != 1.0)
    f.wrong(0, "partial_rotary_factor", "must be 1: rotating part of a head is not supported");
}

double yarn_scale(double factor, double mscale) { return factor <= 1.0 ? 1.0 : 0.1 * mscale * exact_log(factor) + 1.0; }

// `f` is the rope_scaling object, or the rope_parameters object of newer files.
void read_rope_scaling(Fields& f, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  const std::string kind = f.text_or("rope_type", f.text_or("type", "default"));
  if (kind == "default") return;
  if (kind != "llama3" && kind != "yarn") {
    f.wrong(0, "rope_type", cat("is ", kind, "; known: default, llama3, yarn"));
    return;
  }
  rope.factor = f.number("factor", 1.0, 1e6);
  if (kind == "llama3") {
    rope.kind = RopeKind::kLlama3;
    rope.low_freq_factor = f.number("low_freq_factor", 1e-3, 1e6);
    rope.high_freq_factor = f.number("high_freq_factor", 1e-3, 1e6);
    rope.original_context_tokens = f.integer("original_max_position_embeddings", 1, 1 << 24);
    if (rope.high_freq_factor <= rope.low_freq_factor) f.wrong(0, "high_freq_factor", "must be above low_freq_factor");
    return;
  }
  rope.kind = RopeKind::kYarn;
  rope.original_context_tokens =
      f.integer_or("original_max_position_embeddings", config.context_tokens_max, 1, 1 << 24);
  rope.beta_fast = f.number_or("beta_fast", 32.0, 1e-3, 1e6);
  rope.beta_slow = f.number_or("beta_slow", 1.0, 1e-3, 1e6);
  rope.truncate = f.flag_or("truncate", true);
  const double mscale = f.number_or("mscale", 0.0, 0.0, 1e3), all_dim = f.number_or("mscale_all_dim", 0.0, 0.0, 1e3);
  const double from_factor = mscale > 0 && all_dim > 0
                                 ? yarn_scale(rope.factor, mscale) / yarn_scale(rope.factor, all_dim)
                                 : yarn_scale(rope.factor, 1.0);
  rope.attention_factor = f.number_or("attention_factor", from_factor, 1e-3, 1e3);
  const double longest = static_cast<double>(rope.original_context_tokens) * rope.factor;
  config.context_tokens_max = std::max(config.context_tokens_max, static_cast<int64_t>(std::min(longest, 16777216.0)));
}

// eos_token_id is one id, a list, or absent.
void read_eos(Fields& f, ModelConfig& config) {
  const Json* v = f.find("eos_token_id");
  if (!v) return;
  std::vector<int32_t> ids;
  const Json list = v->is_array() ? *v : Json::array({*v});
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= config.vocab_size) {
      f.wrong(0, "eos_token_id", cat("must be ids from 0 to ", config.vocab_size - 1, ", found ", Fields::shown(*v)));
      return;
    }
    ids.push_back(id.get<int32_t>());
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  config.eos_ids = std::move(ids);
}

}  // namespace

Result<std::string> read_text_file(const fs::path& path, int64_t bytes_max) {
  std::error_code ec;
  const auto status = fs::status(path, ec);
  if (!fs::exists(status)) return fail(Code::kNotFound, "there is no file ", path.string());
  if (!fs::is_regular_file(status)) return fail(Code::kIo, path.string(), " is not a file");
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  const int64_t size = in ? static_cast<int64_t>(in.tellg()) : -1;
  if (size < 0) return fail(Code::kIo, "cannot read ", path.string());
  if (size > bytes_max)
    return fail(Code::kIo, path.string(), " has ", size, " bytes; at most ", bytes_max, " are read");
  std::string text(static_cast<size_t>(size), '\0');
  in.seekg(0);
  if (!in.read(text.data(), size)) return fail(Code::kIo, "cannot read ", path.string());
  return text;
}

Result<ModelConfig> read_model_config(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  SEER_ASSIGN_OR_RETURN(const Json json, read_json_object(path));
  ModelConfig config;
  Error error;
  Fields fields(json, path.string(), &error);
  read_family(fields, config);
  if (!error.detail.empty()) return error;
  read_shape(fields, config);
  if (!error.detail.empty()) return error;
  read_options(fields, config);
  config.rope.theta = fields.number_or("rope_theta", 10000.0, 1.1, 1e12);
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const Json* scaling = fields.find(name);
    if (!scaling) continue;
    if (!scaling->is_object()) return fail(Code::kInvalidArgument, path.string(), ": ", name, " must be an object");
    Fields inner(*scaling, cat(path.string(), ": ", name), &error);
    config.rope.theta = inner.number_or("rope_theta", config.rope.theta, 1.1, 1e12);
    read_rope_scaling(inner, config);
  }
  read_eos(fields, config);
  if (!error.detail.empty()) return error;

  const fs::path generation_path = folder / "generation_config.json";
  std::error_code ec;
  if (fs::exists(generation_path, ec)) {
    SEER_ASSIGN_OR_RETURN(const Json generation, read_json_object(generation_path));
    Fields inner(generation, generation_path.string(), &error);
    read_eos(inner, config);
    if (!error.detail.empty()) return error;
  }
  return config;
}

std::vector<double> rope_frequencies(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  const int half = config.head_dim / 2;
  const auto original = static_cast<double>(rope.original_context_tokens);
  std::vector<double> frequencies(half);
  for (int i = 0; i < half; ++i) frequencies[i] = exact_pow(rope.theta, -2.0 * i / config.head_dim);
  if (rope.kind == RopeKind::kLlama3) {
    // Long waves are slowed by `factor`, short ones kept, those between blended by how often they fit in the context.
    for (double& f : frequencies) {
      const double rotations = original * f / kTwoPi;
      const double blend = (rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
      const double keep = std::clamp(blend, 0.0, 1.0);
      f = (1.0 - keep) * (f / rope.factor) + keep * f;
    }
  } else if (rope.kind == RopeKind::kYarn) {
    // The dimension that turns `rotations` times within the original context.
    const auto dimension = [&](double rotations) {
      return config.head_dim * exact_log(original / (rotations * kTwoPi)) / (2.0 * exact_log(rope.theta));
    };
    double low = dimension(rope.beta_fast), high = dimension(rope.beta_slow);
    if (rope.truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0);
    high = std::min(high, config.head_dim - 1.0);
    if (low == high) high += 0.001;
    for (int i = 0; i < half; ++i) {
      const double slowed = std::clamp((i - low) / (high - low), 0.0, 1.0);
      frequencies[i] = frequencies[i] / rope.factor * slowed + frequencies[i] * (1.0 - slowed);
    }
  }
  return frequencies;
}

}  // namespace seer
