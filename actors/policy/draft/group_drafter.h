// GroupDrafter: drafts for the requests of an instance from the draft tree of their group. It learns what a request of this
// instance writes from draft() and learn(), and what other instances write from the draft servers, if there are any. Used by
// instance_actor. Single owner, not thread-safe.
//
// Memory. Groups with running requests share kShareOfRunning of bytes_max evenly; a tree that passes its share drops its oldest
// text step by step (DraftTree). When all trees together pass kShareToDrop, trees of groups without a running request are
// dropped down to kShareThatStays, the one used longest ago first. If that is not enough, the text of the largest tree is
// dropped. Pages go back to the system a bounded number at a time, so a drop takes the same time for any size of group. bytes()
// never passes bytes_max by more than one call adds.
//
// Text that a tree drops is not fetched again, because its end stays known. When a group comes back after its tree was dropped,
// its new tree gets only later text, unless the old text fits without dropping another tree. losses() counts both.
#pragma once
#include <cstdint>
#include <list>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "actors/policy/draft/draft_tree.h"
#include "actors/policy/draft/drafter.h"

namespace seer {

struct GroupDrafterConfig {
  DraftTreeConfig tree;           // own_history_only: drafts come from the request's own text, without its group
  size_t bytes_max = 512 << 20;   // of all trees
  size_t groups_max = 65536;      // groups remembered after their tree was dropped, at 8 B per sample
};

class GroupDrafter final : public Drafter {
 public:
  explicit GroupDrafter(GroupDrafterConfig config);
  void draft(const DraftText& text, const DraftLimits& limits, Draft& draft) override;
  void learn(const DraftText& text) override;
  void running(std::span<const GroupId> groups) override;
  DraftLosses losses() const override { return losses_; }
  void take_updates(const IsMine& is_mine, int64_t tokens_max, std::vector<CstTokens>& parts) override;
  std::optional<CstCursor> cursor(GroupId group) override;
  void fetched(const CstFetched& answer) override;
  void forget(GroupId group) override;
  void forget(RolloutId rollout) override;

  size_t group_count() const { return tree_count_; }  // with a tree
  size_t bytes() const { return tree_bytes_ + bin_.bytes(); }

 private:
  struct Group {
    std::unique_ptr<DraftTree> tree;  // none: dropped
    size_t bytes = 0;                 // of the tree (if dropped: of the last one), as of the last take_size()
    int64_t dropped_tokens = 0;       // likewise
    std::list<GroupId>::iterator shown;
    uint64_t ran = 0;             // runs_ when it last ran or was shown
    bool has_past = false;        // responses of earlier iterations were added to the tree
    bool only_news = false;       // the tree lacks older text and does not ask for it
    std::vector<int64_t> shared;  // by sample: tokens that its server has or was sent
  };
  using Groups = std::unordered_map<GroupId, Group>;
  Group& group_of(const DraftText& text);
  void begin_tree(Group& group, const DraftText& text);
  static int64_t& shared(Group& group, uint32_t sample);
  static int64_t known(const Group& group, uint32_t sample);
  static bool take_updates(GroupId id, Group& group, int64_t& tokens_max, std::vector<CstTokens>& parts);
  int64_t bytes_of_running_tree() const;
  bool is_over(size_t bytes, double share) const;
  void take_size(Group& group);
  void make_room();
  void drop_idle_trees();
  void drop_largest_text();
  void drop_tree(Group& group);
  void give_up_tree(Group& group);
  void forget_oldest_record();
  Groups::iterator erase(Groups::iterator at);

  GroupDrafterConfig config_;
  DraftScores scores_;  // outlives the trees
  Groups groups_;
  std::list<GroupId> shown_;  // the group shown last comes first
  std::set<GroupId> unshared_;  // groups with tokens that their server may lack
  size_t tree_count_ = 0, tree_bytes_ = 0;
  uint64_t runs_ = 0;          // calls of running()
  size_t running_count_ = 0;   // groups in the last of these calls
  PageBin bin_;
  DraftLosses losses_;
};

}  // namespace seer
