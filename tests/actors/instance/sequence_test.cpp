#include "actors/instance/sequence.h"

#include <doctest/doctest.h>

using namespace seer;

namespace {

constexpr int32_t kEos = 9;

std::unique_ptr<Sequence> make_sequence(uint64_t chunk, int64_t max_tokens = 10) {
  auto sampling = std::make_shared<SamplingParams>();
  sampling->max_tokens = max_tokens;
  const std::vector<int32_t> prompt{1, 2, 3};
  const TokenLog log{std::span<const int32_t>(prompt)};
  auto s = std::make_unique<Sequence>(StopRule(*sampling, {{kEos}, 1000}, log, {}));
  s->chunk = ChunkId{chunk};
  s->sampling = sampling;
  s->log = log;
  s->reported_tokens = log.size();
  s->end_tokens = 100;
  return s;
}

std::vector<SampledToken> sampled(const std::vector<int32_t>& tokens) {
  std::vector<SampledToken> all;
  for (const int32_t token : tokens) all.push_back({token, -0.5f});
  return all;
}

}  // namespace

TEST_CASE("sequence: tokens after the one that ends the response are dropped") {
  const auto s = make_sequence(1);
  const Sequence::Appended appended = s->append(sampled({5, kEos, 6}), 0);
  CHECK(appended.tokens == 2);
  CHECK(appended.end.reason != FinishReason::kNone);
  CHECK(appended.error.empty());
  CHECK(s->log.output() == std::vector<int32_t>{5, kEos});
  CHECK(s->take_unreported().output.logprobs.size() == 2);
  CHECK(s->take_unreported().output.empty());
}

TEST_CASE("sequence: a token that could not be sampled ends the response before it") {
  const auto s = make_sequence(1);
  const Sequence::Appended appended = s->append(sampled({5, kNotFinite, 6}), 0);
  CHECK(appended.error == not_finite_text(1));
  CHECK(appended.tokens == 1);
  CHECK(s->log.output() == std::vector<int32_t>{5});
}

TEST_CASE("sequence: kept ids come with their tokens; a token without them, or with too many, ends the response before it") {
  const auto list = [](size_t count) { return std::make_shared<const std::vector<int32_t>>(count, 5); };
  const auto asking = [] {
    auto s = make_sequence(1);
    SamplingParams params = *s->sampling;
    params.logprob_mode = LogprobMode::kKept;
    s->sampling = std::make_shared<const SamplingParams>(params);
    return s;
  };
  const auto s = asking();
  CHECK(s->append(sampled({5, 5}), 1, std::vector{list(1), list(kKeptIdsMax)}).error.empty());
  const ChunkTokens reported = s->take_unreported();
  REQUIRE(reported.output.kept_ids.tokens() == 2);
  CHECK(reported.output.kept_ids.of(0).size() == 1);
  CHECK(reported.output.kept_ids.of(1).size() == kKeptIdsMax);
  CHECK(s->append(sampled({5, 5}), 0, std::vector{list(2), list(kKeptIdsMax + 1)}).error ==
        "at output token 3 4097 ids are left by top_p, top_k and min_p; at most 4096 can be given back");
  CHECK(s->take_unreported().output.kept_ids.tokens() == 1);
  CHECK(asking()->append(sampled({5}), 0).error == "this engine does not give the ids that top_p kept");
}

TEST_CASE("sequence: tokens known not to end the response count towards its limit") {
  const auto s = make_sequence(1, 4);
  CHECK(s->append(sampled({5, 6, 7}), 2).end.reason == FinishReason::kNone);
  CHECK(s->tokens_left() == 1);
  CHECK(s->append(sampled({8, 8}), 0).tokens == 1);
  CHECK(s->log.output_tokens() == 4);
}

TEST_CASE("sequence table: finds sequences by chunk, in the order of ids, at addresses that stay") {
  SequenceTable table;
  Sequence& five = table.add(make_sequence(5));
  for (const uint64_t id : {9, 1, 7}) table.add(make_sequence(id));
  CHECK(table.find(ChunkId{5}) == &five);
  CHECK(table.find(ChunkId{2}) == nullptr);
  CHECK(table.remove(ChunkId{7})->chunk == ChunkId{7});
  std::vector<uint64_t> ids;
  for (const auto& [id, s] : table) ids.push_back(id.number);
  CHECK(ids == std::vector<uint64_t>{1, 5, 9});
  CHECK(&table.at(ChunkId{5}) == &five);
}
