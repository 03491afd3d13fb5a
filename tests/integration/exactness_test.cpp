// The first promise of the program: tokens and log-probabilities of a response are a pure function of weights, prompt,
// sampling parameters and seed. Everything else is varied here, with the shipped model, and every bit compared with a
// reference: one instance, one thread, room for all KV, no chunks.
//
// SEER_EXACTNESS_CASES=N runs a sample of N combinations of the large matrix, SEER_EXACTNESS_SEED chooses which.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "actors/policy/draft/draft_budget.h"
#include "cli/rollout_command.h"
#include "cli/rollout_run.h"
#include "cli/scratch.h"
#include "gpu/tiny_model.h"
#include "integration/free_rows.h"
#include "integration/optional_parts.h"
#include "protocols/number_from_environment.h"

using namespace seer;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

const std::string kModel = SEER_SOURCE_DIR "/deploy/models/scratchpad-1m8";
const std::string kShippedPrompts = SEER_SOURCE_DIR "/deploy/examples/scratchpad/prompts.jsonl";
constexpr int64_t kBlockBytes = 32768;     // 16 tokens x 4 layers x 2 KV heads x 64 x 2 (K and V) x 2 B
constexpr int64_t kAmpleBytes = 256 * kBlockBytes;
constexpr int64_t kSmallBlocks = 16;       // the longest response alone needs 15
constexpr int64_t kMinTokens = 50;         // where some responses would be shorter
constexpr int64_t kSmallDramBlocks = 24;   // parked chains beyond that are spilled

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // about 20 times slower
#else
constexpr bool kSanitized = false;
#endif
constexpr size_t kCasesMax = kSanitized ? 10 : 100'000;

size_t cases_max() { return std::min<size_t>(number_from_environment("SEER_EXACTNESS_CASES").value_or(kCasesMax), kCasesMax); }

// Different lengths of prompt (the fourth spans 6 full blocks) and of response: some end by themselves, some at their limit.
constexpr const char* kPrompts = R"({"prompt": "A03 B09 sum\n"}
{"prompt": "A0946 B0679 C0226 D0328 E0745 sum\n", "max_tokens": 57}
{"prompt": "A03 B09 C02 D05 sum\n"}
{"prompt": "A0060 B0093 C0016 D0019 E0078 F0022 G0056 H0084 I0017 J0074 K0037 L0014 M0021 N0065 O0063 P0018 Q0040 R0021 sum\n"}
{"prompt": "A0163 B0690 C0699 D0506 E0150 F0326 G0147 H0670 sum\n", "seed": 77}
)";

/// In memory where possible: RocksDB waits for the disk with each file that is spilled, and a disk that others keep busy can
/// take seconds for that.
fs::path fast_folder() {
  const fs::path memory = "/dev/shm";
  return ::access(memory.c_str(), W_OK) == 0 ? memory : fs::temp_directory_path();
}

struct Answer {
  std::vector<int32_t> output_ids;
  std::vector<uint32_t> logprob_bits;
  FinishReason finish = FinishReason::kNone;
  bool operator==(const Answer&) const = default;
};
using Answers = std::map<std::pair<uint32_t, uint32_t>, Answer>;  // by group and sample

struct Run {
  Answers answers;
  RolloutReport report;
};

RolloutOptions reference_options(const ScratchFolder& folder) {
  RolloutOptions o;
  o.model = kModel;
  o.prompts = folder.write("prompts.jsonl", kPrompts);
  o.group_size = 4;
  o.instances = 1;
  o.threads_per_instance = 1;
  o.kv_bytes = kAmpleBytes;
  o.dram_bytes = 64 << 20;
  o.sampling.max_tokens = 120;
  o.scheduler.policy = "verl";
  o.scheduler.chunk_tokens = 0;
  return o;
}

