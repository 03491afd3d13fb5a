#include "gpu/text/bpe_model.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "gpu/text/byte_level.h"
#include "gpu/text/utf8.h"
#include "protocols/hash.h"

namespace seer {
namespace {

constexpr int64_t kIdEnd = int64_t{1} << 24;  // ids index tables: a file cannot ask for more than 16.7 M tokens

std::string fallback_token(int byte) {
  char text[8];
  std::snprintf(text, sizeof text, "<0x%02X>", byte);
  return text;
}

uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

// ---- the table of merges ----------------------------------------------------------------------------------------

BpeModel::MergeTable::MergeTable(size_t merges) : slots_(std::bit_ceil(2 * merges + 2)) {}

size_t BpeModel::MergeTable::slot_of(uint64_t key) const {
  size_t slot = mix64(key) & (slots_.size() - 1);
  while (slots_[slot].key != key && slots_[slot].key != kFree) slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

void BpeModel::MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = pair_key(left, right);
  slots_[slot_of(key)] = {key, merge};
}

const BpeModel::MergeTable::Merge* BpeModel::MergeTable::find(int32_t left, int32_t right) const {
  const Slot& slot = slots_[slot_of(pair_key(left, right))];
  return slot.key == kFree ? nullptr : &slot.merge;
}

// ---- reading the file -------------------------------------------------------------------------------------------

Result<BpeModel> BpeModel::parse(const JsonAt& field, bool byte_level) {
  BpeModel model;
  model.byte_level_ = byte_level;
  IdTable ids;  // borrows the keys of the document
  SEER_RETURN_IF_ERROR(model.parse_options(field));
  SEER_RETURN_IF_ERROR(model.parse_vocab(field.at("vocab"), ids));
  SEER_RETURN_IF_ERROR(model.parse_merges(field.at("merges"), ids));
  SEER_RETURN_IF_ERROR(model.parse_unknown(field.at("unk_token"), ids));
  SEER_RETURN_IF_ERROR(model.parse_byte_tokens(field, ids));
  SEER_RETURN_IF_ERROR(model.fill_words());
  return model;
}

Status BpeModel::parse_options(const JsonAt& field) {
  // Early files leave the type out; BPE files have merges.
  SEER_ASSIGN_OR_RETURN(const std::string type,
                        field.at("type").text_or(field.at("merges").is_array() ? "BPE" : "none"));
  if (type != "BPE") return field.at("type").wrong("is '", type, "', which is not supported (BPE is)");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    SEER_ASSIGN_OR_RETURN(const std::string text, field.at(affix).text_or(""));
    if (!text.empty()) return field.at(affix).wrong("is '", text, "'; only an empty one is supported");
  }
  const JsonAt dropout = field.at("dropout");
  if (!dropout.is_null() && dropout.value() != 0.0) return dropout.wrong("would make tokens random; it must be null");
  SEER_ASSIGN_OR_RETURN(ignore_merges_, field.at("ignore_merges").flag_or(false));
  SEER_ASSIGN_OR_RETURN(byte_fallback_, field.at("byte_fallback").flag_or(false));
  SEER_ASSIGN_OR_RETURN(fuse_unknown_, field.at("fuse_unk").flag_or(false));
  return {};
}

Status BpeModel::parse_vocab(const JsonAt& field, IdTable& ids) {
  if (!field.is_object()) return field.wrong("must be an object of token: id");
  ids.reserve(field.value().size());
  for (const auto& [token, id] : field.value().items()) {
    if (!id.is_number_integer() || id < 0 || id >= kIdEnd)
      return field.at(token).wrong("must be an id from 0 to ", kIdEnd - 1);
    const auto index = id.get<size_t>();
    if (index >= tokens_.size()) tokens_.resize(index + 1);
    if (token.empty()) continue;  // Hugging Face allows it; no text can ever reach it
    if (!tokens_[index].empty()) return field.at(token).wrong("has id ", index, ", as '", tokens_[index], "' has");
    tokens_[index] = token;
    ids.emplace(token, static_cast<int32_t>(index));
  }
  return {};
}

Status BpeModel::parse_merges(const JsonAt& field, const IdTable& ids) {
  if (!field.is_array()) return field.wrong("must be an array");
  const std::vector<JsonAt> lines = field.elements();
  merges_ = MergeTable(lines.size());
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    SEER_ASSIGN_OR_RETURN(const auto pair, parse_pair(lines[rank]));
    const std::string joined = pair.first + pair.second;
    for (const std::string* token : {&pair.first, &pair.second, &joined})
      if (!ids.contains(*token)) return lines[rank].wrong("needs the token '", *token, "', which is not in the vocab");
    merges_.insert(ids.at(pair.first), ids.at(pair.second), {static_cast<int32_t>(rank), ids.at(joined)});
  }
  return {};
}

