// Feeds every reader of user files with thousands of damaged copies of valid ones. Whatever the damage, a reader accepts the file,
// or refuses it with one sentence that names it. No crash, no exception, no endless work, no flood of memory. Takes minutes:
// nightly.
//
// SEER_MUTATION_SEED=S runs the copies of that seed again (each run prints its own), SEER_MUTATION_COUNT=N makes N copies
// of each file (500).
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "cli/config.h"
#include "cli/jsonl.h"
#include "cli/one_line.h"
#include "cli/scratch.h"
#include "cli/sim/workload.h"
#include "gpu/model/model_config.h"
#include "gpu/model/weight_store.h"
#include "gpu/sim/draft_acceptance.h"
#include "gpu/sim/hardware_catalog.h"
#include "gpu/step_profile.h"
#include "gpu/text/tokenizer.h"
#include "gpu/tiny_model.h"
#include "mutations/mutator.h"
#include "protocols/hash.h"
#include "protocols/number_from_environment.h"
#include "storage/response_history_record.h"

using namespace seer;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kCpuSeconds = 60;          // of the process's own time for one copy, which takes milliseconds
constexpr int64_t kMemoryBytes = int64_t{1} << 30;  // by which all copies together may raise the peak of the process

/// Of the whole run, printed when it is first asked for.
uint64_t seed() {
  static const uint64_t drawn = [] {
    const uint64_t seed = number_from_environment("SEER_MUTATION_SEED").value_or(std::random_device{}());
    MESSAGE("SEER_MUTATION_SEED=", seed);
    return seed;
  }();
  return drawn;
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE_MESSAGE(file, path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

int64_t peak_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{1024} * usage.ru_maxrss;
}

/// Ends the process when this much of its own time has passed: doctest then says where it was. Not a clock on the wall,
/// which a busy machine would run out.
class StepLimit {
 public:
  StepLimit() {
    ::signal(SIGPROF, [](int) { ::abort(); });
    set(kCpuSeconds);
  }
  ~StepLimit() { set(0); }

 private:
  static void set(int64_t seconds) {
    const itimerval timer{.it_interval = {}, .it_value = {.tv_sec = seconds, .tv_usec = 0}};
    ::setitimer(ITIMER_PROF, &timer, nullptr);
  }
};

using Read = std::function<Status(const std::string& path)>;

/// One sentence, as it is printed, that names the file, or the option that a file of options gave.
void check_refusal(const std::string& detail, const std::string& folder) {
  const std::string said = one_line(detail);
  CAPTURE(said);
  CHECK((said.find(folder) != std::string::npos || said.starts_with("--")));
}

/// Feeds `read` with damaged copies of `text` in a file `name` of `folder`; the undamaged one is accepted.
void check_reader(const ScratchFolder& folder, const std::string& name, const std::string& text, const Read& read) {
  CAPTURE(name);
  const uint64_t run_seed = seed(), count = number_from_environment("SEER_MUTATION_COUNT").value_or(500);
  CAPTURE(run_seed);
  const std::string path = folder.write(name, text), root = folder.path("");
  const Status whole = read(path);
  REQUIRE_MESSAGE(whole.ok(), whole.error().detail);
  const int64_t before = peak_bytes();
  uint64_t accepted = 0;
  for (uint64_t copy = 0; copy < count; ++copy) {
    CAPTURE(copy);
    folder.write(name, Mutator(hash_pair(run_seed, hash_pair(hash_text(name, 1), copy))).mutated(text));
    const StepLimit limit;
    Status done;
    CHECK_NOTHROW(done = read(path));
    if (done.ok())
      ++accepted;
    else
      check_refusal(done.error().detail, root.substr(0, root.size() - 1));
  }
  MESSAGE(name, ": ", count, " copies, ", accepted, " accepted, ", count - accepted, " refused");
  CHECK(peak_bytes() - before < kMemoryBytes);
  CHECK(accepted < count);
  folder.write(name, text);
}

template <class T>
Status status_of(const Result<T>& result) {
  return result.ok() ? Status{} : Status{result.error()};
}

const fs::path kModel = SEER_SOURCE_DIR "/deploy/models/scratchpad-1m8";
const fs::path kTexts = SEER_SOURCE_DIR "/tests/gpu/data/text";

/// Reads the tokenizer of the folder, and has it take a text apart.
Status read_tokenizer(const std::string& path) {
  SEER_ASSIGN_OR_RETURN(const auto tokenizer, load_tokenizer(fs::path(path).parent_path()));
  if (const auto ids = tokenizer->encode("A03 B09 sum\n h\xc3\xa9llo <|im_start|> 12345 \xff", {.add_special = true}); ids.ok())
    (void)tokenizer->decode(*ids, {.skip_special = true});
  return {};
}

}  // namespace

