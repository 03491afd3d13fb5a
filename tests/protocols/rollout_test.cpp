#include "protocols/rollout.h"

#include <doctest/doctest.h>

#include <string>

using namespace seer;

TEST_CASE("chunk end: only a finished, failed or aborted request is over; all others wait for another chunk") {
  for (const ChunkEnd end : {ChunkEnd::kFinished, ChunkEnd::kFailed, ChunkEnd::kAborted}) CHECK(is_over(end));
  for (const ChunkEnd end : {ChunkEnd::kChunkFull, ChunkEnd::kYielded, ChunkEnd::kPreempted, ChunkEnd::kNotBegun, ChunkEnd::kServerFailed, ChunkEnd::kLost})
    CHECK_FALSE(is_over(end));
}

TEST_CASE("chunk end: how a request ended says how its last chunk did") {
  CHECK(end_of(FinishReason::kStop) == ChunkEnd::kFinished);
  CHECK(end_of(FinishReason::kLength) == ChunkEnd::kFinished);
  CHECK(end_of(Ending::failed("why").reason) == ChunkEnd::kFailed);
  CHECK(end_of(Ending::aborted().reason) == ChunkEnd::kAborted);
}

TEST_CASE("finish reason: each has the name that responses show") {
  CHECK(std::string(to_string(FinishReason::kStop)) == "stop");
  CHECK(std::string(to_string(FinishReason::kLength)) == "length");
  CHECK(std::string(to_string(FinishReason::kAborted)) == "abort");
  CHECK(std::string(to_string(FinishReason::kError)) == "error");
  CHECK(std::string(to_string(FinishReason::kNone)) == "none");
  CHECK(std::string(to_string(static_cast<FinishReason>(99))) == "unknown");
}
