// Fields of JSON requests that the dialects of `seer serve` share. Each error is one sentence that names the field.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/json_fields.h"
#include "cli/serve/front.h"
#include "cli/serve/response_text.h"
#include "protocols/result.h"
#include "protocols/rollout.h"

namespace seer {

/// What is answered.
using Out = nlohmann::ordered_json;
/// Bytes that are not UTF-8 become U+FFFD.
std::string json_text(const Out& json);

/// The body, which may be empty.
Result<Json> read_object(const std::string& body);
/// Null where the field is missing or null.
const Json* given_field(const Json& object, const char* name);
/// Refuses a name that is nearly one of `known`: misspelt, it would be ignored. Others pass, since clients send what other servers know.
Status check_spelling(const Json& object, const std::vector<std::string>& known);
/// Likewise, the names of the query.
Status check_query_spelling(const HttpRequest& request, const std::vector<std::string>& known);
/// Refuses each of these fields that asks for something: one that is false, empty text, an empty list or object does not.
Status refuse_fields(const Json& object, std::initializer_list<const char*> names);
/// Refuses sampling fields that would change tokens in other servers.
Status refuse_unsupported(const Json& params);
Result<bool> boolean_field(const Json& object, const char* name, bool otherwise);
/// Likewise, of a field that was found: null is `otherwise`.
Result<bool> boolean_of(const Json* value, const char* name, bool otherwise);
/// Text or an integer; empty where it is not given.
Result<std::string> text_field(const Json& object, const char* name);
/// Likewise, of a length that each prompt of a request may have a copy of.
Result<std::string> id_field(const Json& object, const char* name);
Result<std::string> id_of(const Json& value, const char* name);
Result<int64_t> int64_field(const Json& object, const char* name, int64_t otherwise, int64_t low);
/// A number in the request's query; nothing if it is not there.
Result<std::optional<uint64_t>> query_number(const HttpRequest& request, const std::string& name, uint64_t low, uint64_t high = UINT64_MAX);

struct Sampling {
  SamplingParams params;
  std::optional<uint64_t> seed;  // of the first response; the next one has that plus 1
  int64_t n = 1;
};
/// Reads the members that are options of `seer rollout`, with `_` for `-`, and n, seed and sampling_seed. `max_tokens` is the
/// dialect's name for that one. Members known to change tokens in other servers are errors. `others`: no more members may be there than
/// these; none: any others are ignored.
Result<Sampling> read_sampling(const Json& params, const char* max_tokens, int64_t max_tokens_default,
                               std::optional<std::span<const char* const>> others = {});

/// A field with one prompt or several. What it may hold depends on the dialect.
struct PromptField {
  const char* name;
  bool may_be_text = true, may_be_ids = true;
  bool add_special = true;  // to text, as in EncodeOptions
};
struct Prompts {
  std::vector<std::vector<int32_t>> ids;  // at least one prompt
  bool is_list = false;                   // the field holds several, or a list of one
};
Result<Prompts> read_prompts(const Json& value, const PromptField& field, const ServedModel& model);

/// Bytes of stop strings and stop tokens. Each prompt or group of an HTTP request has its own copy: all of them take kStopBytesMax at most.
int64_t stop_bytes(const SamplingParams& sampling);
constexpr int64_t kStopBytesMax = int64_t{16} << 20;

/// Errors: the query has another name than these.
Status check_query(const HttpRequest& request, std::initializer_list<const char*> names);

/// What the prompts of one HTTP request take together. A short body can ask for much: each prompt has n responses, and its own copy
/// of all stops.
struct AskedSoFar {
  int64_t responses = 0, stop_bytes = 0;
};
/// Adds a prompt. Errors: it is too much.
Status add_prompt(AskedSoFar& asked, const Sampling& sampling);

/// A request for one prompt, with the body's group_id, group_size and priority. Rid and tokens_to are not filled in.
Result<GatewayRequest> read_request(const Json& body, std::vector<int32_t> prompt_ids, const Sampling& sampling, Front& front);

/// What text the client wants. The member that keeps the stop in it has another name in each dialect.
Result<TextRules> read_text_rules(const Json& params, const SamplingParams& sampling, const ServedModel& model, const char* keep_stop);

/// Reads the URL of the worker that a client registers; with a "kind", "KIND=URL".
Result<std::string> worker_url(const HttpRequest& request);

/// Appends "[1,2,3]". By hand: a response can have 100 000 tokens.
void append_ids(std::string& out, const std::vector<int32_t>& ids);

}  // namespace seer
