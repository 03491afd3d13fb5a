// Recorded exchanges: what the servers' sources send, field by field, and what must not be believed. The forms are those of SGLang
// (managers/tokenizer_manager.py at 001067f, managers/weight_version, entrypoints/http_server.py, v1_loads.py at 0564b52) and vLLM
// (entrypoints/serve/disagg/serving.py at 0001948, openai/completion/serving.py at 030ea52), read on 2026-11-25.
#include "served/server_dialect.h"

#include <doctest/doctest.h>

#include "served/served_answer.h"
#include "served/vllm_server.h"

using namespace seer;
using nlohmann::json;

namespace {

ServedAsk chunk_of(std::vector<int32_t> tokens, int64_t prompt_tokens, int64_t max_new_tokens) {
  return {.rid = "seer.1.", .tokens = std::move(tokens), .prompt_tokens = prompt_tokens, .max_new_tokens = max_new_tokens, .sampling = {}, .seed = (uint64_t{1} << 40) + 5};
}
const ServedAsk kChunk = chunk_of({11, 12, 13, 21}, 3, 8);

/// All that an answer gives, however its bytes are cut.
ServedPart read_all(ServerKind kind, const std::string& bytes, size_t piece, int status = 200, const std::string& type = "text/event-stream; charset=utf-8",
                    const ServedAsk& chunk = kChunk, const Status& end = {}) {
  const auto dialect = make_dialect(kind);
  ServedPart all;
  int ends = 0;
  ServedAnswer answer(chunk, *dialect, [&](ServedPart part) {
    REQUIRE(ends == 0);
    all.output.append(part.output);
    ends += part.end != ServedEnd::kNone;
    all.end = part.end;
    all.matched = part.matched;
    all.why = part.why;
    all.is_busy = part.is_busy;
    all.is_abort = part.is_abort;
    if (!part.weights.empty()) all.weights = part.weights;
    all.cached_tokens = std::max(all.cached_tokens, part.cached_tokens);
  });
  answer.head(status, type);
  for (size_t at = 0; at < bytes.size(); at += piece) answer.body(std::string_view(bytes).substr(at, piece));
  answer.end(end);
  CHECK(ends == 1);
  return all;
}

/// The same for every size of pieces.
ServedPart read(ServerKind kind, const std::string& bytes, int status = 200, const std::string& type = "text/event-stream; charset=utf-8") {
  const ServedPart whole = read_all(kind, bytes, bytes.size() + 1, status, type);
  for (size_t piece = 1; piece < 40; ++piece) {
    const ServedPart cut = read_all(kind, bytes, piece, status, type);
    CHECK(cut.output.ids == whole.output.ids);
    CHECK(cut.output.logprobs == whole.output.logprobs);
    CHECK(cut.end == whole.end);
    CHECK(cut.why == whole.why);
  }
  return whole;
}

const std::string kSglangStream =
    R"(data: {"text": " a", "output_ids": [31], "meta_info": {"id": "seer.1.", "finish_reason": null, "prompt_tokens": 4, "weight_version": "default", "num_retractions": 0, "output_token_logprobs": [[-0.25, 31, null]], "reasoning_tokens": 0, "completion_tokens": 1, "cached_tokens": 3}}

data: {"text": " a b", "output_ids": [31, 32, 33], "meta_info": {"id": "seer.1.", "finish_reason": null, "prompt_tokens": 4, "weight_version": "default", "num_retractions": 0, "output_token_logprobs": [[-0.25, 31, null], [-1.5, 32, null], [-0.0, 33, null]], "reasoning_tokens": 0, "completion_tokens": 3, "cached_tokens": 3}}

data: {"text": " a b.", "output_ids": [31, 32, 33, 2], "meta_info": {"id": "seer.1.", "finish_reason": {"type": "stop", "matched": 2}, "prompt_tokens": 4, "weight_version": "default", "num_retractions": 0, "output_token_logprobs": [[-0.25, 31, null], [-1.5, 32, null], [-0.0, 33, null], [-0.125, 2, null]], "reasoning_tokens": 0, "completion_tokens": 4, "cached_tokens": 3, "e2e_latency": 0.31}}

data: [DONE]

)";

const std::string kVllmStream =
    R"(data: {"request_id":"seer.1.","choices":[{"index":0,"logprobs":{"content":[{"token":"token_id:31","logprob":-0.25,"bytes":null,"top_logprobs":[{"token":"token_id:31","logprob":-0.25,"bytes":null}]}]},"finish_reason":null,"token_ids":[31]}],"usage":null}

