#include "actors/policy/group_drafter.h"

#include <algorithm>
#include <utility>

namespace seer {
namespace {

constexpr uint32_t kSamplesMax = 4096;  // of a group, in what servers say

}  // namespace

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
  unshared_.clear();
  bytes_ = 0;
}

/// The group of the request, now the one shown last, with all that the request has written.
GroupDrafter::Group& GroupDrafter::group_of(const DraftText& text) {
  const GroupId id = text.request.group;
  const auto [it, is_new] = groups_.try_emplace(id);
  Group& group = it->second;
  if (is_new) {
    group.tree = std::make_unique<DraftTree>(config_.tree, text.log.tokens(0, text.log.prompt_tokens()), scores_);
    group.shown = shown_.insert(shown_.begin(), id);
  } else {
    shown_.splice(shown_.begin(), shown_, group.shown);
  }
  int64_t known = group.tree->end(text.request.sample);
  if (known < text.log.output_tokens()) {
    text.log.visit(text.log.prompt_tokens() + known, text.log.size(), [&](std::span<const int32_t> part) {
      group.tree->append(text.request.sample, known, part);
      known += std::ssize(part);
    });
    shared(group, text.request.sample);
    unshared_.insert(id);
  }
  return group;
}

/// How many tokens of the sample its server has, as far as known here.
int64_t& GroupDrafter::shared(Group& group, uint32_t sample) {
  if (group.shared.size() <= sample) group.shared.resize(sample + 1);
  return group.shared[sample];
}

void GroupDrafter::take_updates(const IsMine& is_mine, int64_t tokens_max, std::vector<CstTokens>& parts) {
  for (auto it = unshared_.begin(); it != unshared_.end() && tokens_max > 0;) {
    const auto group = groups_.find(*it);
    if (!is_mine(*it)) {
      ++it;
    } else if (group == groups_.end() || take_updates(*it, group->second, tokens_max, parts)) {
      it = unshared_.erase(it);
    }
  }
}

/// True: that was all of the group.
bool GroupDrafter::take_updates(GroupId id, Group& group, int64_t& tokens_max, std::vector<CstTokens>& parts) {
  for (uint32_t sample = 0; sample < group.shared.size(); ++sample) {
    int64_t& sent = group.shared[sample];
    const int64_t end = group.tree->end(sample);
    if (sent >= end) continue;
    if (tokens_max <= 0) return false;
    CstTokens part{id, sample, sent, group.tree->tokens(sample, sent, tokens_max)};
    const int64_t count = std::ssize(part.tokens);
    sent = count == 0 ? end : sent + count;  // none: the tree has dropped them for room
    tokens_max -= count;
    if (count > 0) parts.push_back(std::move(part));
    if (sent < end) return false;
  }
  return true;
}

std::optional<CstCursor> GroupDrafter::cursor(GroupId id) {
  const auto group = groups_.find(id);
  if (group == groups_.end()) return std::nullopt;
  CstCursor cursor{id, {}, !group->second.has_past};
  for (uint32_t sample = 0; sample < group->second.shared.size(); ++sample)
    if (const int64_t end = group->second.tree->end(sample); end > 0) cursor.ends.push_back({sample, end});
  return cursor;
}

/// Groups of which nothing is known here any more stay unknown: their prompt is not in the answer.
void GroupDrafter::fetched(const CstFetched& answer) {
  for (const CstTokens& part : answer.parts) {
    const auto found = groups_.find(part.group);
    if (found == groups_.end() || part.sample >= kSamplesMax) continue;
    Group& group = found->second;
    group.tree->append(part.sample, part.position, part.tokens);
    int64_t& known = shared(group, part.sample);
    known = std::max(known, std::min(part.position + std::ssize(part.tokens), group.tree->end(part.sample)));
    take_size(group);
  }
  for (const CstPast& past : answer.pasts) {
    const auto found = groups_.find(past.group);
    if (found == groups_.end() || found->second.has_past) continue;
    found->second.tree->add_past(past.responses);
    found->second.has_past = true;
    take_size(found->second);
  }
  for (const CstCursor& wanted : answer.wanted) {
    const auto found = groups_.find(wanted.group);
    if (found == groups_.end()) continue;
    for (const CstEnd& end : wanted.ends)
      if (end.sample < found->second.shared.size())
        found->second.shared[end.sample] = std::min(found->second.shared[end.sample], end.end);
    unshared_.insert(wanted.group);
  }
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
