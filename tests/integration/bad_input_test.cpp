// Bad input through the program itself: each gets exactly one sentence on stderr that names what is wrong and where, an
// exit code that is not 0, and no output file, neither whole nor half. SEER_PRINT_SENTENCES=1 prints all the sentences.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/scratch.h"
#include "gpu/tiny_model.h"
#include "integration/child_process.h"
#include "integration/optional_parts.h"
#include "protocols/check.h"

using namespace seer;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

namespace {

const std::string kModel = SEER_SOURCE_DIR "/deploy/models/scratchpad-1m8";
const std::string kShippedPrompts = SEER_SOURCE_DIR "/deploy/examples/scratchpad/prompts.jsonl";
constexpr int kPatienceMs = 600'000;  // then it hangs, on any machine

using Arguments = std::vector<std::string>;
using Words = std::vector<std::string>;

/// A folder with inputs, and the program's outputs and messages.
class BadInputs {
 public:
  BadInputs() {
    fs::create_directory(folder.path("out"));
    good_prompts = folder.write("good.jsonl", "{\"prompt\": \"A03 B09 sum\\n\"}\n");
  }
  ~BadInputs() {
    if (std::getenv("SEER_PRINT_SENTENCES") == nullptr) return;
    for (const auto& [name, said] : sentences_) std::cout << "| " << name << " | " << said << " |\n";
  }

  /// Runs `seer rollout` with flags that work, replaced by or added to from `flags`, behind `prefix`.
  void rollout(const std::string& name, const std::map<std::string, std::string>& flags, const Words& words,
               int exit_code, const Arguments& prefix = {}) {
    std::map<std::string, std::string> all{{"--model", kModel},
                                           {"--prompts", good_prompts},
                                           {"--out", out()},
                                           {"--group-size", "2"},
                                           {"--max-tokens", "20"},
                                           {"--threads-per-instance", "1"}};
    for (const auto& [flag, value] : flags) all[flag] = value;
    Arguments arguments = prefix;
    arguments.insert(arguments.end(), {SEER_PROGRAM, "rollout"});
    for (const auto& [flag, value] : all) arguments.insert(arguments.end(), {flag, value});
    refused(name, std::move(arguments), words, exit_code);
  }
  void score(const std::string& name, const std::string& in, const Words& words, const Arguments& more = {}) {
    Arguments arguments{SEER_PROGRAM, "score", "--model", kModel, "--in", in, "--out", out()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    refused(name, std::move(arguments), words, 2);
  }
  /// Runs `seer profile` with flags that work, replaced by or added to from `flags`.
  void profile(const std::string& name, const std::map<std::string, std::string>& flags, const Words& words, int exit_code) {
    std::map<std::string, std::string> all{{"--model", kModel}, {"--out", out()}, {"--repeats", "1"}, {"--threads", "1"}};
    for (const auto& [flag, value] : flags) all[flag] = value;
    Arguments arguments{SEER_PROGRAM, "profile"};
    for (const auto& [flag, value] : all) arguments.insert(arguments.end(), {flag, value});
    refused(name, std::move(arguments), words, exit_code);
  }
  void refused(const std::string& name, Arguments arguments, const Words& words, int exit_code) {
    CAPTURE(name);
    ChildProcess seer(std::move(arguments));
    REQUIRE(seer.wait(kPatienceMs));
    const std::string said = without_progress(seer.err());
    CAPTURE(said);
    CHECK(seer.exit_code() == exit_code);
    CHECK(said.starts_with("seer: "));
    CHECK(said.ends_with("\n"));
    CHECK(std::count(said.begin(), said.end(), '\n') == 1);
    for (const std::string& word : words) CHECK_MESSAGE(said.find(word) != std::string::npos, word);
    CHECK(seer.out().empty());
    CHECK(fs::is_empty(folder.path("out")));
    std::string shown = said.substr(0, said.find('\n'));
    for (size_t at; (at = shown.find(folder.path(""))) != std::string::npos;) shown.erase(at, folder.path("").size());
    sentences_.emplace_back(name, shown);
  }

  /// A copy of the shipped model. `edit` gets its header and may change it; its data stays as it was.
  std::string model(const std::string& name, const std::function<void(Json& header)>& edit = {}) const {
    fs::copy(kModel, folder.path(name));
    if (!edit) return folder.path(name);
    const std::string file = folder.read(name + "/model.safetensors");
    uint64_t bytes = 0;  // little-endian, as on every machine that this runs on
    std::memcpy(&bytes, file.data(), 8);
    Json header = Json::parse(file.substr(8, bytes));
    edit(header);
    const std::string text = header.dump();
    bytes = text.size();
    std::string length(8, '\0');
    std::memcpy(length.data(), &bytes, 8);
    folder.write(name + "/model.safetensors", length + text + file.substr(8 + header_bytes(file)));
    return folder.path(name);
  }
  /// A copy of the shipped model, its safetensors cut to this many bytes.
  std::string cut_model(const std::string& name, size_t bytes) const {
    fs::copy(kModel, folder.path(name));
    fs::resize_file(folder.path(name + "/model.safetensors"), bytes);
    return folder.path(name);
  }
  /// A copy of the shipped model with one field of config.json changed.
  std::string model_with(const std::string& name, const char* field, const Json& value) const {
    fs::copy(kModel, folder.path(name));
    Json config = Json::parse(folder.read(name + "/config.json"));
    config[field] = value;
    folder.write(name + "/config.json", config.dump(1));
    return folder.path(name);
  }
  std::string out() const { return folder.path("out/responses.jsonl"); }

  /// A failure that comes late may follow lines like "2/16 done ...".
  static std::string without_progress(const std::string& err) {
    std::string kept;
    std::istringstream lines(err);
    for (std::string line; std::getline(lines, line);)
      if (line.find(" done  ") == std::string::npos && !line.starts_with("seer: warning: ")) kept += line + "\n";
    return kept;
  }

  ScratchFolder folder;
  std::string good_prompts;

 private:
  static size_t header_bytes(const std::string& file) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, file.data(), 8);
    return bytes;
  }
  std::vector<std::pair<std::string, std::string>> sentences_;
};