data: {"request_id":"seer.1.","choices":[{"index":0,"logprobs":{"content":[{"token":"token_id:32","logprob":-1.5,"bytes":null,"top_logprobs":[]},{"token":"token_id:33","logprob":0.0,"bytes":null,"top_logprobs":[]}]},"finish_reason":"length","token_ids":[32,33]}],"usage":null}

data: [DONE]

)";

const std::string kCompletionStream =
    R"(data: {"id":"cmpl-1","object":"text_completion","created":1764000000,"model":"m","choices":[{"index":0,"text":" a","logprobs":{"text_offset":[0],"token_logprobs":[-0.25],"tokens":[" a"],"top_logprobs":[{" a":-0.25}]},"finish_reason":null,"stop_reason":null,"prompt_token_ids":[11,12,13,21],"token_ids":[31]}],"usage":null}

: ping

data: {"id":"cmpl-1","object":"text_completion","created":1764000000,"model":"m","choices":[{"index":0,"text":" b","logprobs":{"text_offset":[2],"token_logprobs":[-1.5],"tokens":[" b"],"top_logprobs":[{" b":-1.5}]},"finish_reason":"stop","stop_reason":"b","prompt_token_ids":null,"token_ids":[32]}],"usage":null}

data: {"id":"cmpl-1","object":"text_completion","created":1764000000,"model":"m","choices":[],"usage":{"prompt_tokens":4,"total_tokens":6,"completion_tokens":2}}

data: [DONE]

)";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("served dialects: a stream of SGLang, whose events repeat all tokens, gives each token once") {
  const ServedPart all = read(ServerKind::kSglang, kSglangStream);
  CHECK(all.output.ids == std::vector<int32_t>{31, 32, 33, 2});
  CHECK(all.output.logprobs == std::vector<float>{-0.25f, -1.5f, 0, -0.125f});
  CHECK(all.end == ServedEnd::kStop);
  CHECK(all.matched == "2");
  CHECK(all.weights == "default");
  CHECK(all.cached_tokens == 3);
}

TEST_CASE("served dialects: a stream of SGLang with incremental output gives the same") {
  const std::string stream =
      R"(data: {"text": " a", "output_ids": [31], "meta_info": {"id": "x", "finish_reason": null, "prompt_tokens": 4, "weight_version": "7", "output_token_logprobs": [[-0.25, 31, null]], "completion_tokens": 1, "cached_tokens": 0}}

data: {"text": " b", "output_ids": [32, 33], "meta_info": {"id": "x", "finish_reason": {"type": "length", "length": 3}, "prompt_tokens": 4, "weight_version": "7", "output_token_logprobs": [[-1.5, 32, null], [-0.5, 33, null]], "completion_tokens": 3, "cached_tokens": 0}}

data: [DONE]

)";
  const ServedPart all = read(ServerKind::kSglang, stream);
  CHECK(all.output.ids == std::vector<int32_t>{31, 32, 33});
  CHECK(all.output.logprobs == std::vector<float>{-0.25f, -1.5f, -0.5f});
  CHECK(all.end == ServedEnd::kLength);
  CHECK(all.weights == "7");
}

TEST_CASE("served dialects: an SGLang server that does not stream, or gives ids only with log-probabilities, is understood") {
  const std::string whole =
      R"({"text": " a", "meta_info": {"id": "x", "finish_reason": {"type": "length", "length": 1}, "prompt_tokens": 4, "output_token_logprobs": [[-0.25, 31, " a"]], "completion_tokens": 1, "cached_tokens": 0}})";
  const ServedPart all = read(ServerKind::kSglang, whole, 200, "application/json");
  CHECK(all.output.ids == std::vector<int32_t>{31});
  CHECK(all.end == ServedEnd::kLength);
}

