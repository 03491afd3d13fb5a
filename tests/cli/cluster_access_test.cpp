#include "cli/host_port.h"

#include <doctest/doctest.h>

using namespace seer;

TEST_CASE("host port: an address of this machine is read, and port 0 only where the system may choose") {
  const auto at = parse_host_port("--join", "127.0.0.1:65535", false);
  REQUIRE(at.ok());
  CHECK(at->host == "127.0.0.1");
  CHECK(at->port == 65535);
  CHECK(parse_host_port("--listen", "localhost:0", true)->host == "127.0.0.1");
  CHECK_FALSE(parse_host_port("--join", "127.0.0.1:0", false).ok());
}

TEST_CASE("host port: what is none is named with its flag and what was expected") {
  for (const char* text : {"", "7000", ":7000"})
    CHECK(parse_host_port("--join", text, false).error().detail ==
          cat("--join ", text, ": expected HOST:PORT, as 127.0.0.1:7000"));
  for (const char* text : {"127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:7000x", "127.0.0.1:-1", "127.0.0.1: 7"})
    CHECK(parse_host_port("--join", text, false).error().detail ==
          cat("--join ", text, ": expected a port from 1 to 65535 after the colon"));
  CHECK(parse_host_port("--listen", "0.0.0.0:7000", true).error().detail ==
        "--listen 0.0.0.0:7000: expected 127.0.0.1 as the host: machines of a cluster are processes of one machine as yet");
}
