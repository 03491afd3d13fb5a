// Bytes as base64 text (RFC 4648, with padding). Pure.
#pragma once
#include <cstddef>
#include <span>
#include <string>

namespace seer {

std::string base64_of(std::span<const std::byte> bytes);

}  // namespace seer