/// Arguments that run the following command with a small private file system at `dir`, which ends with it. Empty if this is not
/// allowed (needs root).
Arguments with_tmpfs(const std::string& dir, const std::string& mount_options) {
  const std::string script = cat("mount -t tmpfs -o ", mount_options, " tmpfs ", dir, " && exec \"$@\"");
  const Arguments prefix{"unshare", "--mount", "sh", "-c", script, "sh"};
  Arguments probe = prefix;
  probe.push_back("true");
  ChildProcess mounted(probe);
  return mounted.wait(kPatienceMs) && mounted.exit_code() == 0 ? prefix : Arguments{};
}

/// Token ids and log-probabilities by group and sample, as they are written.
std::map<std::pair<int, int>, std::string> responses(const std::string& text) {
  std::map<std::pair<int, int>, std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const Json r = Json::parse(line);
    found[{r["group"], r["sample"]}] = r["output_ids"].dump() + r["logprobs"].dump();
  }
  return found;
}

}  // namespace

TEST_CASE("bad input: model folders") {
  BadInputs bad;
  bad.rollout("no model folder", {{"--model", bad.folder.path("nothing")}}, {"no folder", "/nothing"}, 1);
  const std::string bare = bad.model("bare");
  fs::remove(bare + "/model.safetensors");
  bad.rollout("no safetensors", {{"--model", bare}}, {"no file", "bare/model.safetensors"}, 1);
  bad.rollout("truncated data", {{"--model", bad.cut_model("short", 1'000'000)}},
              {"short/model.safetensors", "tensor model.", "the file has", "truncated"}, 1);
  bad.rollout("truncated header", {{"--model", bad.cut_model("shorter", 100)}},
              {"shorter/model.safetensors", "header", "the file has 100", "truncated"}, 1);
  bad.rollout("empty safetensors", {{"--model", bad.cut_model("empty", 0)}}, {"empty/model.safetensors", "0 bytes"}, 1);

  const std::string up = "model.layers.1.mlp.up_proj.weight", key = "model.layers.2.self_attn.k_proj.weight";
  bad.rollout("dtype not known", {{"--model", bad.model("i16", [&](Json& h) { h[up]["dtype"] = "I16"; })}},
              {"i16", "tensor " + up, "should have dtype F32, F16 or BF16", "found I16"}, 2);
  bad.rollout("dtype unlike the others", {{"--model", bad.model("f16", [&](Json& h) { h[up]["dtype"] = "F16"; })}},
              {"f16", "tensor " + up, "should have dtype BF16", "found F16"}, 2);
  bad.rollout("wrong shape", {{"--model", bad.model("shape", [&](Json& h) { h[key]["shape"] = {192, 128}; })}},
              {"shape", "tensor " + key, "should have shape [128, 192]", "found [192, 128]"}, 2);
  bad.rollout("tensor missing", {{"--model", bad.model("missing", [&](Json& h) { h["norm"] = h["model.norm.weight"]; h.erase("model.norm.weight"); })}},
              {"missing", "tensor model.norm.weight", "[192]", "is missing"}, 1);

  bad.rollout("bytes of no tensor", {{"--model", bad.model("hole", [&](Json& h) { h.erase(up); })}},
              {"hole/model.safetensors", "the data bytes from", "belong to no tensor"}, 1);
  bad.rollout("more layers than the config", {{"--model", bad.model_with("layers", "num_hidden_layers", 3)}},
              {"layers", "tensor model.layers.3.", "num_hidden_layers is 3"}, 2);
  const std::string nan = bad.model("nan");
  std::string weights = bad.folder.read("nan/model.safetensors");
  weights.replace(weights.size() - 2, 2, "\xc0\x7f");  // the last bf16
  bad.folder.write("nan/model.safetensors", weights);
  bad.rollout("a weight that is not a number", {{"--model", nan}}, {"nan: tensor model.", "holds nan at ["}, 2);
  bad.rollout("a hub name", {{"--model", "Qwen/Qwen2.5-0.5B"}},
              {"no folder Qwen/Qwen2.5-0.5B", "huggingface-cli download Qwen/Qwen2.5-0.5B --local-dir"}, 1);
  bad.rollout("rope in part", {{"--model", bad.model_with("rope", "rope_scaling", {{"factor", 4.0}})}},
              {"rope/config.json: rope_scaling: factor", "no rope_type"}, 2);

  bad.rollout("unknown architecture", {{"--model", bad.model_with("mamba", "architectures", {"MambaForCausalLM"})}},
              {"mamba/config.json", "architectures", "MambaForCausalLM", "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"},
              2);
  bad.rollout("config field of a wrong type", {{"--model", bad.model_with("field", "hidden_size", "big")}},
              {"field/config.json", "hidden_size", "integer", "found \"big\""}, 2);
  const std::string torn = bad.model("torn");
  bad.folder.write("torn/config.json", "{\n \"hidden_size\": 192,\n \"vocab_size\" 320\n}\n");
  bad.rollout("malformed config.json", {{"--model", torn}}, {"torn/config.json:3", "not valid JSON"}, 2);
  const std::string spelled = bad.model("spelled");
  bad.folder.write("spelled/tokenizer.json", "{nope");
  bad.rollout("malformed tokenizer.json", {{"--model", spelled}}, {"spelled/tokenizer.json", "not valid JSON"}, 2);
}

