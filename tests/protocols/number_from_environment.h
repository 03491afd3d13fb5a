// Numbers by which whoever runs a test chooses its seeds, or how many there are.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <optional>

namespace seer {

inline std::optional<uint64_t> number_from_environment(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? std::nullopt : std::optional<uint64_t>(std::strtoull(text, nullptr, 10));
}

}  // namespace seer
