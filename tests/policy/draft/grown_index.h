// GrownIndex: random texts, the index built from them, and counts by brute force. For tests of classes that read the index.
#pragma once
#include <algorithm>
#include <map>
#include <random>
#include <span>
#include <vector>

#include "actors/policy/draft/suffix_index.h"

namespace seer {

using Text = std::vector<int32_t>;

/// A log and its index, grown together as DraftTree does it.
struct GrownIndex {
  StreamLog log;
  SuffixIndex index;
  SuffixState start = SuffixIndex::kRoot;  // where streams begin

  void append(uint32_t stream, std::span<const int32_t> tokens) {
    int64_t position = log.end(stream);
    log.append(stream, position, tokens);
    for (; position < log.end(stream); ++position) {
      const bool first = position == 0;
      const SuffixState last = first ? start : index.state(log.place(stream, position - 1));
      index.append(log, log.place(stream, position), last, first);
    }
  }
  SuffixState find(const Text& words) const {
    SuffixState s = SuffixIndex::kRoot;
    for (int32_t token : words) {
      s = index.following(log, s, token);
      if (s == SuffixState::none()) break;
    }
    return s;
  }
};

/// Streams that copy from each other with edits, over a small or a large alphabet; some repeat one token many times.
inline std::vector<Text> random_streams(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Text> streams(1 + seed % 6);
  const uint32_t alphabet = 2 + seed % 5 + (seed % 4 == 0 ? 30 : 0);
  for (size_t i = 0; i < streams.size(); ++i) {
    const size_t length = 40 + random() % 400;
    while (streams[i].size() < length) {
      if (seed % 7 == 3 && random() % 50 == 0) streams[i].insert(streams[i].end(), random() % 80, 1);
      const bool copies = i > 0 && random() % 16 != 0 && streams[i].size() < streams[i - 1].size();
      streams[i].push_back(copies ? streams[i - 1][streams[i].size()] : static_cast<int32_t>(random() % alphabet));
    }
  }
  return streams;
}

/// Grows the streams interleaved, in pieces of 1 to 9 tokens.
inline void grow(GrownIndex& grown, const std::vector<Text>& streams, uint32_t seed) {
  std::mt19937 random(seed);
  const uint32_t base = grown.log.stream_count();
  for (size_t i = 0; i < streams.size(); ++i) grown.log.add_stream();
  for (size_t open = streams.size(); open > 0;) {
    const uint32_t i = random() % streams.size();
    const auto at = static_cast<size_t>(grown.log.end(base + i));
    const size_t count = std::min<size_t>(1 + random() % 9, streams[i].size() - at);
    if (count == 0) continue;
    grown.append(base + i, std::span(streams[i]).subspan(at, count));
    if (at + count == streams[i].size()) --open;
  }
}

/// How often each string of up to kDepth tokens occurs. Strings that end within the first `skip` tokens are left out.
inline std::map<Text, uint32_t> count_strings(const std::vector<Text>& streams, size_t skip = 0) {
  std::map<Text, uint32_t> counts;
  for (const Text& text : streams)
    for (size_t end = skip + 1; end <= text.size(); ++end)
      for (size_t length = 1; length <= std::min<size_t>(end, SuffixIndex::kDepth); ++length)
        ++counts[Text(text.begin() + end - length, text.begin() + end)];
  return counts;
}

}  // namespace seer
