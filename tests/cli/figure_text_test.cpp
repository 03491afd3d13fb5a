#include "cli/figure_text.h"

#include <doctest/doctest.h>

using namespace seer;

TEST_CASE("figure text: digits stand in groups of three, whatever the sign") {
  CHECK(count_text(0) == "0");
  CHECK(count_text(999) == "999");
  CHECK(count_text(1234567) == "1 234 567");
  CHECK(count_text(-123456) == "-123 456");
}

TEST_CASE("figure text: bytes are scaled, shares are percent, what is unknown is a dash") {
  CHECK(bytes_text(1023) == "1023 B");
  CHECK(bytes_text(3 << 19) == "1.5 MiB");
  CHECK(share_text(0.9) == "90.0 %");
  CHECK(share_text(-1e-16) == "0.0 %");  // 1 - busy / all, rounded
  CHECK(share_text(kUnknown) == "-");
  CHECK(decimal_text(kUnknown, 2) == "-");
}
