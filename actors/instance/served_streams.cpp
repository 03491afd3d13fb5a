#include "actors/instance/served_streams.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "protocols/check.h"

namespace seer {
namespace {

bool same_tokens(const TokenLog& a, const TokenLog& b) {
  if (a.size() != b.size()) return false;
  bool is_same = true;
  int64_t at = 0;
  a.visit(0, a.size(), [&](std::span<const int32_t> part) {
    for (const int32_t token : part) is_same &= token == b[at++];
  });
  return is_same;
}

}  // namespace

ServedStreams::~ServedStreams() {
  close_where([](const ServedStream&) { return true; });
}

void ServedStreams::open(RequestId request, ChunkId chunk, ServedAsk ask, std::function<void(uint64_t, ServedPart)> part) {
  SEER_CHECK(of(chunk) == nullptr, chunk);
  const uint64_t number = ++last_number_;
  streams_[number] = {.number = number, .rid = ask.rid, .request = request, .chunk = chunk, .tokens_left = ask.max_new_tokens, .rest = {}, .log = {}};
  server_->run(std::move(ask), [number, part = std::move(part)](ServedPart came) { part(number, std::move(came)); });
}

ServedStream& ServedStreams::add(uint64_t number, ServedPart part) {
  const auto found = streams_.find(number);
  SEER_CHECK(found != streams_.end(), number);
  ServedStream& stream = found->second;
  stream.tokens_left -= std::ssize(part.output.ids);
  SEER_CHECK(stream.tokens_left >= 0, stream.rid);  // see AnswerReader
  stream.rest.output.append(part.output);
  part.output = std::move(stream.rest.output);
  stream.rest = std::move(part);
  return stream;
}

ServedPart ServedStreams::take(ServedStream& stream, int64_t tokens_max) {
  ServedPart& rest = stream.rest;
  if (std::ssize(rest.output.ids) <= tokens_max) {
    ServedPart all = rest;
    rest.output = {};
    return all;
  }
  ServedPart taken{.output = std::move(rest.output), .cached_tokens = rest.cached_tokens};
  rest.output = taken.output.from(static_cast<size_t>(tokens_max));
  taken.output.cut(static_cast<size_t>(tokens_max));
  return taken;
}

ServedStream* ServedStreams::of(ChunkId chunk) {
  const auto found = std::ranges::find_if(streams_, [&](const auto& entry) { return entry.second.chunk == chunk && !entry.second.waits; });
  return found == streams_.end() ? nullptr : &found->second;
}

void ServedStreams::keep(ServedStream& stream, TokenLog log, int64_t until_us) {
  SEER_CHECK(!stream.is_over() || !stream.rest.output.empty(), stream.rid);
  stream.waits = true;
  stream.log = std::move(log);
  stream.until_us = until_us;
}

ServedStream* ServedStreams::take_over(RequestId request, ChunkId chunk, const TokenLog& log) {
  const auto found = std::ranges::find_if(streams_, [&](const auto& entry) { return entry.second.waits && entry.second.request == request; });
  if (found == streams_.end()) return nullptr;
  ServedStream& stream = found->second;
  if (!same_tokens(stream.log, log)) {
    close(stream.number);
    return nullptr;
  }
  stream.waits = false;
  stream.chunk = chunk;
  stream.log = {};
  return &stream;
}

void ServedStreams::close(uint64_t number) {
  const auto found = streams_.find(number);
  if (found == streams_.end()) return;
  const ServedStream& stream = found->second;
  // After an answer that makes no sense the server may go on.
  if (!stream.is_over() || stream.rest.end == ServedEnd::kFailed) server_->end(stream.rid);
  streams_.erase(found);
}

void ServedStreams::close_of(ChunkId chunk) {
  if (const ServedStream* const stream = of(chunk)) close(stream->number);
}

void ServedStreams::close_all_waiting() {
  close_where([](const ServedStream& stream) { return stream.waits; });
}

void ServedStreams::close_oldest_waiting() {
  const ServedStream* oldest = nullptr;
  for (const auto& [number, stream] : streams_)
    if (stream.waits && (oldest == nullptr || stream.until_us < oldest->until_us)) oldest = &stream;
  if (oldest != nullptr) close(oldest->number);
}

void ServedStreams::close_waiting(RolloutId rollout) {
  close_where([&](const ServedStream& stream) { return stream.waits && stream.request.group.rollout == rollout; });
}

size_t ServedStreams::close_waited(int64_t now_us) {
  return close_where([&](const ServedStream& stream) { return stream.waits && stream.until_us <= now_us; });
}

size_t ServedStreams::waiting() const {
  return static_cast<size_t>(std::ranges::count_if(streams_, [](const auto& entry) { return entry.second.waits; }));
}

template <class Which>
size_t ServedStreams::close_where(Which&& which) {
  std::vector<uint64_t> closing;
  for (const auto& [number, stream] : streams_)
    if (which(stream)) closing.push_back(number);
  for (const uint64_t number : closing) close(number);
  return closing.size();
}

}  // namespace seer
