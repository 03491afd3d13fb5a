#include "cli/serve/request_fields.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <vector>

#include "cli/json_lines.h"
#include "cli/sampling_options.h"
#include "cli/suggestion.h"
#include "gpu/sampler.h"

namespace seer {
namespace {

constexpr size_t kUrlBytesMax = 2048;

constexpr int64_t kResponsesMax = 100'000;             // of one HTTP request
constexpr size_t kIdBytesMax = 1024;

constexpr const char* kSeeds[] = {"sampling_seed", "seed"};
constexpr const char* kMinNewTokens = "min_new_tokens";  // also min_tokens, in all dialects
/// Would change tokens.
constexpr std::initializer_list<const char*> kUnsupported = {"json_schema", "regex",     "ebnf",      "structural_tag",    "custom_params",
                                                             "lora_path",   "stop_regex", "bad_words", "allowed_token_ids", "logits_processors"};
/// Likewise, but for the value that changes nothing.
const std::map<std::string, Json>& values_without_effect() {
  static const std::map<std::string, Json> kValues{{"frequency_penalty", 0}, {"presence_penalty", 0}, {"length_penalty", 1}, {"logit_bias", Json::object()}};
  return kValues;
}

/// Refuses the name if it is nearly a known one.
Status check_one_spelling(const std::string& name, const std::vector<std::string>& known) {
  if (std::ranges::find(known, name) != known.end()) return {};
  const std::string meant = nearest_name(name, known);
  if (meant.empty()) return {};
  return fail(Code::kInvalidArgument, "field ", json_string(shown(name)), " is not known: did you mean ", meant, "?");
}

/// `options`: those that sampling has. Refuses names that are neither these, nor among `others`, nor of what is not supported.
Status check_names(const Json& params, const std::vector<OptionSpec>& options, const char* max_tokens, std::span<const char* const> others) {
  const auto is_among = [](const auto& names, const std::string& name) { return std::ranges::find(names, name) != std::ranges::end(names); };
  for (const auto& [name, value] : params.items()) {
    const bool is_option = name != "max_tokens" && std::ranges::find(options, name, &OptionSpec::name) != options.end();
    if (is_option || name == max_tokens || name == kMinNewTokens) continue;
    if (is_among(others, name) || is_among(kSeeds, name) || is_among(kUnsupported, name) || values_without_effect().contains(name)) continue;
    std::vector<std::string> known{max_tokens, kMinNewTokens};
    for (const OptionSpec& option : options)
      if (option.name != "max_tokens") known.push_back(option.name);
    known.insert(known.end(), others.begin(), others.end());
    known.emplace_back(kSeeds[0]);
    std::string expected;
    for (const std::string& one : known)
      if (one != kMinNewTokens) expected += cat(expected.empty() ? "" : one == known.back() ? " or " : ", ", one);
    return fail(Code::kInvalidArgument, "sampling_params has ", json_string(shown(name)), ": expected ", expected, did_you_mean(name, known));
  }
  return {};
}

Result<std::vector<int32_t>> read_prompt(const Json& value, const PromptField& field, const ServedModel& model) {
  if (field.may_be_text && field.may_be_ids && !value.is_string() && !value.is_array())
    return fail(Code::kInvalidArgument, field.name, " is ", shown_value(value), ": expected text or a list of token ids");
  if (!value.is_string() || !field.may_be_text) {
    if (field.may_be_ids) return token_ids(value, field.name, "");
    return fail(Code::kInvalidArgument, field.name, " is ", shown_value(value), ": expected text");
  }
  if (model.tokenizer == nullptr) return fail(Code::kInvalidArgument, field.name, " is text, and ", model.name, " has no tokenizer: send token ids");
  return model.tokenizer->encode(value.get<std::string>(), {.add_special = field.add_special});
}

}  // namespace

std::string json_text(const Out& json) { return json.dump(-1, ' ', false, Out::error_handler_t::replace); }

Result<Json> read_object(const std::string& body) {
  if (is_blank(body)) return Json::object();
  SEER_RETURN_IF_ERROR(check_shape(body, ""));
  Json object = Json::parse(body, nullptr, false);
  if (object.is_discarded()) {
    std::string text = body;
    SEER_RETURN_IF_ERROR(check_line("body", 1, text));    // names other formats
    SEER_RETURN_IF_ERROR(check_object("body", 1, text));  // says where it goes wrong
    return fail(Code::kInvalidArgument, "the body is not JSON");
  }
  if (!object.is_object()) return fail(Code::kInvalidArgument, "the body is ", object.type_name(), ": expected a JSON object");
  return object;
}

Status check_spelling(const Json& object, const std::vector<std::string>& known) {
  for (const auto& [name, value] : object.items())
    if (!value.is_null()) SEER_RETURN_IF_ERROR(check_one_spelling(name, known));
  return {};
}

Status check_query_spelling(const HttpRequest& request, const std::vector<std::string>& known) {
  for (const auto& [name, value] : request.query) SEER_RETURN_IF_ERROR(check_one_spelling(name, known));
  return {};
}

const Json* given_field(const Json& object, const char* name) {
  const auto at = object.find(name);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

Status refuse_fields(const Json& object, std::initializer_list<const char*> names) {
  for (const char* const name : names)
    if (const Json* const value = given_field(object, name); value != nullptr && !value->empty() && *value != false && *value != "")
      return fail(Code::kInvalidArgument, name, " is not supported");
  return {};
}

Status refuse_unsupported(const Json& params) {
  for (const auto& [name, only] : values_without_effect())
    if (const Json* const value = given_field(params, name.c_str()); value != nullptr && *value != only)
      return fail(Code::kInvalidArgument, name, " is ", shown_value(*value), ": expected ", only.dump(), ", since it is not supported");
  return refuse_fields(params, kUnsupported);
}

Result<bool> boolean_field(const Json& object, const char* name, bool otherwise) {
  return boolean_of(given_field(object, name), name, otherwise);
}

Result<bool> boolean_of(const Json* value, const char* name, bool otherwise) {
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) return fail(Code::kInvalidArgument, name, " is ", shown_value(*value), ": expected true or false");
  return value->get<bool>();
}

Result<std::string> text_of(const Json& value, const char* name) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) return value.dump();
  return fail(Code::kInvalidArgument, name, " is ", shown_value(value), ": expected text or an integer");
}

