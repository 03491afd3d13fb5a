#include "gpu/text/token_decoder.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "gpu/text/byte_level.h"
#include "gpu/text/text_normalizer.h"
#include "gpu/text/utf8.h"

namespace seer {
namespace {

/// The byte of `<0xNN>`.
std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  unsigned byte = 0;
  const char* end = token.data() + 5;
  if (std::from_chars(token.data() + 3, end, byte, 16).ptr != end) return std::nullopt;
  return static_cast<char>(byte);
}

std::string replace_text(std::string_view text, std::string_view what, std::string_view content) {
  std::string replaced;
  size_t done = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string_view::npos; done = at += what.size())
    replaced.append(text, done, at - done).append(content);
  return replaced.append(text, done);
}

}  // namespace

Result<TokenDecoder> TokenDecoder::parse(const JsonAt& field) {
  TokenDecoder decoder;
  if (field.is_null()) {
    decoder.joint_.assign(1, ' ');
  } else {
    SEER_RETURN_IF_ERROR(decoder.parse_step(field));
  }
  return decoder;
}

Status TokenDecoder::parse_step(const JsonAt& field) {
  SEER_ASSIGN_OR_RETURN(const std::string type, field.at("type").text());
  if (type == "Sequence") {
    for (const JsonAt& part : field.at("decoders").elements()) SEER_RETURN_IF_ERROR(parse_step(part));
  } else if (type == "ByteLevel") {
    steps_.emplace_back(ByteLevel{});
  } else if (type == "ByteFallback") {
    steps_.emplace_back(ByteFallback{});
  } else if (type == "Fuse") {
    steps_.emplace_back(Fuse{});
    fused_ = true;
  } else if (type == "Replace") {
    SEER_ASSIGN_OR_RETURN(TextPattern pattern, parse_pattern(field.at("pattern")));
    SEER_ASSIGN_OR_RETURN(std::string content, field.at("content").text());
    steps_.emplace_back(Replace{std::move(pattern), std::move(content)});
  } else if (type == "Strip") {
    Strip strip;
    strip.whole_text = fused_;
    SEER_ASSIGN_OR_RETURN(strip.character, field.at("content").text());
    SEER_ASSIGN_OR_RETURN(strip.left, field.at("start").integer());
    SEER_ASSIGN_OR_RETURN(strip.right, field.at("stop").integer());
    if (strip.character.empty()) return field.at("content").wrong("must be one character");
    steps_.emplace_back(std::move(strip));
  } else if (type == "Metaspace") {
    SEER_ASSIGN_OR_RETURN(std::string replacement, field.at("replacement").text_or("▁"));
    SEER_ASSIGN_OR_RETURN(const std::string scheme, field.at("prepend_scheme").text_or("always"));
    SEER_ASSIGN_OR_RETURN(const bool prefix, field.at("add_prefix_space").flag_or(true));
    if (replacement.empty()) return field.at("replacement").wrong("must not be empty");
    steps_.emplace_back(Metaspace{std::move(replacement), scheme != "never" && prefix});
  } else {
    return field.at("type").wrong("is '", type,
                                  "', which is not supported (ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace "
                                  "and Sequence are)");
  }
  return {};
}

bool TokenDecoder::pieces_join() const {
  return joint_.empty() && std::all_of(steps_.begin(), steps_.end(), [](const Step& step) {
           const auto* strip = std::get_if<Strip>(&step);
           const auto* metaspace = std::get_if<Metaspace>(&step);
           return !(strip && strip->whole_text) && !(metaspace && metaspace->drops_first);
         });
}

std::string TokenDecoder::decode(std::vector<TokenText> tokens) const {
  run(tokens, /*whole_text=*/true);
  std::string bytes;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) bytes += joint_;
    bytes += tokens[i].text;
  }
  return bytes;
}

std::string TokenDecoder::piece(TokenText token) const {
  std::vector<TokenText> tokens{std::move(token)};
  run(tokens, /*whole_text=*/false);
  return std::move(tokens[0].text);
}

void TokenDecoder::run(std::vector<TokenText>& tokens, bool whole_text) const {
  size_t bytes = 0;
  for (const TokenText& token : tokens) bytes += token.text.size();
  const size_t bytes_max = replaced_bytes_max(bytes);
  for (const Step& step : steps_) {
    if (std::holds_alternative<Fuse>(step)) {
      TokenText fused;
      for (const TokenText& token : tokens) fused.text += token.text;
      tokens.assign(1, std::move(fused));
      continue;
    }
    const auto* strip = std::get_if<Strip>(&step);
    if (strip && strip->whole_text && !whole_text) continue;
    for (size_t i = 0; i < tokens.size(); ++i) apply(step, whole_text && i == 0, bytes_max, tokens[i]);
  }
}

/// `first`: the token is the first of a whole text.
void TokenDecoder::apply(const Step& step, bool first, size_t bytes_max, TokenText& token) {
  std::string& text = token.text;
  if (std::holds_alternative<ByteLevel>(step)) {
    if (token.added) return;
    if (auto bytes = bytes_of_chars(text)) text = *std::move(bytes);  // else not in the alphabet: keeps its own bytes
  } else if (std::holds_alternative<ByteFallback>(step)) {
    if (const auto byte = fallback_byte(text)) text.assign(1, *byte);
  } else if (const auto* replace = std::get_if<Replace>(&step)) {
    // Fallback bytes are not text to search in. A search that gives up leaves the token as it is, and so does one whose result would
    // be far too long.
    PatternScratch scratch;
    if (utf8_valid_bytes(text) != text.size()) return;
    if (auto replaced = replace_all(text, replace->pattern, replace->content, scratch, bytes_max); replaced.ok())
      text = *std::move(replaced);
  } else if (const auto* strip = std::get_if<Strip>(&step)) {
    for (int64_t i = 0; i < strip->left && text.starts_with(strip->character); ++i)
      text.erase(0, strip->character.size());
    for (int64_t i = 0; i < strip->right && text.ends_with(strip->character); ++i)
      text.erase(text.size() - strip->character.size());
  } else if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
    text = replace_text(text, metaspace->replacement, first && metaspace->drops_first ? "" : " ");
  }
}

}  // namespace seer
