// KvFetches: copies of blocks from the arenas of other nodes, the lenders, into slots that were granted here. The lender holds a lease on
// them until it gets KvClose. Part of kv_node_actor. Single owner, not thread-safe.
//
// A fetch that is late counts as failed: its slots stay in quarantine, and the lender's lease stays open, until the transport no longer
// touches them.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/handover.h"
#include "actors/log.h"
#include "protocols/actors.h"
#include "storage/kv_tiers.h"
#include "storage/kv_transport.h"

namespace seer {

/// What fetches work with.
struct KvFetchesParts {
  std::shared_ptr<HostArena> arena;         // of this node
  std::shared_ptr<KvTransport> transport;   // null: nothing is fetched
  std::shared_ptr<Handover> handover;       // to the actor
  EventLog log;
  std::function<bool(const rt::process&)> is_connected;  // this process has a connection to that one; empty: to all
  NodeId node;
  int64_t timeout_us = 0;                   // of a fetch, as in KvTransport::fetch()
};

class KvFetches {
 public:
  /// A block of a lender, and the slot here that was granted for it.
  struct Copy {
    BlockKey key;
    KvOpenedBlock from;
    uint32_t slot = kNoSlot;
    WriteToken token;
  };
  /// Called once each when a fetch has ended, in this order: soon, or within start() if nothing could be started. `here`: blocks that came.
  struct Events {
    std::function<void(const std::vector<BlockKey>& here, KvClose& close)> ending = {};  // may add to what the lender will hear
    std::function<void(size_t here)> ended = {};  // the lender was told, unless the fetch is late; may start others
  };

  /// `tiers` must outlive it.
  KvFetches(rt::self_of<KvNodeHandle> self, KvFetchesParts parts, KvTiers& tiers);

  bool can_fetch() const { return parts_.transport != nullptr; }
  /// Blocks pass only between nodes whose processes have a connection of their own: if a third process passes messages on, its end loses
  /// them, and a node that borrowed would seem to live on.
  template <class Handle>
  bool is_connected(const Handle& peer) const {
    return !parts_.is_connected || parts_.is_connected(rt::process_of(peer));
  }

  /// Its death is heard of from now on, also if it is gone already.
  void watch(const KvLender& lender);
  /// The lender that is watched under this node and epoch; null: none.
  const KvLender* find(NodeId node, uint64_t epoch) const;
  /// True: it was a lender. The transport ends running fetches from it.
  bool lender_down(const rt::down& message);

  /// Fetches the copies, seals those that came and frees the slots of the others. `close` goes to the lender at the end, with the blocks
  /// that are corrupt there. REQUIRES: can_fetch(), or no copies.
  void start(const KvLender& from, const std::vector<Copy>& copies, KvClose close, Events events);

  /// Fetches that go on, late ones included.
  size_t running_count() const { return running_.size(); }
  /// Blocks that did not arrive intact.
  int64_t failures() const { return failures_; }
  /// A text for users: how blocks arrive from each lender.
  std::vector<std::string> lender_texts() const;

 private:
  struct Running {
    KvSource lender;
    std::vector<Copy> copies;  // when it is late: those that bytes may still arrive for
    KvClose close;
    Events events;
  };

  bool open_lender(const KvLender& lender);
  void on_done(uint64_t fetch, const FetchResult& result);
  void on_quiet(uint64_t fetch);

  const rt::self_of<KvNodeHandle> self_;
  const KvFetchesParts parts_;
  KvTiers& tiers_;
  uint64_t next_ = 1;
  std::map<uint64_t, Running> running_;
  std::map<NodeId, KvLender> peers_;   // that the transport has open, as last opened
  std::vector<KvLender> watched_;      // alive. Few
  int64_t failures_ = 0;
};

}  // namespace seer
