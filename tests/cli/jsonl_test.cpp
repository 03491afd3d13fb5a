#include "cli/jsonl.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>

#include "cli/scratch.h"
#include "protocols/hash.h"

using namespace seer;
using Json = nlohmann::json;

namespace {

ResponseLine small_response() {
  static const std::vector<int32_t> prompt{1, 2}, output{3, 4, 5};
  static const std::vector<float> logprobs{-0.5f, -0.0f, -1e-20f};
  ResponseLine r;
  r.request = {GroupId{7}, 2};
  r.seed = ~uint64_t{0};
  r.prompt_ids = prompt;
  r.output_ids = output;
  r.logprobs = logprobs;
  r.finish_reason = FinishReason::kStop;
  r.weight_version = WeightVersion{9};
  r.chunks = 2;
  r.queue_s = 0.25;
  return r;
}

/// The logprobs as a JSON reader gives them: text to double to float.
std::vector<float> read_logprobs(const std::string& line) {
  std::vector<float> read;
  const Json response = Json::parse(line);
  bool are_decimals = true;
  for (const Json& value : response["logprobs"]) {
    are_decimals &= value.is_number_float();
    read.push_back(static_cast<float>(value.get<double>()));
  }
  CHECK(are_decimals);
  return read;
}

std::string object_of(int names) {
  std::string text = "{";
  for (int i = 0; i < names; ++i) text += cat(i == 0 ? "" : ",", "\"", i, "\":0");
  return text + "}";
}

}  // namespace

TEST_CASE("prompts: a line has text or ids, and other fields keep their order") {
  const ScratchFolder folder;
  const std::string file =
      folder.write("p.jsonl",
                   "{\"id\": \"a\\u00e9\", \"prompt\": \"2+2\", \"zeta\": {\"x\": [1, 2.50]}, \"answer\": 12}\r\n"
                   "\n"
                   "  {\"id\": 7, \"prompt_ids\": [0, 2147483647], \"max_tokens\": 5, \"seed\": 18446744073709551615}");
  const auto prompts = read_prompts(file, 0);
  REQUIRE(prompts.ok());
  REQUIRE(prompts->size() == 2);
  const PromptLine& text = (*prompts)[0];
  CHECK(text.line == 1);
  CHECK(text.id == "\"a\xc3\xa9\"");
  CHECK(text.prompt == "2+2");
  CHECK(text.prompt_ids.empty());
  CHECK(text.sampling == SamplingParams{});
  CHECK(!text.seed);
  CHECK(text.carried == "\"zeta\":{\"x\":[1,2.50]},\"answer\":12");
  const PromptLine& ids = (*prompts)[1];
  CHECK(ids.line == 3);
  CHECK(ids.id == "7");
  CHECK(ids.prompt_ids == std::vector<int32_t>{0, 2147483647});
  CHECK(ids.sampling.max_tokens == 5);
  CHECK(ids.seed == ~uint64_t{0});
  CHECK(ids.carried.empty());
  CHECK(read_prompts(file, 1)->size() == 1);
}

