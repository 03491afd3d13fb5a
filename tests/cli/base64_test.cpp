#include "cli/base64.h"

#include <doctest/doctest.h>

#include <string_view>

using namespace seer;

TEST_CASE("base64: the vectors of RFC 4648") {
  const auto of = [](std::string_view text) { return base64_of(std::as_bytes(std::span(text))); };
  CHECK(of("") == "");
  CHECK(of("f") == "Zg==");
  CHECK(of("fo") == "Zm8=");
  CHECK(of("foo") == "Zm9v");
  CHECK(of("foob") == "Zm9vYg==");
  CHECK(of("fooba") == "Zm9vYmE=");
  CHECK(of("foobar") == "Zm9vYmFy");
  CHECK(of({"\0\xff\xfe", 3}) == "AP/+");
}
