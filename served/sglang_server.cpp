#include "served/sglang_server.h"

#include <algorithm>
#include <utility>

namespace seer {
namespace {

using nlohmann::json;

constexpr uint64_t kSeedMask = (uint64_t{1} << 31) - 1;
constexpr int kStreamInterval = 16;  // tokens of an event: events repeat all tokens, so one each would cost their square

class SglangReader final : public AnswerReader {
 public:
  using AnswerReader::AnswerReader;

 private:
  Result<ServedPart> read_part(const json& object) override {
    const json* const meta = field_of(object, "meta_info");
    if (meta == nullptr) return fail(Code::kCorrupt, "an answer has no meta_info");
    ServedPart part{.weights = weights_of(*meta), .cached_tokens = number_of(*meta, "cached_tokens")};
    const int64_t prompt = number_of(*meta, "prompt_tokens", -1);
    if (prompt != std::ssize(ask_.tokens))
      return fail(Code::kCorrupt, "it answers to a prompt of ", prompt, " tokens, not to that of ", ask_.tokens.size());
    SEER_RETURN_IF_ERROR(read_tokens(object, *meta, part));
    SEER_RETURN_IF_ERROR(read_finish(field_of(*meta, "finish_reason"), part));
    return part;
  }

  /// A server whose weights changed while the request ran tells which tokens came with which. Then no label is right.
  static std::string weights_of(const json& meta) {
    std::string weights = text_of(meta, "weight_version");
    const json* const spans = field_of(meta, "weight_versions");
    if (spans == nullptr || !spans->is_array()) return weights;
    for (const json& span : *spans)
      if (const std::string version = text_of(span, "version"); version != weights) return cat(version, " and ", weights);
    return weights;
  }

  Status read_tokens(const json& object, const json& meta, ServedPart& part) {
    const json* const logprobs = field_of(meta, "output_token_logprobs");
    std::vector<int32_t> ids;
    std::vector<float> values;
    if (logprobs != nullptr) {
      if (!logprobs->is_array()) return fail(Code::kCorrupt, "output_token_logprobs is no list");
      for (const json& entry : *logprobs) {  // [log-probability, id, text or null]
        if (!entry.is_array() || entry.size() < 2) return fail(Code::kCorrupt, "an entry of output_token_logprobs is ", entry.dump());
        SEER_ASSIGN_OR_RETURN(const float value, logprob_of(entry[0]));
        values.push_back(value);
        if (!entry[1].is_number_integer() || entry[1] < 0 || entry[1] > INT32_MAX) return fail(Code::kCorrupt, "a token id is ", entry[1].dump());
        ids.push_back(entry[1].get<int32_t>());
      }
    }
    if (const json* const output = field_of(object, "output_ids")) {
      SEER_ASSIGN_OR_RETURN(std::vector<int32_t> named, ids_of(*output));
      if (logprobs != nullptr && named != ids) return fail(Code::kCorrupt, "output_ids are not those of output_token_logprobs");
      ids = std::move(named);
    } else if (logprobs == nullptr) {
      return fail(Code::kCorrupt, "an answer has no output_ids");
    }
    const int64_t total = number_of(meta, "completion_tokens", std::ssize(ids));
    const int64_t known = std::ssize(so_far_);
    int64_t repeated = 0;
    if (std::ssize(ids) == total) {
      repeated = known;
      if (total < known || !std::equal(so_far_.begin(), so_far_.end(), ids.begin()))
        return fail(Code::kCorrupt, "its ids do not go on from the ", known, " before");
    } else if (known + std::ssize(ids) != total) {
      return fail(Code::kCorrupt, "it has ", total, " tokens by its count, ", known, " came before and ", ids.size(), " now");
    }
    part.output = OutputTokens{std::move(ids), std::move(values)}.from(static_cast<size_t>(repeated));
    so_far_.insert(so_far_.end(), part.output.ids.begin(), part.output.ids.end());
    return {};
  }

  static Status read_finish(const json* finish, ServedPart& part) {
    if (finish == nullptr) return {};
    const int64_t status = number_of(*finish, "status_code");
    part.is_busy = status == 503;
    SEER_RETURN_IF_ERROR(note_end(finish->is_string() ? finish->get<std::string>() : text_of(*finish, "type"), text_of(*finish, "matched"), text_of(*finish, "message"), part));
    part.is_abort &= status == 0;  // with one, SGLang aborts because of an error
    if (part.end == ServedEnd::kFailed && is_refusal(status)) part.end = ServedEnd::kRefused;
    return {};
  }

