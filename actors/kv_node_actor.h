// kv_node_actor: one machine's share of the KV pool, a DRAM arena and a cold tier (KvTiers). Serves the instances of that
// machine, which read and write the arena's slots directly while they hold a grant or a lease. One per machine.
//
// Blocks of an opening that are missing here are *pulled* from another node. The directory names the nodes that keep blocks of
// the owner; one of them lends its blocks (a lease there); the transport copies them into granted slots here; they are sealed
// and the opening is answered. If anything fails on the way, the opening is answered with the blocks that are here, and the
// instance prefills the rest. A lender that dies is given up at once, a silent one after 2 s. A late fetch counts as failed: its
// slots stay in quarantine, and the lender's lease stays open, until the transport no longer touches them.
//
// A node that the directory refuses ends, with the directory's sentence as its reason.
//
// An instance that dies returns nothing, so its grants and leases are taken back when it is down. By then its engine is gone
// (an actor's state ends before its peers hear of it) and no longer touches those slots.
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
  ClusterIdentity identity;  // sent to the directory when the node comes up
  int64_t fetch_timeout_us = 10'000'000;  // for the blocks that one node lends for one opening
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

/// Functions from other threads, which the actor calls; each put sends it a message. Shared, because a cold store or a
/// transport may finish after the actor has ended.
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
    std::vector<KvLender> sources;   // not asked yet, the next one last
    KvLender lender;
    uint64_t lease = 0;              // at the lender; 0: not lent yet
    size_t lent_blocks = 0;
    std::vector<KvWritten> written;  // slots granted here for the copies
  };
  /// A fetch that timed out while the transport may still write to its slots.
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
  std::unordered_set<KvOwner> kept;  // owners that were reported to the directory
  std::vector<Client> clients;       // few
  std::map<uint64_t, uint64_t> writes;     // client number by token, of grants neither sealed nor aborted
  std::map<uint64_t, uint64_t> leases;     // client number by lease, of leases not closed
  uint64_t last_client = 0;
  std::string address;                     // of the arena, for other nodes; empty without a transport
  std::map<uint64_t, Pull> pulls;          // by their own op
  std::map<uint64_t, LateFetch> late_fetches;  // by the number of the fetch
  std::map<NodeId, KvLender> peers;        // that the transport has open, as last opened
  std::vector<KvSource> lenders;           // that were asked for blocks and are alive; monitored. Few
  std::map<uint64_t, KvSource> abandoned;  // pulls whose lender was silent; a late lease is closed at once. At most kAbandonedMax
  uint64_t next_op = 1, next_fetch = 1;
  int64_t opened_blocks = 0, fetched_blocks = 0, fetch_failures = 0;
  uint64_t cold_failures = 0;  // calls of the cold store that failed
  std::unique_ptr<KvTiers> tiers;    // declared last, so that its cold store's thread ends first
};

}  // namespace seer
