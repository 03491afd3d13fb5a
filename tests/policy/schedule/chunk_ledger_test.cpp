#include "actors/policy/schedule/chunk_ledger.h"

#include <doctest/doctest.h>

#include <map>
#include <random>

using namespace seer;

namespace {

GroupSpec group_of(uint32_t id, uint32_t samples, size_t prompt_tokens, int64_t max_tokens) {
  GroupSpec spec;
  spec.id = {id};
  spec.samples = samples;
  spec.prompt_ids.assign(prompt_tokens, 1);
  spec.sampling.max_tokens = max_tokens;
  return spec;
}
InstanceLimits limits_of(uint32_t id, int64_t kv_blocks) {
  return {.id = {id}, .node = {id}, .kv_blocks = kv_blocks, .block_tokens = 16, .rows_max = 8};
}
RequestId request(uint32_t group, uint32_t sample) { return {GroupId{group}, sample}; }

/// Chunks of 32 tokens, all of it promised, and 8 tokens of headroom.
constexpr KvPromise kPromise{.chunk_tokens = 32, .reserve_share = 1.0, .headroom_tokens = 8};

struct Desk {
  explicit Desk(const KvPromise& promise = kPromise, int64_t kv_blocks = 20) : ledger(promise, 32) {
    REQUIRE(ledger.add_instance(limits_of(0, kv_blocks)).ok());
    REQUIRE(ledger.add_group(group_of(0, 4, 40, 200), 0).ok());  // two whole prompt blocks and 8 tokens
  }
  const RequestState& at(uint32_t sample) const { return ledger.buffer().at(request(0, sample)); }
  Placement start(uint32_t sample) { return ledger.start(at(sample), InstanceId{0}, 0); }
  int64_t used() const { return ledger.picker().used_blocks(InstanceId{0}); }
  ChunkLedger ledger;
};

}  // namespace

TEST_CASE("chunk ledger: a chunk is promised its prompt once per instance, the KV it holds, its share of the chunk and a block") {
  Desk d;
  // 40 + 32 tokens are 5 blocks, and one more; two of them are the prompt's.
  const Placement first = d.start(0);
  CHECK(first.credit_blocks == 6);
  CHECK(d.used() == 6);
  d.start(1);
  CHECK(d.used() == 6 + 4);  // the prompt is there
}

TEST_CASE("chunk ledger: a request that outgrows its promise is charged what it holds and the headroom") {
  Desk d;
  d.start(0);
  d.ledger.progressed(request(0, 0), 16);
  CHECK(d.used() == 6);  // 40 + 16 + 8 tokens are 4 blocks: promised already
  d.ledger.progressed(request(0, 0), 60);
  CHECK(d.used() == 7);  // 108 tokens
  d.ledger.ended(request(0, 0), 60, ChunkEnd::kYielded, 5);
  CHECK(d.used() == 0);
}

TEST_CASE("chunk ledger: no headroom is charged beyond max_tokens") {
  Desk d({.chunk_tokens = 0, .reserve_share = 0, .headroom_tokens = 1'000'000});
  d.start(0);
  d.ledger.progressed(request(0, 0), 1);
  CHECK(d.used() == 15);  // 240 tokens
}

TEST_CASE("chunk ledger: max_new_tokens is the chunk, the rest of the response, or what the instance holds alone") {
  Desk d;
  CHECK(d.start(0).max_new_tokens == 32);
  d.ledger.ended(request(0, 0), 190, ChunkEnd::kChunkFull, 1);
  CHECK(d.start(0).max_new_tokens == 10);
  // After the loss of a larger instance: this one holds 4 blocks, 64 tokens.
  ChunkLedger small(kPromise, 32);
  REQUIRE(small.add_group(group_of(0, 1, 40, 200), 0).ok());
  REQUIRE(small.add_instance(limits_of(0, 4)).ok());
  CHECK(small.start(small.buffer().at(request(0, 0)), InstanceId{0}, 0).max_new_tokens == 24);
}