/// "left right", or ["left", "right"] in files whose tokens may contain a space.
Result<std::pair<std::string, std::string>> BpeModel::parse_pair(const JsonAt& field) {
  if (field.is_array()) {
    const auto parts = field.elements();
    if (parts.size() != 2) return field.wrong("must be a pair of tokens");
    SEER_ASSIGN_OR_RETURN(std::string left, parts[0].text());
    SEER_ASSIGN_OR_RETURN(std::string right, parts[1].text());
    return std::pair(std::move(left), std::move(right));
  }
  SEER_ASSIGN_OR_RETURN(const std::string line, field.text());
  const size_t space = line.find(' ');
  if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos)
    return field.wrong("is '", line, "', not two tokens with a space between");
  return std::pair(line.substr(0, space), line.substr(space + 1));
}

Status BpeModel::parse_unknown(const JsonAt& field, const IdTable& ids) {
  if (field.is_null()) return {};
  SEER_ASSIGN_OR_RETURN(const std::string token, field.text());
  const auto found = ids.find(token);
  if (found == ids.end()) return field.wrong("is '", token, "', which is not in the vocab");
  unknown_id_ = found->second;
  return {};
}

Status BpeModel::parse_byte_tokens(const JsonAt& field, const IdTable& ids) {
  const auto id_of = [&](const std::string& token) {
    const auto found = ids.find(token);
    return found == ids.end() ? -1 : found->second;
  };
  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = id_of(byte_chars(std::string(1, static_cast<char>(byte))));
    fallback_ids_[byte] = byte_fallback_ ? id_of(fallback_token(byte)) : -1;
  }
  const bool all_bytes = std::find(byte_ids_.begin(), byte_ids_.end(), -1) == byte_ids_.end();
  if (byte_level_ && byte_fallback_ && !all_bytes)
    return field.at("byte_fallback").wrong("together with ByteLevel needs all 256 bytes in the vocab");
  return {};
}

/// Enters the tokens under their bytes, then marks those that their own merges build.
Status BpeModel::fill_words() {
  words_.reserve(tokens_.size());
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id].empty()) continue;
    if (!byte_level_) {
      words_.emplace(tokens_[id], Word{static_cast<int32_t>(id), ignore_merges_});
    } else if (auto bytes = bytes_of_chars(tokens_[id])) {
      words_.emplace(*std::move(bytes), Word{static_cast<int32_t>(id), ignore_merges_});
    }  // else: a token that no bytes reach; it can still be decoded
  }
  if (ignore_merges_) return {};
  BpeScratch scratch;
  std::vector<int32_t> ids;
  for (auto& [text, word] : words_) {
    ids.clear();
    const Status encoded = encode_word(text, scratch, ids);
    word.whole = encoded.ok() && ids.size() == 1 && ids[0] == word.id;
  }
  return {};
}

// ---- encoding ---------------------------------------------------------------------------------------------------

Status BpeModel::encode_word(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids) const {
  const auto found = words_.find(word);
  if (found != words_.end() && found->second.whole) {
    ids.push_back(found->second.id);
    return {};
  }
  SEER_RETURN_IF_ERROR(split_symbols(word, scratch));
  merge_symbols(scratch);
  for (const BpeScratch::Symbol& symbol : scratch.symbols)
    if (symbol.id >= 0) ids.push_back(symbol.id);
  return {};
}

