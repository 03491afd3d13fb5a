// GroupDrafter: drafts for the requests of an instance from the draft tree of their group. It learns of tokens as it is
// asked: what a request has written since it was last asked for, on this instance or another, is in its output. So the
// references of a group are its requests that ran here. Used by instance_actor. Single owner, not thread-safe.
//
// Memory: when the trees together pass bytes_max, those of the groups that were not asked for longest are dropped, down
// to three quarters; a tree that comes back begins anew.
#pragma once
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "actors/policy/draft_tree.h"
#include "actors/policy/drafter.h"

namespace seer {

struct GroupDrafterConfig {
  DraftTreeConfig tree;           // own_history_only: from the request's own text, without its group
  float min_probability = 0.12f;  // see DraftLimits
  size_t bytes_max = 512 << 20;   // of all trees; one tree always stays
};

class GroupDrafter final : public Drafter {
 public:
  explicit GroupDrafter(GroupDrafterConfig config);
  void draft(const DraftAsk& ask, std::vector<int32_t>& draft) override;
  void forget() override;

  /// Responses of earlier iterations to the group's prompt, newest first (DraftTree::add_past()).
  void add_past(GroupId id, std::span<const int32_t> prompt, std::span<const std::vector<int32_t>> responses);
  /// None was added since the group's tree began: the group is new, or its tree was dropped.
  bool lacks_past(GroupId id) const;

  size_t group_count() const { return groups_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Group {
    std::unique_ptr<DraftTree> tree;
    size_t bytes = 0;  // of the tree, when it was last looked at
    bool past_added = false;
    std::list<GroupId>::iterator asked;
  };
  Group& group(GroupId id, std::span<const int32_t> prompt);
  void count_bytes(Group& group);
  void make_room();

  GroupDrafterConfig config_;
  DraftScores scores_;  // outlives the trees
  std::unordered_map<GroupId, Group> groups_;
  std::list<GroupId> asked_;  // the one asked for last comes first
  size_t bytes_ = 0;
  Draft draft_;
};

}  // namespace seer
