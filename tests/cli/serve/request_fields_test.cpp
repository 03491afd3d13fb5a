#include "cli/serve/request_fields.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>

using namespace seer;

namespace {

/// A front that no server and no gateway are behind: requests are read, not run.
class NoServer final : public HttpServer {
 public:
  uint16_t port() const override { return 0; }
  void start(HttpHandler) override {}
  void post(std::function<void()>) override {}
  void stop_listening() override {}
  size_t connections() const override { return 0; }
};

ServedModel model() {
  ServedModel served;
  served.name = "tiny";
  served.config.vocab_size = 100;
  served.config.context_tokens_max = 50;
  served.config.eos_ids = {1};
  served.tokens_max = 40;
  return served;
}

struct Bench {
  NoServer server;
  Front front{server, std::make_shared<GatewayDoor>(), model(), WeightVersion{3}};
};

std::string error_of(const Status& status) { return status.ok() ? "" : status.error().detail; }
HttpRequest http_request(std::map<std::string, std::string> query, std::string body = "") {
  return {.method = "POST", .path = "/workers", .query = std::move(query), .body = std::move(body)};
}
GatewayRequest asked(std::vector<int32_t> prompt) {
  GatewayRequest request;
  request.prompt_ids = std::move(prompt);
  return request;
}

}  // namespace

TEST_CASE("fit request: max_tokens is cut to what an instance holds") {
  GatewayRequest request = asked(std::vector<int32_t>(30, 2));
  request.sampling.max_tokens = 1000;
  CHECK(fit_request(request, model()).ok());
  CHECK(request.sampling.max_tokens == 10);
}

TEST_CASE("fit request: a request that the model cannot run is refused with a sentence") {
  GatewayRequest request = asked({});
  CHECK(error_of(fit_request(request, model())) == "the prompt is empty");
  request = asked({1, 100});
  CHECK(error_of(fit_request(request, model())).starts_with("token id 100 at place 1 of the prompt: expected ids below 100"));
  request = asked(std::vector<int32_t>(40, 2));
  CHECK(error_of(fit_request(request, model())).starts_with("the prompt has 40 tokens: expected less than 40"));
  request = asked({1});
  request.sampling.stop_token_ids = {100};
  CHECK(error_of(fit_request(request, model())).starts_with("stop_token_ids has 100: expected ids below 100"));
  request = asked({1});
  request.sampling.stop = {"x"};
  CHECK(error_of(fit_request(request, model())).starts_with("stop needs a tokenizer"));
}

TEST_CASE("read sampling: each member has its type, decimals too, and unknown ones change nothing") {
  const auto read = [](const char* text) { return read_sampling(Json::parse(text), "max_new_tokens", 128); };
  const Sampling sampling =
      read(R"({"temperature": 0.7, "top_p": 0.95, "top_k": -1, "n": 3, "sampling_seed": 18446744073709551615, "max_new_tokens": 9, "x": {}})").value();
  CHECK(sampling.params.temperature == 0.7F);
  CHECK(sampling.params.top_p == 0.95F);
  CHECK(sampling.params.top_k == 0);
  CHECK(sampling.params.max_tokens == 9);
  CHECK(sampling.n == 3);
  CHECK(*sampling.seed == ~uint64_t{0});
  CHECK(read("{}").value().params.max_tokens == 128);
  CHECK(!read("{}").value().seed);
  CHECK(read(R"({"max_new_tokens": 2.5})").error().detail.starts_with("max_new_tokens is 2.5: expected"));
  CHECK(read(R"({"presence_penalty": 0.5})").error().detail.starts_with("presence_penalty is 0.5: expected 0"));
  CHECK(read(R"({"presence_penalty": 0.0, "regex": ""})").ok());
  CHECK(read(R"({"min_tokens": 2})").value().params.min_tokens == 2);
  CHECK(read(R"({"min_new_tokens": 3})").value().params.min_tokens == 3);
  CHECK(read(R"({"min_new_tokens": -1})").error().detail.starts_with("min_new_tokens is -1: expected"));
  CHECK(error_of(refuse_unsupported(Json::parse(R"({"logit_bias": {"7": 1}})"))) == "logit_bias is object: expected {}, since it is not supported");
  CHECK(error_of(refuse_unsupported(Json::parse(R"({"regex": "[0-9]", "text": "a"})"))) == "regex is not supported");
  CHECK(read(R"({"bad_words": ["x"]})").error().detail == "bad_words is not supported");
  CHECK(read("5").error().detail == "sampling_params is number: expected an object");
}

