#include "cli/router_options.h"

#include <doctest/doctest.h>

#include "cli/scratch.h"

using namespace seer;

TEST_CASE("router options: a token goes to another host only over TLS, unless that is asked for") {
  RouterOptions options{.token_file = "t"};
  for (const char* const engine : {"http://a:1", "vllm=http://10.0.0.1:8000", "seer=http://[2001:db8::1]:30000"}) {
    CAPTURE(engine);
    const auto refused = server_of(engine, options);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().detail == cat(engine, ": the token would go to another host without TLS: expected https://, or --engine-insecure"));
    options.insecure = true;
    CHECK(server_of(engine, options).ok());
    options.insecure = false;
    CHECK(server_of(engine, {}).ok());  // there is no token
  }
  for (const char* const engine : {"https://a:1", "sglang=http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1"}) CHECK(server_of(engine, options).ok());
}

TEST_CASE("router options: a wrong server is named") {
  CHECK(check_router({.engines = {"sglang=https://a:30000", "vllm=http://b:8000"}}).ok());
  CHECK(check_router({.engines = {"trt=http://a:1"}}).error().detail == "--engines trt=http://a:1: expected sglang=URL, vllm=URL or seer=URL");
  CHECK(check_router({.engines = {"https://a"}}).error().detail == "--engines https://a: expected http://HOST:PORT or https://HOST:PORT");
  CHECK(server_of("seer=https://a:1", {.silence_s = 7})->silence_us == 7'000'000);
}

TEST_CASE("router options: the token is the first line of its file") {
  const ScratchFolder folder;
  CHECK(*read_engine_token({}) == "");
  CHECK(*read_engine_token({.token_file = folder.write("t", "abc \r\nmore\n")}) == "abc");
  CHECK(read_engine_token({.token_file = folder.path("none")}).error().detail ==
        cat("--engine-token-file ", folder.path("none"), ": cannot be read: No such file or directory"));
}
