// CRC32C (Castagnoli): the checksum of KV blocks, of records on disk and of addresses. Computed when bytes leave an engine, and
// checked before they enter another, after a disk read and on a copy. A value is the same on every processor and in every
// release: it is written to disk and sent to other machines.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace seer {

/// Checksum of `bytes` appended to bytes whose checksum is `crc` (0: none).
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

/// Copies, and returns the checksum of the bytes written, as crc32c() does. Reads the source once, so that both take little more
/// time than the copy alone. REQUIRES: the two do not overlap.
uint32_t copy_and_crc32c(std::span<std::byte> to, const std::byte* from, uint32_t crc = 0);

/// One way to compute it.
struct Crc32cWay {
  std::string_view name;
  uint32_t (*sum)(std::span<const std::byte> bytes, uint32_t crc);
};
/// The ways that this processor supports, slowest first. The first is the table, which runs anywhere and is the reference for the
/// others; the last is the one in use.
std::span<const Crc32cWay> crc32c_ways();

}  // namespace seer
