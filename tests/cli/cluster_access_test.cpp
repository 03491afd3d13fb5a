#include "cli/cluster_access.h"

#include <doctest/doctest.h>

#include "cli/scratch.h"

using namespace seer;

namespace {

const ClusterAccess kNothing, kInsecure{.tls = {}, .insecure = true}, kTls{.tls = {"c", "k", "a"}};

}  // namespace

TEST_CASE("cluster access: an address is read; port 0 is allowed only if the system may choose") {
  const auto at = parse_host_port("--join", "10.0.0.7:65535", false);
  REQUIRE(at.ok());
  CHECK(at->host == "10.0.0.7");
  CHECK(at->port == 65535);
  CHECK(parse_host_port("--listen", "localhost:0", true)->host == "127.0.0.1");
  const auto ipv6 = parse_host_port("--join", "[fd00::7]:7000", false);
  REQUIRE(ipv6.ok());
  CHECK(ipv6->host == "fd00::7");
  CHECK(address_text(ipv6->host, ipv6->port) == "[fd00::7]:7000");
  CHECK(address_text(at->host, at->port) == "10.0.0.7:65535");
  CHECK_FALSE(parse_host_port("--join", "127.0.0.1:0", false).ok());
}

TEST_CASE("cluster access: a wrong address is named with its flag and what was expected") {
  for (const char* text : {"", "7000", ":7000"})
    CHECK(parse_host_port("--join", text, false).error().detail ==
          cat("--join ", text, ": expected HOST:PORT, as 127.0.0.1:7000"));
  for (const char* text : {"127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:7000x", "127.0.0.1:-1", "127.0.0.1: 7"})
    CHECK(parse_host_port("--join", text, false).error().detail ==
          cat("--join ", text, ": expected a port from 1 to 65535 after the colon"));
}

TEST_CASE("cluster access: an address of another host needs certificates, or --insecure") {
  for (const ClusterAccess& access : {kNothing, kInsecure, kTls})
    for (const char* text : {"127.0.0.5:7000", "[::1]:7000"}) CHECK(check_address("--join", text, false, access).ok());
  for (const ClusterAccess& access : {kInsecure, kTls}) CHECK(check_address("--join", "node-3:7000", false, access).ok());
  for (const char* host : {"10.0.0.1", "node-3", "0.0.0.0", "1270.0.0.1", "[::]", "[::2]"})
    CHECK(check_address("--join", cat(host, ":7000"), false, kNothing).error().detail ==
          cat("--join ", host, ":7000 is not of this host: expected --tls-cert, --tls-key and --tls-ca with it, or --insecure"));
}

TEST_CASE("cluster access: certificate, key and CA go together, and without --insecure") {
  CHECK(check_access(kNothing).ok());
  CHECK(check_access(kTls).ok());
  CHECK(check_access(kInsecure).ok());
  CHECK(check_access({.tls = {"c", "", "a"}}).error().detail == "--tls-key is missing: expected --tls-cert, --tls-key and --tls-ca together");
  CHECK(check_access({.tls = {"", "", "a"}}).error().detail == "--tls-cert is missing: expected --tls-cert, --tls-key and --tls-ca together");
  CHECK_FALSE(check_access({.tls = kTls.tls, .insecure = true}).ok());
}

TEST_CASE("cluster access: a file that every user of the machine can read is told from others") {
  const ScratchFolder folder;
  const std::string file = folder.write("secret", "0123456789abcdef\n");
  using std::filesystem::perms;
  for (const auto& [mode, is_open] : {std::pair{perms(0600), false}, {perms(0640), false}, {perms(0644), true}, {perms(0604), true}}) {
    CAPTURE(static_cast<int>(mode));
    std::filesystem::permissions(file, mode);
    CHECK(is_open_to_all(file) == is_open);
  }
  CHECK_FALSE(is_open_to_all(folder.path("none")));
  CHECK_FALSE(is_open_to_all(""));
}
