#include "gpu/model/model_config.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>

#include "gpu/cpu/exact_math.h"
#include "gpu/text/json_text.h"
#include "gpu/text/tokenizer_config.h"
#include "protocols/hash.h"

namespace seer {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr double kTwoPi = 6.283185307179586;

// The fields of one JSON object, with the file's name for errors. The first error sticks; later reads give defaults, so
// that a list of reads is checked once at its end.
class Fields {
 public:
  Fields(const Json& object, std::string file, Error* error) : object_(object), file_(std::move(file)), error_(error) {}

  const Json& object() const { return object_; }
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
  void refuse(const char* name, const std::string& what) { wrong(0, name, what); }
  /// Records the first error and returns `value`.
  template <class T>
  T wrong(T value, const char* name, const std::string& what) {
    if (error_->detail.empty()) *error_ = fail(Code::kInvalidArgument, file_, ": ", name, " ", what);
    return value;
  }
  static std::string shown(const Json& v) { return shortened(v.dump(-1, ' ', false, Json::error_handler_t::replace)); }

 private:
  const Json& object_;
  std::string file_;
  Error* error_;
};

Result<Json> read_json_object(const fs::path& path) {
  SEER_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kConfigBytesMax));
  SEER_ASSIGN_OR_RETURN(Json json, parse_json(text, path.string()));
  if (!json.is_object()) return fail(Code::kInvalidArgument, path.string(), " must hold a JSON object");
  return json;
}

constexpr int64_t kHeadDimMax = 1024;

struct FamilyName {
  ModelFamily family;
  const char *architecture, *model_type;
};
constexpr const char* kMistral = "MistralForCausalLM";
constexpr FamilyName kFamilies[] = {{ModelFamily::kLlama, "LlamaForCausalLM", "llama"},
                                    {ModelFamily::kQwen2, "Qwen2ForCausalLM", "qwen2"},
                                    {ModelFamily::kQwen3, "Qwen3ForCausalLM", "qwen3"},
                                    {ModelFamily::kLlama, kMistral, "mistral"}};

// Without sliding windows it computes as Llama does. Missing fields have other defaults in Hugging Face than Llama's: a window of 4096, and
// 8 KV heads.
void check_mistral(Fields& f) {
  if (!f.object().contains("sliding_window")) f.refuse("sliding_window", "is missing, which means 4096: sliding window attention is not supported");
  if (const Json* window = f.find("sliding_window"))
    f.refuse("sliding_window", cat("is ", Fields::shown(*window), ": sliding window attention is not supported"));
  if (!f.has("num_key_value_heads")) f.refuse("num_key_value_heads", "is missing");
}

// From `architectures` and `model_type`, which must agree if both are given: Hugging Face takes its class from model_type,
// other programs take theirs from architectures.
void read_family(Fields& f, ModelConfig& config) {
  std::vector<std::string> names;
  if (const Json* list = f.find("architectures")) {
    const bool texts = list->is_array() && std::ranges::all_of(*list, [](const Json& v) { return v.is_string(); });
    if (!texts) return f.refuse("architectures", cat("must be a list of strings, found ", Fields::shown(*list)));
    names = list->get<std::vector<std::string>>();
  }
  const std::string model_type = f.text_or("model_type", "");
  if (names.empty() && model_type.empty()) return f.refuse("architectures", "is missing");
  const FamilyName* family = nullptr;
  for (const FamilyName& known : kFamilies)
    if (names.empty() ? model_type == known.model_type : names[0] == known.architecture) family = &known;
  if (!family)
    return f.refuse("architectures",
                    cat("names the unknown architecture ", shortened(names.empty() ? model_type : names[0]),
                        "; known: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"));
  for (const std::string& name : names)
    if (name != family->architecture)
      f.wrong(0, "architectures", cat("names both ", family->architecture, " and ", shortened(name)));
  if (!model_type.empty() && model_type != family->model_type)
    f.wrong(0, "model_type", cat("is ", shortened(model_type), ", but architectures names ", family->architecture));
  config.family = family->family;
  if (family->architecture == kMistral) check_mistral(f);
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
  config.head_dim = static_cast<int32_t>(f.integer_or("head_dim", whole_dim, 2, kHeadDimMax));
  if (config.head_dim % 2 != 0) f.wrong(0, "head_dim", cat("must be even, found ", config.head_dim));
  if (config.head_dim > kHeadDimMax) f.wrong(0, "head_dim", cat("must be at most ", kHeadDimMax, ", found ", config.head_dim));
}