TEST_CASE("mutations: config.json and generation_config.json") {
  const ScratchFolder folder;
  const auto read = [&](const std::string&) { return status_of(read_model_config(folder.path(""))); };
  folder.write("config.json", text_of(kModel / "config.json"));
  check_reader(folder, "generation_config.json", text_of(kModel / "generation_config.json"), read);
  check_reader(folder, "config.json", text_of(kModel / "config.json"), read);
  const nlohmann::json scaled = tiny_config(
      "llama", {{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0},
                                  {"original_max_position_embeddings", 512}}}});
  fs::remove(folder.path("generation_config.json"));
  check_reader(folder, "config.json", scaled.dump(1), read);
}

TEST_CASE("mutations: tokenizer.json, tokenizer_config.json and tokenizer.model") {
  for (const char* kind : {"qwen_like", "llama3_like", "gpt2_like", "metaspace", "llama2_like"}) {
    CAPTURE(std::string(kind));
    const ScratchFolder folder;
    check_reader(folder, "tokenizer.json", text_of(kTexts / kind / "tokenizer.json"), read_tokenizer);
  }
#ifdef SEER_HAVE_SENTENCEPIECE
  const ScratchFolder pieces;
  pieces.write("tokenizer_config.json", text_of(kTexts / "sentencepiece" / "tokenizer_config.json"));
  check_reader(pieces, "tokenizer.model", text_of(kTexts / "sentencepiece" / "tokenizer.model"), read_tokenizer);
  check_reader(pieces, "tokenizer_config.json", R"({"add_bos_token": true, "add_eos_token": false, "legacy": false,
    "added_tokens_decoder": {"600": {"content": "<|end|>", "lstrip": false, "rstrip": true, "special": true}}})", read_tokenizer);
  check_reader(pieces, "added_tokens.json", R"({"<|end|>": 600, "[PAD]": 601})", read_tokenizer);
#endif
}

TEST_CASE("mutations: safetensors and the index of shards") {
  const ScratchFolder folder;
  const nlohmann::json config = tiny_config("llama");
  folder.write("config.json", config.dump(1));
  const auto load = [&](const std::string&) { return status_of(load_model(folder.path(""))); };
  check_reader(folder, "model.safetensors", safetensors_bytes(tiny_tensors(config), "BF16", 1), load);
  fs::remove(folder.path("model.safetensors"));

  std::vector<TinyTensor> tensors = tiny_tensors(config);
  const auto half = tensors.begin() + std::ssize(tensors) / 2;
  folder.write("a.safetensors", safetensors_bytes({tensors.begin(), half}, "BF16", 1));
  folder.write("b.safetensors", safetensors_bytes({half, tensors.end()}, "BF16", 1));
  nlohmann::json index;
  for (auto t = tensors.begin(); t != tensors.end(); ++t)
    index["weight_map"][t->name] = t < half ? "a.safetensors" : "b.safetensors";
  check_reader(folder, "model.safetensors.index.json", index.dump(1), load);
}

