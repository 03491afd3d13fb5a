#include "actors/policy/group_drafter.h"

#include <utility>

namespace seer {

GroupDrafter::GroupDrafter(GroupDrafterConfig config) : config_(config) {}

void GroupDrafter::draft(const DraftAsk& ask, std::vector<int32_t>& draft) {
  Group& group = this->group(ask.request.group, ask.prompt);
  DraftTree& tree = *group.tree;
  const uint32_t sample = ask.request.sample;
  const auto known = static_cast<size_t>(tree.end(sample));
  if (known < ask.output.size()) tree.append(sample, static_cast<int64_t>(known), ask.output.subspan(known));
  tree.draft(sample, {.max_tokens = static_cast<int32_t>(ask.tokens_max), .min_probability = config_.min_probability}, draft_);
  draft = draft_.tokens;
  count_bytes(group);
}

void GroupDrafter::add_past(GroupId id, std::span<const int32_t> prompt,
                            std::span<const std::vector<int32_t>> responses) {
  Group& group = this->group(id, prompt);
  group.tree->add_past(responses);
  group.past_added = true;
  count_bytes(group);
}

bool GroupDrafter::lacks_past(GroupId id) const {
  const auto found = groups_.find(id);
  return found == groups_.end() || !found->second.past_added;
}

void GroupDrafter::forget() {
  groups_.clear();
  asked_.clear();
  bytes_ = 0;
}

/// The group, now the one asked for last.
GroupDrafter::Group& GroupDrafter::group(GroupId id, std::span<const int32_t> prompt) {
  const auto [it, is_new] = groups_.try_emplace(id);
  if (is_new) {
    it->second.tree = std::make_unique<DraftTree>(config_.tree, prompt, scores_);
    it->second.asked = asked_.insert(asked_.begin(), id);
  } else {
    asked_.splice(asked_.begin(), asked_, it->second.asked);
  }
  return it->second;
}

void GroupDrafter::count_bytes(Group& group) {
  bytes_ -= std::exchange(group.bytes, group.tree->bytes());
  bytes_ += group.bytes;
  if (bytes_ > config_.bytes_max) make_room();
}

void GroupDrafter::make_room() {
  while (groups_.size() > 1 && bytes_ > config_.bytes_max / 4 * 3) {
    const auto last = groups_.find(asked_.back());
    bytes_ -= last->second.bytes;
    groups_.erase(last);
    asked_.pop_back();
  }
}

}  // namespace seer
