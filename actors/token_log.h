// A request's log on the instance that goes on with it. There are thousands of tokens in thousands of them: they grow by an
// eighth or by so many tokens at a time, and not to twice their size.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "protocols/rollout.h"

namespace seer {

inline constexpr int64_t kTokenLogGrowth = 2048;

/// Makes room for the tokens of a chunk that begins behind `tokens` others, as far as it is taken beforehand.
inline void reserve_chunk(std::vector<int32_t>& log, size_t tokens, int64_t max_new_tokens) {
  log.reserve(tokens + static_cast<size_t>(std::min(max_new_tokens, kTokenLogGrowth)));
}

/// With room for what the chunk will add.
template <class Tokens>
TokenLog token_log(std::span<const int32_t> prompt, const Tokens& output, int64_t max_new_tokens) {
  TokenLog log{.tokens = {}, .prompt_tokens = std::ssize(prompt)};
  reserve_chunk(log.tokens, prompt.size() + output.size(), max_new_tokens);
  log.tokens.insert(log.tokens.end(), prompt.begin(), prompt.end());
  log.tokens.insert(log.tokens.end(), output.begin(), output.end());
  return log;
}

template <class Tokens>
void append_tokens(std::vector<int32_t>& log, const Tokens& tokens) {
  const size_t size = log.size() + std::size(tokens);
  if (size > log.capacity()) log.reserve(std::max(size, log.size() + std::max<size_t>(kTokenLogGrowth, log.size() / 8)));
  log.insert(log.end(), std::begin(tokens), std::end(tokens));
}

}  // namespace seer
