// GroupDrafter: drafts for the requests of an instance from the draft tree of their group. It learns of tokens as it is
// shown a request's text, with a draft wanted or not: what the request has written since it was last shown, on this
// instance or another. So the references of a group are its requests that ran here. Used by instance_actor. Single owner, not thread-safe.
//
// Memory: when the trees together pass bytes_max, those of the groups that were not shown for longest are dropped, down
// to three quarters; a tree that comes back begins anew.
#pragma once
#include <cstdint>
#include <list>
#include <memory>
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
  void forget() override;

  size_t group_count() const { return groups_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Group {
    std::unique_ptr<DraftTree> tree;
    size_t bytes = 0;  // of the tree, when it was last looked at
    std::list<GroupId>::iterator shown;
  };
  Group& group_of(const DraftText& text);
  void take_size(Group& group);
  void make_room();

  GroupDrafterConfig config_;
  DraftScores scores_;  // outlives the trees
  std::unordered_map<GroupId, Group> groups_;
  std::list<GroupId> shown_;  // the one shown last comes first
  size_t bytes_ = 0;
};

}  // namespace seer