TEST_CASE("prompts: each bad line is named by file, line and what is wrong") {
  const ScratchFolder folder;
  const struct {
    std::string text;
    const char* error;
  } table[] = {
      {"{\"prompt\": \"a\"}\n{\"prompt\": \"b\", }\n", ":2:17: malformed JSON after \"prompt\": \"b\", }"},
      {"{}\n", ":1: neither prompt nor prompt_ids nor messages: expected one of them"},
      {"{\"prompt\": \"a\", \"prompt_ids\": [1]}\n", ":1: both prompt and prompt_ids: expected one of them"},
      {"{\"prompt\": \"\"}\n", ":1: the prompt is empty"},
      {"{\"prompt_ids\": []}\n", ":1: the prompt is empty"},
      {"{\"prompt\": 3}\n", ":1: prompt is number: expected text"},
      {"{\"prompt_ids\": \"1 2\"}\n", ":1: prompt_ids is string: expected a list of token ids"},
      {"{\"prompt_ids\": [1, -2]}\n", ":1: prompt_ids[1] is -2: expected a token id from 0 to 2147483647"},
      {"{\"prompt_ids\": [2147483648]}\n", ":1: prompt_ids[0] is 2147483648: expected a token id from 0 to 2147483647"},
      {"{\"prompt_ids\": [1.0]}\n", ":1: prompt_ids[0] is 1.0: expected a token id from 0 to 2147483647"},
      {"{\"prompt\": \"a\", \"max_tokens\": 0}\n", ":1: max_tokens is 0: expected an integer, at least 1"},
      {"{\"prompt\": \"a\", \"max_tokens\": \"9\"}\n", ":1: max_tokens is \"9\": expected an integer, at least 1"},
      {"{\"prompt\": \"a\", \"seed\": -1}\n", ":1: seed is -1: expected an integer of at least 0"},
      {"{\"prompt\": \"a\", \"id\": 1.5}\n", ":1: id is 1.5: expected text or an integer"},
      {"{\"prompt\": \"a\", \"seed\": " + object_of(1001) + "}\n", ":1: an object has more than 1000 names"},
      {"{\"prompt\": \"a\", \"temperature\": {\"a\": 1.5}}\n", ":1: temperature is {\"a\":1.5}: expected a number, at least 0 and at most 100"},
      {"{\"id\": 1, \"prompt\": \"a\"}\n\n{\"id\": 1, \"prompt\": \"b\"}\n", ":3: id 1 is that of line 1 already"},
      {"{\"prompt\": \"a\", \"run_s\": 1}\n", ":1: field run_s would clash with the response's own: rename it"},
      {"", " holds no prompts: expected a JSON object per line"},
      {"\n  \n", " holds no prompts: expected a JSON object per line"},
  };
  for (const auto& row : table) {
    CAPTURE(row.text);
    const std::string file = folder.write("p.jsonl", row.text);
    const auto prompts = read_prompts(file, 0);
    REQUIRE(!prompts.ok());
    CHECK(prompts.error().detail == file + row.error);
  }
}

TEST_CASE("prompts: sampling fields of a line override the flags, and null keeps the flag") {
  const ScratchFolder folder;
  const std::string file = folder.write(
      "p.jsonl",
      "{\"prompt\": \"a\", \"temperature\": 0.1, \"top_p\": 9e-1, \"top_k\": 5, \"min_p\": 0.25, \"repetition_penalty\": 2, "
      "\"max_tokens\": 3, \"min_tokens\": 2, \"stop\": [\"x,y\", \"z\"], \"stop_token_ids\": [4, 5], \"ignore_eos\": true, \"n\": 3}\n"
      "{\"prompt\": \"b\", \"stop\": \"end\", \"stop_token_ids\": []}\n"
      "{\"prompt\": \"c\", \"prompt_ids\": null, \"id\": null, \"temperature\": null, \"n\": null, \"stop\": null, \"seed\": null, "
      "\"max_new_tokens\": null}\n");
  PromptDefaults defaults{.samples = 8};
  defaults.sampling.temperature = 0.5f;
  defaults.sampling.stop = {"flag"};
  defaults.sampling.stop_token_ids = {9};
  defaults.sampling.logprob_mode = LogprobMode::kRaw;
  const auto prompts = read_prompts(file, 0, defaults);
  REQUIRE_MESSAGE(prompts.ok(), prompts.error().detail);
  const SamplingParams all{.temperature = 0.1f,
                           .top_p = 0.9f,
                           .top_k = 5,
                           .min_p = 0.25f,
                           .repetition_penalty = 2.0f,
                           .max_tokens = 3,
                           .min_tokens = 2,
                           .stop_token_ids = {4, 5},
                           .stop = {"x,y", "z"},
                           .ignore_eos = true,
                           .logprob_mode = LogprobMode::kRaw};
  CHECK((*prompts)[0].sampling == all);
  CHECK((*prompts)[0].samples == 3);
  CHECK((*prompts)[0].carried.empty());
  SamplingParams some = defaults.sampling;
  some.stop = {"end"};
  some.stop_token_ids = {};
  CHECK((*prompts)[1].sampling == some);
  CHECK((*prompts)[1].samples == 8);
  CHECK((*prompts)[2].sampling == defaults.sampling);
  CHECK((*prompts)[2].samples == 8);
  CHECK((*prompts)[2].id.empty());
  CHECK(!(*prompts)[2].seed);
  CHECK((*prompts)[2].carried == "\"max_new_tokens\":null");
}

