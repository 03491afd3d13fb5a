#include "cli/run_journal.h"

#include <doctest/doctest.h>

#include "cli/scratch.h"
#include "integration/optional_parts.h"

using namespace seer;

namespace {

const std::vector<GroupSpec> kGroups{{.id = GroupId{0}, .prompt_ids = {1}, .samples = 4, .sampling = {}, .seeds = {1, 2, 3, 4}, .known_tokens = {}}};

RunJournal opened(const RolloutOptions& options) {
  auto journal = RunJournal::open(options, kGroups, {.model = "m", .weights = 5, .version = WeightVersion{1}});
  REQUIRE_MESSAGE(journal.ok(), journal.error().detail);
  return *std::move(journal);
}

}  // namespace

TEST_CASE("run journal: without --journal nothing is kept, and every call is right") {
  RunJournal none = opened({});
  CHECK_FALSE(none.is_on());
  CHECK(none.commit({}).ok());
  CHECK(none.finish({}).ok());
  CHECK(none.sync_when_due(5'000'000).ok());
  CHECK(none.clear().ok());
  CHECK(none.take_resumed(RolloutId{1}).empty());
}

TEST_CASE("run journal: a rollout continues begun requests from their tokens, without those that were answered") {
  if (!has_rocksdb()) return;
  const ScratchFolder folder;
  RolloutOptions options;
  options.model = "/models/qwen";
  options.journal = folder.path("journal");
  options.resume = true;
  const auto id = [](uint32_t sample, uint32_t rollout) { return RequestId{GroupId{0, RolloutId{rollout}}, sample}; };
  {
    RunJournal journal = opened(options);
    CHECK(journal.is_on());
    CHECK(journal.commit({{{id(0, 4), 0, {{1, 2}, {-1, -2}}}, {id(1, 4), 0, {{9}, {-9}}}}}).ok());
    CHECK(journal.finish({.request = id(1, 4), .output = {{9, 8}}, .finish = FinishReason::kStop}).ok());
    CHECK(journal.finish({.request = id(2, 4), .output = {{7}}, .finish = FinishReason::kAborted}).ok());
    CHECK(journal.finish({.request = id(3, 4), .output = {{7}}, .finish = FinishReason::kError}).ok());  // it is tried again
    CHECK(journal.sync_when_due(5'000'000).ok());
  }
  RunJournal journal = opened(options);
  REQUIRE(journal.answered().size() == 2);
  CHECK(journal.answered()[0].request.sample == 1);
  CHECK(journal.begun() == 1);
  const std::vector<ResumedRequest> resumed = journal.take_resumed(RolloutId{6});
  REQUIRE(resumed.size() == 3);
  CHECK(resumed[0].request == id(1, 6));
  CHECK(resumed[0].is_over);
  CHECK(resumed[0].output.ids == std::vector{9, 8});
  CHECK(resumed[1].request == id(2, 6));
  CHECK(resumed[1].is_over);
  CHECK(resumed[1].output.ids.empty());  // how long it would have become is not known
  CHECK(resumed[2].request == id(0, 6));
  CHECK_FALSE(resumed[2].is_over);
  CHECK(resumed[2].output.ids == std::vector{1, 2});
  CHECK(resumed[2].output.logprobs == std::vector{-1.f, -2.f});
  CHECK(journal.clear().ok());
}