Run run(const RolloutOptions& options, const RolloutWork& work) {
  Run run;
  int64_t twice = 0;
  // A rollout that hangs is stopped, so that the test says under which options, rather than running into ctest's limit. It
  // hangs if it reports again and again, five times a second, and has no new token: how long it takes is the machine's.
  constexpr int kReportsMax = 1500;
  int64_t tokens = 0, reports = 0;
  std::atomic<bool> stop{false};
  const RolloutHooks hooks{.response =
                               [&](const Response& r) {
                                 Answer answer{r.output.ids, {}, r.finish};
                                 for (const float p : r.output.logprobs) answer.logprob_bits.push_back(std::bit_cast<uint32_t>(p));
                                 const std::pair key{r.request.group.index, r.request.sample};
                                 twice += !run.answers.emplace(key, std::move(answer)).second;
                                 return Status{};
                               },
                           .progress =
                               [&](const RolloutProgress& p) {
                                 const bool has_new = std::exchange(tokens, p.output_tokens) != p.output_tokens;
                                 reports = has_new ? 0 : reports + 1;
                                 if (reports > kReportsMax) stop = true;
                               },
                           .stop = &stop};
  const auto outcome = run_rollout(options, work, options.scheduler.policy, hooks);
  REQUIRE_MESSAGE(outcome.ok(), outcome.error().detail);
  REQUIRE_MESSAGE(outcome->complete, "hangs");
  CHECK(twice == 0);
  run.report = outcome->report;
  return run;
}

/// With nothing in an engine's queue while results are handled.
Answers reference_of(RolloutOptions options, const RolloutWork& work) {
  options.step_depth = 1;
  return run(options, work).answers;
}

/// Responses that are missing, or differ in a token, a bit of a log-probability or their end.
int64_t differences(const Answers& expected, const Answers& found) {
  int64_t count = expected.size() == found.size() ? 0 : 1;
  for (const auto& [key, answer] : expected) {
    const auto it = found.find(key);
    count += it == found.end() || !(it->second == answer);
  }
  return count;
}

/// The work, with the lengths that the oracle policy asks for.
RolloutWork with_lengths(RolloutWork work, const Answers& answers) {
  for (GroupSpec& group : work.groups) {
    group.known_tokens.clear();
    for (uint32_t sample = 0; sample < group.samples; ++sample)
      group.known_tokens.push_back(std::ssize(answers.at({group.id.index, sample}).output_ids));
  }
  return work;
}

RolloutWork loaded(const RolloutOptions& options) {
  auto work = load_work(options);
  REQUIRE_MESSAGE(work.ok(), work.error().detail);
  return *std::move(work);
}

enum class Kv { kAmple, kSmall, kSpilling };
std::string to_text(Kv kv) { return kv == Kv::kAmple ? "ample" : kv == Kv::kSmall ? "small" : "spilling"; }

/// Fewer bytes for KV; `block_bytes` is that of the options' KV type and block_tokens.
void limit_kv(RolloutOptions& options, Kv kv, const ScratchFolder& folder, int64_t block_bytes = kBlockBytes) {
  if (kv == Kv::kAmple) return;
  options.kv_bytes = kSmallBlocks * block_bytes;
  options.scheduler.reserve_share = 0.1;  // more chunks start than can stay
  if (kv == Kv::kSmall) return;
  options.dram_bytes = kSmallDramBlocks * block_bytes;
  options.cold_dir = folder.path("cold");
}

std::vector<std::string> policies_of_small_tests() {
  return kSanitized ? std::vector<std::string>{"verl", "seer"} : chunk_policy_names();
}

