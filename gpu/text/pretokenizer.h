// Pretokenizer: cuts a text into words (the `pre_tokenizer` field of tokenizer.json); BPE then never merges over a cut.
// Thread-safe after construction. Used by tokenizer_bpe only.
//
// Invariants:
//  (1) words are in text order and do not overlap; none is empty;
//  (2) with byte_level() the words are raw bytes: only the vocabulary uses the byte alphabet.
#pragma once
#include <string>
#include <variant>
#include <vector>

#include "gpu/text/json_at.h"
#include "gpu/text/text_pattern.h"

namespace seer {

/// A text and the words that it has been cut into. Text between words was removed.
struct Words {
  std::string text;
  std::vector<TextRange> ranges;
};

class Pretokenizer {
 public:
  /// Reads the field; null keeps a text as one word. Refuses types that it does not know.
  static Result<Pretokenizer> parse(const JsonAt& field);

  bool byte_level() const { return byte_level_; }
  /// Cuts `words.text` and fills `words.ranges`; the text itself changes if the file asks for prefixes or other characters.
  /// `at_start`: the text is at the start of what is being encoded. REQUIRES: words.text is valid UTF-8.
  Status cut(Words& words, bool at_start, PatternScratch& scratch) const;

 private:
  enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct Split {
    TextPattern pattern;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;  // the text between the pattern's matches counts as the match
  };
  struct PrefixSpace {};  // ByteLevel's add_prefix_space: each word begins with a space
  struct ShowBytes {};    // ByteLevel before other steps, which then see the byte alphabet
  enum class Prefix { kNever, kFirst, kAlways };
  struct Metaspace {
    std::string replacement;
    Prefix prefix = Prefix::kAlways;
  };
  using Step = std::variant<Split, PrefixSpace, ShowBytes, Metaspace>;
  struct Part {
    TextRange range;
    bool is_match = false;
  };

  Status parse_step(const JsonAt& field, bool last);
  Status parse_split(const JsonAt& field);
  Status parse_byte_level(const JsonAt& field, bool last);
  Status parse_metaspace(const JsonAt& field);
  static Result<Behavior> parse_behavior(const JsonAt& field);

  static Status apply_split(const Split& split, Words& words, PatternScratch& scratch);
  static void merge_parts(std::vector<Part>& parts, Behavior behavior);
  static void apply_metaspace(const Metaspace& metaspace, Words& words, bool at_start);
  static void hide_bytes(Words& words);

  std::vector<Step> steps_;
  bool byte_level_ = false;
  bool shows_bytes_ = false;  // a ShowBytes step is among the steps
};

}  // namespace seer