// A field with which other families, or variants of these three, compute something else. At the value `harmless` it changes
// nothing; NaN: every value matters. Null, false and empty lists and objects never matter.
struct OtherArithmetic {
  const char* name;
  double harmless;
};
constexpr double kAlwaysMatters = std::numeric_limits<double>::quiet_NaN();
constexpr OtherArithmetic kOtherArithmetic[] = {
    {"num_experts", 0},
    {"num_local_experts", 0},
    {"n_routed_experts", 0},
    {"rotary_pct", 1},
    {"rope_interleaved", kAlwaysMatters},
    {"no_rope_layer_interval", 0},
    {"clip_qkv", kAlwaysMatters},
    {"logits_scaling", 1},
    {"logit_scale", 1},
    {"attention_multiplier", kAlwaysMatters},
    {"embedding_multiplier", 1},
    {"residual_multiplier", 1},
    {"query_pre_attn_scalar", kAlwaysMatters},
    {"attn_temperature_tuning", kAlwaysMatters},
    {"attn_output_gate", kAlwaysMatters},
    {"use_bidirectional_attention", kAlwaysMatters},
    {"alibi", kAlwaysMatters},
    {"use_qk_norm", kAlwaysMatters},
    {"qk_layernorm", kAlwaysMatters},
};

bool changes_nothing(const Json& v, double harmless) {
  if (v.is_number()) return v.get<double>() == harmless;
  return v.is_null() || v == false || ((v.is_array() || v.is_object()) && v.empty());
}

void refuse_other_arithmetic(Fields& f, const ModelConfig& config) {
  for (const char* name : {"quantization_config", "compression_config"})
    if (f.has(name)) f.refuse(name, "is set: quantized weights are not supported");
  for (const OtherArithmetic& other : kOtherArithmetic)
    if (const Json* v = f.find(other.name); v && !changes_nothing(*v, other.harmless))
      f.refuse(other.name, cat("is ", Fields::shown(*v), ": a model that computes with it is not supported"));
  for (const auto& [name, v] : f.object().items())
    if (name.ends_with("softcapping") && !changes_nothing(v, kAlwaysMatters))
      f.refuse(shortened(name).c_str(),
               cat("is ", Fields::shown(v), ": a model that computes with it is not supported"));
  if (!f.flag_or("is_causal", true)) f.refuse("is_causal", "is false: only causal models are supported");
  // A list of one flag per layer: 1 for those with rope.
  if (const Json* v = f.find("no_rope_layers"))
    if (!v->is_array() || !std::ranges::all_of(*v, [](const Json& flag) { return flag == 1; }))
      f.refuse("no_rope_layers", cat("is ", Fields::shown(*v), ": layers without rope are not supported"));
  if (config.family != ModelFamily::kLlama && f.flag_or("mlp_bias", false))
    f.refuse("mlp_bias", cat("is true, but a ", to_string(config.family), " model has no such biases"));
}

void read_options(Fields& f, ModelConfig& config) {
  const bool attention_bias = f.flag_or("attention_bias", false);
  config.qkv_bias = attention_bias || config.family == ModelFamily::kQwen2;
  config.output_bias = attention_bias && config.family != ModelFamily::kQwen2;
  config.mlp_bias = config.family == ModelFamily::kLlama && f.flag_or("mlp_bias", false);
  config.qk_norm = config.family == ModelFamily::kQwen3;
  config.tied_head = f.flag_or("tie_word_embeddings", false);
  if (const std::string act = f.text_or("hidden_act", "silu"); act != "silu" && act != "swish")
    f.wrong(0, "hidden_act", cat("must be silu, found ", shortened(act)));
  // Layers from max_window_layers on have windows.
  if (f.flag_or("use_sliding_window", false) && f.integer_or("max_window_layers", 0, 0, 1 << 24) < config.layers)
    f.wrong(0, "use_sliding_window", "is true: sliding window attention is not supported");
  if (const Json* kinds = f.find("layer_types")) {
    if (!kinds->is_array())
      f.wrong(0, "layer_types", cat("must be a list, found ", Fields::shown(*kinds)));
    else if (kinds->size() != static_cast<size_t>(config.layers))
      f.refuse("layer_types", cat("has ", kinds->size(), " entries, but num_hidden_layers is ", config.layers));
    else
      for (const Json& kind : *kinds)
        if (kind != "full_attention")
          f.wrong(0, "layer_types", cat("holds ", Fields::shown(kind), ": only \"full_attention\" is supported"));
  }
  refuse_other_arithmetic(f, config);
}