/// Checks facts that no timing may change.
void check_unforced(const RolloutOptions& options, Kv kv, const RolloutReport& report) {
  const bool whole_groups = find_policy(options.scheduler.policy)->whole_groups;
  // Responses of a group that are equal so far share their blocks by content. If one parks while another still writes their common
  // tail, it may find the tail missing when it continues, and computes it again: at most 15 tokens.
  if (kv == Kv::kAmple) CHECK(report.rollout.reprefill_tokens <= (whole_groups ? 0 : 15 * (report.rollout.chunks - report.rollout.requests)));
  if (kv == Kv::kAmple) CHECK(report.rollout.yields + report.rollout.preemptions == 0);
  if (!whole_groups) CHECK(report.rollout.preemptions == 0);
  if (whole_groups || kv == Kv::kSmall) CHECK(report.sum(&KvNodeReport::spilled_bytes) == 0);  // their KV never leaves its instance
  CHECK(report.sum(&KvNodeReport::cold_failures) == 0);
  CHECK(report.sum(&KvNodeReport::fetch_failures) == 0);
}

/// Counts of what happens when KV is short. They depend on timing, so they are checked over many combinations; without such events
/// the combinations would prove nothing.
struct Pressure {
  int64_t preemptions = 0, yields = 0, migrations = 0, spilling = 0, spilled_bytes = 0;

  void add(const RolloutReport& report, Kv kv) {
    preemptions += report.rollout.preemptions;
    yields += report.rollout.yields;
    migrations += report.rollout.migrations;
    spilling += kv == Kv::kSpilling;
    spilled_bytes += report.sum(&KvNodeReport::spilled_bytes);
  }
};

std::vector<Json> json_lines(const std::string& path) {
  std::vector<Json> lines;
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);) {
    Json line = Json::parse(text, nullptr, false);
    REQUIRE_MESSAGE(line.is_object(), text);
    lines.push_back(std::move(line));
  }
  return lines;
}

Answers answers_of(const std::vector<Json>& lines, const char* logprobs) {
  Answers answers;
  for (const Json& line : lines) {
    Answer answer{line["output_ids"], {}, line["finish_reason"] == "stop" ? FinishReason::kStop : FinishReason::kLength};
    for (const Json& p : line[logprobs]) answer.logprob_bits.push_back(std::bit_cast<uint32_t>(p.get<float>()));
    answers.emplace(std::pair{line["group"].get<uint32_t>(), line["sample"].get<uint32_t>()}, std::move(answer));
  }
  return answers;
}

/// Keeps the tables of a command out of the test's output.
class QuietOutput {
 public:
  QuietOutput() : before_(std::cout.rdbuf(buffer_.rdbuf())) {}
  ~QuietOutput() { std::cout.rdbuf(before_); }

 private:
  std::ostringstream buffer_;
  std::streambuf* before_;
};

void command(const RolloutOptions& options) {
  const QuietOutput quiet;
  const std::atomic<bool> stop{false};
  const Status done = rollout_command(options, stop);
  REQUIRE_MESSAGE(done.ok(), done.error().detail);
}

}  // namespace

