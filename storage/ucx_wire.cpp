#include "storage/ucx_wire.h"

#include <cstring>
#include <random>

#include "protocols/kv.h"

namespace seer {
namespace {

constexpr std::string_view kScheme = "ucx5:";
constexpr std::string_view kHexDigits = "0123456789abcdef";

template <class T>
void put(std::string& out, T number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}
void put_text(std::string& out, std::string_view text) {
  put(out, static_cast<uint32_t>(text.size()));
  out += text;
}

/// Reads parts off the front. After a missing part all later ones are missing too.
class Reader {
 public:
  explicit Reader(std::string_view rest) : rest_(rest) {}
  std::string_view bytes(size_t count) {
    if (count > rest_.size()) is_whole_ = false;
    if (!is_whole_) return {};
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  template <class T>
  T number() {
    T value = 0;
    if (const std::string_view taken = bytes(sizeof value); !taken.empty()) std::memcpy(&value, taken.data(), sizeof value);
    return value;
  }
  std::string text() { return std::string(bytes(number<uint32_t>())); }
  /// True if every part was there and nothing is left.
  bool is_at_end() const { return is_whole_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool is_whole_ = true;
};

uint32_t checksum(std::string_view bytes) { return crc32c(std::as_bytes(std::span(bytes))); }

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    const size_t high = kHexDigits.find(hex[i]), low = kHexDigits.find(hex[i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return {};
    bytes += static_cast<char>(high * 16 + low);
  }
  return bytes;
}

}  // namespace

std::string write_ucx_address(const UcxAddress& address) {
  std::string body;
  for (const uint64_t part : address.tag) put(body, part);
  put(body, address.node.value);
  put(body, address.epoch);
  put(body, address.slab_base);
  put(body, address.slab_bytes);
  put_text(body, address.host);
  put_text(body, address.worker);
  put_text(body, address.slab_key);
  put_text(body, address.get_worker);
  put_text(body, address.get_key);
  std::string bytes;
  put(bytes, checksum(body));
  bytes += body;
  std::string text(kScheme);
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kHexDigits[byte / 16];
    text += kHexDigits[byte % 16];
  }
  return text;
}

Result<UcxAddress> read_ucx_address(std::string_view text) {
  const Error bad = fail(Code::kInvalidArgument, "transport: the address \"", text.substr(0, 60),
                         "\" is not that of a UCX transport, expected \"", kScheme, "\" and hex digits as they were announced");
  if (!text.starts_with(kScheme) || text.size() % 2 != kScheme.size() % 2) return bad;
  const std::string bytes = from_hex(text.substr(kScheme.size()));
  Reader in(bytes);
  const auto crc = in.number<uint32_t>();
  if (bytes.size() < sizeof crc || checksum(std::string_view(bytes).substr(sizeof crc)) != crc) return bad;
  UcxAddress address;
  for (uint64_t& part : address.tag) part = in.number<uint64_t>();
  address.node = {in.number<uint32_t>()};
  address.epoch = in.number<uint64_t>();
  address.slab_base = in.number<uint64_t>();
  address.slab_bytes = in.number<uint64_t>();
  address.host = in.text();
  address.worker = in.text();
  address.slab_key = in.text();
  address.get_worker = in.text();
  address.get_key = in.text();
  if (!in.is_at_end()) return bad;
  return address;
}

UcxTag new_ucx_tag() {
  std::random_device random;
  UcxTag tag;
  for (uint64_t& part : tag) part = uint64_t{random()} << 32 | random();
  return tag;
}

}  // namespace seer
