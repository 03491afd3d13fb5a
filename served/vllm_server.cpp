#include "served/vllm_server.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <utility>

#include "protocols/hash.h"

namespace seer {
namespace {

using nlohmann::json;

constexpr float kNoLogprob = -9999;  // what is given where there is none, or an infinite one
constexpr uint64_t kSeedMask = ~uint64_t{0} >> 1;  // seeds are signed there

uint64_t seed_of(const ServedAsk& ask) {
  const auto done = static_cast<uint64_t>(std::ssize(ask.tokens) - ask.prompt_tokens);
  return (done == 0 ? ask.seed : hash_pair(ask.seed, done)) & kSeedMask;
}

/// Calls take(labels, value) for each sample of a metric. Lines: `name{labels} value` or `name value`.
template <class Take>
void for_each_sample(const std::string& text, const std::string& name, Take&& take) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name)) continue;
    const std::string_view rest = std::string_view(line).substr(name.size());
    if (!rest.starts_with('{') && !rest.starts_with(' ')) continue;  // a longer name
    const size_t space = rest.rfind(' ');
    double value = 0;
    const auto [end, error] = std::from_chars(rest.data() + space + 1, rest.data() + rest.size(), value);
    if (error == std::errc()) take(rest.substr(0, space), value);
  }
}

/// Sum of the values of a metric over its label sets; none: it is not there.
std::optional<double> metric_of(const std::string& text, const std::string& name) {
  std::optional<double> sum;
  for_each_sample(text, name, [&](std::string_view, double value) { sum = sum.value_or(0) + value; });
  return sum;
}

/// The label of the first sample of a metric that has it.
std::string metric_label_of(const std::string& text, const std::string& name, const std::string& label) {
  std::string found;
  for_each_sample(text, name, [&](std::string_view labels, double) {
    const std::string mark = label + "=\"";
    const size_t at = labels.find(mark);
    if (!found.empty() || at == std::string_view::npos) return;
    const size_t from = at + mark.size();
    found = labels.substr(from, labels.find('"', from) - from);
  });
  return found;
}

/// Both interfaces: their choices differ only in where the log-probabilities are.
class VllmReader final : public AnswerReader {
 public:
  using AnswerReader::AnswerReader;

 private:
  Result<ServedPart> read_part(const json& object) override {
    const json* const choices = field_of(object, "choices");
    if (choices == nullptr || !choices->is_array()) return fail(Code::kCorrupt, "an answer has no choices");
    ServedPart part;
    if (const json* const usage = field_of(object, "usage"))
      if (const json* const details = field_of(*usage, "prompt_tokens_details")) part.cached_tokens = number_of(*details, "cached_tokens");
    if (choices->empty()) return part;  // the figures after the last token
    const json& choice = (*choices)[0];
    if (choices->size() > 1 || number_of(choice, "index") != 0) return fail(Code::kCorrupt, "it gives several responses");
    if (const json* const prompt = field_of(choice, "prompt_token_ids")) {
      SEER_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ids_of(*prompt));
      if (ids != ask_.tokens) return fail(Code::kCorrupt, "it answers to another prompt, of ", ids.size(), " tokens");
    }
    if (const json* const ids = field_of(choice, "token_ids")) {
      SEER_ASSIGN_OR_RETURN(part.output.ids, ids_of(*ids));
    } else if (!text_of(choice, "text").empty()) {
      return fail(Code::kCorrupt, "an answer has text and no token_ids: the server is too old for return_token_ids");
    }
    if (ask_.sampling.logprob_mode != LogprobMode::kNone && !part.output.empty()) SEER_RETURN_IF_ERROR(read_logprobs(choice, part));
    if (const std::string reason = text_of(choice, "finish_reason"); !reason.empty())
      SEER_RETURN_IF_ERROR(note_end(reason, text_of(choice, "stop_reason"), reason, part));
    return part;
  }

  static Status read_logprobs(const json& choice, ServedPart& part) {
    const json* const logprobs = field_of(choice, "logprobs");
    const auto take = [&](const json* value) -> Status {
      SEER_ASSIGN_OR_RETURN(const float logprob, logprob_of(value != nullptr ? *value : json()));
      if (logprob <= kNoLogprob) return fail(Code::kCorrupt, "a log-probability is ", logprob, ", which stands for none");
      part.output.logprobs.push_back(logprob);
      return {};
    };
    const json* const content = logprobs != nullptr ? field_of(*logprobs, "content") : nullptr;            // of /inference/v1/generate
    const json* const values = logprobs != nullptr ? field_of(*logprobs, "token_logprobs") : nullptr;  // of /v1/completions
    if (content != nullptr)
      for (const json& entry : *content) SEER_RETURN_IF_ERROR(take(field_of(entry, "logprob")));
    else if (values != nullptr)
      for (const json& value : *values) SEER_RETURN_IF_ERROR(take(&value));
    return {};
  }
};