TEST_CASE("prompts: sampling fields take the values of the flags, and others of that kind are refused by name") {
  const ScratchFolder folder;
  const struct {
    const char* field;
    const char* error;
  } table[] = {
      {"\"temperature\": -1", "temperature is -1: expected a number, at least 0 and at most 100"},
      {"\"temperature\": \"1\"", "temperature is \"1\": expected a number, at least 0 and at most 100"},
      {"\"top_p\": 0", "top_p is 0: expected a number, above 0 and at most 1"},
      {"\"top_k\": 1.5", "top_k is 1.5: expected an integer, at least 0 and at most 2147483647"},
      {"\"min_p\": 1", "min_p is 1: expected a number, at least 0 and below 1"},
      {"\"repetition_penalty\": 0", "repetition_penalty is 0: expected a number, at least 0.01 and at most 100"},
      {"\"stop\": [\"a\", \"\"]", "stop is [\"a\",\"\"]: expected a text or a list of texts, none empty"},
      {"\"stop\": 3", "stop is 3: expected a text or a list of texts, none empty"},
      {"\"stop_token_ids\": 3", "stop_token_ids is 3: expected a list of integers, at least 0 and at most 2147483647"},
      {"\"stop_token_ids\": [1.0]",
       "stop_token_ids is [1.0]: expected a list of integers, at least 0 and at most 2147483647"},
      {"\"ignore_eos\": 1", "ignore_eos is 1: expected true or false"},
      {"\"n\": 0", "n is 0: expected an integer, at least 1 and at most 1000000"},
      {"\"n\": [[[[1]]]]", "n is [[[[1]]]]: expected an integer, at least 1 and at most 1000000"},
      {"\"max_new_tokens\": 5", "field max_new_tokens is not known: use max_tokens"},
      {"\"tools\": []", "field tools is not known: it goes with messages"},
      {"\"chat_template\": \"x\"", "field chat_template is not known: the template is that of the model's folder"},
      {"\"messages\": []", "both prompt and messages: expected one of them"},
      {"\"num_return_sequences\": 2", "field num_return_sequences is not known: use n"},
      {"\"thinking_token_budget\": 9", "field thinking_token_budget is not known: use max_tokens"},
      {"\"do_sample\": false", "field do_sample is not known: use temperature (0: greedy)"},
      {"\"sampling_seed\": 7", "field sampling_seed is not known: use seed"},
      {"\"top-p\": 0.5", "field \"top-p\" is not known: did you mean top_p? Rename it if it is only to be carried along"},
      {"\"Temperature\": 0.5", "field \"Temperature\" is not known: did you mean temperature? Rename it if it is only to be carried along"},
      {"\"temprature\": 0.5", "field \"temprature\" is not known: did you mean temperature? Rename it if it is only to be carried along"},
      {"\"Seed\": 5", "field \"Seed\" is not known: did you mean seed? Rename it if it is only to be carried along"},
      {"\"lengthhint\": 5", "field \"lengthhint\" is not known: did you mean length_hint? Rename it if it is only to be carried along"},
      {"\"guided_json\": {}",
       "field guided_json is not known: output cannot be constrained; rename the field if it is only to be carried along"},
      {"\"logprobs\": 5",
       "field logprobs is not known: responses have the log-probability of each token; the flag --raw-logprobs says which"},
  };
  for (const auto& row : table) {
    CAPTURE(std::string(row.field));
    const std::string file = folder.write("p.jsonl", "{\"prompt\": \"a\", " + std::string(row.field) + "}\n");
    const auto prompts = read_prompts(file, 0);
    REQUIRE(!prompts.ok());
    CHECK(prompts.error().detail == file + ":1: " + row.error);
  }
}

