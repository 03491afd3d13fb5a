// kv_node_actor: one machine's share of the KV pool, a DRAM arena and a cold tier (KvTiers). Serves the instances of that
// machine, which read and write the arena's slots directly while they hold a grant or a lease. One per machine.
//
// Blocks of an opening that are missing here are pulled from other nodes (KvPulls). Blocks that have no room here move to a node that has
// some (KvGuests). Handles of other nodes come from the directory.
//
// A node that the directory refuses ends, with the directory's sentence as its reason.
//
// An instance that dies returns nothing, so its grants and leases are taken back when it is down. By then its engine is gone
// (an actor's state ends before its peers hear of it) and no longer touches those slots. Nodes that borrow are treated alike.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/handover.h"
#include "actors/kv_fetches.h"
#include "actors/kv_guests.h"
#include "actors/kv_owners.h"
#include "actors/kv_pulls.h"
#include "actors/log.h"
#include "protocols/actors.h"
#include "protocols/cluster.h"
#include "storage/cold_store.h"
#include "storage/host_arena.h"
#include "storage/kv_tiers.h"
#include "storage/kv_transport.h"

namespace seer {

struct KvNodeConfig {
  NodeId node;
  KvTiersConfig tiers;
  ClusterIdentity identity;  // sent to the directory when the node comes up
  int32_t fetch_tokens_min = 64;  // fewer missing tokens of a prompt are computed: that takes less time than to ask around
  int64_t fetch_timeout_us = 10'000'000;  // of a fetch from another node, as in KvTransport::fetch()
  bool is_kv_only = false;    // this machine has no instances: all of its DRAM is for others
  double own_share = 0.125;  // of the slots: kept free for the instances of this machine, when others want to move blocks here
  size_t parked_max = 4096;  // reservations of ending chunks that wait for room; more are refused at once
};

struct KvNodeParts {
  std::shared_ptr<HostArena> arena;
  std::function<std::unique_ptr<ColdStore>()> open_cold;  // empty: no cold tier. Called once, when the actor starts
  KvDirectoryHandle directory;                            // the first one; KvOwners takes it
  std::shared_ptr<KvTransport> transport;                 // null: nothing is fetched from other nodes
  uint64_t epoch = 1;                                     // of the arena: rises when the node starts again
  EventLog log = {};
  std::function<bool(const rt::process&)> is_connected = {};  // this process has a connection to that one; empty: to all
};

struct KvNodeActor {
  using handle = KvNodeHandle;
  static constexpr const char* kActorName = "kv_node";

  KvNodeActor(rt::self_ptr<KvNodeActor> self_in, KvNodeConfig config_in, KvNodeParts parts_in);
  ~KvNodeActor();
  handle::behavior_type make_behavior();

  void on_reserve(const ReserveBlocks& ask);
  bool try_reserve(const ReserveBlocks& ask, bool may_wait);
  void on_room();
  bool answer_parked(bool may_wait);
  void refuse_parked();

  void on_open(const OpenBlocks& ask);
  void open_here(const OpenBlocks& ask);
  void on_close(const KvClose& close);
  void watch_waiting();
  void look_at_waiting();

  void on_release(const KvRelease& release);
  void on_down(const rt::down& message);
  void on_directory_up(const DirectoryUp& up);
  void on_tick(const Tick& tick);
  void on_cold_failure(const Error& error);
  KvNodeReport report() const;

  /// An instance of this machine, or a node that borrows.
  struct Client {
    KvClient handle;
    uint64_t number = 0;  // never used again
  };
  const Client* find_client(const KvClient& peer) const;
  const Client& client(const KvClient& peer);
  void on_client_down(const rt::down& message);

  struct Parked {
    ReserveBlocks ask;
    int64_t since_us = 0;
  };

  std::unique_ptr<KvTiers> make_tiers();

  rt::self_ptr<KvNodeActor> self;
  KvNodeConfig config;
  KvNodeParts parts;
  std::shared_ptr<Handover> handover;
  std::deque<Parked> parked;            // waiting for room, oldest first; for kParkedMaxUs at most
  std::vector<Client> clients;          // few
  uint64_t last_client = 0;
  std::map<uint64_t, uint64_t> writes;  // client number by token, of grants neither sealed nor aborted
  std::map<uint64_t, uint64_t> leases;  // client number by lease, of leases not closed
  int64_t opened_blocks = 0;
  bool watches_waiting = false;         // a Tick looks at openings and reservations that wait
  uint64_t seen_progress = 0;           // of the tiers, at the last look
  uint64_t cold_failures = 0;           // calls of the cold store that failed
  // In this order: each refers to some before it. Hooks of `tiers` call `guests` and `pulls`, but not while it comes or goes.
  std::unique_ptr<KvTiers> tiers;
  std::string address;  // of the arena, for other nodes; empty without a transport
  KvOwners owners;
  KvFetches fetches;
  KvGuests guests;
  KvPulls pulls;
};

}  // namespace seer