TEST_CASE("exactness: policies, chunks, instances, threads, steps queued ahead and KV limits change no bit") {
  const ScratchFolder folder(fast_folder());
  RolloutOptions options = reference_options(folder);
  RolloutWork work = loaded(options);
  work.groups[2].sampling.ignore_eos = true;
  const Answers reference = reference_of(options, work);
  REQUIRE(reference.size() == 20);
  work = with_lengths(std::move(work), reference);

  struct Case {
    std::string policy;
    int64_t chunk_tokens, instances, threads, step_depth;
    Kv kv;
  };
  std::vector<Case> cases;
  const bool can_spill = has_rocksdb();
  for (const std::string& policy : chunk_policy_names())
    for (const int64_t chunk_tokens : {17, 256, 0})
      for (const int64_t instances : {1, 2, 3})
        for (const int64_t threads : {1, 2})
          for (const int64_t step_depth : {1, 2})
            for (const Kv kv : {Kv::kAmple, Kv::kSmall, Kv::kSpilling})
              if (kv != Kv::kSpilling || can_spill)
                cases.push_back({policy, chunk_tokens, instances, threads, step_depth, kv});
  const uint64_t seed = number_from_environment("SEER_EXACTNESS_SEED").value_or(1);
  CAPTURE(seed);
  const size_t wanted = cases_max();
  const bool is_sample = wanted < cases.size();
  if (is_sample) {
    std::shuffle(cases.begin(), cases.end(), std::mt19937_64(seed));
    cases.resize(wanted);
  }

  int64_t different = 0;
  std::map<std::pair<std::string, int64_t>, Pressure> pressures;  // by policy and chunk_tokens
  for (const Case& c : cases) {
    RolloutOptions o = options;
    o.scheduler.policy = c.policy;
    o.scheduler.chunk_tokens = c.chunk_tokens;
    o.instances = c.instances;
    o.threads_per_instance = c.threads;
    o.step_depth = c.step_depth;
    limit_kv(o, c.kv, folder);
    INFO(c.policy, " chunk_tokens=", c.chunk_tokens, " instances=", c.instances, " threads=", c.threads,
         " step_depth=", c.step_depth, " kv=", to_text(c.kv));
    const Run found = run(o, work);
    const int64_t here = differences(reference, found.answers);
    CHECK(here == 0);
    check_unforced(o, c.kv, found.report);
    different += here;
    if (c.kv != Kv::kAmple) pressures[{c.policy, c.chunk_tokens}].add(found.report, c.kv);
  }
  Pressure all;
  for (const auto& [key, pressure] : pressures) {
    INFO(key.first, " chunk_tokens=", key.second);
    const bool whole_groups = find_policy(key.first)->whole_groups;
    // streamrl-oracle runs about as many as fit at their end, so it may finish without preemption.
    if (!is_sample && key.first != "streamrl-oracle")
      CHECK((whole_groups ? pressure.preemptions : pressure.yields) > 0);
    if (!is_sample && !whole_groups && pressure.spilling > 0) CHECK(pressure.spilled_bytes > 0);
    all.preemptions += pressure.preemptions;
    all.yields += pressure.yields;
    all.migrations += pressure.migrations;
    all.spilled_bytes += pressure.spilled_bytes;
  }
  CHECK(all.preemptions > 0);  // else the combinations would prove little
  CHECK(all.yields > 0);
  CHECK(all.migrations > 0);
#ifdef SEER_HAVE_ROCKSDB
  CHECK(all.spilled_bytes > 0);
#endif
  MESSAGE(cases.size(), " combinations of 20 responses: ", different, " differences; ", all.preemptions, " preemptions, ",
          all.yields, " yields, ", all.migrations, " migrations, ", all.spilled_bytes, " bytes spilled");
}

TEST_CASE("exactness: batch, prefill, block and reserve sizes, and having no pool, change no bit") {
  const ScratchFolder folder(fast_folder());
  const RolloutOptions options = reference_options(folder);
  RolloutWork work = loaded(options);
  const Answers reference = reference_of(options, work);
  work = with_lengths(std::move(work), reference);
  const uint64_t seed = number_from_environment("SEER_EXACTNESS_SEED").value_or(1);
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  const auto pick = [&](auto... values) {
    const std::array list{values...};
    return list[random() % list.size()];
  };
  const auto policies = chunk_policy_names();
  const size_t count = std::min<size_t>(cases_max(), 30);
  int64_t different = 0;
  for (size_t i = 0; i < count; ++i) {
    RolloutOptions o = options;
    o.scheduler.policy = policies[random() % policies.size()];
    o.scheduler.chunk_tokens = static_cast<int64_t>(random() % 60);
    o.instances = pick(1, 2, 3);
    o.threads_per_instance = pick(1, 2, 3);
    o.max_batch = pick(1, 2, 5, 20, 256);
    o.prefill_tokens = pick(1, 5, 16, 100, 512);
    o.block_tokens = pick(16, 32, 48);
    limit_kv(o, pick(Kv::kAmple, Kv::kSmall), folder, kBlockBytes * o.block_tokens / 16);
    o.scheduler.reserve_share = pick(0.01, 0.1, 0.5, 1.0);
    if (random() % 4 == 0) o.dram_bytes = 0;
    INFO(o.scheduler.policy, " chunk_tokens=", o.scheduler.chunk_tokens, " reserve=", o.scheduler.reserve_share,
         " instances=", o.instances, " threads=", o.threads_per_instance, " max_batch=", o.max_batch,
         " prefill_tokens=", o.prefill_tokens, " block_tokens=", o.block_tokens, " kv_bytes=", o.kv_bytes,
         " dram_bytes=", o.dram_bytes);
    const int64_t here = differences(reference, run(o, work).answers);
    CHECK(here == 0);
    different += here;
  }
  MESSAGE(count, " combinations of 20 responses: ", different, " differences");
}

