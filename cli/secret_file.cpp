#include "cli/secret_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace seer {

Status check_readable(const std::string& flag, const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return fail(Code::kInvalidArgument, flag, " ", path, ": it is a folder: expected a file");
  if (std::ifstream(path)) return {};
  return fail(Code::kInvalidArgument, flag, " ", path, ": cannot be read: ", std::strerror(errno));
}

Result<std::string> read_secret_file(const std::string& flag, const std::string& path, size_t bytes_min) {
  if (path.empty()) return std::string();
  const auto wrong = [&](const auto&... what) { return fail(Code::kInvalidArgument, flag, " ", path, ": ", what...); };
  SEER_RETURN_IF_ERROR(check_readable(flag, path));
  std::ifstream file(path);
  std::string secret;
  std::getline(file, secret);
  while (secret.ends_with('\r') || secret.ends_with(' ')) secret.pop_back();
  if (secret.size() < bytes_min)
    return wrong("expected a first line of at least ", bytes_min, bytes_min == 1 ? " character" : " characters");
  return secret;
}

}  // namespace seer
