#include "cli/machine_memory.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "protocols/text.h"

namespace seer {
namespace {

namespace fs = std::filesystem;

/// The number after `key` in a file of lines like "MemTotal:  123 kB" or "inactive_file 123".
std::optional<int64_t> value_after(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    int64_t value = 0;
    if (line.starts_with(key) && std::istringstream(line.substr(key.size())) >> value) return value;
  }
  return std::nullopt;
}

/// The number that a file holds, or nothing: "max" is not a number.
std::optional<int64_t> value_in(const fs::path& path) {
  int64_t value = 0;
  if (std::ifstream(path) >> value) return value;
  return std::nullopt;
}

/// Names of the files of a control group, by version.
struct GroupFiles {
  const char* mount;
  const char* limit;
  const char* used;
  std::array<const char*, 2> cached;  // keys in memory.stat: file pages, which the kernel drops before it refuses memory
};
constexpr GroupFiles kVersion2{"sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file ", "active_file "}};
constexpr GroupFiles kVersion1{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file ", "total_active_file "}};

void apply_group(const fs::path& group, const GroupFiles& files, MachineMemory& memory) {
  const auto limit = value_in(group / files.limit), used = value_in(group / files.used);
  if (!limit || !used || *limit >= memory.bytes) return;
  int64_t cached = 0;
  for (const char* const key : files.cached) cached += value_after(group / "memory.stat", key).value_or(0);
  memory.bytes = *limit;
  memory.free_bytes = std::clamp<int64_t>(*limit - (*used - cached), 0, memory.free_bytes);
}

/// Calls apply() for the group at `path` below the mount and all groups above it. In a container the path may be the host's; then
/// only the mount itself exists.
void for_each_group(const fs::path& mount, const fs::path& path, const std::function<void(const fs::path&)>& apply) {
  for (fs::path at = path.relative_path(); !at.empty(); at = at.parent_path()) apply(mount / at);
  apply(mount);
}

/// Paths of this process's groups: of version 2, and of version 1 for this kind. Lines are "0::/path" and "4:memory,other:/path".
struct GroupPaths {
  fs::path version_2 = "/", version_1 = "/";
};
GroupPaths find_groups(const fs::path& root, const std::string& kind) {
  GroupPaths found;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string kinds = cat(',', line.substr(first + 1, second - first - 1), ',');
    if (kinds == ",,") found.version_2 = line.substr(second + 1);
    if (kinds.find(cat(',', kind, ',')) != kinds.npos) found.version_1 = line.substr(second + 1);
  }
  return found;
}

}  // namespace

MachineMemory find_memory(const fs::path& root) {
  MachineMemory memory;
  memory.bytes = value_after(root / "proc/meminfo", "MemTotal:").value_or(0) << 10;
  memory.free_bytes = value_after(root / "proc/meminfo", "MemAvailable:").value_or(0) << 10;
  const GroupPaths groups = find_groups(root, "memory");
  for (const auto& [files, path] : {std::pair{&kVersion2, &groups.version_2}, {&kVersion1, &groups.version_1}})
    for_each_group(root / files->mount, *path, [&](const fs::path& group) { apply_group(group, *files, memory); });
  return memory;
}

int64_t find_cpus(const fs::path& root) {
  int64_t cpus = std::max(1u, std::thread::hardware_concurrency());
  const auto apply = [&cpus](int64_t quota_us, int64_t period_us) {
    if (quota_us > 0 && period_us > 0) cpus = std::clamp<int64_t>((quota_us + period_us - 1) / period_us, 1, cpus);
  };
  const GroupPaths groups = find_groups(root, "cpu");
  for_each_group(root / "sys/fs/cgroup", groups.version_2, [&](const fs::path& group) {
    int64_t quota_us = 0, period_us = 0;
    if (std::ifstream(group / "cpu.max") >> quota_us >> period_us) apply(quota_us, period_us);  // else it is "max"
  });
  for_each_group(root / "sys/fs/cgroup/cpu", groups.version_1, [&](const fs::path& group) {
    apply(value_in(group / "cpu.cfs_quota_us").value_or(0), value_in(group / "cpu.cfs_period_us").value_or(0));
  });
  return cpus;
}

int64_t bytes_of(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

std::string size_text(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / (1 << 20);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::array<char, 40> text;
  std::snprintf(text.data(), text.size(), "%.1f %s", value, kUnits[unit]);
  return text.data();
}

Status check_memory(const std::vector<MemoryDemand>& demands, const MachineMemory& machine) {
  if (machine.bytes == 0) return {};  // it is not known
  int64_t used = 0;
  std::string all;
  for (const MemoryDemand& demand : demands) {
    if (demand.asked_bytes > machine.bytes)
      return fail(Code::kInvalidArgument, demand.what, " may take ", size_text(demand.asked_bytes), " of memory, but this machine has ",
                  size_text(machine.bytes));
    used += demand.used_bytes;  // cannot overflow: each is below the machine's memory
    all += cat(all.empty() ? "" : ", ", demand.what, " (", size_text(demand.used_bytes), ")");
  }
  if (used <= machine.free_bytes) return {};
  return fail(Code::kInvalidArgument, "not enough memory: ", size_text(used), " are needed, ", size_text(machine.free_bytes),
              " of ", size_text(machine.bytes), " are free; for ", all);
}

std::string many_requests_text(int64_t requests, int64_t bytes_each) {
  constexpr int64_t kMany = 1'000'000;
  if (requests < kMany) return "";
  return cat(requests, " requests: their bookkeeping takes about ", size_text(bytes_of(requests, bytes_each)), " of memory");
}

MemoryDemand demand_of_weights(const fs::path& folder, WeightType weights) {
  int64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const bool is_other_copy = at->path().filename().string().starts_with("consolidated");  // in Mistral's own format; not read
    if (at->path().extension() != ".safetensors" || is_other_copy) continue;
    std::error_code no_size;
    const uintmax_t size = fs::file_size(at->path(), no_size);
    if (!no_size) bytes += static_cast<int64_t>(size);
  }
  if (weights != WeightType::kAsStored) bytes /= 2;
  return {cat("the weights of ", folder.string()), bytes, bytes};
}

}  // namespace seer
