// UcxTransport: the KvTransport between processes, over UCX. Thread-safe.
//
// A fetch asks the owner for its blocks by small messages (ucx_wire.h), several blocks in each. The owner checks each block as a
// local copy is checked (ArenaRegistry) and answers with the bytes, or with an error. The checksum is checked here.
//   TCP          the bytes come with the answer, those of large blocks in several messages, and are copied into the slot.
//   same host    if the owner's arena is in a slab of slab_allocator(), the answer only grants the copy; the slab is mapped
//                here and the block is copied out of it.
//   RDMA         if both hosts have it and the arena is in such a slab, the answer only grants the read; the network card reads
//                the block into the slot (ucx_gets.h). If that fails, the peer is reached over TCP until it is closed.
// Requests and grants always go over TCP: over shared memory UCX does not report a dead peer. So no process writes to another's
// memory at an address it was sent, and a killed process breaks its connections. The owner's lease keeps the slot while it is
// read. If it was reused all the same, the checksum does not match.
//
// One thread does it all: it sends, receives, serves and copies, and sleeps when there is nothing to do. At most `window_blocks`
// blocks are asked of one peer at a time (for grants: as many as one message can name). A connection is made when a fetch needs it.
// The owner answers over a connection of its own (ucx_connection.h says why). When the peer dies or is closed, all fetches from it
// fail, and the next one connects again. After a late fetch, a peer that is silent for silent_us is connected again, and what has
// time left is asked for again. Only a get can still write to the slots of a late fetch: its link is closed by force, and the
// fetch is quiet when UCX has ended its gets. Others that were cut off by this are asked for again.
//
// The address is that of a UCX worker, not a host and port: it names all networks of this host. So nobody has to configure
// which of them the others can reach; UCX chooses.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "storage/kv_transport.h"
#include "storage/slab.h"

namespace seer {

struct UcxTransportConfig {
  std::string network_devices = "all";   // as in UCX_NET_DEVICES; it listens on all of these
  bool shares_memory = true;             // with processes on this host
  // As in UCX_TLS: what gets may use. "rc" reads in hardware, over InfiniBand or RoCE; empty: no gets. With "tcp" UCX emulates
  // them, and whoever reaches its port can kill this process or read its memory: only for tests and measurements.
  std::string get_transports = "rc";
  size_t queue_max = 1024;               // fetch calls open at most: of all requests that come from a machine that drains
  size_t window_blocks = 8;              // asked of one peer at a time, over the network
  size_t serve_blocks_max = 1024;        // answers that wait to be sent; further requests are refused
  size_t askers_max = 1024;              // processes that are answered at a time
  int64_t silent_us = 2'000'000;         // after a late fetch: how long the connection is kept while nothing arrives
};

class UcxTransport final : public KvTransport {
 public:
  /// kUnavailable, kIo: UCX cannot be started.
  static Result<std::unique_ptr<UcxTransport>> create(const UcxTransportConfig& config);
  ~UcxTransport() override;  // fetches that are open are answered with kCancelled, late ones are quiet

  /// Slabs that peers on this host can map and, with RDMA, others can read. They may outlive the transport. Without either:
  /// map_slab. Allocating one may touch all of its memory, and RDMA pins it (`ulimit -l`).
  SlabAllocator slab_allocator() const;

  std::string publish(NodeId node, uint64_t epoch, std::shared_ptr<HostArena> arena) override;
  void withdraw(NodeId node, uint64_t epoch) override;
  /// Does not wait for the peer: if it cannot be reached, the fetches from it fail.
  Status open_peer(NodeId node, uint64_t epoch, const std::string& address) override;
  void close_peer(NodeId node, uint64_t epoch) override;
  Status fetch(std::vector<Fetch> fetches, int64_t timeout_us, FetchEvents events) override;

  /// "shared memory: ...", "network (get over rc_mlx5): ...", "network (tcp): ...".
  std::string peer_info(NodeId node) const override;

 private:
  class Loop;
  explicit UcxTransport(std::unique_ptr<Loop> loop);
  const std::unique_ptr<Loop> loop_;
};

}  // namespace seer
