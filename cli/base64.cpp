#include "cli/base64.h"

#include <openssl/evp.h>

#include <algorithm>
#include <climits>

namespace seer {
namespace {

constexpr size_t kPieceMax = INT_MAX / 6 * 3;  // whole groups of three bytes; OpenSSL counts in int

}  // namespace

std::string base64_of(std::span<const std::byte> bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // OpenSSL ends it with a zero
  auto* out = reinterpret_cast<unsigned char*>(text.data());
  for (size_t at = 0; at < bytes.size(); at += kPieceMax) {
    const std::span<const std::byte> piece = bytes.subspan(at, std::min(kPieceMax, bytes.size() - at));
    out += EVP_EncodeBlock(out, reinterpret_cast<const unsigned char*>(piece.data()), static_cast<int>(piece.size()));
  }
  text.pop_back();
  return text;
}

}  // namespace seer
