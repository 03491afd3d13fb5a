#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "actors/policy/draft/group_logs.h"

using namespace seer;

namespace {

constexpr int64_t kTtlUs = 1000;

std::vector<int32_t> count_from(int32_t first, int64_t tokens) {
  std::vector<int32_t> t(static_cast<size_t>(tokens));
  std::iota(t.begin(), t.end(), first);
  return t;
}

GroupLogs make_logs(std::vector<GroupId> groups, GroupLogsConfig config = {}) {
  GroupLogs logs(config);
  logs.register_groups(groups, kTtlUs, 0);
  return logs;
}

CstFetched fetch(GroupLogs& logs, const CstCursor& cursor, int64_t tokens_max = 1 << 20, int64_t now_us = 0) {
  CstFetched answer;
  int64_t sum = 0;
  const int64_t count = logs.fetch(cursor, tokens_max, now_us, answer);
  for (const CstTokens& part : answer.parts) sum += std::ssize(part.tokens);
  CHECK(count == sum);
  CHECK(count <= tokens_max);
  return answer;
}

}  // namespace

TEST_CASE("group logs: a fetch gives what its sender lacks, and no more") {
  GroupLogs logs = make_logs({GroupId{7}});
  CHECK(logs.append({GroupId{7}, 0, 0, count_from(100, 10)}, 0) == 10);
  CHECK(logs.append({GroupId{7}, 2, 0, count_from(500, 5)}, 0) == 5);
  const CstFetched all = fetch(logs, {GroupId{7}, {}});
  REQUIRE(all.parts.size() == 2);
  CHECK(all.parts[0].sample == 0);
  CHECK(all.parts[0].tokens == count_from(100, 10));
  CHECK(all.parts[1].sample == 2);
  CHECK(all.wanted.empty());
  const CstFetched rest = fetch(logs, {GroupId{7}, {{0, 6}, {2, 5}}});
  REQUIRE(rest.parts.size() == 1);
  CHECK(rest.parts[0].position == 6);
  CHECK(rest.parts[0].tokens == count_from(106, 4));
  CHECK(fetch(logs, {GroupId{7}, {{0, 10}, {2, 5}}}).parts.empty());
}

TEST_CASE("group logs: tokens that only the sender has are asked for") {
  GroupLogs logs = make_logs({GroupId{7}});
  logs.append({GroupId{7}, 0, 0, count_from(100, 10)}, 0);
  const CstFetched answer = fetch(logs, {GroupId{7}, {{0, 12}, {5, 3}}});
  REQUIRE(answer.wanted.size() == 1);
  REQUIRE(answer.wanted[0].ends.size() == 2);
  CHECK(answer.wanted[0].ends[0].sample == 0);
  CHECK(answer.wanted[0].ends[0].end == 10);
  CHECK(answer.wanted[0].ends[1].sample == 5);
  CHECK(answer.wanted[0].ends[1].end == 0);
  CHECK(answer.parts.empty());
}

TEST_CASE("group logs: an answer has at most tokens_max tokens, and further fetches give the rest") {
  GroupLogs logs = make_logs({GroupId{1}});
  for (uint32_t sample = 0; sample < 3; ++sample) logs.append({GroupId{1}, sample, 0, count_from(0, 100)}, 0);
  std::map<uint32_t, int64_t> known;
  int fetches = 0;
  for (bool more = true; more; ++fetches) {
    REQUIRE(fetches < 20);
    CstCursor cursor{GroupId{1}, {}};
    for (const auto& [sample, end] : known) cursor.ends.push_back({sample, end});
    const CstFetched answer = fetch(logs, cursor, 32);
    for (const CstTokens& part : answer.parts) {
      CHECK(part.position == known[part.sample]);
      known[part.sample] += std::ssize(part.tokens);
    }
    more = answer.has_more;
  }
  CHECK(fetches == 10);
  for (uint32_t sample = 0; sample < 3; ++sample) CHECK(known[sample] == 100);
}

TEST_CASE("group logs: doubled, late and disordered appends end in the same log") {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 rng(seed);
    GroupLogs logs = make_logs({GroupId{1}});
    const std::vector<int32_t> text = count_from(0, 200);
    std::vector<CstTokens> parts;
    for (int64_t at = 0; at < 200; at += 8)
      for (int copies = static_cast<int>(rng() % 3) + 1; copies > 0; --copies)
        parts.push_back({GroupId{1}, 4, at, {text.begin() + at, text.begin() + at + 8}});
    std::shuffle(parts.begin(), parts.end(), rng);
    int64_t appended = 0;
    for (const CstTokens& part : parts) appended += logs.append(part, 0);
    CHECK(appended == 200);
    CHECK(logs.token_count() == 200);
    const CstFetched answer = fetch(logs, {GroupId{1}, {}});
    REQUIRE(answer.parts.size() == 1);
    CHECK(answer.parts[0].tokens == text);
  }
}

