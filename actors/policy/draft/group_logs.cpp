#include "actors/policy/draft/group_logs.h"

#include <algorithm>
#include <utility>

namespace seer {

void GroupLogs::register_groups(std::span<const GroupId> groups, int64_t ttl_us, int64_t now_us) {
  for (GroupId id : groups) {
    drop(id);
    Group& group = groups_[id];
    group.ttl_us = ttl_us;
    group.spoken_us = now_us;
    group.order = spoken_.insert(spoken_.begin(), id);
  }
}

void GroupLogs::drop(GroupId id) {
  const auto it = groups_.find(id);
  if (it == groups_.end()) return;
  token_count_ -= it->second.log.token_count();
  bytes_ -= it->second.bytes;
  spoken_.erase(it->second.order);
  groups_.erase(it);
}

GroupLogs::Group* GroupLogs::find(GroupId id, int64_t now_us) {
  const auto it = groups_.find(id);
  if (it == groups_.end()) return nullptr;
  it->second.spoken_us = now_us;
  spoken_.splice(spoken_.begin(), spoken_, it->second.order);
  return &it->second;
}

int64_t GroupLogs::append(const CstTokens& part, int64_t now_us) {
  if (part.tokens.empty()) {
    if (const auto it = groups_.find(part.group); it != groups_.end()) it->second.spoken_us = now_us;
    return 0;
  }
  Group* group = find(part.group, now_us);
  if (group == nullptr || part.sample >= config_.samples_max || part.position < 0) return 0;
  std::span<const int32_t> tokens = part.tokens;
  tokens = tokens.first(static_cast<size_t>(std::ranges::find_if(tokens, [](int32_t t) { return t < 0; }) - tokens.begin()));
  while (group->log.stream_count() <= part.sample) group->log.add_stream();
  const int64_t count = group->log.append(part.sample, part.position, tokens);
  token_count_ += count;
  weigh(*group);
  return count;
}

void GroupLogs::set_past(CstPast past) {
  const auto it = groups_.find(past.group);
  if (it == groups_.end()) return;
  Group& group = it->second;
  group.past = {past.group, {}};
  group.past_tokens = 0;
  for (auto& response : past.responses) {
    if (group.past_tokens + std::ssize(response) > config_.past_tokens_max) break;
    group.past_tokens += std::ssize(response);
    group.past.responses.push_back(std::move(response));
  }
  weigh(group);
}

void GroupLogs::weigh(Group& group) {
  const int64_t past_bytes = group.past_tokens * static_cast<int64_t>(sizeof(int32_t));
  bytes_ -= std::exchange(group.bytes, static_cast<int64_t>(group.log.bytes()) + past_bytes);
  bytes_ += group.bytes;
  if (bytes_ > config_.bytes_max) make_room();
}

int64_t GroupLogs::fetch(const CstCursor& cursor, int64_t tokens_max, int64_t now_us, CstFetched& answer) {
  const Group* group = find(cursor.group, now_us);
  if (group == nullptr) return 0;
  const StreamLog& log = group->log;
  std::vector<int64_t> known(log.stream_count());
  CstCursor wanted{cursor.group, {}};
  for (const CstEnd& theirs : cursor.ends) {
    const int64_t ours = theirs.sample < known.size() ? log.end(theirs.sample) : 0;
    if (theirs.end > ours && theirs.sample < config_.samples_max) wanted.ends.push_back({theirs.sample, ours});
    if (theirs.sample < known.size()) known[theirs.sample] = theirs.end;
  }
  if (!wanted.ends.empty()) answer.wanted.push_back(std::move(wanted));
  int64_t count = 0;
  if (cursor.lacks_past && group->past_tokens > 0) {
    if (group->past_tokens > tokens_max) {
      answer.has_more = true;
      return 0;
    }
    answer.pasts.push_back(group->past);
    count = group->past_tokens;
  }
  for (uint32_t sample = 0; sample < known.size(); ++sample) {
    if (known[sample] < 0 || known[sample] >= log.end(sample)) continue;
    if (count >= tokens_max) {
      answer.has_more = true;
      break;
    }
    CstTokens part{cursor.group, sample, known[sample], log.tokens(sample, known[sample], tokens_max - count)};
    count += std::ssize(part.tokens);
    answer.has_more |= part.position + std::ssize(part.tokens) < log.end(sample);
    answer.parts.push_back(std::move(part));
  }
  return count;
}

int64_t GroupLogs::expire(int64_t now_us) {
  std::vector<GroupId> over;
  for (GroupId id : spoken_)
    if (const Group& group = groups_.at(id); now_us - group.spoken_us > group.ttl_us) over.push_back(id);
  for (GroupId id : over) drop(id);
  return std::ssize(over);
}

/// Drops groups with tokens, the one used longest ago first. Empty groups stay: dropping them frees nothing.
void GroupLogs::make_room() {
  for (auto it = spoken_.end(); it != spoken_.begin() && bytes_ > config_.bytes_max / 4 * 3;) {
    const GroupId id = *--it;
    if (groups_.at(id).bytes == 0) continue;
    ++it;
    drop(id);
    ++crowded_groups_;
  }
}

}  // namespace seer
