#include "actors/policy/schedule/instance_picker.h"

#include <algorithm>
#include <tuple>

namespace seer {

Status InstancePicker::add(const InstanceLimits& limits) {
  SEER_CHECK(!instances_.contains(limits.id), limits.id);
  if (limits.kv_blocks < 1 || limits.block_tokens < 1 || limits.rows_max < 1)
    return fail(Code::kInvalidArgument, "instance ", limits.id, " has no room: kv_blocks=", limits.kv_blocks,
                " block_tokens=", limits.block_tokens, " rows_max=", limits.rows_max);
  if (block_tokens_ != 0 && limits.block_tokens != block_tokens_)
    return fail(Code::kInvalidArgument, "instance ", limits.id, " has KV blocks of ", limits.block_tokens,
                " tokens and the others of ", block_tokens_, ": KV could not move between them");
  block_tokens_ = limits.block_tokens;
  Instance& instance = instances_[limits.id];
  instance.limits = limits;
  nodes_[limits.node].push_back(&instance);
  index(instance);
  update_fleet_limits();
  return {};
}

void InstancePicker::remove(InstanceId id) {
  auto found = instances_.find(id);
  if (found == instances_.end() || !found->second.open) return;
  Instance& instance = found->second;
  unindex(instance);
  instance.open = false;
  std::erase(nodes_[instance.limits.node], &instance);
  if (instance.running == 0) instances_.erase(found);
  update_fleet_limits();
}

std::optional<InstanceId> InstancePicker::pick(const KvNeed& wanted, CachedAt cached, PlaceBy by) const {
  if (by_load_.empty()) return std::nullopt;
  // The usual case in a full fleet, found at once: even an instance that has the prompt has no room.
  const int64_t used_least = by_load_.begin()->used_blocks;
  if (used_least > 0 && used_least + wanted.own_blocks > kv_blocks_max_) return std::nullopt;
  KvNeed need = wanted;
  const double fastest_us = token_us_least([&](const Instance& instance) { return fits(instance, wanted); });
  if (fastest_us > 0) need.token_us_max = kSlowerMax * fastest_us, need.token_us_left = kLeftMax * fastest_us;
  switch (by) {
    case PlaceBy::kCached:
      return cached_or_least_loaded(need, cached);
    case PlaceBy::kMostRoom:
      return most_room(need, cached.instance);
    case PlaceBy::kFewestRunning:
      return fewest_running(need, cached.instance);
  }
  return std::nullopt;
}

std::optional<InstanceId> InstancePicker::cached_or_least_loaded(const KvNeed& need, CachedAt cached) const {
  if (cached.node != kNoNode && inflight_spread() <= spread_max_) {
    if (may_stay(cached.instance, need)) return cached.instance;
    std::optional<Load> same_node;
    if (auto node = nodes_.find(cached.node); node != nodes_.end())
      for (const Instance* instance : node->second) same_node = lighter(same_node, *instance, need);
    if (same_node) return same_node->id;
  }
  return least_loaded(need);
}

std::optional<InstanceId> InstancePicker::most_room(const KvNeed& need, InstanceId last) const {
  const auto best = least_loaded(need);
  if (!best || *best == last || !may_stay(last, need)) return best;
  const Instance& stay = at(last);
  const auto tolerated = static_cast<int64_t>(kStayShare * static_cast<double>(stay.limits.kv_blocks));
  return stay.used_blocks <= at(*best).used_blocks + tolerated ? last : best;
}

std::optional<InstanceId> InstancePicker::fewest_running(const KvNeed& need, InstanceId last) const {
  const Instance* best = nullptr;
  for (const auto& [id, instance] : instances_) {
    if (!fits(instance, need)) continue;
    if (!best || std::tie(instance.running, instance.used_blocks) < std::tie(best->running, best->used_blocks))
      best = &instance;
  }
  if (!best) return std::nullopt;
  return may_stay(last, need) && at(last).running <= best->running ? last : best->limits.id;
}

bool InstancePicker::may_stay(InstanceId last, KvNeed need) const {
  need.token_us_max = need.token_us_left;
  return fits(last, need);
}

bool InstancePicker::fits(InstanceId id, const KvNeed& need) const {
  auto found = instances_.find(id);
  return found != instances_.end() && fits(found->second, need);
}

bool InstancePicker::fits(const Instance& instance, const KvNeed& need) const {
  if (!instance.open || instance.running >= instance.limits.rows_max || instance.token_us > need.token_us_max) return false;
  if (instance.limits.kv_blocks >= need.kv_blocks_below) return false;
  if (instance.running == 0) return need.prompt_blocks + need.own_blocks_least <= instance.limits.kv_blocks;
  const int64_t room = instance.limits.kv_blocks - instance.used_blocks;
  if (need.own_blocks > room) return false;
  return need.own_blocks + need.prompt_blocks <= room || has_prompt(instance, need.group);
}

bool InstancePicker::has_prompt(const Instance& instance, GroupId group) const {
  auto found = sites_.find(group);
  return found != sites_.end() && std::any_of(found->second.begin(), found->second.end(),
                                              [&](const Site& s) { return s.instance == &instance; });
}

std::optional<InstancePicker::Load> InstancePicker::lighter(std::optional<Load> best, const Instance& instance,
                                                            const KvNeed& need) const {
  const Load load{instance.used_blocks, instance.running, instance.limits.id};
  return (!best || load < *best) && fits(instance, need) ? load : best;
}

// Walks in order of load; the first instance with room is the answer. It stops at a load at which even the largest
// instance could not take the need and its prompt. Then only the few instances that have the prompt are left.
std::optional<InstanceId> InstancePicker::least_loaded(const KvNeed& need) const {
  for (const Load& load : by_load_) {
    if (fits(load.id, need)) return load.id;
    if (load.used_blocks > 0 && load.used_blocks + need.prompt_blocks + need.own_blocks > kv_blocks_max_) break;
  }
  std::optional<Load> with_prompt;
  if (auto group = sites_.find(need.group); group != sites_.end())
    for (const Site& site : group->second) with_prompt = lighter(with_prompt, *site.instance, need);
  return with_prompt ? std::optional(with_prompt->id) : std::nullopt;
}

int64_t InstancePicker::start(InstanceId id, const KvNeed& need) {
  Instance& instance = at(id);
  SEER_CHECK(fits(instance, need), id, need.own_blocks, instance.used_blocks);
  const int64_t own_blocks = std::min(need.own_blocks, instance.limits.kv_blocks - instance.used_blocks -
                                                           (has_prompt(instance, need.group) ? 0 : need.prompt_blocks));
  unindex(instance);
  std::vector<Site>& sites = sites_[need.group];
  auto site = std::find_if(sites.begin(), sites.end(), [&](const Site& s) { return s.instance == &instance; });
  if (site == sites.end()) {
    sites.push_back({&instance, 1});
    instance.used_blocks += need.prompt_blocks;
  } else {
    ++site->members;
  }
  instance.used_blocks += own_blocks;
  ++instance.running;
  index(instance);
  return own_blocks;
}

void InstancePicker::recharge(InstanceId id, int64_t delta_blocks) {
  Instance& instance = at(id);
  unindex(instance);
  instance.used_blocks += delta_blocks;
  index(instance);
}

void InstancePicker::end(InstanceId id, const KvNeed& need) {
  Instance& instance = at(id);
  unindex(instance);
  std::vector<Site>& sites = sites_[need.group];
  auto site = std::find_if(sites.begin(), sites.end(), [&](const Site& s) { return s.instance == &instance; });
  SEER_CHECK(site != sites.end(), id, need.group);
  if (--site->members == 0) {
    instance.used_blocks -= need.prompt_blocks;
    sites.erase(site);
    if (sites.empty()) sites_.erase(need.group);
  }
  instance.used_blocks -= need.own_blocks;
  --instance.running;
  SEER_CHECK(instance.running >= 0, id);
  SEER_CHECK(instance.used_blocks >= 0, id, instance.used_blocks);
  if (!instance.open && instance.running == 0) {
    instances_.erase(id);
    return;
  }
  index(instance);
}

bool InstancePicker::is_open(InstanceId id) const {
  auto found = instances_.find(id);
  return found != instances_.end() && found->second.open;
}

std::vector<InstanceId> InstancePicker::open_instances() const {
  std::vector<InstanceId> ids;
  for (const auto& [id, instance] : instances_)
    if (instance.open) ids.push_back(id);
  return ids;
}

double InstancePicker::token_us_least() const {
  return token_us_least([](const Instance&) { return true; });
}

template <class Which>
double InstancePicker::token_us_least(Which&& which) const {
  double least = 0;
  if (!knows_speeds_) return least;
  for (const auto& [id, instance] : instances_)
    if (instance.open && instance.token_us > 0 && (least == 0 || instance.token_us < least) && which(instance)) least = instance.token_us;
  return least;
}

int64_t InstancePicker::inflight_spread() const {
  return running_counts_.empty() ? 0 : *running_counts_.rbegin() - *running_counts_.begin();
}

const InstancePicker::Instance& InstancePicker::at(InstanceId id) const {
  auto found = instances_.find(id);
  SEER_CHECK(found != instances_.end(), id);
  return found->second;
}

InstancePicker::Instance& InstancePicker::at(InstanceId id) {
  auto found = instances_.find(id);
  SEER_CHECK(found != instances_.end(), id);
  return found->second;
}

void InstancePicker::index(const Instance& instance) {
  if (!instance.open) return;
  running_counts_.insert(instance.running);
  if (instance.running < instance.limits.rows_max)
    by_load_.insert({instance.used_blocks, instance.running, instance.limits.id});
}

void InstancePicker::unindex(const Instance& instance) {
  if (!instance.open) return;
  running_counts_.erase(running_counts_.find(instance.running));
  by_load_.erase({instance.used_blocks, instance.running, instance.limits.id});
}

void InstancePicker::update_fleet_limits() {
  kv_blocks_max_ = kv_blocks_min_ = 0;
  spread_max_ = inflight_spread_max_;
  for (const auto& [id, instance] : instances_) {
    if (!instance.open) continue;
    kv_blocks_min_ = kv_blocks_max_ == 0 ? instance.limits.kv_blocks : std::min(kv_blocks_min_, instance.limits.kv_blocks);
    kv_blocks_max_ = std::max(kv_blocks_max_, instance.limits.kv_blocks);
    spread_max_ = std::min(spread_max_, instance.limits.rows_max / kSpreadRowsShare);
  }
}

}  // namespace seer
