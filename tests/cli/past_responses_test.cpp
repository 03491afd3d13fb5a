#include "cli/past_responses.h"

#include <doctest/doctest.h>

#include "cli/scratch.h"

using namespace seer;

#ifdef SEER_HAVE_ROCKSDB

namespace {

using Responses = std::vector<std::vector<int32_t>>;

/// Groups of two samples of these prompts.
std::vector<GroupSpec> groups_of(const std::vector<std::vector<int32_t>>& prompts) {
  std::vector<GroupSpec> groups;
  for (const std::vector<int32_t>& prompt : prompts) {
    groups.emplace_back().prompt_ids = prompt;
    groups.back().samples = 2;
  }
  return groups;
}

std::unique_ptr<PastResponses> open(const std::string& dir, const std::vector<GroupSpec>& groups) {
  auto history = PastResponses::open(dir, 100, groups);
  REQUIRE_MESSAGE(history.ok(), history.error().detail);
  return *std::move(history);
}

void keep(PastResponses& history, uint32_t group, std::vector<int32_t> tokens, FinishReason finish = FinishReason::kStop) {
  Response response;
  response.request = {GroupId{group}, 0};
  response.output.ids = std::move(tokens);
  response.finish = finish;
  history.keep(response);
}

}  // namespace

TEST_CASE("past responses: a later rollout recalls them by prompt, whatever the order of its groups") {
  const ScratchFolder folder;
  const std::string dir = folder.path("history");
  {
    const auto history = open(dir, groups_of({{1, 2}, {3}}));
    CHECK(history->recall(1000).empty());
    keep(*history, 0, {10, 11});
    keep(*history, 1, {20});
    keep(*history, 1, {21, 22});
    keep(*history, 0, {12});
    CHECK(history->failed_groups() == 0);
  }
  const auto history = open(dir, groups_of({{4}, {3}, {1, 2}}));
  const std::vector<CstPast> pasts = history->recall(1000);
  REQUIRE(pasts.size() == 2);  // there is none of the first
  CHECK(pasts[0].group == GroupId{1});
  CHECK(pasts[0].responses == Responses{{20}, {21, 22}});
  CHECK(pasts[1].group == GroupId{2});
  CHECK(pasts[1].responses == Responses{{10, 11}, {12}});
}

TEST_CASE("past responses: of each group about as many tokens come back as were asked for") {
  const ScratchFolder folder;
  const auto history = open(folder.path("history"), groups_of({{1}, {2}}));
  for (const uint32_t group : {0, 1}) {
    keep(*history, group, {10, 11, 12});
    keep(*history, group, {13, 14, 15});
  }
  const std::vector<CstPast> pasts = history->recall(4);
  REQUIRE(pasts.size() == 2);
  for (const CstPast& past : pasts) CHECK(past.responses == Responses{{10, 11, 12}, {13}});
}

TEST_CASE("past responses: a group is stored with its last response, without those that failed") {
  const ScratchFolder folder;
  const auto history = open(folder.path("history"), groups_of({{1}, {2}, {3}}));
  keep(*history, 0, {10});  // its other response is missing
  keep(*history, 1, {20}, FinishReason::kError);
  keep(*history, 1, {21}, FinishReason::kLength);
  keep(*history, 2, {30}, FinishReason::kError);
  keep(*history, 2, {}, FinishReason::kError);
  const std::vector<CstPast> pasts = history->recall(1000);
  REQUIRE(pasts.size() == 1);
  CHECK(pasts[0].group == GroupId{1});
  CHECK(pasts[0].responses == Responses{{21}});
  CHECK(history->failed_groups() == 0);
}

TEST_CASE("past responses: groups with the same prompt are stored together, and each recalls them all") {
  const ScratchFolder folder;
  const auto history = open(folder.path("history"), groups_of({{1}, {2}, {1}}));
  keep(*history, 0, {10});
  keep(*history, 2, {30});
  keep(*history, 0, {11});
  CHECK(history->recall(1000).empty());  // one is missing
  keep(*history, 2, {31});
  const std::vector<CstPast> pasts = history->recall(1000);
  REQUIRE(pasts.size() == 2);
  CHECK(pasts[0].group == GroupId{0});
  CHECK(pasts[1].group == GroupId{2});
  for (const CstPast& past : pasts) CHECK(past.responses == Responses{{10}, {30}, {11}, {31}});
}

TEST_CASE("past responses: of two rollouts, one right after the other, the newer's come first") {
  const ScratchFolder folder;
  for (const int32_t rollout : {1, 2}) {
    const auto history = open(folder.path("history"), groups_of({{1}}));
    keep(*history, 0, {10 * rollout});
    keep(*history, 0, {10 * rollout + 1});
  }
  const std::vector<CstPast> pasts = open(folder.path("history"), groups_of({{1}}))->recall(1000);
  REQUIRE(pasts.size() == 1);
  CHECK(pasts[0].responses == Responses{{20}, {21}, {10}, {11}});
}

TEST_CASE("past responses: a folder in use is refused") {
  const ScratchFolder folder;
  const std::vector<GroupSpec> groups = groups_of({{1}});
  const auto first = open(folder.path("history"), groups);
  const auto second = PastResponses::open(folder.path("history"), 100, groups);
  REQUIRE(!second.ok());
  CHECK(second.error().detail.find(folder.path("history")) != std::string::npos);
}

#else

TEST_CASE("past responses: a build without RocksDB says what is missing") {
  const auto history = PastResponses::open("h", 100, {});
  REQUIRE(!history.ok());
  CHECK(history.error().code == Code::kUnavailable);
  CHECK(history.error().detail.find("--draft-history h needs RocksDB") == 0);
}

#endif
