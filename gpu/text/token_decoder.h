// TokenDecoder: turns tokens as a tokenizer.json spells them into bytes (its `decoder` field). Thread-safe after
// construction. Used by tokenizer_bpe only.
//
// Bytes that are not UTF-8 are kept, where Hugging Face tokenizers put U+FFFD.
#pragma once
#include <string>
#include <variant>
#include <vector>

#include "gpu/text/json_at.h"
#include "gpu/text/text_pattern.h"

namespace seer {

/// A token on its way to bytes.
struct TokenText {
  std::string text;
  bool added = false;  // an added token: its content is text already, never the byte alphabet
};

class TokenDecoder {
 public:
  /// Reads the field. Null joins tokens with spaces, as Hugging Face tokenizers do. Refuses types that it does not
  /// know.
  static Result<TokenDecoder> parse(const JsonAt& field);

  /// The bytes of a whole text.
  std::string decode(std::vector<TokenText> tokens) const;
  /// The bytes that one token appends in the middle of a text: without the steps for the start or end of a text.
  std::string piece(TokenText token) const;
  /// Whether decode() of tokens equals their joined pieces.
  bool pieces_join() const;

 private:
  struct ByteLevel {};
  struct ByteFallback {};
  struct Fuse {};
  struct Replace {
    TextPattern pattern;
    std::string content;
  };
  struct Strip {
    std::string character;
    int64_t left = 0, right = 0;  // how many at most
    bool whole_text = false;      // after a Fuse
  };
  struct Metaspace {
    std::string replacement;
    bool drops_first = true;  // the first token's spaces were put there by the pre-tokenizer
  };
  using Step = std::variant<ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace>;

  Status parse_step(const JsonAt& field);
  void run(std::vector<TokenText>& tokens, bool whole_text) const;
  static void apply(const Step& step, bool first, size_t bytes_max, TokenText& token);

  std::vector<Step> steps_;
  bool fused_ = false;  // a Fuse is among the steps
  std::string joint_;   // between the tokens
};

}  // namespace seer