bool BpeModel::encode_bytes(std::string_view bytes, std::vector<int32_t>& ids) const {
  for (const char byte : bytes)
    if (fallback_ids_[static_cast<unsigned char>(byte)] < 0) return false;
  for (const char byte : bytes) ids.push_back(fallback_ids_[static_cast<unsigned char>(byte)]);
  return true;
}

int32_t BpeModel::symbol_id(std::string_view symbol) const {
  if (byte_level_) return byte_ids_[static_cast<unsigned char>(symbol[0])];
  const auto found = words_.find(symbol);
  return found == words_.end() ? -1 : found->second.id;
}

/// Makes one symbol for each character (byte level: each byte). A character without a token becomes its fallback bytes or
/// the unknown token. The unknown token is added only before the next known character, so that a run of them can be one
/// token; as in the reference, characters that fall back to bytes do not end such a run.
Status BpeModel::split_symbols(std::string_view word, BpeScratch& scratch) const {
  scratch.symbols.clear();
  const auto add = [&](int32_t id) {
    const auto index = static_cast<int32_t>(scratch.symbols.size());
    if (index > 0) scratch.symbols.back().behind = index;
    scratch.symbols.push_back({id, index - 1, -1});
  };
  bool unknown_waits = false;
  for (size_t at = 0; at < word.size();) {
    const std::string_view symbol = word.substr(at, byte_level_ ? 1 : utf8_at(word, at).bytes);
    at += symbol.size();
    const int32_t id = symbol_id(symbol);
    if (id >= 0) {
      if (unknown_waits) add(unknown_id_);
      unknown_waits = false;
      add(id);
    } else if (std::all_of(symbol.begin(), symbol.end(),
                           [&](char byte) { return fallback_ids_[static_cast<unsigned char>(byte)] >= 0; })) {
      for (const char byte : symbol) add(fallback_ids_[static_cast<unsigned char>(byte)]);
    } else if (unknown_id_ < 0) {
      return fail(Code::kInvalidArgument, "the tokenizer has no token for '", symbol, "' and no unknown token");
    } else {
      if (unknown_waits && !fuse_unknown_) add(unknown_id_);
      unknown_waits = true;
    }
  }
  if (unknown_waits) add(unknown_id_);
  return {};
}

namespace {
/// Order of the heap: its front is the lowest rank, and the leftmost of these.
bool comes_later(const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.index > b.index;
}
}  // namespace

void BpeModel::push_candidate(BpeScratch& scratch, int32_t left_index) const {
  const BpeScratch::Symbol& left = scratch.symbols[left_index];
  const BpeScratch::Symbol& right = scratch.symbols[left.behind];
  const MergeTable::Merge* merge = merges_.find(left.id, right.id);
  if (!merge) return;
  scratch.heap.push_back({merge->rank, left_index, left.id, right.id, merge->merged_id});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), comes_later);
}

/// Merges in place. The left symbol becomes the merged one; the right one gets id -1 and leaves the list.
void BpeModel::merge_symbols(BpeScratch& scratch) const {
  auto& symbols = scratch.symbols;
  scratch.heap.clear();
  for (size_t i = 0; i + 1 < symbols.size(); ++i) push_candidate(scratch, static_cast<int32_t>(i));
  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), comes_later);
    const BpeScratch::Candidate best = scratch.heap.back();
    scratch.heap.pop_back();
    BpeScratch::Symbol& left = symbols[best.index];
    if (left.id != best.left_id || left.behind < 0) continue;
    BpeScratch::Symbol& right = symbols[left.behind];
    if (right.id != best.right_id) continue;
    left.id = best.merged_id;
    left.behind = right.behind;
    right.id = -1;
    if (left.behind >= 0) {
      symbols[left.behind].before = best.index;
      push_candidate(scratch, best.index);
    }
    if (left.before >= 0) push_candidate(scratch, left.before);
  }
}

}  // namespace seer
