// kv_node_actor: one machine's share of the KV pool, a DRAM arena and a cold tier (KvTiers). Serves the instances of that
// machine, which read and write the arena's slots directly while they hold a grant or a lease. One per machine.
//
// Blocks of an opening that are missing here are *pulled* from another node. The directory names the nodes that keep blocks of
// the owner; one of them lends its blocks (a lease there); the transport copies them into granted slots here; they are sealed
// and the opening is answered. If anything fails on the way, the opening is answered with the blocks that are here, and the
// instance prefills the rest. If DRAM is full here, a pull waits while room is being made; if another pull fetches the block that it
// needs next, it waits for that. A lender that dies is given up at once, a silent one after 10 s, a silent directory, or room that
// does not come, after 2 s. A late fetch counts as failed: its slots stay in quarantine, and the lender's lease stays open, until the
// transport no longer touches them.
//
// If DRAM is full, blocks *move* to another node that has room, before they go to disk. The directory names a taker; it fetches them
// under a lease here, keeps them as a guest and says in KvClose which ones. It takes only what fits into its free slots, so no
// number of nodes can fill it over its size; a node with instances keeps a share for them. When the owner runs again, the blocks
// are pulled like any others. A guest's blocks go from the taker to its cold tier, or are dropped, but never to a third node.
//
// Handles of other nodes come from the directory. Blocks pass only between nodes whose processes have a connection of their own: if a
// third process passes messages on, its end loses them, and a node that borrowed would seem to live on.
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
#include <optional>
#include <unordered_map>
#include <vector>

