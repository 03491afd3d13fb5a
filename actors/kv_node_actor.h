// kv_node_actor: one machine's share of the KV pool: its DRAM arena and its cold tier (KvTiers), for the instances of that
// machine, which read and write the arena's slots directly once they hold a grant or a lease. One per machine.
//
// What an opening lacks here is pulled from another node: the directory names who keeps blocks of
// the owner, that node lends them (a lease over there), the transport copies them into granted slots here, they are
// sealed, and the opening is answered from here. Whatever goes wrong on the way, the opening is answered with what there
// is; the rest is prefilled. A lender that dies is given up at once, a silent one after 2 s. A fetch that is late has failed; its
// slots are quarantined, and the lender's lease is kept, until the transport will not touch them any more.
//
// A node that the directory refuses ends, with the directory's sentence as its reason.
//
// An instance that dies gives nothing back: its grants and leases are taken back when it is down. Its engine is gone by
// then (an actor's state ends before its peers hear of it), so that nothing of it touches those slots any more.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <unordered_set>
#include <vector>

#include "actors/log.h"
#include "protocols/actors.h"
#include "protocols/cluster.h"
#include "protocols/workers.h"
#include "storage/cold_store.h"
#include "storage/host_arena.h"
#include "storage/kv_tiers.h"
#include "storage/kv_transport.h"

namespace seer {

struct KvNodeConfig {
  NodeId node;
  KvTiersConfig tiers;
  ClusterIdentity identity;  // what it says of itself when it comes up
  int64_t fetch_timeout_us = 10'000'000;  // of the blocks that one node lends for one opening
  size_t parked_max = 4096;  // reservations of ending chunks that wait for room; more are refused at once
};

struct KvNodeParts {
  std::shared_ptr<HostArena> arena;
  std::function<std::unique_ptr<ColdStore>()> open_cold;  // empty: no cold tier. Called once, when the actor starts
  KvDirectoryHandle directory;
  std::shared_ptr<KvTransport> transport;                 // null: nothing is fetched from other nodes
  uint64_t epoch = 1;                                     // of the arena: rises when the node starts again
  EventLog log = {};
};

/// What other threads give the actor to do; it does so when it gets the message that each put sends. Shared, because a cold
/// store or a transport may finish after the actor ended.
using Handover = Outbox<std::function<void()>>;

struct KvNodeActor {
  using handle = KvNodeHandle;
  static constexpr const char* kActorName = "kv_node";

  KvNodeActor(rt::self_ptr<KvNodeActor> self_in, KvNodeConfig config_in, KvNodeParts parts_in);
  ~KvNodeActor();
  handle::behavior_type make_behavior();

  void on_reserve(const ReserveBlocks& ask);
  void on_open(const OpenBlocks& ask);
  void on_close(const KvClose& close);
  void on_room();
  void on_cold_failure(const Error& error);
  void on_client_down(const rt::down& message);
  bool open_lender(const KvLender& lender);

  /// An opening that waits for blocks of another node.
  struct Pull {
    OpenBlocks ask;
    size_t here = 0;                 // leading blocks that need no pulling
    std::vector<KvLender> sources;   // still to be asked, the next one last
    KvLender lender;
    uint64_t lease = 0;              // at the lender; 0: not lent yet
    size_t lent_blocks = 0;
    std::vector<KvWritten> written;  // slots granted here, being copied into
  };
  /// A fetch whose time was over before the transport was done with its slots.
  struct LateFetch {
    std::vector<KvWritten> written;
    KvSource lender;
    uint64_t lease = 0;
  };
  size_t blocks_here(const KvOpening& what) const;
  void open_here(const OpenBlocks& ask);
  void own_blocks(const KvOpening& what, size_t here);
  static size_t prompt_blocks_of(const KvOpening& what);
  std::vector<Reservation> reserve_part(const KvOpening& what, size_t first, size_t end);
  void find_holders(uint64_t op);
  void on_holders(const KvHolders& holders);
  void ask_next_source(uint64_t op);
  void on_lent(const KvOpened& lent);
  void on_silence(uint64_t op);
  void on_fetched(uint64_t op, uint64_t fetch, const FetchResult& result);
  void on_quiet(uint64_t fetch);
  void on_peer_down(const rt::down& message);
  void end_pull(uint64_t op);
  bool try_reserve(const ReserveBlocks& ask, bool may_wait);
  void announce();
  void on_directory_up(const DirectoryUp& up);
  void keep(KvOwner owner);
  KvNodeReport report() const;

  /// An instance of this machine, or a node that borrows.
  struct Client {
    KvClient handle;
    uint64_t number = 0;  // never used again
  };
  const Client* find_client(const KvClient& peer) const;
  const Client& client(const KvClient& peer);

  rt::self_ptr<KvNodeActor> self;
  KvNodeConfig config;
  KvNodeParts parts;
  std::shared_ptr<Handover> handover;
  std::deque<ReserveBlocks> parked;  // waiting for room, oldest first
  std::unordered_set<KvOwner> kept;  // owners that the directory was told of
  std::vector<Client> clients;       // few
  std::map<uint64_t, uint64_t> writes;     // tokens granted, neither sealed nor aborted: the client's number
  std::map<uint64_t, uint64_t> leases;     // not closed, likewise
  uint64_t last_client = 0;
  std::string address;                     // of the arena, for other nodes; empty without a transport
  std::map<uint64_t, Pull> pulls;          // by their own op
  std::map<uint64_t, LateFetch> late_fetches;  // by the number of the fetch
  std::map<NodeId, KvLender> peers;        // that the transport has open, as they were opened last
  std::vector<KvSource> lenders;           // that were asked for blocks and are alive: watched. Few
  std::map<uint64_t, KvSource> abandoned;  // pulls whose lender was silent: what it still lends is given back. Bounded
  uint64_t next_op = 1, next_fetch = 1;
  int64_t opened_blocks = 0, fetched_blocks = 0, fetch_failures = 0;
  uint64_t cold_failures = 0;  // calls of the cold store that failed
  std::unique_ptr<KvTiers> tiers;    // last: its cold store's thread ends before the rest does
};

}  // namespace seer