TEST_CASE("served dialects: aborts and errors of SGLang keep the tokens before them") {
  const std::string aborted = replaced(kSglangStream, R"({"type": "stop", "matched": 2})", R"({"type": "abort", "message": "Aborted by AbortReq.", "status_code": null, "err_type": null})");
  CHECK(read(ServerKind::kSglang, aborted).output.size() == 4);
  CHECK(read(ServerKind::kSglang, aborted).end == ServedEnd::kFailed);
  const std::string full = replaced(kSglangStream, R"({"type": "stop", "matched": 2})", R"({"type": "abort", "message": "The request queue is full.", "status_code": 503, "err_type": "ServiceUnavailable"})");
  CHECK(read(ServerKind::kSglang, full).is_busy);
  const std::string wrong = replaced(kSglangStream, R"({"type": "stop", "matched": 2})", R"({"type": "abort", "message": "Input length exceeds the maximum allowed length", "status_code": 400, "err_type": "BadRequestError"})");
  CHECK(read(ServerKind::kSglang, wrong).end == ServedEnd::kRefused);
  CHECK(read(ServerKind::kSglang, wrong).why == "it ended the request: Input length exceeds the maximum allowed length");
  const std::string error = kSglangStream.substr(0, kSglangStream.find("data: [DONE]")) + "data: {\"error\": {\"message\": \"late\"}}\n\n";
  CHECK(read(ServerKind::kSglang, error).end == ServedEnd::kStop);  // it was over before
  const std::string broken = kSglangStream.substr(0, kSglangStream.find(R"(data: {"text": " a b.")")) + "data: {\"error\": {\"message\": \"out of memory\"}}\n\ndata: [DONE]\n\n";
  const ServedPart part = read(ServerKind::kSglang, broken);
  CHECK(part.output.ids.size() == 3);
  CHECK(part.end == ServedEnd::kFailed);
  CHECK(part.why == "it says: out of memory");
}

TEST_CASE("served dialects: vLLM's generate and its completions give the new tokens of each event") {
  const ServedPart all = read(ServerKind::kVllm, kVllmStream);
  CHECK(all.output.ids == std::vector<int32_t>{31, 32, 33});
  CHECK(all.output.logprobs == std::vector<float>{-0.25f, -1.5f, 0});
  CHECK(all.end == ServedEnd::kLength);
  const ServedPart completion = read(ServerKind::kVllm, kCompletionStream);
  CHECK(completion.output.ids == std::vector<int32_t>{31, 32});
  CHECK(completion.output.logprobs == std::vector<float>{-0.25f, -1.5f});
  CHECK(completion.end == ServedEnd::kStop);
  CHECK(completion.matched == "b");
  const std::string whole =
      R"({"request_id":"seer.1.","choices":[{"index":0,"logprobs":{"content":[{"token":"token_id:31","logprob":-0.25}]},"finish_reason":"stop","token_ids":[31]}],"prompt_logprobs":null,"kv_transfer_params":null})";
  CHECK(read(ServerKind::kVllm, whole, 200, "application/json").output.ids == std::vector<int32_t>{31});
}

TEST_CASE("served dialects: tokens that SGLang computed with weights that changed meanwhile have no weights that could be right") {
  const auto with = [](const std::string& spans) { return read(ServerKind::kSglang, replaced(kSglangStream, R"("matched": 2}, "prompt_tokens": 4, "weight_version": "default",)", R"("matched": 2}, "prompt_tokens": 4, "weight_version": "default", "weight_versions": )" + spans + ",")); };
  CHECK(with(R"([{"version": "default", "start": 0, "end": 4}])").weights == "default");
  CHECK(with(R"([{"version": "6", "start": 0, "end": 3}, {"version": "default", "start": 3, "end": 4}])").weights == "6 and default");
}

TEST_CASE("served dialects: an abort that a client asked for is told from an error") {
  const auto sglang = [](const std::string& finish) { return read(ServerKind::kSglang, replaced(kSglangStream, "{\"type\": \"stop\", \"matched\": 2}", finish)); };
  CHECK(sglang(R"({"type": "abort", "message": "Aborted"})").is_abort);
  CHECK(sglang(R"({"type": "abort", "message": "Abort before prefill", "status_code": null, "err_type": null})").is_abort);
  for (const char* const status : {"400", "500", "503"})
    CHECK_FALSE(sglang(cat(R"({"type": "abort", "message": "m", "status_code": )", status, "}")).is_abort);
  const auto vllm = [](const std::string& reason) { return read(ServerKind::kVllm, replaced(kVllmStream, "\"length\"", "\"" + reason + "\"")); };
  CHECK(vllm("abort").is_abort);
  CHECK(vllm("error").end == ServedEnd::kFailed);
  CHECK_FALSE(vllm("error").is_abort);
}

