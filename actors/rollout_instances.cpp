#include "actors/rollout_instances.h"

#include <algorithm>
#include <utility>

namespace seer {

RolloutInstances::RolloutInstances(RolloutInstancesConfig config, int64_t now_us)
    : config_(std::move(config)), kv_tokens_(config_.kv_tokens), started_us_(now_us), empty_since_us_(now_us) {}

RolloutInstances::Instance* RolloutInstances::find(InstanceId id) {
  const auto at = up_.find(id);
  return at == up_.end() ? nullptr : &at->second;
}

InstanceHandle RolloutInstances::handle_of(InstanceId id) const {
  const auto leaving = leaving_.find(id);
  return leaving != leaving_.end() ? leaving->second : up_.at(id).handle;
}

std::map<InstanceId, InstanceHandle> RolloutInstances::handles() const {
  std::map<InstanceId, InstanceHandle> all = leaving_;
  for (const auto& [id, instance] : up_) all.emplace(id, instance.handle);
  return all;
}

// ---- they come and go --------------------------------------------------------------------------------------------------

Status RolloutInstances::admit(const InstanceUp& up) {
  ClusterIdentity expected = identity_.value_or(up.identity);
  expected.version = config_.version;
  if (config_.weights != 0) expected.weights = config_.weights;
  const std::string who = cat("instance ", up.instance);
  gone_.erase(up.instance);
  refused_.erase(up.instance);
  if (Status fits = check_identity(who, up.identity, expected); !fits.ok()) {
    ClusterIdentity changed = up.identity;
    changed.version = config_.version;
    changed.weights = 0;
    const bool has_older = up.identity.version != WeightVersion{} && up.identity.version < config_.version;
    refused_[up.instance] = {fits.error().detail, has_older && check_identity(who, changed, expected).ok()};
    return fits;
  }
  if (expected.weights == 0) expected.weights = up.identity.weights;
  if (expected.shape == 0) expected.shape = up.identity.shape;
  if (expected.endings.empty()) expected.endings = up.identity.endings;
  if (expected.tokenizer == 0) expected.tokenizer = up.identity.tokenizer;
  identity_ = expected;
  return {};
}

bool RolloutInstances::add(const InstanceUp& up, int64_t now_us) {
  up_[up.instance] = {up.handle, up.kv_blocks, 0, now_us};
  kv_tokens_[up.instance] = up.kv_blocks * up.block_tokens;
  return seen_.insert(up.instance).second;
}

bool RolloutInstances::lose(InstanceId id, int64_t now_us) {
  if (leaving_.erase(id) > 0) return false;
  const size_t erased = up_.erase(id);
  SEER_CHECK(erased == 1, id);
  note_departure(now_us);
  return true;
}

std::vector<InstanceId> RolloutInstances::drain(const std::vector<InstanceId>& ids, int64_t now_us) {
  std::vector<InstanceId> were_up;
  for (const InstanceId id : ids) {
    gone_.insert(id);
    refused_.erase(id);
    kv_tokens_.erase(id);
    const auto instance = up_.find(id);
    if (instance == up_.end()) continue;
    leaving_[id] = instance->second.handle;
    up_.erase(instance);
    were_up.push_back(id);
  }
  if (!were_up.empty()) note_departure(now_us);
  return were_up;
}

void RolloutInstances::note_departure(int64_t now_us) {
  lost_us_ = now_us;
  if (up_.empty()) empty_since_us_ = now_us;
}

void RolloutInstances::gone(const PartLost& lost) {
  if (!lost.reason.empty()) parts_lost_.push_back(lost.reason);
  gone_.insert(lost.instances.begin(), lost.instances.end());
  for (const InstanceId id : lost.instances) {
    refused_.erase(id);
    if (lost.reason.empty()) kv_tokens_.erase(id);
  }
}

void RolloutInstances::started(int64_t now_us) {
  started_us_ = now_us;
  const bool one_is_missing = std::ranges::any_of(kv_tokens_, [this](const auto& known) { return !up_.contains(known.first); });
  if (one_is_missing) lost_us_ = now_us;
}

// ---- what may still come -----------------------------------------------------------------------------------------------

bool RolloutInstances::all_settled(int64_t now_us) const {
  const bool waits_for_change = now_us - started_us_ < config_.change_us;
  if (!config_.waits_for_all && !waits_for_change && !up_.empty()) return true;
  const auto stays_out = [&](const auto& refusal) { return !refusal.second.may_change || !waits_for_change; };
  return up_.size() + gone_.size() + static_cast<size_t>(std::ranges::count_if(refused_, stays_out)) >= config_.expected;
}

bool RolloutInstances::none_can_come(int64_t now_us) const {
  return !config_.machines_may_join && up_.empty() && !gone_.empty() && all_settled(now_us);
}

bool RolloutInstances::one_may_come(int64_t now_us) const {
  const auto is_missing = [this](const auto& known) {
    return !up_.contains(known.first) && !gone_.contains(known.first) && !refused_.contains(known.first);
  };
  const bool was_lost = lost_us_ && now_us - *lost_us_ < config_.return_us;
  return was_lost && (config_.machines_may_join || std::ranges::any_of(kv_tokens_, is_missing));
}

std::string RolloutInstances::why_missing() const {
  std::string why;
  if (!parts_lost_.empty()) why += cat(": ", parts_lost_.back());
  if (!refused_.empty()) why += cat(why.empty() ? ": " : ", and ", refused_.rbegin()->second.why);
  return why;
}

int64_t RolloutInstances::kv_tokens_max() const {
  int64_t most = 0;
  for (const auto& [id, tokens] : kv_tokens_) most = std::max(most, tokens);
  return most;
}

}  // namespace seer
