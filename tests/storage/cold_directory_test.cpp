#include "storage/cold_directory.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

using namespace seer;
namespace fs = std::filesystem;

namespace {

/// A folder that goes with the test.
struct Scratch {
  Scratch() {
    std::string pattern = (fs::temp_directory_path() / "seer-cold-directory-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~Scratch() { fs::remove_all(path); }
  fs::path path;
};

void put_file(const fs::path& path) { std::ofstream(path) << "bytes"; }

}  // namespace

TEST_CASE("cold directory: it is made if needed, is empty when taken, and leaves only its folder afterwards") {
  Scratch scratch;
  const fs::path dir = scratch.path / "cold";
  {
    auto taken = ColdDirectory::take(dir.string());
    REQUIRE(taken.ok());
    CHECK(fs::is_empty((*taken)->data()));
    put_file(fs::path((*taken)->data()) / "block");
  }
  CHECK(fs::is_directory(dir));
  CHECK(fs::is_empty(dir));
}

TEST_CASE("cold directory: leftovers of a killed process are removed when it is taken again") {
  Scratch scratch, kept;
  {
    auto taken = ColdDirectory::take(scratch.path.string());
    REQUIRE(taken.ok());
    put_file(fs::path((*taken)->data()) / "block");
    fs::copy(scratch.path, kept.path, fs::copy_options::recursive);  // as it would be found after a crash
  }
  auto again = ColdDirectory::take(kept.path.string());
  REQUIRE(again.ok());
  CHECK(fs::is_empty((*again)->data()));
}

TEST_CASE("cold directory: a folder with anything else in it is refused, and nothing of it is touched") {
  Scratch scratch;
  put_file(scratch.path / "thesis.tex");
  const auto taken = ColdDirectory::take(scratch.path.string());
  REQUIRE_FALSE(taken.ok());
  CHECK(taken.error().detail.find(scratch.path.string()) != std::string::npos);
  CHECK(fs::exists(scratch.path / "thesis.tex"));
}

TEST_CASE("cold directory: a second holder is refused while the first has it") {
  Scratch scratch;
  auto first = ColdDirectory::take(scratch.path.string());
  REQUIRE(first.ok());
  CHECK_FALSE(ColdDirectory::take(scratch.path.string()).ok());
  first->reset();
  CHECK(ColdDirectory::take(scratch.path.string()).ok());
}
