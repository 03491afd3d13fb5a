// Peers: what the communicators of an engine's ranks share: who failed, and places where all wait for each other. Used by
// implementations of Communicator only. Thread-safe.
#pragma once
#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "gpu/cuda/communicator.h"

namespace seer::cuda {

class Peers {
 public:
  Peers(int32_t ranks, int64_t timeout_us)
      : timeout_us_(timeout_us), arrived_(static_cast<size_t>(ranks)), voted_(static_cast<size_t>(ranks)) {}

  int64_t timeout_us() const { return timeout_us_; }
  int32_t ranks() const { return static_cast<int32_t>(arrived_.size()); }
  /// Blocks until every rank has called it as often as this one. An error: some rank failed, or did not come within the timeout.
  Status arrive_and_wait(int32_t rank);
  /// The same with a vote: whether every rank says yes.
  Result<bool> agree(int32_t rank, bool yes);
  /// The first one counts.
  void abort(const Error& why);
  std::optional<Error> failure() const;

 private:
  using Counts = std::vector<int64_t>;  // by rank
  Status wait_for_all(std::unique_lock<std::mutex>& lock, Counts& counts, int32_t rank, const char* to_what);

  const int64_t timeout_us_;
  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  Counts arrived_, voted_;  // how often
  std::array<int64_t, 2> refused_{};  // the last odd and the last even vote with a no: a slow rank may still read one during the next
  std::optional<Error> failure_;
};

/// What the implementations have in common.
class PeerCommunicator : public Communicator {
 public:
  PeerCommunicator(int32_t rank, Device& device, std::shared_ptr<Peers> peers) : rank_(rank), device_(device), peers_(std::move(peers)) {}
  int32_t rank() const override { return rank_; }
  int32_t ranks() const override { return peers_->ranks(); }
  Status wait(EventId event) override;
  bool agree(bool yes) override;
  void abort(const Error& why) override { peers_->abort(why); }

 protected:
  /// An error of the library, found while waiting.
  virtual Status check() { return {}; }
  /// Ends what the library has on the device, also a gather that another thread is just queuing. By any thread.
  virtual void end_gathers() {}
  std::string name() const { return cat("rank ", rank_, " of ", ranks()); }

  const int32_t rank_;
  Device& device_;
  const std::shared_ptr<Peers> peers_;
};

/// Over NCCL. Errors: kUnavailable.
Result<std::vector<std::unique_ptr<Communicator>>> make_nccl_communicators(std::span<Device* const> devices,
                                                                           const CommunicatorConfig& config);

}  // namespace seer::cuda
