// A rollout stopped from outside, through the program itself: signals, pipes without a reader, a full disk. A complete result
// stays, finished responses are kept beside it, and the last line of stderr says where.
#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
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
const std::string kPrompts = SEER_SOURCE_DIR "/deploy/examples/scratchpad/prompts.jsonl";
constexpr int kPatienceMs = 600'000;  // then it hangs, on any machine
constexpr int64_t kAll = 3200;  // 200 prompts x 16: more than a machine finishes before it is stopped

using Arguments = std::vector<std::string>;

Arguments rollout(const std::string& out, const Arguments& more, const Arguments& prefix = {}) {
  Arguments all = prefix;
  all.insert(all.end(), {SEER_PROGRAM, "rollout", "--model", kModel, "--prompts", kPrompts, "--out", out,
                         "--threads-per-instance", "1", "--max-tokens", "300", "--chunk-tokens", "64"});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}
const Arguments kLong{"--group-size", "16", "--max-batch", "16"};
const Arguments kShort{"--limit", "8", "--group-size", "2"};

/// Runs its arguments after `commands`, in the same process.
Arguments after_shell(const std::string& commands) { return {"sh", "-c", commands + "; exec \"$@\"", "sh"}; }

/// Waits until `happened`. False: the program ended before anybody saw that, as a short run may on a busy machine.
template <class Happened>
bool still_runs_when(ChildProcess& seer, Happened happened) {
  while (!happened())
    if (seer.wait(10)) return false;
  return true;
}
bool has_line(const std::string& partial) {
  std::error_code missing;
  return fs::file_size(partial, missing) > 0 && !missing;
}
/// Until the first response is in `partial`. For runs that are far from their end then.
void wait_for_line(ChildProcess& seer, const std::string& partial) {
  REQUIRE_MESSAGE(still_runs_when(seer, [&] { return has_line(partial); }), seer.err());
}

/// Checks that each line is a whole response, and counts them.
int64_t whole_responses(const std::string& text) {
  CHECK((text.empty() || text.ends_with("}\n")));
  int64_t count = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line); ++count) {
    const Json response = Json::parse(line);
    CHECK((response["finish_reason"] == "stop" || response["finish_reason"] == "length"));
    CHECK(response["output_ids"].size() > 0);
    CHECK(response["output_ids"].size() == response["logprobs"].size());
  }
  return count;
}

}  // namespace

TEST_CASE("stop: Ctrl-C, SIGTERM and SIGHUP leave a complete result as it was, finished responses beside it") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(signal);
    const ScratchFolder folder;
    const std::string out = folder.write("out.jsonl", "complete\n"), report = folder.write("report.json", "complete\n");
    Arguments more = kLong;
    more.insert(more.end(), {"--report", report});
    ChildProcess seer(rollout(out, more));
    wait_for_line(seer, out + ".partial");
    seer.send(signal);
    REQUIRE(seer.wait(kPatienceMs));
    CHECK(seer.exit_code() == 130);
    CHECK(folder.read("out.jsonl") == "complete\n");
    CHECK(folder.read("report.json") == "complete\n");
    const int64_t kept = whole_responses(folder.read("out.jsonl.partial"));
    CHECK(kept > 0);
    CHECK(kept < kAll);
    CHECK(seer.err().ends_with(cat("seer: stopped on request after ", kept, " of 3200 responses; they are in ", out,
                                   ".partial, and ", out, " is as it was; the report so far is in ", report, ".partial\n")));
    const Json figures = Json::parse(folder.read("report.json.partial"));
    CHECK(figures["requests"] == kAll);
    CHECK(figures["finished"] == kept);
    CHECK(seer.out().find(cat(kept, " of 3 200\n")) != std::string::npos);
  }
}

TEST_CASE("stop: without a result before, an interrupted run makes none") {
  const ScratchFolder folder;
  const std::string out = folder.path("out.jsonl");
  ChildProcess seer(rollout(out, kLong));
  wait_for_line(seer, out + ".partial");
  seer.send(SIGTERM);
  REQUIRE(seer.wait(kPatienceMs));
  CHECK(!folder.has("out.jsonl"));
  CHECK(whole_responses(folder.read("out.jsonl.partial")) > 0);
  CHECK(seer.err().ends_with("they are in " + out + ".partial, and there is no " + out + "\n"));
}