TEST_CASE("exactness: every sampling rule gives the same bits under every policy") {
  const ScratchFolder folder(fast_folder());
  RolloutOptions options = reference_options(folder);
  options.group_size = 3;
  const RolloutWork work = loaded(options);
  struct Rule {
    const char* name;
    float temperature;
    std::function<void(SamplingParams&)> set = [](SamplingParams&) {};
  };
  const std::vector<Rule> rules{
      {"greedy", 0},
      {"temperature", 1.7f},
      {"raw logprobs", 1.7f, [](SamplingParams& s) { s.logprob_mode = LogprobMode::kRaw; }},
      {"top-p", 2, [](SamplingParams& s) { s.top_p = 0.8f; }},
      {"top-k", 2, [](SamplingParams& s) { s.top_k = 3; }},
      {"min-p", 2, [](SamplingParams& s) { s.min_p = 0.1f; }},
      {"penalty", 1, [](SamplingParams& s) { s.repetition_penalty = 1.3f; }},
      {"stop string", 1, [](SamplingParams& s) { s.stop = {"no such text", "=1"}; }},
      {"ignore EOS", 1, [](SamplingParams& s) { s.ignore_eos = true; }},
      {"min tokens", 1, [](SamplingParams& s) { s.min_tokens = kMinTokens; }},
      {"all", 1.4f, [](SamplingParams& s) {
         s.top_p = 0.95f, s.top_k = 40, s.min_p = 0.01f, s.repetition_penalty = 1.05f;
         s.stop = {"=1"};
       }}};
  const auto with = [&](float temperature, const std::function<void(SamplingParams&)>& set) {
    RolloutWork changed = work;
    for (GroupSpec& group : changed.groups) group.sampling.temperature = temperature, set(group.sampling);
    return changed;
  };
  const auto nothing = [](SamplingParams&) {};
  std::map<float, Answers> plain;  // by temperature
  for (const float temperature : {1.0f, 1.4f, 1.7f, 2.0f}) plain[temperature] = reference_of(options, with(temperature, nothing));
  int64_t different = 0, combinations = 0;
  for (const auto& [name, temperature, set] : rules) {
    INFO(std::string(name));
    RolloutWork ruled = with(temperature, set);
    const Answers reference = reference_of(options, ruled);
    const bool is_temperature = name == std::string("greedy") || name == std::string("temperature");
    CHECK(differences(plain.at(is_temperature ? 1.0f : temperature), reference) > 0);  // the rule does something
    for (const auto& [request, answer] : reference)
      if (name == std::string("min tokens")) CHECK(std::ssize(answer.output_ids) > kMinTokens);
    ruled = with_lengths(std::move(ruled), reference);
    for (const std::string& policy : policies_of_small_tests()) {
      CAPTURE(policy);
      RolloutOptions o = options;
      o.scheduler.policy = policy;
      o.scheduler.chunk_tokens = 17;
      o.instances = 2;
      limit_kv(o, Kv::kSmall, folder);
      const int64_t here = differences(reference, run(o, ruled).answers);
      CHECK(here == 0);
      different += here;
      ++combinations;
    }
  }
  MESSAGE(combinations, " combinations of 15 responses: ", different, " differences");
}