TEST_CASE("served dialects: vLLM's errors within a stream tell a wrong request by their code, and keep the tokens before them") {
  const std::string begun = kVllmStream.substr(0, kVllmStream.find("data: {\"request_id\":\"seer.1.\"", 10));
  const auto part = [&](int code) { return read(ServerKind::kVllm, begun + "data: {\"error\": {\"message\": \"Internal server error\", \"type\": \"InternalServerError\", \"param\": null, \"code\": " + std::to_string(code) + "}}\n\ndata: [DONE]\n\n"); };
  CHECK(part(500).output.ids == std::vector<int32_t>{31});
  CHECK(part(500).end == ServedEnd::kFailed);
  CHECK(part(500).why == "it says: Internal server error");
  CHECK(part(400).end == ServedEnd::kRefused);
}

TEST_CASE("served dialects: a vLLM completion that comes as one event, with all its fields, is read like a stream") {
  const std::string whole =
      R"(data: {"id":"cmpl-1","object":"text_completion","created":1764000000,"model":"m","choices":[{"index":0,"text":" a b","logprobs":{"text_offset":[0,2],"token_logprobs":[-0.25,-1.5],"tokens":[" a"," b"],"top_logprobs":[{" a":-0.25},{" b":-1.5}]},"finish_reason":"length","stop_reason":null,"token_ids":[31,32],"prompt_logprobs":null,"prompt_token_ids":[11,12,13,21],"routed_experts":null}],"service_tier":null,"system_fingerprint":null,"usage":{"prompt_tokens":4,"total_tokens":6,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":3}},"kv_transfer_params":null}

data: [DONE]

)";
  const ServedPart all = read(ServerKind::kVllm, whole);
  CHECK(all.output.ids == std::vector<int32_t>{31, 32});
  CHECK(all.output.logprobs == std::vector<float>{-0.25f, -1.5f});
  CHECK(all.end == ServedEnd::kLength);
  CHECK(all.cached_tokens == 3);
}

TEST_CASE("served dialects: a stream that breaks off at any byte gives whole events only, and fails") {
  for (const auto& [kind, stream, total] : {std::tuple{ServerKind::kSglang, kSglangStream, size_t{4}}, {ServerKind::kVllm, kVllmStream, size_t{3}},
                                            {ServerKind::kVllm, kCompletionStream, size_t{2}}}) {
    size_t known = 0;
    for (size_t bytes = 0; bytes < stream.size(); ++bytes) {
      const ServedPart cut = read_all(kind, stream.substr(0, bytes), 17, 200, "text/event-stream", kChunk, fail(Code::kUnavailable, "gone"));
      CHECK(cut.output.ids.size() >= known);
      CHECK(cut.output.ids.size() == cut.output.logprobs.size());
      known = cut.output.ids.size();
      if (known < total) {
        CHECK(cut.end == ServedEnd::kFailed);
        CHECK(cut.why == "gone");
      }
    }
    CHECK(known == total);
  }
}

TEST_CASE("served dialects: a closed stream without a reason fails, as vLLM's generate closes one for an end without a token") {
  const std::string stream = replaced(kVllmStream, "\"length\"", "null");
  const ServedPart all = read(ServerKind::kVllm, stream);
  CHECK(all.output.ids.size() == 3);
  CHECK(all.end == ServedEnd::kFailed);
  CHECK(all.why == "it ended the answer without a reason");
}

