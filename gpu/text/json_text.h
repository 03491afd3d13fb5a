// Text files of a model folder as JSON. Stricter than the library alone: an object that has a key twice is an error,
// because readers differ in which of the two they take. Also recognises files that are not JSON at all.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "protocols/result.h"

namespace seer {

/// kLastCounts: as Python reads JSON; for the large files of tokenizers.
enum class RepeatedKeys : uint8_t { kRefused, kLastCounts };

/// The document in `text`. `name` is its name in errors, usually its path.
/// Errors: kInvalidArgument (not JSON, with the line; nested too deep; a key twice, with its path).
Result<nlohmann::json> parse_json(std::string_view text, const std::string& name, RepeatedKeys repeated = RepeatedKeys::kRefused);

/// Recognises a file by its first bytes, for errors about files of another kind: "a GGUF file", "gzip data", "UTF-16
/// text", "a zip archive, as PyTorch writes", "a Git LFS pointer ...". Empty: none of those.
std::string_view known_format(std::string_view bytes);

/// At most `bytes_max` bytes of a text for an error, with "..." where it was cut; never half a UTF-8 character.
std::string shortened(std::string_view text, size_t bytes_max = 60);

}  // namespace seer
