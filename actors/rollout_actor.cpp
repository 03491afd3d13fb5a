#include "actors/rollout_actor.h"

#include <algorithm>
#include <utility>

#include "actors/report_since.h"

namespace seer {
namespace {

RolloutInstancesConfig instances_config(const RolloutConfig& config) {
  return {.version = config.version,
          .weights = config.weights,
          .expected = config.instances_expected,
          .machines_may_join = config.machines_may_join,
          .return_us = config.no_instance_us,
          .waits_for_all = !config.open,
          .kv_tokens = config.kv_tokens};
}

}  // namespace

RolloutActor::RolloutActor(rt::self_ptr<RolloutActor> self_in, RolloutConfig config_in, RolloutParts parts_in)
    : self(self_in), config(std::move(config_in)), parts(std::move(parts_in)),
      drafts({.ttl_us = config.draft_ttl_us}, std::move(parts.pasts), [this](GroupId group) { return token_logs(group); }),
      instances(instances_config(config), rt::now_us(self)) {
  config.scheduler.is_open = config.open;
  auto made = make_chunk_scheduler(config.scheduler);
  SEER_CHECK(made.ok(), made.error());  // the command line has checked the policy's name
  scheduler = *std::move(made);
  parts.log = parts.log.with({{"rollout", config.id}});
  started_us = rt::now_us(self);
  for (GroupSpec& group : std::exchange(parts.groups, {})) take_group(std::move(group));
  for (ResumedRequest& request : parts.resumed) resume(request);
  rt::on_down(self, [this](const rt::down& message) {
    for (const auto& [id, instance] : instances.handles())
      if (rt::is_source(message, instance)) return on_instance_lost(id);
    for (const auto& [node, server] : drafts.servers())
      if (rt::is_source(message, server)) return on_draft_server_lost(node);
  });
}

RolloutActor::handle::behavior_type RolloutActor::make_behavior() {
  rt::tell_after(self, config.progress_us, handle{self}, Tick{});
  return {
      [this](const InstanceUp& up) { on_instance_up(up); },
      [this](const DraftServerUp& up) { on_draft_server_up(up); },
      [this](const InstancesDraining& leaving) { on_draining(leaving); },
      [this](const PartLost& lost) { on_part_lost(lost); },
      [this](const ChunkProgress& progress) { on_progress(progress); },
      [this](const ChunkDone& done) { on_chunk_done(done); },
      [this](const DirectoryUp& up) { on_directory_up(up); },
      [this](const GroupEstimate& estimate) { scheduler->estimate_changed(estimate.group, estimate.estimated_tokens); },
      [this](AddGroups& add) { return on_add_groups(add); },
      [this](const CancelGroup& cancel) { return on_cancel(cancel.group, {}); },
      [this](const CancelRequest& cancel) { return on_cancel(cancel.request.group, cancel.request.sample); },
      [this](const AckResponses& ack) {
        for (const RequestId id : ack.requests) kept.erase(id);
        place_or_end();
      },
      [this](const AttachEvents& attach) {
        parts.events = attach.reply_to;
        for (const auto& [id, response] : kept) rt::tell(self, parts.events, response);
      },
      [this](const CloseRollout&) {
        config.open = false;
        place_or_end();
      },
      [this](const GetReport&) { return on_report(); },
      [this](const StopRollout&) { end("stopped"); },
      [this](const Tick&) { on_tick(); },
  };
}

void RolloutActor::on_instance_up(const InstanceUp& up) {
  if (over()) return;
  const int64_t now = rt::now_us(self);
  if (auto* known = instances.find(up.instance); known != nullptr && known->handle == up.handle) {
    if (up.identity.version == config.version) {
      known->up_us = now;
      return;
    }
    on_instance_lost(up.instance);  // it has changed to another rollout's weights
  }
  if (const Status fits = instances.admit(up); !fits.ok()) {
    parts.log.warn(now, "instance_refused", {{"instance", up.instance}, {"error", fits.error()}});
    start_when_all_are_up();
    if (started) place();
    return;
  }
  if (instances.has(up.instance)) on_instance_lost(up.instance);  // it restarted, and this came before its down message
  parts.log.info(now, "instance_up", {{"instance", up.instance}, {"node", up.node}, {"kv_blocks", up.kv_blocks}});
  rt::monitor(self, up.handle);
  const bool is_new = instances.add(up, now);
  if (!is_new)  // it may still run chunks that were placed again elsewhere
    rt::tell(self, up.handle, DropChunks{config.id});
  rt::tell(self, up.handle, UseInstance{config.id, config.version, handle{self}});
  note_report(up.instance, up.handle, instances_before);
  if (started && !drafts.servers().empty()) rt::tell(self, up.handle, drafts.all());
  const int64_t running_max = config.scheduler.running_max;
  const int32_t rows_max = running_max > 0 ? static_cast<int32_t>(std::min<int64_t>(running_max, up.rows_max)) : up.rows_max;
  if (Status added = scheduler->add_instance({up.instance, up.node, up.kv_blocks, up.block_tokens, rows_max}); !added.ok())
    return end(added.error().detail);
  start_when_all_are_up();
  if (started) schedule_postponed();
}

void RolloutActor::on_part_lost(const PartLost& lost) {
  if (over()) return;
  if (!lost.reason.empty()) parts.log.warn(rt::now_us(self), "part_lost", {{"node", lost.node}, {"reason", lost.reason}});
  instances.gone(lost);
  end_when_none_is_left();
  if (ended) return;
  start_when_all_are_up();
  if (started) place();
}

void RolloutActor::on_draining(const InstancesDraining& leaving) {
  if (over()) return;
  const int64_t now = rt::now_us(self);
  const std::vector<InstanceId> were_up = instances.drain(leaving.instances, now);
  for (const InstanceId id : were_up) scheduler->remove_instance(id);
  if (!were_up.empty()) parts.log.info(now, "instances_draining", {{"node", leaving.node}, {"instances", were_up.size()}});
  start_when_all_are_up();
  if (started) place();
}

void RolloutActor::start_when_all_are_up() {
  if (!started && !instances.up().empty() && instances.all_settled(rt::now_us(self))) start();
}

void RolloutActor::end_when_none_is_left() {
  if (!instances.none_can_come(rt::now_us(self))) return;
  end(instances.parts_lost().empty() ? "no instance is left to run on" : instances.parts_lost().back());
}

void RolloutActor::start() {
  started = true;
  started_us = rt::now_us(self);
  parts.log.info(started_us, "rollout_started",
                 {{"policy", config.scheduler.policy}, {"requests", open_requests}, {"groups", groups.size()},
                  {"instances", instances.up().size()}, {"weight_version", config.version}});
  if (parts.directory) rt::tell(self, parts.directory, KvBump{config.version});
  instances.started(started_us);
  draft_for(0);
  if (!drafts.servers().empty()) tell_draft_servers();
  for (Group& group : groups) schedule_group(group);
}

// ---- groups come and are cancelled -------------------------------------------------------------------------------------

void RolloutActor::take_group(GroupSpec spec) {
  SEER_CHECK(spec.id == GroupId(static_cast<uint32_t>(groups.size()), config.id), spec.id, config.id);
  prompt_tokens += std::ssize(spec.prompt_ids);
  open_requests += spec.samples;
  Group group{.prompt = TokenLog(spec.prompt_ids), .requests = std::vector<Request>(spec.samples), .open_requests = spec.samples};
  group.spec = std::move(spec);
  groups.push_back(std::move(group));
}

/// Takes the tokens of an earlier process as if they had been reported here. Their KV is computed again. So is the last token of a
/// response that was not given: it may be its end, after which nothing must run.
void RolloutActor::resume(ResumedRequest& from) {
  Group& group = group_of(from.request.group);
  Request& request = request_of(from.request);
  if (!from.is_over && !from.output.empty()) from.output.cut(from.output.size() - 1);
  request.tokens = group.prompt;
  request.tokens.append(from.output.ids);
  request.logprobs = std::move(from.output.logprobs);
  request.kept_ids = std::move(from.output.kept_ids);
  request.computed_tokens = request.tokens.size();
  group.spec.generated_tokens.resize(group.requests.size());
  group.spec.generated_tokens[from.request.sample] = request.tokens.output_tokens();
  request.was_answered = from.is_over;
  from = {};
}

/// Leaves out a request that an earlier process answered. REQUIRES: it does not run.
void RolloutActor::leave_out(RequestId id) {
  const int64_t tokens = request_of(id).tokens.output_tokens();
  const bool scheduled = is_scheduled(id.group);
  if (scheduled) scheduler->cancel(id, rt::now_us(self));
  --open_requests;
  if (scheduled && tokens > 0)
    rt::tell(self, parts.context, LengthSeen{id, tokens, handle{self}});
  request_of(id) = {};
  if (--group_of(id.group).open_requests == 0) forget_group(id.group);
}

/// A group that no instance can take fails alone, or waits while one may come that can. So does one with a begun response that has no
/// room left. A request answered before is not answered again, not even with an error.
void RolloutActor::schedule_group(Group& group) {
  if (group.open_requests == 0) return;  // it was cancelled
  GroupSpec& spec = group.spec;
  const int64_t begun = spec.generated_tokens.empty() ? 0 : std::ranges::max(spec.generated_tokens);
  if (const int64_t room = instances.kv_tokens_max() - group.prompt.size(); config.cuts_lengths && room > begun)
    spec.sampling.max_tokens = std::min(spec.sampling.max_tokens, room);
  const Status added = scheduler->add_group(spec, rt::now_us(self));
  if (!added.ok() && instances.one_may_come(rt::now_us(self))) return postponed.push_back(spec.id.index);
  spec.prompt_ids = std::vector<int32_t>();  // `prompt` has them
  for (uint32_t sample = 0; sample < spec.samples; ++sample) {
    const RequestId id{spec.id, sample};
    const Request& request = group.requests[sample];
    if (request.was_answered)
      leave_out(id);
    else if (request.is_cancelled && added.ok())
      scheduler->cancel(id, rt::now_us(self));
    else if (!request.is_cancelled && !added.ok())
      finish_request(id, Ending::failed(added.error().detail));
  }
}

void RolloutActor::schedule_postponed() {
  for (const uint32_t index : std::exchange(postponed, {})) schedule_group(groups[index]);
  place_or_end();
}

bool RolloutActor::is_scheduled(GroupId group) const { return started && scheduler->requests().has_group(group); }

GroupsAdded RolloutActor::on_add_groups(AddGroups& add) {
  if (std::string why = why_refused(add); !why.empty()) return {{}, std::move(why)};
  const size_t first = groups.size();
  for (GroupSpec& spec : add.groups) {
    spec.id = {static_cast<uint32_t>(groups.size()), config.id};
    take_group(std::move(spec));
  }
  for (ResumedRequest& request : add.resumed) {
    request.request.group = {static_cast<uint32_t>(first + request.request.group.index), config.id};
    resume(request);
  }
  if (started) {
    draft_for(first);
    for (size_t i = first; i < groups.size(); ++i) schedule_group(groups[i]);
    place_or_end();
  }
  return {{static_cast<uint32_t>(first), config.id}, {}};
}

std::string RolloutActor::why_refused(const AddGroups& add) const {
  if (ended) return "the rollout has ended";
  if (!config.open) return "the rollout is closed: no groups can be added";
  for (size_t i = 0; i < add.groups.size(); ++i) {
    const GroupSpec& group = add.groups[i];
    const auto wrong = [&](const auto&... what) { return cat("new group ", i, " ", what...); };
    if (group.samples < 1) return wrong("asks for no samples");
    if (group.prompt_ids.empty()) return wrong("has an empty prompt");
    if (group.sampling.max_tokens < 1) return wrong("has max_tokens=", group.sampling.max_tokens);
    if (group.seeds.size() != group.samples)
      return wrong("has ", group.seeds.size(), " seeds for ", group.samples, " samples");
  }
  for (const ResumedRequest& resumed : add.resumed) {
    const uint32_t group = resumed.request.group.index;
    if (group >= add.groups.size() || resumed.request.sample >= add.groups[group].samples)
      return cat("request ", resumed.request, " was begun before, but is none of those to be added");
  }
  return {};
}

/// Cancels the whole group, or one of its requests.
Cancelled RolloutActor::on_cancel(GroupId group, std::optional<uint32_t> sample) {
  if (std::string why = why_not_cancelled(group, sample); !why.empty()) return {0, std::move(why)};
  const uint32_t first = sample.value_or(0);
  const uint32_t end = sample ? first + 1 : static_cast<uint32_t>(group_of(group).requests.size());
  int64_t count = 0;
  for (uint32_t s = first; s < end; ++s) {
    const RequestId id{group, s};
    const RequestPhase phase = phase_of(id);
    if (phase == RequestPhase::kWaiting) cancel_waiting(id);
    if (phase == RequestPhase::kRunning) request_of(id).is_cancelled = true;
    count += phase != RequestPhase::kFinished;
  }
  for (uint32_t s = first; s < end; ++s)
    if (const auto running = open_chunks.find(group_of(group).requests[s].chunk); running != open_chunks.end())
      rt::tell(self, instances.handle_of(running->second.instance), CancelChunk{running->first});
  place_or_end();
  return {count, {}};
}

std::string RolloutActor::why_not_cancelled(GroupId group, std::optional<uint32_t> sample) const {
  if (ended) return "the rollout has ended";
  if (group.rollout != config.id) return cat("group ", group, " is not of rollout ", config.id);
  if (group.index >= groups.size()) return cat("group ", group, " is unknown: the rollout has ", groups.size(), " groups");
  const auto id = [&] { return RequestId{group, *sample}; };
  const size_t samples = group_of(group).requests.size();
  if (sample && *sample >= samples) return cat("request ", id(), " is unknown: the group has ", samples, " samples");
  if (group_of(group).open_requests == 0) return cat("group ", group, " is over");
  if (sample && phase_of(id()) == RequestPhase::kFinished)
    return cat("request ", id(), " is over");
  return {};
}

/// A request whose group is not scheduled yet waits.
RequestPhase RolloutActor::phase_of(RequestId id) const {
  if (is_scheduled(id.group)) return scheduler->requests().at(id).phase;
  const Request& request = request_of(id);
  return request.was_answered || request.is_cancelled ? RequestPhase::kFinished : RequestPhase::kWaiting;
}

void RolloutActor::cancel_waiting(RequestId id) {
  request_of(id).is_cancelled = true;
  if (is_scheduled(id.group)) scheduler->cancel(id, rt::now_us(self));
  finish_request(id, Ending::aborted());
}

// ---- draft servers and the directory ---------------------------------------------------------------------------------

void RolloutActor::on_draft_server_up(const DraftServerUp& up) {
  if (over() || !drafts.server_up(up)) return;
  rt::monitor(self, up.handle);
  note_report(up.node, up.handle, servers_before);
  if (started) tell_draft_servers();
}

void RolloutActor::on_draft_server_lost(NodeId node) {
  drafts.server_lost(node);
  if (started) tell_draft_servers();
}

void RolloutActor::tell_draft_servers() {
  for (const auto& [id, instance] : instances.up()) rt::tell(self, instance.handle, drafts.all());
}

/// From group number `first` on.
void RolloutActor::draft_for(size_t first) {
  std::vector<GroupId> ids;
  for (size_t i = first; i < groups.size(); ++i)
    if (groups[i].open_requests > 0) ids.push_back(groups[i].spec.id);
  drafts.add(ids);
}

std::vector<const TokenLog*> RolloutActor::token_logs(GroupId group) const {
  std::vector<const TokenLog*> all;
  for (const Request& request : groups[group.index].requests) all.push_back(&request.tokens);
  return all;
}

void RolloutActor::release_kv(KvOwner owner) {
  if (parts.directory) rt::tell(self, parts.directory, KvRelease{owner});
}

/// Repeats all releases: the old directory may have died before all nodes heard of them.
void RolloutActor::on_directory_up(const DirectoryUp& up) {
  if (!parts.directory) return;
  parts.directory = up.directory;
  if (started) rt::tell(self, parts.directory, KvBump{config.version});
  if (ended) return rt::tell(self, parts.directory, KvDropRollout{config.id});
  for (const Group& group : groups)
    if (group.open_requests == 0) release_kv(owner_of(group.spec.id));
  // Requests go last: the directory keeps only the latest releases, and it has most likely missed the newest of all.
  for (const FinishRecord& finish : finishes) release_kv(owner_of(finish.request));
}

/// REQUIRES: all requests of the group are over.
void RolloutActor::forget_group(GroupId id) {
  Group& group = group_of(id);
  group.prompt = {};
  for (const InstanceId ran_on : std::exchange(group.ran_on, {}))
    if (auto* instance = instances.find(ran_on)) instance->over.push_back(id);
  release_kv(owner_of(id));
  drafts.drop(id);
}

// ---- chunks ----------------------------------------------------------------------------------------------------------

void RolloutActor::on_progress(const ChunkProgress& progress) {
  if (ended) return;
  if (auto* instance = instances.find(progress.instance)) instance->kv_blocks_used = progress.kv_blocks_used;
  if (progress.version != config.version && !progress.chunks.empty()) return refuse_tokens(progress.instance, progress.version);
  for (const ChunkTokens& part : progress.chunks) {
    auto it = open_chunks.find(part.chunk);
    if (it == open_chunks.end()) continue;  // late: the chunk ended or was placed again
    if (!append(it->second, part)) {
      tell_commits();  // before the responses that this ends
      return give_up_instance(it->second.instance);
    }
    it->second.heard_us = rt::now_us(self);
  }
  tell_commits();
}

/// False: a report before this one was lost. A duplicate is ignored.
bool RolloutActor::append(const OpenChunk& chunk, const ChunkTokens& part) {
  const RequestId id = chunk.request;
  Request& request = request_of(id);
  const int64_t known = request.tokens.output_tokens();
  if (part.first_index != known) return part.first_index < known;
  const OutputTokens& output = part.output;
  const bool is_told = config.tells_commits || group_of(id.group).spec.streams;
  if (is_told && !output.empty()) commits.parts.push_back({id, known, output});
  if (known == 0 && !output.empty()) request.first_token_us = request.queue_us + request.run_us + rt::now_us(self) - chunk.started_us;
  // Not of a chunk's first report: its time includes the prefill, or is none if a stream had waited for the chunk.
  const int64_t now = rt::now_us(self);
  if (known > chunk.first_tokens && !output.empty()) scheduler->ran(chunk.instance, std::ssize(output.ids), now - chunk.heard_us, now);
  request.tokens.append(output.ids);
  request.logprobs.insert(request.logprobs.end(), output.logprobs.begin(), output.logprobs.end());
  request.kept_ids.append(output.kept_ids);
  scheduler->progressed(id, request.tokens.output_tokens());
  return true;
}

void RolloutActor::on_chunk_done(const ChunkDone& done) {
  auto it = open_chunks.find(done.chunk);
  if (it == open_chunks.end() || ended) return;
  const OpenChunk chunk = it->second;
  const bool has_other_weights = done.version != config.version;  // or gets them now
  if (has_other_weights && done.end != ChunkEnd::kNotBegun) return refuse_tokens(chunk.instance, done.version);
  if (!append(chunk, done.last)) return give_up_instance(chunk.instance);
  tell_commits();
  open_chunks.erase(it);
  auto* instance = instances.find(chunk.instance);  // null: it is leaving
  if (instance != nullptr) instance->kv_blocks_used = done.kv_blocks_used;
  Request& request = request_of(chunk.request);
  request.computed_tokens = std::max(request.computed_tokens, done.kv_tokens);
  if (scheduler->requests().at(chunk.request).chunks == 1)
    request.cached_tokens = std::min(done.cached_tokens, request.tokens.prompt_tokens());
  request.reprefill_tokens += done.reprefill_tokens;
  reprefilled_chunks += done.reprefill_tokens > 0 ? 1 : 0;
  prefill_tokens += done.prefill_tokens;
  close_chunk(chunk, done);
  // Its node says when it can be used again, and may have said so already.
  if (has_other_weights && instance != nullptr && instance->up_us <= chunk.started_us) on_instance_lost(chunk.instance);
  place_or_end();
}

/// The request is over or waits again. REQUIRES: its log has all tokens of the chunk.
void RolloutActor::close_chunk(const OpenChunk& chunk, const ChunkDone& done) {
  const int64_t now = rt::now_us(self);
  Request& request = request_of(chunk.request);
  request.run_us += now - chunk.started_us;
  const bool has_failed = done.end == ChunkEnd::kLost || done.end == ChunkEnd::kServerFailed;
  const bool is_fruitless = has_failed && request.tokens.output_tokens() == chunk.first_tokens;
  request.fruitless = is_fruitless ? request.fruitless + 1 : 0;
  Ending ending = done.ending;
  if (!is_over(done.end) && request.is_cancelled)
    ending = Ending::aborted();
  else if (config.fruitless_max > 0 && request.fruitless >= config.fruitless_max)
    ending = Ending::failed(cat("request ", chunk.request, " was begun ", request.fruitless, " times without a token",
                                done.server_error.empty() ? "" : ": ", done.server_error));
  const bool has_ended = ending.reason != FinishReason::kNone;
  scheduler->kv_in_use(chunk.instance, done.kv_blocks_used);
  scheduler->chunk_ended(chunk.request, request.tokens.output_tokens(), has_ended ? end_of(ending.reason) : done.end, now);
  if (has_ended) finish_request(chunk.request, std::move(ending));
}

/// REQUIRES: the scheduler knows that the request is over, or never had it.
void RolloutActor::finish_request(RequestId id, Ending ending) {
  Group& group = group_of(id.group);
  Request& request = request_of(id);
  const int64_t now = rt::now_us(self);
  const int64_t tokens = request.tokens.output_tokens();
  --open_requests;
  const bool failed = ending.reason == FinishReason::kError, aborted = ending.reason == FinishReason::kAborted;
  const RequestState history = is_scheduled(id.group) ? scheduler->requests().at(id) : RequestState{};
  finishes.push_back({id, now, tokens, request.reprefill_tokens, failed, aborted});
  if (!failed && !aborted)
    rt::tell(self, parts.context, LengthSeen{id, tokens, handle{self}});
  release_kv(owner_of(id));
  if (--group.open_requests == 0) forget_group(id.group);
  const TokenLog log = std::exchange(request.tokens, {});
  OutputTokens output{log.output(), std::exchange(request.logprobs, {}), std::exchange(request.kept_ids, {})};
  Response response{id, group.spec.seeds[id.sample], std::move(output), ending.reason, std::move(ending.matched), std::move(ending.error),
                    config.version, history.chunks, history.migrations, history.preemptions, request.queue_us, request.run_us,
                    request.start_us, request.first_token_us, request.cached_tokens};
  if (config.responses_kept_max > 0) kept.emplace(id, response);
  rt::tell(self, parts.events, std::move(response));
}

void RolloutActor::on_instance_lost(InstanceId lost) {
  const int64_t now = rt::now_us(self);
  if (instances.lose(lost, now)) {
    ++instances_lost;
    scheduler->remove_instance(lost);
    const auto chunks = std::ranges::count(open_chunks, lost, [](const auto& chunk) { return chunk.second.instance; });
    if (!over()) parts.log.warn(now, "instance_lost", {{"instance", lost}, {"chunks", chunks}, {"instances_left", instances.up().size()}});
  }
  place_chunks_again(lost);
}

void RolloutActor::place_chunks_again(InstanceId lost) {
  std::map<ChunkId, OpenChunk> gone;
  for (const auto& [id, chunk] : open_chunks)
    if (chunk.instance == lost) gone.emplace(id, chunk);
  for (const auto& [id, chunk] : gone) {
    open_chunks.erase(id);
    Request& request = request_of(chunk.request);
    if (request.tokens.output_tokens() > chunk.first_tokens)
      request.computed_tokens = std::max(request.computed_tokens, request.tokens.size() - 1);
    close_chunk(chunk, {.end = ChunkEnd::kLost});  // KV on the device is gone; KV in the pool is found again
  }
  end_when_none_is_left();
  if (started && !over()) place();
}

/// Strictly on-policy: tokens of other weights never enter a response.
void RolloutActor::refuse_tokens(InstanceId id, WeightVersion version) {
  if (instances.find(id) == nullptr) return;
  parts.log.warn(rt::now_us(self), "tokens_refused", {{"instance", id}, {"weight_version", version}, {"expected", config.version}});
  give_up_instance(id);
}

/// Stops an instance whose reports are incomplete or missing. Its node starts it again, which also ends chunks that nobody waits
/// for.
void RolloutActor::give_up_instance(InstanceId id) {
  rt::stop(instances.handle_of(id));
  on_instance_lost(id);
}

void RolloutActor::on_tick() {
  if (over()) return end({});  // also if there was nothing to do from the start
  const int64_t now = rt::now_us(self);
  std::set<InstanceId> silent;
  for (const auto& [id, chunk] : open_chunks)
    if (now - chunk.heard_us > config.chunk_silence_us) silent.insert(chunk.instance);
  for (InstanceId id : silent) {
    parts.log.warn(now, "instance_silent", {{"instance", id}, {"silent_s", config.chunk_silence_us / 1'000'000}});
    give_up_instance(id);
  }
  if (instances.none_came(now)) return end(cat("no instance is left to run on", instances.why_missing()));
  start_when_all_are_up();
  if (!started && !instances.up().empty() && now - started_us > config.no_instance_us) start();
  if (started) {
    fail_stuck();
    schedule_postponed();
  }
  drafts.tick(now);
  report_progress();
  rt::tell_after(self, config.progress_us, handle{self}, Tick{});
}

void RolloutActor::place() {
  if (config.responses_kept_max > 0 && kept.size() >= config.responses_kept_max) return;
  while (std::optional<Placement> placement = scheduler->next(rt::now_us(self))) run(*placement);
  if (scheduler->stalled().ok()) return;
  fail_stuck();
  if (over()) end({});
}

/// Waiting requests that no instance can hold fail, unless one may come that can.
void RolloutActor::fail_stuck() {
  if (instances.up().empty() || instances.one_may_come(rt::now_us(self))) return;  // none: see on_tick()
  for (const StuckRequest& stuck : scheduler->stuck()) {
    scheduler->cancel(stuck.request, rt::now_us(self));
    finish_request(stuck.request, Ending::failed(stuck.why));
  }
}

void RolloutActor::place_or_end() {
  if (over())
    end({});
  else if (started)
    place();
}

void RolloutActor::run(const Placement& placement) {
  Group& group = group_of(placement.request.group);
  Request& request = request_of(placement.request);
  const int64_t now = rt::now_us(self);
  const ChunkId chunk{next_chunk++, config.id};
  request.chunk = chunk;
  if (request.start_us < 0) request.start_us = now - started_us;
  request.queue_us += now - scheduler->requests().at(placement.request).waiting_since_us;
  if (request.tokens.empty()) request.tokens = group.prompt;
  open_chunks[chunk] = {placement.request, placement.instance, now, now, request.tokens.output_tokens()};
  if (std::ranges::find(group.ran_on, placement.instance) == group.ran_on.end()) group.ran_on.push_back(placement.instance);
  RolloutInstances::Instance& instance = instances.at(placement.instance);
  rt::tell(self, instance.handle,
           RunChunk{chunk, placement.request, config.version, request.tokens, request.computed_tokens,
                    placement.max_new_tokens, group.spec.sampling, group.spec.seeds[placement.request.sample],
                    placement.yield_rank, placement.keep_kv, group.spec.is_live, std::exchange(instance.over, {}), handle{self}});
}

void RolloutActor::tell_commits() {
  if (!commits.parts.empty()) rt::tell(self, parts.events, std::exchange(commits, {}));
}

void RolloutActor::report_progress() {
  const RequestTotals& totals = scheduler->requests().totals();
  RolloutProgress progress{.rollout = config.id,
                           .requests = totals.waiting + totals.running + totals.finished,
                           .done = totals.finished,
                           .running = totals.running,
                           .waiting = totals.waiting,
                           .output_tokens = totals.generated_tokens,
                           .kv_use_share = 0,
                           .kv = {}};
  for (const auto& [id, tokens] : instances.kv_tokens()) progress.kv.push_back({id, tokens, instances.find(id) != nullptr});
  int64_t total = 0, used = 0;
  for (const auto& [id, instance] : instances.up()) total += instance.kv_blocks, used += instance.kv_blocks_used;
  progress.kv_use_share = total > 0 ? static_cast<double>(used) / static_cast<double>(total) : 0;
  rt::tell(self, parts.events, progress);
}

RolloutSummary RolloutActor::summary() const {
  const RolloutStats stats = rollout_stats(finishes);
  const RequestTotals& totals = scheduler->requests().totals();
  return {.rollout = config.id,
          .complete = open_requests == 0,
          .requests = stats.requests + open_requests,
          .finished = stats.requests,
          .failed = stats.failed,
          .aborted = stats.aborted,
          .prompt_tokens = prompt_tokens,
          .output_tokens = stats.output_tokens,
          .wall_us = rt::now_us(self) - started_us,
          .tail_s = stats.tail_s,
          .chunks = totals.chunks,
          .yields = totals.yields,
          .preemptions = totals.preemptions,
          .migrations = totals.migrations,
          .prefill_tokens = prefill_tokens,
          .reprefill_tokens = stats.reprefill_tokens,
          .reprefilled_chunks = reprefilled_chunks,
          .instances_lost = instances_lost,
          .length_icc = stats.length_icc,
          .estimate_error = stats.estimate_error,
          .instances = {},
          .draft_servers = {},
          .parts_lost = instances.parts_lost()};
}

/// Notes what a part of a cluster did before this rollout. It answers before it works for it.
template <class Name, class Handle, class Report>
void RolloutActor::note_report(Name name, const Handle& part, std::map<Name, Report>& before) {
  before.erase(name);
  if (!config.machines_may_join) return;
  rt::gather_then<std::vector<Report>>(self, std::map<Name, Handle>{{name, part}}, GetReport{}, [name, &before](std::vector<Report> reports) {
    if (!reports.empty()) before.insert_or_assign(name, std::move(reports.front()));
  });
}

/// Calls `then` with the summary and the reports of instances and draft servers.
template <class Then>
void RolloutActor::gather_summary(RolloutSummary so_far, Then then) {
  rt::gather_then<std::vector<InstanceReport>>(
      self, instances.handles(), GetReport{}, [this, so_far, then](std::vector<InstanceReport> reports) mutable {
        for (InstanceReport& report : reports)
          if (const auto at = instances_before.find(report.instance); at != instances_before.end()) report = since(report, at->second);
        so_far.instances = std::move(reports);
        rt::gather_then<std::vector<DraftServerReport>>(
            self, drafts.servers(), GetReport{}, [this, so_far, then](std::vector<DraftServerReport> servers) mutable {
              for (DraftServerReport& report : servers)
                if (const auto at = servers_before.find(report.node); at != servers_before.end()) report = since(report, at->second);
              so_far.draft_servers = std::move(servers);
              then(std::move(so_far));
            });
      });
}

rt::result<RolloutSummary> RolloutActor::on_report() {
  auto promise = self->make_response_promise<RolloutSummary>();
  gather_summary(summary(), [promise](RolloutSummary all) mutable { promise.deliver(std::move(all)); });
  return promise;
}

/// Ends the rollout: drops all chunks and sends the summary once the instances have reported.
void RolloutActor::end(std::string error) {
  if (ended) return;
  ended = true;
  RolloutSummary last = summary();
  last.error = std::move(error);
  parts.log.info(rt::now_us(self), "rollout_ended",
                 {{"complete", last.complete ? "true" : "false"}, {"finished", last.finished}, {"requests", last.requests},
                  {"failed", last.failed}, {"output_tokens", last.output_tokens}, {"error", last.error}});
  for (const GroupState& group : scheduler->requests().groups()) {
    if (group_of(group.id).open_requests == 0) continue;
    for (const RequestState& request : group.members)
      if (request.phase != RequestPhase::kFinished) release_kv(owner_of(request.id));
    forget_group(group.id);
  }
  drafts.drop_all();  // also of groups that were never scheduled
  for (const auto& [id, instance] : instances.handles()) rt::tell(self, instance, DropChunks{config.id});
  gather_summary(std::move(last), [this](RolloutSummary all) { rt::tell(self, parts.events, std::move(all)); });
}

}  // namespace seer
