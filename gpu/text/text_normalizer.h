// TextNormalizer: what a tokenizer.json does to a text before it is split (its `normalizer` field): Unicode normal
// forms, Prepend, Replace, Lowercase, Strip, and sequences of them. Thread-safe after construction.
// Used by tokenizer_bpe only.
#pragma once
#include <string>
#include <variant>
#include <vector>

#include "gpu/text/json_at.h"
#include "gpu/text/text_pattern.h"

namespace seer {

struct NormalText {
  std::string text;
  bool keeps_start = true;  // nothing was removed before its first character
};

class TextNormalizer {
 public:
  /// Reads the field; null means that nothing changes. Refuses types that it does not know.
  static Result<TextNormalizer> parse(const JsonAt& field);

  /// Fails if a Unicode form is needed and this build has no Unicode library; kFull: the text would have more than
  /// replaced_bytes_max() bytes.
  /// REQUIRES: text is valid UTF-8.
  Result<NormalText> apply(std::string text, PatternScratch& scratch) const;

 private:
  enum class Form { kNfc, kNfd, kNfkc, kNfkd };
  struct Prepend {
    std::string prefix;
  };
  struct Replace {
    TextPattern pattern;
    std::string content;
  };
  struct Lowercase {};
  struct Strip {
    bool left = true, right = true;
  };
  using Step = std::variant<Form, Prepend, Replace, Lowercase, Strip>;

  Status parse_step(const JsonAt& field);
  static Result<std::string> to_form(std::string text, Form form);
  static Result<std::string> to_lowercase(std::string text);
  static std::string strip(std::string_view text, Strip sides);

  std::vector<Step> steps_;
};

/// Reads `{"String": "..."}` or `{"Regex": "..."}`, the way patterns are written in tokenizer.json.
Result<TextPattern> parse_pattern(const JsonAt& field);

}  // namespace seer
