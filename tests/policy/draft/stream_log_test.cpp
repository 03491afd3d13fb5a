#include "actors/policy/draft/stream_log.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

using namespace seer;

TEST_CASE("token log: duplicate, late and out-of-order appends change nothing") {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::vector<std::vector<int32_t>> texts(3);
    struct Piece {
      uint32_t stream;
      int64_t position;
      size_t count;
    };
    std::vector<Piece> pieces;
    for (uint32_t stream = 0; stream < texts.size(); ++stream) {
      for (size_t n = 100 + random() % 1000; texts[stream].size() < n;) texts[stream].push_back(random() % 50);
      for (size_t at = 0; at < texts[stream].size();) {
        const size_t count = std::min<size_t>(1 + random() % 20, texts[stream].size() - at);
        const size_t overlap = std::min<size_t>(random() % 4, at);
        for (uint32_t copies = 1 + random() % 2; copies > 0; --copies)
          pieces.push_back({stream, static_cast<int64_t>(at - overlap), count + overlap});
        at += count;
      }
    }
    std::shuffle(pieces.begin(), pieces.end(), random);
    StreamLog log;
    for (size_t i = 0; i < texts.size(); ++i) log.add_stream();
    int64_t known = 0;
    for (const Piece& p : pieces)
      known += log.append(p.stream, p.position, std::span(texts[p.stream]).subspan(p.position, p.count));
    CHECK(known == log.token_count());
    CHECK(log.pending_dropped() == 0);
    for (uint32_t stream = 0; stream < texts.size(); ++stream) {
      CHECK(log.tokens(stream, 0, 1'000'000) == texts[stream]);
      const int64_t from = static_cast<int64_t>(random() % texts[stream].size());
      CHECK(log.tokens(stream, from, 7) ==
            std::vector<int32_t>(texts[stream].begin() + from,
                                 texts[stream].begin() + std::min<int64_t>(from + 7, log.end(stream))));
    }
  }
}

TEST_CASE("token log: what comes too far ahead is dropped, counted, and may come again") {
  StreamLog log(4);
  log.add_stream();
  CHECK(log.append(0, 10, std::vector<int32_t>{1, 2, 3}) == 0);
  CHECK(log.append(0, 20, std::vector<int32_t>{1, 2, 3}) == 0);
  CHECK(log.pending_dropped() == 3);
  CHECK(log.append(0, 0, std::vector<int32_t>(10, 5)) == 13);
  CHECK(log.append(0, 20, std::vector<int32_t>{1, 2, 3}) == 0);
  CHECK(log.append(0, 13, std::vector<int32_t>(7, 6)) == 10);
  CHECK(log.end(0) == 23);
}

TEST_CASE("token log: a stream that begins late ignores what lies before") {
  StreamLog log;
  log.add_stream(100);
  CHECK(log.append(0, 90, std::vector<int32_t>(9, 5)) == 0);
  CHECK(log.append(0, 90, std::vector<int32_t>(12, 5)) == 2);
  CHECK(log.tokens(0, 99, 5).empty());
  CHECK(log.tokens(0, 102, 5).empty());
  CHECK(log.tokens(0, 100, 5) == std::vector<int32_t>{5, 5});
}
