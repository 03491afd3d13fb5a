// Files of secrets that options name: tokens of servers, the secret of a cluster, certificates and keys.
#pragma once
#include <cstddef>
#include <string>

#include "protocols/result.h"

namespace seer {

constexpr size_t kSecretBytesMin = 16;  // a shorter one could be guessed

/// The first line of the file, without spaces at its end; empty if there is no path. `flag`: the option, for errors.
/// Errors: kInvalidArgument, naming flag and file: it cannot be read, or the line has fewer bytes.
Result<std::string> read_secret_file(const std::string& flag, const std::string& path, size_t bytes_min = kSecretBytesMin);

/// Errors: kInvalidArgument, naming flag and file: it cannot be read, or is a folder.
Status check_readable(const std::string& flag, const std::string& path);

}  // namespace seer
