// Bytes of other machines and of files on disk. The first byte says what the rest is: the address of a UCX peer, a record of
// the journals, or one of the draft history. Where these have a checksum, also with the right one, as of another build.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "protocols/crc32c.h"
#include "storage/record_bytes.h"
#include "storage/response_history_record.h"
#include "storage/rollout_journal.h"
#include "storage/served_journal.h"
#include "storage/ucx_wire.h"

using namespace seer;

namespace {

/// What is accepted is written again as it was.
template <class T>
void read_back(std::string_view bytes) {
  const Result<T> value = read_record<T>(bytes);
  if (!value.ok() || record_bytes(*value) == bytes) return;
  std::fprintf(stderr, "FINDING: a %s is written otherwise than it was read\n", T::kTypeName);
  std::abort();
}

/// With the checksum that it must have in front.
std::string checked(std::string_view bytes, uint32_t before = 0) {
  const uint32_t crc = crc32c(std::as_bytes(std::span(bytes)), before);
  return std::string(reinterpret_cast<const char*>(&crc), sizeof crc).append(bytes);
}

std::string hex_of(std::string_view bytes) {
  std::string out;
  for (const unsigned char byte : bytes) (out += "0123456789abcdef"[byte >> 4]) += "0123456789abcdef"[byte & 15];
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data + 1), size - 1);
  const std::string key = rest.size() < 26 ? std::string() : std::string(rest.substr(0, 26));
  switch (data[0] % 13) {
    case 0: (void)read_ucx_address(rest); break;
    case 1: read_back<JournalWork>(rest); break;
    case 2: read_back<Response>(rest); break;
    case 3: read_back<CommittedTokens>(rest); break;
    case 4: read_back<ServedModelMark>(rest); break;
    case 5: read_back<ServedHead>(rest); break;
    case 6: read_back<ServedGroup>(rest); break;
    case 7: read_back<ServedResponse>(rest); break;
    case 8: (void)decode_response(key, rest.substr(key.size()), 1000); break;
    case 9: (void)decode_prompt({1, 2}, rest); break;
    case 10: (void)decode_prompt_key(rest); break;
    case 11: (void)read_ucx_address("ucx5:" + hex_of(checked(rest))); break;
    default: {
      const std::string_view body = rest.substr(key.size());
      if (body.empty()) break;
      (void)decode_response(key, std::string(body.substr(0, 1)) + checked(body.substr(1), crc32c(std::as_bytes(std::span(key)))), 1000);
    }
  }
  return 0;
}
