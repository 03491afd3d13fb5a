// UcxSlabs: slabs that UCX allocated in shared memory, and what a peer on the same host needs in order to map one. Used by
// ucx_transport.cpp. Thread-safe. Each slab keeps this object alive.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "storage/slab.h"
#include "storage/ucx_handles.h"
#include "storage/ucx_wire.h"

namespace seer {

/// Processes with the same name can map each other's memory: one kernel, and the same names for processes and segments.
std::string ucx_host_name();

class UcxSlabs : public std::enable_shared_from_this<UcxSlabs> {
 public:
  /// `context`: of shared memory only.
  explicit UcxSlabs(std::shared_ptr<UcxContext> context) : context_(std::move(context)) {}

  /// kIo: UCX or the system refuses it. REQUIRES: bytes > 0.
  Result<Slab> allocate(int64_t bytes);
  /// Adds to `address` how others map the slab that begins at `base`, if it was allocated here.
  void describe(const std::byte* base, UcxAddress& address) const;

 private:
  struct Known {
    size_t bytes = 0;
    std::string key;
  };
  void forget(const std::byte* base);

  const std::shared_ptr<UcxContext> context_;
  mutable std::mutex mutex_;  // guards known_
  std::map<const std::byte*, Known> known_;  // slabs by their first byte
};

}  // namespace seer