TEST_CASE("read sampling: where the dialect says all names, a misspelt one is an error") {
  constexpr const char* kOthers[] = {"skip_special_tokens"};
  const auto read = [&](const char* text) { return read_sampling(Json::parse(text), "max_new_tokens", 128, kOthers); };
  CHECK(read(R"({"temprature": 0.5})").error().detail.starts_with("sampling_params has \"temprature\": expected max_new_tokens, min_tokens, temperature, top_p"));
  CHECK(read(R"({"temprature": 0.5})").error().detail.ends_with("n, skip_special_tokens or sampling_seed; did you mean temperature?"));
  CHECK(read(R"({"mine": 0.5})").error().detail.ends_with("n, skip_special_tokens or sampling_seed"));
  CHECK(read(R"({"temperature": 0.5, "skip_special_tokens": false, "seed": 3, "stop": null, "regex": null, "min_new_tokens": 2, "max_new_tokens": 5})").ok());
}

TEST_CASE("read sampling: too many least tokens are named as the client names them") {
  const auto error_of = [](const char* text) { return read_sampling(Json::parse(text), "max_new_tokens", 128).error().detail; };
  CHECK(error_of(R"({"min_new_tokens": 5, "max_new_tokens": 1})") == "min_new_tokens is 5: expected at most max_new_tokens, which is 1");
  CHECK(error_of(R"({"min_tokens": 129})") == "min_tokens is 129: expected at most max_new_tokens, which is 128");
}

TEST_CASE("check spelling: what is nearly a known name is refused, other names pass") {
  const std::vector<std::string> known{"model_path", "weight_version", "mode", "load_format"};
  const auto check = [&](const char* text) { return error_of(check_spelling(Json::parse(text), known)); };
  CHECK(check(R"({"model_path": "m", "weight_version": 7, "load_format": "auto", "trainer": {}})").empty());
  CHECK(check(R"({"weight_verison": 7})") == "field \"weight_verison\" is not known: did you mean weight_version?");
  CHECK(check(R"({"mod": "retract"})") == "field \"mod\" is not known: did you mean mode?");
  CHECK(check(R"({"mod": null})").empty());
  CHECK(error_of(check_query_spelling(http_request({{"mod", "keep"}}), known)) == "field \"mod\" is not known: did you mean mode?");
  CHECK(error_of(check_query_spelling(http_request({{"mode", "keep"}, {"x", "y"}}), known)).empty());
}

