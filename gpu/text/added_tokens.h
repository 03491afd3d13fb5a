// AddedTokens: the `added_tokens` of a tokenizer.json: tokens that are looked for in the text before it is cut into
// words, such as `<|im_start|>`. Thread-safe after construction.
//
// Invariants: of the tokens that match at one place the longest is taken; of those that overlap, the leftmost.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gpu/text/json_at.h"
#include "gpu/text/text_normalizer.h"
#include "gpu/text/text_pattern.h"

namespace seer {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      // decode() can leave it out
  bool normalized = false;   // looked for in the normalized text, else in the text as given
  bool left_strip = false;   // also takes the white space before it
  bool right_strip = false;  // also takes the white space after it
  bool single_word = false;  // only if no letter, digit or underscore is next to it
};

/// A part of a text: an added token, or text between.
struct TextPart {
  std::string_view text;
  std::optional<int32_t> token_id;
};

/// Reads the `added_tokens_decoder` of a tokenizer_config.json, {"7": {"content": ...}}, into `tokens`, each with its id as in the list of a
/// tokenizer.json. Null: there are none. Errors: kInvalidArgument.
Status read_tokens_by_id(const JsonAt& field, std::map<int64_t, nlohmann::json>& tokens);

class AddedTokens {
 public:
  /// Reads the field. The normalizer is applied to the content of normalized tokens.
  static Result<AddedTokens> parse(const JsonAt& field, const TextNormalizer& normalizer);

  const std::vector<AddedToken>& all() const { return tokens_; }
  /// Cuts a text at the tokens that are looked for as given, or at the normalized ones.
  /// REQUIRES: text is valid UTF-8.
  Status cut(std::string_view text, bool normalized, PatternScratch& scratch, std::vector<TextPart>& parts) const;

 private:
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  /// Finds the longest of a set of strings at a position.
  struct Finder {
    std::unordered_map<std::string, size_t, TextHash, std::equal_to<>> index_of;  // into tokens_
    std::array<std::vector<size_t>, 256> sizes_of;  // by first byte: sizes of the strings, longest first
    void insert(const std::string& text, size_t index);
    /// The token at `at` and its size in bytes; size 0: none.
    struct Found {
      size_t index = 0, bytes = 0;
    };
    Found find(std::string_view text, size_t at) const;
  };

  static Result<AddedToken> parse_token(const JsonAt& field);
  Result<bool> stands_alone(std::string_view before, std::string_view behind, PatternScratch& scratch) const;

  std::vector<AddedToken> tokens_;
  Finder as_given_;
  Finder normalized_;
  std::optional<TextPattern> word_char_;  // set if some token is single_word
};

}  // namespace seer