TEST_CASE("prompts: fields of the user's own are carried, though their names are near those of short fields; top_k -1 is off") {
  const ScratchFolder folder;
  const std::string carried = "\"prompt_id\":3,\"prompts\":1,\"stops\":2,\"seeds\":[4],\"level\":5,\"temp\":6,\"repetition\":7,\"num_tokens\":8,\"_______\":9";
  const auto prompts = read_prompts(folder.write("p.jsonl", "{\"prompt\": \"a\", \"top_k\": -1, " + carried + "}\n"), 0);
  REQUIRE_MESSAGE(prompts.ok(), prompts.error().detail);
  CHECK((*prompts)[0].carried == carried);
  CHECK((*prompts)[0].sampling.top_k == 0);
}

TEST_CASE("prompts: numbers that are carried, and ids, come back as they were written") {
  const ScratchFolder folder;
  const std::string carried = "\"a\":12345678901234567890123,\"b\":[1e400,0.10]";
  const auto prompts = read_prompts(
      folder.write("p.jsonl", "{\"id\": 12345678901234567890123, \"prompt\": \"a\", " + carried + "}\n"), 0);
  REQUIRE_MESSAGE(prompts.ok(), prompts.error().detail);
  CHECK((*prompts)[0].id == "12345678901234567890123");
  CHECK((*prompts)[0].carried == carried);
}

TEST_CASE("prompts: a conversation is kept for the chat template with what belongs to it, and nothing of it is carried") {
  const ScratchFolder folder;
  const auto chats = read_prompts(folder.write("p.jsonl", R"({"tools": [{"name": "add"}], "messages": [{"role": "user", "content": "2+3"}], "n": 3, )"
                                                           R"("documents": null, "prompt": null, "level": 1.50})"), 0);
  REQUIRE_MESSAGE(chats.ok(), chats.error().detail);
  const PromptLine& line = (*chats)[0];
  CHECK(line.chat == R"({"tools":[{"name":"add"}],"messages":[{"role":"user","content":"2+3"}],"documents":null})");
  CHECK(line.prompt.empty());
  CHECK(line.samples == 3);
  CHECK(line.carried == "\"level\":1.50");
  const auto plain = read_prompts(folder.write("p.jsonl", R"({"prompt": "a", "documents": ["b"]})"), 0);
  REQUIRE(plain.ok());
  CHECK((*plain)[0].carried == "\"documents\":[\"b\"]");
}

TEST_CASE("prompts: messages show little of a line") {
  const ScratchFolder folder;
  const std::string file = folder.path("p.jsonl"), much(5000, '9');
  for (const std::string& line : {"{\"prompt\": \"a\", \"n\": \"" + much + "\"}", "{\"prompt_ids\": [\"" + much + "\"]}",
                                  "{\"prompt\": \"a\", \"seed\": " + much + "}", "{\"prompt\": \"a\", \"x\": " + much + "x}",
                                  "{\"prompt\": \"a\", \"" + much + "\": 1, \"" + much + "\": 1}"}) {
    folder.write("p.jsonl", line);
    const auto prompts = read_prompts(file, 0);
    REQUIRE(!prompts.ok());
    CHECK(prompts.error().detail.size() < file.size() + 160);
    CHECK(prompts.error().detail.find("json.exception") == std::string::npos);
  }
}