TEST_CASE("bad input: prompts and lengths") {
  BadInputs bad;
  const auto prompts = [&](const std::string& name, const std::string& text, const Words& words, int exit_code = 2) {
    bad.rollout(name, {{"--prompts", bad.folder.write("p.jsonl", text)}}, words, exit_code);
  };
  prompts("token id outside the vocabulary", "{\"prompt_ids\": [1, 2]}\n\n{\"prompt_ids\": [1, 400]}\n",
          {"p.jsonl:3:", "token id 400", "vocabulary of 320"});
  prompts("negative token id", "{\"prompt_ids\": [1, -2]}\n", {"p.jsonl:1:", "prompt_ids[1]", "-2"});
  std::string ids = "1";
  for (int i = 1; i < 4096; ++i) ids += ",1";
  prompts("prompt longer than the model", "{\"prompt_ids\": [" + ids + "]}\n",
          {"p.jsonl:1:", "4096 tokens", "fewer than the model's context of 4096"});
  prompts("empty prompt file", "", {"p.jsonl", "holds no prompts"});
  prompts("empty prompt", "{\"prompt\": \"x\"}\n{\"prompt\": \"\"}\n", {"p.jsonl:2:", "empty"});
  prompts("malformed JSON", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"\n", {"p.jsonl:2:", "malformed JSON"});
  prompts("line that is no object", "[1, 2]\n", {"p.jsonl:1:", "expected a JSON object", "array"});
  prompts("no prompt in a line", "{\"question\": \"a\"}\n", {"p.jsonl:1:", "neither prompt nor prompt_ids"});
  prompts("field of another program", "{\"prompt\": \"a\", \"max_new_tokens\": 5}\n",
          {"p.jsonl:1:", "max_new_tokens", "use max_tokens"});
  prompts("token to stop at that is not there", "{\"prompt\": \"a\", \"stop_token_ids\": [320]}\n",
          {"p.jsonl:1:", "stop_token_ids has 320", "vocabulary of 320"});
  prompts("temperature that is no temperature", "{\"prompt\": \"a\", \"temperature\": 1e-9}\n",
          {"p.jsonl:1:", "temperature is 1e-09", "0.0001"});
  prompts("max_tokens 0 in a line", "{\"prompt\": \"a\", \"max_tokens\": 0}\n", {"p.jsonl:1:", "max_tokens is 0", "at least 1"});
  prompts("min_tokens above max_tokens", "{\"prompt\": \"a\", \"max_tokens\": 4, \"min_tokens\": 5}\n",
          {"p.jsonl:1:", "min_tokens is 5", "up to max_tokens, 4"});
  prompts("min_tokens with many stop tokens", "{\"prompt\": \"a\", \"min_tokens\": 5, \"stop_token_ids\": [3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19]}\n",
          {"p.jsonl:1:", "min_tokens is 5", "expected at most 16"});
  bad.rollout("no prompt file", {{"--prompts", bad.folder.path("none.jsonl")}}, {"none.jsonl", "No such file"}, 1);

  bad.rollout("oracle without lengths", {{"--policy", "oracle"}}, {"--lengths", "oracle"}, 2);
  const std::string lengths = bad.folder.write("l.jsonl", "{\"group\": 0, \"sample\": 0, \"tokens\": 3}\n");
  bad.rollout("lengths of too few responses", {{"--policy", "oracle"}, {"--lengths", lengths}},
              {"l.jsonl", "no length of group 0 sample 1"}, 2);
  bad.score("score: KV below one block", bad.folder.write("o.jsonl", "{\"prompt_ids\": [1], \"output_ids\": [1]}\n"),
            {"--kv-bytes 1000", "needs 32768"}, {"--kv-bytes", "1000"});
  bad.score("score: no output_ids", bad.good_prompts, {"good.jsonl:1:", "prompt_ids", "output_ids"});
  // 40 tokens, the last of which needs no KV: 3 blocks of 16 tokens, of 32768 bytes each.
  bad.score("score: KV too small",
            bad.folder.write("s.jsonl", "{\"prompt_ids\": [" + ids.substr(0, 77) + "], \"output_ids\": [1]}\n"),
            {"s.jsonl:1:", "the prompt has 39 tokens and the output 1,", "--kv-bytes 65536", "least that works is 98304"}, {"--kv-bytes", "64KiB"});
}

