// Communicator: how the ranks of an engine, the GPUs that compute one model together, exchange what they have computed. It copies
// bytes and never adds, so that no choice of a library changes a bit: kernels add what was gathered, in the order of the ranks.
// GPUs use NCCL; emulated devices go through memory of the host. Used by CudaRank and CudaForward.
//
// A rank that fails or hangs fails its peers too: the error says which rank it was.
//
// Thread-safe as a Device is.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gpu/cuda/device.h"

namespace seer::cuda {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t ranks() const = 0;

  /// Queues on the steps' stream: `memory` has `bytes` for each rank, in order; this rank's go to all others, and theirs come here.
  /// REQUIRES: every rank gathers the same bytes, in the same order; at most the bytes_max that it was made for.
  virtual void all_gather(std::byte* memory, int64_t bytes) = 0;
  /// Whether every rank says yes: by the thread that queues, which waits for the others. False also where one fails.
  /// REQUIRES: every rank asks, in the same order.
  virtual bool agree(bool yes) = 0;
  /// As Device::wait(). If a peer has failed, or nothing ends within the timeout, the device fails instead.
  virtual Status wait(EventId event) = 0;
  /// Makes all ranks fail. No wait() and no gather goes on after it.
  virtual void abort(const Error& why) = 0;
};

struct CommunicatorConfig {
  int64_t bytes_max = 0;            // that a rank gives to one gather
  int64_t timeout_us = 60'000'000;  // that a rank waits for its peers
};

/// One for each device, in order; the devices outlive them. The memory of the first serves all of them: it must be destroyed last.
/// Errors: kFull, kUnavailable (GPUs without NCCL; it cannot connect them).
Result<std::vector<std::unique_ptr<Communicator>>> make_communicators(std::span<Device* const> devices, const CommunicatorConfig& config);

/// The version of NCCL that make_communicators() would use, as "2.28.9". Errors: kUnavailable (a build without it, no library).
Result<std::string> nccl_version();

}  // namespace seer::cuda