TEST_CASE("worker url: from the query or the body, with the kind; a misspelt kind is refused") {
  using Query = std::map<std::string, std::string>;
  const auto url = [](const Query& query, const char* body) { return worker_url(http_request(query, body)); };
  CHECK(url({}, R"({"url": "http://a:1", "worker_type": "regular", "bootstrap_port": 5})").value() == "http://a:1");
  CHECK(url({}, R"({"url": "http://a:1", "kind": "vllm"})").value() == "vllm=http://a:1");
  CHECK(url({{"url", "http://a:1"}, {"kind", "seer"}}, "").value() == "seer=http://a:1");
  CHECK(url({}, R"({"url": "http://a:1", "kidn": "vllm"})").error().detail == "field \"kidn\" is not known: did you mean kind?");
  CHECK(url({{"url", "http://a:1"}, {"kidn", "seer"}}, "").error().detail == "field \"kidn\" is not known: did you mean kind?");
  CHECK(url({}, R"({"kind": "vllm"})").error().detail.starts_with("url is missing"));
}

TEST_CASE("text field: an integer counts as text, other numbers do not") {
  const Json body{{"weight_version", 1.5}, {"number", 7}};
  CHECK(text_field(body, "number").value() == "7");
  CHECK(text_field(body, "weight_version").error().detail == "weight_version is 1.5: expected text or an integer");
}

TEST_CASE("read prompts: one or several, of text or of ids, as the field may be") {
  const auto read = [](const char* text, const PromptField& field) { return read_prompts(Json::parse(text), field, model()); };
  CHECK(read("[1, 2]", {.name = "prompt"}).value().ids == std::vector<std::vector<int32_t>>{{1, 2}});
  CHECK(!read("[1, 2]", {.name = "prompt"}).value().is_list);
  CHECK(read("[[1], [2, 3]]", {.name = "prompt"}).value().ids == std::vector<std::vector<int32_t>>{{1}, {2, 3}});
  CHECK(read("[[1]]", {.name = "prompt"}).value().is_list);
  CHECK(read("[]", {.name = "prompt"}).error().detail == "prompt is empty: expected a prompt");
  CHECK(read("\"a\"", {.name = "prompt"}).error().detail == "prompt is text, and tiny has no tokenizer: send token ids");
  CHECK(read("\"a\"", {.name = "input_ids", .may_be_text = false}).error().detail == "input_ids is string: expected a list of token ids");
  CHECK(read("7", {.name = "text", .may_be_ids = false}).error().detail == "text is 7: expected text");
  CHECK(read("[[1], 5]", {.name = "prompt"}).error().detail == "prompt is 5: expected text or a list of token ids");
}

TEST_CASE("read request: seeds follow the given one, and are different ones where none is given") {
  Bench b;
  Sampling sampling;
  sampling.n = 3;
  sampling.seed = 70;
  const Json body = Json::parse(R"({"group_id": 12, "group_size": 8, "priority": -2})");
  const GatewayRequest request = read_request(body, {2, 3}, sampling, b.front).value();
  CHECK(request.seeds == std::vector<uint64_t>{70, 71, 72});
  CHECK(request.group == "12");
  CHECK(request.group_size == 8);
  CHECK(request.priority == -2);
  sampling.seed.reset();
  const GatewayRequest first = read_request(body, {2, 3}, sampling, b.front).value(), second = read_request(body, {2, 3}, sampling, b.front).value();
  CHECK(first.seeds[0] != first.seeds[1]);
  CHECK(first.seeds != second.seeds);
  CHECK(read_request(Json::parse(R"({"group_size": -1})"), {2}, sampling, b.front).error().detail == "group_size is -1: expected an integer of at least 0");
}

TEST_CASE("read request: responses and stops of all prompts together are limited") {
  Sampling sampling;
  sampling.n = 50'000;
  AskedSoFar asked;
  CHECK(add_prompt(asked, sampling).ok());
  CHECK(add_prompt(asked, sampling).ok());
  sampling.n = 1;
  CHECK(error_of(add_prompt(asked, sampling)) == "the request asks for 100001 responses up to here: expected at most 100000");
  sampling.params.stop = std::vector<std::string>(1000, std::string(10'000, 'x'));
  asked = {};
  CHECK(add_prompt(asked, sampling).ok());
  CHECK(error_of(add_prompt(asked, sampling)).starts_with("the stops of all prompts take 20"));
}

TEST_CASE("read object: bytes that are not UTF-8 and compressed bodies are named") {
  CHECK(read_object("{\"a\": \"\xff\"}").error().detail == "body:1:8: the text is not UTF-8");
  CHECK(read_object("\x1f\x8b\x08").error().detail == "body is gzip-compressed: unpack it first");
  CHECK(read_object("\xef\xbb\xbf{\"a\": 1}").ok());
  CHECK(read_object("{\"a\": 1, \"a\": 2}").value()["a"] == 2);  // as in Python
}

TEST_CASE("id field: a long one is refused, since each prompt of a request has a copy") {
  const Json body{{"rid", std::string(1024, 'r')}, {"group_id", std::string(1025, 'r')}, {"number", 7}};
  CHECK(id_field(body, "rid").value().size() == 1024);
  CHECK(id_field(body, "number").value() == "7");
  CHECK(id_field(body, "none").value().empty());
  CHECK(id_field(body, "group_id").error().detail == "group_id has 1025 bytes: expected at most 1024");
}

TEST_CASE("read weight label: a number, a name, or a sentence") {
  const auto read = [](const std::string& text) { return read_weight_label("version", text); };
  CHECK(read("12").value().number == WeightVersion{12});
  CHECK(read("9223372036854775807").value().number == WeightVersion{INT64_MAX});
  CHECK(read("step-12").value().name == "step-12");
  CHECK((!read("").value().number && read("").value().name.empty()));
  CHECK(read("-1").error().detail == "version is -1: expected a number up to 9223372036854775807, or a name of at most 256 bytes");
  CHECK(!read("9223372036854775808").ok());
  CHECK(!read("99999999999999999999").ok());
  CHECK(!read(std::string(257, 'n')).ok());
  const auto of_trainer = [](const std::string& text) { return read_trainer_label("version", text, WeightVersion{12}); };
  CHECK(of_trainer("13").value().number == WeightVersion{13});
  CHECK((!of_trainer("12").value().number && of_trainer("12").value().name == "12"));
  CHECK(of_trainer("step-12").value().name == "step-12");
  CHECK(!of_trainer("-1").ok());
  CHECK((!read_weight_name("name", "12").value().number && read_weight_name("name", "12").value().name == "12"));
  CHECK(read_weight_name("name", std::string(257, '1')).error().detail.ends_with(": expected a name of at most 256 bytes"));
}

TEST_CASE("read object: a body nested without end is refused, not copied until the stack is full") {
  const size_t levels = 1'000'000;
  const std::string body = "{\"messages\":" + std::string(levels, '[') + std::string(levels, ']') + "}";
  CHECK(read_object(body).error().detail == "lists and objects are nested deeper than 500");
}

TEST_CASE("read text rules: EOS ends the text unless it is ignored") {
  SamplingParams sampling;
  sampling.stop_token_ids = {7};
  CHECK(read_text_rules(Json::object(), sampling, model(), "keep").value().stop_ids == std::vector<int32_t>{1, 7});
  sampling.ignore_eos = true;
  CHECK(read_text_rules(Json::object(), sampling, model(), "keep").value().stop_ids == std::vector<int32_t>{7});
  CHECK(!read_text_rules(Json::parse(R"({"keep": true})"), sampling, model(), "keep").value().leave_out_stop);
  CHECK(!read_text_rules(Json::parse(R"({"keep": 5})"), sampling, model(), "keep").ok());
}

TEST_CASE("front: a version has the name that a client gave it, else its number") {
  Bench b;
  CHECK(b.front.version() == WeightVersion{3});
  CHECK(b.front.version_label(WeightVersion{3}) == "3");
}
