#include "gpu/model/weight_memory.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "gpu/tiny_model.h"

namespace seer {
namespace {

/// Memory of another process, as far as WeightMemory sees.
struct Memfd {
  int descriptor = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ~Memfd() { ::close(descriptor); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor); }
  void seal(int seals) { REQUIRE(::fcntl(descriptor, F_ADD_SEALS, seals) == 0); }
};

constexpr int kWhole = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;

}  // namespace

TEST_CASE("weight memory: what was opened has the bytes and the checksum of what was appended, and outlives its maker") {
  std::string bytes(3'000'001, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i >> 7);
  const auto appended = *WeightMemory::create();
  REQUIRE(appended->append(bytes.substr(0, 1'000'000)).ok());
  REQUIRE(appended->append(bytes.substr(1'000'000)).ok());
  Result<std::shared_ptr<WeightMemory>> opened = fail(Code::kNotFound, "not yet");
  {
    Memfd memory;
    REQUIRE(::write(memory.descriptor, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    memory.seal(kWhole);
    opened = WeightMemory::open(memory.path());
  }
  REQUIRE_MESSAGE(opened.ok(), opened.error().detail);
  CHECK((*opened)->bytes() == bytes.size());
  CHECK(*(*opened)->read(0, bytes.size() + 1) == bytes);
  CHECK(*(*opened)->crc() == *appended->crc());
  REQUIRE(appended->append("x").ok());
  CHECK(*(*opened)->crc() != *appended->crc());
}

TEST_CASE("weight memory: what somebody could still change, and what is no memory, is refused") {
  for (const int missing : {F_SEAL_WRITE, F_SEAL_SHRINK, F_SEAL_GROW}) {
    CAPTURE(missing);
    Memfd memory;
    memory.seal(kWhole & ~missing);
    const auto opened = WeightMemory::open(memory.path());
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.error().detail == memory.path() + " is no memory that is sealed: expected a memfd that nobody can change any more");
  }
  TestFolder folder;
  write_file(folder.path() / "file", "text");
  CHECK(WeightMemory::open((folder.path() / "file").string()).error().code == Code::kInvalidArgument);
  CHECK(WeightMemory::open(folder.path().string()).error().code == Code::kInvalidArgument);
  REQUIRE(::mkfifo((folder.path() / "pipe").c_str(), 0600) == 0);
  CHECK(WeightMemory::open((folder.path() / "pipe").string()).error().code == Code::kInvalidArgument);  // and does not wait for a writer
  CHECK(WeightMemory::open("/proc/self/fd/999999").error().detail == "cannot open the memory /proc/self/fd/999999: No such file or directory");
}

}  // namespace seer