TEST_CASE("bad input: score does not write over what it reads, and tells a prompt's tokens from an output's") {
  BadInputs bad;
  const std::string line = "{\"prompt_ids\": [1, 2], \"output_ids\": [3, 99999]}\n";
  const std::string in = bad.folder.write("s.jsonl", line);
  bad.score("score: an id of the output", in, {"s.jsonl:1:", "token id 99999 (number 1 of the output)"});
  fs::create_symlink(in, bad.folder.path("link.jsonl"));
  for (const std::string& out : {in, bad.folder.path("link.jsonl")})
    bad.refused("score: output over input", {SEER_PROGRAM, "score", "--model", kModel, "--in", in, "--out", out},
                {"--out and --in both name", "two files"}, 2);
  CHECK(bad.folder.read("s.jsonl") == line);
}

TEST_CASE("not finite: rollout and score answer every line, say which failed and exit with 1") {
  const ScratchFolder folder;
  fs::create_directory(folder.path("model"));
  constexpr int32_t kHuge = 7;
  write_tiny_model(folder.path("model"), tiny_config("qwen3", {{"tie_word_embeddings", false}}), "BF16", 7,
                   overflowing_token(kHuge));
  const std::string prompts = folder.write("p.jsonl", "{\"prompt_ids\": [2, 3, 4]}\n\n{\"prompt_ids\": [2, 7, 4]}\n");
  ChildProcess rollout({SEER_PROGRAM, "rollout", "--model", folder.path("model"), "--prompts", prompts, "--out",
                        folder.path("r.jsonl"), "--report", folder.path("report.json"), "--group-size", "12", "--max-tokens",
                        "60", "--threads-per-instance", "1"});
  REQUIRE(rollout.wait(kPatienceMs));
  CHECK(rollout.exit_code() == 1);
  std::istringstream file(folder.read("r.jsonl"));
  int64_t lines = 0, failed = 0;
  size_t first_sample = 12, first_token = 0;
  for (std::string text; std::getline(file, text); ++lines) {
    const Json line = Json::parse(text);
    const std::vector<int32_t> output = line["output_ids"];
    CHECK(line["logprobs"].size() == output.size());
    const bool bad = line["finish_reason"] == "error";
    CHECK(line.contains("error") == bad);
    failed += bad;
    if (!bad) continue;
    CHECK(line["error"] == cat("the logits of output token ", output.size(), " are not finite"));
    CHECK((line["group"] == 1 ? output.empty() : output.back() == kHuge));
    if (line["group"] == 0 && line["sample"] < first_sample) first_sample = line["sample"], first_token = output.size();
  }
  CHECK(lines == 24);
  REQUIRE(failed > 12);
  REQUIRE(failed < 24);
  CHECK(BadInputs::without_progress(rollout.err()) ==
        cat("seer: ", failed, " of 24 requests ended with an error, the first of them ", prompts, ":1 sample ", first_sample,
            ": the logits of output token ", first_token, " are not finite\n"));
  CHECK(Json::parse(folder.read("report.json"))["failed_requests"] == failed);
  CHECK(!folder.has("r.jsonl.partial"));

  const std::string responses = folder.write(
      "s.jsonl", "{\"prompt_ids\": [2, 3], \"output_ids\": [4, 5]}\n{\"prompt_ids\": [2, 3], \"output_ids\": [4, 7, 5]}\n"
                 "{\"prompt_ids\": [2, 3], \"output_ids\": [4, 5]}\n");
  ChildProcess score({SEER_PROGRAM, "score", "--model", folder.path("model"), "--in", responses, "--out", folder.path("scored.jsonl")});
  REQUIRE(score.wait(kPatienceMs));
  CHECK(score.exit_code() == 1);
  CHECK(score.err() == cat("seer: 1 of 3 lines have no scores, the first of them ", responses,
                           ":2: the logits of output token 2 are not finite\n"));
  std::istringstream scored(folder.read("scored.jsonl"));
  std::vector<Json> scores;
  for (std::string text; std::getline(scored, text);) scores.push_back(Json::parse(text));
  REQUIRE(scores.size() == 3);
  CHECK(scores[0]["scores"].size() == 2);
  CHECK(scores[0] == scores[2]);
  CHECK(scores[1]["scores"].is_null());
  CHECK(scores[1]["score_error"] == "the logits of output token 2 are not finite");
}

