#include "cli/file_limit.h"

#include <sys/resource.h>

#include <algorithm>

namespace seer {
namespace {

constexpr rlim_t kFiles = 65536;  // as in deploy/systemd

}  // namespace

void raise_file_limit() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = std::max(files.rlim_cur, std::min(files.rlim_max, kFiles));
  setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace seer
