#include "cli/serve/openai_dialect.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "cli/json_lines.h"
#include "cli/sampling_options.h"
#include "cli/serve/request_fields.h"
#include "served/server_dialect.h"

namespace seer {
namespace {

constexpr int64_t kCompletionTokens = 16;  // OpenAI's default of max_tokens; a chat goes on to the end of the context
/// Names whose misspellings are refused: without them a request would be answered with other tokens, or less of them. The last line has
/// names near to these that other servers know.
const std::vector<std::string> kNames{
    "model", "messages", "prompt", "prompt_token_ids", "tools", "tool_choice", "documents", "chat_template_kwargs", "add_generation_prompt",
    "add_special_tokens", "reasoning_effort", "response_format", "max_tokens", "max_completion_tokens", "min_tokens", "min_new_tokens",
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "length_penalty", "logit_bias",
    "stop", "stop_token_ids", "ignore_eos", "seed", "sampling_seed", "n", "best_of", "logprobs", "top_logprobs", "stream",
    "stream_options", "return_token_ids", "return_tokens_as_token_ids", "include_stop_str_in_output", "skip_special_tokens",
    "spaces_between_special_tokens", "request_id", "priority", "group_id", "group_size",
    "store", "top_a", "prompt_logprobs", "stream_reasoning", "min_length", "max_length"};

std::string error_text(const std::string& message, const char* type, const char* code) {
  return json_text({{"error", {{"message", message}, {"type", type}, {"param", nullptr}, {"code", code == nullptr ? Out() : Out(code)}}}});
}
std::string error_text(const Error& error) {
  return error_text(error.detail, error.code == Code::kInvalidArgument ? "invalid_request_error" : "server_error", nullptr);
}
void refuse(const std::shared_ptr<HttpReply>& reply, const Error& error) {
  if (error.code == Code::kNotFound) return reply->send(404, error_text(error.detail, "invalid_request_error", "model_not_found"));
  reply->send(error.code == Code::kInvalidArgument ? 400 : 500, error_text(error));
}

/// What the answers to one request with its choices need.
struct Asked {
  std::string id;                       // "cmpl-7"
  int64_t created_s = 0;
  const ServedModel* model = nullptr;
  bool is_chat = false;
  bool streams = false, streams_usage = false;
  bool wants_logprobs = false;
  bool wants_candidates = false;        // top_logprobs too: of each token, itself
  bool wants_ids = false;               // token_ids and prompt_token_ids
  bool names_tokens_by_id = false;      // "token_id:17" for a token's text
  TextRules text;
  std::vector<GatewayRequest> requests; // one per prompt
  size_t samples = 1;                   // choices per prompt
};

Status check_not_refused(const Json& body, const Asked& asked) {
  SEER_RETURN_IF_ERROR(refuse_fields(body, {"echo", "suffix", "use_beam_search", "prompt_logprobs", "structured_outputs", "guided_json", "guided_regex",
                                            "guided_choice", "guided_grammar", "functions", "function_call", "audio", "continue_final_message",
                                            "prompt_embeds", "truncate_prompt_tokens", "chat_template"}));
  for (const auto& [name, value] : body.items())
    if (const ForeignField* const field = find_foreign_field(name); field != nullptr && !value.is_null() && value != Json::parse(field->harmless))
      return fail(Code::kInvalidArgument, name, " is not supported: ", field->instead);
  SEER_RETURN_IF_ERROR(check_spelling(body, kNames));
  if (const Json* const format = given_field(body, "response_format"); format != nullptr && *format != Json{{"type", "text"}})
    return fail(Code::kInvalidArgument, "response_format: expected {\"type\": \"text\"}, since no other is supported");
  if (const Json* const choice = given_field(body, "tool_choice"); choice != nullptr && *choice != "auto" && *choice != "none")
    return fail(Code::kInvalidArgument, "tool_choice is ", shown_value(*choice), ": expected \"auto\" or \"none\"");
  SEER_ASSIGN_OR_RETURN(const int64_t best_of, int64_field(body, "best_of", static_cast<int64_t>(asked.samples), 1));
  if (best_of != static_cast<int64_t>(asked.samples)) return fail(Code::kInvalidArgument, "best_of is ", best_of, ": expected ", asked.samples, ", which is n");
  return {};
}

/// A chat has logprobs true or false and top_logprobs, a completion has a number of candidates in logprobs. The one candidate is the sampled
/// token itself.
Status read_logprobs(const Json& body, Asked& asked) {
  const char* const count_name = asked.is_chat ? "top_logprobs" : "logprobs";
  const Json* const logprobs = given_field(body, "logprobs");
  if (!asked.is_chat && logprobs != nullptr && logprobs->is_boolean()) {  // as some trainers send it
    asked.wants_logprobs = logprobs->get<bool>();
    return {};
  }
  SEER_ASSIGN_OR_RETURN(const int64_t candidates, int64_field(body, count_name, 0, 0));
  if (candidates > 1)
    return fail(Code::kInvalidArgument, count_name, " is ", candidates, ": expected at most 1, since only the chosen token's log-probability is known");
  asked.wants_candidates = candidates == 1;
  asked.wants_logprobs = logprobs != nullptr;
  if (!asked.is_chat) return {};
  SEER_ASSIGN_OR_RETURN(asked.wants_logprobs, boolean_field(body, "logprobs", false));
  return {};
}

Result<Prompts> read_completion_prompts(const Json& body, const ServedModel& model) {
  const Json* const prompt = given_field(body, "prompt");
  if (prompt == nullptr) return fail(Code::kInvalidArgument, "prompt is missing: expected text or token ids");
  SEER_ASSIGN_OR_RETURN(const bool add_special, boolean_field(body, "add_special_tokens", true));
  return read_prompts(*prompt, {.name = "prompt", .add_special = add_special}, model);
}

/// What clients send and chat templates do not expect, as in vLLM and SGLang: no content is empty text, null is no tool call, and the
/// arguments of a tool call come as text, of which templates want what it says. What is no JSON stays text.
Status prepare_for_template(Json& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    Json& message = messages[i];
    if (!message.is_object()) continue;
    if (given_field(message, "content") == nullptr) message["content"] = "";
    const auto calls = message.find("tool_calls");
    if (calls == message.end()) continue;
    if (calls->is_null()) {
      message.erase("tool_calls");
      continue;
    }
    if (!calls->is_array()) continue;
    for (Json& call : *calls) {
      const auto function = call.is_object() ? call.find("function") : call.end();
      if (function == call.end() || !function->is_object()) continue;
      Json& arguments = (*function)["arguments"];
      if (arguments.is_null() || arguments == "") arguments = Json::object();
      if (!arguments.is_string()) continue;
      const auto text = arguments.get<std::string>();
      SEER_RETURN_IF_ERROR(check_shape(text, cat("messages[", i, "].tool_calls: ")));
      if (Json parsed = Json::parse(text, nullptr, false); !parsed.is_discarded()) arguments = std::move(parsed);
    }
    if (calls->empty()) message.erase("tool_calls");
  }
  return {};
}

Result<Prompts> read_chat_prompt(Json& body, const ServedModel& model, const ChatPrompts* chat) {
  if (const Json* const ids = given_field(body, "prompt_token_ids")) {
    SEER_ASSIGN_OR_RETURN(auto prompt, token_ids(*ids, "prompt_token_ids", ""));
    return Prompts{.ids = {std::move(prompt)}};
  }
  if (chat == nullptr)
    return fail(Code::kInvalidArgument, model.name, " has no chat template: use /v1/completions, or send prompt_token_ids");
  SEER_ASSIGN_OR_RETURN(const bool add_special, boolean_field(body, "add_special_tokens", false));
  if (add_special) return fail(Code::kInvalidArgument, "add_special_tokens is true: expected false, since the chat template adds them");
  if (const Json* const given = given_field(body, "reasoning_effort")) {  // as vLLM gives it to templates
    const Json effort = *given;
    Json& variables = body["chat_template_kwargs"];
    if (variables.is_null() || (variables.is_object() && !variables.contains("reasoning_effort"))) variables["reasoning_effort"] = effort;
  }
  if (const auto messages = body.find("messages"); messages != body.end() && messages->is_array())
    SEER_RETURN_IF_ERROR(prepare_for_template(*messages));
  SEER_ASSIGN_OR_RETURN(auto prompt, chat->prompt(body, ""));
  return Prompts{.ids = {std::move(prompt)}};
}

Status check_model(const Json& body, const ServedModel& model) {
  SEER_ASSIGN_OR_RETURN(const std::string name, text_field(body, "model"));
  if (name.empty() || name == model.name || name == model.folder) return {};
  return fail(Code::kNotFound, "model is \"", shown(name), "\": expected \"", model.name, "\", which is served here");
}

Result<Asked> parse(const std::string& text, bool is_chat, Front& front, const ChatPrompts* chat) {
  const ServedModel& model = front.model();
  SEER_ASSIGN_OR_RETURN(Json body, read_object(text));
  SEER_RETURN_IF_ERROR(check_model(body, model));
  Asked asked;
  asked.model = &model;
  asked.is_chat = is_chat;
  const bool has_new_name = given_field(body, "max_completion_tokens") != nullptr;
  if (has_new_name) body.erase("max_tokens");
  const char* const max_tokens = has_new_name ? "max_completion_tokens" : "max_tokens";
  SEER_ASSIGN_OR_RETURN(const Sampling sampling, read_sampling(body, max_tokens, is_chat ? model.tokens_max : kCompletionTokens));
  asked.samples = static_cast<size_t>(sampling.n);
  SEER_RETURN_IF_ERROR(check_not_refused(body, asked));
  SEER_RETURN_IF_ERROR(read_logprobs(body, asked));
  SEER_ASSIGN_OR_RETURN(asked.wants_ids, boolean_field(body, "return_token_ids", false));
  SEER_ASSIGN_OR_RETURN(asked.names_tokens_by_id, boolean_field(body, "return_tokens_as_token_ids", false));
  SEER_ASSIGN_OR_RETURN(asked.streams, boolean_field(body, "stream", false));
  if (const Json* const options = given_field(body, "stream_options")) {
    if (!options->is_object()) return fail(Code::kInvalidArgument, "stream_options is ", shown_value(*options), ": expected an object");
    SEER_ASSIGN_OR_RETURN(asked.streams_usage, boolean_field(*options, "include_usage", false));
  }
  SEER_ASSIGN_OR_RETURN(asked.text, read_text_rules(body, sampling.params, model, "include_stop_str_in_output"));
  SEER_ASSIGN_OR_RETURN(const std::string rid, id_field(body, "request_id"));
  SEER_ASSIGN_OR_RETURN(Prompts prompts, is_chat ? read_chat_prompt(body, model, chat) : read_completion_prompts(body, model));
  AskedSoFar asked_so_far;
  for (std::vector<int32_t>& prompt : prompts.ids) {
    SEER_RETURN_IF_ERROR(add_prompt(asked_so_far, sampling));
    SEER_ASSIGN_OR_RETURN(GatewayRequest request, read_request(body, std::move(prompt), sampling, front));
    request.rid = rid;
    request.tokens_to = asked.streams ? TokensTo::kClient : TokensTo::kNobody;
    asked.requests.push_back(std::move(request));
  }
  return asked;
}

const char* finish_text(FinishReason finish) {
  if (finish == FinishReason::kLength) return "length";
  return finish == FinishReason::kAborted ? "abort" : "stop";
}

std::string token_text(const Asked& asked, int32_t id) {
  if (asked.names_tokens_by_id || asked.model->tokenizer == nullptr) return cat("token_id:", id);
  return asked.model->tokenizer->piece(id);
}

std::string chat_logprobs_text(const Asked& asked, const OutputTokens& part) {
  std::string out = "{\"content\":[";
  for (size_t i = 0; i < part.size(); ++i) {
    std::string token = cat("{\"token\":", json_string(token_text(asked, part.ids[i])), ",\"logprob\":");
    append_float(token, part.logprobs[i]);
    token += ",\"bytes\":null";
    out += cat(i > 0 ? "," : "", token, ",\"top_logprobs\":[", asked.wants_candidates ? token + "}" : "", "]}");
  }
  return out + "]}";
}

std::string completion_logprobs_text(const Asked& asked, const OutputTokens& part) {
  std::string tokens, values, candidates;
  for (size_t i = 0; i < part.size(); ++i) {
    const char* const comma = i > 0 ? "," : "";
    const std::string token = json_string(token_text(asked, part.ids[i]));
    std::string value;
    append_float(value, part.logprobs[i]);
    tokens += comma + token;
    values += comma + value;
    if (asked.wants_candidates) candidates += cat(comma, "{", token, ":", value, "}");
  }
  return cat("{\"tokens\":[", tokens, "],\"token_logprobs\":[", values, "],\"top_logprobs\":", asked.wants_candidates ? cat("[", candidates, "]") : "null",
             ",\"text_offset\":null}");
}

/// The "logprobs" of a choice. By hand: a response can have 100 000 tokens.
std::string logprobs_text(const Asked& asked, const OutputTokens& part) {
  if (!asked.wants_logprobs) return "null";
  return asked.is_chat ? chat_logprobs_text(asked, part) : completion_logprobs_text(asked, part);
}

/// A member with the prompt's tokens, unless it is null. Completions have it in their choices, chats beside them.
std::string prompt_ids_text(const std::vector<int32_t>* prompt) {
  if (prompt == nullptr) return "";
  std::string out = ",\"prompt_token_ids\":";
  append_ids(out, *prompt);
  return out;
}

struct Choice {
  size_t index = 0;
  std::string text;
  OutputTokens part;                             // the tokens of this answer: all, or those of one part of a stream
  const std::vector<int32_t>* prompt = nullptr;  // where the answer has it
  const Response* over = nullptr;                // the response; null while it goes on
  bool is_first = true;
};

std::string choice_text(const Asked& asked, const Choice& choice, const std::string& version) {
  std::string out = cat("{\"index\":", choice.index, ",");
  if (asked.is_chat)
    out += cat(asked.streams ? "\"delta\":{" : "\"message\":{", choice.is_first ? "\"role\":\"assistant\"," : "", "\"content\":", json_string(choice.text), "}");
  else
    out += cat("\"text\":", json_string(choice.text));
  out += cat(",\"logprobs\":", logprobs_text(asked, choice.part));
  const Response* const over = choice.over;
  out += over == nullptr ? ",\"finish_reason\":null" : cat(",\"finish_reason\":\"", finish_text(over->finish), "\"");
  if (over != nullptr) {
    const StopCause cause = over->finish == FinishReason::kStop ? stop_cause(*over, asked.text.stop) : StopCause{};
    out += cat(",\"stop_reason\":", cause.text.empty() ? (cause.token < 0 ? "null" : cat(cause.token)) : json_string(cause.text));
    out += cat(",\"weight_version\":", json_string(version), ",\"seed\":", over->seed);
  }
  if (asked.wants_ids) {
    out += ",\"token_ids\":";
    append_ids(out, choice.part.ids);
    if (!asked.is_chat) out += prompt_ids_text(choice.prompt);
  }
  return out + "}";
}

/// Counts tokens of the answers to one HTTP request.
struct Usage {
  size_t output_tokens = 0;
  std::map<size_t, int64_t> cached_tokens = {};  // by prompt: those that no choice had to compute
  void add(size_t prompt, const Response& r) {
    output_tokens += r.output.size();
    const auto [known, is_first] = cached_tokens.try_emplace(prompt, r.cached_tokens);
    known->second = std::min(known->second, r.cached_tokens);
  }
};

std::string usage_text(const Asked& asked, const Usage& usage) {
  size_t prompt_tokens = 0;
  for (const GatewayRequest& request : asked.requests) prompt_tokens += request.prompt_ids.size();
  int64_t cached_tokens = 0;
  for (const auto& [prompt, tokens] : usage.cached_tokens) cached_tokens += tokens;
  return cat("{\"prompt_tokens\":", prompt_tokens, ",\"completion_tokens\":", usage.output_tokens, ",\"total_tokens\":", prompt_tokens + usage.output_tokens,
             ",\"prompt_tokens_details\":{\"cached_tokens\":", cached_tokens, "}}");
}

/// `choices` and `usage` are JSON. `prompt`: of a chat, where the answer has it.
std::string answer_text(const Asked& asked, std::string_view choices, std::string_view usage, const std::vector<int32_t>* prompt = nullptr) {
  const char* const object = !asked.is_chat ? "text_completion" : asked.streams ? "chat.completion.chunk" : "chat.completion";
  return cat("{\"id\":\"", asked.id, "\",\"object\":\"", object, "\",\"created\":", asked.created_s, ",\"model\":", json_string(asked.model->name),
             asked.is_chat && asked.wants_ids ? prompt_ids_text(prompt) : "", ",\"choices\":[", choices, "]", usage.empty() ? "" : ",\"usage\":",
             usage, "}");
}

TextRules text_rules(const Asked& asked, size_t request) {
  TextRules rules = asked.text;
  rules.before = end_of_prompt(asked.requests[request].prompt_ids);
  return rules;
}

/// The choices of a request that streams.
class Stream {
 public:
  Stream(Front& front, Asked asked, std::shared_ptr<HttpReply> reply) : front_(front), asked_(std::move(asked)), reply_(std::move(reply)) {
    for (size_t i = 0; i < asked_.requests.size() * asked_.samples; ++i)
      choices_.push_back(std::make_unique<State>(ResponseText(asked_.model->tokenizer.get(), text_rules(asked_, i / asked_.samples))));
  }
  void on_tokens(size_t request, uint32_t sample, const OutputTokens& part) {
    State& state = *choices_[request * asked_.samples + sample];
    state.tokens += part.size();
    write(request, sample, state.text.append(part.ids), part, nullptr);
  }
  void on_response(size_t request, uint32_t sample, const Response& r) {
    State& state = *choices_[request * asked_.samples + sample];
    if (r.finish == FinishReason::kError) return reply_->write(cat("data: ", error_text(fail(Code::kUnavailable, r.error)), "\n\n"));
    // What the stream did not have yet.
    const OutputTokens rest = r.output.from(state.tokens);
    usage_.add(request, r);
    std::string text = state.text.append(rest.ids);
    text += state.text.finish(r);
    write(request, sample, text, rest, &r);
  }
  void end() {
    if (asked_.streams_usage) reply_->write(cat("data: ", answer_text(asked_, "", usage_text(asked_, usage_)), "\n\n"));
    reply_->write("data: [DONE]\n\n");
    reply_->end();
  }

