// StreamLog: the tokens of a group's requests as they become known, by request and position. Pure data. The draft server
// keeps one per group, to gather what instances report and to answer what other instances lack. Every DraftTree keeps one as
// the text that its index refers to. Single owner, not thread-safe.
//
// A stream is the response of one request, or the prompt; a position is the index of a token in its stream. Tokens may be
// appended twice, late, or out of order. The first copy is kept; all copies are equal, because responses are exact. Tokens that
// come too early wait, up to pending_tokens_max per stream; more are dropped, and come again with the next fetch from end().
//
// Tokens are stored in blocks of kBlockTokens, each of one stream. A place is the index of a token in the array of all blocks.
// It names an occurrence, and never changes while the log lives.
//
// Invariant: the tokens of a stream at [begin, end) are known without gaps; waiting tokens come after `end`.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "actors/policy/draft/grow_array.h"

namespace seer {

using TokenPlace = uint32_t;
inline constexpr TokenPlace kNoPlace = 0xffffffffu;

class StreamLog {
 public:
  static constexpr uint32_t kBlockTokens = 256;

  explicit StreamLog(int64_t pending_tokens_max = 65536) : pending_tokens_max_(pending_tokens_max) {}

  /// Adds a stream whose first token will be at `begin`; earlier tokens are ignored. Streams are numbered from 0.
  uint32_t add_stream(int64_t begin = 0);
  uint32_t stream_count() const { return static_cast<uint32_t>(streams_.size()); }

  /// Makes tokens[i] the token at `position` + i. Returns how many tokens became known; end() has grown by that.
  /// REQUIRES: tokens are not negative.
  int64_t append(uint32_t stream, int64_t position, std::span<const int32_t> tokens);

  int64_t begin(uint32_t stream) const { return streams_[stream].begin; }
  int64_t end(uint32_t stream) const { return streams_[stream].end; }
  /// The known tokens at [position, position + count_max): for somebody who has those before `position`.
  /// Empty if `position` is not in [begin, end).
  std::vector<int32_t> tokens(uint32_t stream, int64_t position, int64_t count_max) const;

  /// REQUIRES: begin <= position < end.
  TokenPlace place(uint32_t stream, int64_t position) const;
  int32_t token(TokenPlace place) const { return tokens_[place]; }
  /// The next place, or kNoPlace at the end of the stream's blocks. Its token is -1 while it is not known.
  TokenPlace next(TokenPlace place) const {
    return (place + 1) % kBlockTokens ? place + 1 : blocks_[place / kBlockTokens].next;
  }
  /// The previous place, or kNoPlace at the start of the stream.
  TokenPlace previous(TokenPlace place) const {
    return place % kBlockTokens ? place - 1 : blocks_[place / kBlockTokens].previous;
  }
  uint32_t stream(TokenPlace place) const { return blocks_[place / kBlockTokens].stream; }
  int64_t position(TokenPlace place) const {
    const Block& block = blocks_[place / kBlockTokens];
    return streams_[block.stream].begin + int64_t{block.index} * kBlockTokens + place % kBlockTokens;
  }
  size_t place_count() const { return tokens_.size(); }

  int64_t token_count() const { return token_count_; }          // known tokens of all streams
  int64_t pending_dropped() const { return pending_dropped_; }  // tokens that came too early while too many waited
  /// Gives up the log, which must not be used again. All large memory goes to the bin.
  void give_up(PageBin& bin) {
    tokens_.give_up(bin);
    blocks_.give_up(bin);
  }
  size_t bytes() const {
    return tokens_.bytes() + blocks_.bytes() + streams_.size() * sizeof(Stream) + blocks_.size() * sizeof(uint32_t) +
           static_cast<size_t>(pending_tokens_) * sizeof(int32_t);
  }

 private:
  struct Block {
    TokenPlace previous, next;  // last place of the previous block, first place of the next
    uint32_t stream, index;     // index among the stream's blocks
  };
  struct Stream {
    int64_t begin = 0, end = 0;
    std::vector<uint32_t> blocks;
    std::map<int64_t, std::vector<int32_t>> pending;  // by position of the first token
    int64_t pending_tokens = 0;
  };

  void add_known(uint32_t stream, std::span<const int32_t> tokens);
  void add_pending(uint32_t stream);
  void keep_pending(Stream& stream, int64_t position, std::span<const int32_t> tokens);

  int64_t pending_tokens_max_;
  GrowArray<int32_t> tokens_;  // -1: not known yet
  GrowArray<Block> blocks_;
  std::vector<Stream> streams_;
  int64_t token_count_ = 0;
  int64_t pending_tokens_ = 0;
  int64_t pending_dropped_ = 0;
};

}  // namespace seer
