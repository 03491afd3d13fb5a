#include "actors/kv_directory_actor.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace seer {
namespace {

/// The machine of `before` has started its KV node again, so `before` has ended.
bool is_restart(const KvNodeUp& before, const KvNodeUp& up) {
  return up.epoch > before.epoch && up.epoch / kEpochsOfStart == before.epoch / kEpochsOfStart;
}

}  // namespace

KvDirectoryActor::KvDirectoryActor(rt::self_ptr<KvDirectoryActor> self_in) : self(self_in) {
  rt::on_down(self, [this](const rt::down& message) { on_node_down(message); });
}

KvDirectoryActor::handle::behavior_type KvDirectoryActor::make_behavior() {
  return {
      [this](const KvNodeUp& up) { on_node_up(up); },
      [this](const KvHolds& holds) { on_holds(holds); },
      [this](const KvLetGo& left) {
        if (const auto it = holders.find(left.owner); it != holders.end()) it->second.erase(left.node);
      },
      [this](const KvDraining& node) { on_draining(node); },
      [this](const FindHolders& find) { on_find(find); },
      [this](const KvRoom& room) { rooms[room.node] = room; },
      [this](const FindRoom& find) { on_find_room(find); },
      [this](const KvRelease& release) { on_release(release); },
      [this](const KvDropRollout& drop) { on_drop_rollout(drop.rollout); },
      [this](const KvKeepRollouts& keep) { on_keep_rollouts(keep); },
      [this](const KvRolloutReturned& returned) { on_rollout_returned(returned.rollout); },
      [this](const KvBump& bump) { on_bump(bump); },
      [this](const GetReport& ask) {
        std::map<NodeId, KvMember> handles;
        for (const auto& [id, node] : nodes) handles.emplace(id, node.handle);
        return rt::gather<std::vector<KvNodeReport>>(self, handles, ask);
      },
  };
}

void KvDirectoryActor::on_node_up(const KvNodeUp& up) {
  const auto there = nodes.find(up.node);
  if (there != nodes.end() && there->second.handle == up.handle) return;  // a duplicate
  const std::string who = cat("node ", up.node);
  if (identity && !nodes.empty())
    if (const Status fits = check_identity(who, up.identity, *identity); !fits.ok()) return refuse(up, fits.error().detail);
  if (const uint64_t newest = epochs[up.node]; up.epoch < newest)
    return refuse(up, cat(who, " is refused: its epoch is ", up.epoch, ", expected at least ", newest,
                          ": a node of that name was started later"));
  if (there == nodes.end()) return admit(up);
  if (is_restart(there->second, up)) {
    forget(up.node);
    return admit(up);
  }
  const auto other = waiting.find(up.node);
  if (other == waiting.end() || is_restart(other->second, up)) {
    waiting[up.node] = up;
    rt::monitor(self, up.handle);
    return rt::tell_after(self, kTakeoverUs, handle{self}, up);
  }
  // It has waited for kTakeoverUs, or a third node of this name has come.
  const bool has_waited = other->second.handle == up.handle;
  if (has_waited) waiting.erase(other);
  refuse(up, cat(who, " is refused: a node of that name is up in epoch ", there->second.epoch, " and alive, and this one's is ",
                 up.epoch, ": expected another name for each machine"));
}

void KvDirectoryActor::admit(const KvNodeUp& up) {
  if (nodes.empty()) identity = up.identity;
  epochs[up.node] = up.epoch;
  nodes[up.node] = up;
  rt::monitor(self, up.handle);
  if (version > WeightVersion{}) rt::tell(self, up.handle, KvBump{version});
}

void KvDirectoryActor::refuse(const KvNodeUp& up, const std::string& why) {
  rt::tell(self, up.handle, KvRefused{why});
}

void KvDirectoryActor::forget(NodeId node) {
  nodes.erase(node);
  rooms.erase(node);
  for (auto& [owner, where] : holders) where.erase(node);
}

/// A dead node's blocks are lost; requests that need them prefill again. A restarted node comes back empty, with KvNodeUp.
void KvDirectoryActor::on_node_down(const rt::down& message) {
  std::erase_if(waiting, [&](const auto& entry) { return rt::is_source(message, entry.second.handle); });
  const auto gone = std::ranges::find_if(nodes, [&](const auto& entry) { return rt::is_source(message, entry.second.handle); });
  if (gone == nodes.end()) return;
  const NodeId node = gone->first;
  draining.erase(node);
  if (const auto next = waiting.extract(node); !next.empty()) {  // `holders` and `rooms` have its messages already
    nodes.erase(node);
    return admit(next.mapped());
  }
  forget(node);
}

/// Ids come from a clock that wraps around, so compare their difference.
bool KvDirectoryActor::is_lost(RolloutId rollout) {
  if (alive && rt::now_us(self) - alive_us > kAliveUs) alive.reset();
  if (!alive) return false;
  const bool is_early = static_cast<int32_t>(rollout.value - alive->last.value) <= 0;
  return is_early && std::ranges::find(alive->rollouts, rollout) == alive->rollouts.end();
}