TEST_CASE("served dialects: what makes no sense is not believed") {
  struct Wrong {
    ServerKind kind;
    std::string stream, why;
    size_t tokens;
  };
  const Wrong all[] = {
      {ServerKind::kSglang, replaced(kSglangStream, "\"prompt_tokens\": 4", "\"prompt_tokens\": 5"), "it answers to a prompt of 5 tokens, not to that of 4", 0},
      {ServerKind::kSglang, replaced(replaced(kSglangStream, "[31, 32, 33],", "[30, 32, 33],"), "[[-0.25, 31, null], [-1.5", "[[-0.25, 30, null], [-1.5"), "its ids do not go on from the 1 before", 1},
      {ServerKind::kSglang, replaced(kSglangStream, "[31, 32, 33],", "[31, 32, 34],"), "output_ids are not those of output_token_logprobs", 1},
      {ServerKind::kSglang, replaced(kSglangStream, "\"completion_tokens\": 3", "\"completion_tokens\": 9"), "it has 9 tokens by its count, 1 came before and 3 now", 1},
      {ServerKind::kSglang, replaced(kSglangStream, "[-0.25, 31, null]", "[null, 31, null]"), "a log-probability is null", 0},
      {ServerKind::kSglang, replaced(kSglangStream, "[-0.25, 31, null]", "[0.25, 31, null]"), "a log-probability is 0.25", 0},
      {ServerKind::kSglang, replaced(kSglangStream, "\"output_ids\": [31]", "\"output_ids\": [-1]"), "a token id is -1", 0},
      {ServerKind::kSglang, replaced(kSglangStream, "{\"type\": \"stop\", \"matched\": 2}", "{\"type\": \"bored\"}"), "a finish_reason is bored", 3},
      {ServerKind::kSglang, "data: {\"text\": \"no meta\"}\n\n", "an answer has no meta_info", 0},
      {ServerKind::kSglang, "data: {half\n\n", "its answer is not JSON", 0},
      {ServerKind::kVllm, replaced(kCompletionStream, "\"prompt_token_ids\":[11,12,13,21]", "\"prompt_token_ids\":[11,12,13]"), "it answers to another prompt, of 3 tokens", 0},
      {ServerKind::kVllm, replaced(kCompletionStream, "\"token_ids\":[31]", "\"token_ids\":null"), "an answer has text and no token_ids: the server is too old for return_token_ids", 0},
      {ServerKind::kVllm, replaced(kVllmStream, "\"token_ids\":[32,33]", "\"token_ids\":[32,33,34]"), "3 tokens came with 2 log-probabilities", 1},
      {ServerKind::kVllm, replaced(kVllmStream, "\"index\":0", "\"index\":1"), "it gives several responses", 0},
      {ServerKind::kVllm, replaced(kVllmStream, "\"logprob\":-1.5", "\"logprob\":-9999.0"), "a log-probability is -9999, which stands for none", 1},
      {ServerKind::kVllm, "data: []\n\n", "an answer has no choices", 0},
  };
  // The library would write such a value recursively, for its message: a crash.
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  for (const ServerKind kind : {ServerKind::kSglang, ServerKind::kVllm}) {
    const std::string event = cat("data: {\"error\": {\"message\": ", deep, "}}\n\n");
    CHECK(read_all(kind, event, event.size()).why == "its answer is nested deeper than 64 levels");
    CHECK(read_all(kind, deep, deep.size(), 500).why == cat("it answered 500: ", deep.substr(0, 300)));
  }
  for (const Wrong& wrong : all) {
    CAPTURE(wrong.why);
    const ServedPart part = read(wrong.kind, wrong.stream);
    CHECK(part.end == ServedEnd::kFailed);
    CHECK(part.why == wrong.why);
    CHECK(part.output.ids.size() == wrong.tokens);
  }
  ServedAsk one = kChunk;
  one.max_new_tokens = 2;
  CHECK(read_all(ServerKind::kSglang, kSglangStream, 100, 200, "text/event-stream", one).why == "it gave 3 tokens of 2");
  CHECK(read_all(ServerKind::kVllm, kVllmStream, 100, 200, "text/event-stream", one).why == "it gave 3 tokens of 2");
}