#include "actors/handover.h"
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
  KvDirectoryHandle directory;
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
  void on_open(const OpenBlocks& ask);
  void on_close(const KvClose& close);
  void on_room();
  void refuse_parked();
  void on_cold_failure(const Error& error);
  void on_client_down(const rt::down& message);
  bool open_lender(const KvLender& lender);

  /// An opening that waits for blocks of another node.
  struct Pull {
    enum class Waits : uint8_t {
      kForDirectory = 0,  // which nodes keep blocks of the owner?
      kForLender,         // which of them does it lend?
      kForRoom,           // here, for what was lent
      kForBytes,          // of the blocks that it fetches
      kForPull            // which fetches the first missing block of what was lent
    };
    OpenBlocks ask;
    Waits waits = Waits::kForDirectory;
    size_t here = 0;                 // leading blocks that need no pulling
    std::vector<KvLender> sources;   // not asked yet, the next one last
    std::vector<KvLender> passed;    // have nothing of the blocks that are missing now; they may have later ones
    KvLender lender;                 // that was asked last
    KvOpened lent;                   // by the lender, until it has come
    uint64_t other = 0;              // the pull that it waits for, if it waits for one
    size_t lent_end = 0;             // leading blocks that would be here with all that the lender lent
    std::vector<KvWritten> written;  // slots granted here for the copies
    std::vector<BlockKey> keys;      // of `written`
    int64_t until_us = 0;            // when it gives up waiting for the directory, the lender or room
    std::vector<KvLender> emptied;   // all that they lent is here, so they may drop their copies when the pull ends; each once
  };
  /// A fetch that timed out while the transport may still write to its slots.
  struct LateFetch {
    std::vector<KvWritten> written;
    KvSource lender;
    KvClose close;
  };
  /// Blocks that another node has no room for, while they are fetched.
  struct Taking {
    KvLender from;
    KvClose close;
    std::vector<KvWritten> written;
    std::vector<BlockKey> keys;  // of `written`
  };
  size_t blocks_here(const KvOpening& what) const;
  bool is_worth_fetching(const KvOpening& what, size_t here) const;
  void open_here(const OpenBlocks& ask);
  void watch_waiting();
  void look_at_waiting();
  void own_blocks(const KvOpening& what, size_t here, bool keeps);
  static size_t prompt_blocks_of(const KvOpening& what);
  std::vector<Reservation> reserve_part(const KvOpening& what, size_t first, size_t end, bool keeps);
  std::vector<uint64_t> pulls_that_wait(Pull::Waits waits) const;
  void find_holders(uint64_t op);
  void wait_for_answer(uint64_t op, int64_t timeout_us);
  void on_holders(const KvHolders& holders);
  void ask_next_source(uint64_t op);
  void on_lent(const KvOpened& lent);
  void fetch_lent(uint64_t op, bool may_wait);
  void on_tick(const Tick& tick);
  void on_silence(uint64_t op);
  void on_fetched(uint64_t op, uint64_t fetch, const FetchResult& result);
  uint64_t pull_that_fetches(const BlockKey& key) const;
  void go_on(uint64_t op);
  void on_quiet(uint64_t fetch);
  void on_peer_down(const rt::down& message);
  void end_pull(uint64_t op);
  bool try_reserve(const ReserveBlocks& ask, bool may_wait);
  bool answer_parked(bool may_wait);
  void announce();
  void on_directory_down(const rt::down& message);
  void on_directory_up(const DirectoryUp& up);
  void keep(KvOwner owner, bool guest = false);
  KvNodeReport report() const;

  void watch_lender(const KvLender& lender);
  void start_fetch(const KvLender& from, std::vector<Fetch> fetches, std::function<void(uint64_t, const FetchResult&)> done);
  std::vector<BlockKey> end_writes(const std::vector<KvWritten>& written, const std::vector<BlockKey>& keys, const FetchResult& result,
                                   LateFetch& end);
  void end_fetch(uint64_t fetch, LateFetch end, bool still_writing);

  void find_room(int64_t blocks);
  void on_room_found(const KvRoomFound& found);
  void move_away(const LeavingBlocks& leaving);
  void on_taker_down(const rt::down& message);
  void on_take(const TakeBlocks& take);
  void on_taken(uint64_t fetch, const Taking& taking, const FetchResult& result);
  KvRoom room() const;
  void report_room(bool always = false);

  /// An instance of this machine, or a node that borrows.
  struct Client {
    KvClient handle;
    uint64_t number = 0;  // never used again
  };
  template <class Handle>
  bool is_connected(const Handle& peer) const {
    return !parts.is_connected || parts.is_connected(rt::process_of(peer));
  }
  const Client* find_client(const KvClient& peer) const;
  const Client& client(const KvClient& peer);

  rt::self_ptr<KvNodeActor> self;
  KvNodeConfig config;
  KvNodeParts parts;
  std::shared_ptr<Handover> handover;
  struct Parked {
    ReserveBlocks ask;
    int64_t since_us = 0;
  };
  std::deque<Parked> parked;  // waiting for room, oldest first; for kParkedMaxUs at most
  std::unordered_map<KvOwner, bool> kept;  // owners that were reported to the directory; true: as guests
  std::vector<Client> clients;       // few
  std::map<uint64_t, uint64_t> writes;     // client number by token, of grants neither sealed nor aborted
  std::map<uint64_t, uint64_t> leases;     // client number by lease, of leases not closed
  uint64_t last_client = 0;
  std::string address;                     // of the arena, for other nodes; empty without a transport
  std::map<uint64_t, Pull> pulls;          // by their own op
  std::map<uint64_t, LateFetch> late_fetches;  // by the number of the fetch
  std::map<NodeId, KvLender> peers;        // that the transport has open, as last opened
  std::vector<KvLender> lenders;           // that were asked for blocks and are alive; monitored. Few
  bool directory_gone = false;             // and no other is up yet
  uint64_t next_op = 1, next_fetch = 1;
  struct Taker {
    NodeId node;
    KvTaker handle;
  };
  struct Move {
    Taker to;
    size_t blocks = 0;
  };
  Taker taker;                             // that has room, as the directory said last
  std::vector<KvTaker> takers;             // that blocks were sent to and are alive; monitored. Few
  std::map<uint64_t, Move> moves;          // by lease: blocks that leave
  uint64_t room_question = 0;              // a FindRoom that is not answered; 0: none
  std::optional<int64_t> no_room_us;       // when the directory said last that no node has room; none: it found some since
  std::map<NodeId, int64_t> full_until_us;  // nodes that are not asked before: they took less than promised, or were not reached
  KvRoom told_room;                        // by the last KvRoom
  int64_t opened_blocks = 0, fetched_blocks = 0, fetch_failures = 0, guest_blocks = 0;
  bool watches_waiting = false;  // a Tick looks at openings and reservations that wait
  uint64_t seen_progress = 0;  // of the tiers, at the last look
  uint64_t cold_failures = 0;  // calls of the cold store that failed
  std::unique_ptr<KvTiers> tiers;    // declared last, so that its cold store's thread ends first
};

}  // namespace seer
