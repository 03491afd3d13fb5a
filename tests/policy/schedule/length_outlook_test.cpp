#include "actors/policy/schedule/length_outlook.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

using namespace seer;

namespace {

constexpr int64_t kLimit = 40'000;
constexpr int64_t kChunk = 1000;

/// All requests run at once, chunk by chunk, until they have `tokens` tokens or have finished; then the test asks.
struct Rollout {
  RequestBuffer buffer;
  LengthOutlook outlook;
  std::vector<std::vector<int64_t>> lengths;

  Rollout(std::vector<std::vector<int64_t>> groups, double unexplained_before)
      : outlook(unexplained_before), lengths(std::move(groups)) {
    for (uint32_t id = 0; id < lengths.size(); ++id) {
      GroupSpec spec;
      spec.id = {id};
      spec.prompt_ids = {1};
      spec.samples = static_cast<uint32_t>(lengths[id].size());
      spec.sampling.max_tokens = kLimit;
      buffer.add_group(spec, 0);
      outlook.add_group(buffer.group({id}));
    }
  }
  Rollout& run_to(int64_t tokens) { return run_to(tokens, 0, static_cast<uint32_t>(lengths.size())); }
  Rollout& run_to(int64_t tokens, uint32_t first_group, uint32_t end_group) {
    for (int64_t now = kChunk; now <= tokens; now += kChunk)
      for (uint32_t id = first_group; id < end_group; ++id)
        for (uint32_t sample = 0; sample < lengths[id].size(); ++sample) {
          const RequestId request{{id}, sample};
          if (buffer.at(request).phase != RequestPhase::kFinished) run_chunk(request, now);
        }
    return *this;
  }
  /// Until the model has seen all that was observed.
  Rollout& sweep_all() {
    while (outlook.sweep(buffer)) continue;
    return *this;
  }
  void run_chunk(RequestId request, int64_t to_tokens) {
    const int64_t length = lengths[request.group.index][request.sample];
    buffer.start(request, {0}, {0});
    buffer.end(request, std::min(length, to_tokens), length <= to_tokens ? ChunkEnd::kFinished : ChunkEnd::kChunkFull,
               0);
    outlook.observe(buffer.group(request.group), buffer.at(request));
    outlook.sweep(buffer);
  }
  int64_t could_need(RequestId request) {
    const RequestTotals& totals = buffer.totals();
    return outlook.could_need_tokens(buffer.group(request.group), buffer.at(request), totals.waiting + totals.running);
  }
  std::vector<RequestId> unfinished() const {
    std::vector<RequestId> ids;
    for (const GroupState& group : buffer.groups())
      for (const RequestState& request : group.members)
        if (request.phase != RequestPhase::kFinished) ids.push_back(request.id);
    return ids;
  }
};

struct Law {
  double between = 0, within = 0;
  double runaway_share = 0;
};
std::vector<std::vector<int64_t>> draw(uint32_t groups, const Law& law, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  std::vector<std::vector<int64_t>> lengths(groups);
  for (auto& group : lengths) {
    const double z = normal(rng) * law.between;
    for (int i = 0; i < 8; ++i) {
      const double length = std::exp(std::log(4000.0) + z + normal(rng) * law.within);
      group.push_back(uniform(rng) < law.runaway_share ? kLimit
                                                       : std::clamp<int64_t>(static_cast<int64_t>(length), 1, kLimit));
    }
  }
  return lengths;
}

}  // namespace

TEST_CASE("length outlook: with no iteration before, a request could need all that its limit leaves") {
  Rollout rollout(draw(200, {.between = 0.8, .within = 0.2}, 1), 1);
  rollout.run_to(6000);
  REQUIRE(rollout.unfinished().size() > 100);
  for (RequestId request : rollout.unfinished())
    CHECK(rollout.could_need(request) == kLimit - rollout.buffer.at(request).generated_tokens);
}

TEST_CASE("length outlook: at the start of an iteration nothing is predicted, whatever earlier iterations showed") {
  Rollout rollout(draw(20, {.between = 0.8, .within = 0.2}, 1), 0);
  for (RequestId request : rollout.unfinished()) CHECK(rollout.could_need(request) == kLimit);
}

