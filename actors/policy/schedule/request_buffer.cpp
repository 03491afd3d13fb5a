#include "actors/policy/schedule/request_buffer.h"

#include <algorithm>

#include "protocols/check.h"

namespace seer {

void RequestBuffer::add_group(const GroupSpec& spec, int64_t now_us) {
  SEER_CHECK(!has_group(spec.id), spec.id);
  SEER_CHECK(spec.samples > 0, spec.id);
  slots_[spec.id] = groups_.size();
  GroupState& group = groups_.emplace_back();
  group.id = spec.id;
  group.prompt_tokens = static_cast<int64_t>(spec.prompt_ids.size());
  group.max_tokens = spec.sampling.max_tokens;
  group.priority = spec.priority;
  group.estimated_tokens = spec.length_hint > 0 ? std::min(spec.length_hint, group.max_tokens) : group.max_tokens;
  group.members.resize(spec.samples);
  for (uint32_t sample = 0; sample < spec.samples; ++sample) {
    RequestState& request = group.members[sample];
    request.id = {spec.id, sample};
    request.probe = sample == 0;
    request.submitted = submitted_++;
    request.waiting_since_us = now_us;
    if (sample < spec.known_tokens.size()) request.known_tokens = spec.known_tokens[sample];
    if (sample < spec.generated_tokens.size()) request.generated_tokens = spec.generated_tokens[sample];
    totals_.generated_tokens += request.generated_tokens;
  }
  totals_.waiting += spec.samples;
}

void RequestBuffer::start(RequestId id, InstanceId instance, NodeId node) {
  RequestState& request = state(id);
  SEER_CHECK(request.phase == RequestPhase::kWaiting, id);
  if (request.chunks > 0 && request.instance != instance) {
    ++request.migrations;
    ++totals_.migrations;
  }
  request.phase = RequestPhase::kRunning;
  request.instance = instance;
  request.node = node;
  request.chunk_start_tokens = request.generated_tokens;
  ++request.chunks;
  ++totals_.chunks;
  --totals_.waiting;
  ++totals_.running;
}

void RequestBuffer::progress(RequestId id, int64_t generated_tokens) {
  RequestState& request = state(id);
  SEER_CHECK(request.phase == RequestPhase::kRunning, id);
  SEER_CHECK(generated_tokens >= request.chunk_start_tokens, id, generated_tokens, request.chunk_start_tokens);
  totals_.generated_tokens += generated_tokens - request.generated_tokens;
  request.generated_tokens = generated_tokens;
}

void RequestBuffer::end(RequestId id, int64_t generated_tokens, ChunkEnd end, int64_t now_us) {
  progress(id, generated_tokens);
  RequestState& request = state(id);
  request.credit_blocks = 0;
  request.charged_blocks = 0;
  request.turn_tokens = end == ChunkEnd::kChunkFull ? request.turn_tokens + generated_tokens - request.chunk_start_tokens : 0;
  --totals_.running;
  if (is_over(end)) {
    request.failed = end != ChunkEnd::kFinished;
    request.phase = RequestPhase::kFinished;
    request.finished_us = now_us;
    ++totals_.finished;
    return;
  }
  request.phase = RequestPhase::kWaiting;
  request.waiting_since_us = now_us;
  ++totals_.waiting;
  if (end == ChunkEnd::kYielded) {
    ++request.yields;
    ++totals_.yields;
  } else if (end == ChunkEnd::kPreempted || end == ChunkEnd::kServerFailed) {
    ++request.preemptions;
    ++totals_.preemptions;
  }
}

void RequestBuffer::cancel(RequestId id, int64_t now_us) {
  RequestState& request = state(id);
  SEER_CHECK(request.phase == RequestPhase::kWaiting, id);
  request.phase = RequestPhase::kFinished;
  request.failed = true;
  request.finished_us = now_us;
  --totals_.waiting;
  ++totals_.finished;
}

void RequestBuffer::charge(RequestId id, int64_t credit_blocks, int64_t charged_blocks) {
  RequestState& request = state(id);
  SEER_CHECK(request.phase == RequestPhase::kRunning, id);
  request.credit_blocks = credit_blocks;
  request.charged_blocks = charged_blocks;
}

void RequestBuffer::set_estimate(GroupId id, int64_t estimated_tokens) {
  const_cast<GroupState&>(group(id)).estimated_tokens = estimated_tokens;
}

const GroupState& RequestBuffer::group(GroupId id) const {
  auto slot = slots_.find(id);
  SEER_CHECK(slot != slots_.end(), id);
  return groups_[slot->second];
}

const RequestState& RequestBuffer::at(RequestId id) const {
  const GroupState& owner = group(id.group);
  SEER_CHECK(id.sample < owner.members.size(), id);
  return owner.members[id.sample];
}

RequestState& RequestBuffer::state(RequestId id) {
  return const_cast<RequestState&>(static_cast<const RequestBuffer&>(*this).at(id));
}

}  // namespace seer