TEST_CASE("bad input: options and the TOML file") {
  BadInputs bad;
  bad.rollout("group size 0", {{"--group-size", "0"}}, {"--group-size 0", "at least 1"}, 2);
  bad.rollout("unknown policy", {{"--policy", "fifo"}}, {"--policy fifo", "auto, verl, divided, divided-rr, las, seer, seer+, oracle, streamrl-oracle"}, 2);
  bad.rollout("unknown log level", {{"--log-level", "loud"}}, {"--log-level loud", "off, error, warn, info, debug"}, 2);
  bad.rollout("log in no folder", {{"--log-file", bad.folder.path("none/seer.log")}},
              {"cannot open the log", "none/seer.log", "No such file or directory"}, 1);
  bad.rollout("log over the prompts", {{"--log-file", bad.good_prompts}}, {"--log-file", "--prompts", "good.jsonl"}, 2);
  bad.rollout("negative temperature", {{"--temperature", "-1"}}, {"--temperature -1", "at least 0"}, 2);
  bad.rollout("temperature nan", {{"--temperature", "nan"}}, {"--temperature nan", "number"}, 2);
  bad.rollout("temperature hot", {{"--temperature", "hot"}}, {"--temperature hot", "number"}, 2);
  bad.rollout("unknown flag", {{"--temprature", "1"}}, {"--temprature", "did you mean --temperature?"}, 2);
  bad.rollout("stop token id outside the vocabulary", {{"--stop-token-ids", "400"}},
              {"--stop-token-ids 400", "vocabulary of 320"}, 2);
  bad.rollout("KV below one block", {{"--kv-bytes", "1000"}}, {"--kv-bytes 1000", "needs 32768"}, 2);
  // 10 + 200 tokens need 14 blocks of 16 tokens, of 32768 bytes each.
  bad.rollout("KV too small for a response", {{"--kv-bytes", "64KiB"}, {"--max-tokens", "200"}},
              {"--kv-bytes 65536", "good.jsonl:1", "10 tokens", "max_tokens 200", "least that works is 458752"}, 2);
  bad.rollout("DRAM below one block", {{"--dram-bytes", "100"}}, {"--dram-bytes 100", "32768"}, 2);
  const std::string plain = bad.model("plain");
  fs::remove(plain + "/tokenizer.json");
  fs::remove(plain + "/tokenizer_config.json");
  bad.rollout("text without a tokenizer", {{"--model", plain}}, {"good.jsonl:1", "plain", "tokenizer", "prompt_ids"}, 2);
  bad.rollout("--stop without a tokenizer",
              {{"--model", plain}, {"--stop", "x"}, {"--prompts", bad.folder.write("ids.jsonl", "{\"prompt_ids\": [1]}\n")}},
              {"--stop", "tokenizer", "plain", "--stop-token-ids"}, 2);
  const auto config = [&](const std::string& name, const std::string& text, const Words& words) {
    bad.rollout(name, {{"--config", bad.folder.write("c.toml", text)}}, words, 2);
  };
  config("unknown TOML key", "[rollout]\npolicy = \"seer\"\ngroop-size = 3\n", {"c.toml:3:", "groop-size", "did you mean group-size?"});
  config("TOML value of a wrong type", "[rollout]\nseed = \"x\"\n", {"c.toml:2:", "seed", "integer"});
  config("not TOML", "[rollout\n", {"c.toml:1:", "not TOML"});
  const std::string listening = bad.model("listening");
  for (const std::string listen : {"0.0.0.0:7000", "[::]:7000"})
    bad.refused("an address that no other machine can dial", {SEER_PROGRAM, "node", "--model", listening, "--listen", listen, "--insecure"},
                {"--listen " + listen, "address of this machine, at which the others reach it"}, 2);
}