 private:
  struct State {
    explicit State(ResponseText t) : text(std::move(t)) {}
    ResponseText text;
    size_t tokens = 0;
    bool is_begun = false;
  };
  void write(size_t request, uint32_t sample, std::string text, const OutputTokens& part, const Response* over) {
    const size_t index = request * asked_.samples + sample;
    const bool is_first = !std::exchange(choices_[index]->is_begun, true);
    const Choice choice{.index = index,
                        .text = std::move(text),
                        .part = part,
                        .prompt = is_first ? &asked_.requests[request].prompt_ids : nullptr,
                        .over = over,
                        .is_first = is_first};
    const std::string version = over == nullptr ? "" : front_.version_label(over->version);
    reply_->write(cat("data: ", answer_text(asked_, choice_text(asked_, choice, version), "", choice.prompt), "\n\n"));
  }

  Front& front_;
  const Asked asked_;
  const std::shared_ptr<HttpReply> reply_;
  std::vector<std::unique_ptr<State>> choices_;  // by prompt, then by sample
  Usage usage_;
};

std::string whole_answer(const Asked& asked, const std::vector<std::vector<Response>>& responses, const Front& front) {
  std::string choices;
  Usage usage;
  for (size_t i = 0; i < responses.size(); ++i)
    for (size_t sample = 0; sample < responses[i].size(); ++sample) {
      const Response& r = responses[i][sample];
      const Choice choice{.index = i * asked.samples + sample,
                          .text = response_text(asked.model->tokenizer.get(), text_rules(asked, i), r),
                          .part = r.output,
                          .prompt = &asked.requests[i].prompt_ids,
                          .over = &r};
      choices += cat(choices.empty() ? "" : ",", choice_text(asked, choice, front.version_label(r.version)));
      usage.add(i, r);
    }
  return answer_text(asked, choices, usage_text(asked, usage), &asked.requests[0].prompt_ids);
}

void run(Front& front, const std::string& id, Result<Asked> asked, const std::shared_ptr<HttpReply>& reply) {
  if (!asked.ok()) return refuse(reply, asked.error());
  asked->id = id;
  asked->created_s = std::time(nullptr);
  Call call{.requests = asked->requests};
  if (asked->streams) {
    reply->begin("text/event-stream");
    const auto stream = std::make_shared<Stream>(front, std::move(*asked), reply);
    call.tokens = [stream](size_t i, uint32_t sample, const CommittedTokens& part, WeightVersion) { stream->on_tokens(i, sample, part.output); };
    call.response = [stream](size_t i, uint32_t sample, const Response& r) { stream->on_response(i, sample, r); };
    call.done = [stream](const std::vector<std::vector<Response>>&) { stream->end(); };
  } else {
    call.done = [&front, asked = std::move(*asked), reply](const std::vector<std::vector<Response>>& responses) {
      for (const auto& samples : responses)
        for (const Response& r : samples)
          if (r.finish == FinishReason::kError) return refuse(reply, fail(Code::kUnavailable, r.error));
      reply->send(200, whole_answer(asked, responses, front));
    };
  }
  front.run(std::move(call), reply);
}

}  // namespace