TEST_CASE("served dialects: a status tells a wrong request from a server that has no room or is another kind") {
  const auto part = [](int status, const std::string& body) { return read(ServerKind::kSglang, body, status, "application/json"); };
  const ServedPart refused = part(400, R"({"error": {"message": "The input (9 tokens) is longer than the model's context length (8 tokens)."}})");
  CHECK(refused.end == ServedEnd::kRefused);
  CHECK(refused.why == "it answered 400: The input (9 tokens) is longer than the model's context length (8 tokens).");
  CHECK(part(422, R"({"detail": "bad"})").end == ServedEnd::kRefused);
  CHECK(part(503, "busy").is_busy);
  CHECK(part(429, R"({"object":"error","message":"slow down"})").is_busy);
  CHECK_FALSE(part(500, "").is_busy);
  for (const int status : {401, 404, 405, 408, 500, 502, 503}) CHECK(part(status, "").end == ServedEnd::kFailed);
}

TEST_CASE("served dialects: a request has what continues the response, in the words of each server") {
  ServedAsk chunk = kChunk;
  chunk.sampling = {.temperature = 0.7f, .top_p = 0.9f, .top_k = 5, .min_p = 0.01f, .repetition_penalty = 1.1f, .stop_token_ids = {9}, .stop = {"x"}, .ignore_eos = true};
  const json sglang = json::parse(make_dialect(ServerKind::kSglang)->generate(chunk).body);
  CHECK(sglang["input_ids"] == json(chunk.tokens));
  CHECK(sglang["rid"] == "seer.1.");
  CHECK(sglang["stream"] == true);
  CHECK(sglang["return_logprob"] == true);
  const json& params = sglang["sampling_params"];
  CHECK(params["max_new_tokens"] == 8);
  CHECK(params["sampling_seed"] == 5);  // 31 bits
  CHECK(params["temperature"].get<float>() == 0.7f);
  CHECK(params["top_k"] == 5);
  CHECK(params["stop"] == json({"x"}));
  CHECK(params["stop_token_ids"] == json({9}));
  CHECK(params["no_stop_trim"] == true);
  CHECK_FALSE(sglang.contains("incremental"));
  CHECK_FALSE(params.contains("min_new_tokens"));
  const auto least = [&](ServerKind kind, const char* name, int64_t min_tokens) {
    chunk.sampling.min_tokens = min_tokens;
    const json body = json::parse(make_dialect(kind)->generate(chunk).body);
    const json& fields = body.contains("sampling_params") ? body["sampling_params"] : body;
    return fields.value(name, 0);
  };
  const int64_t done = std::ssize(chunk.tokens) - chunk.prompt_tokens;
  for (const auto& [kind, name] : {std::pair{ServerKind::kSglang, "min_new_tokens"}, {ServerKind::kSeer, "min_new_tokens"}, {ServerKind::kVllm, "min_tokens"}}) {
    CHECK(least(kind, name, done) == 0);
    CHECK(least(kind, name, done + 3) == 3);
    CHECK(least(kind, name, 1000) == 8);  // of this chunk
  }
  const json seer = json::parse(make_dialect(ServerKind::kSeer)->generate(chunk).body);
  CHECK(seer["sampling_params"]["sampling_seed"] == chunk.seed);
  CHECK(seer["incremental"] == true);
  CHECK(json::parse(make_dialect(ServerKind::kSglang)->generate(chunk_of({1}, 1, 1)).body)["sampling_params"]["top_k"] == -1);
}

TEST_CASE("served dialects: vLLM is asked for tokens where it can be, and a chunk does not repeat the noise of the first") {
  VllmServer vllm;
  const ServedAsk first = chunk_of({11, 12, 13}, 3, 8);
  const json completion = json::parse(vllm.generate(kChunk).body);
  CHECK(vllm.generate(kChunk).target == "/v1/completions");
  CHECK(completion["prompt"] == json(kChunk.tokens));
  CHECK(completion["return_token_ids"] == true);
  CHECK(json::parse(vllm.generate(first).body)["seed"] == first.seed);
  CHECK(completion["seed"] != first.seed);
  CHECK(completion["seed"] == json::parse(vllm.generate(kChunk).body)["seed"]);
  const std::vector<HttpAnswer> answers{{200, R"({"object":"list","data":[{"id":"m","object":"model","max_model_len":4096}]})"},
                                        {200, R"({"version":"0.14.0"})"},
                                        {404, ""},
                                        {422, "{}"},
                                        {200, R"({"world_size":4})"},
                                        {200, "# HELP x\nvllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"1000\"} 1.0\n"
                                              "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\nvllm:num_requests_waiting{engine=\"0\"} 2.0\n"
                                              "vllm:num_requests_waiting_by_reason{reason=\"x\"} 9.0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n"}};
  const auto state = vllm.state(answers);
  REQUIRE(state.ok());
  CHECK(state->engine == "vLLM 0.14.0");
  CHECK(state->kv_tokens == 16000);
  CHECK(state->context_tokens == 4096);
  CHECK(state->running == 3);
  CHECK(state->waiting == 2);
  CHECK(state->kv_use_share == 0.5);
  CHECK(state->weights.empty());
  CHECK(state->ranks == 4);
  CHECK(vllm.generate(kChunk).target == "/inference/v1/generate");
  CHECK(json::parse(vllm.generate(kChunk).body)["sampling_params"]["logprobs"] == 1);
  CHECK_FALSE(VllmServer().state({{0, ""}, {0, ""}, {0, ""}, {0, ""}, {0, ""}, {0, ""}}).ok());
  std::vector<HttpAnswer> partial = answers;
  partial[3] = {503, ""};
  partial[4] = partial[5] = {0, "late"};
  CHECK(vllm.state(partial)->kv_tokens == 0);
  CHECK(vllm.generate(kChunk).target == "/inference/v1/generate");  // it has not changed
  partial[2] = {500, ""};  // its label is not known: not an empty one
  CHECK(vllm.state(partial).error().detail == "/weight_info: status 500");
}

TEST_CASE("served dialects: SGLang's figures tell its capacity, its load and whether it is deterministic") {
  const auto sglang = make_dialect(ServerKind::kSglang);
  const std::string info =
      R"({"model_path": "/m/q", "served_model_name": "q", "tp_size": 4, "dp_size": 2, "max_total_num_tokens": 1000, "max_running_requests": 64, "context_length": 4096, "enable_deterministic_inference": true, "weight_version": "default", "version": "0.5.3", "internal_states": [{}]})";
  const std::string loads = R"({"timestamp": "t", "version": "0.5.3", "loads": [{"dp_rank": 0, "num_running_reqs": 3, "num_waiting_reqs": 1, "token_usage": 0.25}, {"dp_rank": 1, "num_running_reqs": 2, "num_waiting_reqs": 0, "token_usage": 0.5}]})";
  for (const bool is_old : {false, true}) {
    const auto state = sglang->state({{is_old ? 404 : 200, is_old ? "" : info}, {200, info}, {200, loads}});
    REQUIRE(state.ok());
    CHECK(state->engine == "SGLang 0.5.3");
    CHECK(state->model == "q");
    CHECK(state->weights == "default");
    CHECK(state->kv_tokens == 2000);
    CHECK(state->rows_max == 128);
    CHECK(state->ranks == 4);
    CHECK(state->context_tokens == 994);  // of its KV, less what it keeps for itself
    CHECK(state->is_deterministic);
    CHECK(state->running == 5);
    CHECK(state->waiting == 1);
    CHECK(state->kv_use_share == 0.5);
  }
  const std::string later_info = R"({"version": "0.5.9", "max_total_num_tokens": 100000, "context_length": 4096, "max_req_input_len": 4090})";
  CHECK(sglang->state({{200, later_info}, {0, ""}, {0, ""}})->context_tokens == 4090);
  CHECK(sglang->state({{200, R"({"version": "0.5.9", "context_length": 4096})"}, {0, ""}, {0, ""}})->context_tokens == 4090);
  CHECK(sglang->state({{200, R"({"version": "0.5.9"})"}, {0, ""}, {0, ""}})->context_tokens == 0);
  CHECK_FALSE(sglang->state({{0, "refused"}, {0, ""}, {0, ""}}).ok());
  CHECK_FALSE(sglang->state({{503, "starting"}, {503, ""}, {503, ""}}).ok());
  CHECK_FALSE(make_dialect(ServerKind::kSeer)->state({{200, info}, {200, info}, {200, loads}}).ok());
}

TEST_CASE("served dialects: `seer serve` is known by what it says, so that it gets whole seeds, and a router is no server of its own, nor of those behind it") {
  const auto sglang = make_dialect(ServerKind::kSglang);
  const auto info = [](const std::vector<std::string>& ids) {
    return json{{"version", "seer"}, {"max_total_num_tokens", 1000}, {"context_length", 4096}, {"server_ids", ids}}.dump();
  };
  CHECK(json::parse(sglang->generate(kChunk).body)["sampling_params"]["sampling_seed"] != kChunk.seed);
  const auto state = sglang->state({{200, info({"another", "behind it"})}, {0, ""}, {0, ""}});
  REQUIRE(state.ok());
  CHECK(state->server_ids == std::vector<std::string>{"another", "behind it"});
  CHECK(state->engine == "Seer");
  CHECK(json::parse(sglang->generate(kChunk).body)["sampling_params"]["sampling_seed"] == kChunk.seed);
  CHECK(sglang->state({{200, info({own_server_id(), "another"})}, {0, ""}, {0, ""}}).error().detail == "it is this router itself");
  CHECK(sglang->state({{200, info({"another", own_server_id()})}, {0, ""}, {0, ""}}).error().detail == "it passes requests on to this router");
  const std::string models = json{{"data", {{{"id", "m"}, {"server_ids", {own_server_id()}}}}}}.dump();
  CHECK(VllmServer().state({{200, models}, {0, ""}, {0, ""}, {0, ""}, {0, ""}, {0, ""}}).error().detail == "it is this router itself");
}
