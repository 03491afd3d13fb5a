#include "actors/policy/schedule/serve_order.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using namespace seer;

namespace {

struct Waiting {
  int64_t estimate = 0;
  int64_t generated = 0;
  int64_t waiting_since_us = 0;
  int64_t submitted = 0;
  int64_t known = 0;
  bool probe = false;
};

uint64_t rank(const ServeOrder& order, const Waiting& w) {
  RequestState request;
  request.generated_tokens = w.generated;
  request.waiting_since_us = w.waiting_since_us;
  request.submitted = w.submitted;
  request.known_tokens = w.known;
  request.probe = w.probe;
  return order.rank(request, w.estimate);
}

}  // namespace

TEST_CASE("serve order: the request that was submitted first, waited longest, generated least, or has most left goes first") {
  struct Row {
    const char* name;
    const ServeOrder& order;
    Waiting sooner, later;
  };
  const Row rows[] = {
      {"submitted earlier", kFirstSubmittedFirst, {.generated = 9, .waiting_since_us = 9, .submitted = 3}, {.submitted = 4}},
      {"waited longer", kLongestWaitingFirst, {.waiting_since_us = 5}, {.waiting_since_us = 6}},
      {"generated less", kLeastGeneratedFirst, {.generated = 5, .waiting_since_us = 9}, {.generated = 6}},
      {"a probe before the longest estimate", kLongestGroupFirst, {.generated = 99, .probe = true}, {.estimate = 100'000}},
      {"the probe with less", kLongestGroupFirst, {.generated = 5, .probe = true}, {.generated = 6, .probe = true}},
      {"the longer estimate", kLongestGroupFirst, {.estimate = 200}, {.estimate = 199}},
      {"longer than its estimate", kLongestGroupFirst, {.estimate = 100, .generated = 300}, {.estimate = 299}},
      {"more to come", kMostRemainingFirst, {.generated = 100, .known = 300}, {.generated = 0, .known = 199}},
      {"longer than was known", kMostRemainingFirst, {.generated = 0, .known = 1}, {.generated = 9, .known = 5}},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(row.name));
    CHECK(rank(row.order, row.sooner) < rank(row.order, row.later));
  }
}

TEST_CASE("serve order: whatever their ranks, a lower priority yields before a higher one") {
  const uint64_t most = (uint64_t{1} << 56) - 1;
  CHECK(rank_of_all(7, 0) < rank_of_all(8, 0));
  CHECK(rank_of_all(most, 1) < rank_of_all(0, 0));
  CHECK(rank_of_all(most, 0) < rank_of_all(0, -1));
  CHECK(rank_of_all(most, 127) < rank_of_all(0, 126));
  CHECK(rank_of_all(most, -127) < rank_of_all(0, -128));
  CHECK(rank_of_all(5, INT32_MAX) == rank_of_all(5, 127));
  CHECK(rank_of_all(5, INT32_MIN) == rank_of_all(5, -128));
  for (const int64_t tokens : {int64_t{0}, int64_t{1} << 24}) CHECK(most_first_rank(tokens) <= most);
}

TEST_CASE("serve order: the last in order yields first, or the latest started if the order says so") {
  RequestState request;
  request.generated_tokens = 7;
  CHECK(yield_rank(kLongestWaitingFirst, request, 50, 3) == 3);
  CHECK(yield_rank(kLeastGeneratedFirst, request, 50, 3) == kLeastGeneratedFirst.rank(request, 50));
  CHECK(yield_rank(kLongestGroupFirst, request, 50, 3) == kLongestGroupFirst.rank(request, 50));
  CHECK(yield_rank(kMostRemainingFirst, request, 50, 3) == kMostRemainingFirst.rank(request, 50));
}
