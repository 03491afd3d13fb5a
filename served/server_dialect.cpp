#include "served/server_dialect.h"

#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "served/sglang_server.h"
#include "served/vllm_server.h"

namespace seer {

using nlohmann::json;

namespace {

/// The sentence in an error answer, whatever its shape; else the beginning of the text.
std::string message_of(const std::string& body) {
  const Result<json> parsed = parse_answer(body);
  const json object = parsed.ok() ? *parsed : json();
  const json* at = &object;
  for (const char* const name : {"error", "message", "detail"})
    if (const json* const inner = field_of(*at, name)) at = inner;
  const std::string text = at->is_string() ? at->get<std::string>() : body;
  constexpr size_t kShown = 300;
  return text.substr(0, kShown);
}

}  // namespace

/// 404 and 405 mean that this is another kind of server: others may do better. So may they after 401, 408 and 429.
bool is_refusal(int64_t status) { return status == 400 || status == 413 || status == 422; }

const char* to_string(ServerKind kind) {
  switch (kind) {
    case ServerKind::kSglang: return "sglang";
    case ServerKind::kVllm: return "vllm";
    case ServerKind::kSeer: return "seer";
  }
  return "unknown";
}

Result<ServedPart> AnswerReader::read(const json& object) {
  if (const json* const error = field_of(object, "error"))
    return ServedPart{.end = is_refusal(number_of(*error, "code")) ? ServedEnd::kRefused : ServedEnd::kFailed,  // vLLM's have a code
                      .why = cat("it says: ", error->is_string() ? error->get<std::string>() : text_of(*error, "message"))};
  SEER_ASSIGN_OR_RETURN(ServedPart part, read_part(object));
  if (ask_.sampling.logprob_mode != LogprobMode::kNone && part.output.logprobs.size() != part.output.size())
    return fail(Code::kCorrupt, part.output.size(), " tokens came with ", part.output.logprobs.size(), " log-probabilities");
  total_ += std::ssize(part.output.ids);
  if (total_ > ask_.max_new_tokens) return fail(Code::kCorrupt, "it gave ", total_, " tokens of ", ask_.max_new_tokens);
  return part;
}

std::unique_ptr<ServerDialect> make_dialect(ServerKind kind) {
  if (kind == ServerKind::kVllm) return std::make_unique<VllmServer>();
  return std::make_unique<SglangServer>(kind == ServerKind::kSeer);
}

const std::string& own_server_id() {
  static const std::string id = [] {
    std::random_device random;
    return cat(random(), "-", random(), "-", random());
  }();
  return id;
}

Result<std::vector<std::string>> server_ids_of(const json& info) {
  std::vector<std::string> ids;
  const json* const list = field_of(info, "server_ids");
  if (list == nullptr || !list->is_array()) return ids;
  for (const json& id : *list)
    if (id.is_string() && ids.size() < kServerIdsMax) ids.push_back(id.get<std::string>());
  const auto own = std::ranges::find(ids, own_server_id());
  if (own == ids.end()) return ids;
  return fail(Code::kInvalidArgument, own == ids.begin() ? kIsThisProcess : "it passes requests on to this router");
}

json sampling_fields(const SamplingParams& s) {
  json fields = {{"temperature", s.temperature},
                 {"top_p", s.top_p},
                 {"top_k", s.top_k > 0 ? s.top_k : -1},
                 {"min_p", s.min_p},
                 {"repetition_penalty", s.repetition_penalty},
                 {"ignore_eos", s.ignore_eos},
                 {"skip_special_tokens", false}};
  if (!s.stop.empty()) fields["stop"] = s.stop;
  if (!s.stop_token_ids.empty()) fields["stop_token_ids"] = s.stop_token_ids;
  return fields;
}

ServedPart part_of_error(int status, const std::string& body) {
  return {.end = is_refusal(status) ? ServedEnd::kRefused : ServedEnd::kFailed,
          .why = cat("it answered ", status, ": ", message_of(body)),
          .is_busy = status == 503 || status == 429};
}

const json* field_of(const json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(name);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

int64_t number_of(const json& object, const char* name, int64_t otherwise) {
  const json* const value = field_of(object, name);
  return value != nullptr && value->is_number_integer() ? value->get<int64_t>() : otherwise;
}

std::string text_of(const json& object, const char* name) {
  const json* const value = field_of(object, name);
  if (value == nullptr) return {};
  return value->is_string() ? value->get<std::string>() : value->dump();
}

Result<std::vector<int32_t>> ids_of(const json& list) {
  if (!list.is_array()) return fail(Code::kCorrupt, "its token ids are no list");
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const json& id : list) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<int32_t>::max()) return fail(Code::kCorrupt, "a token id is ", id.dump());
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

Status note_end(const std::string& reason, std::string matched, const std::string& message, ServedPart& part) {
  if (reason == "stop") {
    part.end = ServedEnd::kStop;
    part.matched = std::move(matched);
  } else if (reason == "length") {
    part.end = ServedEnd::kLength;
  } else if (reason == "abort" || reason == "error") {
    part.end = ServedEnd::kFailed;
    part.is_abort = reason == "abort";
    part.why = cat("it ended the request: ", message);
  } else {
    return fail(Code::kCorrupt, "a finish_reason is ", reason);
  }
  return {};
}

Result<float> logprob_of(const json& value) {
  constexpr float kRounding = 1e-3f;
  const float logprob = value.is_number() ? value.get<float>() : std::numeric_limits<float>::quiet_NaN();
  if (!(logprob <= kRounding) || std::isinf(logprob)) return fail(Code::kCorrupt, "a log-probability is ", value.dump());
  return std::min(logprob, 0.0f);
}

Result<json> parse_answer(std::string_view text) {
  constexpr int kDepthMax = 64;
  bool is_deep = false;
  json object = json::parse(
      text.begin(), text.end(),
      [&](int depth, json::parse_event_t, json&) {
        is_deep |= depth > kDepthMax;
        return !is_deep;
      },
      false);
  if (is_deep) return fail(Code::kCorrupt, "its answer is nested deeper than ", kDepthMax, " levels");
  if (object.is_discarded()) return fail(Code::kCorrupt, "its answer is not JSON");
  return object;
}

json json_of(const HttpAnswer& answer) {
  if (answer.status != 200) return nullptr;
  Result<json> object = parse_answer(answer.body);
  return object.ok() ? *std::move(object) : json();
}

}  // namespace seer
