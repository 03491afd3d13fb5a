#include "cli/secret_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

namespace seer {

Result<std::string> read_secret_file(const std::string& flag, const std::string& path, size_t bytes_min) {
  if (path.empty()) return std::string();
  const auto wrong = [&](const auto&... what) { return fail(Code::kInvalidArgument, flag, " ", path, ": ", what...); };
  std::ifstream file(path);
  if (!file) return wrong("cannot be read: ", std::strerror(errno));
  std::string secret;
  std::getline(file, secret);
  while (secret.ends_with('\r') || secret.ends_with(' ')) secret.pop_back();
  if (secret.size() < bytes_min)
    return wrong("expected a first line of at least ", bytes_min, bytes_min == 1 ? " character" : " characters");
  return secret;
}

}  // namespace seer