TEST_CASE("length outlook: if lengths were explained, members of a group that finished early could need little") {
  Rollout rollout(draw(400, {.between = 0.9, .within = 0.15}, 2), 0);
  rollout.run_to(3000);
  CHECK(rollout.outlook.model().within < 0.3);
  int64_t short_ones = 0, wrong = 0;
  for (RequestId request : rollout.unfinished()) {
    const int64_t could_need = rollout.could_need(request);
    const int64_t generated = rollout.buffer.at(request).generated_tokens;
    short_ones += could_need < (kLimit - generated) / 2;
    wrong += generated + could_need < rollout.lengths[request.group.index][request.sample];
  }
  CHECK(short_ones > 100);
  CHECK_MESSAGE(wrong <= 1, "a level of 1 - 0.1 / unfinished lets one in ten such iterations be wrong once");
}

TEST_CASE("length outlook: responses that run away to the limit close the gate") {
  const Law law{.between = 0.9, .within = 0.15, .runaway_share = 0.02};
  Rollout rollout(draw(400, law, 2), 0);
  rollout.run_to(kLimit - kChunk);
  CHECK(rollout.outlook.unexplained_share() > 0.005);
  REQUIRE(rollout.unfinished().size() > 20);
  for (RequestId request : rollout.unfinished()) CHECK(rollout.could_need(request) == kChunk);
  Rollout clean(draw(400, {.between = 0.9, .within = 0.15}, 2), 0);
  clean.run_to(kLimit - kChunk);
  CHECK(clean.outlook.unexplained_share() < 1e-4);
}

TEST_CASE("length outlook: once groups had short and long responses, no request of another group counts as short") {
  std::mt19937_64 rng(3);
  std::vector<std::vector<int64_t>> lengths(300);
  for (auto& group : lengths)
    for (int i = 0; i < 8; ++i) group.push_back(static_cast<int64_t>((rng() % 2 ? 600 : 20'000) + rng() % 200));
  Rollout rollout(lengths, 0);
  rollout.run_to(21'000, 0, 150).run_to(1000, 150, 300).sweep_all();
  REQUIRE(rollout.unfinished().size() > 500);
  for (RequestId request : rollout.unfinished())
    CHECK(rollout.could_need(request) + rollout.buffer.at(request).generated_tokens >= 20'000);
}

TEST_CASE("length outlook: if groups tell nothing, the order is least generated first") {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    Rollout rollout(draw(400, {.between = 0, .within = 1}, seed), 0);
    std::mt19937_64 rng(seed);
    rollout.run_to(2000);
    for (RequestId request : rollout.unfinished())
      if (rng() % 2) rollout.run_chunk(request, 3000 + static_cast<int64_t>(rng() % 5000));
    std::vector<RequestId> order = rollout.unfinished();
    REQUIRE(order.size() > 500);
    std::stable_sort(order.begin(), order.end(),
                     [&](RequestId a, RequestId b) { return rollout.could_need(a) > rollout.could_need(b); });
    for (size_t i = 1; i < order.size(); ++i)
      CHECK(rollout.buffer.at(order[i - 1]).generated_tokens <= rollout.buffer.at(order[i]).generated_tokens);
  }
}

TEST_CASE("length outlook: a failed request counts as running, with the tokens that it had") {
  const auto could_need = [](ChunkEnd end) {
    Rollout r({{kLimit, kLimit, kLimit}}, 0);
    for (const uint32_t sample : {0, 1}) {
      r.buffer.start({{0}, sample}, InstanceId{0}, NodeId{0});
      r.buffer.end({{0}, sample}, 2 * kChunk, end, 1);
      CHECK(r.outlook.observe(r.buffer.group({0}), r.buffer.at({{0}, sample})));
    }
    // A finished sibling shows that the group is short; one that could not go on shows nothing but its age.
    CHECK(r.outlook.any_finished({0}) == (end == ChunkEnd::kFinished));
    return r.outlook.could_need_tokens(r.buffer.group({0}), r.buffer.at({{0}, 2}), 3);
  };
  CHECK(could_need(ChunkEnd::kFailed) == could_need(ChunkEnd::kChunkFull));
  CHECK(could_need(ChunkEnd::kFailed) > could_need(ChunkEnd::kFinished));
}
