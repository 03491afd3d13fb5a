#include "gpu/text/pretokenizer.h"

#include <algorithm>

#include "gpu/text/byte_level.h"
#include "gpu/text/text_normalizer.h"

namespace seer {
namespace {

constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kWordPattern = R"([\w\x{200c}\x{200d}]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}\s]+)";
constexpr const char* kPunctuationPattern = R"([\p{P}$+<=>^`|~])";  // category P, and the rest of ASCII punctuation

/// Gives each word a new text, made by `rewrite(word, begin)`.
template <class Rewrite>
void rewrite_words(Words& words, Rewrite rewrite) {
  std::string text;
  for (TextRange& range : words.ranges) {
    const std::string word =
        rewrite(std::string_view(words.text).substr(range.begin, range.end - range.begin), range.begin);
    range = {text.size(), text.size() + word.size()};
    text += word;
  }
  words.text = std::move(text);
}

}  // namespace

Result<Pretokenizer> Pretokenizer::parse(const JsonAt& field) {
  Pretokenizer pretokenizer;
  if (!field.is_null()) SEER_RETURN_IF_ERROR(pretokenizer.parse_step(field, /*last=*/true));
  return pretokenizer;
}

Status Pretokenizer::parse_step(const JsonAt& field, bool last) {
  const auto add = [this](const char* pattern, Behavior behavior, bool invert) {
    steps_.emplace_back(Split{TextPattern::known_regex(pattern), behavior, invert});
  };
  SEER_ASSIGN_OR_RETURN(const std::string type, field.at("type").text());
  if (type == "Sequence") {
    const auto parts = field.at("pretokenizers").elements();
    for (size_t i = 0; i < parts.size(); ++i) SEER_RETURN_IF_ERROR(parse_step(parts[i], last && i + 1 == parts.size()));
  } else if (type == "Split") {
    SEER_RETURN_IF_ERROR(parse_split(field));
  } else if (type == "ByteLevel") {
    SEER_RETURN_IF_ERROR(parse_byte_level(field, last));
  } else if (type == "Metaspace") {
    SEER_RETURN_IF_ERROR(parse_metaspace(field));
  } else if (type == "Digits") {
    SEER_ASSIGN_OR_RETURN(const bool each, field.at("individual_digits").flag_or(false));
    add("\\p{N}", each ? Behavior::kIsolated : Behavior::kContiguous, false);
  } else if (type == "Punctuation") {
    Behavior behavior = Behavior::kIsolated;
    if (!field.at("behavior").is_null()) {
      SEER_ASSIGN_OR_RETURN(behavior, parse_behavior(field.at("behavior")));
    }
    add(kPunctuationPattern, behavior, false);
  } else if (type == "Whitespace") {
    add(kWordPattern, Behavior::kRemoved, true);
  } else if (type == "WhitespaceSplit") {
    add("\\s", Behavior::kRemoved, false);
  } else {
    return field.at("type").wrong("is '", type,
                                  "', which is not supported (Split, ByteLevel, Metaspace, Digits, Punctuation, "
                                  "Whitespace, WhitespaceSplit and Sequence are)");
  }
  return {};
}

Result<Pretokenizer::Behavior> Pretokenizer::parse_behavior(const JsonAt& field) {
  SEER_ASSIGN_OR_RETURN(const std::string name, field.text());
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return field.wrong("is '", name, "', which is not a behavior of Split");
}

Status Pretokenizer::parse_split(const JsonAt& field) {
  SEER_ASSIGN_OR_RETURN(TextPattern pattern, parse_pattern(field.at("pattern")));
  SEER_ASSIGN_OR_RETURN(const Behavior behavior, parse_behavior(field.at("behavior")));
  SEER_ASSIGN_OR_RETURN(const bool invert, field.at("invert").flag_or(false));
  steps_.emplace_back(Split{std::move(pattern), behavior, invert});
  return {};
}

Status Pretokenizer::parse_byte_level(const JsonAt& field, bool last) {
  if (byte_level_) return field.wrong("is a second ByteLevel, which is not supported");
  SEER_ASSIGN_OR_RETURN(const bool prefix, field.at("add_prefix_space").flag_or(true));
  SEER_ASSIGN_OR_RETURN(const bool use_regex, field.at("use_regex").flag_or(true));
  if (prefix) steps_.emplace_back(PrefixSpace{});
  if (use_regex) steps_.emplace_back(Split{TextPattern::known_regex(kGpt2Pattern), Behavior::kIsolated, false});
  byte_level_ = true;
  shows_bytes_ = !last;
  if (shows_bytes_) steps_.emplace_back(ShowBytes{});
  return {};
}

Status Pretokenizer::parse_metaspace(const JsonAt& field) {
  if (byte_level_) return field.wrong("is a Metaspace after ByteLevel, which is not supported");
  SEER_ASSIGN_OR_RETURN(std::string replacement, field.at("replacement").text_or("▁"));
  SEER_ASSIGN_OR_RETURN(const std::string scheme, field.at("prepend_scheme").text_or("always"));
  SEER_ASSIGN_OR_RETURN(const bool prefix, field.at("add_prefix_space").flag_or(true));
  SEER_ASSIGN_OR_RETURN(const bool split, field.at("split").flag_or(true));
  if (replacement.empty()) return field.at("replacement").wrong("must not be empty");
  Metaspace metaspace{replacement, Prefix::kAlways};
  if (scheme == "never" || !prefix) {
    metaspace.prefix = Prefix::kNever;
  } else if (scheme == "first") {
    metaspace.prefix = Prefix::kFirst;
  } else if (scheme != "always") {
    return field.at("prepend_scheme").wrong("is '", scheme, "', which is none of never, first and always");
  }
  steps_.emplace_back(std::move(metaspace));
  if (split) steps_.emplace_back(Split{TextPattern::literal(std::move(replacement)), Behavior::kMergedWithNext, false});
  return {};
}

Status Pretokenizer::cut(Words& words, bool at_start, PatternScratch& scratch) const {
  words.ranges.clear();
  if (words.text.empty()) return {};
  words.ranges.push_back({0, words.text.size()});
  for (const Step& step : steps_) {
    if (const auto* split = std::get_if<Split>(&step)) {
      SEER_RETURN_IF_ERROR(apply_split(*split, words, scratch));
    } else if (std::holds_alternative<PrefixSpace>(step)) {
      rewrite_words(words, [](std::string_view word, size_t) {
        return word.starts_with(' ') ? std::string(word) : cat(' ', word);
      });
    } else if (std::holds_alternative<ShowBytes>(step)) {
      rewrite_words(words, [](std::string_view word, size_t) { return byte_chars(word); });
    } else {
      apply_metaspace(std::get<Metaspace>(step), words, at_start);
    }
  }
  if (shows_bytes_) hide_bytes(words);
  return {};
}

Status Pretokenizer::apply_split(const Split& split, Words& words, PatternScratch& scratch) {
  std::vector<TextRange> cut;
  std::vector<TextRange> matches;
  std::vector<Part> parts;
  for (const TextRange& word : words.ranges) {
    const auto text = std::string_view(words.text).substr(word.begin, word.end - word.begin);
    SEER_RETURN_IF_ERROR(split.pattern.find_all(text, scratch, matches));
    parts.clear();
    size_t done = 0;
    for (const TextRange& match : matches) {
      if (done != match.begin) parts.push_back({{done, match.begin}, split.invert});
      parts.push_back({match, !split.invert});
      done = match.end;
    }
    if (done != text.size()) parts.push_back({{done, text.size()}, split.invert});
    merge_parts(parts, split.behavior);
    for (const Part& part : parts)
      if (part.range.begin != part.range.end)
        cut.push_back({word.begin + part.range.begin, word.begin + part.range.end});
  }
  words.ranges = std::move(cut);
  return {};
}

/// Applies a behavior to the parts of one word: the matches and the text between them.
void Pretokenizer::merge_parts(std::vector<Part>& parts, Behavior behavior) {
  if (behavior == Behavior::kIsolated) return;
  if (behavior == Behavior::kRemoved) {
    std::erase_if(parts, [](const Part& part) { return part.is_match; });
    return;
  }
  const bool backwards = behavior == Behavior::kMergedWithNext;
  if (backwards) std::reverse(parts.begin(), parts.end());
  std::vector<Part> merged;
  bool before = false;  // whether the part before was a match; the first part counts as following a part that was none
  for (const Part& part : parts) {
    const bool joins = behavior == Behavior::kContiguous ? part.is_match == before : part.is_match && !before;
    before = part.is_match;
    if (!joins || merged.empty()) {
      merged.push_back(part);
    } else if (backwards) {
      merged.back().range.begin = part.range.begin;
    } else {
      merged.back().range.end = part.range.end;
    }
  }
  if (backwards) std::reverse(merged.begin(), merged.end());
  parts = std::move(merged);
}

void Pretokenizer::apply_metaspace(const Metaspace& metaspace, Words& words, bool at_start) {
  rewrite_words(words, [&](std::string_view word, size_t begin) {
    std::string replaced;
    for (const char c : word) c == ' ' ? replaced += metaspace.replacement : replaced += c;
    const bool wanted =
        metaspace.prefix == Prefix::kAlways || (metaspace.prefix == Prefix::kFirst && at_start && begin == 0);
    if (wanted && !replaced.starts_with(metaspace.replacement)) replaced.insert(0, metaspace.replacement);
    return replaced;
  });
}

/// Turns characters of the byte alphabet back into bytes, after the last step that looks at characters.
void Pretokenizer::hide_bytes(Words& words) {
  bool all_known = true;
  rewrite_words(words, [&](std::string_view word, size_t) {
    auto bytes = bytes_of_chars(word);
    all_known &= bytes.has_value();
    return std::move(bytes).value_or("");
  });
  SEER_CHECK(all_known);  // every step after ShowBytes only cuts, and cuts between characters
}

}  // namespace seer
