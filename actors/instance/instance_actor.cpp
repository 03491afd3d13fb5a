#include "actors/instance/instance_actor.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "gpu/slot_engine.h"

namespace seer {

namespace {

InstanceParts with_slots(InstanceParts parts) {
  parts.engine = seer::with_slots(std::move(parts.engine));
  return parts;
}

}  // namespace

InstanceActor::InstanceActor(rt::self_ptr<InstanceActor> self_in, InstanceConfig config_in, InstanceParts parts_in)
    : self(self_in),
      config(std::move(config_in)),
      parts(with_slots(std::move(parts_in))),
      info(parts.engine->info()),
      devices(info.device_blocks, info.block_tokens),
      engine(*parts.engine),
      drafts(parts.drafting.drafter ? std::optional<SequenceDrafts>(parts.drafting) : std::nullopt),
      kv({.headroom_tokens = config.headroom_tokens, .offer_blocks = config.offer_blocks}, info, devices, sequences, engine,
         parts.arena, [this](KvMoves::ToPool message) { tell_pool(std::move(message)); }),
      batch(config.planner, config.step_depth, info, devices, sequences, engine, *parts.engine->step_run(), drafts ? &*drafts : nullptr,
            [this](Sequence& s, int64_t rows, std::span<const SampledToken> sampled, std::span<const KeptList> kept, size_t passed) {
              on_gain(s, rows, sampled, kept, passed);
            }) {
  report.instance = config.id;
  report.kv_blocks_total = info.device_blocks;
  report.kv_block_bytes = info.block_bytes;
  rt::on_down(self, [this](const rt::down& message) { on_down(message); });
  parts.engine->set_notify(rt::waker_here<InstanceActor>(self, WorkReady{}));
}

InstanceActor::handle::behavior_type InstanceActor::make_behavior() {
  return {
      [this](RunChunk& chunk) { on_run_chunk(std::move(chunk)); },
      [this](const CancelChunk& cancel) { cancel_chunk(cancel.chunk); },
      [this](const DropChunks& drop) { drop_chunks(drop.rollout); },
      [this](const YieldChunks&) { yield_chunks(); },
      [this](const UseInstance& use) { on_use(use); },
      [this](const UpdateInstance& asked) { update_weights(asked); },
      [this](const WorkReady&) { on_work_ready(); },
      [](const Tick&) {},
      [this](const KvReserved& reserved) { on_reserved(reserved); },
      [this](const KvOpened& opened) { on_opened(opened); },
      [this](const DraftServers& servers) {
        if (drafts) drafts->set_servers(servers);
      },
      [this](const CstFetched& answer) {
        if (drafts) drafts->fetched(answer, handle{self}, rt::now_us(self));
      },
      [this](const GetReport&) { return current_report(); },
  };
}

// ---- a step ----------------------------------------------------------------------------------------------------------

void InstanceActor::on_work_ready() {
  if (const Status taken = take_results(); !taken.ok()) return rt::quit(self, taken.error().detail);  // its node starts another with a new engine
  go_on();
}

/// Errors: the engine is lost, and so are all chunks on it.
Status InstanceActor::take_results() {
  std::vector<EngineResult> results = engine.take_results();
  const auto may_use_blocks = [&](const EngineResult& result) {
    const auto* const copy = std::get_if<CopyResult>(&result);
    return copy != nullptr && (copy->direction == CopyBatch::Direction::kImport || kv.is_parking(copy->id));
  };
  for (const EngineResult& result : results)
    if (!std::holds_alternative<WeightResult>(result) || is_switching())  // after a failed StageWeights the old weights still work
      SEER_RETURN_IF_ERROR(std::visit([](const auto& of) { return of.status; }, result));
  if (std::ranges::any_of(results, may_use_blocks)) batch.settle_blocks();
  for (EngineResult& result : results) {
    engine.result_handled();
    if (auto* const steps = std::get_if<StepResult>(&result))
      on_steps(*steps);
    else if (const auto* const weights = std::get_if<WeightResult>(&result))
      on_weights(*weights);
    else
      on_copy(std::get<CopyResult>(result));
  }
  engine.feed();
  return {};
}

/// Orders the next step if none is in the engine and there is work. Steps already ordered are cut short if the plan for them is
/// out of date.
void InstanceActor::go_on() {
  do {
    if (!batch.is_ordered() && !sequences.empty()) {
      bool is_planned = false;
      while (!is_planned) is_planned = plan();
      batch.order(steps_to_report(), kv.first_arrival_fits(batch.running_count()));
    }
  } while (admit());
  batch.split_if_stale();
  batch.order_ahead();
}

/// Runs arrivals for which there is room. Returns whether there was one.
bool InstanceActor::admit() {
  if (batch.blocks_short()) return false;
  const std::vector<Sequence*> ready = kv.admit(batch.running_count());
  for (Sequence* const s : ready) run(*s);
  return !ready.empty();
}

/// Plans a step; chunks that must give way do so at once. Returns false if that freed blocks: plan again.
bool InstanceActor::plan() {
  batch.plan();
  if (draining) {
    give_all_way();  // chunks still opening or importing give way when they run
    return true;
  }
  if (batch.is_parking()) return true;  // the blocks that parking chunks free may suffice
  // Wait for chunks that are opening or importing. A chunk that gave way now would come straight back: they hold no slots yet.
  if (batch.is_idle() && (batch.is_importing() || kv.is_opening())) return true;
  const bool stuck = batch.is_idle() && kv.has_arrivals() && !kv.first_arrival_fits(batch.running_count());
  if (!batch.blocks_short() && !stuck) return true;
  const std::vector<Sequence*> victims = batch.pick_victims();
  if (victims.empty() && batch.is_idle()) {
    if (Sequence* const last = kv.release_last_arrival()) {
      run(*last);
      return false;
    }
    // No other chunk holds a block, and still this one does not fit.
    Sequence* const first = batch.first_running();
    Sequence& s = first != nullptr ? *first : kv.take_first_arrival();
    end_request(s, Ending::failed(cat("request ", s.request, " does not fit on instance ", config.id, " even alone (", s.kv_tokens, " tokens have their KV)")));
    return false;
  }
  batch.take_out(victims);
  for (Sequence* const s : victims) give_way(*s);
  return victims.empty() || !batch.is_idle();
}

void InstanceActor::give_all_way() {
  const std::vector<Sequence*> all = batch.all_running();
  batch.take_out(all);
  for (Sequence* const s : all) give_way(*s);
  while (kv.has_arrivals()) {
    Sequence& s = kv.take_first_arrival();
    kv.drop(s.chunk);
    give_way(s);
  }
}

void InstanceActor::on_steps(StepResult& result) {
  add_figures(result);
  if (drafts) drafts->step_came(rt::now_us(self), result.step_us);
  batch.take(result);
  const bool report_due = steps_since_report >= config.report_steps || rt::now_us(self) - reported_us >= config.alive_us;
  const bool live_due = sequences.any_live() && steps_since_live_report >= config.live_report_steps;
  const bool sync_due = drafts && drafts->sync_is_due(rt::now_us(self));
  if (report_due || live_due || sync_due) batch.take_gains();
  if (report_due)
    report_tokens();
  else if (live_due)
    report_live();
  if (sync_due) share_drafts();
}

void InstanceActor::on_copy(const CopyResult& result) {
  report.engine_cpu_us += result.cpu_us;
  if (result.direction == CopyBatch::Direction::kImport) {
    if (Sequence* const s = kv.imported(result)) run(*s);
  } else if (Sequence* const s = kv.exported(result)) {
    parking_progressed(*s);
  }
}

void InstanceActor::add_figures(const StepResult& result) {
  SEER_CHECK(result.version == info.version, result.version, info.version);  // steps of chunks that were dropped have the old one too
  report.busy_us += result.step_us;
  report.engine_cpu_us += result.cpu_us;
  report.steps += result.steps;
  steps_since_report += static_cast<int32_t>(result.steps);
  steps_since_live_report += static_cast<int32_t>(result.steps);
}

/// A sequence has got tokens (RunningBatch::OnGain).
void InstanceActor::on_gain(Sequence& s, int64_t rows, std::span<const SampledToken> sampled, std::span<const KeptList> kept, size_t passed) {
  if (const int64_t prefilled = rows - std::ssize(sampled); prefilled > 0) {
    s.done.prefill_tokens += prefilled;
    s.done.reprefill_tokens += std::clamp<int64_t>(s.computed_tokens - s.kv_tokens, 0, prefilled);
    report.prefill_tokens += prefilled;
  }
  s.kv_tokens += rows;
  const int32_t blocks = blocks_needed(s.log.size(), 0, info.block_tokens);
  const Sequence::Appended appended = s.append(sampled, passed, kept);
  if (!s.keep_kv && blocks_needed(s.log.size(), blocks, info.block_tokens) > 0) grown.push_back(s.chunk);
  report.output_tokens += appended.tokens;
  kv.name_filled_blocks(s);
  if (!appended.error.empty()) return end_request(s, Ending::failed(appended.error));
  if (appended.end.reason != FinishReason::kNone) return end_request(s, s.ending_of(appended.end));
  if (s.log.size() >= s.end_tokens) return park(s, ChunkEnd::kChunkFull);
  if (s.offered_blocks < prompt_blocks(s, info.block_tokens)) kv.offer_filled_blocks(s);
}

/// Applies the steps that have ended, so that sequences are current while later steps run.
void InstanceActor::take_steps_over() {
  if (const std::optional<StepResult> figures = batch.take_steps_over()) add_figures(*figures);
}

// ---- a chunk arrives -------------------------------------------------------------------------------------------------

void InstanceActor::on_use(const UseInstance& use) {
  if (!draining && !is_switching() && use.version == info.version) note_user(use.rollout, use.reply_to);
}

void InstanceActor::note_user(RolloutId rollout, const ChunkSink& to) {
  if (sinks.empty()) {
    const int64_t now = rt::now_us(self);
    if (drafts) drafts->begin_history();
    if (started_us < 0) reported_us = all_reported_us = now;
    started_us = now;
  }
  sinks.note(self, rollout, to);
}

void InstanceActor::on_run_chunk(RunChunk chunk) {
  if (drafts)
    for (const GroupId group : chunk.over) drafts->forget(group);
  batch.settle_blocks();
  const ChunkId id = chunk.chunk;
  if (sequences.find(id) != nullptr) return;  // a duplicate
  if (draining || is_switching() || chunk.version != info.version) {
    // The rollout learns by another message that this instance leaves, and from the version which weights it has or gets.
    const WeightVersion version = is_switching() ? update->asked.what.version : info.version;
    return rt::tell(self, chunk.reply_to, not_begun(chunk, config.id, version));
  }
  if (const Status taken = check_chunk(chunk); !taken.ok()) {
    ChunkDone refused = not_begun(chunk, config.id, info.version);
    refused.end = ChunkEnd::kFailed;
    refused.ending = Ending::failed(taken.error().detail);
    return rt::tell(self, chunk.reply_to, std::move(refused));
  }
  note_user(id.rollout, chunk.reply_to);
  auto sequence = make_sequence(chunk, config.id, {info.eos_ids, info.context_tokens_max}, parts.tokenizer, last_sampling);
  sequence->keep_kv = chunk.keep_kv;
  sequence->has_pool = chunk.keep_kv && parts.kv_node;
  Sequence& s = sequences.add(std::move(sequence));
  batch.add(s);
  if (drafts) drafts->chunk_came();

  if (s.has_pool && (batch.blocks_short() || kv.is_behind_arrivals(s, batch.running_count())))
    kv.add_arrival(s);  // find() would take blocks that were freed for those that came before
  else if (kv.find(s))
    run(s);
  go_on();
}

/// The rollout may have another model's folder, or one with other files.
Status InstanceActor::check_chunk(const RunChunk& chunk) const {
  if (sequences.of(chunk.chunk.rollout).size() >= static_cast<size_t>(config.rows_max))
    return fail(Code::kFull, "instance ", config.id, " runs ", config.rows_max, " requests of rollout ", chunk.chunk.rollout, " already, which is its limit");
  std::optional<int32_t> unknown;
  chunk.log.visit(0, chunk.log.size(), [&](std::span<const int32_t> tokens) {
    const auto at = std::ranges::find_if(tokens, [this](int32_t token) { return token < 0 || token >= info.vocab_size; });
    if (at != tokens.end()) unknown = *at;
  });
  if (unknown)
    return fail(Code::kInvalidArgument, "token id ", *unknown, " at instance ", config.id, ": expected ids below ", info.vocab_size,
                ", the size of the vocabulary of ", model_name(info.model));
  if (!chunk.sampling.stop.empty() && parts.tokenizer == nullptr)
    return fail(Code::kInvalidArgument, "instance ", config.id, " cannot look for stop strings: its folder of ", model_name(info.model),
                " has no tokenizer.json and no tokenizer.model");
  return {};
}

/// The sequence takes part from the next step on.
void InstanceActor::run(Sequence& s) {
  s.phase = ChunkPhase::kRunning;
  batch.note_change();
}

void InstanceActor::on_opened(const KvOpened& opened) {
  batch.settle_blocks();
  if (Sequence* const s = kv.opened(opened, batch.running_count())) run(*s);
  go_on();
}

// ---- ends of chunks --------------------------------------------------------------------------------------------------

/// KV runs short: the chunk leaves, with its KV (to the pool) or without (to be recomputed).
void InstanceActor::give_way(Sequence& s) {
  if (s.has_pool) {
    ++report.yields;
    park(s, ChunkEnd::kYielded);
  } else {
    ++report.preemptions;
    kv.forget_response(s);
    answer(s.chunk, ChunkEnd::kPreempted);
  }
}

/// Ends the chunk unfinished. It is answered when its KV is in the pool.
void InstanceActor::park(Sequence& s, ChunkEnd end) {
  s.end = end;
  if (!s.has_pool || !kv.park(s)) answer(s.chunk, end);
}

void InstanceActor::on_reserved(const KvReserved& reserved) {
  Sequence* const parking = kv.reserved(reserved);
  if (parking == nullptr) return;
  batch.settle_blocks();
  parking_progressed(*parking);
  go_on();
}

void InstanceActor::parking_progressed(Sequence& s) {
  if (--s.parking_ops == 0) answer(s.chunk, s.end);
}

/// Ends the request with the tokens it has. The prompt's KV stays cached, since a request with an equal prompt would compute the
/// same bits.
void InstanceActor::end_request(Sequence& s, Ending ending) {
  s.done.ending = std::move(ending);
  kv.forget_response(s);
  answer(s.chunk, end_of(s.done.ending.reason));
}

void InstanceActor::answer(ChunkId id, ChunkEnd end) {
  const std::unique_ptr<Sequence> ended = sequences.remove(id);
  Sequence& s = *ended;
  batch.remove(s);
  devices.release(s.table);
  if (drafts) {
    drafts->learn(s);  // its last tokens; the next sync shares them
    if (sequences.empty()) share_drafts();  // without steps there is no next sync
  }
  if (!s.keep_kv) report_growth();
  s.done.end = end;
  s.done.kv_tokens = s.kv_tokens;
  s.done.last = s.take_unreported();
  s.done.kv_blocks_used = devices.counts().in_use;
  s.done.version = info.version;
  report.cached_tokens += s.done.cached_tokens;
  rt::tell(self, sinks.of(id.rollout), std::move(s.done));
}

void InstanceActor::cancel_chunk(ChunkId id) {
  take_steps_over();
  batch.split();
  Sequence* const s = sequences.find(id);  // the steps just taken may have ended it
  if (s == nullptr || s->phase == ChunkPhase::kParking) return;
  kv.drop(id);
  batch.drop(*s);
  end_request(*s, Ending::aborted());
  go_on();
}

/// Results of work already submitted for these chunks are ignored.
void InstanceActor::drop_chunks(RolloutId rollout) {
  take_steps_over();
  batch.split();
  if (drafts) drafts->forget(rollout);
  std::vector<ChunkId> dropped;
  for (const auto& [id, s] : sequences.of(rollout)) dropped.push_back(id);
  for (const ChunkId id : dropped) {
    const std::unique_ptr<Sequence> s = sequences.remove(id);
    batch.drop(*s);
    kv.drop(id);
    devices.release(s->table);
  }
  std::erase_if(grown, [&](ChunkId chunk) { return chunk.rollout == rollout; });
  sinks.erase(rollout);
  if (!sequences.empty()) go_on();  // other rollouts have more room now
  switch_when_unused();
}

void InstanceActor::yield_chunks() {
  draining = true;
  take_steps_over();
  batch.note_change();
  go_on();
}

/// A rollout died. One that ends normally has sent DropChunks before.
void InstanceActor::on_down(const rt::down& message) {
  if (const auto lost = sinks.lost(message)) drop_chunks(*lost);
}

// ---- weights ---------------------------------------------------------------------------------------------------------

void InstanceActor::update_weights(const UpdateInstance& asked) {
  const auto refuse = [&](const auto&... why) {
    rt::tell(self, asked.reply_to, InstanceWeights{config.id, info.version, info.kv_hash, cat("instance ", config.id, why...)});
  };
  if (update) return refuse(" is changing to weight version ", update->asked.what.version, " already");
  if (asked.what.version <= info.version)
    return refuse(" runs with weight version ", info.version, ", and ", asked.what.version, " is not above it");
  update = {asked, Update::Phase::kStaging};
  const NewWeights& what = asked.what;
  engine.submit(StageWeights{.id = what.version.value, .version = what.version, .folder = what.folder, .kv_hash = what.weights});
}

void InstanceActor::on_weights(const WeightResult& result) {
  if (!result.status.ok()) return answer_update(cat("instance ", config.id, ": ", result.status.error().detail));
  if (update->phase == Update::Phase::kStaging) {
    update->phase = Update::Phase::kStaged;
    return switch_when_unused();
  }
  info.version = result.version;
  info.kv_hash = result.kv_hash;
  devices.drop_names_below(info.version);
  answer_update({});
}

/// Switches only when no rollout uses this instance: an open rollout will send more chunks for the old weights.
void InstanceActor::switch_when_unused() {
  if (!update || update->phase != Update::Phase::kStaged || !sinks.empty()) return;
  SEER_CHECK(sequences.empty(), sequences.size());
  update->phase = Update::Phase::kSwitching;
  engine.submit(SwitchWeights{.id = update->asked.what.version.value});
}

void InstanceActor::answer_update(std::string error) {
  rt::tell(self, update->asked.reply_to, InstanceWeights{config.id, info.version, info.kv_hash, std::move(error)});
  update.reset();
}

// ---- reports ---------------------------------------------------------------------------------------------------------

int32_t InstanceActor::steps_to_report() const {
  const int32_t steps = config.report_steps - steps_since_report;
  return sequences.any_live() ? std::clamp(config.live_report_steps - steps_since_live_report, 1, steps) : steps;
}

void InstanceActor::report_tokens() {
  steps_since_report = steps_since_live_report = 0;
  grown.clear();
  if (drafts) {
    drafts->renew_choice();
    drafts->figures_at(rt::now_us(self) - started_us);
    // Without a draft server, only this shows the drafter requests that get no drafts. Others draft from them.
    drafts->learn(sequences);
  }
  const int64_t now = rt::now_us(self);
  reported_us = now;
  const bool reports_all = now - all_reported_us >= config.alive_us;
  if (reports_all) all_reported_us = now;
  std::vector<ChunkTokens> reported;
  for (const auto& [id, sequence] : sequences) {
    Sequence& s = *sequence;
    if (s.phase == ChunkPhase::kRunning) kv.offer_filled_blocks(s);
    if (s.reported_tokens == s.log.size() && !reports_all) continue;
    reported.push_back(s.take_unreported());
    if (s.sampling->logprob_mode != LogprobMode::kNone)
      s.unreported_logprobs.reserve(static_cast<size_t>(config.report_steps));
  }
  tell_rollouts(std::move(reported));
}

void InstanceActor::report_live() {
  steps_since_live_report = 0;
  std::vector<ChunkTokens> reported;
  for (const auto& [id, s] : sequences)
    if (s->is_live && s->reported_tokens < s->log.size()) reported.push_back(s->take_unreported());
  tell_rollouts(std::move(reported));
}

/// Without KV to keep, the scheduler admits chunks by the blocks in use now, as an inference engine does. So this reports every
/// chunk that needed another block since its last report.
void InstanceActor::report_growth() {
  std::vector<ChunkTokens> reported;
  std::ranges::sort(grown);
  for (const ChunkId id : grown)
    if (Sequence* const s = sequences.find(id); s != nullptr && s->reported_tokens < s->log.size())
      reported.push_back(s->take_unreported());
  grown.clear();
  tell_rollouts(std::move(reported));
}

/// Tells each rollout about its own chunks. REQUIRES: `reported` is sorted by chunk.
void InstanceActor::tell_rollouts(std::vector<ChunkTokens> reported) {
  auto next = std::make_move_iterator(reported.begin());
  const auto end = std::make_move_iterator(reported.end());
  for (const auto& [rollout, sink] : sinks) {
    ChunkProgress progress{config.id, {}, devices.counts().in_use, info.version};
    for (; next != end && next.base()->chunk.rollout == rollout; ++next) progress.chunks.push_back(*next);
    rt::tell(self, sink, std::move(progress));
  }
}

void InstanceActor::share_drafts() { drafts->share(sequences, handle{self}, rt::now_us(self)); }

const InstanceReport& InstanceActor::current_report() {
  take_steps_over();
  const BlockCounts counts = devices.counts();
  report.chunks = static_cast<int64_t>(sequences.size());
  report.kv_blocks_used = counts.in_use;
  report.kv_blocks_peak = counts.in_use_peak;
  report.imported_blocks = kv.figures().imported_blocks;
  report.exported_blocks = kv.figures().exported_blocks;
  report.corrupt_blocks = kv.figures().corrupt_blocks;
  if (drafts && started_us >= 0) report.drafting = drafts->figures_at(rt::now_us(self) - started_us);
  return report;
}

void InstanceActor::tell_pool(KvMoves::ToPool message) {
  const auto say = [this]<class Message>(Message& what) {
    if constexpr (std::is_same_v<Message, KvOpening>)
      rt::tell(self, parts.kv_node, OpenBlocks{std::move(what), handle{self}});
    else if constexpr (std::is_same_v<Message, KvReservation>)
      rt::tell(self, parts.kv_node, ReserveBlocks{std::move(what), handle{self}});
    else
      rt::tell(self, parts.kv_node, std::move(what));
  };
  std::visit(say, message);
}

}  // namespace seer