TEST_CASE("prompts: a seed or an id decides the samples, wherever the line is") {
  const PromptLine seeded{.id = "\"a\"", .seed = 7}, named{.id = "7"}, text_named{.id = "\"7\""}, bare{};
  CHECK(prompt_sample_seed(seeded, 1, 0, 2) == prompt_sample_seed(seeded, 99, 5, 2));
  CHECK(prompt_sample_seed(seeded, 1, 0, 2) != prompt_sample_seed(seeded, 1, 0, 3));
  CHECK(prompt_sample_seed(named, 1, 0, 2) == prompt_sample_seed(named, 1, 5, 2));
  CHECK(prompt_sample_seed(named, 1, 0, 2) != prompt_sample_seed(named, 2, 0, 2));
  CHECK(prompt_sample_seed(named, 1, 0, 2) != prompt_sample_seed(text_named, 1, 0, 2));
  CHECK(prompt_sample_seed(bare, 1, 5, 2) == sample_seed(1, 5, 2));
  CHECK(prompt_sample_seed(seeded, 1, 5, 2) != sample_seed(7, 5, 2));
}

TEST_CASE("prompts: ids outside the vocabulary and prompts longer than the context name file and line") {
  const std::vector<int32_t> ids{1, 2, 320};
  CHECK(check_prompt("p.jsonl", 4, ids, 321, 4).ok());
  CHECK(check_prompt("p.jsonl", 4, ids, 320, 4).error().detail ==
        "p.jsonl:4: token id 320 (number 2 of the prompt) is outside the vocabulary of 320");
  CHECK(check_prompt("p.jsonl", 4, ids, 321, 3).error().detail ==
        "p.jsonl:4: the prompt has 3 tokens: expected fewer than the model's context of 3");
  ScoreLine line{.line = 4, .text = {}, .prompt_ids = {1, 2}, .output_ids = {3, 320}};
  CHECK(check_score_line("p.jsonl", line, 321, 4).ok());
  CHECK(check_score_line("p.jsonl", line, 320, 4).error().detail ==
        "p.jsonl:4: token id 320 (number 1 of the output) is outside the vocabulary of 320");
  CHECK(check_score_line("p.jsonl", line, 2, 4).error().detail ==
        "p.jsonl:4: token id 2 (number 1 of the prompt) is outside the vocabulary of 2");
  CHECK(check_score_line("p.jsonl", line, 321, 3).error().detail ==
        "p.jsonl:4: the prompt has 2 tokens and the output 2: expected no more together than the model's context of 3");
  CHECK(check_prompt("p.jsonl", 4, {}, 321, 3).error().detail == "p.jsonl:4: the prompt has no tokens");
}

TEST_CASE("lengths: they are read from lengths or responses in any order, and further lines are skipped") {
  const ScratchFolder folder;
  const std::string file = folder.write("l.jsonl",
                                        "{\"group\": 1, \"sample\": 0, \"tokens\": 30}\n"
                                        "{\"group\": 0, \"sample\": 1, \"output_ids\": [5, 6]}\n"
                                        "{\"group\": 0, \"sample\": 0, \"tokens\": 10}\n"
                                        "{\"group\": 1, \"sample\": 1, \"tokens\": 40}\n"
                                        "{\"group\": 9, \"sample\": 0, \"tokens\": 1}\n"
                                        "{\"group\": 0, \"sample\": 9, \"tokens\": 1}\n");
  const auto lengths = read_lengths(file, std::vector<int64_t>{2, 2});
  REQUIRE(lengths.ok());
  CHECK(*lengths == std::vector<std::vector<int64_t>>{{10, 2}, {30, 40}});
  CHECK(read_lengths(file, std::vector<int64_t>{2, 2, 1}).error().detail == file + ": no length of group 2 sample 0");
}

