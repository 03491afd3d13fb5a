// TokenLog: the tokens of a request so far, first its prompt, then its output. Any instance can continue a request from its log
// alone. Plain data; a copy may be used on another thread than the original.
//
// Logs are most of the memory of a rollout, and one travels with each chunk. So copies share full segments, which never
// change. Appending moves nothing, and no log has more than one segment of unused room.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <ranges>
#include <span>
#include <utility>
#include <vector>

namespace seer {

class TokenLog {
 public:
  static constexpr int64_t kSegmentTokens = 1024;

  TokenLog() = default;
  explicit TokenLog(std::span<const int32_t> prompt) : TokenLog(prompt, std::ssize(prompt)) {}
  /// The first `prompt_tokens` of `tokens` are the prompt. REQUIRES: prompt_tokens <= tokens.size().
  TokenLog(std::span<const int32_t> tokens, int64_t prompt_tokens) : prompt_tokens_(prompt_tokens) { append(tokens); }
  TokenLog(const TokenLog& other)
      : segments_(other.segments_), last_(other.last_), size_(other.size_), prompt_tokens_(other.prompt_tokens_) {
    if (const int64_t tail = size_ % kSegmentTokens; tail > 0) {
      segments_.pop_back();
      add_segment();
      std::copy_n(other.last_, tail, last_);
    }
  }
  TokenLog(TokenLog&& other) noexcept { swap(other); }
  TokenLog& operator=(TokenLog other) noexcept {
    swap(other);
    return *this;
  }

  int64_t size() const { return size_; }
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t output_tokens() const { return size_ - prompt_tokens_; }
  bool empty() const { return size_ == 0; }
  /// REQUIRES: 0 <= position < size().
  int32_t operator[](int64_t position) const { return segment_of(position)[position % kSegmentTokens]; }
  int32_t back() const { return (*this)[size_ - 1]; }  // REQUIRES: not empty

  template <std::ranges::sized_range Tokens>
  void append(const Tokens& tokens) {
    auto next = std::ranges::begin(tokens);
    for (auto left = static_cast<int64_t>(std::ranges::size(tokens)); left > 0;) {
      const int64_t at = size_ % kSegmentTokens;
      if (at == 0) add_segment();
      const int64_t count = std::min(left, kSegmentTokens - at);
      next = std::ranges::copy_n(next, count, last_ + at).in;
      size_ += count;
      left -= count;
    }
  }

  /// Calls visit(std::span<const int32_t>) with the tokens [first, end), as many at a time as are contiguous in memory.
  template <class Visit>
  void visit(int64_t first, int64_t end, Visit&& visit) const {
    while (first < end) {
      const int64_t at = first % kSegmentTokens, count = std::min(end - first, kSegmentTokens - at);
      visit(std::span<const int32_t>(segment_of(first) + at, static_cast<size_t>(count)));
      first += count;
    }
  }
  /// Appends the tokens [first, end) to `to`.
  void copy(int64_t first, int64_t end, std::vector<int32_t>& to) const {
    visit(first, end, [&](std::span<const int32_t> part) { to.insert(to.end(), part.begin(), part.end()); });
  }
  std::vector<int32_t> tokens(int64_t first, int64_t end) const {
    std::vector<int32_t> copied;
    copied.reserve(static_cast<size_t>(end - first));
    copy(first, end, copied);
    return copied;
  }
  std::vector<int32_t> tokens() const { return tokens(0, size_); }
  std::vector<int32_t> output() const { return tokens(prompt_tokens_, size_); }

  /// Prefetches the memory that the next token goes to.
  void prefetch_end() const { __builtin_prefetch(last_ + size_ % kSegmentTokens, 1); }

 private:
  const int32_t* segment_of(int64_t position) const {
    const int64_t segment = position / kSegmentTokens;
    return segment + 1 == std::ssize(segments_) ? last_ : segments_[static_cast<size_t>(segment)].get();
  }
  void add_segment() {
    segments_.emplace_back(new int32_t[kSegmentTokens]);
    last_ = segments_.back().get();
  }
  void swap(TokenLog& other) noexcept {
    segments_.swap(other.segments_);
    std::swap(last_, other.last_);
    std::swap(size_, other.size_);
    std::swap(prompt_tokens_, other.prompt_tokens_);
  }

  std::vector<std::shared_ptr<int32_t[]>> segments_;  // the last one is not shared while it is not full
  int32_t* last_ = nullptr;                           // the last segment, to save a look at the list
  int64_t size_ = 0;
  int64_t prompt_tokens_ = 0;
};

}  // namespace seer