double yarn_scale(double factor, double mscale) { return factor <= 1.0 ? 1.0 : 0.1 * mscale * exact_log(factor) + 1.0; }

// The keys that a block of each kind may have, besides kRopeKeys; Hugging Face warns of others and ignores them.
constexpr std::string_view kRopeKeys[] = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
constexpr std::string_view kLlama3Keys[] = {"factor", "low_freq_factor", "high_freq_factor",
                                            "original_max_position_embeddings"};
constexpr std::string_view kYarnKeys[] = {"factor",           "original_max_position_embeddings",
                                          "attention_factor", "beta_fast",
                                          "beta_slow",        "mscale",
                                          "mscale_all_dim",   "truncate",
                                          "attn_factor",      "finetuned"};  // the last one changes nothing

void check_rope_keys(Fields& f, const Json& block, const std::string& kind, std::span<const std::string_view> keys) {
  for (const auto& [key, value] : block.items())
    if (!value.is_null() && std::ranges::count(kRopeKeys, key) == 0 && std::ranges::count(keys, key) == 0)
      f.refuse(shortened(key).c_str(), cat("is ", Fields::shown(value), ", which means nothing for rope_type ", kind));
}

// Hugging Face's classes of these three families also rotate whole heads: a smaller factor has no meaning there.
void check_partial_rotary(Fields& f) {
  if (f.number_or("partial_rotary_factor", 1.0, 0.0, 1.0) != 1.0)
    f.refuse("partial_rotary_factor", "must be 1: rotating part of a head is not supported");
}

// A block has its kind in rope_type, in older files in `type`. Without either it is plain rope: then it must hold
// nothing else. Returns "" after an error.
std::string rope_kind(Fields& f, const Json& block) {
  for (const char* name : {"rope_type", "type"})
    if (block.contains(name) && block[name].is_null()) return f.wrong("", name, "is null");
  const std::string kind = f.text_or("rope_type", f.text_or("type", "default"));
  if (f.has("rope_type") && f.text_or("type", kind) != kind)
    return f.wrong("", "type", cat("is ", shortened(f.text_or("type", "")), ", but rope_type is ", shortened(kind)));
  if (kind != "default" && kind != "llama3" && kind != "yarn")
    return f.wrong("", "rope_type", cat("is ", shortened(kind), "; known: default, llama3, yarn"));
  if (!f.has("rope_type") && !f.has("type") && f.has("factor"))
    return f.wrong("", "factor", "is set, but there is no rope_type");
  return kind;
}

// The context before it was scaled. Hugging Face lets the field at the top win over the block's; here they must agree.
int64_t original_context(Fields& top, Fields& f, int64_t otherwise) {
  const char* name = "original_max_position_embeddings";
  const int64_t above = top.integer_or(name, 0, 1, 1 << 24), inside = f.integer_or(name, above, 1, 1 << 24);
  if (above != 0 && inside != above) f.refuse(name, cat("is ", inside, ", but ", above, " outside of the block"));
  if (inside == 0 && otherwise == 0) f.refuse(name, "is missing");
  return inside != 0 ? inside : otherwise;
}

