// The tokens of a response while it is written. There are thousands of them, so they are most of a process's memory: they
// grow by an eighth or by so many tokens at a time, and not to twice their size.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace seer {

inline constexpr int64_t kTokenLogGrowth = 2048;

/// Room for the tokens of a chunk that begins, as far as it is taken beforehand.
inline int64_t tokens_beforehand(int64_t max_new_tokens) { return std::min(max_new_tokens, kTokenLogGrowth); }

template <class Tokens>
void append_tokens(std::vector<int32_t>& log, const Tokens& tokens) {
  const size_t size = log.size() + std::size(tokens);
  if (size > log.capacity()) log.reserve(std::max(size, log.size() + std::max<size_t>(kTokenLogGrowth, log.size() / 8)));
  log.insert(log.end(), std::begin(tokens), std::end(tokens));
}

}  // namespace seer
