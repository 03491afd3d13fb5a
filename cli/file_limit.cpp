#include "cli/file_limit.h"

#include <sys/resource.h>

#include <algorithm>

namespace seer {
namespace {

constexpr rlim_t kFiles = 65536;  // as in deploy/systemd
constexpr rlim_t kKeptMin = 256;

}  // namespace

void raise_file_limit() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = std::max(files.rlim_cur, std::min(files.rlim_max, kFiles));
  setrlimit(RLIMIT_NOFILE, &files);
}

size_t connections_that_fit(size_t asked) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return asked;
  const rlim_t kept = std::min(files.rlim_cur / 2, std::max(files.rlim_cur / 8, kKeptMin));
  return std::min<rlim_t>(asked, files.rlim_cur - kept);
}

}  // namespace seer
