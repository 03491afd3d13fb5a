// The line of a response, as `seer rollout` writes it and `seer serve` sends it.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "cli/jsonl.h"
#include "gpu/text/tokenizer.h"
#include "protocols/chunk.h"

namespace seer {

/// What a response takes from its prompt line.
struct LineOfPrompt {
  std::string_view id;  // PromptLine::id
  std::span<const int32_t> prompt_ids;
  std::string_view carried;  // PromptLine::carried
};
/// `tokenizer`: null: the line has no text. `version_name`: that a trainer gave the response's weights; empty: none.
std::string response_line_of(const Response& response, const LineOfPrompt& prompt, const Tokenizer* tokenizer, std::string_view version_name = {});

}  // namespace seer
