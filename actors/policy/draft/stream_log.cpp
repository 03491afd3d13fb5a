#include "actors/policy/draft/stream_log.h"

#include <algorithm>

namespace seer {

uint32_t StreamLog::add_stream(int64_t begin) {
  streams_.emplace_back();
  streams_.back().begin = streams_.back().end = begin;
  return stream_count() - 1;
}

int64_t StreamLog::append(uint32_t stream, int64_t position, std::span<const int32_t> tokens) {
  Stream& s = streams_[stream];
  const int64_t end_before = s.end;
  const int64_t known = std::clamp<int64_t>(s.end - position, 0, static_cast<int64_t>(tokens.size()));
  tokens = tokens.subspan(static_cast<size_t>(known));
  if (tokens.empty()) return 0;
  if (position > s.end) {
    keep_pending(s, position, tokens);
    return 0;
  }
  add_known(stream, tokens);
  if (!s.pending.empty()) [[unlikely]]
    add_pending(stream);
  return s.end - end_before;
}

std::vector<int32_t> StreamLog::tokens(uint32_t stream, int64_t position, int64_t count_max) const {
  const Stream& s = streams_[stream];
  std::vector<int32_t> found;
  if (position < s.begin) return found;
  const int64_t end = position + std::min(count_max, s.end - position);
  while (position < end) {
    const TokenPlace first = place(stream, position);
    const int64_t count = std::min<int64_t>(end - position, kBlockTokens - first % kBlockTokens);
    found.insert(found.end(), tokens_.data() + first, tokens_.data() + first + count);
    position += count;
  }
  return found;
}

TokenPlace StreamLog::place(uint32_t stream, int64_t position) const {
  const auto offset = static_cast<uint64_t>(position - streams_[stream].begin);
  return streams_[stream].blocks[offset / kBlockTokens] * kBlockTokens + static_cast<uint32_t>(offset % kBlockTokens);
}

void StreamLog::add_known(uint32_t stream, std::span<const int32_t> tokens) {
  Stream& s = streams_[stream];
  for (int32_t token : tokens) {
    SEER_CHECK(token >= 0, token);
    const auto offset = static_cast<uint64_t>(s.end - s.begin);
    if (offset % kBlockTokens == 0) {
      const auto first = static_cast<TokenPlace>(tokens_.add(kBlockTokens, -1));
      const TokenPlace previous = s.blocks.empty() ? kNoPlace : s.blocks.back() * kBlockTokens + kBlockTokens - 1;
      if (previous != kNoPlace) blocks_[previous / kBlockTokens].next = first;
      blocks_.push_back({previous, kNoPlace, stream, static_cast<uint32_t>(s.blocks.size())});
      s.blocks.push_back(first / kBlockTokens);
    }
    tokens_[s.blocks.back() * kBlockTokens + offset % kBlockTokens] = token;
    ++s.end;
  }
  token_count_ += static_cast<int64_t>(tokens.size());
}

void StreamLog::add_pending(uint32_t stream) {
  Stream& s = streams_[stream];
  while (!s.pending.empty() && s.pending.begin()->first <= s.end) {
    const auto piece = s.pending.extract(s.pending.begin());
    const std::span<const int32_t> tokens = piece.mapped();
    s.pending_tokens -= static_cast<int64_t>(tokens.size());
    pending_tokens_ -= static_cast<int64_t>(tokens.size());
    const int64_t known = std::min<int64_t>(s.end - piece.key(), static_cast<int64_t>(tokens.size()));
    add_known(stream, tokens.subspan(static_cast<size_t>(known)));
  }
}

void StreamLog::keep_pending(Stream& s, int64_t position, std::span<const int32_t> tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  auto& piece = s.pending[position];
  const auto had = static_cast<int64_t>(piece.size());
  if (had >= count) return;
  if (s.pending_tokens + count - had > pending_tokens_max_) {
    pending_dropped_ += count;
    if (piece.empty()) s.pending.erase(position);
    return;
  }
  piece.assign(tokens.begin(), tokens.end());
  s.pending_tokens += count - had;
  pending_tokens_ += count - had;
}

}  // namespace seer
