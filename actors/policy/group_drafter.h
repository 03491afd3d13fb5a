// GroupDrafter: drafts for the requests of an instance from the draft tree of their group. What a request of this instance
// has written it learns as it is shown the request's text, with a draft wanted or not; what others write elsewhere, from the
// draft servers, as far as there are any. Used by instance_actor. Single owner, not thread-safe.
//
// Memory: when the trees together pass bytes_max, those of the groups that were not shown for longest are dropped, down
// to three quarters; a tree that comes back begins anew.
#pragma once
#include <cstdint>
#include <list>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "actors/policy/draft_tree.h"
#include "actors/policy/drafter.h"

namespace seer {

struct GroupDrafterConfig {
  DraftTreeConfig tree;           // own_history_only: from the request's own text, without its group
  size_t bytes_max = 512 << 20;   // of all trees; one tree always stays
};

class GroupDrafter final : public Drafter {
 public:
  explicit GroupDrafter(GroupDrafterConfig config);
  void draft(const DraftText& text, const DraftLimits& limits, Draft& draft) override;
  void learn(const DraftText& text) override;
  void take_updates(const IsMine& is_mine, int64_t tokens_max, std::vector<CstTokens>& parts) override;
  std::optional<CstCursor> cursor(GroupId group) override;
  void fetched(const CstFetched& answer) override;
  void forget() override;

  size_t group_count() const { return groups_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Group {
    std::unique_ptr<DraftTree> tree;
    size_t bytes = 0;  // of the tree, when it was last looked at
    std::list<GroupId>::iterator shown;
    bool has_past = false;        // responses of earlier iterations are in the tree
    std::vector<int64_t> shared;  // by sample: so many tokens its server has or was sent
  };
  Group& group_of(const DraftText& text);
  static int64_t& shared(Group& group, uint32_t sample);
  static bool take_updates(GroupId id, Group& group, int64_t& tokens_max, std::vector<CstTokens>& parts);
  void take_size(Group& group);
  void make_room();

  GroupDrafterConfig config_;
  DraftScores scores_;  // outlives the trees
  std::unordered_map<GroupId, Group> groups_;
  std::list<GroupId> shown_;  // the one shown last comes first
  std::set<GroupId> unshared_;  // groups with tokens that their server may lack
  size_t bytes_ = 0;
};

}  // namespace seer
