#include "cli/serve/response_text.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gpu/text/utf8.h"

using namespace seer;

namespace {

const Tokenizer& tokenizer() {
  static const auto loaded = load_tokenizer(SEER_SOURCE_DIR "/deploy/models/scratchpad-1m8").value();
  return *loaded;
}

Response stopped_at(std::vector<int32_t> ids, std::string matched) {
  Response r;
  r.output.ids = std::move(ids);
  r.finish = FinishReason::kStop;
  r.matched = std::move(matched);
  return r;
}

/// The text of a response whose tokens come in these parts; each part but the last ends at a character.
std::string joined(const Response& r, const TextRules& rules, const std::vector<size_t>& cuts) {
  ResponseText text(&tokenizer(), rules);
  std::string out;
  size_t from = 0;
  for (const size_t cut : cuts) {
    const std::string part = text.append({r.output.ids.data() + from, r.output.ids.data() + cut});
    from = cut;
    out += part;
  }
  out += text.append({r.output.ids.data() + from, r.output.ids.data() + r.output.ids.size()});
  return out + text.finish(r);
}

}  // namespace

TEST_CASE("response text: any parts of random tokens join to the text of them all") {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    Response r;
    r.finish = FinishReason::kLength;
    r.output.ids.resize(1 + random() % 60);
    for (int32_t& id : r.output.ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(tokenizer().vocab_size()));
    std::vector<size_t> cuts;
    for (size_t i = 1; i < r.output.ids.size(); ++i)
      if (random() % 3 == 0) cuts.push_back(i);
    for (const bool skips : {false, true})
      CHECK(joined(r, {.skip_special = skips}, cuts) == tokenizer().decode(r.output.ids, {.skip_special = skips}));
  }
}

TEST_CASE("response text: no part ends inside a character") {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z";  // of 1 to 4 bytes
  const std::vector<int32_t> ids = tokenizer().encode(text).value();
  ResponseText parts(&tokenizer(), {});
  std::string out;
  for (const int32_t id : ids) {
    const std::string part = parts.append({&id, 1});
    CHECK(utf8_valid_bytes(part) == part.size());
    out += part;
  }
  CHECK(out == text);
}

TEST_CASE("response text: the stop string and what follows it are left out, however the parts are cut") {
  const std::string text = "12+34=46;56";
  const Response r = stopped_at(tokenizer().encode(text).value(), "=46");
  const TextRules rules{.stop = {"=46", "never"}};
  CHECK(joined(r, rules, {}) == "12+34");
  for (size_t cut = 1; cut < r.output.ids.size(); ++cut) CHECK(joined(r, rules, {cut}) == "12+34");
  CHECK(joined(r, {.leave_out_stop = false, .stop = {"=46"}}, {3}) == text);
}

TEST_CASE("response text: the start of a stop string that does not go on is given in the end") {
  Response r = stopped_at(tokenizer().encode("12+34=4").value(), "");
  r.finish = FinishReason::kLength;
  CHECK(joined(r, {.stop = {"=46"}}, {2, 4}) == "12+34=4");
}

TEST_CASE("response text: while a response goes on, its text has no part of a stop string or a character") {
  Response r;
  r.output.ids = tokenizer().encode("12+34=4").value();
  CHECK(response_text(&tokenizer(), {.stop = {"=46"}}, r) == "12+34");
  r.output.ids = tokenizer().encode("a\xE2\x82\xAC").value();
  r.output.ids.pop_back();
  const std::string text = response_text(&tokenizer(), {}, r);
  CHECK(utf8_valid_bytes(text) == text.size());
  r.finish = FinishReason::kLength;
  CHECK(response_text(&tokenizer(), {}, r) == tokenizer().decode(r.output.ids));
}

TEST_CASE("response text: the first word keeps the space that parts it from the prompt, where a tokenizer drops that of a text") {
  const auto llama2 = load_tokenizer(SEER_SOURCE_DIR "/tests/gpu/data/text/llama2_like").value();
  const std::vector<int32_t> prompt = llama2->encode("the").value();
  std::vector<int32_t> ids = llama2->encode("the rollout\n").value();
  ids.erase(ids.begin(), ids.begin() + std::ssize(prompt));
  Response r = stopped_at(ids, "");
  r.finish = FinishReason::kLength;
  CHECK(response_text(llama2.get(), {.before = end_of_prompt(prompt)}, r) == " rollout\n");
  CHECK(response_text(llama2.get(), {}, r) == "rollout\n");
  r = stopped_at(ids, " rollout");
  CHECK(response_text(llama2.get(), {.stop = {" rollout"}, .before = end_of_prompt(prompt)}, r) == "");
  std::vector<int32_t> longer(50, 7);
  longer.insert(longer.end(), prompt.begin(), prompt.end());
  CHECK(end_of_prompt(longer).size() == 8);
}

TEST_CASE("response text: a stop token is left out, and kept where the client wants it") {
  std::vector<int32_t> ids = tokenizer().encode("12+3").value();
  const int32_t last = ids.back();
  const Response r = stopped_at(ids, std::to_string(last));
  const std::string whole = tokenizer().decode(ids), shorter = whole.substr(0, whole.size() - tokenizer().piece(last).size());
  CHECK(joined(r, {.stop_ids = {last}}, {1}) == shorter);
  CHECK(joined(r, {.leave_out_stop = false, .stop_ids = {last}}, {1}) == whole);
}

TEST_CASE("stop cause: a stop string of digits is not taken for a token") {
  CHECK(stop_cause(stopped_at({5, 6}, "42"), {"42"}).text == "42");
  CHECK(stop_cause(stopped_at({5, 6}, "42"), {}).token == 42);
  CHECK(stop_cause(stopped_at({5, 6}, ""), {}).token == 6);  // EOS
}