TEST_CASE("exactness: drafts change no bit, whatever their source and length, under every sampling rule") {
  const ScratchFolder folder(fast_folder());
  RolloutOptions options = reference_options(folder);
  const RolloutWork work = loaded(options);
  using Rule = std::function<void(SamplingParams&)>;
  const std::vector<std::pair<const char*, Rule>> rules{
      {"plain", [](SamplingParams&) {}},
      {"greedy", [](SamplingParams& s) { s.temperature = 0; }},
      {"penalty and top-p", [](SamplingParams& s) { s.repetition_penalty = 1.2f, s.top_p = 0.9f; }},
      {"stop string", [](SamplingParams& s) { s.stop = {"=1"}; }},
      {"min tokens", [](SamplingParams& s) { s.min_tokens = kMinTokens; }},
      {"ignore EOS", [](SamplingParams& s) { s.ignore_eos = true; }}};
  int64_t different = 0, combinations = 0;
  struct Mode {
    DraftSource source;
    DraftShapes shapes;
    const char* name;
  };
  const std::vector<Mode> modes{{DraftSource::kOwn, DraftShapes::kPath, "own path"},
                                {DraftSource::kGrouped, DraftShapes::kPath, "grouped path"},
                                {DraftSource::kGrouped, DraftShapes::kTree, "grouped tree"},
                                {DraftSource::kGrouped, DraftShapes::kAuto, "grouped auto"}};
  std::map<std::string, DraftCounts> drafts;  // by mode
  DraftCounts trees;
  for (const auto& [name, rule] : rules) {
    INFO(std::string(name));
    RolloutWork ruled = work;
    for (GroupSpec& group : ruled.groups) rule(group.sampling);
    const Answers reference = reference_of(options, ruled);
    ruled = with_lengths(std::move(ruled), reference);
    for (const std::string policy : {"verl", "seer", "seer+"})
      for (const Mode& mode : modes)
        for (const Kv kv : {Kv::kAmple, Kv::kSmall}) {
          RolloutOptions o = options;
          o.scheduler.policy = policy;
          o.scheduler.chunk_tokens = combinations % 2 == 0 ? 17 : 64;
          o.instances = 1 + combinations % 3;
          o.drafting = mode.source;
          o.draft_shape = mode.shapes;
          const size_t draft_rule = static_cast<size_t>(combinations) % kDraftRuleNames.size();
          o.draft_rule = static_cast<DraftRule>(draft_rule);
          o.draft_lambda = combinations % 4;
          o.draft_tokens_max = 1 + combinations * 5 % 17;
          o.draft_profile = kFreeRows;
          limit_kv(o, kv, folder);
          INFO(policy, " drafting=", std::string(mode.name), " rule=", std::string(kDraftRuleNames[draft_rule]), " draft_max=",
               o.draft_tokens_max, " chunk_tokens=", o.scheduler.chunk_tokens, " instances=", o.instances, " kv=", to_text(kv));
          const Run found = run(o, ruled);
          const int64_t here = differences(reference, found.answers);
          CHECK(here == 0);
          different += here;
          drafts[mode.name] += found.report.drafting().all();
          trees += found.report.drafting().trees();
          ++combinations;
        }
  }
  for (const auto& [mode, counts] : drafts) {
    MESSAGE(mode, ": ", counts.accepted, " of ", counts.drafted, " drafted tokens accepted");
    CAPTURE(mode);
    CHECK(counts.accepted > 0);
    CHECK(counts.drafted > counts.accepted);
  }
  CHECK(trees.accepted > 0);
  MESSAGE(combinations, " combinations of 20 responses: ", different, " differences; ", trees.accepted, " of ", trees.drafted,
          " drafted tokens accepted in trees");
}

