#include "cli/secret_file.h"

#include <doctest/doctest.h>

#include "cli/scratch.h"

using namespace seer;

TEST_CASE("secret file: the secret is the first line of its file; a file without one is named with its flag") {
  const ScratchFolder folder;
  const auto secret_of = [](const std::string& file) { return read_secret_file("--cluster-secret-file", file); };
  CHECK(*secret_of("") == "");
  CHECK(*secret_of(folder.write("long", std::string(300, 's'))) == std::string(300, 's'));
  CHECK(*secret_of(folder.write("lines", "0123456789abcdef \r\nmore\n")) == "0123456789abcdef");
  const auto refusal = [&](const std::string& file) {
    const Result<std::string> refused = secret_of(file);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == Code::kInvalidArgument);
    return refused.error().detail;
  };
  CHECK(refusal(folder.path("none")) == cat("--cluster-secret-file ", folder.path("none"), ": cannot be read: No such file or directory"));
  for (const char* text : {"", "\n0123456789abcdef", "0123456789abcde", "          \r                  "})
    CHECK(refusal(folder.write("short", text)) ==
          cat("--cluster-secret-file ", folder.path("short"), ": expected a first line of at least 16 characters"));
  CHECK(refusal(folder.path("")) == cat("--cluster-secret-file ", folder.path(""), ": it is a folder: expected a file"));
}
