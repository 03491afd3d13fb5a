#include "actors/policy/schedule/chunk_ledger.h"

#include <algorithm>
#include <cmath>

#include "actors/policy/schedule/serve_order.h"

namespace seer {
namespace {

Status check_group(const GroupSpec& group) {
  if (group.samples < 1) return fail(Code::kInvalidArgument, "group ", group.id, " asks for no samples");
  if (group.prompt_ids.empty()) return fail(Code::kInvalidArgument, "group ", group.id, " has an empty prompt");
  if (group.sampling.max_tokens < 1)
    return fail(Code::kInvalidArgument, "group ", group.id, " has max_tokens=", group.sampling.max_tokens);
  return {};
}

}  // namespace

Status check_known_tokens(const GroupSpec& group, std::string_view policy) {
  if (group.known_tokens.size() == group.samples) return {};
  return fail(Code::kInvalidArgument, "group ", group.id, " has ", group.known_tokens.size(), " known lengths for ",
              group.samples, " samples; the ", policy, " policy needs one each");
}

Status ChunkLedger::add_group(const GroupSpec& group, int64_t now_us) {
  SEER_RETURN_IF_ERROR(check_group(group));
  if (buffer_.has_group(group.id)) return fail(Code::kInvalidArgument, "group ", group.id, " was added before");
  const auto prompt_tokens = static_cast<int64_t>(group.prompt_ids.size());
  const int64_t blocks_max = picker_.kv_blocks_max();
  if (blocks_max > 0 && blocks_for(prompt_tokens + group.sampling.max_tokens) > blocks_max)
    return fail(Code::kInvalidArgument, "group ", group.id, ": a prompt of ", prompt_tokens,
                " tokens with max_tokens=", group.sampling.max_tokens, " needs ",
                blocks_for(prompt_tokens + group.sampling.max_tokens), " KV blocks; the largest instance holds ",
                blocks_max, " blocks of ", picker_.block_tokens(), " tokens");
  buffer_.add_group(group, now_us);
  return {};
}

std::optional<InstanceId> ChunkLedger::pick(const RequestState& request, PlaceBy by, int64_t kv_blocks_below) const {
  if (picker_.kv_blocks_max() == 0) return std::nullopt;
  KvNeed wanted = need(request);
  wanted.kv_blocks_below = kv_blocks_below;
  return picker_.pick(wanted, {request.instance, request.node}, by);
}

bool ChunkLedger::fits(const RequestState& request, InstanceId instance, double spare_share, int64_t spare_blocks) const {
  KvNeed wanted = need(request);
  wanted.own_blocks += spare_blocks;
  if (spare_share > 0)
    wanted.own_blocks +=
        static_cast<int64_t>(std::ceil(spare_share * static_cast<double>(picker_.limits(instance).kv_blocks)));
  return picker_.fits(instance, wanted);
}

bool ChunkLedger::fits_smallest(const RequestState& request) const {
  const KvNeed wanted = need(request);
  return wanted.prompt_blocks + wanted.own_blocks_least <= picker_.kv_blocks_min();
}

Placement ChunkLedger::start(const RequestState& request, InstanceId instance, uint64_t yield_rank) {
  const GroupState& group = buffer_.group(request.id.group);
  const InstanceLimits& limits = picker_.limits(instance);
  const int64_t context_max = limits.kv_blocks * limits.block_tokens;
  const int64_t credit_blocks = picker_.start(instance, need(request));
  buffer_.start(request.id, instance, limits.node);
  buffer_.charge(request.id, credit_blocks, credit_blocks);
  Placement placement;
  placement.request = request.id;
  placement.instance = instance;
  placement.max_new_tokens =
      std::min(chunk_tokens_on(instance, chunk_tokens(request, group)), context_max - group.prompt_tokens - request.generated_tokens);
  placement.credit_blocks = prompt_blocks(group) + credit_blocks;
  placement.yield_rank = rank_of_all(yield_rank, group.priority);
  return placement;
}

void ChunkLedger::progressed(RequestId id, int64_t generated_tokens) {
  buffer_.progress(id, generated_tokens);
  charge_growth(buffer_.at(id));
}

void ChunkLedger::ended(RequestId id, int64_t generated_tokens, ChunkEnd end, int64_t now_us) {
  const RequestState& request = buffer_.at(id);
  SEER_CHECK(request.phase == RequestPhase::kRunning, id);
  const GroupState& group = buffer_.group(id.group);
  picker_.end(request.instance,
              {.group = id.group, .prompt_blocks = prompt_blocks(group), .own_blocks = request.charged_blocks});
  buffer_.end(id, generated_tokens, end, now_us);
  if (request.turn_tokens >= rules_.turn_tokens) buffer_.end_turn(id);
}

void ChunkLedger::ran(InstanceId instance, int64_t tokens, int64_t us, int64_t now_us) {
  if (!rules_.learns_speeds || !picker_.is_open(instance)) return;
  speeds_.add(instance, tokens, us, now_us);
  picker_.set_token_us(instance, speeds_.token_us(instance));
  for (const InstanceId other : speeds_.forget_old(now_us))
    if (picker_.is_open(other)) picker_.set_token_us(other, 0);
}

Status ChunkLedger::stalled() const {
  const RequestTotals& totals = buffer_.totals();
  if (totals.waiting == 0 || totals.running > 0) return {};
  const int64_t blocks_max = picker_.kv_blocks_max();
  if (blocks_max == 0) return fail(Code::kUnavailable, totals.waiting, " requests wait and there is no instance");
  const std::vector<StuckRequest> all = stuck();
  return all.empty() ? Status() : fail(Code::kFull, all.front().why);
}

std::vector<StuckRequest> ChunkLedger::stuck() const {
  std::vector<StuckRequest> stuck;
  const int64_t blocks_max = picker_.kv_blocks_max();
  for (const GroupState& group : buffer_.groups()) {
    const int64_t blocks = blocks_of(group);
    if (blocks <= blocks_max) continue;
    for (const RequestState& request : group.members)
      if (request.phase == RequestPhase::kWaiting)
        stuck.push_back({request.id, cat("request ", request.id, " has ", group.prompt_tokens, " prompt and ",
                                         request.generated_tokens, " output tokens and may grow to ", blocks,
                                         " KV blocks; the largest instance left holds ", blocks_max)});
  }
  return stuck;
}

int64_t ChunkLedger::chunk_tokens(const RequestState& request, const GroupState& group) const {
  const int64_t rest = group.max_tokens - request.generated_tokens;
  return promise_.chunk_tokens > 0 ? std::min(promise_.chunk_tokens, rest) : rest;
}

int64_t ChunkLedger::chunk_tokens_on(InstanceId instance, int64_t tokens) const {
  const double fastest_us = picker_.token_us_least(), us = picker_.token_us(instance);
  if (promise_.chunk_tokens == 0 || us <= fastest_us) return tokens;
  const auto as_long = static_cast<int64_t>(static_cast<double>(tokens) * fastest_us / us);
  return std::max(as_long, std::min(tokens, kSlowChunkTokensLeast));
}

int64_t ChunkLedger::blocks_for(int64_t tokens) const {
  const int64_t block_tokens = picker_.block_tokens();
  return (tokens + block_tokens - 1) / block_tokens;
}

KvNeed ChunkLedger::need(const RequestState& request) const {
  const GroupState& group = buffer_.group(request.id.group);
  const int64_t reserved_of =
      std::min(chunk_tokens(request, group), promise_.chunk_tokens > 0 ? promise_.chunk_tokens : kReserveTokensMax);
  const auto reserve = static_cast<int64_t>(std::ceil(promise_.reserve_share * static_cast<double>(reserved_of)));
  const int64_t held = group.prompt_tokens + request.generated_tokens;
  const int64_t shared = prompt_blocks(group);
  return {.group = request.id.group,
          .prompt_blocks = shared,
          .own_blocks = blocks_for(held + reserve) + 1 - shared,
          .own_blocks_least = blocks_for(held + 1) - shared};
}

void ChunkLedger::charge_growth(const RequestState& request) {
  const GroupState& group = buffer_.group(request.id.group);
  const int64_t soon = std::min(request.generated_tokens + promise_.headroom_tokens, group.max_tokens);
  const int64_t own_blocks =
      std::max(request.credit_blocks, blocks_for(group.prompt_tokens + soon) - prompt_blocks(group));
  if (own_blocks == request.charged_blocks) return;
  picker_.recharge(request.instance, own_blocks - request.charged_blocks);
  buffer_.charge(request.id, request.credit_blocks, own_blocks);
}

}  // namespace seer
