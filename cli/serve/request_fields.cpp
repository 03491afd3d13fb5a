#include "cli/serve/request_fields.h"

#include <algorithm>
#include <map>
#include <vector>

#include "cli/json_lines.h"
#include "cli/sampling_options.h"

namespace seer {
namespace {

constexpr int64_t kResponsesMax = 100'000;  // of one HTTP request

/// Sampling that a client may ask for and that Seer does not do, unless it has the value that changes nothing.
Status check_not_refused(const Json& params) {
  static const std::map<std::string, Json> kOnly{{"frequency_penalty", 0}, {"presence_penalty", 0}, {"min_new_tokens", 0},
                                                 {"length_penalty", 1},    {"logit_bias", Json::object()}};
  for (const auto& [name, only] : kOnly)
    if (const Json* const value = given_field(params, name.c_str()); value != nullptr && *value != only)
      return fail(Code::kInvalidArgument, name, " is ", shown_value(*value), ": expected ", only.dump(), ", since it is not supported");
  for (const char* const name : {"json_schema", "regex", "ebnf", "structural_tag", "custom_params", "lora_path"})
    if (const Json* const value = given_field(params, name); value != nullptr && !value->empty())
      return fail(Code::kInvalidArgument, name, " is not supported");
  return {};
}

}  // namespace

std::string json_text(const Out& json) { return json.dump(-1, ' ', false, Out::error_handler_t::replace); }

Result<Json> read_object(const std::string& body) {
  if (is_blank(body)) return Json::object();
  Json object = Json::parse(body, nullptr, false);
  if (object.is_discarded()) {
    SEER_RETURN_IF_ERROR(check_object("body", 1, body));  // says where it goes wrong
    return fail(Code::kInvalidArgument, "the body is not JSON");
  }
  if (!object.is_object()) return fail(Code::kInvalidArgument, "the body is ", object.type_name(), ": expected a JSON object");
  return object;
}

const Json* given_field(const Json& object, const char* name) {
  const auto at = object.find(name);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

Result<bool> boolean_field(const Json& object, const char* name, bool otherwise) {
  const Json* const value = given_field(object, name);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) return fail(Code::kInvalidArgument, name, " is ", shown_value(*value), ": expected true or false");
  return value->get<bool>();
}

Result<std::string> text_field(const Json& object, const char* name) {
  const Json* const value = given_field(object, name);
  if (value == nullptr) return std::string();
  if (value->is_string()) return value->get<std::string>();
  if (value->is_number_integer()) return value->dump();
  return fail(Code::kInvalidArgument, name, " is ", shown_value(*value), ": expected text");
}

Result<int64_t> int64_field(const Json& object, const char* name, int64_t otherwise, int64_t low) {
  const Json* const value = given_field(object, name);
  if (value == nullptr) return otherwise;
  return integer_field<int64_t>(*value, name, low, "");
}

Result<Sampling> read_sampling(const Json& params, const char* max_tokens, int64_t max_tokens_default) {
  if (!params.is_object()) return fail(Code::kInvalidArgument, "sampling_params is ", params.type_name(), ": expected an object");
  SEER_RETURN_IF_ERROR(check_not_refused(params));
  Sampling sampling;
  sampling.params.max_tokens = max_tokens_default;
  std::vector<OptionSpec> options = sampling_options(sampling.params);
  options.push_back({"n", "N", &sampling.n, "responses", between(1, kResponsesMax)});
  for (OptionSpec& option : options) std::ranges::replace(option.name, '-', '_');
  for (const auto& [name, value] : params.items()) {
    if (value.is_null()) continue;
    const bool is_off = name == "top_k" && value == -1;
    const auto option = std::ranges::find(options, name == max_tokens ? "max_tokens" : name, &OptionSpec::name);
    if (option == options.end() || is_off) continue;  // other fields change no token
    option->name = name;
    SEER_RETURN_IF_ERROR(set_json_option(*option, value.dump(), ""));
  }
  for (const char* const name : {"sampling_seed", "seed"})
    if (const Json* const seed = given_field(params, name)) {
      SEER_ASSIGN_OR_RETURN(sampling.seed, integer_field<uint64_t>(*seed, name, 0, ""));
    }
  return sampling;
}

}  // namespace seer
