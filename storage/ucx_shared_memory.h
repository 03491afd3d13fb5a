// UcxSharedMemory: slabs that other processes on this host can map, and the mappings of theirs. Part of ucx_transport.cpp: slabs()
// may be called by any thread, the rest by its thread.
//
// It has a UCX context and a worker of its own: endpoints over shared memory cannot detect that a peer failed, and a context that
// has such endpoints cannot have endpoints that can. Nothing is sent through this worker.
#pragma once
#include <memory>
#include <string>

#include "storage/ucx_handles.h"
#include "storage/ucx_slabs.h"

namespace seer {

class UcxSharedMemory {
 public:
  /// kUnavailable, kIo: UCX cannot share memory here.
  static Result<std::unique_ptr<UcxSharedMemory>> create();
  /// REQUIRES: no mapping is left.
  ~UcxSharedMemory();
  UcxSharedMemory(const UcxSharedMemory&) = delete;
  UcxSharedMemory& operator=(const UcxSharedMemory&) = delete;

  const std::shared_ptr<UcxSlabs>& slabs() const { return slabs_; }
  /// Maps the slab of another process, which has this key and begins there at `remote_base`. REQUIRES: that process is alive.
  Result<std::unique_ptr<UcxMapping>> map(const std::string& key, uint64_t remote_base) {
    return UcxMapping::create(endpoint_, key, remote_base);
  }

 private:
  UcxSharedMemory() = default;

  std::shared_ptr<UcxSlabs> slabs_;
  std::unique_ptr<UcxWorker> worker_;
  ucp_ep_h endpoint_ = nullptr;  // connected to itself; UCX needs one to unpack a key
};

}  // namespace seer