void KvDirectoryActor::on_holds(const KvHolds& holds) {
  const RolloutId rollout = holds.owner.rollout;
  if (released.contains(holds.owner) || dropped.contains(rollout) || is_lost(rollout))
    return tell_release(holds.node, {holds.owner});  // its release came before this message
  Holders& where = holders[holds.owner];
  where[holds.node] = {holds.guest, ++last_holds};
  leave_draining(holds.owner, where);
}

/// Draining nodes may drop a request's KV that another node has kept since: the request came there later, and fetched what it
/// lacked. Except guests: they are what that copy lacks.
void KvDirectoryActor::leave_draining(KvOwner owner, Holders& where) {
  if (draining.empty() || owner == group_of(owner)) return;
  uint64_t last = 0;  // that it ran on a node that stays
  for (const auto& [node, holding] : where)
    if (!holding.is_guest && !draining.contains(node)) last = std::max(last, holding.since);
  for (const NodeId node : draining) {
    const auto left = where.find(node);
    if (left == where.end() || left->second.is_guest || left->second.since > last) continue;
    where.erase(left);
    tell_release(node, {owner});
  }
}

void KvDirectoryActor::on_draining(const KvDraining& node) {
  draining.insert(node.node);  // after a restart of the directory this may come before KvNodeUp
  for (auto& [owner, where] : holders) leave_draining(owner, where);
}

/// Lists nodes that keep the request's own blocks first: they most likely have the prompt too.
void KvDirectoryActor::on_find(const FindHolders& find) {
  KvHolders answer{find.op, {}};
  std::set<NodeId> listed = {find.asking};
  for (KvOwner owner : {find.owner, group_of(find.owner)})
    if (auto it = holders.find(owner); it != holders.end())
      for (const auto& [id, holding] : it->second)
        if (auto node = nodes.find(id); node != nodes.end() && !node->second.address.empty() && listed.insert(id).second)
          answer.sources.push_back({node->second.handle, id, node->second.epoch, node->second.address});
  rt::tell(self, find.reply_to, std::move(answer));
}

void KvDirectoryActor::on_release(const KvRelease& release) {
  released.insert(release.owner);
  let_go(release.owner);
}

void KvDirectoryActor::let_go(KvOwner owner) {
  const auto it = holders.find(owner);
  if (it == holders.end()) return;
  for (const auto& [id, holding] : it->second) tell_release(id, {owner});
  holders.erase(it);
}

void KvDirectoryActor::on_find_room(const FindRoom& find) {
  const auto room_of = [&](const KvRoom& room) { return find.has_cold ? room.blocks : room.last_blocks; };
  KvRoom* best = nullptr;
  for (auto& [id, room] : rooms) {
    const bool may_take = id != find.asking && nodes.contains(id) && !draining.contains(id) && room_of(room) > 0 &&
                          std::ranges::find(find.except, id) == find.except.end();
    if (!may_take) continue;
    if (best == nullptr || std::pair(room.is_kv_only, room_of(room)) > std::pair(best->is_kv_only, room_of(*best))) best = &room;
  }
  if (best == nullptr) return rt::tell(self, find.reply_to, KvRoomFound{});
  const int64_t blocks = std::min(find.blocks, room_of(*best));
  best->blocks -= blocks;
  best->last_blocks -= blocks;
  rt::tell(self, find.reply_to, KvRoomFound{blocks, best->node, nodes.at(best->node).handle});
}

void KvDirectoryActor::on_drop_rollout(RolloutId rollout) {
  dropped.insert(rollout);
  std::vector<KvOwner> owners;
  for (auto it = holders.lower_bound(KvOwner{0, rollout}); it != holders.end() && it->first.rollout == rollout; ++it)
    owners.push_back(it->first);
  for (const KvOwner owner : owners) let_go(owner);
}

void KvDirectoryActor::on_keep_rollouts(const KvKeepRollouts& keep) {
  alive = keep;
  alive_us = rt::now_us(self);
  std::set<RolloutId> gone;
  for (const auto& [owner, where] : holders)
    if (is_lost(owner.rollout)) gone.insert(owner.rollout);
  for (const RolloutId rollout : gone) on_drop_rollout(rollout);
}

void KvDirectoryActor::on_rollout_returned(RolloutId rollout) {
  dropped.erase(rollout);
  if (is_lost(rollout)) alive->rollouts.push_back(rollout);
}

void KvDirectoryActor::tell_release(NodeId id, const KvRelease& release) {
  for (const auto* table : {&nodes, &waiting})
    if (auto node = table->find(id); node != table->end()) rt::tell(self, node->second.handle, release);
}

void KvDirectoryActor::on_bump(const KvBump& bump) {
  if (bump.version <= version) return;
  version = bump.version;
  for (auto& [id, node] : nodes) rt::tell(self, node.handle, bump);
}

}  // namespace seer
