// A rollout whose process was killed continues from its journal, and gives the bits of one that was not killed.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "integration/cluster.h"
#include "integration/optional_parts.h"

using namespace seer;

namespace {

Arguments local_rollout(const ScratchFolder& folder, const std::string& out, const Arguments& more) {
  Arguments all{SEER_PROGRAM, "rollout", "--model", kModel, "--prompts", kPrompts, "--limit", "8", "--group-size", "8", "--max-tokens", "1200",
                "--instances", "2", "--threads-per-instance", "1", "--chunk-tokens", "128", "--policy", "seer", "--out", folder.path(out)};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::string sentence_of(const Arguments& arguments) {
  ChildProcess seer(arguments);
  REQUIRE(seer.wait(kWaitMs));
  CHECK(seer.exit_code() != 0);
  return seer.err();
}

/// A rollout that was killed some times, and its last process.
struct Killed {
  int kills = 0;
  int64_t answered = 0;  // before the last process
  std::string log;       // of the last process
  /// 0: it is not in the log.
  int64_t figure(const std::string& words) const {
    const size_t at = log.find(words);
    return at == std::string::npos ? 0 : std::stoll(log.substr(at + words.size()));
  }
};

Killed kill_again_and_again(const ScratchFolder& folder, const Arguments& journaled) {
  Killed killed;
  const auto written = [&] {
    std::ifstream lines(folder.path("a.jsonl.partial"));
    return std::count(std::istreambuf_iterator<char>(lines), {}, '\n');
  };
  for (bool is_over = false; !is_over;) {
    ChildProcess seer(local_rollout(folder, "a.jsonl", journaled));
    // Until some more responses are there; in the end it runs through.
    while (!seer.wait(3) && (killed.kills >= 4 || written() <= killed.answered + 4)) {
    }
    const int64_t answered = written();
    if (!seer.wait(0)) seer.send(SIGKILL);
    REQUIRE(seer.wait(kWaitMs));
    killed.log = seer.err();
    is_over = seer.exit_code() != 128 + SIGKILL;
    if (is_over) {
      REQUIRE_MESSAGE(seer.exit_code() == 0, killed.log);
    } else {
      killed.answered = answered;
      ++killed.kills;
    }
  }
  return killed;
}

}  // namespace

TEST_CASE("resume: a rollout that is killed again and again ends with the responses of one that was not") {
  if (!has_rocksdb()) return;
  const ScratchFolder folder;
  ChildProcess whole(local_rollout(folder, "whole.jsonl", {}));
  REQUIRE(whole.wait(kWaitMs));
  REQUIRE_MESSAGE(whole.exit_code() == 0, whole.err());
  const Responses right = responses_of(folder.path("whole.jsonl"));
  REQUIRE(right.size() == 64);

  const Arguments journaled{"--journal", folder.path("journal"), "--resume", "--report", folder.path("report.json"), "--log-level", "info"};
  // Again if this test stalled while a rollout ran to its end, or to where it had begun no other request.
  Killed killed;
  for (int tries = 0; tries < 10 && (killed.kills == 0 || killed.figure(" tokens_begun=") == 0); ++tries)
    killed = kill_again_and_again(folder, journaled);
  CHECK(killed.kills > 0);
  CHECK(responses_of(folder.path("a.jsonl")) == right);
  const Json report = Json::parse(folder.read("report.json"));
  CHECK(report["answered_before"] >= killed.answered);
  CHECK(report["answered_before"].get<int>() + report["requests"].get<int>() == 64);
  // The last process has computed what was not committed before it, and the last token of each request that it took up.
  int64_t tokens = 0, computed = 0, response = 0;
  std::ifstream lines(folder.path("a.jsonl"));
  for (std::string line; std::getline(lines, line);)
    if (++response > report["answered_before"]) tokens += std::ssize(Json::parse(line)["output_ids"]);
  for (const Json& instance : report["instances"]) computed += instance["tokens"].get<int64_t>();
  const int64_t begun = killed.figure(" requests_begun="), begun_tokens = killed.figure(" tokens_begun=");
  CHECK(begun_tokens > 0);
  CHECK(computed == tokens - begun_tokens + begun);
  CHECK(report["tokens_per_s"].get<double>() * report["wall_s"].get<double>() == doctest::Approx(static_cast<double>(computed)).epsilon(0.01));

  // Its journal is clear: the folder is ready for the next rollout.
  ChildProcess next(local_rollout(folder, "b.jsonl", {"--journal", folder.path("journal"), "--seed", "2"}));
  REQUIRE(next.wait(kWaitMs));
  CHECK_MESSAGE(next.exit_code() == 0, next.err());
}

TEST_CASE("resume: a journal is for the same work only, and is not overwritten unasked") {
  if (!has_rocksdb()) return;
  const ScratchFolder folder;
  const std::string journal = folder.path("journal");
  bool was_killed = false;  // else it ended while this test stalled, and its journal is clear again
  for (int tries = 0; tries < 10 && !was_killed; ++tries) {
    ChildProcess seer(local_rollout(folder, "a.jsonl", {"--journal", journal}));
    const auto has_response = [&] {
      std::error_code missing;
      return std::filesystem::file_size(folder.path("a.jsonl.partial"), missing) > 0 && !missing;
    };
    while (!seer.wait(5) && !has_response()) {
    }
    if (!seer.wait(0)) seer.send(SIGKILL);
    REQUIRE(seer.wait(kWaitMs));
    was_killed = seer.exit_code() == 128 + SIGKILL;
  }
  REQUIRE(was_killed);
  CHECK(sentence_of(local_rollout(folder, "a.jsonl", {"--journal", journal})) ==
        "seer: journal " + journal + " has an unfinished rollout: --resume continues it; remove the folder to begin anew\n");
  CHECK(sentence_of(local_rollout(folder, "a.jsonl", {"--journal", journal, "--resume", "--seed", "2"})) ==
        "seer: journal " + journal + " is of another rollout: prompt 0 has another text, seed, sampling or number of responses; remove the folder to begin anew\n");
  CHECK(sentence_of(local_rollout(folder, "a.jsonl", {"--journal", journal, "--resume", "--weight-version", "2"})) ==
        "seer: journal " + journal + " is of another rollout: its weight version is 1, and this one's 2; remove the folder to begin anew\n");
  CHECK(sentence_of(local_rollout(folder, "a.jsonl", {"--resume"})) ==
        "seer: --resume needs --journal, the folder to continue from\n");
}

TEST_CASE("resume: after a rollout with requests that failed only these are made again, and the output then has all") {
  if (!has_rocksdb()) return;
  const ScratchFolder folder;
  const std::string prompts = folder.write("p.jsonl", "{\"prompt_ids\": [2, 3]}\n{\"prompt_ids\": [2, 3, 4], \"max_tokens\": 1500, \"ignore_eos\": true}\n");
  // Of a server whose KV may be too small for the second prompt.
  const auto rollout_on = [&](const std::string& kv_bytes, const std::string& out, const Arguments& more) {
    ChildProcess server({SEER_PROGRAM, "serve", "--model", kModel, "--listen", "127.0.0.1:0", "--instances", "1", "--threads-per-instance", "1",
                         "--kv-bytes", kv_bytes, "--dram-bytes", "64MiB"});
    const std::string address = wait_for_line(server, "seer serves scratchpad-1m8 at ");
    Arguments all{SEER_PROGRAM, "rollout", "--model", kModel, "--prompts", prompts, "--group-size", "2", "--max-tokens", "50", "--engines",
                  "seer=" + address, "--report", folder.path("report.json"), "--out", folder.path(out)};
    all.insert(all.end(), more.begin(), more.end());
    auto rollout = std::make_unique<ChildProcess>(all);
    REQUIRE(rollout->wait(kWaitMs));
    return rollout;
  };
  const auto made = [&](const char* figure) { return Json::parse(folder.read("report.json"))[figure].get<int>(); };
  REQUIRE(rollout_on("16MiB", "whole.jsonl", {})->exit_code() == 0);
  const Arguments journaled{"--journal", folder.path("journal"), "--resume"};
  for (const int answered : {0, 2}) {  // what failed fails again
    const auto failed = rollout_on("2MiB", "a.jsonl", journaled);
    CHECK(failed->exit_code() == 1);
    CHECK(made("answered_before") == answered);
    CHECK(made("failed_requests") == 2);
    CHECK(failed->err().find(cat("; journal ", folder.path("journal"), " is kept: the same command with --resume makes only these again\n")) !=
          std::string::npos);
  }
  const auto mended = rollout_on("16MiB", "a.jsonl", journaled);
  CHECK_MESSAGE(mended->exit_code() == 0, mended->err());
  CHECK(made("answered_before") == 2);
  CHECK(made("requests") == 2);
  CHECK(responses_of(folder.path("a.jsonl")) == responses_of(folder.path("whole.jsonl")));
  CHECK(rollout_on("16MiB", "b.jsonl", {"--journal", folder.path("journal")})->exit_code() == 0);  // the journal is clear
}
