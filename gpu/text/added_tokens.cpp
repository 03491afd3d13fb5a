#include "gpu/text/added_tokens.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "gpu/text/utf8.h"

namespace seer {
namespace {

size_t leading_space_bytes(std::string_view text) {
  size_t at = 0;
  while (at < text.size() && is_white_space(utf8_at(text, at).value)) at += utf8_at(text, at).bytes;
  return at;
}

size_t trailing_space_bytes(std::string_view text) {
  const size_t all = text.size();
  while (!text.empty() && is_white_space(utf8_last(text).value)) text.remove_suffix(utf8_last(text).bytes);
  return all - text.size();
}

}  // namespace

Status read_tokens_by_id(const JsonAt& field, std::map<int64_t, nlohmann::json>& tokens) {
  if (field.is_null()) return {};
  if (!field.is_object()) return field.wrong("must be an object");
  for (const auto& [key, token] : field.value().items()) {
    int64_t id = 0;
    const auto read = std::from_chars(key.data(), key.data() + key.size(), id);
    if (read.ec != std::errc() || read.ptr != key.data() + key.size()) return field.wrong("has the key '", key, "'; expected a token id");
    if (const auto content = field.at(key).at("content").text(); !content.ok()) return content.error();
    tokens[id] = token;
    tokens[id]["id"] = id;
  }
  return {};
}

Result<AddedTokens> AddedTokens::parse(const JsonAt& field, const TextNormalizer& normalizer) {
  AddedTokens added;
  if (!field.is_null() && !field.is_array()) return field.wrong("must be an array");
  PatternScratch scratch;
  for (const JsonAt& element : field.elements()) {
    SEER_ASSIGN_OR_RETURN(AddedToken token, parse_token(element));
    if (token.content.empty()) continue;  // matches nothing
    if (token.single_word && !added.word_char_) added.word_char_ = TextPattern::known_regex("[\\w\\x{200c}\\x{200d}]");
    const size_t index = added.tokens_.size();
    if (token.normalized) {
      const auto content = normalizer.apply(token.content, scratch);
      if (!content.ok())
        return Error{content.error().code, element.wrong("is not read: ", content.error().detail).detail};
      if (!content->text.empty()) added.normalized_.insert(content->text, index);
    } else {
      added.as_given_.insert(token.content, index);
    }
    added.tokens_.push_back(std::move(token));
  }
  return added;
}

Result<AddedToken> AddedTokens::parse_token(const JsonAt& field) {
  AddedToken token;
  SEER_ASSIGN_OR_RETURN(const int64_t id, field.at("id").integer());
  if (id < 0 || id >= int64_t{1} << 24) return field.at("id").wrong("is ", id, ", out of range");
  token.id = static_cast<int32_t>(id);
  SEER_ASSIGN_OR_RETURN(token.content, field.at("content").text());
  SEER_ASSIGN_OR_RETURN(token.special, field.at("special").flag_or(false));
  SEER_ASSIGN_OR_RETURN(token.normalized, field.at("normalized").flag_or(!token.special));
  SEER_ASSIGN_OR_RETURN(token.left_strip, field.at("lstrip").flag_or(false));
  SEER_ASSIGN_OR_RETURN(token.right_strip, field.at("rstrip").flag_or(false));
  SEER_ASSIGN_OR_RETURN(token.single_word, field.at("single_word").flag_or(false));
  return token;
}

void AddedTokens::Finder::insert(const std::string& text, size_t index) {
  index_of[text] = index;
  auto& sizes = sizes_of[static_cast<unsigned char>(text[0])];
  const auto place = std::lower_bound(sizes.begin(), sizes.end(), text.size(), std::greater<>());
  if (place == sizes.end() || *place != text.size()) sizes.insert(place, text.size());
}

AddedTokens::Finder::Found AddedTokens::Finder::find(std::string_view text, size_t at) const {
  for (const size_t bytes : sizes_of[static_cast<unsigned char>(text[at])]) {
    if (bytes > text.size() - at) continue;
    const auto found = index_of.find(text.substr(at, bytes));
    if (found != index_of.end()) return {found->second, bytes};
  }
  return {};
}

Status AddedTokens::cut(std::string_view text, bool normalized, PatternScratch& scratch,
                        std::vector<TextPart>& parts) const {
  const Finder& finder = normalized ? normalized_ : as_given_;
  parts.clear();
  size_t done = 0;  // bytes that are in `parts`
  for (size_t at = 0; at < text.size();) {
    const auto found = finder.find(text, at);
    if (found.bytes == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[found.index];
    size_t begin = at;
    size_t end = at + found.bytes;
    at = end;  // a match that does not stand alone still hides those that overlap it
    if (token.single_word) {
      SEER_ASSIGN_OR_RETURN(const bool alone, stands_alone(text.substr(0, begin), text.substr(end), scratch));
      if (!alone) continue;
    }
    if (token.left_strip) begin = std::max(done, begin - trailing_space_bytes(text.substr(0, begin)));
    if (token.right_strip) end += leading_space_bytes(text.substr(end));
    if (done < begin) parts.push_back({text.substr(done, begin - done), std::nullopt});
    parts.push_back({text.substr(begin, end - begin), token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({text.substr(done), std::nullopt});
  return {};
}

Result<bool> AddedTokens::stands_alone(std::string_view before, std::string_view behind,
                                       PatternScratch& scratch) const {
  if (!before.empty()) before.remove_prefix(before.size() - utf8_last(before).bytes);
  if (!behind.empty()) behind = behind.substr(0, utf8_at(behind, 0).bytes);
  std::vector<TextRange> matches;
  for (const std::string_view neighbour : {before, behind}) {
    SEER_RETURN_IF_ERROR(word_char_->find_all(neighbour, scratch, matches));
    if (!matches.empty()) return false;
  }
  return true;
}

}  // namespace seer