TEST_CASE("lengths: each bad line is named by file, line and what is wrong") {
  const ScratchFolder folder;
  const struct {
    const char* text;
    const char* error;
  } table[] = {
      {"{\"group\": 0, \"sample\": 0, \"tokens\": 0}\n", ":1: tokens is 0: expected an integer of at least 1"},
      {"{\"group\": 0, \"sample\": 0}\n",
       ":1: no field tokens: expected {group, sample, tokens} or {group, sample, output_ids}"},
      {"{\"sample\": 0, \"tokens\": 1}\n",
       ":1: no field group: expected {group, sample, tokens} or {group, sample, output_ids}"},
      {"{\"group\": -1, \"sample\": 0, \"tokens\": 1}\n", ":1: group is -1: expected an integer of at least 0"},
      {"{\"group\": 0, \"sample\": 0, \"output_ids\": []}\n", ":1: output_ids is empty"},
      {"{\"group\": 0, \"sample\": 0, \"tokens\": 1, \"tokens\": 2}\n", ":1: field tokens is given twice"},
      {"{\"group\": 0, \"sample\": 0, \"tokens\": 1}\n{\"group\": 0, \"sample\": 0, \"tokens\": 2}\n",
       ":2: group 0 sample 0 has a line before this one"},
      {"nonsense\n", ":1:2: malformed JSON after no"},
      {"", ": no length of group 0 sample 0"},
  };
  for (const auto& row : table) {
    CAPTURE(std::string(row.text));
    const std::string file = folder.write("l.jsonl", row.text);
    const auto lengths = read_lengths(file, std::vector<int64_t>{1});
    REQUIRE(!lengths.ok());
    CHECK(lengths.error().detail == file + row.error);
  }
}

TEST_CASE("score lines: output of rollout is read, and scores are added to the unchanged line") {
  const ScratchFolder folder;
  const std::string line = response_line(small_response());
  const auto lines = read_score_lines(folder.write("r.jsonl", line + line));
  REQUIRE(lines.ok());
  REQUIRE(lines->size() == 2);
  const ScoreLine& score = (*lines)[1];
  CHECK(score.line == 2);
  CHECK(score.prompt_ids == std::vector<int32_t>{1, 2});
  CHECK(score.output_ids == std::vector<int32_t>{3, 4, 5});
  const std::string scored = scored_line(score, std::vector<float>{-0.5f, -0.0f, -1e-20f});
  CHECK(scored == line.substr(0, line.size() - 2) + ",\"scores\":[-0.5,-0.0,-1e-20]}\n");
  CHECK(Json::parse(scored)["scores"] == Json::parse(scored)["logprobs"]);
  CHECK(scored_line(score, {}, "no \"scores\"") ==
        line.substr(0, line.size() - 2) + ",\"scores\":null,\"score_error\":\"no \\\"scores\\\"\"}\n");
}

TEST_CASE("score lines: a response that failed before its first token has nothing to score, and is no error") {
  const ScratchFolder folder;
  ResponseLine r = small_response();
  r.output_ids = {};
  r.logprobs = {};
  r.finish_reason = FinishReason::kError;
  r.error = "the logits of output token 0 are not finite";
  const std::string line = response_line(r);
  CHECK(line.find("\"finish_reason\":\"error\",\"error\":\"the logits of output token 0 are not finite\",") !=
        std::string::npos);
  const auto lines = read_score_lines(folder.write("r.jsonl", line));
  REQUIRE(lines.ok());
  CHECK(scored_line(lines->at(0), {}) == line.substr(0, line.size() - 2) + ",\"scores\":[]}\n");
}

TEST_CASE("score lines: so is one that was aborted before its first token") {
  const ScratchFolder folder;
  ResponseLine r = small_response();
  r.output_ids = {};
  r.logprobs = {};
  r.finish_reason = FinishReason::kAborted;
  const auto lines = read_score_lines(folder.write("r.jsonl", response_line(r)));
  REQUIRE(lines.ok());
  CHECK(lines->at(0).output_ids.empty());
}