OpenaiDialect::OpenaiDialect(Front& front, std::shared_ptr<const ChatPrompts> chat)
    : front_(front), chat_(std::move(chat)), created_s_(std::time(nullptr)) {}

bool OpenaiDialect::handle(HttpRequest& request, const Reply& reply) {
  const std::string& path = request.path;
  if (request.method == "GET" && (path == "/v1/models" || path.starts_with("/v1/models/"))) models(request, reply);
  else if (request.method == "POST" && path == "/v1/completions") complete(request, false, reply);
  else if (request.method == "POST" && path == "/v1/chat/completions") complete(request, true, reply);
  else return false;
  return true;
}

void OpenaiDialect::models(const HttpRequest& request, const Reply& reply) {
  const ServedModel& served = front_.model();
  const Out model = {{"id", served.name}, {"object", "model"}, {"created", created_s_}, {"owned_by", "seer"}, {"root", served.folder},
                     {"max_model_len", std::min(served.tokens_max, served.config.context_tokens_max)}, {"server_ids", served.server_ids()}};
  if (request.path == "/v1/models") return reply->send(200, json_text({{"object", "list"}, {"data", Out::array({model})}}));
  const std::string name = decode_percent(std::string_view(request.path).substr(std::string_view("/v1/models/").size()));
  if (name == served.name) return reply->send(200, json_text(model));
  refuse(reply, fail(Code::kNotFound, "model is \"", shown(name), "\": expected \"", served.name, "\", which is served here"));
}

void OpenaiDialect::complete(HttpRequest& request, bool is_chat, const Reply& reply) {
  const std::string id = cat(is_chat ? "chatcmpl-" : "cmpl-", ++last_id_);
  front_.read_body(
      request, [is_chat, &front = front_, chat = chat_](const std::string& body) { return parse(body, is_chat, front, chat.get()); },
      [id, &front = front_, reply](Result<Asked> asked) { run(front, id, std::move(asked), reply); });
}

}  // namespace seer