TEST_CASE("stop: --compare keeps the responses of a policy that was done before the stop") {
  const ScratchFolder folder;
  const std::string out = folder.path("out.jsonl");
  Arguments more{"--limit", "8", "--group-size", "16", "--compare", "verl,divided,las,seer,seer+"};
  ChildProcess seer(rollout(out, more));
  if (still_runs_when(seer, [&] { return folder.has("out.jsonl"); })) seer.send(SIGTERM);
  REQUIRE(seer.wait(kPatienceMs));
  CHECK(whole_responses(folder.read("out.jsonl")) == 128);
  CHECK(!folder.has("out.jsonl.partial"));
  if (seer.exit_code() != 0) CHECK(seer.err().ends_with("; " + out + " is complete\n"));  // else all five were done before
}

TEST_CASE("stop: a SIGHUP that was ignored at the start, as under nohup, stays ignored") {
  const ScratchFolder folder;
  const std::string out = folder.path("out.jsonl");
  ChildProcess seer(rollout(out, {"--limit", "8", "--group-size", "16"}, after_shell("trap '' HUP")));
  if (still_runs_when(seer, [&] { return has_line(out + ".partial"); })) seer.send(SIGHUP);
  REQUIRE(seer.wait(kPatienceMs));
  CHECK(seer.exit_code() == 0);
  CHECK(whole_responses(folder.read("out.jsonl")) == 128);
}

TEST_CASE("stop: progress that nobody reads never ends a rollout") {
  const ScratchFolder folder;
  const std::string out = folder.path("out.jsonl"), pipe = folder.path("pipe");
  // stderr is a pipe whose only reader is gone before the program starts: each line of progress fails.
  const std::string broken = cat("mkfifo ", pipe, "; exec 3<>", pipe, "; exec 2>", pipe, "; exec 3>&-");
  ChildProcess seer(rollout(out, {"--limit", "8", "--group-size", "16"}, after_shell(broken)));
  REQUIRE(seer.wait(kPatienceMs));
  CHECK(seer.exit_code() == 0);
  CHECK(whole_responses(folder.read("out.jsonl")) == 128);
  ChildProcess refused(rollout(out, {"--limit", "many"}, after_shell(cat("exec 3<>", pipe, "; exec 2>", pipe, "; exec 3>&-"))));
  REQUIRE(refused.wait(kPatienceMs));
  CHECK(refused.exit_code() == 2);  // and not 141, of SIGPIPE
}

TEST_CASE("stop: an output pipe whose reader is gone ends the rollout with a sentence") {
  const ScratchFolder folder;
  // Far more than a pipe holds: the program writes until `head` is gone.
  const std::string script = cat("{ \"$@\"; echo $? > ", folder.path("code"), "; } | head -n 1 > ", folder.path("first"));
  ChildProcess seer(rollout("/dev/stdout", kLong, {"sh", "-c", script, "sh"}));
  REQUIRE(seer.wait(kPatienceMs));
  CHECK(folder.read("code") == "1\n");
  CHECK(whole_responses(folder.read("first")) == 1);
  const std::string err = seer.err();
  CAPTURE(err);
  CHECK(err.find("seer: cannot write /dev/stdout: Broken pipe after ") != std::string::npos);
  CHECK(err.ends_with(" of 3200 responses; they were written to /dev/stdout\n"));
}

TEST_CASE("stop: a disk that fills up leaves the complete result and says where the new responses are") {
  const ScratchFolder folder;
  const std::string out = folder.write("out.jsonl", "complete\n");
  // A file size limit of 32 KiB simulates the full disk.
  ChildProcess seer(rollout(out, kLong, after_shell("ulimit -f 64")));
  REQUIRE(seer.wait(kPatienceMs));
  CHECK(seer.exit_code() == 1);
  CHECK(folder.read("out.jsonl") == "complete\n");
  const int64_t kept = whole_responses(folder.read("out.jsonl.partial"));
  CHECK(kept > 0);
  CHECK(seer.err().ends_with(cat("seer: cannot write ", out, ".partial: File too large after ", kept,
                                 " of 3200 responses; they are in ", out, ".partial, and ", out, " is as it was\n")));
  ChildProcess again(rollout(out, kShort));
  REQUIRE(again.wait(kPatienceMs));
  CHECK(again.exit_code() == 0);
  CHECK(whole_responses(folder.read("out.jsonl")) == 16);
  CHECK(!folder.has("out.jsonl.partial"));
}