/// The answers to look(), by place.
enum Look : size_t { kModels, kVersion, kWeights, kGenerate, kWorld, kMetrics };

}  // namespace

HttpAsk VllmServer::generate(const ServedAsk& ask) const {
  const SamplingParams& s = ask.sampling;
  json sampling = sampling_fields(s);
  sampling.update({{"max_tokens", ask.max_new_tokens}, {"include_stop_str_in_output", true}, {"seed", seed_of(ask)}});
  if (const int64_t least = ask.min_new_tokens(); least > 0) sampling["min_tokens"] = least;
  if (s.logprob_mode != LogprobMode::kNone) sampling["logprobs"] = 1;  // of the token itself, and of the likeliest
  if (has_generate_) {
    const json body = {{"request_id", ask.rid}, {"token_ids", ask.tokens}, {"sampling_params", sampling}, {"stream", true}};
    return {"POST", "/inference/v1/generate", body.dump()};
  }
  json body = std::move(sampling);
  body.update({{"request_id", ask.rid}, {"model", model_}, {"prompt", ask.tokens}, {"return_token_ids", true}, {"stream", true}});
  return {"POST", "/v1/completions", body.dump()};
}

std::unique_ptr<AnswerReader> VllmServer::reader(const ServedAsk& ask) const { return std::make_unique<VllmReader>(ask); }

std::optional<HttpAsk> VllmServer::abort(const std::string&) const { return std::nullopt; }

std::vector<HttpAsk> VllmServer::look() const {
  // An empty request to /inference/v1/generate is refused with 400 or 422 where there is one, and with 404 where not. The metrics come
  // last, since they take longest, and what else a busy server says must not depend on them.
  return {{"GET", "/v1/models"}, {"GET", "/version"}, {"GET", "/weight_info"}, {"POST", "/inference/v1/generate", "{}"}, {"GET", "/get_world_size"}, {"GET", "/metrics"}};
}

Result<ServerState> VllmServer::state(const std::vector<HttpAnswer>& answers) {
  const json models = json_of(answers[kModels]);
  const json* const list = field_of(models, "data");
  if (list == nullptr || !list->is_array() || list->empty())
    return fail(Code::kUnavailable, "/v1/models has no model: ", answers[kModels].status == 0 ? answers[kModels].body : cat("status ", answers[kModels].status));
  SEER_ASSIGN_OR_RETURN(std::vector<std::string> server_ids, server_ids_of((*list)[0]));
  // Without an answer its label is not known, which is something else than a server without labels.
  if (const HttpAnswer& label = answers[kWeights]; label.status == 0 || label.status == 408 || label.status == 429 || label.status >= 500)
    return fail(Code::kUnavailable, "/weight_info: ", label.status == 0 ? label.body : cat("status ", label.status));
  model_ = text_of((*list)[0], "id");
  if (const int status = answers[kGenerate].status; status == 400 || status == 404 || status == 405 || status == 422) has_generate_ = status != 404 && status != 405;
  const std::string metrics = answers[kMetrics].status == 200 ? answers[kMetrics].body : "";
  const auto cache = [&](const char* label) -> int64_t {
    const std::string text = metric_label_of(metrics, "vllm:cache_config_info", label);
    int64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  };
  const auto metric = [&](const char* name) { return metric_of(metrics, name).value_or(0); };
  return ServerState{.engine = cat("vLLM ", text_of(json_of(answers[kVersion]), "version")),
                     .model = model_,
                     .weights = text_of(json_of(answers[kWeights]), "weight_version"),
                     .kv_tokens = cache("block_size") * cache("num_gpu_blocks"),
                     .context_tokens = number_of((*list)[0], "max_model_len"),
                     .ranks = std::max<int64_t>(1, number_of(json_of(answers[kWorld]), "world_size", 1)),
                     .running = static_cast<int64_t>(metric("vllm:num_requests_running")),
                     .waiting = static_cast<int64_t>(metric("vllm:num_requests_waiting")),
                     .kv_use_share = std::max(metric("vllm:kv_cache_usage_perc"), metric("vllm:gpu_cache_usage_perc")),
                     .server_ids = std::move(server_ids)};
}

UpdateAsks VllmServer::update_weights(const std::string& folder, const std::string& label) const {
  const auto call_them = [](const std::string& name) { return HttpAsk{"POST", "/update_weight_version", json{{"new_version", name}}.dump()}; };
  // A failed reload may leave some of the new weights, so that the old label would be wrong.
  return {.steps = {{"POST", "/pause?mode=abort"},
                    call_them(label + " is being loaded"),
                    {"POST", "/collective_rpc", json{{"method", "reload_weights"}, {"kwargs", {{"weights_path", folder}}}}.dump()},
                    {"POST", "/reset_prefix_cache"},
                    call_them(label)},
          .afterwards = HttpAsk{"POST", "/resume"}};
}

}  // namespace seer
