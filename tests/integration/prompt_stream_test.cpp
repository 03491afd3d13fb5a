// `seer rollout --prompts -` through the program itself: prompts come over a pipe while it runs.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/scratch.h"
#include "integration/child_process.h"
#include "protocols/check.h"

using namespace seer;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

const std::string kModel = SEER_SOURCE_DIR "/deploy/models/scratchpad-1m8";
constexpr int kPatienceMs = 600'000;  // then it hangs, on any machine
constexpr int64_t kSamples = 2;
const std::string kFirst = "{\"prompt\": \"A03 B09 sum\\n\"}\n", kSecond = "{\"prompt\": \"A05 B02 sum\\n\"}\n";

/// A rollout that reads prompts from a pipe.
struct Streaming {
  explicit Streaming(const std::vector<std::string>& more = {}) : seer(arguments("-", folder.path("o.jsonl"), more), make_pipe()) {
    ::close(ends[0]);
  }
  ~Streaming() { close(); }
  static std::vector<std::string> arguments(const std::string& prompts, const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> all{SEER_PROGRAM, "rollout", "--model", kModel, "--prompts", prompts, "--out", out, "--group-size",
                                 cat(kSamples), "--max-tokens", "30", "--threads-per-instance", "1", "--instances", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  int make_pipe() {
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    return ends[0];
  }
  void write(const std::string& text) const {
    REQUIRE(::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  void close() {
    if (ends[1] >= 0) ::close(ends[1]);
    ends[1] = -1;
  }
  int64_t lines() const {
    const std::string text = fs::exists(folder.path("o.jsonl.partial")) ? folder.read("o.jsonl.partial") : "";
    return std::count(text.begin(), text.end(), '\n');
  }
  /// Waits, while the program runs, until it has written this number of responses.
  void wait_for(int64_t responses) {
    while (lines() < responses) REQUIRE_MESSAGE(!seer.wait(10), seer.err());
  }
  int exit_code() {
    REQUIRE(seer.wait(kPatienceMs));
    return seer.exit_code();
  }

  int ends[2] = {-1, -1};
  ScratchFolder folder;
  ChildProcess seer;
};

/// Output ids and log-probabilities by group and sample.
std::map<std::string, std::string> responses_of(const std::string& text) {
  std::map<std::string, std::string> responses;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const Json r = Json::parse(line);
    responses[cat(r["group"].dump(), ".", r["sample"].dump())] = r["output_ids"].dump() + r["logprobs"].dump();
  }
  return responses;
}

}  // namespace

TEST_CASE("prompts from stdin: an answer arrives before the next prompt is written, and is that of a file's prompt") {
  Streaming s;
  s.write(kFirst);
  s.wait_for(kSamples);
  s.write(kSecond);
  s.wait_for(2 * kSamples);
  s.close();
  CHECK_MESSAGE(s.exit_code() == 0, s.seer.err());
  CHECK(s.seer.out() == "");
  const auto streamed = responses_of(s.folder.read("o.jsonl"));
  CHECK(streamed.size() == 2 * kSamples);
  const std::string prompts = s.folder.write("prompts.jsonl", kFirst + kSecond);
  ChildProcess from_file(Streaming::arguments(prompts, s.folder.path("f.jsonl"), {}));
  REQUIRE(from_file.wait(kPatienceMs));
  CHECK(responses_of(s.folder.read("f.jsonl")) == streamed);
}

TEST_CASE("prompts from stdin: with --out - the answers go to stdout, and nothing else does") {
  ScratchFolder folder;
  const std::string prompts = folder.write("prompts.jsonl", kFirst);
  ChildProcess seer(Streaming::arguments(prompts, "-", {}));
  REQUIRE(seer.wait(kPatienceMs));
  CHECK_MESSAGE(seer.exit_code() == 0, seer.err());
  CHECK(responses_of(seer.out()).size() == kSamples);
}

TEST_CASE("prompts from stdin: a stream that ends in half a line is an error; what came before is answered") {
  Streaming s;
  s.write(kFirst + "{\"prompt\": \"A05");
  s.close();
  CHECK(s.exit_code() == 2);
  const std::string said = s.seer.err();
  CHECK_MESSAGE(said.find("stdin:2: expected a JSON object and a newline, but the stream ends in the middle of this line") != std::string::npos, said);
  CHECK_MESSAGE(said.find("after 2 of 2 responses; they are in ") != std::string::npos, said);
  CHECK(responses_of(s.folder.read("o.jsonl.partial")).size() == kSamples);
}

TEST_CASE("prompts from stdin: a prompt that the model cannot take ends the stream, and is named") {
  Streaming s;
  s.write(kFirst);
  s.wait_for(kSamples);
  s.write("{\"prompt_ids\": [1, 999999]}\n");
  CHECK(s.exit_code() == 2);
  CHECK_MESSAGE(s.seer.err().find("stdin:2: ") != std::string::npos, s.seer.err());
  CHECK(s.lines() == kSamples);
}

TEST_CASE("prompts from stdin: Ctrl-C ends it while it waits, before the first prompt and after") {
  for (const bool first : {true, false}) {
    Streaming s;
    if (!first) {
      s.write(kFirst);
      s.wait_for(kSamples);
    }
    while (first && !s.folder.has("o.jsonl.partial")) REQUIRE_MESSAGE(!s.seer.wait(10), s.seer.err());
    s.seer.send(SIGINT);
    CHECK(s.exit_code() == (first ? 130 : 0));  // 0: all that was asked is answered, and the result is complete
    if (first) CHECK_MESSAGE(s.seer.err().find("stopped on request") != std::string::npos, s.seer.err());
    CHECK(s.folder.has("o.jsonl") == !first);
  }
}

TEST_CASE("prompts from stdin: without any it is an error, and so are options that need all of them") {
  Streaming s;
  s.close();
  CHECK(s.exit_code() == 2);
  CHECK_MESSAGE(s.seer.err().find("stdin holds no prompts") != std::string::npos, s.seer.err());
  Streaming compared({"--compare", "seer,divided"});
  CHECK(compared.exit_code() == 2);
  CHECK_MESSAGE(compared.seer.err().find("--compare cannot go with --prompts -") != std::string::npos, compared.seer.err());
}
