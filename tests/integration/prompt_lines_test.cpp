// Sampling fields of prompt lines, through the program itself: they give the same responses as flags, wherever the line is; and
// groups of different sizes run under all policies and in the simulator.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/scratch.h"
#include "integration/child_process.h"
#include "protocols/result.h"

using namespace seer;
using Json = nlohmann::json;

namespace {

const std::string kModel = SEER_SOURCE_DIR "/deploy/models/scratchpad-1m8";
constexpr int kPatienceMs = 600'000;  // then it hangs, on any machine

/// Runs the program, which succeeds.
void run(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), SEER_PROGRAM);
  ChildProcess seer(std::move(arguments));
  REQUIRE(seer.wait(kPatienceMs));
  REQUIRE_MESSAGE(seer.exit_code() == 0, seer.err());
}

/// The responses to prompts with these flags, as text without the numbers of groups and times, by id and sample.
std::map<std::string, std::string> responses(const ScratchFolder& folder, const std::string& prompts,
                                             const std::vector<std::string>& flags, const std::string& model = kModel) {
  const std::string out = folder.path("out.jsonl");
  std::vector<std::string> arguments{"rollout",     "--model", model,
                                     "--prompts",   folder.write("p.jsonl", prompts),
                                     "--out",       out,
                                     "--instances", "1",
                                     "--threads-per-instance", "1"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  run(std::move(arguments));
  std::map<std::string, std::string> found;
  std::istringstream lines(folder.read("out.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const Json r = Json::parse(line);
    found[cat(r["id"].dump(), " ", r["sample"].dump())] =
        r["seed"].dump() + r["output_ids"].dump() + r["logprobs"].dump() + r["finish_reason"].dump();
  }
  return found;
}

const std::string kA = R"({"id": "a", "prompt": "A03 B09 sum\n")", kB = R"({"id": 7, "prompt": "A03 B09 C02 D05 sum\n")",
                  kC = R"({"id": "7", "prompt": "A0946 B0679 C0226 sum\n")";

}  // namespace

TEST_CASE("prompt lines: fields of a line give the responses that the flags give, and not to other lines") {
  const ScratchFolder folder;
  const auto plain = responses(folder, kA + "}\n" + kB + "}\n", {"--group-size", "2", "--max-tokens", "24"});
  const auto by_flags =
      responses(folder, kB + "}\n",
                {"--group-size", "3", "--max-tokens", "12", "--temperature", "1.7", "--top-p", "0.9", "--top-k", "40", "--min-p",
                 "0.01", "--repetition-penalty", "1.1", "--stop", "9", "--stop-token-ids", "5,6", "--ignore-eos"});
  const auto by_line = responses(folder,
                                 kA + "}\n" + kB +
                                     R"(, "n": 3, "max_tokens": 12, "temperature": 1.7, "top_p": 0.9, "top_k": 40, "min_p": 0.01,)"
                                     R"( "repetition_penalty": 1.1, "stop": "9", "stop_token_ids": [5, 6], "ignore_eos": true})"
                                     "\n",
                                 {"--group-size", "2", "--max-tokens", "24"});
  auto expected = by_flags;
  for (const char* key : {"\"a\" 0", "\"a\" 1"}) expected[key] = plain.at(key);
  CHECK(by_line == expected);
  CHECK(by_line.size() == 5);
  CHECK(by_flags.at("7 0") != plain.at("7 0"));
}

TEST_CASE("prompt lines: order and number of lines with ids or seeds change no response") {
  const ScratchFolder folder;
  const std::string seeded = R"({"id": "s", "prompt": "A03 B09 sum\n", "seed": 5})";
  const std::vector<std::string> flags{"--group-size", "2", "--max-tokens", "24"};
  const auto all = responses(folder, kA + "}\n" + seeded + "\n" + kB + "}\n" + kC + "}\n", flags);
  CHECK(all.size() == 8);
  CHECK(responses(folder, kC + "}\n" + kB + "}\n" + seeded + "\n" + kA + "}\n", flags) == all);
  std::vector<std::string> first_two = flags;
  first_two.insert(first_two.end(), {"--limit", "2"});
  for (const auto& [key, response] : responses(folder, kC + "}\n" + seeded + "\n" + kA + "}\n", first_two))
    CHECK(all.at(key) == response);
  std::vector<std::string> other_run = flags;
  other_run.insert(other_run.end(), {"--seed", "2"});
  const auto other = responses(folder, kA + "}\n" + seeded + "\n", other_run);
  CHECK(other.at("\"s\" 1") == all.at("\"s\" 1"));
  CHECK(other.at("\"a\" 1") != all.at("\"a\" 1"));
}

TEST_CASE("prompt lines: groups of different sizes run under every policy, and as a trace") {
  const ScratchFolder folder;
  const std::string prompts = kA + ", \"n\": 1}\n" + kB + ", \"n\": 5}\n" + kC + "}\n";
  const auto first = responses(folder, prompts, {"--group-size", "3", "--max-tokens", "24", "--policy", "verl"});
  CHECK(first.size() == 9);
  const std::string trace = folder.write("trace.jsonl", folder.read("out.jsonl"));
  for (const char* policy : {"divided", "seer", "seer+", "oracle", "streamrl-oracle"}) {
    CAPTURE(policy);
    CHECK(responses(folder, prompts,
                    {"--group-size", "3", "--max-tokens", "24", "--policy", policy, "--lengths", trace, "--drafting",
                     "grouped"}) == first);
  }
  const std::string workload = folder.write(
      "w.toml",
      "[workload]\ngpu = \"H800\"\nmodel = \"Moonlight\"\ninstances = 2\ngpus-per-instance = 1\ntp = 1\ndp = 1\nep = 1\n"
      "temperature = 1.0\ntrace = \"trace.jsonl\"\n");
  run({"simulate", "--workload", workload, "--policies", "verl,divided,seer,seer+,oracle,streamrl-oracle,partial", "--seeds",
       "1", "--report", folder.path("report.json")});
  CHECK(folder.read("report.json").find("\"verl\"") != std::string::npos);
}

TEST_CASE("prompt lines: messages give the responses of the prompt that the model's chat template makes of them") {
  const ScratchFolder folder;
  const std::string model = folder.path("model");
  std::filesystem::copy(kModel, model);
  std::ofstream(model + "/chat_template.jinja") << "{{ messages[0].content }}{% if add_generation_prompt %} sum\n{% endif %}";
  const std::string chat = R"({"id": "a", "messages": [{"role": "user", "content": "A03 B09"}]})";
  const auto rendered = responses(folder, kA + "}\n", {"--group-size", "2", "--max-tokens", "24"});
  REQUIRE(rendered.size() == 2);
  CHECK(responses(folder, chat + "\n", {"--group-size", "2", "--max-tokens", "24"}, model) == rendered);

  ChildProcess without({SEER_PROGRAM, "rollout", "--model", kModel, "--prompts", folder.write("p.jsonl", kB + "}\n" + chat), "--out", folder.path("o.jsonl")});
  REQUIRE(without.wait(kPatienceMs));
  CHECK(without.err() == "seer: " + folder.path("p.jsonl") + ":2: messages need a chat template, and " + kModel + " has none; give \"prompt\" instead\n");
}
