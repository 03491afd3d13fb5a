// KvPulls: openings that wait for blocks of other nodes. Part of kv_node_actor. Single owner, not thread-safe.
//
// The directory names the nodes that keep blocks of the owner; one of them lends its blocks (a lease there); they are fetched into slots
// here, and the opening is answered. If anything fails on the way, it is answered with the blocks that are here, and the instance
// prefills the rest. If DRAM is full here, a pull waits while room is being made; if another pull fetches the block that it needs next,
// it waits for that. A lender that dies is given up at once, a silent one after 10 s, a silent directory, or room that does not come,
// after 2 s.
#pragma once
#include <functional>
#include <map>
#include <vector>

#include "actors/kv_fetches.h"
#include "actors/kv_owners.h"
#include "protocols/actors.h"
#include "storage/kv_tiers.h"

namespace seer {

struct KvPullsConfig {
  NodeId node;
  int32_t fetch_tokens_min = 0;  // as in KvNodeConfig
  uint32_t tick = 0;             // kind of the Ticks that on_silence() is for
};

class KvPulls {
 public:
  enum class Waits : uint8_t {
    kForDirectory = 0,  // which nodes keep blocks of the owner?
    kForLender,         // which of them does it lend?
    kForRoom,           // here, for what was lent
    kForBytes,          // of the blocks that it fetches
    kForPull            // which fetches the first missing block of what was lent
  };

  /// The references must outlive it. `answer`: answers an opening with the blocks that are here.
  KvPulls(rt::self_of<KvNodeHandle> self, KvPullsConfig config, KvTiers& tiers, KvOwners& owners, KvFetches& fetches,
          std::function<void(const OpenBlocks&)> answer);

  /// Begins one, if blocks are missing here that are worth it; else answers the opening.
  void open(const OpenBlocks& ask);

  void on_holders(const KvHolders& holders);
  void on_lent(const KvOpened& lent);
  /// There may be room now.
  void on_room();
  /// A lender or the directory did not answer in time, or no room came.
  void on_silence(uint64_t op);
  void lender_down(const rt::down& message);
  void directory_down();
  void directory_up();

  size_t size() const { return pulls_.size(); }
  int64_t fetched_blocks() const { return fetched_blocks_; }
  /// What each waits for, by its op: oldest first.
  std::map<uint64_t, Waits> waits() const;

 private:
  struct Pull {
    OpenBlocks ask;
    Waits waits = Waits::kForDirectory;
    size_t here = 0;                 // leading blocks that need no pulling
    std::vector<KvLender> sources;   // not asked yet, the next one last
    std::vector<KvLender> passed;    // have nothing of the blocks that are missing now; they may have later ones
    KvLender lender;                 // that was asked last
    KvOpened lent;                   // by the lender, until its fetch starts
    uint64_t other = 0;              // the pull that it waits for, if it waits for one
    size_t lent_end = 0;             // leading blocks that would be here with all that the lender lent
    std::vector<BlockKey> fetching;  // blocks that its fetch brings; other pulls may wait for these
    int64_t until_us = 0;            // when it gives up waiting for the directory, the lender or room
    std::vector<KvLender> emptied;   // all that they lent is here, so they may drop their copies when the pull ends; each once
  };

  size_t blocks_here(const KvOpening& what) const;
  bool is_worth_it(const KvOpening& what, size_t here) const;
  std::vector<uint64_t> that_wait(Waits waits) const;
  void find_holders(uint64_t op);
  void wait_for_answer(uint64_t op, int64_t timeout_us);
  void ask_next_source(uint64_t op);
  void fetch_lent(uint64_t op, bool may_wait);
  void on_fetched(uint64_t op, size_t blocks);
  uint64_t pull_that_fetches(const BlockKey& key) const;
  void go_on(uint64_t op);
  void end(uint64_t op);

  const rt::self_of<KvNodeHandle> self_;
  const KvPullsConfig config_;
  KvTiers& tiers_;
  KvOwners& owners_;
  KvFetches& fetches_;
  const std::function<void(const OpenBlocks&)> answer_;
  uint64_t next_op_ = 1;
  std::map<uint64_t, Pull> pulls_;  // by their own op
  int64_t fetched_blocks_ = 0;
};

}  // namespace seer