TEST_CASE("chunk ledger: an idle instance takes a request whose next token fits, even if the promise does not") {
  Desk d(kPromise, 20);
  ChunkLedger small(kPromise, 32);
  REQUIRE(small.add_group(group_of(0, 2, 40, 200), 0).ok());
  REQUIRE(small.add_instance(limits_of(0, 4)).ok());
  CHECK(small.pick(small.buffer().at(request(0, 0))) == InstanceId{0});
  small.start(small.buffer().at(request(0, 0)), InstanceId{0}, 0);
  CHECK_FALSE(small.pick(small.buffer().at(request(0, 1))).has_value());
}

TEST_CASE("chunk ledger: fits() leaves a busy instance the spare share") {
  Desk d(kPromise, 20);
  d.start(0);
  CHECK(d.ledger.fits(d.at(1), InstanceId{0}));             // 6 + 4 of 20
  CHECK(d.ledger.fits(d.at(1), InstanceId{0}, 0.5));        // and 10 more
  CHECK_FALSE(d.ledger.fits(d.at(1), InstanceId{0}, 0.55)); // 11 more
}

TEST_CASE("chunk ledger: malformed groups, known groups and groups that fit nowhere are refused") {
  Desk d;
  const auto refusal = [&](const GroupSpec& group) {
    const Status added = d.ledger.add_group(group, 0);
    return added.ok() ? "" : added.error().detail;
  };
  CHECK(refusal(group_of(1, 0, 4, 4)) == "group 1 asks for no samples");
  CHECK(refusal(group_of(1, 1, 0, 4)) == "group 1 has an empty prompt");
  CHECK(refusal(group_of(1, 1, 4, 0)) == "group 1 has max_tokens=0");
  CHECK(refusal(group_of(0, 1, 4, 4)) == "group 0 was added before");
  CHECK(refusal(group_of(1, 1, 40, 281)) ==
        "group 1: a prompt of 40 tokens with max_tokens=281 needs 21 KV blocks; the largest instance holds 20 blocks of 16 tokens");
  CHECK(refusal(group_of(1, 1, 40, 280)) == "");
}

TEST_CASE("chunk ledger: it is stalled when requests wait, nothing runs, and no instance could ever hold them") {
  Desk d;
  CHECK(d.ledger.stalled().ok());
  d.start(0);
  d.ledger.remove_instance(InstanceId{0});
  CHECK(d.ledger.stalled().ok());  // one runs: its end may change that
  d.ledger.ended(request(0, 0), 10, ChunkEnd::kLost, 1);
  CHECK(d.ledger.stalled().error().code == Code::kUnavailable);
  REQUIRE(d.ledger.add_instance(limits_of(1, 14)).ok());
  CHECK(d.ledger.stalled().error().detail ==
        "request 0.0 has 40 prompt and 10 output tokens and may grow to 15 KV blocks; the largest instance left holds 14");
  REQUIRE(d.ledger.add_instance(limits_of(2, 15)).ok());
  CHECK(d.ledger.stalled().ok());
}

TEST_CASE("chunk ledger: known lengths are needed for each sample") {
  GroupSpec group = group_of(3, 2, 4, 4);
  group.known_tokens = {1};
  CHECK(check_known_tokens(group, "oracle").error().detail ==
        "group 3 has 1 known lengths for 2 samples; the oracle policy needs one each");
  group.known_tokens.push_back(2);
  CHECK(check_known_tokens(group, "oracle").ok());
}