Result<std::string> text_field(const Json& object, const char* name) {
  const Json* const value = given_field(object, name);
  return value == nullptr ? std::string() : text_of(*value, name);
}

Result<std::string> id_of(const Json& value, const char* name) {
  SEER_ASSIGN_OR_RETURN(std::string id, text_of(value, name));
  if (id.size() <= kIdBytesMax) return id;
  return fail(Code::kInvalidArgument, name, " has ", id.size(), " bytes: expected at most ", kIdBytesMax);
}

Result<std::string> id_field(const Json& object, const char* name) {
  const Json* const value = given_field(object, name);
  return value == nullptr ? std::string() : id_of(*value, name);
}

Status check_query(const HttpRequest& request, std::initializer_list<const char*> names) {
  for (const auto& [name, value] : request.query) {
    if (std::ranges::find(names, name) != names.end()) continue;
    std::string expected;
    for (const char* const known : names) expected += cat(expected.empty() ? "" : ", ", known);
    return fail(Code::kInvalidArgument, "the query has ", json_string(shown(name)), ": expected ", expected);
  }
  return {};
}

Result<std::optional<uint64_t>> query_number(const HttpRequest& request, const std::string& name, uint64_t low, uint64_t high) {
  const auto at = request.query.find(name);
  if (at == request.query.end()) return std::optional<uint64_t>();
  const std::string& text = at->second;
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < low || number > high)
    return fail(Code::kInvalidArgument, name, " is ", json_string(shown(text)), ": expected an integer, at least ", low,
                high < UINT64_MAX ? cat(" and at most ", high) : "");
  return std::optional<uint64_t>(number);
}

Result<int64_t> int64_field(const Json& object, const char* name, int64_t otherwise, int64_t low) {
  const Json* const value = given_field(object, name);
  if (value == nullptr) return otherwise;
  return integer_field<int64_t>(*value, name, low, "");
}

Result<Sampling> read_sampling(const Json& params, const char* max_tokens, int64_t max_tokens_default,
                               std::optional<std::span<const char* const>> others) {
  if (!params.is_object()) return fail(Code::kInvalidArgument, "sampling_params is ", params.type_name(), ": expected an object");
  SEER_RETURN_IF_ERROR(refuse_unsupported(params));
  if (given_field(params, "min_tokens") != nullptr && given_field(params, kMinNewTokens) != nullptr)
    return fail(Code::kInvalidArgument, "min_tokens and ", kMinNewTokens, " are both given: expected one of them");
  Sampling sampling;
  sampling.params.max_tokens = max_tokens_default;
  std::vector<OptionSpec> options = sampling_options(sampling.params);
  options.push_back({"n", "N", &sampling.n, "responses", between(1, kResponsesMax)});
  for (OptionSpec& option : options) std::ranges::replace(option.name, '-', '_');
  if (others) SEER_RETURN_IF_ERROR(check_names(params, options, max_tokens, *others));
  for (const auto& [name, value] : params.items()) {
    if (value.is_null()) continue;
    const std::string own_name = name == max_tokens ? "max_tokens" : name == kMinNewTokens ? "min_tokens" : name;
    const auto option = std::ranges::find(options, own_name, &OptionSpec::name);
    if (option == options.end()) continue;  // other fields change no token
    OptionSpec named = *option;
    named.name = name;
    SEER_RETURN_IF_ERROR(set_json_option(named, sampling_text(name, written_value(value)), ""));
  }
  if (const SamplingParams& s = sampling.params; s.min_tokens > s.max_tokens)
    return fail(Code::kInvalidArgument, given_field(params, kMinNewTokens) != nullptr ? kMinNewTokens : "min_tokens", " is ", s.min_tokens,
                ": expected at most ", max_tokens, ", which is ", s.max_tokens);
  for (const char* const name : kSeeds)
    if (const Json* const seed = given_field(params, name)) {
      SEER_ASSIGN_OR_RETURN(sampling.seed, integer_field<uint64_t>(*seed, name, 0, ""));
    }
  // Clients say greedy so, too; SGLang and vLLM take it as that.
  if (sampling.params.temperature > 0 && sampling.params.temperature < kTemperatureLeast) sampling.params.temperature = 0;
  return sampling;
}

