// MachineMemory: how much memory this process may use, and whether the demand of a command fits into it; and how many CPUs.
// Used by the commands before they start anything, and by `seer doctor`. Pure except find_*() and demand_of_weights().
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "gpu/model/weight_store.h"
#include "protocols/result.h"

namespace seer {

struct MachineMemory {
  int64_t bytes = 0;       // the machine's, or the smallest limit of this process's control groups
  int64_t free_bytes = 0;  // free part of `bytes`; memory that only caches files counts as free
};

/// From <root>/proc and <root>/sys/fs/cgroup (version 2, then 1).
MachineMemory find_memory(const std::filesystem::path& root = "/");

/// CPUs that this process can use at a time, at least 1: those that it may run on, and no more than the quota of its control groups
/// (`docker run --cpus`, limits of Kubernetes).
int64_t find_cpus(const std::filesystem::path& root = "/");

/// Memory for one purpose.
struct MemoryDemand {
  std::string what;         // who asks for it, to begin a sentence: "--kv-bytes 268435456 for 2 instances"
  int64_t asked_bytes = 0;  // most that may be taken
  int64_t used_bytes = 0;   // the part that this run can fill; memory is taken only when first used
};

/// Errors: kInvalidArgument if one demand is larger than the machine's memory, or all together may use more than is free.
Status check_memory(const std::vector<MemoryDemand>& demands, const MachineMemory& machine);

/// a x b, at most the largest int64_t. REQUIRES: neither is negative.
int64_t bytes_of(int64_t a, int64_t b);
/// "1.5 GiB", "300.0 MiB", "97.7 TiB".
std::string size_text(int64_t bytes);

/// "3000000 requests: their bookkeeping takes about 2.8 GiB of memory". Empty below a million requests.
std::string many_requests_text(int64_t requests, int64_t bytes_each);

/// The weights of a model folder: the bytes of all its *.safetensors; half of that where they are kept as integers.
MemoryDemand demand_of_weights(const std::filesystem::path& folder, WeightType weights);

}  // namespace seer
