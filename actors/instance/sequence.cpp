#include "actors/instance/sequence.h"

#include <algorithm>
#include <ranges>

#include "gpu/text/tokenizer.h"
#include "protocols/actors.h"
#include "protocols/check.h"

namespace seer {
namespace {

constexpr auto kById = [](const SequenceTable::Entry& entry) { return entry.first; };

/// Why the response cannot give back the ids kept at a token; empty: it can. `index`: in the output.
std::string flaw_of(const KeptList& kept, int64_t index) {
  if (kept == nullptr) return "this engine does not give the ids that top_p kept";
  if (kept->size() <= kKeptIdsMax) return {};
  return cat("at output token ", index, " ", kept->size(), " ids are left by top_p, top_k and min_p; at most ", kKeptIdsMax, " can be given back");
}

}  // namespace

Sequence::Appended Sequence::append(std::span<const SampledToken> sampled, size_t passed, std::span<const KeptList> kept) {
  Appended appended;
  const bool gives_kept = sampling->logprob_mode == LogprobMode::kKept;
  if (gives_kept) passed = 0;  // each is looked at
  stop.add_passed(static_cast<int64_t>(passed));
  size_t taken = passed;
  while (taken < sampled.size() && appended.end.reason == FinishReason::kNone) {
    const int64_t index = log.output_tokens() + static_cast<int64_t>(taken);
    if (sampled[taken].token == kNotFinite) appended.error = not_finite_text(index);
    else if (gives_kept) appended.error = flaw_of(taken < kept.size() ? kept[taken] : nullptr, index);
    if (!appended.error.empty()) break;
    appended.end = stop.add(sampled[taken++].token);
  }
  appended.tokens = static_cast<int64_t>(taken);
  log.append(sampled.first(taken) | std::views::transform(&SampledToken::token));
  if (sampling->logprob_mode != LogprobMode::kNone)
    for (const SampledToken& next : sampled.first(taken)) unreported_logprobs.push_back(next.logprob);
  if (gives_kept)
    for (const KeptList& list : kept.first(taken)) unreported_kept.add(*list);
  return appended;
}

Ending Sequence::ending_of(const Finish& finish) const {
  if (finish.stop_token >= 0) return {finish.reason, cat(finish.stop_token), {}};
  if (finish.stop_index >= 0) return {finish.reason, sampling->stop[static_cast<size_t>(finish.stop_index)], {}};
  return {finish.reason, {}, {}};
}

std::unique_ptr<Sequence> make_sequence(RunChunk& chunk, InstanceId instance, const StopLimits& limits,
                                        const std::shared_ptr<const Tokenizer>& tokenizer,
                                        std::shared_ptr<const SamplingParams>& last_sampling) {
  if (!last_sampling || *last_sampling != chunk.sampling)
    last_sampling = std::make_shared<const SamplingParams>(std::move(chunk.sampling));
  TokenText text_of;
  if (tokenizer) text_of = [tokenizer](int32_t token) { return tokenizer->piece(token); };
  auto s = std::make_unique<Sequence>(StopRule(*last_sampling, limits, chunk.log, std::move(text_of)));
  s->chunk = chunk.chunk;
  s->request = chunk.request;
  s->version = chunk.version;
  s->computed_tokens = chunk.computed_tokens;
  s->yield_rank = chunk.yield_rank;
  s->is_live = chunk.is_live;
  s->log = std::move(chunk.log);
  s->reported_tokens = s->log.size();
  s->end_tokens = s->reported_tokens + chunk.max_new_tokens;
  s->seed = chunk.seed;
  s->sampling = last_sampling;
  s->done = {.chunk = chunk.chunk, .instance = instance};
  return s;
}

ChunkDone not_begun(const RunChunk& chunk, InstanceId instance, WeightVersion version) {
  return {.chunk = chunk.chunk, .instance = instance, .end = ChunkEnd::kNotBegun, .last = {chunk.chunk, chunk.log.output_tokens()}, .version = version};
}

Sequence* SequenceTable::find(ChunkId id) const {
  const auto it = std::ranges::lower_bound(sequences_, id, {}, kById);
  return it == sequences_.end() || it->first != id ? nullptr : it->second.get();
}

Sequence& SequenceTable::at(ChunkId id) const {
  Sequence* const s = find(id);
  SEER_CHECK(s != nullptr, id);
  return *s;
}

std::span<const SequenceTable::Entry> SequenceTable::of(RolloutId rollout) const {
  return std::ranges::equal_range(sequences_, rollout, {}, [](const Entry& entry) { return entry.first.rollout; });
}

Sequence& SequenceTable::add(std::unique_ptr<Sequence> sequence) {
  const ChunkId id = sequence->chunk;
  const auto at = std::ranges::lower_bound(sequences_, id, {}, kById);
  SEER_CHECK(at == sequences_.end() || at->first != id, id);
  live_ += sequence->is_live ? 1 : 0;
  sequence->arrival = came_++;
  return *sequences_.emplace(at, id, std::move(sequence))->second;
}

std::unique_ptr<Sequence> SequenceTable::remove(ChunkId id) {
  const auto at = std::ranges::lower_bound(sequences_, id, {}, kById);
  SEER_CHECK(at != sequences_.end(), id);
  SEER_CHECK(at->first == id, id);
  std::unique_ptr<Sequence> removed = std::move(at->second);
  sequences_.erase(at);
  live_ -= removed->is_live ? 1 : 0;
  return removed;
}

void prefetch_sequences(std::span<Sequence* const> sequences, bool with_drafts) {
  constexpr size_t kLineBytes = 64;
  for (const Sequence* s : sequences) {
    const auto* const first = static_cast<const char*>(static_cast<const void*>(static_cast<const StepState*>(s)));
    for (size_t at = 0; at < sizeof(StepState); at += kLineBytes) __builtin_prefetch(first + at, 1);
  }
  for (const Sequence* s : sequences) {
    s->log.prefetch_end();
    if (with_drafts) {
      __builtin_prefetch(s->draft.tokens.data(), 1);
      __builtin_prefetch(s->draft.parents.data(), 1);
    }
    __builtin_prefetch(s->table.data() + s->table.size(), 1);
  }
}

}  // namespace seer