// One block: the rope_scaling object, the rope_parameters object of newer files, or one of a kind of layer within it.
RopeConfig read_rope_block(Fields& top, Fields& f, const Json& block, const ModelConfig& config) {
  RopeConfig rope;
  rope.theta = top.number_or("rope_theta", 10000.0, 1.1, 1e12);
  const double theta = f.number_or("rope_theta", rope.theta, 1.1, 1e12);
  if (top.has("rope_theta") && theta != rope.theta)
    f.refuse("rope_theta", cat("is ", theta, ", but ", rope.theta, " outside of the block"));
  rope.theta = theta;
  check_partial_rotary(f);
  const std::string kind = rope_kind(f, block);
  if (kind.empty()) return rope;
  if (kind == "default") {
    check_rope_keys(f, block, kind, {});
    return rope;
  }
  rope.factor = f.number("factor", 1.0, 1e6);
  if (kind == "llama3") {
    check_rope_keys(f, block, kind, kLlama3Keys);
    rope.kind = RopeKind::kLlama3;
    rope.low_freq_factor = f.number("low_freq_factor", 1e-3, 1e6);
    rope.high_freq_factor = f.number("high_freq_factor", 1e-3, 1e6);
    rope.original_context_tokens = original_context(top, f, 0);
    if (rope.high_freq_factor <= rope.low_freq_factor) f.refuse("high_freq_factor", "must be above low_freq_factor");
    return rope;
  }
  check_rope_keys(f, block, kind, kYarnKeys);
  rope.kind = RopeKind::kYarn;
  rope.original_context_tokens = original_context(top, f, config.context_tokens_max);
  rope.beta_fast = f.number_or("beta_fast", 32.0, 1e-3, 1e6);
  rope.beta_slow = f.number_or("beta_slow", 1.0, 1e-3, 1e6);
  rope.truncate = f.flag_or("truncate", true);
  const double mscale = f.number_or("mscale", 0.0, 0.0, 1e3), all_dim = f.number_or("mscale_all_dim", 0.0, 0.0, 1e3);
  // `factor` counts, as in current Hugging Face; some 4.x versions divided max_position_embeddings by the original context.
  const double from_factor = mscale > 0 && all_dim > 0
                                 ? yarn_scale(rope.factor, mscale) / yarn_scale(rope.factor, all_dim)
                                 : yarn_scale(rope.factor, 1.0);
  // As in SGLang and vLLM; Hugging Face ignores it, and is wrong for DeepSeek-R1-0528-Qwen3-8B, which has it.
  const double by_file = f.number_or("attn_factor", 1.0, 1e-3, 1e3);
  if (f.has("attn_factor") && f.has("attention_factor")) f.refuse("attn_factor", "is set, and attention_factor too: expected one of them");
  rope.attention_factor = f.number_or("attention_factor", from_factor * by_file, 1e-3, 1e3);
  return rope;
}

// rope_scaling, or rope_parameters, which newer files have in its place and which may be nested by kind of layer:
// {"full_attention": {...}}. Hugging Face prefers rope_scaling, unless it is empty; here both must say the same.
void read_rope(Fields& top, const std::string& file, Error* error, ModelConfig& config) {
  check_partial_rotary(top);
  const Json none = Json::object();
  Fields plain(none, file, error);
  config.rope = read_rope_block(top, plain, none, config);
  const char* found = nullptr;
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const Json* block = top.find(name);
    if (!block || (block->is_object() && block->empty())) continue;
    std::string path = cat(file, ": ", name);
    if (block->is_object() && block->contains("full_attention")) {
      for (const auto& [key, value] : block->items())
        if (key != "full_attention")
          top.refuse(name,
                     cat("has ", shortened(key), " beside full_attention, the only kind of layer that is supported"));
      block = &(*block)["full_attention"];
      path += ".full_attention";
    }
    if (!block->is_object()) return top.refuse(name, cat("must be an object, found ", Fields::shown(*block)));
    Fields inner(*block, path, error);
    const RopeConfig rope = read_rope_block(top, inner, *block, config);
    if (found && rope != config.rope) top.refuse(name, cat("says something else than ", found));
    config.rope = rope;
    found = name;
  }
  if (config.rope.kind != RopeKind::kYarn) return;
  const double longest = static_cast<double>(config.rope.original_context_tokens) * config.rope.factor;
  config.context_tokens_max = std::max(config.context_tokens_max, static_cast<int64_t>(std::min(longest, 16777216.0)));
}

