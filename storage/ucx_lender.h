// UcxLender: answers the requests of other processes for blocks of the arenas published here: with the bytes of a block, with a
// grant to read it out of the slab, or with an error. Part of ucx_transport.cpp: publish() and withdraw() may be called by any
// thread, the rest by its thread.
//
// What is always true:
//  (1) a request without the tag, or damaged, gets no answer, and nothing is connected for it;
//  (2) there is at most one connection for the answers to each asker, and at most `askers_max` in all. The one unused longest
//      makes room for another.
#pragma once
#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "storage/arena_registry.h"
#include "storage/ucx_connection.h"
#include "storage/ucx_wire.h"

namespace seer {

class UcxLender {
 public:
  /// Refuses requests while `blocks_max` answers wait to be sent.
  UcxLender(const UcxTag& tag, size_t blocks_max, size_t askers_max) : tag_(tag), blocks_max_(blocks_max), askers_max_(askers_max) {}

  void publish(NodeId node, uint64_t epoch, std::shared_ptr<HostArena> arena) {
    (void)arenas_.publish(node, epoch, std::move(arena));
  }
  void withdraw(NodeId node, uint64_t epoch) { arenas_.withdraw(node, epoch); }

  /// A message came that may be a request. UCX calls this while it delivers the message, so advance() connects and answers.
  void receive(std::span<const std::byte> header, std::span<const std::byte> data);
  /// Answers new requests, and sends for some 100 us. False: there was nothing to do, or UCX takes nothing now.
  bool advance(UcxConnections& connections);
  void close_all(UcxConnections& connections);

 private:
  struct Request {
    WireRequest header;
    std::string asker;  // address
    std::vector<WireSlot> slots;
  };
  struct Reply {
    WireReply header;
    std::string data = {};                   // what follows the header, if it is not a block
    std::shared_ptr<HostArena> arena = {};   // that holds the block
    std::span<const std::byte> block = {};   // what was not sent of it
  };
  struct Asker {
    std::string address;
    uint64_t link = 0;
    std::unique_ptr<UcxConnection> connection;
    std::deque<Reply> replies;
  };
  using Askers = std::list<Asker>;

  /// Null: its replies are not wanted any more, or it cannot be reached.
  Asker* asker_of(const Request& request, UcxConnections& connections);
  Askers::iterator drop(Askers::iterator asker, UcxConnections& connections);
  void answer(const Request& request, Asker& asker);
  /// The arena that holds the block, or why it may not be lent.
  Result<std::shared_ptr<HostArena>> lend(const WireRequest& request, const WireSlot& slot);
  void add(Asker& asker, Reply reply);
  /// False: nothing was sent.
  bool send_to(Asker& asker);

  const UcxTag tag_;
  const size_t blocks_max_, askers_max_;
  ArenaRegistry arenas_;
  std::deque<Request> requests_;
  Askers askers_;               // the one that asked last is the last
  size_t replies_ = 0;          // that wait to be sent, to all askers
};

}  // namespace seer
