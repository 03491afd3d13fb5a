#include "storage/response_history_record.h"

#include "storage/record_bytes.h"

// Keys, big endian so that they sort:
//   prompt     hash hi (8 B) | hash lo (8 B)
//   response   the prompt's | ~iteration (8 B) | index (2 B)
// Records, little endian:
//   format (1 B)  crc32c (4 B) of the key, then of all that follows
//   response   tokens, each as a base-128 varint, low 7 bits first: frequent tokens have small ids in most vocabularies,
//              and similar responses compress as well as with fixed sizes
//   prompt     put number (8 B), then per response: iteration (8 B) | index (2 B) | bytes of its record (4 B)
namespace seer {
namespace {

constexpr char kResponseFormat = 1, kPromptFormat = 2;
constexpr size_t kPromptKeyBytes = 16;
constexpr size_t kHeaderBytes = 1 + 4;

template <class T>
void put_little_endian(std::string& to, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) to.push_back(static_cast<char>(value >> (8 * i)));
}
/// REQUIRES: `from` has at least sizeof(T) bytes.
template <class T>
T take_little_endian(std::string_view& from) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(static_cast<T>(static_cast<uint8_t>(from[i])) << (8 * i));
  from.remove_prefix(sizeof(T));
  return value;
}

uint32_t checksum(std::string_view key, std::string_view body) {
  return crc32c(std::as_bytes(std::span(body)), crc32c(std::as_bytes(std::span(key))));
}

std::string with_header(char format, std::string_view key, std::string_view body) {
  std::string record;
  record.reserve(kHeaderBytes + body.size());
  record.push_back(format);
  put_little_endian(record, checksum(key, body));
  record += body;
  return record;
}

Result<std::string_view> body_of(char format, std::string_view key, std::string_view record) {
  if (record.size() < kHeaderBytes || record.front() != format)
    return fail(Code::kCorrupt, "response history: a record of ", record.size(), " bytes is of another format");
  record.remove_prefix(1);
  const auto crc = take_little_endian<uint32_t>(record);
  if (crc != checksum(key, record))
    return fail(Code::kCorrupt, "response history: a record of ", record.size(), " bytes does not match its checksum");
  return record;
}

}  // namespace

std::string to_bytes(PrefixHash prompt) {
  std::string key;
  append_big_endian(key, prompt.hi);
  append_big_endian(key, prompt.lo);
  return key;
}

std::string to_bytes(const ResponseKey& key) {
  std::string bytes = to_bytes(key.prompt);
  append_big_endian(bytes, ~key.iteration);
  append_big_endian(bytes, key.index);
  return bytes;
}

std::string encode_response(std::string_view key, std::span<const int32_t> tokens) {
  std::string body;
  body.reserve(tokens.size() * 3);
  for (const int32_t token : tokens) {
    SEER_CHECK(token >= 0, token);
    auto rest = static_cast<uint32_t>(token);
    for (; rest >= 128; rest >>= 7) body.push_back(static_cast<char>(rest | 128));
    body.push_back(static_cast<char>(rest));
  }
  return with_header(kResponseFormat, key, body);
}

Result<std::vector<int32_t>> decode_response(std::string_view key, std::string_view record, int32_t vocab_tokens) {
  SEER_ASSIGN_OR_RETURN(const std::string_view body, body_of(kResponseFormat, key, record));
  std::vector<int32_t> tokens;
  tokens.reserve(body.size() / 2);
  uint64_t token = 0;
  uint32_t bits = 0;
  for (const char c : body) {
    const auto byte = static_cast<uint8_t>(c);
    token |= uint64_t{byte & 127u} << bits;
    bits += 7;
    if (bits > 35 || token >= static_cast<uint64_t>(vocab_tokens))
      return fail(Code::kCorrupt, "response history: a token is not below ", vocab_tokens);
    if (byte >= 128) continue;
    tokens.push_back(static_cast<int32_t>(token));
    token = bits = 0;
  }
  if (bits != 0) return fail(Code::kCorrupt, "response history: a record ends within a token");
  return tokens;
}

std::string encode_prompt(PrefixHash prompt, const PromptRecord& record) {
  std::string body;
  put_little_endian(body, record.put_number);
  for (const PromptRecord::Response& response : record.responses) {
    put_little_endian(body, response.iteration);
    put_little_endian(body, response.index);
    put_little_endian(body, response.bytes);
  }
  return with_header(kPromptFormat, to_bytes(prompt), body);
}

Result<PromptRecord> decode_prompt(PrefixHash prompt, std::string_view record) {
  SEER_ASSIGN_OR_RETURN(std::string_view body, body_of(kPromptFormat, to_bytes(prompt), record));
  if (body.size() < sizeof(uint64_t) || (body.size() - sizeof(uint64_t)) % static_cast<size_t>(kKeptBytes) != 0)
    return fail(Code::kCorrupt, "response history: a prompt's record has ", body.size(), " bytes");
  PromptRecord found;
  found.put_number = take_little_endian<uint64_t>(body);
  while (!body.empty()) {
    PromptRecord::Response& response = found.responses.emplace_back();
    response.iteration = take_little_endian<uint64_t>(body);
    response.index = take_little_endian<uint16_t>(body);
    response.bytes = take_little_endian<uint32_t>(body);
  }
  return found;
}

Result<PrefixHash> decode_prompt_key(std::string_view key) {
  if (key.size() != kPromptKeyBytes)
    return fail(Code::kCorrupt, "response history: a prompt's key has ", key.size(), " bytes");
  const auto part = [&](size_t at) {
    uint64_t value = 0;
    for (size_t i = 0; i < 8; ++i) value = value << 8 | static_cast<uint8_t>(key[at + i]);
    return value;
  };
  return PrefixHash{part(0), part(8)};
}

}  // namespace seer