TEST_CASE("exactness: requests whose logits are not finite fail at the same token under every schedule, and no other notices") {
  const ScratchFolder folder(fast_folder());
  constexpr int32_t kHuge = 7;  // wherever it is fed, no logit is finite from there on
  const nlohmann::json config = tiny_config("qwen3", {{"tie_word_embeddings", false}});
  for (const char* name : {"huge", "plain"}) {
    fs::create_directory(folder.path(name));
    write_tiny_model(folder.path(name), config, "BF16", 7, name[0] == 'h' ? overflowing_token(kHuge) : TinyEdit{});
  }
  RolloutOptions options = reference_options(folder);
  options.model = folder.path("plain");
  options.prompts = folder.write("ids.jsonl", "{\"prompt_ids\": [2, 3, 4]}\n"
                                              "{\"prompt_ids\": [5, 6, 5, 6, 5, 6, 5, 6, 5, 6, 5, 6, 5, 6, 5, 6, 5, 6]}\n"
                                              "{\"prompt_ids\": [9, 7, 8]}\n{\"prompt_ids\": [40, 41]}\n");
  options.group_size = 6;
  options.sampling.max_tokens = 70;
  const Answers plain = reference_of(options, loaded(options));
  options.model = folder.path("huge");
  RolloutWork work = loaded(options);
  const Answers reference = reference_of(options, work);
  REQUIRE(reference.size() == plain.size());
  int64_t failed = 0;
  for (const auto& [key, answer] : reference) {
    if (answer.finish != FinishReason::kError) {
      CHECK(answer == plain.at(key));
      continue;
    }
    ++failed;
    if (key.first == 2) {  // the prompt has it
      CHECK(answer.output_ids.empty());
      continue;
    }
    CHECK(std::ranges::find(answer.output_ids, kHuge) == answer.output_ids.end() - 1);
    Answer begun = plain.at(key);
    begun.output_ids.resize(answer.output_ids.size());
    begun.logprob_bits.resize(answer.output_ids.size());
    begun.finish = FinishReason::kError;
    CHECK(answer == begun);
  }
  CHECK(failed > options.group_size);  // not only those whose prompt has it
  CHECK(failed < std::ssize(reference));

  constexpr int64_t kTinyBlockBytes = 4096;  // 16 tokens x 2 layers x 2 KV heads x 16 x 2 (K and V) x 2 B
  int64_t different = 0, combinations = 0;
  for (const std::string policy : {"verl", "seer", "seer+"})
    for (const int64_t chunk_tokens : {17, 0})
      for (const DraftSource drafting : {DraftSource::kOff, DraftSource::kGrouped})
        for (const Kv kv : {Kv::kAmple, Kv::kSmall}) {
          RolloutOptions o = options;
          o.scheduler.policy = policy;
          o.scheduler.chunk_tokens = chunk_tokens;
          o.drafting = drafting;
          o.draft_profile = kFreeRows;
          o.instances = 1 + combinations++ % 3;
          limit_kv(o, kv, folder, kTinyBlockBytes);
          INFO(policy, " chunk_tokens=", chunk_tokens, " grouped=", drafting == DraftSource::kGrouped, " instances=", o.instances, " kv=", to_text(kv));
          const Run found = run(o, work);
          const int64_t here = differences(reference, found.answers);
          CHECK(here == 0);
          CHECK(found.report.rollout.failed == failed);
          different += here;
        }
  MESSAGE(combinations, " combinations of 24 responses, ", failed, " of which fail: ", different, " differences");
}

