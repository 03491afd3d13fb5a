#include "actors/policy/draft/context_followers.h"

namespace seer {
namespace {

// A token is a candidate if it is at least one in this many of the tokens that followed the longest context, or a shorter one.
constexpr uint32_t kRarestLongest = 24;
constexpr uint32_t kRarestShorter = 6;
constexpr uint32_t kCandidateContexts = 3;  // a token that followed only the last context is no candidate
// After a long match two contexts suffice: acceptance is the same as with four, and the longest drafts take half the time.
constexpr uint32_t kLongMatch = 10;
constexpr uint32_t kContextsOfLongMatch = 2;

}  // namespace

void ContextFollowers::find(const StreamLog& log, const SuffixIndex& index, SuffixState state, uint32_t match_tokens) {
  std::array<Seen, SuffixIndex::kFewTokens> seen;
  const uint32_t contexts_max = match_tokens >= kLongMatch ? kContextsOfLongMatch : kContexts;
  while (state != SuffixIndex::kRoot && contexts < contexts_max) {
    uint32_t seen_count = 0;
    const uint32_t total = index.followers(log, state, [&](int32_t token, SuffixState next, uint32_t n) {
      seen[seen_count++] = {token, next, n};
    });
    if (total > 0 && (contexts == 0 || total != totals[contexts - 1]))
      add_context(log, index, state, {seen.data(), seen_count}, total, match_tokens);
    state = index.link(state);
    match_tokens = index.length(state);
  }
}

void ContextFollowers::add_context(const StreamLog& log, const SuffixIndex& index, SuffixState state,
                                   std::span<const Seen> seen, uint32_t total, uint32_t match_tokens) {
  const uint32_t known = count;
  const uint32_t rarest = known > 0 ? kRarestShorter : kRarestLongest;
  uint32_t leader = kCandidatesMax, leader_count = 0;
  for (const Seen& s : seen) {
    uint32_t at = 0;
    while (at < known && followers[at].token != s.token) ++at;
    if (at == known) {
      if (s.count * rarest < total || contexts >= kCandidateContexts || count == kCandidatesMax) continue;
      at = count++;
      followers[at] = {s.token, false, s.state, match_tokens + 1, {}};
      if (s.state == SuffixState::none()) followers[at].state = index.following(log, state, s.token);
    }
    followers[at].counts[contexts] = s.count;
    // Of equal counts the lowest token leads, not the first one seen, so that drafts depend little on the order of arrival.
    if (s.count > leader_count || (s.count == leader_count && s.token < followers[leader].token)) {
      leader = at;
      leader_count = s.count;
    }
  }
  if (leader < count) followers[leader].leads = true;
  lengths[contexts] = match_tokens;
  totals[contexts] = total;
  ++contexts;
}

void ContextFollowers::add_source(int32_t token, bool adds) {
  uint32_t at = 0;
  while (at < count && followers[at].token != token) ++at;
  if (at == count) {
    if (!adds || count == kCandidatesMax) return;
    followers[count++] = {token, false, SuffixIndex::kRoot, 1, {}};
  }
  followers[at].leads = true;
}

}  // namespace seer