TEST_CASE("group logs: only registered groups are kept") {
  GroupLogs logs = make_logs({GroupId{1}, GroupId{2}});
  CHECK(logs.append({GroupId{9}, 0, 0, {5}}, 0) == 0);
  CHECK(logs.append({GroupId{1}, 0, 0, {5}}, 0) == 1);
  CHECK(logs.append({GroupId{2}, 0, 0, {6}}, 600) == 1);
  CHECK(logs.expire(1200) == 1);  // nobody spoke of group 1
  CHECK(logs.group_count() == 1);
  CHECK(logs.append({GroupId{1}, 0, 1, {5}}, 1200) == 0);
  fetch(logs, {GroupId{2}, {}}, 10, 1500);
  CHECK(logs.expire(2000) == 0);
  logs.drop(GroupId{2});
  CHECK(fetch(logs, {GroupId{2}, {{0, 50}}}).wanted.empty());
  CHECK(logs.token_count() == 0);
  CHECK(logs.bytes() == 0);
}

TEST_CASE("group logs: a part without tokens keeps its group, which is dropped for room as if it had not been used") {
  GroupLogs logs({});
  logs.register_groups(std::vector{GroupId{1}, GroupId{2}}, 100, 0);
  CHECK(logs.append({GroupId{1}, 0, 0, {}}, 90) == 0);
  CHECK(logs.append({GroupId{3}, 0, 0, {}}, 90) == 0);  // not registered
  CHECK(logs.expire(150) == 1);
  CHECK(logs.group_count() == 1);
  CHECK(logs.append({GroupId{1}, 0, 0, {7}}, 160) == 1);
}

TEST_CASE("group logs: a group that is registered again starts empty; the same index in another rollout is another group") {
  const GroupId first{1, RolloutId{1}}, second{1, RolloutId{2}};
  GroupLogs logs = make_logs({first, second});
  logs.append({first, 0, 0, {5, 6}}, 0);
  logs.append({second, 0, 0, {7, 8, 9}}, 0);
  logs.register_groups(std::vector{first}, kTtlUs, 0);
  CHECK(logs.group_count() == 2);
  CHECK(fetch(logs, {first, {}}).parts.empty());
  CHECK(fetch(logs, {second, {}}).parts.at(0).tokens == std::vector<int32_t>{7, 8, 9});
  logs.drop(second);
  CHECK(fetch(logs, {second, {}}).parts.empty());
}

TEST_CASE("group logs: memory stays below its bound by dropping whole groups, the one used longest ago first") {
  std::vector<GroupId> groups;
  for (uint32_t g = 0; g < 50; ++g) groups.push_back(GroupId{g});
  GroupLogs logs = make_logs(groups, {.bytes_max = 100'000});
  for (uint32_t g = 0; g < 50; ++g) {
    logs.append({GroupId{g}, 0, 0, count_from(0, 2000)}, 0);
    CHECK(logs.bytes() <= 100'000);
  }
  CHECK(logs.crowded_groups() > 30);
  CHECK(logs.group_count() + static_cast<size_t>(logs.crowded_groups()) == 50);
  CHECK(fetch(logs, {GroupId{49}, {}}).parts.size() == 1);
  CHECK(fetch(logs, {GroupId{0}, {}}).parts.empty());
}

TEST_CASE("group logs: earlier iterations' responses go to those who lack them, within the bound of an answer") {
  GroupLogs logs = make_logs({GroupId{1}, GroupId{2}}, {.past_tokens_max = 100});
  logs.set_past({GroupId{1}, {count_from(0, 60), count_from(100, 40), count_from(200, 1)}});
  logs.set_past({GroupId{9}, {count_from(0, 60)}});  // not registered
  CHECK(logs.bytes() >= 400);
  CHECK(fetch(logs, {GroupId{1}, {}, false}).pasts.empty());
  CHECK(fetch(logs, {GroupId{2}, {}, true}).pasts.empty());
  CstFetched answer;
  CHECK(logs.fetch({GroupId{1}, {}, true}, 100, 0, answer) == 100);
  REQUIRE(answer.pasts.size() == 1);
  REQUIRE(answer.pasts[0].responses.size() == 2);
  CHECK(answer.pasts[0].responses[1] == count_from(100, 40));
  CHECK_FALSE(answer.has_more);
  CstFetched full;
  CHECK(logs.fetch({GroupId{1}, {}, true}, 99, 0, full) == 0);
  CHECK(full.pasts.empty());
  CHECK(full.has_more);
  logs.drop(GroupId{1});
  CHECK(logs.bytes() == 0);
}

TEST_CASE("group logs: invalid tokens and samples are ignored") {
  GroupLogs logs = make_logs({GroupId{1}}, {.samples_max = 8});
  CHECK(logs.append({GroupId{1}, 8, 0, {1, 2}}, 0) == 0);
  CHECK(logs.append({GroupId{1}, 0, -1, {1, 2}}, 0) == 0);
  CHECK(logs.append({GroupId{1}, 0, 0, {1, -2, 3}}, 0) == 1);
  CHECK(fetch(logs, {GroupId{1}, {{800'000'000, 5}, {0, -7}}}).wanted.empty());
}