  std::vector<int32_t> so_far_;
};

/// Prompt and output together, so that no prompt is refused and no output is cut: SGLang takes prompts shorter than this.
int64_t longest_request(const json& info) {
  if (const int64_t prompt = number_of(info, "max_req_input_len"); prompt > 0) return prompt;
  constexpr int64_t kSpared = 6;  // by versions that do not say
  const int64_t context = number_of(info, "context_length"), kv_tokens = number_of(info, "max_total_num_tokens");
  return std::max<int64_t>(0, (kv_tokens > 0 ? std::min(context, kv_tokens) : context) - kSpared);
}

}  // namespace

HttpAsk SglangServer::generate(const ServedAsk& ask) const {
  const SamplingParams& s = ask.sampling;
  json sampling = sampling_fields(s);
  sampling.update({{"max_new_tokens", ask.max_new_tokens},
                   {"no_stop_trim", true},
                   {"stream_interval", kStreamInterval},
                   {"sampling_seed", is_seer_ ? ask.seed : ask.seed & kSeedMask}});
  if (const int64_t least = ask.min_new_tokens(); least > 0) sampling["min_new_tokens"] = least;
  json body = {{"rid", ask.rid},
               {"input_ids", ask.tokens},
               {"sampling_params", std::move(sampling)},
               {"return_logprob", s.logprob_mode != LogprobMode::kNone},
               {"stream", true}};
  if (is_seer_) {
    body["incremental"] = true;
    body["group_id"] = ask.rid;  // complete with this request, so that it does not wait for others
    body["group_size"] = 1;
    if (s.logprob_mode == LogprobMode::kRaw) body["logprob_mode"] = "raw";
  }
  return {"POST", "/generate", body.dump()};
}

std::unique_ptr<AnswerReader> SglangServer::reader(const ServedAsk& ask) const { return std::make_unique<SglangReader>(ask); }

std::optional<HttpAsk> SglangServer::abort(const std::string& rid) const {
  return HttpAsk{"POST", "/abort_request", json{{"rid", rid}}.dump()};
}

std::vector<HttpAsk> SglangServer::look() const {
  return {{"GET", "/server_info"}, {"GET", "/get_server_info"}, {"GET", "/v1/loads?include=core"}};
}

Result<ServerState> SglangServer::state(const std::vector<HttpAnswer>& answers) {
  json info = json_of(answers[0]);
  if (!info.is_object()) info = json_of(answers[1]);
  if (!info.is_object()) return fail(Code::kUnavailable, "neither /server_info nor /get_server_info answers: ", answers[0].status == 0 ? answers[0].body : cat("status ", answers[0].status));
  const bool is_seer = text_of(info, "version") == "seer";
  if (must_be_seer_ && !is_seer) return fail(Code::kInvalidArgument, "it is no `seer serve`: its version is ", text_of(info, "version"));
  SEER_ASSIGN_OR_RETURN(std::vector<std::string> server_ids, server_ids_of(info));
  is_seer_ = is_seer;
  const int64_t ranks = std::max<int64_t>(1, number_of(info, "dp_size", 1)) * std::max<int64_t>(1, number_of(info, "instances", 1));
  ServerState state{.engine = is_seer ? "Seer" : cat("SGLang ", text_of(info, "version")),
                    .model = text_of(info, "served_model_name"),
                    .weights = text_of(info, "weight_version"),
                    .kv_tokens = number_of(info, "max_total_num_tokens") * ranks,
                    .context_tokens = is_seer ? number_of(info, "context_length") : longest_request(info),
                    .rows_max = number_of(info, "max_running_requests") * ranks,
                    .ranks = std::max<int64_t>(1, number_of(info, "tp_size", 1)),
                    .is_deterministic = is_seer || info.value("enable_deterministic_inference", json(false)) == true,
                    .server_ids = std::move(server_ids)};
  if (state.model.empty()) state.model = text_of(info, "model_path");
  if (const json* const internal = field_of(info, "internal_states"); internal != nullptr && internal->is_array() && !internal->empty()) {
    if (state.rows_max == 0) state.rows_max = number_of((*internal)[0], "effective_max_running_requests_per_dp") * ranks;
    if (state.weights.empty()) state.weights = text_of((*internal)[0], "weight_version");
  }
  const json loads = json_of(answers[2]);
  if (const json* const list = field_of(loads, "loads"); list != nullptr && list->is_array())
    for (const json& load : *list) {
      state.running += number_of(load, "num_running_reqs");
      state.waiting += number_of(load, "num_waiting_reqs");
      if (const json* const use = field_of(load, "token_usage"); use != nullptr && use->is_number())
        state.kv_use_share = std::max(state.kv_use_share, use->get<double>());
    }
  return state;
}

UpdateAsks SglangServer::update_weights(const std::string& folder, const std::string& label) const {
  return {.steps = {{"POST", "/update_weights_from_disk", json{{"model_path", folder}, {"weight_version", label}}.dump()}}};
}

}  // namespace seer
