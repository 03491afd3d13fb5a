#include "storage/directory_lock.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

using namespace seer;
namespace fs = std::filesystem;

namespace {

constexpr DirectoryKind kKind = {.name = "test directory", .lock_file = "test.lock", .data = "data"};

struct TempDir {
  TempDir() {
    std::string name = (fs::temp_directory_path() / "seer_lock_XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~TempDir() { fs::remove_all(path); }
  void write(const std::string& file) const { std::ofstream(path + "/" + file) << "mine"; }
  std::string path;
};

void check_taken(const std::string& path) {
  const auto lock = DirectoryLock::take(path, kKind);
  CHECK_MESSAGE(lock.ok(), (lock.ok() ? "" : lock.error().detail));
}
/// One sentence that names the path, and also `what`.
void check_refused(const std::string& path, Code code, const std::string& what) {
  const auto lock = DirectoryLock::take(path, kKind);
  REQUIRE_FALSE(lock.ok());
  CAPTURE(lock.error().detail);
  CHECK(lock.error().code == code);
  for (const std::string& word : {std::string(kKind.name), path, what})
    CHECK(lock.error().detail.find(word) != std::string::npos);
  CHECK(lock.error().detail.find('\n') == std::string::npos);
}

}  // namespace

TEST_CASE("directory lock: one holder at a time takes a new directory, and the next one finds its data") {
  const TempDir dir;
  const std::string path = dir.path + "/in/depth";
  {
    auto lock = DirectoryLock::take(path, kKind);
    REQUIRE(lock.ok());
    fs::create_directory(path + "/data");
    check_refused(path, Code::kUnavailable, "in use by another process");
    const DirectoryLock moved = *std::move(lock);
    check_refused(path, Code::kUnavailable, "in use by another process");
  }
  check_taken(path);
  CHECK(fs::exists(path + "/data"));
}

TEST_CASE("directory lock: a directory with files of others is refused, naming one of them, and left unchanged") {
  const TempDir dir;
  SUBCASE("it was never Seer's") {
    dir.write("thesis.tex");
    check_refused(dir.path, Code::kInvalidArgument, "thesis.tex");
    CHECK_FALSE(fs::exists(dir.path + "/test.lock"));
  }
  SUBCASE("something was put into one of Seer's") {
    check_taken(dir.path);
    dir.write("thesis.tex");
    check_refused(dir.path, Code::kInvalidArgument, "thesis.tex");
  }
  SUBCASE("its data only has the name of Seer's") {
    fs::create_directory(dir.path + "/data");
    check_refused(dir.path, Code::kInvalidArgument, "data");
  }
  SUBCASE("a fresh file system's own folder is nobody's") {
    fs::create_directory(dir.path + "/lost+found");
    check_taken(dir.path);
  }
}

TEST_CASE("directory lock: without its lock file a directory is not known as Seer's") {
  const TempDir dir;
  {
    auto lock = DirectoryLock::take(dir.path, kKind);
    REQUIRE(lock.ok());
    lock->remove_file();
  }
  CHECK(fs::is_empty(dir.path));
  fs::create_directory(dir.path + "/data");
  check_refused(dir.path, Code::kInvalidArgument, "data");
}

TEST_CASE("directory lock: nobody shares it, though holders remove the file while others open it") {
  const TempDir dir;
  std::atomic<int> holders{0}, held{0}, shared{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      while (held < 1000) {
        auto lock = DirectoryLock::take(dir.path, kKind);
        if (!lock.ok()) continue;
        shared += ++holders > 1 ? 1 : 0;
        ++held;
        std::this_thread::yield();
        --holders;
        lock->remove_file();
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(shared.load() == 0);
}

TEST_CASE("directory lock: a path that cannot be made or written to is refused by name") {
  check_refused("/proc/seer_lock", Code::kIo, "cannot create");
  const TempDir dir;
  dir.write("file");
  check_refused(dir.path + "/file/below", Code::kIo, "cannot create");
}
