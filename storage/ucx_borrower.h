// UcxBorrower: fetches blocks from other processes: asks their owners for them, and takes the bytes out of the answers, out of a
// mapped slab, or by gets. The counterpart of UcxLender. Part of ucx_transport.cpp, on its thread; only admit() may be called by
// any thread.
//
// What is always true:
//  (1) each fetch that was begun is done once: when all of its blocks are over, or when nothing of it came for its timeout and nothing
//      else did for which it waits;
//  (2) a block is asked for again only while its fetch has time left, and a late answer to the earlier request is dropped;
//  (3) a slot is written to only while its fetch is open. Only gets of a late fetch may still write; it is quiet once they have ended.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "storage/ucx_connection.h"
#include "storage/ucx_fetch.h"
#include "storage/ucx_gets.h"
#include "storage/ucx_shared_memory.h"
#include "storage/ucx_transport.h"
#include "storage/ucx_wire.h"

namespace seer {

/// How blocks arrive from a peer.
enum class UcxWay : uint8_t { kMemory, kGet, kMessages };

class UcxBorrower {
 public:
  /// What it works with. All of it outlives the borrower.
  struct Parts {
    std::string own_address;  // of the worker that gets the answers
    UcxConnections& connections;
    UcxSharedMemory* memory = nullptr;  // null: memory is not shared
    UcxGets* gets = nullptr;            // null: this process takes no part in gets
    std::function<void(NodeId, uint64_t epoch, std::string)> tell_info;  // how blocks arrive from there has changed
  };
  UcxBorrower(const UcxTransportConfig& config, Parts parts);

  /// Counts one more fetch. kFull: config.queue_max are open.
  Status admit();
  /// REQUIRES: it was admitted; all of its blocks are of one node and epoch.
  void begin(const std::shared_ptr<UcxFetch>& operation);

  /// `not_memory`: why the way is not kMemory.
  void open(NodeId node, uint64_t epoch, UcxAddress address, UcxWay way, std::string not_memory);
  void close(NodeId node, const Error& why);
  /// Fails all open fetches.
  void close_all(const Error& why);

  /// Asks, copies and checks for some 100 us. False: there was nothing to do, or UCX takes nothing now.
  bool advance();
  /// When advance() has something to do next, if nothing arrives before; at most `otherwise`.
  UcxClock::time_point next_deadline(UcxClock::time_point otherwise) const;
  /// An answer came. UCX calls this while it delivers the message.
  void receive(const WireReply& reply, std::span<const std::byte> data);
  /// Checks the blocks that gets brought, for some 100 us. False: none has ended.
  bool take_ended_gets();

 private:
  struct Request {
    WireRequest header;
    std::string data;
  };
  struct Connection {
    UcxTag tag = {};                  // of the peer
    uint64_t link = 0;                // its number, which rises
    std::unique_ptr<UcxConnection> to_peer;
    std::deque<Request> unsent;
    size_t unanswered = 0;            // blocks, late ones too
    bool has_late = false;            // some of these are of a late fetch
    UcxClock::time_point heard = {};  // last sign of life, or when it was made

    void hear() {
      heard = UcxClock::now();
      if (unanswered == 0) has_late = false;
    }
  };
  struct Peer {
    uint64_t epoch = 0;
    UcxAddress address;
    UcxWay way = UcxWay::kMessages;
    std::string not_memory;  // why not that way
    UcxClock::time_point came = {};  // when something did last
    std::deque<UcxBlock> waiting;
    std::unique_ptr<Connection> connection;  // none: the next fetch makes one
    std::unique_ptr<UcxMapping> mapping;     // of its slab, from the first grant on
    std::unique_ptr<UcxGetLink> get_link;    // to its slab: the same
  };
  struct Asked {
    UcxBlock block;
    Connection* connection = nullptr;
    WireWant want = WireWant::kBytes;
    size_t received_bytes = 0;
    uint32_t crc = 0;  // of these
  };
  struct Granted {
    UcxBlock block;
    uint64_t offset = 0;
  };

  void ask_waiting(NodeId node, Peer& peer);
  Status connect(NodeId node, Peer& peer);
  /// REQUIRES: they are as many as one request may name, and of one size.
  void ask(Peer& peer, std::span<const UcxBlock> blocks);
  /// False: nothing was sent.
  static bool send_requests(Connection& connection);
  bool take_granted();
  size_t take_next_granted();
  bool map_slab_of(NodeId node, Peer& peer);
  bool link_to(NodeId node, Peer& peer);
  size_t on_get_ended(const UcxGets::Ended& ended);
  void close_get_link(Peer& peer);
  /// The peer is reached over TCP from now on.
  void fall_back(NodeId node, Peer& peer, const std::string& why);
  void ask_again(const UcxBlock& block, Peer& peer);

  void drop_lost();
  void drop_silent();
  /// Asks again, over a new connection, for what was not answered.
  void reconnect(Peer& peer);
  /// Ends the connection. Requests sent over it get no answer.
  void disconnect(Peer& peer);
  /// Ends the connection and fails all fetches from the peer.
  void drop(NodeId node, Peer& peer, const Error& why);

  void note_arrival(const UcxBlock& block);
  void expire();
  void expire(const std::shared_ptr<UcxFetch>& operation);
  void resolve(const UcxBlock& block, Status status);
  /// All of its blocks are over. Gets of a late one may still be open.
  void finish(UcxFetch& operation);
  /// Takes the request out of asked_. Nothing: it is late, and its fetch is over.
  std::optional<UcxBlock> answered(std::unordered_map<uint64_t, Asked>::iterator it);
  void on_grants(uint64_t first_id, std::span<const std::byte> offsets);
  void grant(const UcxBlock& block, uint64_t offset);
  void on_bytes(std::unordered_map<uint64_t, Asked>::iterator it, uint64_t offset, std::span<const std::byte> bytes);

  const UcxTransportConfig config_;
  const Parts parts_;
  std::atomic<size_t> open_count_ = 0;  // fetches that are not done
  std::map<NodeId, Peer> peers_;
  std::multimap<UcxClock::time_point, std::shared_ptr<UcxFetch>> operations_;  // not done, by deadline
  std::unordered_map<uint64_t, Asked> asked_;                                // by id of the request
  std::deque<Granted> granted_;
  uint64_t last_id_;
  uint64_t last_link_ = 0;
};

}  // namespace seer
