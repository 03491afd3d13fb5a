// LocalTransport: a KvTransport between arenas of one process, as memory copies on a thread of its own. For several
// (simulated) nodes in one process and for instances that do not share an arena. Thread-safe.
//
// Each fetch is checked as a remote one would be (ArenaRegistry). Whether it is late is checked before each block is copied, so a
// late fetch writes nothing more: its result is final, and `quiet` is never called. Results come in the order of the
// fetches, on the transport's thread, or on the thread that destroys the transport.
#pragma once
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "protocols/workers.h"
#include "storage/arena_registry.h"
#include "storage/kv_transport.h"

namespace seer {

struct LocalTransportConfig {
  size_t queue_max = 1024;  // fetch calls open at most
};

class LocalTransport final : public KvTransport {
 public:
  explicit LocalTransport(const LocalTransportConfig& config = {});
  ~LocalTransport() override;  // fetches that are still queued are answered with kCancelled

  std::string publish(NodeId node, uint64_t epoch, std::shared_ptr<HostArena> arena) override {
    return arenas_.publish(node, epoch, std::move(arena));
  }
  void withdraw(NodeId node, uint64_t epoch) override { arenas_.withdraw(node, epoch); }
  Status open_peer(NodeId node, uint64_t epoch, const std::string& address) override {
    return arenas_.open_peer(node, epoch, address);
  }
  /// Its fetches fail when they reach the front of the queue, after the copies before them.
  void close_peer(NodeId node, uint64_t epoch) override { arenas_.close_peer(node, epoch); }
  std::string peer_info(NodeId) const override { return "memory of this process"; }
  Status fetch(std::vector<Fetch> fetches, int64_t timeout_us, FetchEvents events) override;

 private:
  struct Operation {
    std::vector<Fetch> fetches;
    int64_t timeout_us = 0;
    FetchEvents events;
  };

  void run(Operation& operation);

  const LocalTransportConfig config_;
  ArenaRegistry arenas_;
  std::atomic<size_t> queued_ = 0;
  Workers<Operation> thread_;  // last: joined before anything it uses is destroyed
};

}  // namespace seer