TEST_CASE("chunk ledger: as requests start, grow and end, an instance is charged what a plain count gives") {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    ChunkLedger ledger(kPromise, 32);
    for (uint32_t i = 0; i < 3; ++i) REQUIRE(ledger.add_instance(limits_of(i, 40)).ok());
    for (uint32_t g = 0; g < 3; ++g) REQUIRE(ledger.add_group(group_of(g, 4, 10 + g * 20, 150), 0).ok());
    for (int step = 0; step < 150; ++step) {
      const RequestState& r = ledger.buffer().at(request(static_cast<uint32_t>(below(3)), static_cast<uint32_t>(below(4))));
      if (r.phase == RequestPhase::kWaiting) {
        if (const auto instance = ledger.pick(r)) {
          CHECK(ledger.fits(r, *instance));
          ledger.start(r, *instance, 0);
        }
      } else if (r.phase == RequestPhase::kRunning) {
        const int64_t generated = std::min<int64_t>(150, r.generated_tokens + below(20));
        if (below(3) > 0)
          ledger.progressed(r.id, generated);
        else
          ledger.ended(r.id, generated, generated == 150 ? ChunkEnd::kFinished : ChunkEnd::kPreempted, step);
      }
      std::map<InstanceId, int64_t> used;
      for (const GroupState& group : ledger.buffer().groups()) {
        std::map<InstanceId, bool> has_prompt;
        for (const RequestState& one : group.members) {
          if (one.phase != RequestPhase::kRunning) continue;
          const int64_t prompt = group.prompt_tokens / 16;
          const int64_t soon = std::min<int64_t>(one.generated_tokens + kPromise.headroom_tokens, group.max_tokens);
          const int64_t holds = (group.prompt_tokens + soon + 15) / 16 - prompt;
          CHECK(one.charged_blocks >= std::min(holds, one.credit_blocks));
          used[one.instance] += one.charged_blocks + (has_prompt[one.instance] ? 0 : prompt);
          has_prompt[one.instance] = true;
        }
      }
      for (uint32_t i = 0; i < 3; ++i) CHECK(ledger.picker().used_blocks(InstanceId{i}) == used[InstanceId{i}]);
    }
  }
}

TEST_CASE("chunk ledger: chunks on slower instances are shorter in proportion, where speeds are learned") {
  for (const bool learns : {true, false}) {
    ChunkLedger ledger(kPromise, 32, {.learns_speeds = learns});
    for (uint32_t id = 0; id < 4; ++id) REQUIRE(ledger.add_instance(limits_of(id, 20)).ok());
    REQUIRE(ledger.add_group(group_of(0, 4, 40, 200), 0).ok());
    const int64_t token_us[] = {10, 16, 1000};  // the fourth is not known
    for (uint32_t id = 0; id < 3; ++id) ledger.ran(InstanceId{id}, 100, 100 * token_us[id], 0);
    const int64_t tokens[] = {32, 20, kSlowChunkTokensLeast, 32};
    for (uint32_t id = 0; id < 4; ++id) {
      CAPTURE(id);
      CHECK(ledger.start(ledger.buffer().at(request(0, id)), InstanceId{id}, 0).max_new_tokens == (learns ? tokens[id] : 32));
    }
    CHECK(ledger.picker().token_us_least() == (learns ? 10 : 0));
    ledger.remove_instance(InstanceId{0});
    ledger.ran(InstanceId{0}, 100, 5, 0);  // late
    CHECK(ledger.speeds().token_us(InstanceId{0}) == 0);
  }
}

TEST_CASE("chunk ledger: a turn lasts until enough tokens came in full chunks that follow each other") {
  ChunkLedger ledger(kPromise, 32, {.turn_tokens = 64});
  REQUIRE(ledger.add_instance(limits_of(0, 20)).ok());
  REQUIRE(ledger.add_group(group_of(0, 1, 40, 200), 0).ok());
  const RequestState& r = ledger.buffer().at(request(0, 0));
  const auto run = [&](int64_t tokens, ChunkEnd end) {
    ledger.start(r, InstanceId{0}, 0);
    ledger.ended(r.id, r.generated_tokens + tokens, end, 0);
    return r.turn_tokens;
  };
  CHECK(run(32, ChunkEnd::kChunkFull) == 32);
  CHECK(run(31, ChunkEnd::kChunkFull) == 63);
  CHECK(run(1, ChunkEnd::kChunkFull) == 0);
  CHECK(run(32, ChunkEnd::kChunkFull) == 32);
  CHECK(run(5, ChunkEnd::kYielded) == 0);
}
