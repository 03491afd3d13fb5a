#include "storage/record_bytes.h"

#include <doctest/doctest.h>

#include <random>

#include "protocols/chunk.h"
#include "protocols/rollout.h"

using namespace seer;

namespace {

Response some_response() {
  return {.request = {GroupId{7, RolloutId{3}}, 2},
          .seed = ~uint64_t{0},
          .output = {{1, -1, 1 << 30}, {-0.1f, -1e-30f}},
          .finish = FinishReason::kStop,
          .matched = std::string("a\0b", 3),
          .error = "",
          .version = WeightVersion{9},
          .chunks = 4,
          .run_us = -5};
}

}  // namespace

TEST_CASE("record bytes: a byte that is neither true nor false is no bool") {
  SamplingParams params;
  params.ignore_eos = true;
  std::string bytes = record_bytes(params);
  REQUIRE(read_record<SamplingParams>(bytes)->ignore_eos);
  bytes[bytes.size() - 2] = 2;  // ignore_eos: before logprob_mode
  CHECK_FALSE(read_record<SamplingParams>(bytes).ok());
}

TEST_CASE("record bytes: every written field is read back, bit by bit") {
  const std::string bytes = record_bytes(some_response());
  const Result<Response> back = read_record<Response>(bytes);
  REQUIRE(back.ok());
  CHECK(record_bytes(*back) == bytes);
  CHECK(back->request == some_response().request);
  CHECK(back->output == some_response().output);
  CHECK(back->matched.size() == 3);
  CHECK(back->run_us == -5);
  const RolloutCommits commits{{{{GroupId{1}, 0}, 5, {{6, 7}, {-1, -2}}}, {}}};
  CHECK(record_bytes(*read_record<RolloutCommits>(record_bytes(commits))) == record_bytes(commits));
}

TEST_CASE("record bytes: bytes that are cut, or too many, are refused") {
  const std::string bytes = record_bytes(some_response());
  for (size_t size = 0; size < bytes.size(); ++size) {
    CAPTURE(size);
    const Result<Response> cut = read_record<Response>(bytes.substr(0, size));
    REQUIRE_FALSE(cut.ok());
    CHECK(cut.error().detail == cat("a record of ", size, " bytes is not a Response"));
  }
  CHECK_FALSE(read_record<Response>(bytes + "x").ok());
}

TEST_CASE("record bytes: whatever bytes come, nothing is read beyond them, and no more memory is taken than they have") {
  std::mt19937 random(1);
  const std::string good = record_bytes(some_response());
  int64_t refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good;
    for (int changes = 1 + static_cast<int>(random() % 4); changes > 0; --changes) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 2 == 0) bytes.resize(random() % (bytes.size() + 1));
    refused += !read_record<Response>(bytes).ok();
  }
  CHECK(refused > 10'000);
}
