// tests/integration/simulate_test.cpp runs the command through the program; tests/sim tests the effects of faults.
#include "cli/sim/sim_fault_command.h"

#include <doctest/doctest.h>

#include <iostream>

#include "cli/sim/captured_stream.h"
#include "cli/sim/small_cluster.h"

using namespace seer;

namespace {

struct Said {
  Status status;
  std::string out;
};

SimWork small_work() {
  SimWork work{.groups = {}, .max_gen = 300};
  for (int64_t i = 0; i < 4; ++i) work.groups.push_back({.prompt_tokens = 40, .output_tokens = {60 + 30 * i, 150, 300}});
  return work;
}

Said run(const SimulateOptions& options, uint64_t seed, bool is_stopped = false) {
  const CapturedStream out(std::cout);
  const std::atomic<bool> stop{is_stopped};
  const Status status = run_fault_seed(small_cluster(), small_work(), options, "w", seed, {}, stop);
  return {status, out.text()};
}

/// Chunks are short, so that requests move.
SimulateOptions options_for(const std::vector<std::string>& policies) {
  SimulateOptions options;
  options.policies = policies;
  options.scheduler.chunk_tokens = 64;
  return options;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// The hash of a line's events.
std::string hash_of(const std::string& line) { return line.substr(line.find("events "), 23); }

}  // namespace

TEST_CASE("fault command: every policy gets a line with its requests and what went wrong, the same for the same seed") {
  const SimulateOptions options = options_for({"verl", "seer"});
  const Said said = run(options, 3);
  REQUIRE_MESSAGE(said.status.ok(), said.status.error().detail);
  CHECK(said.out.starts_with("w verl seed 3: 12 requests exact in "));
  CHECK(contains(said.out, "\nw seer seed 3: 12 requests exact in "));
  CHECK(contains(said.out, "crash"));
  CHECK(run(options, 3).out == said.out);
  CHECK(hash_of(run(options, 4).out) != hash_of(said.out));
}

TEST_CASE("fault command: a policy that ends in +sd verifies drafts, of as many tokens as are asked for") {
  SimulateOptions options = options_for({"seer"});
  const std::string plain = hash_of(run(options, 3).out);
  options.policies = {"seer+sd"};
  const std::string drafted = hash_of(run(options, 3).out);
  options.draft_tokens_max = 2;
  const std::string drafted_less = hash_of(run(options, 3).out);
  CHECK(plain != drafted);
  CHECK(drafted != drafted_less);
  options.policies = {"seer"};
  CHECK(hash_of(run(options, 3).out) == plain);
}

TEST_CASE("fault command: an instance that cannot hold the longest request is refused with the size it needs") {
  SimulateOptions options = options_for({"seer"});
  options.kv_tokens = 355;  // 340 of the longest, and a block
  const Said said = run(options, 3);
  REQUIRE(!said.status.ok());
  CHECK(said.status.error().code == Code::kInvalidArgument);
  CHECK(said.status.error().detail ==
        "an instance holds KV of 355 tokens, and the longest request may need 340 and a block more: expected --kv-tokens 356 at least");
  CHECK(said.out == "");
  options.kv_tokens = 356;
  CHECK(run(options, 3).status.ok());
}

TEST_CASE("fault command: stopped on request it runs no further policy") {
  const Said said = run(options_for({"seer"}), 3, true);
  REQUIRE(!said.status.ok());
  CHECK(said.status.error().code == Code::kCancelled);
  CHECK(said.out == "");
}
