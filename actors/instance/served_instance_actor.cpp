#include "actors/instance/served_instance_actor.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "protocols/check.h"

namespace seer {
namespace {
/// Kinds of a Tick.
enum TickKind : uint32_t { kReportAll, kCloseWaited };

constexpr int32_t kAbortsMax = 16;
}

ServedInstanceActor::ServedInstanceActor(rt::self_ptr<ServedInstanceActor> self_in, ServedInstanceConfig config_in, ServedInstanceParts parts_in)
    : self(self_in),
      config(std::move(config_in)),
      parts(std::move(parts_in)),
      handover(make_handover<ServedInstanceActor>(self)),
      streams(parts.server) {
  report.instance = config.id;
  report.kv_blocks_total = config.kv_tokens / config.block_tokens;
  rt::on_down(self, [this](const rt::down& message) { on_down(message); });
}

ServedInstanceActor::handle::behavior_type ServedInstanceActor::make_behavior() {
  return {
      [this](RunChunk& chunk) { on_run_chunk(std::move(chunk)); },
      [this](const CancelChunk& cancel) { cancel_chunk(cancel.chunk); },
      [this](const DropChunks& drop) { drop_chunks(drop.rollout); },
      [this](const YieldChunks&) { yield_chunks(); },
      [this](const UseInstance& use) { on_use(use); },
      [this](const UpdateInstance& asked) { update_weights(asked); },
      [this](const WorkReady&) { on_work_ready(); },
      [this](const Tick& tick) { tick.kind == kReportAll ? report_all() : close_waited(); },
      [](const KvReserved&) {},
      [](const KvOpened&) {},
      [](const DraftServers&) {},
      [](const CstFetched&) {},
      [this](const GetReport&) { return current_report(); },
  };
}

// ---- a chunk arrives ---------------------------------------------------------------------------------------------------------------

void ServedInstanceActor::on_use(const UseInstance& use) {
  if (!draining && !switching && use.version == config.version) sinks.note(self, use.rollout, use.reply_to);
}

void ServedInstanceActor::on_run_chunk(RunChunk chunk) {
  const ChunkId id = chunk.chunk;
  if (sequences.find(id) != nullptr) return;  // a duplicate
  if (draining || switching || chunk.version != config.version) {
    const WeightVersion version = switching ? update->what.version : config.version;
    return rt::tell(self, chunk.reply_to, not_begun(chunk, config.id, version));
  }
  sinks.note(self, id.rollout, chunk.reply_to);
  auto made = make_sequence(chunk, config.id, config.stop, parts.tokenizer, last_sampling);
  made->kv_tokens = made->log.size();  // prefilled by the server; cached or not
  Sequence& s = sequences.add(std::move(made));
  blocks_used += blocks_of(s);
  if (!std::exchange(report_due, true)) rt::tell_after(self, config.alive_us, handle{self}, Tick{kReportAll});
  s.stop.tokens_left() > 0 ? start(s) : end_without_room(s);
  after_work();
}

/// The server's context is shorter than the model's, and has no room for another token.
void ServedInstanceActor::end_without_room(Sequence& s) {
  s.done.cached_tokens = s.kv_tokens;  // nothing is computed
  if (s.log.output_tokens() > 0) return end_request(s, {FinishReason::kLength, {}, {}});
  end_request(s, Ending::failed(cat(parts.server->name(), " takes ", config.stop.context_tokens_max, " tokens, prompt and output together, and the prompt has ", s.log.size())));
}

void ServedInstanceActor::start(Sequence& s) {
  if (ServedStream* const stream = streams.take_over(s.request, s.chunk, s.log)) {
    s.done.cached_tokens = s.kv_tokens;
    return take_tokens(s, *stream);
  }
  // A stream that waits has one of the server's rows, which the scheduler takes to be free.
  const size_t rows = sequences.size() - held.size() + streams.waiting();
  if (config.rows_max > 0 && std::cmp_greater(rows, config.rows_max)) streams.close_oldest_waiting();
  ask_server(s);
}

void ServedInstanceActor::ask_server(const Sequence& s) {
  const int64_t may_come = std::min(s.stop.tokens_left(), config.kv_tokens - s.log.size());
  streams.open(s.request, s.chunk,
               {.rid = cat(config.rid_prefix, s.chunk, ".", ++asks, "."),  // ends so because servers abort all names that begin with the given one
                .tokens = s.log.tokens(),
                .prompt_tokens = s.log.prompt_tokens(),
                .max_new_tokens = std::max(s.tokens_left(), std::min(config.stream_tokens, may_come)),
                .sampling = *s.sampling,
                .seed = s.seed},
               later<uint64_t, ServedPart>(handover, [this](uint64_t stream, ServedPart part) { on_part(stream, std::move(part)); }));
}

// ---- its tokens --------------------------------------------------------------------------------------------------------------------

void ServedInstanceActor::on_work_ready() {
  for (auto& work : handover->take())
    if (ends_why.empty()) work();
  after_work();
}

/// No chunk came for some streams in time.
void ServedInstanceActor::close_waited() {
  for (size_t closed = streams.close_waited(rt::now_us(self)); closed > 0; --closed) run_held();
  after_work();
}

void ServedInstanceActor::after_work() {
  report_tokens();
  if (!ends_why.empty()) rt::quit(self, ends_why);
}

void ServedInstanceActor::on_part(uint64_t number, ServedPart part) {
  if (!streams.has(number)) return;  // late: it was closed
  if (!part.weights.empty() && !config.weights.empty() && part.weights != config.weights) {
    ends_why = cat(parts.server->name(), " has weights ", part.weights, " while ", config.weights, " were expected");
    return;
  }
  ServedStream& stream = streams.add(number, std::move(part));
  if (!stream.waits) take_tokens(sequences.at(stream.chunk), stream);
}

/// Appends what has come, as far as the chunk has room.
void ServedInstanceActor::take_tokens(Sequence& s, ServedStream& stream) {
  const ServedPart part = ServedStreams::take(stream, s.end_tokens - s.log.size());
  const int64_t before = blocks_of(s);
  std::vector<SampledToken> sampled;
  for (size_t i = 0; i < part.output.size(); ++i) sampled.push_back({part.output.ids[i], i < part.output.logprobs.size() ? part.output.logprobs[i] : 0});
  s.done.cached_tokens = std::max(s.done.cached_tokens, std::min(part.cached_tokens, s.kv_tokens));
  const Sequence::Appended appended = s.append(sampled, 0);
  blocks_used += blocks_of(s) - before;
  report.output_tokens += appended.tokens;
  if (appended.tokens > 0) failures = aborts = 0;
  if (!appended.error.empty()) return end_request(s, Ending::failed(appended.error));
  if (appended.end.reason != FinishReason::kNone) return end_request(s, s.ending_of(appended.end));
  const bool is_full = s.log.size() >= s.end_tokens;
  if (is_full && part.end != ServedEnd::kStop) return end_full(s, stream);
  if (part.end != ServedEnd::kNone) end_part(s, stream, part);
}

/// The request's next chunk may go on with what the stream has or will get, unless a chunk that is held needs its row.
void ServedInstanceActor::end_full(const Sequence& s, ServedStream& stream) {
  const bool has_more = !stream.is_over() || !stream.rest.output.empty();
  if (has_more && config.stream_tokens > 0 && held.empty()) {
    ServedStreams::keep(stream, s.log, rt::now_us(self) + config.return_us);
    rt::tell_after(self, config.return_us, handle{self}, Tick{kCloseWaited});
  }
  answer(s.chunk, ChunkEnd::kChunkFull);
}

/// The server ended the request where the stop rule found no end.
void ServedInstanceActor::end_part(Sequence& s, const ServedStream& stream, const ServedPart& part) {
  switch (part.end) {
    case ServedEnd::kNone: return;
    case ServedEnd::kStop:  // it knows more stop tokens than the model's folder
      return end_request(s, {FinishReason::kStop, part.matched, {}});
    case ServedEnd::kRefused: return end_request(s, Ending::failed(cat(parts.server->name(), ": ", part.why)));
    case ServedEnd::kLength:
      if (stream.tokens_left == 0) {  // of an earlier chunk's request
        streams.close(stream.number);
        return ask_server(s);
      }
      return on_failure(s, {.end = ServedEnd::kFailed, .why = "it gave fewer tokens than asked for, and names its limit as the reason"});
    case ServedEnd::kFailed: return on_failure(s, part);
  }
}

void ServedInstanceActor::on_failure(Sequence& s, const ServedPart& part) {
  const ChunkId id = s.chunk;
  // A server that runs others of our chunks and has no room for this one gets it when one of them ends.
  if (part.is_busy && (sequences.size() > held.size() + 1 || streams.waiting() > 0)) {
    streams.close_of(id);
    return held.push_back(id);
  }
  const uint64_t stream = streams.of(id)->number;
  if (!part.is_abort)
    ++failures;
  else if (stream > aborted_to && ++aborts == kAbortsMax)
    ends_why = cat(parts.server->name(), " aborted requests ", aborts, " times without a token between them");
  if (part.is_abort) aborted_to = streams.last_number();  // those that run now may be aborted together with this one
  parts.log.warn(rt::now_us(self), "chunk_failed",
                 {{"chunk", id}, {"server", parts.server->name()}, {"tokens", s.log.output_tokens()}, {"failures", failures}, {"error", part.why}});
  s.done.server_error = cat(parts.server->name(), ": ", part.why);
  answer(id, ChunkEnd::kServerFailed);
  if (failures >= config.failures_max && ends_why.empty()) ends_why = cat(parts.server->name(), " failed ", failures, " times in a row: ", part.why);
}

// ---- ends of chunks ----------------------------------------------------------------------------------------------------------------

void ServedInstanceActor::end_request(Sequence& s, Ending ending) {
  s.done.ending = std::move(ending);
  answer(s.chunk, end_of(s.done.ending.reason));
}

void ServedInstanceActor::answer(ChunkId id, ChunkEnd end) {
  streams.close_of(id);
  std::erase(held, id);
  const std::unique_ptr<Sequence> ended = sequences.remove(id);
  Sequence& s = *ended;
  blocks_used -= blocks_of(s);
  s.done.end = end;
  const bool was_computed = s.log.size() > s.kv_tokens || s.done.cached_tokens > 0;  // as far as the server said
  s.done.prefill_tokens = was_computed ? s.kv_tokens - s.done.cached_tokens : 0;
  s.done.reprefill_tokens = std::clamp<int64_t>(s.computed_tokens - s.done.cached_tokens, 0, s.done.prefill_tokens);
  s.done.kv_tokens = was_computed ? s.log.size() : s.computed_tokens;
  s.done.last = s.take_unreported();
  s.done.kv_blocks_used = blocks_used;
  s.done.version = config.version;
  report.prefill_tokens += s.done.prefill_tokens;
  report.cached_tokens += s.done.cached_tokens;
  report.preemptions += end == ChunkEnd::kServerFailed ? 1 : 0;
  rt::tell(self, sinks.of(id.rollout), std::move(s.done));
  run_held();
}

/// Sends the oldest held chunk to the server, which may have a row for it now.
void ServedInstanceActor::run_held() {
  if (held.empty() || !ends_why.empty()) return;
  const ChunkId next = held.front();
  held.erase(held.begin());
  ask_server(sequences.at(next));
}

void ServedInstanceActor::cancel_chunk(ChunkId id) {
  if (Sequence* const s = sequences.find(id)) end_request(*s, Ending::aborted());
}

void ServedInstanceActor::drop_chunks(RolloutId rollout) {
  std::vector<ChunkId> dropped;
  for (const auto& [id, s] : sequences.of(rollout)) dropped.push_back(id);
  for (const ChunkId id : dropped) {
    streams.close_of(id);
    std::erase(held, id);
    blocks_used -= blocks_of(*sequences.remove(id));
  }
  const size_t waiting = streams.waiting();
  streams.close_waiting(rollout);
  sinks.erase(rollout);
  for (size_t rows = dropped.size() + waiting - streams.waiting(); rows > 0; --rows) run_held();
  switch_when_unused();
}

void ServedInstanceActor::yield_chunks() {
  draining = true;
  held.clear();  // they are among those that end here
  streams.close_all_waiting();
  std::vector<ChunkId> all;
  for (const auto& [id, s] : sequences) all.push_back(id);
  for (const ChunkId id : all) answer(id, ChunkEnd::kYielded);
}

/// A rollout died. One that ends normally has sent DropChunks before.
void ServedInstanceActor::on_down(const rt::down& message) {
  if (const auto lost = sinks.lost(message)) drop_chunks(*lost);
}

// ---- weights -----------------------------------------------------------------------------------------------------------------------

void ServedInstanceActor::update_weights(const UpdateInstance& asked) {
  const auto refuse = [&](const auto&... why) {
    rt::tell(self, asked.reply_to, InstanceWeights{config.id, config.version, label_hash(config.weights), cat(parts.server->name(), why...)});
  };
  if (update) return refuse(" is changing to weight version ", update->what.version, " already");
  if (asked.what.version <= config.version) return refuse(" runs with weight version ", config.version, ", and ", asked.what.version, " is not above it");
  update = asked;
  switch_when_unused();
}

/// Only when no rollout uses this instance: an open rollout will send more chunks for the old weights.
void ServedInstanceActor::switch_when_unused() {
  if (!update || switching || !sinks.empty()) return;
  SEER_CHECK(streams.size() == 0, parts.server->name());
  switching = true;
  // What the server says afterwards is what counts: it may have changed although its answer was lost.
  const auto look = [this](const Status& status) {
    parts.server->look(later<Result<ServerState>>(handover, [this, status](const Result<ServerState>& now) { on_switched(status, now); }));
  };
  if (update->what.folder.empty()) return look({});  // the server has them already, or not at all
  parts.server->update_weights(update->what.folder, config.label_of(update->what.version), later<Status>(handover, look));
}

void ServedInstanceActor::on_switched(const Status& status, const Result<ServerState>& now) {
  switching = false;
  const std::string right = config.label_of(update->what.version);
  const std::string label = now.ok() ? now->weights : "";
  const bool is_known = now.ok() && (!label.empty() || config.weights.empty());
  const bool has_new = label.empty() ? status.ok() && is_known : label == right;
  if (has_new) {
    config.version = update->what.version;
    config.weights = label;
    return answer_update({});
  }
  const std::string why = !status.ok() ? status.error().detail : cat(parts.server->name(), " has weights ", label, " after the change to ", right);
  const bool has_old = is_known && !label.empty() && label == config.weights;
  if (!has_old) ends_why = why;  // nobody knows what it has
  answer_update(why);
}

void ServedInstanceActor::answer_update(std::string error) {
  rt::tell(self, update->reply_to, InstanceWeights{config.id, config.version, label_hash(config.weights), std::move(error)});
  update.reset();
}

// ---- reports -----------------------------------------------------------------------------------------------------------------------

/// A rollout gives up an instance of which it hears nothing. The requests to the server have limits of their own.
void ServedInstanceActor::report_all() {
  report_tokens(true);
  report_due = !sequences.empty();
  if (report_due) rt::tell_after(self, config.alive_us, handle{self}, Tick{kReportAll});
}

/// Sends each rollout the new tokens of its chunks. `all`: also word of chunks without any.
void ServedInstanceActor::report_tokens(bool all) {
  auto next = sequences.begin();
  for (const auto& [rollout, sink] : sinks) {
    ChunkProgress progress{config.id, {}, blocks_used, config.version};
    for (; next != sequences.end() && next->first.rollout == rollout; ++next)
      if (Sequence& s = *next->second; all || s.reported_tokens < s.log.size()) progress.chunks.push_back(s.take_unreported());
    if (!progress.chunks.empty()) rt::tell(self, sink, std::move(progress));
  }
}

const InstanceReport& ServedInstanceActor::current_report() {
  report.chunks = static_cast<int64_t>(sequences.size());
  report.kv_blocks_used = blocks_used;
  report.kv_blocks_peak = std::max(report.kv_blocks_peak, blocks_used);
  return report;
}

int64_t ServedInstanceActor::blocks_of(const Sequence& s) const { return (s.log.size() + config.block_tokens - 1) / config.block_tokens; }

}  // namespace seer
