// The page of a real rollout, through the program: it shows what ran.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/scratch.h"
#include "integration/child_process.h"

using namespace seer;
using Json = nlohmann::json;

namespace {

constexpr int kPatienceMs = 120'000;
const std::string kModel = SEER_SOURCE_DIR "/deploy/models/scratchpad-1m8";
const std::string kPrompts = SEER_SOURCE_DIR "/deploy/examples/scratchpad/prompts.jsonl";

/// The page of 8 prompts x 4 on two instances.
std::string page_of(const ScratchFolder& folder, const std::vector<std::string>& more) {
  std::vector<std::string> arguments{SEER_PROGRAM, "rollout", "--model", kModel, "--prompts", kPrompts, "--out",
                                     folder.path("o.jsonl"), "--html", folder.path("p.html"), "--limit", "8", "--group-size", "4",
                                     "--max-tokens", "100", "--instances", "2", "--threads-per-instance", "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  ChildProcess seer(std::move(arguments));
  REQUIRE(seer.wait(kPatienceMs));
  REQUIRE_MESSAGE(seer.exit_code() == 0, seer.err());
  CHECK(!folder.has("p.html.partial"));
  return folder.read("p.html");
}

Json data_of(const std::string& html) {
  const std::string begin = "<script type=\"application/json\" id=data>";
  const size_t from = html.find(begin) + begin.size();
  return Json::parse(html.substr(from, html.find("</script>", from) - from));
}

bool is_blank(const std::string& row) { return row.find_first_not_of('A') == std::string::npos; }  // every level is 0

}  // namespace

TEST_CASE("rollout page: each instance has its timeline, each response its completion") {
  const ScratchFolder folder;
  const std::string html = page_of(folder, {"--policy", "verl"});
  CHECK(html.find("<title>Seer: Rollout</title>") != std::string::npos);
  CHECK(html.find("hash of its events") == std::string::npos);
  const Json data = data_of(html);
  REQUIRE(data.size() == 1);
  CHECK(data[0]["name"] == "prompts.jsonl on scratchpad-1m8");
  REQUIRE(data[0]["policies"].size() == 1);
  const Json& policy = data[0]["policies"][0];
  const std::vector<double> completions = policy["completions"];
  REQUIRE(completions.size() == 32);
  CHECK(completions.front() > 0);
  CHECK(completions.back() <= double(policy["total"][0]) + 0.001);  // shown in ms
  for (const char* series : {"running", "kv"}) {
    REQUIRE(policy[series]["rows"].size() == 2);
    for (const std::string row : policy[series]["rows"]) CHECK(!is_blank(row));  // verl deals groups to both
    CHECK(policy[series]["most"] > 0);
  }
  CHECK(policy["running"]["most"] <= 32);
  CHECK(policy["kv"]["most"] <= 1);
}

TEST_CASE("rollout page: --compare draws all policies, against verl if it is one of them") {
  const ScratchFolder folder;
  const Json data = data_of(page_of(folder, {"--compare", "verl,divided"}));
  REQUIRE(data[0]["policies"].size() == 2);
  CHECK(data[0]["policies"][0]["speedup"][0] == 1.0);
  CHECK(data[0]["policies"][1]["name"] == "divided");
  CHECK(data[0]["policies"][1]["speedup"][0] > 0);
  CHECK(data[0]["policies"][1]["completions"].size() == 32);
}
