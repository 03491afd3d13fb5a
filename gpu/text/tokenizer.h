// Tokenizer: text to token ids and back. Needed for prompts that come as text, for stop strings and for readable output,
// but not for token ids in and out.
//
// Invariants:
//  (1) thread-safe: nothing changes after construction;
//  (2) any bytes may be encoded. A byte that is not part of valid UTF-8 ends the text before it, as a special token
//      would, and is a word of its own: exact under byte-level BPE, `<0xNN>` under byte fallback, else encoded like U+FFFD;
//  (3) byte-level BPE: decode() equals the joined pieces of the ids, and decode(encode(text)) is the text, except for
//      changes by the file's normalizer. If a file's decoder drops the first space of a text (Llama 2, SentencePiece),
//      decode() drops it and piece() does not.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocols/result.h"

namespace seer {

struct EncodeOptions {
  bool add_special = false;  // add the BOS/EOS that the file's post-processor asks for
};
struct DecodeOptions {
  bool skip_special = false;  // special tokens append nothing
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Ids of a text. Added tokens written in the text (`<|im_start|>`) become their one id. Fails if the vocabulary has no
  /// token for a character and no unknown token: text is never dropped silently.
  virtual Result<std::vector<int32_t>> encode(std::string_view text, EncodeOptions options = {}) const = 0;
  /// The bytes that the ids stand for. They may end inside a character. An id outside the vocabulary appends nothing.
  virtual std::string decode(std::span<const int32_t> ids, DecodeOptions options = {}) const = 0;
  /// The bytes that one id appends to a text: for incremental decoding and stop strings.
  virtual std::string piece(int32_t id) const = 0;

  /// One past the largest id.
  virtual int32_t vocab_size() const = 0;
  /// Id of a token by its content as the file spells it, for example `<|endoftext|>`.
  virtual std::optional<int32_t> id_of(std::string_view token) const = 0;
  virtual bool is_special(int32_t id) const = 0;
};

/// Checksum of the pieces of all ids, never 0; null: 0.
uint64_t pieces_hash(const Tokenizer* tokenizer);

/// The tokenizer of a model folder: tokenizer.json (byte-level BPE), else tokenizer.model (SentencePiece), else
/// kNotFound.
Result<std::shared_ptr<const Tokenizer>> load_tokenizer(const std::filesystem::path& folder);

}  // namespace seer
