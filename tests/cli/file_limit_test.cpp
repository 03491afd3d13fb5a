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

TEST_CASE("file limit: clients' connections leave files for the rest of the process") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE(before.rlim_max >= 4096);
  const auto fit = [&](rlim_t files, size_t asked) {
    const rlimit limit{std::min(files, before.rlim_max), before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    return connections_that_fit(asked);
  };
  CHECK(fit(200, 20'000) == 100);
  CHECK(fit(1024, 20'000) == 768);
  CHECK(fit(4096, 20'000) == 3584);
  CHECK(fit(4096, 10) == 10);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
}