TEST_CASE("bad input: a folder for the history is not made if its parent is missing") {
  BadInputs bad;
  bad.rollout("history without a parent folder", {{"--drafting", "grouped"}, {"--draft-history", bad.folder.path("none/history")}},
              {"--draft-history", "none/history", "no folder"}, 1);
  CHECK(!fs::exists(bad.folder.path("none")));
}

TEST_CASE("bad input: a write to stdout that fails is an error, whatever was printed") {
  for (const char* arguments : {"--help", "--version", "rollout --help", "rollout --print-config", "doctor", "man", "completion bash",
                                "simulate --policies seer --seeds 1 --requests 8"}) {
    CAPTURE(std::string(arguments));
    ChildProcess seer({"sh", "-c", cat("exec \"$0\" ", arguments, " > /dev/full"), SEER_PROGRAM});
    REQUIRE(seer.wait(kPatienceMs));
    CHECK(seer.exit_code() == 1);
    CHECK(seer.err().find("seer: cannot write to standard output") != std::string::npos);
  }
}

TEST_CASE("bad input: a run warns of what it cuts and of options without effect, a line each, and goes on") {
  const ScratchFolder folder;
  std::string ids = "5";
  for (int i = 1; i < 4090; ++i) ids += ", 5";  // of 4096
  const std::string prompts = folder.write("p.jsonl", "{\"prompt_ids\": [" + ids + "]}\n{\"prompt_ids\": [5], \"max_tokens\": 2}\n");
  ChildProcess seer({SEER_PROGRAM, "rollout", "--model", kModel, "--prompts", prompts, "--out", folder.path("o.jsonl"), "--group-size", "1",
                     "--instances", "1", "--max-tokens", "50", "--cold-bytes", "1G"});
  REQUIRE(seer.wait(kPatienceMs));
  CHECK(seer.exit_code() == 0);
  CHECK(seer.err().starts_with("seer: warning: --cold-bytes has no effect without --cold-dir\n"
                               "seer: warning: the max tokens of 1 of 2 prompts are cut to what the model's context of 4096 tokens "
                               "leaves after the prompt\n"));
  CHECK(responses(folder.read("o.jsonl")).size() == 2);
}

TEST_CASE("bad input: seer alone prints help on stderr, and mistyped words get the nearest known one") {
  const auto said = [](Arguments arguments, int exit_code) {
    arguments.insert(arguments.begin(), SEER_PROGRAM);
    ChildProcess seer(std::move(arguments));
    REQUIRE(seer.wait(kPatienceMs));
    CHECK(seer.exit_code() == exit_code);
    CHECK(seer.out().empty() == (exit_code != 0));
    return exit_code == 0 ? seer.out() : seer.err();
  };
  CHECK(said({}, 2) == said({"help"}, 0));
  CHECK(said({"rolout"}, 2) == "seer: unknown command rolout; did you mean rollout?\n");
  CHECK(said({"rollout", "--faults"}, 2) == "seer: --faults is not an option of seer rollout; it belongs to seer simulate\n");
  CHECK(said({"rollout", "--pin=maybe"}, 2) == "seer: --pin=maybe: expected true or false\n");
}

TEST_CASE("bad input: profiles") {
  BadInputs bad;
  bad.profile("profile: no model folder", {{"--model", bad.folder.path("nothing")}}, {"no folder", "/nothing"}, 1);
  bad.profile("profile: truncated model", {{"--model", bad.cut_model("short", 1'000'000)}}, {"short/model.safetensors", "truncated"}, 1);
  bad.profile("profile: output not writable", {{"--out", bad.good_prompts + "/p.json"}}, {"cannot write", "good.jsonl/p.json"}, 1);
  bad.profile("profile: KV below one block", {{"--kv-bytes", "1000"}}, {"--kv-bytes 1000", "one KV block of this model needs 32768"}, 2);
  bad.profile("profile: no repeats", {{"--repeats", "0"}}, {"--repeats 0", "1"}, 2);
  bad.profile("profile: rows as a word", {{"--rows-max", "many"}}, {"--rows-max many", "integer"}, 2);
}

