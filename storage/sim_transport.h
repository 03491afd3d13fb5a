// SimTransport: the transport seam on a virtual clock: copies between arenas of one process that take the time that a
// network would. Deterministic; single-threaded. Faults are decided by a hook.
//
// The bytes of a block are written when its time on the network is over. So a fetch that timed out may still write, as a
// network card would: its slots must not be reused until `quiet`.
//
// With a clock, fetches share links: each node sends, and receives, `bytes_per_s` at most. A fetch waits at both ends for the bytes
// of the fetches before it, and arrives when the slower end has moved its own. Without a clock each fetch has the bandwidth alone.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "storage/arena_registry.h"
#include "storage/kv_transport.h"

namespace seer {

struct SimTransportConfig {
  int64_t latency_us = 20;                      // of each fetch call
  int64_t bytes_per_s = 10'000'000'000;
  size_t queue_max = 256;                       // fetch calls open at most, late ones included
  std::function<std::optional<Code>(const RemoteSlot&)> fault = {};  // the error of one fetch, or nothing
  std::function<int64_t()> late_us = {};        // extra time of a fetch call
  std::function<int64_t()> now_us = {};         // the clock; empty: links are not shared
};

class SimTransport final : public KvTransport {
 public:
  /// Runs a function after a delay, later and on the caller's thread.
  using Schedule = std::function<void(int64_t delay_us, std::function<void()>)>;
  SimTransport(SimTransportConfig config, Schedule schedule);
  ~SimTransport() override;  // fetches that are open are answered with kCancelled, late ones are quiet

  std::string publish(NodeId node, uint64_t epoch, std::shared_ptr<HostArena> arena) override {
    return arenas_.publish(node, epoch, std::move(arena));
  }
  void withdraw(NodeId node, uint64_t epoch) override { arenas_.withdraw(node, epoch); }
  Status open_peer(NodeId node, uint64_t epoch, const std::string& address) override {
    return arenas_.open_peer(node, epoch, address);
  }
  void close_peer(NodeId node, uint64_t epoch) override;
  std::string peer_info(NodeId) const override { return "simulated"; }
  Status fetch(std::vector<Fetch> fetches, int64_t timeout_us, FetchEvents events) override;

 private:
  struct Operation {
    std::vector<Fetch> fetches;
    FetchEvents events;
    bool late = false;  // `done` was called already
  };

  int64_t alone_us(int64_t bytes) const { return bytes * 1'000'000 / config_.bytes_per_s; }
  /// Time until the bytes of fetches from `from` to the node of `to` have passed their links.
  int64_t wire_us(NodeId from, std::span<const std::byte> to, int64_t bytes);
  void arrive(uint64_t id);
  void expire(uint64_t id, int64_t timeout_us);
  /// Ends an operation without its bytes.
  void give_up(uint64_t id, const Error& why);

  SimTransportConfig config_;
  Schedule schedule_;
  ArenaRegistry arenas_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, Operation> open_;
  std::map<NodeId, int64_t> sends_until_us_, receives_until_us_;  // when the bytes of all fetches so far have passed
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // timers that fire after our destruction do nothing
};

}  // namespace seer
