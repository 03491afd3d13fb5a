#include "gpu/order_checks.h"

#include <doctest/doctest.h>

#include <csignal>
#include <functional>
#include <memory>
#include <vector>

#include "protocols/process_outcome.h"

using namespace seer;

namespace {

bool ends_the_process(const std::function<void()>& work) { return outcome(work).second == SIGABRT; }

EngineInfo info() {
  EngineInfo info;
  info.vocab_size = 100;
  info.block_tokens = 16;
  info.block_bytes = 64;
  info.device_blocks = 8;
  return info;
}

/// Two rows after 20 tokens, both sampled.
SequenceStep step() {
  return {.start = 20, .tokens = {5, 6}, .blocks = {1, 2}, .sample_rows = 2, .sampling = std::make_shared<SamplingParams>()};
}

void check(const SequenceStep& step) {
  check_rows(1, step, info());
  check_contents(1, step, info());
}

}  // namespace

TEST_CASE("order checks: what the contract allows passes, and each thing that it does not ends the process") {
  check(step());
  SequenceStep tree = step();
  tree.parents = {-1, 0};
  check(tree);

  using Change = std::function<void(SequenceStep&)>;
  const std::vector<Change> wrong{
      [](SequenceStep& s) { s.tokens.clear(), s.sample_rows = 0; },
      [](SequenceStep& s) { s.start = -1; },
      [](SequenceStep& s) { s.start = 31; },  // the blocks end before the second row
      [](SequenceStep& s) { s.sample_rows = 3; },
      [](SequenceStep& s) { s.blocks[1] = 8; },
      [](SequenceStep& s) { s.blocks[0] = -1; },
      [](SequenceStep& s) { s.tokens[1] = 100; },
      [](SequenceStep& s) { s.sampling = nullptr; },
      [](SequenceStep& s) { s.targets = {1}; },
      [](SequenceStep& s) { s.targets = {1, -1}; },
      [](SequenceStep& s) {
        auto sampling = std::make_shared<SamplingParams>();
        sampling->repetition_penalty = 1.5f;
        s.sampling = sampling;  // without the tokens before
      },
      [](SequenceStep& s) { s.parents = {-1}; },
      [](SequenceStep& s) { s.parents = {-1, 1}; },
      [](SequenceStep& s) { s.parents = {0, 0}; },
      [](SequenceStep& s) { s.parents = {-1, 0}, s.sample_rows = 1; },
  };
  for (size_t i = 0; i < wrong.size(); ++i) {
    CAPTURE(i);
    SequenceStep changed = step();
    wrong[i](changed);
    CHECK(ends_the_process([&] { check(changed); }));
  }
}

TEST_CASE("order checks: copies name blocks of the device, and memory of their size") {
  std::vector<std::byte> bytes(64);
  const auto copy = [&](DeviceBlockId block, size_t size) { return CopyBatch{.id = 1, .blocks = {{.block = block, .host = std::span(bytes).first(size)}}}; };
  check_copy(copy(7, 64), info());
  CHECK(ends_the_process([&] { check_copy(copy(8, 64), info()); }));
  CHECK(ends_the_process([&] { check_copy(copy(-1, 64), info()); }));
  CHECK(ends_the_process([&] { check_copy(copy(7, 63), info()); }));
}
