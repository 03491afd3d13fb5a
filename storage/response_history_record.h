// Records of a ResponseHistory as bytes on disk. The checksum covers the record and its key, so a damaged or misplaced record
// is refused. Pure functions. Used by rocksdb_response_history.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocols/kv.h"
#include "protocols/result.h"

namespace seer {

/// Key of a response. The keys of a prompt are adjacent and in the order of get(): newest iteration first.
struct ResponseKey {
  PrefixHash prompt;
  uint64_t iteration = 0;
  uint16_t index = 0;  // among those of the iteration
  auto operator<=>(const ResponseKey&) const = default;
};
std::string to_bytes(PrefixHash prompt);
std::string to_bytes(const ResponseKey& key);

/// What the history knows of a prompt.
struct PromptRecord {
  struct Response {
    uint64_t iteration = 0;
    uint16_t index = 0;
    uint32_t bytes = 0;  // of its record
  };
  uint64_t put_number = 0;  // number of its last put, counted over all prompts
  std::vector<Response> responses;  // in the order of get()
};

inline constexpr int64_t kKeptBytes = 8 + 2 + 4;  // of a prompt's record, per response

std::string encode_response(std::string_view key, std::span<const int32_t> tokens);
/// kCorrupt: not a record of this key, or with tokens not below vocab_tokens.
Result<std::vector<int32_t>> decode_response(std::string_view key, std::string_view record, int32_t vocab_tokens);

std::string encode_prompt(PrefixHash prompt, const PromptRecord& record);
Result<PromptRecord> decode_prompt(PrefixHash prompt, std::string_view record);
/// kCorrupt: not the key of a prompt.
Result<PrefixHash> decode_prompt_key(std::string_view key);

}  // namespace seer