TEST_CASE("score lines: each bad line is named by file, line and what is wrong") {
  const ScratchFolder folder;
  const struct {
    const char* text;
    const char* error;
  } table[] = {
      {"{\"prompt_ids\": [1]}\n", ":1: no field output_ids: expected {prompt_ids, output_ids, ...}"},
      {"{\"prompt_ids\": [1], \"output_ids\": []}\n", ":1: output_ids is empty: nothing to score"},
      {"{\"prompt_ids\": [], \"output_ids\": [1]}\n", ":1: prompt_ids is empty"},
      {"{\"prompt_ids\": [1], \"output_ids\": [true]}\n",
       ":1: output_ids[0] is true: expected a token id from 0 to 2147483647"},
      {"{\"prompt_ids\": [1], \"output_ids\": [1], \"x\": {\"y\": 1, \"y\": 2}}\n", ":1: field y is given twice"},
      {"{\"prompt_ids\": [1], \"output_ids\": [1], \"scores\": [0.5]}\n", ":1: the line has scores already"},
      {"", " holds no lines to score"},
  };
  for (const auto& row : table) {
    CAPTURE(std::string(row.text));
    const std::string file = folder.write("s.jsonl", row.text);
    CHECK(read_score_lines(file).error().detail == file + row.error);
  }
}

TEST_CASE("responses: a line has its fields in order, and what was carried") {
  ResponseLine r = small_response();
  r.id = "\"a7\"";
  r.text = "tab\there \"q\" \\ \n\xc3\xa9";
  r.carried = "\"answer\":12";
  CHECK(response_line(r) ==
        "{\"group\":7,\"sample\":2,\"id\":\"a7\",\"seed\":18446744073709551615,\"prompt_ids\":[1,2],"
        "\"output_ids\":[3,4,5],\"logprobs\":[-0.5,-0.0,-1e-20],\"text\":\"tab\\there \\\"q\\\" \\\\ \\n\xc3\xa9\","
        "\"finish_reason\":\"stop\",\"weight_version\":9,\"chunks\":2,\"migrations\":0,\"preemptions\":0,"
        "\"queue_s\":0.250000,\"run_s\":0.000000,\"answer\":12}\n");
  CHECK(Json::parse(response_line(r))["text"] == "tab\there \"q\" \\ \n\xc3\xa9");
}

TEST_CASE("responses: every float reads back to the same bits through a double") {
  std::vector<float> logprobs{0.0f,
                              -0.0f,
                              -1.0f,
                              -16777216.0f,
                              std::numeric_limits<float>::denorm_min(),
                              std::numeric_limits<float>::min(),
                              std::numeric_limits<float>::lowest()};
  const uint64_t seed = 5;
  CAPTURE(seed);
  std::mt19937 random(seed);
  while (logprobs.size() < 300'000) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isfinite(value)) logprobs.push_back(value);
    logprobs.push_back(-static_cast<float>(random()) / 1e9f);
  }
  const std::vector<int32_t> output(logprobs.size(), 151'000);
  ResponseLine r = small_response();
  r.output_ids = output;
  r.logprobs = logprobs;
  const std::vector<float> read = read_logprobs(response_line(r));
  REQUIRE(read.size() == logprobs.size());
  size_t differ = 0;
  for (size_t i = 0; i < read.size(); ++i)
    differ += std::bit_cast<uint32_t>(read[i]) != std::bit_cast<uint32_t>(logprobs[i]);
  CHECK(differ == 0);
}

TEST_CASE("responses: a log-probability that is not finite is null") {
  const std::vector<float> logprobs{-INFINITY, NAN, -1.0f};
  ResponseLine r = small_response();
  r.logprobs = logprobs;
  CHECK(Json::parse(response_line(r))["logprobs"].dump() == "[null,null,-1.0]");
}