Result<Prompts> read_prompts(const Json& value, const PromptField& field, const ServedModel& model) {
  Prompts prompts;
  prompts.is_list = value.is_array() && !value.empty() && (value.front().is_array() || value.front().is_string());
  if (value.is_array() && value.empty()) return fail(Code::kInvalidArgument, field.name, " is empty: expected a prompt");
  const auto take = [&](const Json& prompt) -> Status {
    SEER_ASSIGN_OR_RETURN(auto ids, read_prompt(prompt, field, model));
    prompts.ids.push_back(std::move(ids));
    return {};
  };
  if (!prompts.is_list) SEER_RETURN_IF_ERROR(take(value));
  if (prompts.is_list)
    for (const Json& prompt : value) SEER_RETURN_IF_ERROR(take(prompt));
  return prompts;
}

int64_t stop_bytes(const SamplingParams& sampling) {
  int64_t bytes = std::ssize(sampling.stop_token_ids) * static_cast<int64_t>(sizeof(int32_t));
  for (const std::string& stop : sampling.stop) bytes += static_cast<int64_t>(sizeof stop + stop.size());
  return bytes;
}

Status add_prompt(AskedSoFar& asked, const Sampling& sampling) {
  asked.responses += sampling.n;
  asked.stop_bytes += stop_bytes(sampling.params);
  if (asked.responses > kResponsesMax)
    return fail(Code::kInvalidArgument, "the request asks for ", asked.responses, " responses up to here: expected at most ", kResponsesMax);
  if (asked.stop_bytes > kStopBytesMax)
    return fail(Code::kInvalidArgument, "the stops of all prompts take ", asked.stop_bytes, " bytes up to here: expected at most ", kStopBytesMax);
  return {};
}

Result<GatewayRequest> read_request(const Json& body, std::vector<int32_t> prompt_ids, const Sampling& sampling, Front& front) {
  SEER_ASSIGN_OR_RETURN(std::string group, id_field(body, "group_id"));
  SEER_ASSIGN_OR_RETURN(const int64_t group_size, int64_field(body, "group_size", 0, 0));
  SEER_ASSIGN_OR_RETURN(const int64_t priority, int64_field(body, "priority", 0, INT32_MIN));
  GatewayRequest request{.ticket = {},
                         .rid = {},
                         .group = std::move(group),
                         .group_size = static_cast<uint32_t>(std::min<int64_t>(group_size, UINT32_MAX)),
                         .prompt_ids = std::move(prompt_ids),
                         .sampling = sampling.params,
                         .seeds = {},
                         .priority = static_cast<int32_t>(std::min<int64_t>(priority, INT32_MAX))};
  SEER_RETURN_IF_ERROR(fit_request(request, front.model()));
  for (int64_t sample = 0; sample < sampling.n; ++sample)
    request.seeds.push_back(sampling.seed ? *sampling.seed + static_cast<uint64_t>(sample) : front.fresh_seed());
  return request;
}

Result<TextRules> read_text_rules(const Json& params, const SamplingParams& sampling, const ServedModel& model, const char* keep_stop) {
  SEER_ASSIGN_OR_RETURN(const bool skip_special, boolean_field(params, "skip_special_tokens", true));
  SEER_ASSIGN_OR_RETURN(const bool keeps, boolean_field(params, keep_stop, false));
  return TextRules{.skip_special = skip_special, .leave_out_stop = !keeps, .stop = sampling.stop, .stop_ids = ending_ids(sampling, model.config.eos_ids)};
}

void append_ids(std::string& out, const std::vector<int32_t>& ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    out += i > 0 ? ',' : '[';
    out += std::to_string(ids[i]);
  }
  out += ids.empty() ? "[]" : "]";
}

Result<std::string> worker_url(const HttpRequest& request) {
  const std::vector<std::string> known{"url", "kind"};
  SEER_RETURN_IF_ERROR(check_query_spelling(request, known));
  const auto in_query = [&](const char* name) { return request.query.contains(name) ? request.query.at(name) : ""; };
  std::string url = in_query("url"), kind = in_query("kind");
  if (url.empty()) {
    SEER_ASSIGN_OR_RETURN(const Json body, read_object(request.body));
    SEER_RETURN_IF_ERROR(check_spelling(body, known));
    SEER_ASSIGN_OR_RETURN(url, text_field(body, "url"));
    SEER_ASSIGN_OR_RETURN(kind, text_field(body, "kind"));
  }
  if (url.empty()) return fail(Code::kInvalidArgument, "url is missing: expected that of a worker");
  if (!kind.empty()) url = cat(kind, "=", url);
  if (url.size() > kUrlBytesMax) return fail(Code::kInvalidArgument, "url has ", url.size(), " bytes: expected at most ", kUrlBytesMax);
  return url;
}

}  // namespace seer
