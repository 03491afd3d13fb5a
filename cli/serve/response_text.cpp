#include "cli/serve/response_text.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "gpu/text/utf8.h"

namespace seer {
namespace {

constexpr std::ptrdiff_t kContextTokens = 8;
constexpr size_t kCharacterBytesMax = 4;

/// Bytes at the end of a text that may be the start of a character.
size_t open_bytes(std::string_view text) {
  for (size_t bytes = 1; bytes < std::min(kCharacterBytesMax, text.size() + 1); ++bytes) {
    const auto first = static_cast<unsigned char>(text[text.size() - bytes]);
    if ((first & 0xC0) == 0x80) continue;  // inside a character
    const size_t whole = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
    return bytes < whole ? bytes : 0;
  }
  return 0;
}

}  // namespace

StopCause stop_cause(const Response& response, const std::vector<std::string>& stop) {
  if (std::ranges::find(stop, response.matched) != stop.end()) return {.text = response.matched};
  StopCause cause;
  const char* const end = response.matched.data() + response.matched.size();
  const auto parsed = std::from_chars(response.matched.data(), end, cause.token);
  if (parsed.ec == std::errc() && parsed.ptr == end) return cause;
  return {.text = "", .token = response.output.ids.empty() ? -1 : response.output.ids.back()};
}

std::vector<int32_t> end_of_prompt(const std::vector<int32_t>& ids) { return {ids.end() - std::min(kContextTokens, std::ssize(ids)), ids.end()}; }

ResponseText::ResponseText(const Tokenizer* tokenizer, TextRules rules) : tokenizer_(tokenizer), rules_(std::move(rules)) {
  if (tokenizer_ != nullptr) use_context(rules_.before);
}

/// The context must have text, so that a space that the tokenizer drops is not one of the next tokens.
void ResponseText::use_context(std::span<const int32_t> last) {
  const size_t bytes = tokenizer_->decode(last, {.skip_special = rules_.skip_special}).size();
  if (bytes == 0) return;
  context_.assign(last.begin(), last.end());
  context_bytes_ = bytes;
}

std::string ResponseText::append(std::span<const int32_t> ids) {
  if (tokenizer_ == nullptr) return "";
  if (rules_.leave_out_stop) ids = ids.first(static_cast<size_t>(std::ranges::find_first_of(ids, rules_.stop_ids) - ids.begin()));
  context_.insert(context_.end(), ids.begin(), ids.end());
  const std::string text = tokenizer_->decode(context_, {.skip_special = rules_.skip_special});
  pending_ += text.substr(std::min(context_bytes_, text.size()));
  context_bytes_ = text.size();
  if (std::ssize(context_) > 2 * kContextTokens) {
    const std::vector<int32_t> last(context_.end() - kContextTokens, context_.end());
    use_context(last);
  }
  const size_t bytes = final_bytes();
  std::string out = pending_.substr(0, bytes);
  pending_.erase(0, bytes);
  return out;
}

/// Bytes of pending_ that no later token can change.
size_t ResponseText::final_bytes() const {
  size_t bytes = pending_.size() - open_bytes(pending_);
  if (!rules_.leave_out_stop) return bytes;
  for (const std::string& stop : rules_.stop) {
    if (const size_t at = pending_.find(stop); at != std::string::npos) bytes = std::min(bytes, at);
    // The text may end in the start of a stop string.
    for (size_t part = std::min(stop.size() - 1, pending_.size()); part > 0; --part)
      if (pending_.ends_with(std::string_view(stop).substr(0, part))) bytes = std::min(bytes, pending_.size() - part);
  }
  return bytes;
}

std::string ResponseText::finish(const Response& response) {
  if (response.finish == FinishReason::kStop && rules_.leave_out_stop) {
    if (const StopCause cause = stop_cause(response, rules_.stop); !cause.text.empty())
      pending_.erase(std::min(pending_.find(cause.text), pending_.size()));
  }
  return std::exchange(pending_, {});
}

std::string response_text(const Tokenizer* tokenizer, const TextRules& rules, const Response& response) {
  ResponseText parts(tokenizer, rules);
  std::string text = parts.append(response.output.ids);
  if (response.finish != FinishReason::kNone) text += parts.finish(response);
  return text;
}

}  // namespace seer