// Up to chunk_size - local_size tokens, attention in chunks equals plain attention.
void read_chunks(Fields& f, const std::string& path, Error* error, ModelConfig& config) {
  const char* const name = "dual_chunk_attention_config";
  const Json* v = f.find(name);
  if (!v || changes_nothing(*v, kAlwaysMatters)) return;
  if (!v->is_object()) return f.refuse(name, cat("must be an object, found ", Fields::shown(*v)));
  Fields inner(*v, cat(path, ": ", name), error);
  const int64_t chunk = inner.integer("chunk_size", 1, 1 << 24), local = inner.integer_or("local_size", 0, 0, 1 << 24);
  if (local >= chunk) inner.wrong(0, "local_size", cat("must be less than chunk_size, found ", local));
  config.context_tokens_max = std::min(config.context_tokens_max, chunk - local);
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

// The id of an added token by this text: of tokenizer_config.json, or where that has no list of them, as transformers 5 writes it, of
// tokenizer.json.
std::optional<int64_t> added_token_id(const fs::path& folder, const Json& tokenizer_config, const Json& text) {
  if (const auto tokens = tokenizer_config.find("added_tokens_decoder"); tokens != tokenizer_config.end() && tokens->is_object()) {
    for (const auto& [name, token] : tokens->items()) {
      int64_t id = -1;
      if (!token.is_object() || token.value("content", Json()) != text) continue;
      const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
      if (error == std::errc() && end == name.data() + name.size()) return id;
    }
    return std::nullopt;
  }
  std::ifstream in(folder / "tokenizer.json", std::ios::binary);
  const auto is_small = [](int depth, Json::parse_event_t event, const Json& parsed) {
    return depth != 1 || event != Json::parse_event_t::key || parsed != "model";
  };
  const Json tokenizer = in ? Json::parse(in, is_small, /*allow_exceptions=*/false) : Json();
  if (!tokenizer.is_object() || !tokenizer.contains("added_tokens")) return std::nullopt;
  for (const Json& token : tokenizer["added_tokens"])
    if (token.is_object() && token.value("content", Json()) == text && token.contains("id") && token["id"].is_number_integer())
      return token["id"].get<int64_t>();
  return std::nullopt;
}

// The tokenizer's own end token ends a response too, as in SGLang and vLLM: a model that was trained to chat may be named it there only.
// Files that do not tell its id add nothing.
void add_tokenizer_eos(const fs::path& folder, ModelConfig& config) {
  const Result<Json> read = read_tokenizer_config(folder);
  if (!read.ok()) return;
  const auto eos = read->find("eos_token");
  if (eos == read->end()) return;
  const Json text = eos->is_object() ? eos->value("content", Json()) : *eos;
  if (!text.is_string()) return;
  const std::optional<int64_t> id = added_token_id(folder, *read, text);
  if (!id || *id < 0 || *id >= config.vocab_size) return;
  const auto at = std::ranges::lower_bound(config.eos_ids, *id);
  if (at == config.eos_ids.end() || *at != *id) config.eos_ids.insert(at, static_cast<int32_t>(*id));
}

}  // namespace

Result<std::string> read_text_file(const fs::path& path, int64_t bytes_max) {
  std::error_code ec;
  const auto status = fs::status(path, ec);
  if (!fs::exists(status)) return fail(Code::kNotFound, "there is no file ", path.string());
  if (!fs::is_regular_file(status)) return fail(Code::kIo, path.string(), " is not a file");
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  const int64_t size = in ? static_cast<int64_t>(in.tellg()) : -1;
  if (size < 0) return fail(Code::kIo, "cannot read ", path.string(), ": ", std::strerror(errno));
  if (size > bytes_max)
    return fail(Code::kIo, path.string(), " has ", size, " bytes; at most ", bytes_max, " are read");
  std::string text(static_cast<size_t>(size), '\0');
  in.seekg(0);
  if (!in.read(text.data(), size)) return fail(Code::kIo, "cannot read ", path.string(), ": ", std::strerror(errno));
  return text;
}

int64_t ModelConfig::parameters_max() const {
  const int64_t hidden = hidden_size, q = query_size(), kv = kv_size(), inner = intermediate_size;
  const int64_t matrices = (2 * q + 2 * kv + 3 * inner) * hidden;
  const int64_t vectors = 2 * hidden + 2 * head_dim + (q + 2 * kv + hidden) + (2 * inner + hidden);  // norms, then biases
  return 2 * hidden * vocab_size + hidden + layers * (matrices + vectors);
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
  read_rope(fields, path.string(), &error, config);
  read_chunks(fields, path.string(), &error, config);
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
  add_tokenizer_eos(folder, config);
  return config;
}

uint64_t shape_hash(const ModelConfig& c) {
  uint64_t h = 0;
  for (int64_t value : {static_cast<int64_t>(c.family), int64_t{c.hidden_size}, int64_t{c.intermediate_size},
                        int64_t{c.layers}, int64_t{c.heads}, int64_t{c.kv_heads}, int64_t{c.head_dim},
                        int64_t{c.vocab_size}, int64_t{std::bit_cast<int32_t>(c.rms_norm_eps)}, int64_t{c.tied_head}})
    h = hash_pair(h, static_cast<uint64_t>(value));
  for (double f : rope_frequencies(c)) h = hash_pair(h, std::bit_cast<uint64_t>(f));
  return hash_pair(h, std::bit_cast<uint64_t>(c.rope.attention_factor));
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
