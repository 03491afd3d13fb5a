// BpeModel: vocabulary and merges of a tokenizer.json; turns one word into ids. Thread-safe after construction; each
// caller brings a BpeScratch of its own. Used by tokenizer_bpe only.
//
// Invariants:
//  (1) merges apply lowest rank first, then leftmost, as in Hugging Face tokenizers;
//  (2) a word that is a token built by its own merges (nearly all words of ordinary text) is found by one look-up. These
//      tokens are marked once, at load, so there is no cache to bound or to lock.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpu/text/json_at.h"

namespace seer {

struct BpeScratch {
  struct Symbol {
    int32_t id;
    int32_t before, behind;  // index of the neighbour, -1 at an end
  };
  struct Candidate {
    int32_t rank, index;  // of the merge; of its left symbol
    int32_t left_id, right_id, merged_id;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

class BpeModel {
 public:
  /// Reads the `model` field. `byte_level`: the vocabulary is written in the byte alphabet and words are raw bytes.
  static Result<BpeModel> parse(const JsonAt& field, bool byte_level);

  /// Appends the ids of a word. Fails if a character has no token and there is no unknown token.
  /// REQUIRES: the word is not empty; it is valid UTF-8 unless byte_level.
  Status encode_word(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids) const;
  /// Appends the `<0xNN>` ids of bytes that are not text; false if the model has no byte fallback for them.
  bool encode_bytes(std::string_view bytes, std::vector<int32_t>& ids) const;

  /// The tokens as the file spells them, by id; empty if there is none.
  const std::vector<std::string>& tokens() const { return tokens_; }

 private:
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  struct Word {
    int32_t id = 0;
    bool whole = false;  // the word's ids are this id alone
  };
  using WordTable = std::unordered_map<std::string, Word, TextHash, std::equal_to<>>;
  using IdTable = std::unordered_map<std::string_view, int32_t>;

  /// Pair of ids -> merge. Open addressing, at most half full.
  class MergeTable {
   public:
    struct Merge {
      int32_t rank = 0, merged_id = -1;
    };
    explicit MergeTable(size_t merges = 0);
    void insert(int32_t left, int32_t right, Merge merge);
    const Merge* find(int32_t left, int32_t right) const;

   private:
    struct Slot {
      uint64_t key = kFree;
      Merge merge;
    };
    static constexpr uint64_t kFree = ~uint64_t{0};
    size_t slot_of(uint64_t key) const;
    std::vector<Slot> slots_;
  };

  Status parse_options(const JsonAt& field);
  Status parse_vocab(const JsonAt& field, IdTable& ids);
  Status parse_merges(const JsonAt& field, const IdTable& ids);
  static Result<std::pair<std::string, std::string>> parse_pair(const JsonAt& field);
  Status parse_unknown(const JsonAt& field, const IdTable& ids);
  Status parse_byte_tokens(const JsonAt& field, const IdTable& ids);
  Status fill_words();

  Status split_symbols(std::string_view word, BpeScratch& scratch) const;
  void merge_symbols(BpeScratch& scratch) const;
  void push_candidate(BpeScratch& scratch, int32_t left_index) const;
  int32_t symbol_id(std::string_view symbol) const;  // -1: not a token

  bool byte_level_ = false;
  bool ignore_merges_ = false;
  bool byte_fallback_ = false;
  bool fuse_unknown_ = false;
  int32_t unknown_id_ = -1;  // -1: none
  std::vector<std::string> tokens_;
  WordTable words_;  // by the word's own bytes, whatever alphabet the file is written in
  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_;      // byte_level: the token that is this one byte; -1: none
  std::array<int32_t, 256> fallback_ids_;  // `<0xNN>`; -1: none
};

}  // namespace seer
