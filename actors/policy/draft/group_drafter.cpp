#include "actors/policy/draft/group_drafter.h"

#include <algorithm>
#include <utility>

namespace seer {
namespace {

constexpr uint32_t kSamplesMax = 4096;  // of a group, in messages of servers
// Shares of bytes_max. While running groups keep to their share, only trees of groups that do not run are dropped. Old text is
// fetched again only if the trees then stay below kShareToFetch. From there, new tokens must come before kShareToDrop is passed
// again; so at most (kShareToFetch - kShareThatStays) / (kShareToDrop - kShareToFetch) = 4/3 of their number are fetched again.
constexpr double kShareOfRunning = 0.875, kShareToDrop = 0.9375, kShareToFetch = 0.75, kShareThatStays = 0.5;
constexpr size_t kReleaseBytes = 1 << 20;  // in a call; if memory is full, at least as many as the call adds

}  // namespace

GroupDrafter::GroupDrafter(GroupDrafterConfig config) : config_(config) {}

void GroupDrafter::draft(const DraftText& text, const DraftLimits& limits, Draft& draft) {
  Group& group = group_of(text);
  group.tree->draft(text.request.sample, limits, draft);
  take_size(group);
}

void GroupDrafter::learn(const DraftText& text) { take_size(group_of(text)); }

void GroupDrafter::forget(GroupId id) {
  const auto found = groups_.find(id);
  if (found == groups_.end()) return;
  erase(found);
  unshared_.erase(id);
  bin_.release(kReleaseBytes);
}

void GroupDrafter::forget(RolloutId rollout) {
  for (auto it = groups_.begin(); it != groups_.end();) it = it->first.rollout == rollout ? erase(it) : std::next(it);
  std::erase_if(unshared_, [&](GroupId id) { return id.rollout == rollout; });
  if (groups_.empty()) running_count_ = 0;
  bin_.release(bin_.bytes());
}

void GroupDrafter::running(std::span<const GroupId> groups) {
  ++runs_;
  running_count_ = groups.size();
  for (GroupId id : groups) {
    const auto found = groups_.find(id);
    if (found == groups_.end()) continue;
    found->second.ran = runs_;
    if (found->second.tree) found->second.tree->set_bytes_wanted(bytes_of_running_tree());
  }
}

int64_t GroupDrafter::bytes_of_running_tree() const {
  const double bytes = kShareOfRunning * static_cast<double>(config_.bytes_max);
  return static_cast<int64_t>(bytes / static_cast<double>(std::max<size_t>(running_count_, 1)));
}

/// Adds what the request has written to its group, which becomes the one shown last. Returns the group.
GroupDrafter::Group& GroupDrafter::group_of(const DraftText& text) {
  const GroupId id = text.request.group;
  const auto [it, is_new] = groups_.try_emplace(id);
  Group& group = it->second;
  if (is_new) {
    group.shown = shown_.insert(shown_.begin(), id);
    if (groups_.size() > config_.groups_max) forget_oldest_record();
  } else {
    shown_.splice(shown_.begin(), shown_, group.shown);
  }
  group.ran = runs_;
  if (!group.tree) begin_tree(group, text);
  int64_t end = group.tree->end(text.request.sample);
  if (end < text.log.output_tokens()) {
    text.log.visit(text.log.prompt_tokens() + end, text.log.size(), [&](std::span<const int32_t> part) {
      group.tree->append(text.request.sample, end, part);
      end += std::ssize(part);
    });
    shared(group, text.request.sample);
    unshared_.insert(id);
  }
  return group;
}

void GroupDrafter::begin_tree(Group& group, const DraftText& text) {
  group.tree = std::make_unique<DraftTree>(config_.tree, text.log.tokens(0, text.log.prompt_tokens()), scores_);
  group.tree->set_bytes_wanted(bytes_of_running_tree());
  ++tree_count_;
  group.only_news = group.bytes > 0 && is_over(tree_bytes_ + group.bytes, kShareToFetch);
  losses_.refused_groups += group.only_news;
  if (!group.only_news) group.has_past = false;
  group.bytes = 0;
  group.dropped_tokens = 0;
}

/// How many tokens of the sample its server has, as far as known here.
int64_t& GroupDrafter::shared(Group& group, uint32_t sample) {
  if (group.shared.size() <= sample) group.shared.resize(sample + 1);
  return group.shared[sample];
}

/// Tokens of the sample that are known here, or were and must not be fetched again. REQUIRES: the group has a tree.
int64_t GroupDrafter::known(const Group& group, uint32_t sample) {
  const int64_t end = group.tree->end(sample);
  return group.only_news && sample < group.shared.size() ? std::max(end, group.shared[sample]) : end;
}

void GroupDrafter::take_updates(const IsMine& is_mine, int64_t tokens_max, std::vector<CstTokens>& parts) {
  for (auto it = unshared_.begin(); it != unshared_.end() && tokens_max > 0;) {
    const auto group = groups_.find(*it);
    if (!is_mine(*it)) {
      ++it;
    } else if (group == groups_.end() || !group->second.tree || take_updates(*it, group->second, tokens_max, parts)) {
      it = unshared_.erase(it);
    }
  }
}

/// True: all tokens of the group were taken.
bool GroupDrafter::take_updates(GroupId id, Group& group, int64_t& tokens_max, std::vector<CstTokens>& parts) {
  for (uint32_t sample = 0; sample < group.shared.size(); ++sample) {
    int64_t& sent = group.shared[sample];
    const int64_t end = group.tree->end(sample);
    if (sent >= end) continue;
    if (tokens_max <= 0) return false;
    CstTokens part{id, sample, sent, group.tree->tokens(sample, sent, tokens_max)};
    const int64_t count = std::ssize(part.tokens);
    sent = count == 0 ? end : sent + count;  // 0: the tree has dropped them for room
    tokens_max -= count;
    if (count > 0) parts.push_back(std::move(part));
    if (sent < end) return false;
  }
  return true;
}

std::optional<CstCursor> GroupDrafter::cursor(GroupId id) {
  const auto group = groups_.find(id);
  if (group == groups_.end() || !group->second.tree) return std::nullopt;
  CstCursor cursor{id, {}, !group->second.has_past};
  for (uint32_t sample = 0; sample < group->second.shared.size(); ++sample)
    if (const int64_t end = known(group->second, sample); end > 0) cursor.ends.push_back({sample, end});
  return cursor;
}

/// Ignores groups that were forgotten here: the answer does not have their prompt.
void GroupDrafter::fetched(const CstFetched& answer) {
  for (const CstTokens& part : answer.parts) {
    const auto found = groups_.find(part.group);
    if (found == groups_.end() || !found->second.tree || part.sample >= kSamplesMax) continue;
    Group& group = found->second;
    if (group.only_news && part.position == known(group, part.sample)) group.tree->begin_at(part.sample, part.position);
    group.tree->append(part.sample, part.position, part.tokens);
    int64_t& has = shared(group, part.sample);
    has = std::max(has, std::min(part.position + std::ssize(part.tokens), group.tree->end(part.sample)));
    take_size(group);
  }
  for (const CstPast& past : answer.pasts) {
    const auto found = groups_.find(past.group);
    if (found == groups_.end() || !found->second.tree || found->second.has_past) continue;
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

bool GroupDrafter::is_over(size_t bytes, double share) const {
  return static_cast<double>(bytes) > share * static_cast<double>(config_.bytes_max);
}

void GroupDrafter::take_size(Group& group) {
  const size_t bytes = group.tree->bytes();
  const size_t before = std::exchange(group.bytes, bytes);
  tree_bytes_ += bytes - before;
  losses_.dropped_tokens -= std::exchange(group.dropped_tokens, group.tree->dropped_tokens());
  losses_.dropped_tokens += group.dropped_tokens;
  if (is_over(tree_bytes_, kShareToDrop)) make_room();
  bin_.release(kReleaseBytes);
  if (this->bytes() > config_.bytes_max) bin_.release(this->bytes() - config_.bytes_max);
}

void GroupDrafter::make_room() {
  drop_idle_trees();
  while (is_over(tree_bytes_, kShareToDrop)) {
    const size_t before = tree_bytes_;
    drop_largest_text();
    if (tree_bytes_ >= before) return;  // nothing is left to drop
  }
}

/// Drops trees down to kShareThatStays. The group shown last stays: the current call works on it.
void GroupDrafter::drop_idle_trees() {
  for (auto it = shown_.end(); it != std::next(shown_.begin());) {
    if (!is_over(tree_bytes_, kShareThatStays)) return;
    Group& group = groups_.at(*--it);
    if (group.tree && group.ran < runs_) drop_tree(group);
  }
}

void GroupDrafter::drop_tree(Group& group) {
  give_up_tree(group);
  ++losses_.dropped_trees;
}

void GroupDrafter::give_up_tree(Group& group) {
  group.tree->give_up(bin_);
  group.tree.reset();
  tree_bytes_ -= group.bytes;
  --tree_count_;
}

void GroupDrafter::drop_largest_text() {
  Group* largest = nullptr;
  for (GroupId id : shown_)  // of equal ones, the one shown last
    if (Group& group = groups_.at(id); group.tree && (largest == nullptr || group.bytes > largest->bytes)) largest = &group;
  largest->tree->drop_text(bin_);
  ++losses_.dropped_trees;
  const size_t before = std::exchange(largest->bytes, largest->tree->bytes());
  tree_bytes_ -= before - largest->bytes;
}

/// Forgets the group shown longest ago, with its tree if it has one.
void GroupDrafter::forget_oldest_record() {
  const auto oldest = groups_.find(shown_.back());
  if (oldest->second.tree) drop_tree(oldest->second);
  erase(oldest);
}

/// Forgets the group. Returns the next one.
GroupDrafter::Groups::iterator GroupDrafter::erase(Groups::iterator at) {
  if (at->second.tree) give_up_tree(at->second);
  shown_.erase(at->second.shown);
  return groups_.erase(at);
}

}  // namespace seer
