#include "cli/serve/sglang_dialect.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "cli/base64.h"
#include "cli/json_lines.h"
#include "cli/serve/request_fields.h"
#include "served/server_dialect.h"

namespace seer {
namespace {

constexpr int64_t kDefaultTokens = 128;  // SGLang's default of max_new_tokens
/// In sampling parameters: of the text and of its events.
/// Fields of /generate whose misspellings are refused: without them it would answer with other tokens, or less of them.
const std::vector<std::string> kGenerateNames{"text", "input_ids", "sampling_params", "return_logprob", "logprob_mode", "stream",
                                              "incremental", "rid", "priority", "group_id", "group_size"};
constexpr const char* kTextNames[] = {"skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "stream_interval"};
constexpr size_t kWorkersMax = 1024;
constexpr const char* kOwnWorker = "worker-0";  // this server in its list; those that clients add begin with 1
constexpr size_t kPathBytesMax = 4095;  // as the system allows

constexpr const char* kOtherWays = "send new weights to /update_weights_from_disk or /seer/v1/weights";
constexpr const char* kNoMemory = "an instance keeps its memory as long as it runs";
constexpr const char* kNoLora = "LoRA adapters are not supported";
/// What SGLang has and Seer does not, and what to do instead.
constexpr std::array<std::pair<std::string_view, const char*>, 7> kUnsupported{{{"/update_weights_from_tensor", kOtherWays},
                                                                                 {"/update_weights_from_ipc", kOtherWays},
                                                                                 {"/pull_weights", kOtherWays},
                                                                                 {"/release_memory_occupation", kNoMemory},
                                                                                 {"/resume_memory_occupation", kNoMemory},
                                                                                 {"/load_lora_adapter", kNoLora},
                                                                                 {"/unload_lora_adapter", kNoLora}}};

/// As SGLang says what is wrong.
void refuse(const std::shared_ptr<HttpReply>& reply, const Error& error) {
  const bool is_ours = error.code != Code::kInvalidArgument;
  reply->send(is_ours ? 500 : 400, json_text({{"error", {{"message", error.detail}, {"type", is_ours ? "InternalServerError" : "BadRequestError"}}}}));
}

/// What is the same in all answers to a request.
struct Answering {
  const ServedModel* model = nullptr;
  size_t prompt_tokens = 0;
  std::string rid;
  bool wants_logprobs = false;
  bool wants_kept = false;  // the ids that top_p kept
  TextRules text;
};

/// Fields of sampling_params. At the top of a request they would have no effect.
constexpr std::array<const char*, 20> kSamplingNames{"max_new_tokens", "max_tokens", "min_new_tokens", "min_tokens", "temperature", "top_p", "top_k",
                                                     "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "stop",
                                                     "stop_token_ids", "ignore_eos", "sampling_seed", "seed", "n", "no_stop_trim",
                                                     "skip_special_tokens", "custom_params"};

/// An event that repeats all tokens comes after this share more of them, so that a stream's work stays linear in its length.
constexpr size_t kRepeatedShare = 32;

struct Generate {
  std::vector<GatewayRequest> requests;
  std::vector<Answering> to;  // by request
  bool is_list = false;       // the answer is
  bool streams = false;
  bool is_incremental = false;  // events have only the tokens since the one before
};

/// Such a field is a list with one entry for each prompt, or one value for all.
Status check_entries(const Json* field, const char* name, size_t prompts) {
  if (field == nullptr || !field->is_array() || field->size() == prompts) return {};
  return fail(Code::kInvalidArgument, name, " has ", field->size(), " entries: expected ", prompts, ", one for each prompt");
}
const Json* entry(const Json* field, size_t i) {
  if (field == nullptr || !field->is_array()) return field;
  return (*field)[i].is_null() ? nullptr : &(*field)[i];
}

Result<Prompts> prompts_of(const Json& body, const ServedModel& model) {
  const Json* const ids = given_field(body, "input_ids");
  const Json* const texts = given_field(body, "text");
  if ((ids != nullptr) == (texts != nullptr))
    return fail(Code::kInvalidArgument, ids != nullptr ? "both input_ids and" : "neither input_ids nor", " text: expected one of them");
  return ids != nullptr ? read_prompts(*ids, {.name = "input_ids", .may_be_text = false}, model)
                        : read_prompts(*texts, {.name = "text", .may_be_ids = false}, model);
}

Result<LogprobMode> read_logprob_mode(const Json& body) {
  SEER_ASSIGN_OR_RETURN(const std::string mode, text_field(body, "logprob_mode"));
  if (mode == "raw") return LogprobMode::kRaw;
  if (mode.empty() || mode == "processed") return LogprobMode::kProcessed;
  return fail(Code::kInvalidArgument, "logprob_mode is ", json_string(shown(mode)), ": expected \"processed\" or \"raw\"");
}

/// Log-probabilities are those of the sampled tokens: none of the prompt, nor of other candidates.
Status check_logprobs_asked(const Json& body) {
  const auto check = [](const Json& value, const char* name, int64_t only) -> Status {
    if (value.is_null() || value == only) return {};
    return fail(Code::kInvalidArgument, name, " is ", shown_value(value), ": expected ", only, ", since only sampled tokens have log-probabilities");
  };
  for (const auto& [name, only] : {std::pair{"logprob_start_len", -1}, {"top_logprobs_num", 0}}) {
    const Json* const given = given_field(body, name);
    if (given == nullptr) continue;
    if (!given->is_array()) SEER_RETURN_IF_ERROR(check(*given, name, only));
    if (given->is_array())
      for (const Json& value : *given) SEER_RETURN_IF_ERROR(check(value, name, only));
  }
  return {};
}

/// Takes `custom_params` out of the sampling parameters. True: the ids that top_p kept are wanted (slime).
Result<bool> take_custom_params(Json& params) {
  const Json* const custom = given_field(params, "custom_params");
  if (custom == nullptr) return false;
  if (!custom->is_object()) return fail(Code::kInvalidArgument, "custom_params is ", custom->type_name(), ": expected an object");
  for (const auto& [name, value] : custom->items())
    if (name != "return_top_p_token_ids") return fail(Code::kInvalidArgument, "custom_params.", shown(name), " is not supported");
  SEER_ASSIGN_OR_RETURN(const bool wants_kept, boolean_field(*custom, "return_top_p_token_ids", false));
  params.erase("custom_params");
  return wants_kept;
}

Result<Generate> parse_generate(const std::string& body_text, Front& front) {
  const ServedModel& model = front.model();
  SEER_ASSIGN_OR_RETURN(const Json body, read_object(body_text));
  SEER_RETURN_IF_ERROR(check_spelling(body, kGenerateNames));
  Generate call;
  SEER_ASSIGN_OR_RETURN(Prompts prompts, prompts_of(body, model));
  call.is_list = prompts.is_list;
  SEER_RETURN_IF_ERROR(refuse_fields(body, {"image_data", "video_data", "audio_data", "lora_path", "input_embeds", "return_routed_experts",
                                            "return_hidden_states", "token_ids_logprob", "custom_logit_processor", "session_params"}));
  for (const char* const name : kSamplingNames)
    if (given_field(body, name) != nullptr) return fail(Code::kInvalidArgument, name, " is beside sampling_params: expected in it");
  SEER_RETURN_IF_ERROR(refuse_unsupported(body));
  SEER_ASSIGN_OR_RETURN(call.streams, boolean_field(body, "stream", false));
  SEER_ASSIGN_OR_RETURN(call.is_incremental, boolean_field(body, "incremental", false));
  SEER_ASSIGN_OR_RETURN(const LogprobMode logprob_mode, read_logprob_mode(body));
  const Json* const logprobs = given_field(body, "return_logprob");
  const Json empty = Json::object();
  const Json* const params = given_field(body, "sampling_params");
  const Json* const rids = given_field(body, "rid");
  SEER_RETURN_IF_ERROR(check_entries(params, "sampling_params", prompts.ids.size()));
  SEER_RETURN_IF_ERROR(check_entries(logprobs, "return_logprob", prompts.ids.size()));
  SEER_RETURN_IF_ERROR(check_entries(rids, "rid", prompts.ids.size()));
  AskedSoFar asked;
  bool any_logprobs = false;
  for (size_t i = 0; i < prompts.ids.size(); ++i) {
    const Json* const given = entry(params, i);
    Json own = given == nullptr ? empty : *given;
    SEER_ASSIGN_OR_RETURN(const bool wants_kept, take_custom_params(own));
    SEER_ASSIGN_OR_RETURN(Sampling sampling, read_sampling(own, "max_new_tokens", kDefaultTokens, kTextNames));
    sampling.params.logprob_mode = wants_kept ? LogprobMode::kKept : logprob_mode;
    SEER_RETURN_IF_ERROR(add_prompt(asked, sampling));
    const size_t prompt_tokens = prompts.ids[i].size();
    std::vector<int32_t> before = end_of_prompt(prompts.ids[i]);
    SEER_ASSIGN_OR_RETURN(GatewayRequest request, read_request(body, std::move(prompts.ids[i]), sampling, front));
    if (const Json* const rid = entry(rids, i)) {
      SEER_ASSIGN_OR_RETURN(request.rid, id_of(*rid, "rid"));
    }
    if (request.rid.empty()) request.rid = front.fresh_rid();
    SEER_ASSIGN_OR_RETURN(const bool wants_logprobs, boolean_of(entry(logprobs, i), "return_logprob", false));
    any_logprobs |= wants_logprobs;
    request.tokens_to = call.streams ? TokensTo::kClient : TokensTo::kNobody;
    SEER_ASSIGN_OR_RETURN(TextRules text, read_text_rules(own, sampling.params, model, "no_stop_trim"));
    text.before = std::move(before);
    call.to.push_back({&model, prompt_tokens, request.rid, wants_logprobs, wants_kept, std::move(text)});
    call.is_list |= sampling.n > 1;
    call.requests.push_back(std::move(request));
  }
  if (any_logprobs) SEER_RETURN_IF_ERROR(check_logprobs_asked(body));
  if (call.streams && (call.requests.size() > 1 || call.requests[0].seeds.size() > 1))
    return fail(Code::kInvalidArgument, "stream is for one response: expected one prompt and n = 1");
  return call;
}

Out finish_of(const Response& r, const std::vector<std::string>& stop_texts) {
  if (r.finish == FinishReason::kLength) return {{"type", "length"}, {"length", r.output.ids.size()}};
  if (r.finish == FinishReason::kAborted)
    return {{"type", "abort"}, {"message", r.output.ids.empty() ? "Abort before prefill" : "Aborted"}};
  if (r.finish != FinishReason::kStop) return nullptr;  // it goes on
  const StopCause cause = stop_cause(r, stop_texts);
  Out stop = {{"type", "stop"}};
  if (!cause.text.empty()) stop["matched"] = cause.text;
  else if (cause.token >= 0) stop["matched"] = cause.token;
  return stop;
}

/// slime's fields for the ids that top_p kept at the tokens from `first` on.
std::string kept_text(const KeptIds& kept, size_t first) {
  const uint64_t before = first == 0 ? 0 : kept.ends[first - 1];
  std::vector<int32_t> offsets{0};
  for (size_t i = first; i < kept.tokens(); ++i) offsets.push_back(static_cast<int32_t>(kept.ends[i] - before));
  return cat(",\"top_p_token_ids\":\"", base64_of(std::as_bytes(std::span(kept.ids).subspan(before))),
             "\",\"top_p_token_offsets\":\"", base64_of(std::as_bytes(std::span(offsets))), "\"");
}

/// Written by hand: a response can have 100 000 tokens.
/// `told`: tokens that earlier events of a stream have given; none: it is no stream, or its events repeat all tokens.
std::string answer_text(const Answering& to, const Response& r, const std::string& version, std::optional<size_t> told = {}) {
  Out meta = {{"id", to.rid},
              {"finish_reason", finish_of(r, to.text.stop)},
              {"prompt_tokens", to.prompt_tokens},
              {"weight_version", version},
              {"completion_tokens", r.output.ids.size()},
              {"cached_tokens", r.cached_tokens},  // 0 until it is over
              {"seed", r.seed}};
  if (r.finish != FinishReason::kNone) {
    meta["queue_time"] = static_cast<double>(r.queue_us) / 1e6;
    meta["e2e_latency"] = static_cast<double>(r.queue_us + r.run_us) / 1e6;
  }
  const std::string text = told ? std::string() : response_text(to.model->tokenizer.get(), to.text, r);  // half a character is no text
  const size_t first = told.value_or(0);
  std::string out = cat("{\"text\":", json_string(text), ",\"output_ids\":");
  append_ids(out, std::vector<int32_t>(r.output.ids.begin() + static_cast<ptrdiff_t>(first), r.output.ids.end()));
  std::string meta_text = json_text(meta);
  meta_text.pop_back();
  out += cat(",\"meta_info\":", meta_text);
  if (to.wants_logprobs) {
    out += ",\"output_token_logprobs\":[";
    for (size_t i = first; i < r.output.ids.size(); ++i) {
      out += i > first ? ",[" : "[";
      append_float(out, r.output.logprobs[i]);
      out += cat(",", r.output.ids[i], ",null]");
    }
    out += "]";
  }
  if (to.wants_kept) out += kept_text(r.output.kept_ids, first);
  return out + "}}";
}

void run(Front& front, Result<Generate> parsed, const std::shared_ptr<HttpReply>& reply) {
  if (!parsed.ok()) return refuse(reply, parsed.error());
  Call call{.requests = std::move(parsed->requests)};
  if (parsed->streams) {
    const auto so_far = std::make_shared<Response>();
    so_far->seed = call.requests[0].seeds[0];
    reply->begin("text/event-stream");
    const auto told = std::make_shared<std::optional<size_t>>();
    if (parsed->is_incremental) *told = 0;
    const auto send = [&front, to = std::move(parsed->to[0]), reply, told](const Response& r) {
      reply->write(cat("data: ", answer_text(to, r, front.version_label(r.version), *told), "\n\n"));
      if (*told) *told = r.output.ids.size();
    };
    const auto due = std::make_shared<size_t>(0);  // an event that repeats all tokens is sent from this many on
    call.tokens = [so_far, send, told, due, reply](size_t, uint32_t, const CommittedTokens& part, WeightVersion version) {
      so_far->version = version;
      so_far->output.append(part.output);
      const size_t tokens = so_far->output.size();
      if (!*told && (tokens < *due || !reply->has_room())) return;  // the next event has these tokens too
      send(*so_far);
      *due = tokens + tokens / kRepeatedShare;
    };
    call.done = [send, reply](const std::vector<std::vector<Response>>& responses) {
      const Response& r = responses[0][0];
      if (r.finish == FinishReason::kError)
        reply->write(cat("data: ", json_text({{"error", {{"message", r.error}}}}), "\n\n"));
      else
        send(r);
      reply->write("data: [DONE]\n\n");
      reply->end();
    };
  } else {
    call.done = [&front, to = std::move(parsed->to), is_list = parsed->is_list, reply](const std::vector<std::vector<Response>>& responses) {
      std::string out = is_list ? "[" : "";
      for (size_t i = 0; i < responses.size(); ++i)
        for (const Response& r : responses[i]) {
          if (r.finish == FinishReason::kError) return refuse(reply, fail(Code::kUnavailable, r.error));
          if (out.size() > 1) out += ',';
          out += answer_text(to[i], r, front.version_label(r.version));
        }
      reply->send(200, out + (is_list ? "]" : ""));
    };
  }
  front.run(std::move(call), reply);
}

/// Fields of /update_weights_from_disk: those that are read, then SGLang's others, which have no effect here.
const std::vector<std::string>& update_fields() {
  static const std::vector<std::string> kFields{"model_path", "weight_version", "mode", "abort_all_requests", "load_format", "is_async",
                                                "torch_empty_cache", "keep_pause", "recapture_cuda_graph", "token_step", "flush_cache", "manifest",
                                                "model"};
  return kFields;
}

/// What /update_weights_from_disk asks for.
struct DiskUpdate {
  std::string folder;
  WeightLabel label;
  InFlight in_flight = InFlight::kFinish;
};

Result<DiskUpdate> read_disk_update(const std::string& text, WeightVersion last_used) {
  const auto wrong = [](const auto&... what) { return fail(Code::kInvalidArgument, what...); };
  SEER_ASSIGN_OR_RETURN(const Json body, read_object(text));
  if (given_field(body, "version") != nullptr) return wrong("version is unknown: expected weight_version");
  SEER_RETURN_IF_ERROR(check_spelling(body, update_fields()));
  SEER_ASSIGN_OR_RETURN(const std::string folder, text_field(body, "model_path"));
  SEER_ASSIGN_OR_RETURN(const std::string version, text_field(body, "weight_version"));
  SEER_ASSIGN_OR_RETURN(const std::string mode, text_field(body, "mode"));
  if (folder.empty()) return wrong("model_path is missing: expected a folder with safetensors files");
  if (folder.size() > kPathBytesMax || folder.find('\0') != std::string::npos)
    return wrong("model_path has ", folder.size(), " bytes: expected at most ", kPathBytesMax, ", none of them 0");
  const Json* const given = given_field(body, "weight_version");  // a number counts as those here do
  if (given != nullptr && version.empty()) return wrong("weight_version is empty: expected a number or a name");
  const bool is_of_trainer = given != nullptr && given->is_string();
  SEER_ASSIGN_OR_RETURN(const WeightLabel label, is_of_trainer ? read_trainer_label("weight_version", version, last_used)
                                                               : read_weight_label("weight_version", version));
  SEER_ASSIGN_OR_RETURN(InFlight in_flight, read_update_mode(mode));
  SEER_ASSIGN_OR_RETURN(const bool aborts, boolean_field(body, "abort_all_requests", in_flight == InFlight::kAbort));
  if (mode.empty() && !aborts) in_flight = InFlight::kFinish;
  if (aborts != (in_flight == InFlight::kAbort))
    return wrong("abort_all_requests is ", aborts ? "true" : "false", ", and mode is ", json_string(mode), ": expected one of them alone");
  return DiskUpdate{folder, label, in_flight};
}

}  // namespace

bool SglangDialect::handle(HttpRequest& request, const Reply& reply) {
  const std::string& path = request.path;
  const bool is_post = request.method == "POST" || request.method == "PUT";
  if (path == "/generate" && is_post) generate(request, reply);
  else if (path == "/server_info" || path == "/get_server_info") server_info(reply);
  else if (path == "/model_info" || path == "/get_model_info") model_info(reply);
  else if (path == "/workers" || path == "/list_workers" || path.starts_with("/workers/") || path == "/add_worker") workers(request, reply);
  else if (path == "/abort_request" && is_post) abort_request(request, reply);
  else if (path == "/v1/loads" || path == "/get_load") loads(reply, path == "/v1/loads");
  else if (path == "/pause_generation" && is_post) pause(request, reply);
  else if (path == "/continue_generation" && is_post) go_on(reply);
  else if (path == "/flush_cache") flush(reply);
  else if (path == "/update_weights_from_disk" && is_post) update_from_disk(request, reply);
  else if (path == "/get_weight_version" || path == "/weight_version")
    reply->send(200, json_text({{"weight_version", front_.version_label(front_.version())}}));
  else if (const auto known = std::ranges::find(kUnsupported, path, &decltype(kUnsupported)::value_type::first); known != kUnsupported.end() && is_post)
    reply->send(501, json_text({{"error", {{"message", cat(path, " is not supported: ", known->second)}, {"type", "NotImplementedError"}}}}));
  else return false;
  return true;
}

void SglangDialect::generate(HttpRequest& request, const Reply& reply) {
  front_.read_body(
      request, [&front = front_](const std::string& body) { return parse_generate(body, front); },
      [&front = front_, reply](Result<Generate> parsed) { run(front, std::move(parsed), reply); });
}

void SglangDialect::server_info(const Reply& reply) {
  const ServedModel& model = front_.model();
  const int64_t ranks = model.ranks();  // slime makes its group of num_gpus and itself
  reply->send(200, json_text({{"model_path", model.folder}, {"served_model_name", model.name}, {"tp_size", ranks}, {"pp_size", 1}, {"ep_size", 1},
                            {"dp_size", 1}, {"moe_dp_size", 1}, {"num_gpus", ranks}, {"num_gpus_per_engine", ranks}, {"disaggregation_mode", nullptr},
                            {"disaggregation_bootstrap_port", nullptr}, {"encoder_only", false}, {"enable_memory_saver", false},
                            {"enable_return_routed_experts", false}, {"dtype", model.dtype}, {"context_length", model.config.context_tokens_max},
                            {"instances", model.instances_up()}, {"server_ids", model.server_ids()},
                            {"max_running_requests", model.rows_max == 0 ? Out() : Out(model.rows_max)},
                            {"max_total_num_tokens", model.tokens_max}, {"weight_version", front_.version_label(front_.version())}, {"version", "seer"}}));
}

void SglangDialect::model_info(const Reply& reply) {
  const ServedModel& model = front_.model();
  reply->send(200, json_text({{"model_path", model.folder}, {"tokenizer_path", model.folder}, {"is_generation", true},
                            {"weight_version", front_.version_label(front_.version())}}));
}

/// A router's list. Whatever a client registers, this address is the one engine behind it. Registrations end with the process, and a trainer
/// that aborts the requests of all workers does not make them again: without any, the list has this address as the client knows it.
void SglangDialect::workers(const HttpRequest& request, const Reply& reply) {
  const std::string own_url = cat(scheme_, "://", request.host);
  if (request.method == "GET") {
    Out list = Out::array(), urls = Out::array();
    std::map<std::string, std::string> workers = workers_;
    if (workers.empty() && !request.host.empty()) workers[kOwnWorker] = own_url;
    for (const auto& [id, url] : workers) {
      list.push_back({{"id", id}, {"url", url}, {"is_healthy", true}, {"worker_type", "regular"}});
      urls.push_back(url);
    }
    return reply->send(200, json_text({{"workers", list}, {"urls", urls}, {"total", list.size()}}));
  }
  if (request.method == "DELETE") {
    const std::string name = decode_percent(request.path.substr(request.path.rfind('/') + 1));  // its id, or its URL with percent signs
    const bool is_own = workers_.empty() && (name == kOwnWorker || name == own_url);
    const auto is_named = [&](const auto& worker) { return worker.first == name || worker.second == name; };
    if (std::erase_if(workers_, is_named) > 0 || is_own) return reply->send(200, json_text({{"success", true}}));
    return reply->send(404, http_error_body(cat("there is no worker ", json_string(shown(name))), 404));
  }
  const Result<std::string> given = worker_url(request);
  if (!given.ok()) return refuse(reply, given.error());
  const std::string& url = *given;
  const auto known = std::ranges::find(workers_, url, &std::pair<const std::string, std::string>::second);
  if (known == workers_.end() && workers_.size() >= kWorkersMax)
    return refuse(reply, fail(Code::kInvalidArgument, "there are ", kWorkersMax, " workers, which is the limit: delete one first"));
  const std::string id = known != workers_.end() ? known->first : cat("worker-", ++last_worker_);
  workers_[id] = url;
  reply->send(202, json_text({{"status", "accepted"}, {"worker_id", id}, {"url", url}}));
}

void SglangDialect::abort_request(const HttpRequest& request, const Reply& reply) {
  const Result<Json> body = read_object(request.body);
  if (!body.ok()) return refuse(reply, body.error());
  if (const Status names = check_spelling(*body, {"rid", "abort_all", "abort_message"}); !names.ok()) return refuse(reply, names.error());
  const Result<bool> all = boolean_field(*body, "abort_all", false);
  if (!all.ok()) return refuse(reply, all.error());
  const Result<std::string> rid = text_field(*body, "rid");
  if (!rid.ok()) return refuse(reply, rid.error());
  if (!*all && rid->empty()) return refuse(reply, fail(Code::kInvalidArgument, "neither rid nor abort_all: expected one of them"));
  front_.ask([rid = *all ? std::string() : *rid](GatewayActor& gateway) { return gateway.abort(rid); },
             [reply](int64_t count) { reply->send(200, json_text({{"success", true}, {"aborted", count}})); });
}

void SglangDialect::loads(const Reply& reply, bool in_list) {
  front_.ask([](GatewayActor& gateway) { return gateway.loads(); },
             [reply, in_list](const GatewayLoads& now) {
               const Out load = {{"dp_rank", 0}, {"num_reqs", now.running + now.waiting}, {"num_running_reqs", now.running},
                                 {"num_waiting_reqs", now.waiting}, {"num_tokens", 0}, {"token_usage", now.kv_use_share}};
               reply->send(200, in_list ? json_text({{"loads", Out::array({load})}}) : json_text(Out::array({load})));
             });
}

void SglangDialect::pause(const HttpRequest& request, const Reply& reply) {
  const Result<Json> body = read_object(request.body);
  if (!body.ok()) return refuse(reply, body.error());
  if (const Status names = check_spelling(*body, {"mode", "model"}); !names.ok()) return refuse(reply, names.error());
  const Result<std::string> mode = text_field(*body, "mode");
  if (!mode.ok()) return refuse(reply, mode.error());
  const Result<InFlight> in_flight = read_in_flight(*mode, {{"retract", InFlight::kRedo}, {"in_place", InFlight::kRedo}});
  if (!in_flight.ok()) return refuse(reply, in_flight.error());
  front_.pause(*in_flight, [reply] { reply->send(200, json_text({{"status", "ok"}, {"message", "Generation paused successfully."}})); });
}

void SglangDialect::go_on(const Reply& reply) {
  front_.ask([](GatewayActor& gateway) { return gateway.go_on(), 0; },
             [reply](int) { reply->send(200, json_text({{"status", "ok"}, {"message", "Generation continued successfully."}})); });
}

void SglangDialect::flush(const Reply& reply) {
  front_.ask([](GatewayActor& gateway) { return gateway.flush(); },
             [reply](const Status& flushed) {
               if (flushed.ok()) return reply->send(200, "Cache flushed.\n", "text/plain");
               reply->send(400, cat("Cache was not flushed: ", flushed.error().detail, ".\n"), "text/plain");
             });
}

void SglangDialect::update_from_disk(const HttpRequest& request, const Reply& reply) {
  const auto answer = [reply](int status, const std::string& message) {
    reply->send(status, json_text({{"success", status == 200}, {"message", message}, {"num_paused_requests", 0}}));
  };
  const WeightVersion last_used = front_.last_used();
  const Result<DiskUpdate> update = read_disk_update(request.body, last_used);
  if (!update.ok()) return answer(400, update.error().detail);
  if (front_.is_updating()) return answer(409, kUpdateIsUnderWay);
  if (const auto number = update->label.number; number && *number > front_.version() && *number <= last_used)
    return answer(400, cat("weight_version is ", *number, ": an update to ", last_used, " failed, so expected a number above that"));
  front_.update_weights({.version = {}, .folder = update->folder}, update->in_flight, update->label, [this, answer](const WeightsDone& done) {
    if (!done.status.ok()) return answer(400, done.status.error().detail);
    answer(200, cat("Succeeded to update model weights to version ", front_.version_label(front_.version()), done.who_is_out(), "."));
  });
}

}  // namespace seer
