#include "protocols/text.h"

#include <doctest/doctest.h>

#include "protocols/ids.h"

using namespace seer;

TEST_CASE("cat: values of any printable type are joined with nothing between them") {
  CHECK(cat("chunk ", ChunkId{8}, ": ", -3, '/', 2.5, std::string(" of "), InstanceId{1}) == "chunk 8: -3/2.5 of 1");
}
