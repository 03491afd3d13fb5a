#include "cli/machine_memory.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

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

/// Applies the limits of the group at `path` below the mount and of all groups above it. In a container the path may be the
/// host's; then only the mount itself exists.
void apply_groups(const fs::path& root, const GroupFiles& files, const fs::path& path, MachineMemory& memory) {
  const fs::path mount = root / files.mount;
  for (fs::path at = path.relative_path(); !at.empty(); at = at.parent_path()) apply_group(mount / at, files, memory);
  apply_group(mount, files, memory);
}

}  // namespace

MachineMemory find_memory(const fs::path& root) {
  MachineMemory memory;
  memory.bytes = value_after(root / "proc/meminfo", "MemTotal:").value_or(0) << 10;
  memory.free_bytes = value_after(root / "proc/meminfo", "MemAvailable:").value_or(0) << 10;
  // Lines of "0::/path" (version 2) and "4:memory:/path" (version 1).
  std::ifstream groups(root / "proc/self/cgroup");
  fs::path version_1 = "/", version_2 = "/";
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string kinds = line.substr(first + 1, second - first - 1);
    if (kinds.empty()) version_2 = line.substr(second + 1);
    if (kinds == "memory") version_1 = line.substr(second + 1);
  }
  apply_groups(root, kVersion2, version_2, memory);
  apply_groups(root, kVersion1, version_1, memory);
  return memory;
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

MemoryDemand demand_of_weights(const fs::path& folder, bool as_int8) {
  int64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() != ".safetensors") continue;
    std::error_code no_size;
    const uintmax_t size = fs::file_size(at->path(), no_size);
    if (!no_size) bytes += static_cast<int64_t>(size);
  }
  if (as_int8) bytes /= 2;
  return {cat("the weights of ", folder.string()), bytes, bytes};
}

}  // namespace seer