TEST_CASE("bad input: sizes beyond what the machine has") {
  BadInputs bad;
  bad.rollout("DRAM beyond the machine", {{"--dram-bytes", "99999GiB"}},
              {"--dram-bytes 107373108658176 for --nodes 1", "97.7 TiB of memory", "this machine has"}, 2);
  bad.rollout("KV beyond the machine", {{"--kv-bytes", "99TiB"}},
              {"--kv-bytes 108851651149824 for --instances 2", "198.0 TiB of memory"}, 2);
  bad.rollout("bytes that no number holds", {{"--dram-bytes", "8000000TiB"}, {"--nodes", "2"}},
              {"--dram-bytes 8796093022208000000 for --nodes 2", "8.0 EiB of memory"}, 2);
  std::string prompts;
  for (int i = 0; i < 100'000; ++i) prompts += "{\"prompt_ids\": [1]}\n";
  bad.rollout("requests beyond the machine", {{"--prompts", bad.folder.write("many.jsonl", prompts)}, {"--group-size", "1000000"}},
              {"the bookkeeping of 100000000000 requests", "90.9 TiB of memory"}, 2);
  bad.profile("profile: KV beyond the machine", {{"--kv-bytes", "99TiB"}}, {"--kv-bytes 108851651149824", "99.0 TiB of memory"}, 2);
  const std::string line = bad.folder.write("s.jsonl", "{\"prompt_ids\": [1], \"output_ids\": [1]}\n");
  bad.score("score: KV beyond the machine", line, {"--kv-bytes 108851651149824", "99.0 TiB of memory"}, {"--kv-bytes", "99TiB"});
  const auto simulate = [&](const std::string& name, const Arguments& more, const Words& words) {
    Arguments arguments{SEER_PROGRAM, "simulate", "--report", bad.out()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    bad.refused(name, arguments, words, 2);
  };
  simulate("simulate: KV beyond the machine", {"--kv-tokens", "1000000000000000"}, {"32 instances with KV of 1000000000000000 tokens"});
  std::string workload;
  {
    std::ifstream file(SEER_SOURCE_DIR "/deploy/sim/moonlight.toml");
    for (std::string text; std::getline(file, text);)
      workload += (text.starts_with("groups ") ? "groups = 16777216" : text.starts_with("group-size ") ? "group-size = 65536" : text) + "\n";
  }
  simulate("simulate: requests beyond the machine", {"--workload", bad.folder.write("w.toml", workload)},
           {"simulating 1099511627776 requests", "PiB of memory"});
}

TEST_CASE("bad input: files and folders that cannot be written") {
  BadInputs bad;
  const std::string file = bad.good_prompts;  // a file where a folder should be: even root cannot write into it
  bad.rollout("output folder missing", {{"--out", bad.folder.path("none/o.jsonl")}}, {"cannot write", "none/o.jsonl", "No such file"}, 1);
  bad.rollout("output folder not writable", {{"--out", file + "/o.jsonl"}}, {"cannot write", "good.jsonl/o.jsonl"}, 1);
  bad.rollout("report not writable", {{"--report", file + "/r.json"}}, {"cannot write", "good.jsonl/r.json"}, 1);
  bad.rollout("output over the prompts", {{"--out", bad.folder.path("./good.jsonl")}}, {"--out and --prompts", "two files"}, 2);
  CHECK(bad.folder.read("good.jsonl").starts_with("{\"prompt\""));
  bad.rollout("output and report in one file", {{"--report", bad.folder.path("out/../out/responses.jsonl")}},
              {"cannot write", "responses.jsonl", "being written already"}, 1);
  const bool has_cold_tier = has_rocksdb();
  if (has_cold_tier) {
    bad.rollout("cold folder not writable", {{"--cold-dir", file + "/cold"}}, {"cold tier directory", "good.jsonl/cold"}, 1);
    fs::create_directory(bad.folder.path("mine"));
    bad.folder.write("mine/thesis.txt", "x");
    bad.rollout("cold folder with files of others", {{"--cold-dir", bad.folder.path("mine")}},
                {"cold tier directory", "mine", "thesis.txt", "empty or new"}, 2);
    CHECK(bad.folder.read("mine/thesis.txt") == "x");
  } else {
    bad.rollout("cold folder without RocksDB", {{"--cold-dir", bad.folder.path("cold")}}, {"--cold-dir", "needs RocksDB"}, 1);
  }
  fs::create_directory(bad.folder.path("ro"));
  const Arguments read_only = with_tmpfs(bad.folder.path("ro"), "ro");
  if (read_only.empty()) {
    MESSAGE("skipped: file systems that are read-only or full (cannot mount a tmpfs here)");
    return;
  }
  bad.rollout("output on a read-only file system", {{"--out", bad.folder.path("ro/o.jsonl")}},
              {"cannot write", "ro/o.jsonl", "Read-only"}, 1, read_only);
  if (has_cold_tier)
    bad.rollout("cold folder on a read-only file system", {{"--cold-dir", bad.folder.path("ro")}},
                {"cold tier directory", "/ro", "Read-only"}, 1, read_only);
  // Prompts whose responses do not fit in 16 KiB.
  bad.rollout("disk full under the output",
              {{"--out", bad.folder.path("ro/o.jsonl")}, {"--prompts", kShippedPrompts}, {"--limit", "8"}, {"--max-tokens", "100"}},
              {"cannot write", "ro/o.jsonl.partial", "No space left"}, 1, with_tmpfs(bad.folder.path("ro"), "size=16k"));
}

TEST_CASE("bad input: a disk full under the journal ends a rollout with a sentence, and keeps the responses that it has") {
  if (!has_rocksdb()) return;
  const ScratchFolder folder;
  fs::create_directory(folder.path("journal"));
  Arguments arguments = with_tmpfs(folder.path("journal"), "size=150k");
  if (arguments.empty()) {
    MESSAGE("skipped: cannot mount a tmpfs here");
    return;
  }
  arguments.insert(arguments.end(), {SEER_PROGRAM, "rollout", "--model", kModel, "--prompts", kShippedPrompts, "--limit", "8", "--group-size", "4",
                                     "--max-tokens", "400", "--out", folder.path("out"), "--journal", folder.path("journal")});
  ChildProcess seer(arguments);
  REQUIRE(seer.wait(kPatienceMs));
  CHECK(seer.exit_code() == 1);
  CAPTURE(seer.err());
  CHECK(seer.err().find(cat("seer: journal ", folder.path("journal"), ": IO error: No space left on device")) != std::string::npos);
  CHECK(seer.err().find(cat(" of 32 responses; they are in ", folder.path("out"), ".partial")) != std::string::npos);
}

TEST_CASE("bad input: a disk full while spilling costs time only, and the report says so") {
  if (!has_rocksdb()) return;
  const ScratchFolder folder;
  fs::create_directory(folder.path("cold"));
  const Arguments full_disk = with_tmpfs(folder.path("cold"), "size=1500k");
  if (full_disk.empty()) {
    MESSAGE("skipped: cannot mount a tmpfs here");
    return;
  }
  const auto run = [&](const std::string& out, const Arguments& prefix, const Arguments& more) {
    Arguments arguments = prefix;
    arguments.insert(arguments.end(), {SEER_PROGRAM, "rollout", "--model", kModel, "--prompts", kShippedPrompts, "--limit", "6",
                                       "--group-size", "4", "--max-tokens", "128", "--threads-per-instance", "1", "--out",
                                       folder.path(out), "--report", folder.path(out + ".json")});
    arguments.insert(arguments.end(), more.begin(), more.end());
    ChildProcess seer(arguments);
    REQUIRE(seer.wait(kPatienceMs));
    CHECK(seer.exit_code() == 0);
    const bool warned = seer.err().find("seer: warning: --cold-bytes 8589934592 for --nodes 1 may take") != std::string::npos;
    CHECK(warned == !prefix.empty());
    CHECK(seer.err().find("seer: ") == (warned ? seer.err().find("seer: warning") : std::string::npos));
    return responses(folder.read(out));
  };
  const auto reference = run("reference", {}, {"--instances", "1", "--policy", "verl"});
  REQUIRE(reference.size() == 24);
#ifdef __SANITIZE_ADDRESS__
  const std::vector<std::string> policies{"seer"};  // the others would take minutes
#else
  const std::vector<std::string> policies{"divided", "las", "seer"};
#endif
  for (const std::string& policy : policies) {
    CAPTURE(policy);
    CHECK(run(policy, full_disk,
              {"--policy", policy, "--chunk-tokens", "17", "--kv-bytes", "576KiB", "--dram-bytes", "640KiB", "--reserve", "0.1", "--cold-dir",
               folder.path("cold")}) == reference);
    const Json report = Json::parse(folder.read(policy + ".json"));
    CHECK(report["cold_failures"].get<int64_t>() > 0);
    CHECK(report["reprefill_tokens"].get<int64_t>() > 0);
    MESSAGE(policy, ": ", report["spilled_bytes"].get<int64_t>(), " bytes spilled, ", report["cold_failures"].get<int64_t>(),
            " failures of the cold tier, ", report["reprefill_tokens"].get<int64_t>(), " tokens computed again, 24 responses equal");
  }
}
