#include "actors/policy/group_drafter.h"

#include <utility>

namespace seer {

GroupDrafter::GroupDrafter(GroupDrafterConfig config) : config_(config) {}

void GroupDrafter::draft(const DraftText& text, const DraftLimits& limits, Draft& draft) {
  Group& group = group_of(text);
  group.tree->draft(text.request.sample, limits, draft);
  take_size(group);
}

void GroupDrafter::learn(const DraftText& text) { take_size(group_of(text)); }

void GroupDrafter::forget() {
  groups_.clear();
  shown_.clear();
  bytes_ = 0;
}

/// The group of the request, now the one shown last, with all that the request has written.
GroupDrafter::Group& GroupDrafter::group_of(const DraftText& text) {
  const GroupId id = text.request.group;
  const auto [it, is_new] = groups_.try_emplace(id);
  Group& group = it->second;
  if (is_new) {
    group.tree = std::make_unique<DraftTree>(config_.tree, text.prompt, scores_);
    group.shown = shown_.insert(shown_.begin(), id);
  } else {
    shown_.splice(shown_.begin(), shown_, group.shown);
  }
  const auto known = static_cast<size_t>(group.tree->end(text.request.sample));
  if (known < text.output.size())
    group.tree->append(text.request.sample, static_cast<int64_t>(known), text.output.subspan(known));
  return group;
}

void GroupDrafter::take_size(Group& group) {
  const size_t bytes = group.tree->bytes();
  bytes_ -= std::exchange(group.bytes, bytes);
  bytes_ += bytes;
  if (bytes_ > config_.bytes_max) make_room();
}

void GroupDrafter::make_room() {
  while (groups_.size() > 1 && bytes_ > config_.bytes_max / 4 * 3) {
    const auto last = groups_.find(shown_.back());
    bytes_ -= last->second.bytes;
    groups_.erase(last);
    shown_.pop_back();
  }
}

}  // namespace seer
