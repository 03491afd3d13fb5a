#include "actors/rollout_actor.h"

#include <algorithm>
#include <utility>

#include "actors/report_since.h"

namespace seer {
namespace {

constexpr int64_t kChangeUs = 3'000'000;  // how long a rollout waits at its start for instances that may get its weights

}  // namespace

RolloutActor::RolloutActor(rt::self_ptr<RolloutActor> self_in, RolloutConfig config_in, RolloutParts parts_in)
    : self(self_in), config(std::move(config_in)), parts(std::move(parts_in)),
      drafts({.ttl_us = config.draft_ttl_us}, std::move(parts.pasts), [this](GroupId group) { return token_logs(group); }) {
  config.scheduler.is_open = config.open;
  auto made = make_chunk_scheduler(config.scheduler);
  SEER_CHECK(made.ok(), made.error());  // the command line has checked the policy's name
  scheduler = *std::move(made);
  parts.log = parts.log.with({{"rollout", config.id}});
  started_us = instances_gone_us = rt::now_us(self);
  kv_tokens = config.kv_tokens;
  for (const GroupSpec& group : parts.groups) note_group(group);
  for (ResumedRequest& request : parts.resumed) resume(request);
  rt::on_down(self, [this](const rt::down& message) {
    for (const auto& [id, instance] : instances)
      if (rt::is_source(message, instance.handle)) return on_instance_lost(id);
    for (const auto& [id, instance] : draining)
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
      [this](const GroupEstimate& estimate) {
        estimate_error = estimate.estimate_error;
        scheduler->estimate_changed(estimate.group, estimate.estimated_tokens);
      },
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
  const auto known = instances.find(up.instance);
  if (known != instances.end() && known->second.handle == up.handle) {
    if (up.identity.version == config.version) {
      known->second.up_us = rt::now_us(self);
      return;
    }
    on_instance_lost(up.instance);  // it has changed to another rollout's weights
  }
  if (!may_join(up)) {
    start_when_all_are_up();
    if (started) place();
    return;
  }
  if (instances.contains(up.instance) || draining.contains(up.instance))
    on_instance_lost(up.instance);  // it restarted, and this came before its down message
  instances[up.instance] = {up.handle, up.kv_blocks, 0, rt::now_us(self)};
  parts.log.info(rt::now_us(self), "instance_up", {{"instance", up.instance}, {"node", up.node}, {"kv_blocks", up.kv_blocks}});
  rt::monitor(self, up.handle);
  kv_tokens[up.instance] = up.kv_blocks * up.block_tokens;
  const bool is_new = instances_seen.insert(up.instance).second;
  if (!is_new)  // it may still run chunks that were placed again elsewhere
    rt::tell(self, up.handle, DropChunks{config.id});
  note_report(up.instance, up.handle, instances_before);
  if (started && !drafts.servers().empty()) rt::tell(self, up.handle, drafts.all());
  const int64_t running_max = config.scheduler.running_max;
  const int32_t rows_max = running_max > 0 ? static_cast<int32_t>(std::min<int64_t>(running_max, up.rows_max)) : up.rows_max;
  if (Status added = scheduler->add_instance({up.instance, up.node, up.kv_blocks, up.block_tokens, rows_max}); !added.ok())
    return end(added.error().detail);
  start_when_all_are_up();
  if (started) schedule_postponed();
}

/// The first instance that says so sets the model and KV layout that all others must have, also when it is gone; and the weights, if the
/// rollout does not know them.
bool RolloutActor::may_join(const InstanceUp& up) {
  ClusterIdentity expected = identity.value_or(up.identity);
  expected.version = config.version;
  if (config.weights != 0) expected.weights = config.weights;
  const std::string who = cat("instance ", up.instance);
  const Status fits = check_identity(who, up.identity, expected);
  instances_gone.erase(up.instance);
  refusals.erase(up.instance);
  if (fits.ok()) {
    if (expected.weights == 0) expected.weights = up.identity.weights;
    if (expected.shape == 0) expected.shape = up.identity.shape;
    if (expected.endings.empty()) expected.endings = up.identity.endings;
    if (expected.tokenizer == 0) expected.tokenizer = up.identity.tokenizer;
    identity = expected;
    return true;
  }
  ClusterIdentity changed = up.identity;
  changed.version = config.version;
  changed.weights = 0;
  const bool may_change = up.identity.version != WeightVersion{} && up.identity.version < config.version && check_identity(who, changed, expected).ok();
  refusals[up.instance] = {fits.error().detail, may_change};
  parts.log.warn(rt::now_us(self), "instance_refused", {{"instance", up.instance}, {"error", fits.error()}});
  return false;
}

/// Tokens that the largest instance holds. Lost ones count: where a response ends must not depend on failures.
int64_t RolloutActor::kv_tokens_max() const {
  int64_t most = 0;
  for (const auto& [id, tokens] : kv_tokens) most = std::max(most, tokens);
  return most;
}

void RolloutActor::on_part_lost(const PartLost& lost) {
  if (over()) return;
  if (!lost.reason.empty()) {
    parts.log.warn(rt::now_us(self), "part_lost", {{"node", lost.node}, {"reason", lost.reason}});
    parts_lost.push_back(lost.reason);
  }
  instances_gone.insert(lost.instances.begin(), lost.instances.end());
  for (const InstanceId id : lost.instances) {
    refusals.erase(id);
    if (lost.reason.empty()) kv_tokens.erase(id);
  }
  end_when_none_is_left();
  if (ended) return;
  start_when_all_are_up();
  if (started) place();
}

void RolloutActor::on_draining(const InstancesDraining& leaving) {
  if (over()) return;
  int64_t left = 0;
  for (const InstanceId id : leaving.instances) {
    instances_gone.insert(id);
    refusals.erase(id);
    kv_tokens.erase(id);
    const auto instance = instances.find(id);
    if (instance == instances.end()) continue;
    draining[id] = instance->second.handle;
    instances.erase(instance);
    scheduler->remove_instance(id);
    ++left;
  }
  if (left > 0) {  // else they were not here
    lost_us = rt::now_us(self);
    if (instances.empty()) instances_gone_us = lost_us;
    parts.log.info(lost_us, "instances_draining", {{"node", leaving.node}, {"instances", left}});
  }
  start_when_all_are_up();
  if (started) place();
}

/// Counts the instances that are up, and those that are not awaited.
size_t RolloutActor::settled_instances() const {
  const bool waits_for_change = rt::now_us(self) - started_us < kChangeUs;
  const auto stays_out = [&](const auto& refusal) { return !refusal.second.may_change || !waits_for_change; };
  return instances.size() + instances_gone.size() + static_cast<size_t>(std::ranges::count_if(refusals, stays_out));
}

void RolloutActor::start_when_all_are_up() {
  if (!started && !instances.empty() && settled_instances() >= config.instances_expected) start();
}

/// Reasons for the missing instances, after a colon; empty if none is known.
std::string RolloutActor::why_none_is_left() const {
  std::string why;
  if (!parts_lost.empty()) why += cat(": ", parts_lost.back());
  if (!refusals.empty()) why += cat(why.empty() ? ": " : ", and ", refusals.rbegin()->second.why);
  return why;
}

void RolloutActor::end_when_none_is_left() {
  if (config.machines_may_join) return;  // see on_tick()
  if (instances.empty() && !instances_gone.empty() && settled_instances() >= config.instances_expected)
    end(parts_lost.empty() ? "no instance is left to run on" : parts_lost.back());
}

void RolloutActor::start() {
  started = true;
  started_us = rt::now_us(self);
  parts.log.info(started_us, "rollout_started",
                 {{"policy", config.scheduler.policy}, {"requests", open_requests}, {"groups", parts.groups.size()},
                  {"instances", instances.size()}, {"weight_version", config.version}});
  if (parts.directory) rt::tell(self, parts.directory, KvBump{config.version});
  if (std::ranges::any_of(kv_tokens, [this](const auto& known) { return !instances.contains(known.first); })) lost_us = started_us;
  draft_for(0);
  if (!drafts.servers().empty()) tell_draft_servers();
  for (GroupSpec& group : parts.groups) schedule_group(group);
}

// ---- groups come and are cancelled -------------------------------------------------------------------------------------

void RolloutActor::note_group(const GroupSpec& group) {
  SEER_CHECK(group.id == GroupId(static_cast<uint32_t>(logs.size()), config.id), group.id, config.id);
  prompts.emplace_back(group.prompt_ids);
  prompt_tokens += std::ssize(group.prompt_ids);
  logs.emplace_back(group.samples);
  open_in_group.push_back(group.samples);
  ran_on.emplace_back();
  open_requests += group.samples;
}

/// Takes the tokens of an earlier process as if they had been reported here. Their KV is computed again. So is the last token of a
/// response that was not given: it may be its end, after which nothing must run.
void RolloutActor::resume(ResumedRequest& from) {
  Log& request = log(from.request);
  if (!from.is_over && !from.tokens.empty()) {
    from.tokens.pop_back();
    if (from.logprobs.size() > from.tokens.size()) from.logprobs.pop_back();
    from.kept_ids.cut(from.tokens.size());
  }
  request.tokens = prompts[from.request.group.index];
  request.tokens.append(from.tokens);
  request.logprobs = std::move(from.logprobs);
  request.kept_ids = std::move(from.kept_ids);
  request.computed_tokens = request.tokens.size();
  std::vector<int64_t>& generated = parts.groups[from.request.group.index].generated_tokens;
  generated.resize(logs[from.request.group.index].size());
  generated[from.request.sample] = request.tokens.output_tokens();
  if (from.is_over) answered_before.insert(from.request);
  from = {};
}

/// Leaves out a request that an earlier process answered. REQUIRES: it does not run.
void RolloutActor::leave_out(RequestId id) {
  const int64_t tokens = log(id).tokens.output_tokens();
  const bool scheduled = is_scheduled(id.group);
  if (scheduled) scheduler->cancel(id, rt::now_us(self));
  --open_requests;
  if (scheduled && tokens > 0)
    rt::tell(self, parts.context, LengthSeen{id, tokens, handle{self}});
  log(id) = {};
  if (--open_in_group[id.group.index] == 0) forget_group(id.group);
}

/// A group that no instance can take fails alone, or waits while one may come that can. So does one with a begun response that has no
/// room left. A request answered before is not answered again, not even with an error.
void RolloutActor::schedule_group(GroupSpec& group) {
  if (open_in_group[group.id.index] == 0) return;  // it was cancelled
  const int64_t begun = group.generated_tokens.empty() ? 0 : std::ranges::max(group.generated_tokens);
  if (const int64_t room = kv_tokens_max() - std::ssize(group.prompt_ids); config.cuts_lengths && room > begun)
    group.sampling.max_tokens = std::min(group.sampling.max_tokens, room);
  const Status added = scheduler->add_group(group, rt::now_us(self));
  if (!added.ok() && one_may_come()) return postponed.push_back(group.id.index);
  group.prompt_ids = std::vector<int32_t>();  // `prompts` has them
  for (uint32_t sample = 0; sample < group.samples; ++sample) {
    const RequestId id{group.id, sample};
    const bool is_cancelled = cancelled_early.erase(id) > 0;
    if (answered_before.contains(id))
      leave_out(id);
    else if (is_cancelled && added.ok())
      scheduler->cancel(id, rt::now_us(self));
    else if (!is_cancelled && !added.ok())
      finish_request(id, {FinishReason::kError, {}, added.error().detail});
  }
}

void RolloutActor::schedule_postponed() {
  for (const uint32_t index : std::exchange(postponed, {})) schedule_group(parts.groups[index]);
  place_or_end();
}

bool RolloutActor::is_scheduled(GroupId group) const { return started && scheduler->requests().has_group(group); }

GroupsAdded RolloutActor::on_add_groups(AddGroups& add) {
  if (std::string why = why_refused(add); !why.empty()) return {{}, std::move(why)};
  const size_t first = parts.groups.size();
  for (GroupSpec& group : add.groups) {
    group.id = {static_cast<uint32_t>(parts.groups.size()), config.id};
    note_group(group);
    parts.groups.push_back(std::move(group));
  }
  for (ResumedRequest& request : add.resumed) {
    request.request.group = {static_cast<uint32_t>(first + request.request.group.index), config.id};
    resume(request);
  }
  if (started) {
    draft_for(first);
    for (size_t i = first; i < parts.groups.size(); ++i) schedule_group(parts.groups[i]);
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
  const uint32_t end = sample ? first + 1 : static_cast<uint32_t>(logs[group.index].size());
  int64_t count = 0;
  for (uint32_t s = first; s < end; ++s) {
    const RequestId id{group, s};
    const RequestPhase phase = phase_of(id);
    if (phase == RequestPhase::kWaiting) cancel_waiting(id);
    if (phase == RequestPhase::kRunning) cancelled.insert(id);
    count += phase != RequestPhase::kFinished;
  }
  for (uint32_t s = first; s < end; ++s)
    if (const auto running = open.find(logs[group.index][s].chunk); running != open.end())
      rt::tell(self, handle_of(running->second.instance), CancelChunk{running->first});
  place_or_end();
  return {count, {}};
}

std::string RolloutActor::why_not_cancelled(GroupId group, std::optional<uint32_t> sample) const {
  if (ended) return "the rollout has ended";
  if (group.rollout != config.id) return cat("group ", group, " is not of rollout ", config.id);
  if (group.index >= logs.size()) return cat("group ", group, " is unknown: the rollout has ", logs.size(), " groups");
  const auto id = [&] { return RequestId{group, *sample}; };
  if (sample && *sample >= logs[group.index].size())
    return cat("request ", id(), " is unknown: the group has ", logs[group.index].size(), " samples");
  if (open_in_group[group.index] == 0) return cat("group ", group, " is over");
  if (sample && phase_of(id()) == RequestPhase::kFinished)
    return cat("request ", id(), " is over");
  return {};
}

/// A request whose group is not scheduled yet waits.
RequestPhase RolloutActor::phase_of(RequestId id) const {
  if (is_scheduled(id.group)) return scheduler->requests().at(id).phase;
  return answered_before.contains(id) || cancelled_early.contains(id) ? RequestPhase::kFinished : RequestPhase::kWaiting;
}

void RolloutActor::cancel_waiting(RequestId request) {
  if (is_scheduled(request.group))
    scheduler->cancel(request, rt::now_us(self));
  else
    cancelled_early.insert(request);
  finish_request(request, {.finish = FinishReason::kAborted});
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
  for (const auto& [id, instance] : instances) rt::tell(self, instance.handle, drafts.all());
}

/// From group number `first` on.
void RolloutActor::draft_for(size_t first) {
  std::vector<GroupId> groups;
  for (size_t i = first; i < parts.groups.size(); ++i)
    if (open_in_group[i] > 0) groups.push_back(parts.groups[i].id);
  drafts.add(groups);
}

std::vector<const TokenLog*> RolloutActor::token_logs(GroupId group) const {
  std::vector<const TokenLog*> all;
  for (const Log& request : logs[group.index]) all.push_back(&request.tokens);
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
  for (const FinishRecord& finish : finishes) release_kv(owner_of(finish.request));
  for (uint32_t group = 0; group < open_in_group.size(); ++group)
    if (open_in_group[group] == 0) release_kv(owner_of(GroupId(group, config.id)));
}

/// REQUIRES: all requests of the group are over.
void RolloutActor::forget_group(GroupId group) {
  prompts[group.index] = {};
  for (const InstanceId instance : std::exchange(ran_on[group.index], {}))
    if (const auto at = instances.find(instance); at != instances.end()) at->second.over.push_back(group);
  release_kv(owner_of(group));
  drafts.drop(group);
}

// ---- chunks ----------------------------------------------------------------------------------------------------------

void RolloutActor::on_progress(const ChunkProgress& progress) {
  if (ended) return;
  if (auto it = instances.find(progress.instance); it != instances.end())
    it->second.kv_blocks_used = progress.kv_blocks_used;
  if (progress.version != config.version && !progress.chunks.empty()) return refuse_tokens(progress.instance, progress.version);
  for (const ChunkTokens& part : progress.chunks) {
    auto it = open.find(part.chunk);
    if (it == open.end()) continue;  // late: the chunk ended or was placed again
    if (!append(it->second, part)) return give_up_instance(it->second.instance);
    it->second.heard_us = rt::now_us(self);
  }
  tell_commits();
}

/// False: a report before this one was lost. A duplicate is ignored.
bool RolloutActor::append(const OpenChunk& chunk, const ChunkTokens& part) {
  const RequestId id = chunk.request;
  Log& request = log(id);
  const int64_t known = request.tokens.output_tokens();
  if (part.first_index != known) return part.first_index < known;
  const bool is_told = config.tells_commits || parts.groups[id.group.index].streams;
  if (is_told && !part.tokens.empty()) commits.parts.push_back({id, known, part.tokens, part.logprobs, part.kept_ids});
  if (known == 0 && !part.tokens.empty()) request.first_token_us = request.queue_us + request.run_us + rt::now_us(self) - chunk.started_us;
  // A chunk's first tokens took its prefill too, and those of a stream that waited for it took no time.
  const int64_t now = rt::now_us(self);
  if (known > chunk.first_tokens && !part.tokens.empty()) scheduler->ran(chunk.instance, std::ssize(part.tokens), now - chunk.heard_us, now);
  request.tokens.append(part.tokens);
  request.logprobs.insert(request.logprobs.end(), part.logprobs.begin(), part.logprobs.end());
  request.kept_ids.append(part.kept_ids);
  scheduler->progressed(id, request.tokens.output_tokens());
  return true;
}

void RolloutActor::on_chunk_done(const ChunkDone& done) {
  auto it = open.find(done.chunk);
  if (it == open.end() || ended) return;
  const OpenChunk chunk = it->second;
  const bool has_other_weights = done.version != config.version;  // or gets them now
  if (has_other_weights && done.end != ChunkEnd::kPreempted) return refuse_tokens(chunk.instance, done.version);
  if (!append(chunk, done.last)) return give_up_instance(chunk.instance);
  tell_commits();
  open.erase(it);
  const auto at = instances.find(chunk.instance);
  if (at != instances.end()) at->second.kv_blocks_used = done.kv_blocks_used;
  Log& request = log(chunk.request);
  request.computed_tokens = std::max(request.computed_tokens, done.kv_tokens);
  if (scheduler->requests().at(chunk.request).chunks == 1)
    request.cached_tokens = std::min(done.cached_tokens, request.tokens.prompt_tokens());
  request.reprefill_tokens += done.reprefill_tokens;
  reprefilled_chunks += done.reprefill_tokens > 0 ? 1 : 0;
  prefill_tokens += done.prefill_tokens;
  close_chunk(chunk, done);
  // Its node says when it can be used again, and may have said so already.
  if (has_other_weights && at != instances.end() && at->second.up_us <= chunk.started_us) on_instance_lost(chunk.instance);
  place_or_end();
}

/// The request is over or waits again. REQUIRES: its log has all tokens of the chunk.
void RolloutActor::close_chunk(const OpenChunk& chunk, ChunkDone done) {
  const int64_t now = rt::now_us(self);
  Log& request = log(chunk.request);
  request.run_us += now - chunk.started_us;
  if (done.end == ChunkEnd::kRejected) {
    done.end = ChunkEnd::kFailed;
    done.finish = FinishReason::kError;
    done.error = cat("request ", chunk.request, " does not fit on instance ", chunk.instance, " even alone (", done.kv_tokens,
                     " tokens have their KV)");
  } else if (!is_over(done.end) && cancelled.contains(chunk.request)) {
    done.end = ChunkEnd::kAborted;
    done.finish = FinishReason::kAborted;
  }
  // Without an error the instance had no time for it: new weights come there, or it leaves.
  const bool has_failed = done.end == ChunkEnd::kLost || (done.end == ChunkEnd::kPreempted && !done.error.empty());
  const bool is_fruitless = has_failed && request.tokens.output_tokens() == chunk.first_tokens;
  request.fruitless = is_fruitless ? request.fruitless + 1 : 0;
  if (config.fruitless_max > 0 && request.fruitless >= config.fruitless_max) {
    done.end = ChunkEnd::kFailed;
    done.finish = FinishReason::kError;
    done.error = cat("request ", chunk.request, " was begun ", request.fruitless, " times without a token", done.error.empty() ? "" : ": ", done.error);
  }
  scheduler->kv_in_use(chunk.instance, done.kv_blocks_used);
  scheduler->chunk_ended(chunk.request, request.tokens.output_tokens(), done.end, now);
  if (is_over(done.end)) finish_request(chunk.request, {done.finish, std::move(done.matched), std::move(done.error)});
}

/// REQUIRES: the scheduler knows that the request is over, or never had it.
void RolloutActor::finish_request(RequestId id, Ending ending) {
  Log& request = log(id);
  const int64_t now = rt::now_us(self);
  const int64_t tokens = request.tokens.output_tokens();
  --open_requests;
  cancelled.erase(id);
  const bool failed = ending.finish == FinishReason::kError, aborted = ending.finish == FinishReason::kAborted;
  const RequestState history = is_scheduled(id.group) ? scheduler->requests().at(id) : RequestState{};
  finishes.push_back({id, now, tokens, history.preemptions, history.migrations, request.reprefill_tokens, failed, aborted});
  if (!failed && !aborted)
    rt::tell(self, parts.context, LengthSeen{id, tokens, handle{self}});
  const uint32_t left_in_group = --open_in_group[id.group.index];
  release_kv(owner_of(id));
  if (left_in_group == 0) forget_group(id.group);
  const TokenLog log = std::exchange(request.tokens, {});
  Response response{id, parts.groups[id.group.index].seeds[id.sample], log.output(),
                    std::exchange(request.logprobs, {}), ending.finish, std::move(ending.matched), std::move(ending.error),
                    config.version, history.chunks, history.migrations, history.preemptions, request.queue_us,
                    request.run_us, request.start_us, request.first_token_us, request.cached_tokens, std::exchange(request.kept_ids, {})};
  if (config.responses_kept_max > 0) kept.emplace(id, response);
  rt::tell(self, parts.events, std::move(response));
}

void RolloutActor::on_instance_lost(InstanceId lost) {
  if (draining.erase(lost) > 0) return place_chunks_again(lost);
  ++instances_lost;
  instances.erase(lost);
  scheduler->remove_instance(lost);
  lost_us = rt::now_us(self);
  if (instances.empty()) instances_gone_us = lost_us;
  const auto chunks = std::ranges::count(open, lost, [](const auto& chunk) { return chunk.second.instance; });
  parts.log.warn(rt::now_us(self), "instance_lost", {{"instance", lost}, {"chunks", chunks}, {"instances_left", instances.size()}});
  place_chunks_again(lost);
}

void RolloutActor::place_chunks_again(InstanceId lost) {
  std::vector<std::pair<ChunkId, OpenChunk>> gone;
  for (const auto& [id, chunk] : open)
    if (chunk.instance == lost) gone.emplace_back(id, chunk);
  std::sort(gone.begin(), gone.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [id, chunk] : gone) {
    open.erase(id);
    Log& request = log(chunk.request);
    if (request.tokens.output_tokens() > chunk.first_tokens)
      request.computed_tokens = std::max(request.computed_tokens, request.tokens.size() - 1);
    close_chunk(chunk, {.end = ChunkEnd::kLost});  // KV on the device is gone; KV in the pool is found again
  }
  end_when_none_is_left();
  if (started && !over()) place();
}

/// Strictly on-policy: tokens of other weights never enter a response.
void RolloutActor::refuse_tokens(InstanceId id, WeightVersion version) {
  if (!instances.contains(id)) return;
  parts.log.warn(rt::now_us(self), "tokens_refused", {{"instance", id}, {"weight_version", version}, {"expected", config.version}});
  give_up_instance(id);
}

/// REQUIRES: it has chunks.
InstanceHandle RolloutActor::handle_of(InstanceId id) const {
  const auto leaving = draining.find(id);
  return leaving != draining.end() ? leaving->second : instances.at(id).handle;
}

/// Stops an instance whose reports are incomplete or missing. Its node starts it again, which also ends chunks that nobody waits
/// for.
void RolloutActor::give_up_instance(InstanceId id) {
  rt::stop(handle_of(id));
  on_instance_lost(id);
}

void RolloutActor::on_tick() {
  if (over()) return end({});  // also if there was nothing to do from the start
  const int64_t now = rt::now_us(self);
  std::vector<InstanceId> silent;
  for (const auto& [id, chunk] : open)
    if (now - chunk.heard_us > config.chunk_silence_us) silent.push_back(chunk.instance);
  std::sort(silent.begin(), silent.end());
  silent.erase(std::unique(silent.begin(), silent.end()), silent.end());
  for (InstanceId id : silent) {
    parts.log.warn(now, "instance_silent", {{"instance", id}, {"silent_s", config.chunk_silence_us / 1'000'000}});
    give_up_instance(id);
  }
  if (instances.empty() && now - instances_gone_us > config.no_instance_us)
    return end(cat("no instance is left to run on", why_none_is_left()));
  start_when_all_are_up();
  if (!started && !instances.empty() && now - started_us > config.no_instance_us) start();
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
  if (instances.empty() || one_may_come()) return;  // none: see on_tick()
  for (const StuckRequest& stuck : scheduler->stuck()) {
    scheduler->cancel(stuck.request, rt::now_us(self));
    finish_request(stuck.request, {FinishReason::kError, {}, stuck.why});
  }
}

/// An instance that was lost not long ago may be started again, and on a cluster another machine may take the place of one that left.
bool RolloutActor::one_may_come() const {
  const auto is_missing = [this](const auto& known) {
    return !instances.contains(known.first) && !instances_gone.contains(known.first) && !refusals.contains(known.first);
  };
  const bool was_lost = lost_us >= 0 && rt::now_us(self) - lost_us < config.no_instance_us;
  return was_lost && (config.machines_may_join || std::ranges::any_of(kv_tokens, is_missing));
}

void RolloutActor::place_or_end() {
  if (over())
    end({});
  else if (started)
    place();
}

void RolloutActor::run(const Placement& placement) {
  Log& request = log(placement.request);
  const GroupSpec& group = parts.groups[placement.request.group.index];
  const int64_t now = rt::now_us(self);
  const ChunkId chunk{next_chunk++, config.id};
  request.chunk = chunk;
  if (request.start_us < 0) request.start_us = now - started_us;
  request.queue_us += now - scheduler->requests().at(placement.request).waiting_since_us;
  if (request.tokens.empty()) request.tokens = prompts[placement.request.group.index];
  open[chunk] = {placement.request, placement.instance, now, now, request.tokens.output_tokens()};
  std::vector<InstanceId>& ran = ran_on[placement.request.group.index];
  if (std::ranges::find(ran, placement.instance) == ran.end()) ran.push_back(placement.instance);
  Instance& instance = instances.at(placement.instance);
  rt::tell(self, instance.handle,
           RunChunk{chunk, placement.request, config.version, request.tokens, request.computed_tokens,
                    placement.max_new_tokens, group.sampling, group.seeds[placement.request.sample],
                    placement.yield_rank, placement.keep_kv, group.is_live, std::exchange(instance.over, {}), handle{self}});
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
  for (const auto& [id, tokens] : kv_tokens) progress.kv.push_back({id, tokens});
  int64_t total = 0, used = 0;
  for (const auto& [id, instance] : instances) total += instance.kv_blocks, used += instance.kv_blocks_used;
  progress.kv_use_share = total > 0 ? static_cast<double>(used) / static_cast<double>(total) : 0;
  rt::tell(self, parts.events, progress);
}

RolloutSummary RolloutActor::summary() const {
  const RolloutStats stats = rollout_stats(finishes, started_us);
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
          .estimate_error = estimate_error,
          .instances = {},
          .draft_servers = {},
          .parts_lost = parts_lost};
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
  std::map<InstanceId, InstanceHandle> targets;
  for (const auto& [id, instance] : instances) targets.emplace(id, instance.handle);
  targets.insert(draining.begin(), draining.end());
  rt::gather_then<std::vector<InstanceReport>>(
      self, targets, GetReport{}, [this, so_far, then](std::vector<InstanceReport> reports) mutable {
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
    if (open_in_group[group.id.index] == 0) continue;
    for (const RequestState& request : group.members)
      if (request.phase != RequestPhase::kFinished) release_kv(owner_of(request.id));
    forget_group(group.id);
  }
  drafts.drop_all();  // also of groups that were never scheduled
  for (const auto& [id, instance] : instances) rt::tell(self, instance.handle, DropChunks{config.id});
  for (const auto& [id, instance] : draining) rt::tell(self, instance, DropChunks{config.id});
  gather_summary(std::move(last), [this](RolloutSummary all) { rt::tell(self, parts.events, std::move(all)); });
}

}  // namespace seer