TEST_CASE("exactness: KV in f32 and each type of weights have bits of their own, the same everywhere") {
  const ScratchFolder folder(fast_folder());
  std::vector<Answers> references = {reference_of(reference_options(folder), loaded(reference_options(folder)))};
  for (const auto& [kv_dtype, weights] : {std::pair{KvType::kF32, WeightType::kAsStored},
                                          {KvType::kBf16, WeightType::kInt8},
                                          {KvType::kBf16, WeightType::kW8a8}}) {
    CAPTURE(kv_dtype == KvType::kF32);
    CAPTURE(kWeightTypeNames[static_cast<size_t>(weights)]);
    RolloutOptions options = reference_options(folder);
    options.kv_dtype = kv_dtype;
    options.weights = weights;
    RolloutWork work = loaded(options);
    const Answers reference = reference_of(options, work);
    for (const Answers& other : references) CHECK(differences(other, reference) > 0);
    references.push_back(reference);
    work = with_lengths(std::move(work), reference);
    for (const std::string& policy : policies_of_small_tests())
      for (const Kv kv : {Kv::kSmall, Kv::kSpilling}) {
        if (kv == Kv::kSpilling && !has_rocksdb()) continue;
        CAPTURE(policy);
        RolloutOptions o = options;
        o.scheduler.policy = policy;
        o.scheduler.chunk_tokens = 17;
        o.instances = 2;
        limit_kv(o, kv, folder, kv_dtype == KvType::kF32 ? 2 * kBlockBytes : kBlockBytes);
        CHECK(differences(reference, run(o, work).answers) == 0);
      }
  }
}

TEST_CASE("exactness: seer score of a rollout's output gives its logprobs, bit for bit") {
  const ScratchFolder folder(fast_folder());
  const struct {
    float temperature;
    LogprobMode mode;
    KvType kv_dtype;
    WeightType weights = WeightType::kAsStored;
  } cases[] = {{1.0f, LogprobMode::kProcessed, KvType::kBf16},
               {0.7f, LogprobMode::kProcessed, KvType::kBf16},
               {0.7f, LogprobMode::kRaw, KvType::kBf16},
               {0.0f, LogprobMode::kProcessed, KvType::kBf16},
               {1.0f, LogprobMode::kProcessed, KvType::kF32},
               {1.0f, LogprobMode::kProcessed, KvType::kBf16, WeightType::kW8a8}};
  for (const auto& c : cases) {
    CAPTURE(c.temperature);
    CAPTURE(c.kv_dtype == KvType::kF32);
    CAPTURE(c.weights == WeightType::kW8a8);
    RolloutOptions o = reference_options(folder);
    o.out = folder.path("responses.jsonl");
    o.scheduler.policy = "seer";
    o.scheduler.chunk_tokens = 17;
    o.instances = 2;
    o.kv_dtype = c.kv_dtype;
    o.weights = c.weights;
    limit_kv(o, Kv::kSmall, folder, kBlockBytes * (o.kv_dtype == KvType::kF32 ? 2 : 1));
    o.sampling.temperature = c.temperature;
    o.sampling.logprob_mode = c.mode;
    o.sampling.top_p = 0.9f;  // never enters a log-probability
    command(o);
    ScoreOptions score;
    score.model = kModel;
    score.in = o.out;
    score.out = folder.path("scored.jsonl");
    score.temperature = c.temperature;
    score.logprob_mode = c.mode;
    score.kv_dtype = c.kv_dtype;
    score.weights = c.weights;
    score.threads = 2;
    const std::atomic<bool> stop{false};
    const Status scored = score_command(score, stop);
    REQUIRE_MESSAGE(scored.ok(), scored.error().detail);
    const std::vector<Json> lines = json_lines(score.out);
    REQUIRE(lines.size() == 20);
    CHECK(differences(answers_of(json_lines(o.out), "logprobs"), answers_of(lines, "scores")) == 0);
  }
}

TEST_CASE("exactness: the oracle policy takes its lengths from the output of a rollout") {
  const ScratchFolder folder(fast_folder());
  RolloutOptions o = reference_options(folder);
  o.out = folder.path("first.jsonl");
  command(o);
  o.scheduler.policy = "oracle";
  o.scheduler.chunk_tokens = 17;
  o.instances = 2;
  o.lengths = o.out;
  o.out = folder.path("oracle.jsonl");
  limit_kv(o, Kv::kSmall, folder);
  command(o);
  const Answers first = answers_of(json_lines(o.lengths), "logprobs");
  REQUIRE(first.size() == 20);
  CHECK(differences(first, answers_of(json_lines(o.out), "logprobs")) == 0);
}
