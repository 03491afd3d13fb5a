// TextPattern: what a tokenizer file searches for in a text: a fixed string, or a regular expression run by PCRE2 with
// JIT. The files are written for Oniguruma (Ruby syntax, as Hugging Face tokenizers run it); a pattern is rewritten to
// mean the same here, and one that cannot be is refused. Each library knows its own version of Unicode, so characters
// assigned later (PCRE2 10.42: after Unicode 14) may be classed differently.
// Thread-safe after construction; each search brings a PatternScratch of its own thread.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocols/result.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;

namespace seer {

struct TextRange {
  size_t begin = 0, end = 0;  // bytes
};

/// Working memory of a search.
class PatternScratch {
 public:
  PatternScratch();

 private:
  friend class TextPattern;
  struct Free {
    void operator()(pcre2_real_match_data_8* data) const;
  };
  std::unique_ptr<pcre2_real_match_data_8, Free> match_;
};

class TextPattern {
 public:
  /// REQUIRES: text is not empty.
  static TextPattern literal(std::string text);
  /// Fails with a sentence that begins with the pattern, for the caller to put after the field's name.
  static Result<TextPattern> regex(const std::string& pattern);
  /// For patterns of our own. REQUIRES: the pattern is valid.
  static TextPattern known_regex(const std::string& pattern);

  /// Sets `matches` to all matches in order, not overlapping, empty ones included.
  /// Fails with kInvalidArgument if matching takes more steps or memory than allowed.
  /// REQUIRES: text is valid UTF-8.
  Status find_all(std::string_view text, PatternScratch& scratch, std::vector<TextRange>& matches) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
    void operator()(pcre2_real_match_context_8* context) const;
  };
  std::string literal_;  // used if code_ is null
  std::unique_ptr<pcre2_real_code_8, Free> code_;
  std::unique_ptr<pcre2_real_match_context_8, Free> limits_;
};

/// How long a text of this size may become by all steps that replace: far longer than a tokenizer makes it. Else a few steps of a
/// file, each making many characters of one, could take all memory.
constexpr size_t replaced_bytes_max(size_t text_bytes) { return 64 * text_bytes + (size_t{64} << 10); }
/// The text with every match replaced by `content`. kFull: it would have more than `bytes_max` bytes.
/// REQUIRES: text is valid UTF-8.
Result<std::string> replace_all(std::string_view text, const TextPattern& pattern, std::string_view content,
                                PatternScratch& scratch, size_t bytes_max);

/// The same pattern in PCRE2's language.
Result<std::string> pcre2_from_oniguruma(std::string_view pattern);

}  // namespace seer
