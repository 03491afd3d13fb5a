#include "cli/machine_memory.h"

#include <doctest/doctest.h>

#include <limits>

#include "cli/scratch.h"

using namespace seer;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kMiB = 1 << 20, kGiB = 1 << 30;

/// A root folder with the files of /proc and /sys/fs/cgroup about memory.
struct Machine {
  Machine() {
    write("proc/meminfo", "MemTotal:        8388608 kB\nMemFree:  1 kB\nMemAvailable:    4194304 kB\n");
  }
  void write(const std::string& name, const std::string& text) {
    fs::create_directories(fs::path(root.path(name)).parent_path());
    root.write(name, text);
  }
  void group(const std::string& path, const std::string& limit, int64_t used, int64_t cached) {
    write(path + "/memory.max", limit + "\n");
    write(path + "/memory.current", std::to_string(used) + "\n");
    write(path + "/memory.stat", "anon 5\ninactive_file " + std::to_string(cached) + "\n");
  }
  MachineMemory memory() const { return find_memory(root.path("")); }
  ScratchFolder root;
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("machine memory: without control groups it is the machine's, and available memory counts as free") {
  const Machine machine;
  CHECK(machine.memory().bytes == 8 * kGiB);
  CHECK(machine.memory().free_bytes == 4 * kGiB);
}

TEST_CASE("machine memory: the smallest limit of the control groups around the process counts") {
  Machine machine;
  machine.write("proc/self/cgroup", "0::/user.slice/job\n");
  machine.group("sys/fs/cgroup", "max", 7 * kGiB, 0);
  machine.group("sys/fs/cgroup/user.slice", std::to_string(2 * kGiB), 512 * kMiB, 0);
  machine.group("sys/fs/cgroup/user.slice/job", "max", 100 * kMiB, 0);
  CHECK(machine.memory().bytes == 2 * kGiB);
  CHECK(machine.memory().free_bytes == 2 * kGiB - 512 * kMiB);
  machine.group("sys/fs/cgroup/user.slice/job", std::to_string(kGiB), 900 * kMiB, 600 * kMiB);
  CHECK(machine.memory().bytes == kGiB);
  CHECK(machine.memory().free_bytes == kGiB - 300 * kMiB);  // cached files give way
}

TEST_CASE("machine memory: in a container the path of its group may be the host's, and version 1 has other names") {
  Machine machine;
  machine.write("proc/self/cgroup", "7:cpu:/docker/123\n4:memory:/docker/123\n0::/\n");
  machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(kGiB));
  machine.write("sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(1500 * kMiB));
  CHECK(machine.memory().bytes == kGiB);
  CHECK(machine.memory().free_bytes == 0);
  machine.write("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file " + std::to_string(700 * kMiB) + "\n");
  CHECK(machine.memory().free_bytes == kGiB - 800 * kMiB);
  machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");  // none
  CHECK(machine.memory().bytes == 8 * kGiB);
}

TEST_CASE("machine memory: CPUs are no more than the quotas of the control groups, of version 2 and 1") {
  Machine machine;
  const auto cpus = [&] { return find_cpus(machine.root.path("")); };
  const int64_t all = cpus();
  CHECK(all >= 1);
  machine.write("proc/self/cgroup", "0::/user.slice/job\n5:cpu,cpuacct:/docker/1\n");
  machine.write("sys/fs/cgroup/cpu.max", "max 100000\n");
  machine.write("sys/fs/cgroup/user.slice/cpu.max", cat(100 * all, "000 100000\n"));
  CHECK(cpus() == all);
  machine.write("sys/fs/cgroup/user.slice/job/cpu.max", "50000 100000\n");
  CHECK(cpus() == 1);
  machine.write("sys/fs/cgroup/user.slice/job/cpu.max", "max 100000\n");
  machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  machine.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  CHECK(cpus() == all);
  machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "90000\n");
  CHECK(cpus() == 1);
}

TEST_CASE("machine memory: a demand larger than the machine is refused by itself, however much of it would be used") {
  const MachineMemory machine{.bytes = 4 * kGiB, .free_bytes = 2 * kGiB};
  CHECK(check_memory({{"--a 1", 4 * kGiB, 0}, {"--b 2", kGiB, 2 * kGiB}}, machine).ok());
  const Status refused = check_memory({{"--a 1", kGiB, 0}, {"--b 2", 4 * kGiB + 1, 0}}, machine);
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == Code::kInvalidArgument);
  CHECK(refused.error().detail == "--b 2 may take 4.0 GiB of memory, but this machine has 4.0 GiB");
}

TEST_CASE("machine memory: demands that together may use more than is free are refused, each with its share") {
  const MachineMemory machine{.bytes = 4 * kGiB, .free_bytes = 2 * kGiB};
  const Status refused = check_memory({{"--a 1", 2 * kGiB, 2 * kGiB}, {"--b 2", 2 * kGiB, 300 * kMiB}}, machine);
  REQUIRE(!refused.ok());
  for (const char* part : {"2.3 GiB are needed", "2.0 GiB of 4.0 GiB are free", "--a 1 (2.0 GiB)", "--b 2 (300.0 MiB)"})
    CHECK_MESSAGE(contains(refused.error().detail, part), refused.error().detail);
}

TEST_CASE("machine memory: products of sizes end at the largest number") {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  CHECK(bytes_of(3, 5) == 15);
  CHECK(bytes_of(kMost, 2) == kMost);
  CHECK(bytes_of(kMost, 0) == 0);
  CHECK(size_text(kMost) == "8.0 EiB");
  CHECK(size_text(1536 * kMiB) == "1.5 GiB");
}

TEST_CASE("machine memory: weights are those in the model's folder, half of them as int8") {
  const ScratchFolder folder;
  folder.write("a-00001-of-00002.safetensors", std::string(1000, 'x'));
  folder.write("a-00002-of-00002.safetensors", std::string(500, 'x'));
  folder.write("tokenizer.json", std::string(7000, 'x'));
  CHECK(demand_of_weights(folder.path(""), WeightType::kAsStored).used_bytes == 1500);
  for (const WeightType weights : {WeightType::kInt8, WeightType::kW8a8})
    CHECK(demand_of_weights(folder.path(""), weights).asked_bytes == 750);
  CHECK(demand_of_weights(folder.path("none"), WeightType::kAsStored).used_bytes == 0);
}
