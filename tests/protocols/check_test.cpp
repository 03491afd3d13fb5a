#include "protocols/check.h"

#include <doctest/doctest.h>

#include <csignal>
#include <string>

#include "protocols/process_outcome.h"

using namespace seer;

TEST_CASE("check: a condition that does not hold ends the process, and says which and with what values") {
  const auto [text, signal] = outcome([] {
    const int used = 3;
    SEER_CHECK(used < 2, used, "of two");
  });
  CHECK(signal == SIGABRT);
  CHECK(text.find("check_test.cpp:") != std::string::npos);
  CHECK(text.find("check failed: used < 2 | 3 | of two\n") != std::string::npos);
}

TEST_CASE("check: a condition that holds is asked once, and its values not at all") {
  int asked = 0, values = 0;
  const auto holds = [&] { return ++asked > 0; };
  const auto value = [&] { return ++values; };
  SEER_CHECK(holds(), value());
  CHECK(asked == 1);
  CHECK(values == 0);
}
