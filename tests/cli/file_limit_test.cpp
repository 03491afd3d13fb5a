#include "cli/file_limit.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>

using namespace seer;

TEST_CASE("file limit: a low one is raised as far as it may be, a high one stays") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  for (const rlim_t soft : {rlim_t{256}, before.rlim_max}) {
    const rlimit low{soft, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &low) == 0);
    raise_file_limit();
    rlimit after{};
    REQUIRE(getrlimit(RLIMIT_NOFILE, &after) == 0);
    CHECK(after.rlim_cur == std::max(soft, std::min<rlim_t>(before.rlim_max, 65536)));
    CHECK(after.rlim_max == before.rlim_max);
  }
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
}