TEST_CASE("mutations: prompts, lengths, traces and lines to score") {
  const ScratchFolder folder;
  check_reader(folder, "prompts.jsonl",
               "{\"prompt\": \"A03 B09 sum\\n\", \"id\": 7, \"max_tokens\": 20, \"seed\": 5, \"answer\": [1, {\"x\": 2.5}]}\n"
               "{\"prompt_ids\": [1, 2, 3], \"id\": \"a7\", \"temperature\": 0.5, \"stop\": [\"x\"], \"n\": 3}\n\n{\"prompt\": \"h\xc3\xa9llo\"}\n",
               [](const std::string& path) { return status_of(read_prompts(path, 0)); });
  std::string lengths, trace, score;
  for (int group = 0; group < 3; ++group)
    for (int sample = 0; sample < 2; ++sample) {
      const std::string ids = cat("{\"group\": ", group, ", \"sample\": ", sample);
      lengths += cat(ids, ", \"tokens\": ", 7 + group, "}\n");
      trace += cat(ids, ", \"prompt_tokens\": 5, \"tokens\": ", 9 + sample, "}\n");
      score += cat(ids, ", \"prompt_ids\": [1, 2], \"output_ids\": [3, 4, 5], \"logprobs\": [-0.5, -1.25, -3]}\n");
    }
  check_reader(folder, "lengths.jsonl", lengths, [](const std::string& path) {
    return status_of(read_lengths(path, std::vector<int64_t>{2, 2, 2}));
  });
  check_reader(folder, "trace.jsonl", trace, [](const std::string& path) { return status_of(read_trace(path)); });
  check_reader(folder, "responses.jsonl", score, [](const std::string& path) { return status_of(read_trace(path)); });
  check_reader(folder, "score.jsonl", score, [](const std::string& path) { return status_of(read_score_lines(path)); });
}

TEST_CASE("mutations: TOML files of options and of workloads") {
  const ScratchFolder folder;
  check_reader(folder, "seer.toml", text_of(SEER_SOURCE_DIR "/deploy/seer.toml"), [](const std::string& path) {
    return status_of(parse_command_line({"rollout", "--config", path, "--model", "m", "--prompts", "p", "--out", path + ".out"}));
  });
  check_reader(folder, "workload.toml", text_of(SEER_SOURCE_DIR "/deploy/sim/moonlight.toml"),
               [](const std::string& path) { return status_of(load_workload(path)); });
}

TEST_CASE("mutations: hardware, step profiles and draft acceptance") {
  const ScratchFolder folder;
  check_reader(folder, "hardware.json", text_of(SEER_SOURCE_DIR "/deploy/sim/hardware.json"),
               [](const std::string& path) { return status_of(read_hardware(path, builtin_hardware())); });
  check_reader(folder, "draft_acceptance.json", text_of(SEER_SOURCE_DIR "/deploy/sim/draft_acceptance.json"),
               [](const std::string& path) { return status_of(DraftAcceptance::read(path, "linear")); });
  StepProfile profile;
  profile.threads = profile.cores = 1;
  profile.block_tokens = 16;
  profile.cost.us[0] = 100;
  StepShape shape;
  shape.add(100, 1, 1);
  for (int i = 0; i < 5; ++i) profile.points.push_back({"decode", shape, 100.0 + i, i == 3});
  check_reader(folder, "profile.json", step_profile_json(profile),
               [](const std::string& path) { return status_of(read_step_profile(path)); });
}

TEST_CASE("mutations: records of the draft history are taken as they were written or refused") {
  // These have a checksum and no file of their own: what is damaged is not accepted.
  Mutator mutator(seed());
  const std::string key = to_bytes(ResponseKey{{1, 2}, 3, 4});
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 200; ++i) tokens.push_back(i * 37 % 1000);
  const std::string response = encode_response(key, tokens);
  const PromptRecord kept{.put_number = 9, .responses = {{.iteration = 3, .index = 4, .bytes = 100}}};
  const std::string prompt = encode_prompt({1, 2}, kept);
  for (uint64_t copy = 0; copy < 2000; ++copy) {
    CAPTURE(copy);
    const StepLimit limit;
    const std::string bad_response = mutator.mutated(response), bad_prompt = mutator.mutated(prompt);
    if (const auto read = decode_response(key, bad_response, 1000); bad_response != response) CHECK_FALSE(read.ok());
    if (const auto read = decode_prompt({1, 2}, bad_prompt); bad_prompt != prompt) CHECK_FALSE(read.ok());
  }
}
