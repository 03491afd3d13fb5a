// UcxSlabs: slabs that one UCX context allocated or registered, and the keys with which peers read them: by mapping a slab of
// shared memory, or by get over a network. Used by ucx_transport.cpp and ucx_gets.cpp. Thread-safe. Each slab keeps this object
// alive.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "storage/slab.h"
#include "storage/ucx_handles.h"

namespace seer {

/// Processes with the same name can map each other's memory: one kernel, and the same names for processes and segments.
std::string ucx_host_name();

class UcxSlabs : public std::enable_shared_from_this<UcxSlabs> {
 public:
  explicit UcxSlabs(std::shared_ptr<UcxContext> context) : context_(std::move(context)) {}

  /// Allocates in a context of shared memory. kIo: UCX or the system refuses it. REQUIRES: bytes > 0.
  Result<Slab> allocate(int64_t bytes);
  /// Registers memory that is there already, for as long as the pointer lives. A network card pins it. kIo: as above.
  Result<std::shared_ptr<void>> register_slab(std::span<std::byte> bytes);
  /// The key of the slab that begins at `base`; empty if it is not known here.
  std::string key_of(const std::byte* base) const;

 private:
  Status remember(const std::byte* base, ucp_mem_h memory);
  void release(const std::byte* base, ucp_mem_h memory);

  const std::shared_ptr<UcxContext> context_;
  mutable std::mutex mutex_;  // guards keys_
  std::map<const std::byte*, std::string> keys_;  // by the first byte of the slab
};

}  // namespace seer
