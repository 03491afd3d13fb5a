// UcxLender: answers the requests of other processes for blocks of the arenas published here: with the bytes of a block, with a
// grant to copy it out of the slab, or with an error. Part of ucx_transport.cpp: answer() is called by its thread; publish() and
// withdraw() by any.
#pragma once
#include <cstddef>
#include <list>
#include <memory>
#include <span>
#include <string>

#include "storage/arena_registry.h"
#include "storage/ucx_handles.h"
#include "storage/ucx_wire.h"

namespace seer {

class UcxLender {
 public:
  /// Refuses requests with another tag, and requests while `blocks_max` answers are in flight. Must outlive the worker.
  UcxLender(const UcxTag& tag, size_t blocks_max) : tag_(tag), blocks_max_(blocks_max) {}

  void publish(NodeId node, uint64_t epoch, std::shared_ptr<HostArena> arena) {
    (void)arenas_.publish(node, epoch, std::move(arena));
  }
  void withdraw(NodeId node, uint64_t epoch) { arenas_.withdraw(node, epoch); }

  void answer(const WireRequest& request, std::span<const WireSlot> slots, ucp_ep_h from);

 private:
  /// An answer on its way out: UCX reads all of it until it is sent.
  struct Reply {
    UcxLender* lender = nullptr;
    WireReply header;
    std::string data = {};                   // what follows the header, if it is not a block
    std::shared_ptr<HostArena> arena = {};  // that holds the block
    std::list<Reply>::iterator self = {};
  };
  /// The arena that holds the block, or why it may not be lent.
  Result<std::shared_ptr<HostArena>> lend(const WireRequest& request, const WireSlot& slot);
  void send(ucp_ep_h to, Reply reply, std::span<const std::byte> block = {});

  const UcxTag tag_;
  const size_t blocks_max_;
  ArenaRegistry arenas_;
  std::list<Reply> replies_;
};

}  // namespace seer
