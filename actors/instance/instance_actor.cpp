#include "actors/instance/instance_actor.h"

#include <algorithm>
#include <ranges>
#include <utility>
#include <variant>

namespace seer {

InstanceActor::InstanceActor(rt::self_ptr<InstanceActor> self_in, InstanceConfig config_in, InstanceParts parts_in)
    : self(self_in),
      config(std::move(config_in)),
      parts(std::move(parts_in)),
      info(parts.engine->info()),
      devices(info.device_blocks, info.block_tokens),
      step_run(parts.engine->step_run()) {
  report.instance = config.id;
  report.kv_blocks_total = info.device_blocks;
  if (parts.drafting.drafter) {
    draft_budget.emplace(parts.drafting.budget, parts.drafting.step_ns);
    draft_sync.emplace(parts.drafting.sync, parts.drafting.drafter);
  }
  parts.engine->set_notify(rt::waker<InstanceActor>(self, [](const handle& me) { rt::post(me, WorkReady{}); }));
}

InstanceActor::handle::behavior_type InstanceActor::make_behavior() {
  return {
      [this](RunChunk& chunk) {
        settle_blocks();
        on_run_chunk(std::move(chunk));
      },
      [this](const DropChunks&) {
        take_steps_over();
        split_steps();
        drop_chunks();
      },
      [this](const WorkReady&) { on_work_ready(); },
      [this](const KvReserved& reserved) { on_reserved(reserved); },
      [this](const KvOpened& opened) {
        settle_blocks();
        on_opened(opened);
      },
      [this](const DraftServers& servers) {
        if (draft_sync) draft_sync->set_servers(servers);
      },
      [this](const CstFetched& answer) {
        if (draft_sync) draft_sync->fetched(answer, handle{self}, rt::now_us(self));
      },
      [this](const GetReport&) {
        take_steps_over();
        const BlockCounts counts = devices.counts();
        note_drafts();
        report.kv_blocks_used = counts.in_use;
        report.kv_blocks_peak = counts.in_use_peak;
        return report;
      },
  };
}

namespace {

constexpr auto kById = [](const auto& entry) { return entry.first; };

}  // namespace

InstanceActor::Sequence* InstanceActor::find(ChunkId id) {
  const auto it = std::ranges::lower_bound(sequences, id, {}, kById);
  return it == sequences.end() || it->first != id ? nullptr : it->second.get();
}

InstanceActor::Sequence& InstanceActor::at(ChunkId id) {
  Sequence* const s = find(id);
  SEER_CHECK(s != nullptr, id);
  return *s;
}

// ---- a chunk arrives -------------------------------------------------------------------------------------------------

void InstanceActor::on_run_chunk(RunChunk chunk) {
  const ChunkId id = chunk.chunk;
  if (find(id) != nullptr) return;  // it came twice
  sink = chunk.reply_to;
  if (started_us < 0) started_us = rt::now_us(self);
  if (sequences.size() >= static_cast<size_t>(config.rows_max)) {
    rt::tell(self, chunk.reply_to, ChunkDone{.chunk = id, .instance = config.id, .end = ChunkEnd::kRejected,
                                             .last = {id, chunk.log.output_tokens(), {}, {}}});
    return;
  }
  if (!last_sampling || *last_sampling != chunk.sampling)
    last_sampling = std::make_shared<const SamplingParams>(chunk.sampling);
  TokenText text_of;
  if (parts.tokenizer) text_of = [tokenizer = parts.tokenizer](int32_t token) { return tokenizer->piece(token); };
  StopRule stop(*last_sampling, {info.eos_ids, info.context_tokens_max}, chunk.log, std::move(text_of));
  auto sequence = std::make_unique<Sequence>(Sequence{.sampling = last_sampling, .stop = std::move(stop)});
  Sequence& s = *sequence;
  sequences.emplace(std::ranges::upper_bound(sequences, id, {}, kById), id, std::move(sequence));
  s.spec.chunk = id;
  add_unplaced(s);
  s.log = std::exchange(chunk.log, {});
  s.reported_tokens = s.log.size();
  s.end_tokens = s.reported_tokens + chunk.max_new_tokens;
  s.seed = chunk.seed;
  s.keep_kv = chunk.keep_kv;
  s.spec = std::move(chunk);
  s.done = {.chunk = id, .instance = config.id};
  if (draft_sync) draft_sync->chunk_came(s.spec.version);

  if (blocks_short && has_pool(s)) {  // it would keep what those that give way leave behind for the others
    s.phase = Phase::kOpening;
    arrivals.push_back({id, static_cast<int32_t>(s.log.size() / info.block_tokens) + 1, false});
  } else {
    find_kv(id, s);
  }
  pump();
}

/// From the next step on.
void InstanceActor::run(Sequence& s) {
  s.phase = Phase::kRunning;
  steps_stale = true;
}

/// Asks again for the oldest chunk that waits for device blocks, once there are enough. Running chunks go on meanwhile; as
/// they finish or give way, room comes.
bool InstanceActor::admit_arrivals() {
  bool ready = false;  // to run
  while (!blocks_short && first_arrival_fits()) {
    Arrival& next = arrivals.front();
    next.asked = true;
    Sequence& s = at(next.chunk);
    find_kv(next.chunk, s);
    if (s.phase != Phase::kRunning) continue;
    arrivals.pop_front();  // all of it is on the device by now
    ready = true;
  }
  return ready;
}

bool InstanceActor::first_arrival_fits() const {
  return !arrivals.empty() && !arrivals.front().asked && fits_beside_running(arrivals.front().blocks);
}

bool InstanceActor::fits_beside_running(int32_t blocks) const {
  return blocks + running_count * config.headroom_tokens / info.block_tokens <= devices.counts().available();
}

/// So that no chunk waits for room that only the others who wait could give: the last of them that holds any goes on
/// without waiting, and can give way like the others. False: none holds any.
bool InstanceActor::prefill_last_arrival() {
  auto last = std::find_if(arrivals.rbegin(), arrivals.rend(),
                           [&](const Arrival& a) { return !at(a.chunk).table.empty(); });
  if (last == arrivals.rend()) return false;
  run(at(last->chunk));
  arrivals.erase(std::next(last).base());
  return true;
}

// ---- steps -----------------------------------------------------------------------------------------------------------

void InstanceActor::on_work_ready() {
  std::vector<EngineResult> results = parts.engine->take_results();
  const auto is_step = [](const EngineResult& result) { return std::holds_alternative<StepResult>(result); };
  if (step_run == nullptr && std::ranges::any_of(results, is_step)) fetch_members();
  const auto leaves_blocks = [&](const EngineResult& result) {
    const auto* copy = std::get_if<CopyResult>(&result);
    if (copy == nullptr || copy->direction == CopyBatch::Direction::kImport) return copy == nullptr;
    return !exports.at(copy->id).parking;
  };
  if (!std::ranges::all_of(results, leaves_blocks)) settle_blocks();
  for (EngineResult& result : results) {
    --engine_open;
    if (auto* step = std::get_if<StepResult>(&result)) {
      on_step(*step);
    } else {
      const auto& copy = std::get<CopyResult>(result);
      report.engine_cpu_us += copy.cpu_us;
      copy.direction == CopyBatch::Direction::kExport ? on_export(copy) : on_import(copy);
    }
  }
  feed_engine();
  pump();
}

/// With many instances in one process, the sequences that were in a step have left the caches since it began. Asked for one
/// by one, as they are looked at, each of their lines would take its time from memory.
void InstanceActor::fetch_members() const {
  constexpr size_t kLineBytes = 64;
  for (const StepMember& member : in_step) {
    if (member.sequence == nullptr) continue;
    const auto* const end = reinterpret_cast<const std::byte*>(&member.sequence->spec);
    for (const auto* at = reinterpret_cast<const std::byte*>(member.sequence); at < end; at += kLineBytes)
      __builtin_prefetch(at, 1);
  }
  for (const StepMember& member : in_step) {
    if (member.sequence == nullptr) continue;
    member.sequence->log.prefetch_end();
    if (draft_budget) {
      __builtin_prefetch(member.sequence->draft.tokens.data(), 1);
      __builtin_prefetch(member.sequence->draft.parents.data(), 1);
    }
    __builtin_prefetch(member.sequence->table.data() + member.sequence->table.size(), 1);
  }
}

void InstanceActor::submit(EngineWork work) {
  waiting_work.push_back(std::move(work));
  feed_engine();
}

void InstanceActor::feed_engine() {
  for (; !waiting_work.empty() && engine_open < info.queue_max; ++engine_open) {
    parts.engine->submit(std::move(waiting_work.front()));
    waiting_work.pop_front();
  }
}

/// Submits the next step, if none is in the engine and there is anything to do. Steps that are there go on if they would be
/// planned so again.
void InstanceActor::pump() {
  do {
    if (step_open || sequences.empty()) continue;
    while (!plan(plan_memory)) {
    }
    if (step_run != nullptr)
      start_steps();
    else if (!plan_memory.sequences.empty())
      start_step();
  } while (admit_arrivals());
  if (steps_stale || blocks_free > devices.counts().available()) split_steps();
}

void InstanceActor::start_step() {
  StepBatch batch{.id = next_op++, .sequences = std::exchange(spent_steps, {}), .spent = std::exchange(spent_samples, {})};
  batch.sequences.resize(plan_memory.sequences.size());
  for (const SequenceStep& step : batch.sequences) __builtin_prefetch(step.tokens.data(), 1);  // as in fetch_members()
  timing.only_decodes = plan_memory.prefill_rows == 0;
  timing.decode = timing.step = {};
  for (const PlannedRows& rows : plan_memory.sequences) {
    Sequence& s = *running[static_cast<size_t>(rows.sequence)];
    fill(batch.sequences[in_step.size()], s, rows);
    in_step.push_back({.sequence = &s, .rows = rows.rows, .sample_rows = rows.sample_rows});
    timing.decode.add(s.kv_tokens, 1, 1);
    timing.step.add(s.kv_tokens, rows.rows, rows.sample_rows);
  }
  step_open = true;
  submit(std::move(batch));
}

/// Plans a step; chunks that have to give way for it do so at once. False: blocks were freed by that and nothing else
/// could be planned, so plan again.
bool InstanceActor::plan(StepPlan& plan) {
  gave_way = false;
  if (drafts_due && draft_budget) leave_all();  // all are asked what they draft
  do {
    gather_running();
    if (draft_budget) choose_drafts();
    const auto available = static_cast<int32_t>(std::max<int64_t>(0, devices.counts().available() - std::ssize(needy)));
    plan_step(running_memory, config.planner, info.block_tokens, available, plan, rows_at_places);
  } while (make_room_at_places(plan));
  all_in = plan.sequences.size() == running.size();
  const bool idle = plan.sequences.empty() && rows_at_places == 0;
  blocks_short = plan.blocks_short > 0;
  if (phases.parking) return true;  // one wave at a time: what is parking may suffice
  // Who gives way now would be sent right back, since those on the way have not taken their places yet: wait for them.
  if (idle && (phases.importing || !openings.empty())) return true;
  const bool stuck = idle && !arrivals.empty() && !first_arrival_fits();
  if (!blocks_short && !stuck) return true;
  const std::vector<Sequence*> victims = pick_victims(plan.blocks_short);
  if (victims.empty() && idle) {
    if (prefill_last_arrival()) return false;
    // Nobody else holds a block, and still it does not fit.
    const ChunkId alone = running.empty() ? arrivals.front().chunk : running[0]->spec.chunk;
    if (running.empty()) arrivals.pop_front();
    answer(alone, ChunkEnd::kRejected);
    return true;
  }
  std::erase_if(plan.sequences, [&](const PlannedRows& rows) {
    return std::ranges::find(victims, running[static_cast<size_t>(rows.sequence)]) != victims.end();
  });
  gave_way = !victims.empty();
  for (Sequence* const s : victims) leave_fed(*s);
  for (const int32_t place : needy) note_growth(place);
  if (gave_way) feed_growing(steps_done());
  for (const Sequence* const s : victims) give_way(s->spec.chunk);
  return victims.empty() || !plan.sequences.empty() || rows_at_places > 0;
}

/// So that the others get so many blocks more. Those at places need none.
std::vector<InstanceActor::Sequence*> InstanceActor::pick_victims(int32_t blocks) {
  if (blocks == 0) return {};
  std::vector<Sequence*> all = running;
  for (size_t i = 0; i < running.size(); ++i) running_memory[i].yield_rank = running[i]->spec.yield_rank;
  for (const StepMember& member : in_step) {
    if (member.sequence == nullptr) continue;
    all.push_back(member.sequence);
    running_memory.push_back(
        {.id = member.chunk.value, .known_tokens = 1, .table_blocks = 1, .yield_rank = member.yield_rank});
  }
  std::vector<Sequence*> victims;
  for (const int32_t i : seer::pick_victims(running_memory, blocks, info.block_tokens, [&](int32_t of) {
         return devices.sole_user_count(all[static_cast<size_t>(of)]->table);
       }))
    victims.push_back(all[static_cast<size_t>(i)]);
  running_memory.resize(running.size());
  return victims;
}

/// Those that are to be planned: who is at a place in the step run goes on there.
void InstanceActor::gather_running() {
  running_memory.clear();
  running.clear();
  prefilling.clear();
  phases = {};
  for (Sequence* const sequence : unplaced) {
    Sequence& s = *sequence;
    phases.parking |= s.phase == Phase::kParking;
    phases.importing |= s.phase == Phase::kImporting;
    if (draft_budget) {
      s.draft.clear();
      s.draft_allowed = 0;
    }
    if (s.phase != Phase::kRunning) continue;
    if (waits_for_prompt(s)) continue;
    running.push_back(&s);
    running_memory.push_back({.id = s.spec.chunk.value,
                              .known_tokens = s.log.size(),
                              .kv_tokens = s.kv_tokens,
                              .draft_tokens = 0,
                              .table_blocks = static_cast<int32_t>(s.table.size()),
                              .wants_sampling = true});
  }
  running_count = std::ssize(running) + std::ssize(sequences) - std::ssize(unplaced);
}

void InstanceActor::add_unplaced(Sequence& s) {
  const auto chunk = [](const Sequence* of) { return of->spec.chunk; };
  unplaced.insert(std::ranges::upper_bound(unplaced, s.spec.chunk, {}, chunk), &s);
}

/// Of the members of a group that start together, the first computes the prompt; the others wait, holding nothing, and
/// then share its whole blocks. Each computing its own would take as many times the room that the scheduler has counted.
bool InstanceActor::waits_for_prompt(Sequence& s) {
  const int64_t whole_blocks = std::min(s.log.prompt_tokens(), s.log.size() - 1) / info.block_tokens;
  if (std::ssize(s.chain) >= whole_blocks) return false;
  const GroupId group = s.spec.request.group;
  const bool begun = std::ranges::find(prefilling, group) != prefilling.end();
  if (!s.table.empty() || begun) {
    if (!begun) prefilling.push_back(group);
    return s.table.empty();
  }
  const std::span<const BlockRef> prompt_names = names_of(s, whole_blocks);
  s.chain.assign(prompt_names.begin(), prompt_names.begin() + devices.retain_run(prompt_names, s.table));
  s.kv_tokens = s.done.cached_tokens = std::ssize(s.chain) * info.block_tokens;
  if (std::ssize(s.chain) < whole_blocks) prefilling.push_back(group);
  return false;
}

void InstanceActor::take_blocks(Sequence& s, int64_t tokens) {
  const int32_t more = blocks_needed(tokens, static_cast<int32_t>(s.table.size()), info.block_tokens);
  if (more == 0) return;
  const Status taken = devices.allocate(more, s.table);
  SEER_CHECK(taken.ok(), taken.error());
}

/// `step` has the memory of another one, whose fields it must not keep.
void InstanceActor::fill(SequenceStep& step, Sequence& s, const PlannedRows& rows) {
  if (!s.writes && s.kv_tokens % info.block_tokens != 0)
    devices.will_write(s.table[static_cast<size_t>(s.kv_tokens) / info.block_tokens]);
  s.writes = true;
  take_blocks(s, s.kv_tokens + rows.rows);
  const bool has_draft = s.draft_allowed > 0;
  if (const auto planned = static_cast<size_t>(rows.draft_tokens); has_draft && planned < s.draft.tokens.size()) {
    s.draft.shorten(planned);
    s.draft_allowed = rows.draft_tokens;
  }
  step.start = s.kv_tokens;
  step.tokens.clear();
  s.log.copy(s.kv_tokens, s.kv_tokens + rows.rows - rows.draft_tokens, step.tokens);
  if (has_draft) step.tokens.insert(step.tokens.end(), s.draft.tokens.begin(), s.draft.tokens.end());
  step.blocks.clear();
  if (info.steps_max == 1) step.blocks = s.table;
  step.sample_rows = rows.sample_rows;
  step.seed = s.seed;
  if (step.sampling != s.sampling) step.sampling = s.sampling;
  step.history.clear();
  if (s.sampling->repetition_penalty != 1.0f) s.log.copy(0, s.kv_tokens, step.history);
  step.targets.clear();
  step.parents.clear();
  if (has_draft && !s.draft.is_path()) {
    step.parents.push_back(-1);
    step.parents.insert(step.parents.end(), s.draft.parents.begin(), s.draft.parents.end());
  }
}

void InstanceActor::on_step(StepResult& result) {
  take_figures(result);
  step_open = false;
  if (step_run != nullptr)
    end_at_places(std::move(result.ended));
  else
    on_single_step(result);
  const bool report_due = steps_since_report >= config.report_steps;
  const bool sync_due = draft_sync && draft_sync->is_due(rt::now_us(self));
  if (report_due || sync_due) feed_all(steps_done());
  if (report_due) report_tokens();
  if (sync_due) sync_drafts();
}

void InstanceActor::on_single_step(StepResult& result) {
  spent_steps = std::move(result.spent);
  int64_t tokens = 0;
  for (size_t i = 0; i < in_step.size(); ++i) {
    tokens += std::ssize(result.sampled[i]) > 0 ? 1 : 0;
    if (in_step[i].sequence == nullptr) continue;
    Sequence& s = *in_step[i].sequence;
    if (s.draft_allowed == 0) {
      fed(s, in_step[i].rows, result.sampled[i]);
      continue;
    }
    const std::span<const int32_t> rows = rows_that_stand(s, result.sampled[i]);
    stood_tokens.clear();
    for (const int32_t row : rows) stood_tokens.push_back(result.sampled[i][static_cast<size_t>(row)]);
    // A draft cut short by a row without a token says nothing about the next one.
    if (stood_tokens.back().token != kNotFinite) verified(s, rows);
    tokens += std::ssize(rows) - 1;
    fed(s, std::ssize(rows), stood_tokens);
  }
  note_times(result.step_us, tokens);
  spent_samples = std::move(result.sampled);
  in_step.clear();
}

void InstanceActor::take_figures(const StepResult& result) {
  report.busy_us += result.step_us;
  report.engine_cpu_us += result.cpu_us;
  report.steps += result.steps;
  steps_since_report += static_cast<int32_t>(result.steps);
}

/// `rows` more tokens have their KV; what was sampled at the last of them, if anything, continues the sequence.
void InstanceActor::fed(Sequence& s, int64_t rows, std::span<const SampledToken> sampled) {
  if (const int64_t prefilled = rows - std::ssize(sampled); prefilled > 0) {
    s.done.prefill_tokens += prefilled;
    s.done.reprefill_tokens += std::clamp<int64_t>(s.spec.computed_tokens - s.kv_tokens, 0, prefilled);
    report.prefill_tokens += prefilled;
  }
  s.kv_tokens += rows;
  // In a step run only the last one can end a response.
  const size_t passed = step_run != nullptr && !s.may_stop_anywhere() && !sampled.empty() ? sampled.size() - 1 : 0;
  s.stop.add_passed(static_cast<int64_t>(passed));
  Finish end;
  size_t taken = passed;
  const auto goes_on = [&] {
    return taken < sampled.size() && end.reason == FinishReason::kNone && sampled[taken].token != kNotFinite;
  };
  while (goes_on()) end = s.stop.add(sampled[taken++].token);
  const bool failed = taken < sampled.size() && end.reason == FinishReason::kNone;
  const auto tokens = sampled.first(taken) | std::views::transform(&SampledToken::token);
  const int32_t blocks = blocks_needed(s.log.size(), 0, info.block_tokens);
  s.log.append(tokens);
  if (!s.keep_kv && blocks_needed(s.log.size(), blocks, info.block_tokens) > 0) grown.push_back(s.spec.chunk);
  if (s.sampling->logprob_mode != LogprobMode::kNone)
    for (const SampledToken& next : sampled.first(taken)) s.unreported_logprobs.push_back(next.logprob);
  report.output_tokens += static_cast<int64_t>(taken);
  name_filled_blocks(s);
  if (failed) return fail_request(s.spec.chunk);
  if (end.reason != FinishReason::kNone) return finish(s.spec.chunk, end);
  if (s.log.size() >= s.end_tokens) return park(s.spec.chunk, ChunkEnd::kChunkFull);
  if (s.offered_blocks < prompt_blocks(s)) offer_filled_blocks(s.spec.chunk, s);
}

// ---- ends of chunks --------------------------------------------------------------------------------------------------

/// KV runs short: the chunk leaves, with its KV (to the pool) or without (to be recomputed).
void InstanceActor::give_way(ChunkId id) {
  if (has_pool(at(id))) {
    ++report.yields;
    park(id, ChunkEnd::kYielded);
  } else {
    ++report.preemptions;
    forget_response(at(id));
    answer(id, ChunkEnd::kPreempted);
  }
}

/// The chunk ends unfinished: everything of it that the pool lacks is moved there, the partial tail block included, and
/// only then is the chunk answered. What the pool has no room for is recomputed later.
void InstanceActor::park(ChunkId id, ChunkEnd end) {
  Sequence& s = at(id);
  if (!has_pool(s)) return answer(id, end);
  s.phase = Phase::kParking;
  s.end = end;
  std::vector<BlockRef> blocks = s.chain;
  const size_t full = s.chain.size();
  extend_names(s, blocks, s.kv_tokens);
  if (blocks.size() > full) devices.name(s.table[full], blocks.back());
  s.parking_ops = reserve_from(id, s, blocks, 0, true);
  if (s.parking_ops == 0) answer(id, end);  // nothing of it was computed yet
}

void InstanceActor::parking_progressed(ChunkId id) {
  Sequence& s = at(id);
  if (--s.parking_ops > 0) return;
  answer(id, s.end);
}

void InstanceActor::finish(ChunkId id, const Finish& end) {
  Sequence& s = at(id);
  s.done.finish = end.reason;
  if (end.stop_index >= 0) s.done.matched = s.sampling->stop[static_cast<size_t>(end.stop_index)];
  if (end.stop_token >= 0) s.done.matched = cat(end.stop_token);
  forget_response(s);
  answer(id, ChunkEnd::kFinished);
}

/// The request ends with the tokens it has, since its last row gave no next one. Its prompt's KV stays cached: a request with an
/// equal prompt would compute the same bits.
void InstanceActor::fail_request(ChunkId id) {
  Sequence& s = at(id);
  s.done.finish = FinishReason::kError;
  s.done.error = not_finite_text(s.log.output_tokens());
  forget_response(s);
  answer(id, ChunkEnd::kFailed);
}

/// The KV of the response will not be looked for again; the prompt's blocks stay cached for the rest of the group.
void InstanceActor::forget_response(const Sequence& s) {
  for (size_t i = prompt_blocks(s); i < s.chain.size(); ++i) devices.drop_name(s.chain[i].key);
}

void InstanceActor::answer(ChunkId id, ChunkEnd end) {
  const auto place = std::ranges::lower_bound(sequences, id, {}, kById);
  SEER_CHECK(place != sequences.end() && place->first == id, id);
  const std::unique_ptr<Sequence> ended = std::move(place->second);
  Sequence& s = *ended;
  sequences.erase(place);
  if (s.place != kNoPlace) leave(s);
  std::erase(unplaced, &s);
  for (size_t i = 0; i < in_step.size() && step_run == nullptr; ++i)
    if (in_step[i].sequence == &s) in_step[i].sequence = nullptr;
  devices.release(s.table);
  if (draft_sync) {
    parts.drafting.drafter->learn(s.text());  // its last tokens; with the next sync they are shared
    if (sequences.empty()) sync_drafts();     // of itself none would come any more: syncs follow steps
  }
  if (!s.keep_kv) report_growth();
  s.done.end = end;
  s.done.kv_tokens = s.kv_tokens;
  s.done.last = s.take_unreported();
  s.done.kv_blocks_used = devices.counts().in_use;
  rt::tell(self, s.spec.reply_to, std::move(s.done));
}

void InstanceActor::report_tokens() {
  steps_since_report = 0;
  grown.clear();
  drafts_due = true;
  note_drafts();
  // The only look at requests that want no drafts where there is no draft server: others draft from them.
  if (draft_budget) show_texts();
  ChunkProgress progress{config.id, {}, devices.counts().in_use};
  for (const auto& [id, sequence] : sequences) {
    Sequence& s = *sequence;
    if (s.phase == Phase::kRunning) offer_filled_blocks(id, s);
    if (s.reported_tokens == s.log.size()) continue;
    progress.chunks.push_back(s.take_unreported());
    if (s.sampling->logprob_mode != LogprobMode::kNone)
      s.unreported_logprobs.reserve(static_cast<size_t>(config.report_steps));
  }
  if (sink) rt::tell(self, sink, std::move(progress));
}

/// Who is admitted next where no KV is kept is decided by what is in use now, as in an engine: who has come to need another
/// block since it was reported says so.
void InstanceActor::report_growth() {
  ChunkProgress progress{config.id, {}, devices.counts().in_use};
  std::ranges::sort(grown);
  for (const ChunkId id : grown)
    if (Sequence* const s = find(id); s != nullptr && s->reported_tokens < s->log.size())
      progress.chunks.push_back(s->take_unreported());
  grown.clear();
  if (sink) rt::tell(self, sink, std::move(progress));
}

/// What is under way for the chunks ends by itself, for nobody: the next rollout counts its chunks from 1 again, and must
/// not be taken for the one before.
void InstanceActor::drop_chunks() {
  for (const auto& [id, s] : sequences) devices.release(s->table);
  if (draft_sync) {
    parts.drafting.drafter->forget();
    draft_sync->forget();
  }
  sequences.clear();
  unplaced.clear();
  grown.clear();
  arrivals.clear();
  openings.clear();
  reserves.clear();
  for (auto& [id, open] : imports) open.chunk = kNoChunk;
  for (auto& [id, open] : exports) open.chunk = kNoChunk;
  for (StepMember& member : in_step) member.sequence = nullptr;
  places_dropped = step_run != nullptr;
  if (!step_open) leave_dropped();
}

}  // namespace seer
