#include "actors/policy/group_drafter.h"

#include <algorithm>
#include <utility>

namespace seer {
namespace {

constexpr uint32_t kSamplesMax = 4096;  // of a group, in what servers say

}  // namespace

GroupDrafter::GroupDrafter(GroupDrafterConfig config) : config_(config) {}

void GroupDrafter::draft(const DraftAsk& ask, std::vector<int32_t>& draft) {
  Group& group = append(ask.request, ask.prompt, ask.output);
  group.tree->draft(ask.request.sample,
                    {.max_tokens = static_cast<int32_t>(ask.tokens_max), .min_probability = config_.min_probability}, draft_);
  draft = draft_.tokens;
  weigh(group);
}

void GroupDrafter::observe(RequestId request, std::span<const int32_t> prompt, std::span<const int32_t> output) {
  weigh(append(request, prompt, output));
}

/// What the request has written is known, in the group that it belongs to, now the one asked for last.
GroupDrafter::Group& GroupDrafter::append(RequestId request, std::span<const int32_t> prompt,
                                          std::span<const int32_t> output) {
  const GroupId id = request.group;
  const auto [it, is_new] = groups_.try_emplace(id);
  Group& group = it->second;
  if (is_new) {
    group.tree = std::make_unique<DraftTree>(config_.tree, prompt, scores_);
    group.asked = asked_.insert(asked_.begin(), id);
  } else {
    asked_.splice(asked_.begin(), asked_, group.asked);
  }
  const auto known = static_cast<size_t>(group.tree->end(request.sample));
  if (known < output.size()) {
    group.tree->append(request.sample, static_cast<int64_t>(known), output.subspan(known));
    shared(group, request.sample);
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
  CstCursor cursor{id, {}};
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
    weigh(group);
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

void GroupDrafter::forget() {
  groups_.clear();
  asked_.clear();
  unshared_.clear();
  bytes_ = 0;
}

void GroupDrafter::weigh(Group& group) {
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
