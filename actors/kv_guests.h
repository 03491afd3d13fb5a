// KvGuests: blocks that move between nodes for lack of room, both ways. Part of kv_node_actor. Single owner, not thread-safe.
//
// If DRAM is full, blocks move to another node that has room, before they go to disk. The directory names a taker; it fetches them under
// a lease here, keeps them as guests and says in KvClose which ones. It takes only what fits into its free slots, so no number of nodes
// can fill it over its size; a node with instances keeps a share for them. When the owner runs again, the blocks are pulled like any
// others (KvPulls). A guest's blocks go from the taker to its cold tier, or are dropped, but never to a third node.
#pragma once
#include <map>
#include <optional>
#include <vector>

#include "actors/kv_fetches.h"
#include "actors/kv_owners.h"
#include "protocols/actors.h"
#include "storage/kv_tiers.h"

namespace seer {

struct KvGuestsConfig {
  KvLender me;              // without its handle
  int64_t slots = 0;        // of the arena
  bool is_kv_only = false;  // as in KvNodeConfig
  double own_share = 0;     // likewise
  double free_share = 0;    // as in KvTiersConfig
  uint32_t tick = 0;        // kind of the Ticks that on_silence() is for
};

class KvGuests {
 public:
  /// The references must outlive it.
  KvGuests(rt::self_of<KvNodeHandle> self, KvGuestsConfig config, KvTiers& tiers, KvOwners& owners, KvFetches& fetches);

  // -- blocks that leave

  /// As KvTiersHooks say.
  void find_room(int64_t blocks);
  void move_away(const LeavingBlocks& leaving);
  void on_room_found(const KvRoomFound& found);
  /// The directory did not answer this question in time.
  void on_silence(uint64_t question);
  void directory_down();
  void taker_down(const rt::down& message);
  /// Ends a lease here, of whatever blocks. Of blocks that leave, those taken are given up.
  void end_lease(const KvClose& close);
  /// If no node had room a while ago, asks again.
  void look_again();
  size_t leaving_count() const { return moves_.size(); }
  /// Nodes that are not asked for room before this time: they took less than promised, or were not reached.
  const std::map<NodeId, int64_t>& avoided() const { return avoided_until_us_; }

  // -- blocks that come

  /// Takes as many as there is room for. No block of this node leaves for them.
  void on_take(const TakeBlocks& take);
  /// Tells the directory how many blocks this node takes from others, if that has changed much or `always`.
  void report_room(bool always = false);
  /// Blocks of others that were taken, total.
  int64_t taken_blocks() const { return taken_blocks_; }

 private:
  struct Taker {
    NodeId node;
    KvTaker handle;
  };
  struct Move {
    Taker to;
    size_t blocks = 0;
  };

  KvRoom room() const;

  const rt::self_of<KvNodeHandle> self_;
  const KvGuestsConfig config_;
  KvTiers& tiers_;
  KvOwners& owners_;
  KvFetches& fetches_;
  Taker taker_;                              // that has room, as the directory said last
  std::vector<KvTaker> takers_;              // that blocks were sent to and are alive; monitored. Few
  std::map<uint64_t, Move> moves_;           // by lease: blocks that leave
  uint64_t last_question_ = 0;
  uint64_t question_ = 0;                    // a FindRoom that is not answered; 0: none
  std::optional<int64_t> no_room_us_;        // when the directory said last that no node has room; none: it found some since
  std::map<NodeId, int64_t> avoided_until_us_;
  KvRoom told_room_;                         // by the last KvRoom
  int64_t taken_blocks_ = 0;
};

}  // namespace seer
