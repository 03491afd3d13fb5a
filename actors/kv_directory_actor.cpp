#include "actors/kv_directory_actor.h"

#include <memory>
#include <utility>

namespace seer {

KvDirectoryActor::KvDirectoryActor(rt::self_ptr<KvDirectoryActor> self_in) : self(self_in) {
  // A dead node's blocks are lost; owners that miss them prefill again. It comes back with KvNodeUp, empty.
  rt::on_down(self, [this](const rt::down& message) {
    for (auto it = nodes.begin(); it != nodes.end(); ++it) {
      if (!rt::is_source(message, it->second)) continue;
      for (auto& [owner, where] : holders) where.erase(it->first);
      nodes.erase(it);
      return;
    }
  });
}

KvDirectoryActor::handle::behavior_type KvDirectoryActor::make_behavior() {
  return {
      [this](const KvNodeUp& up) { on_node_up(up); },
      [this](const KvHolds& holds) { on_holds(holds); },
      [this](const FindHolders& find) { on_find(find); },
      [this](const KvRelease& release) { on_release(release); },
      [this](const KvBump& bump) { on_bump(bump); },
      [this](const GetReport& ask) { return rt::gather<std::vector<KvNodeReport>>(self, nodes, ask); },
  };
}

void KvDirectoryActor::on_node_up(const KvNodeUp& up) {
  uint64_t& newest = epochs[up.node];
  if (up.epoch < newest) return;  // it died before its word of coming came here
  newest = up.epoch;
  nodes[up.node] = up.handle;
  rt::monitor(self, up.handle);
  if (version > WeightVersion{}) rt::tell(self, up.handle, KvBump{version});
}

void KvDirectoryActor::on_holds(const KvHolds& holds) {
  if (!released.contains(holds.owner)) {
    holders[holds.owner].insert(holds.node);
  } else if (auto node = nodes.find(holds.node); node != nodes.end()) {
    rt::tell(self, node->second, KvRelease{holds.owner});  // the word of its end was faster
  }
}

/// Who keeps the request's own blocks comes first: it most likely has the prompt too.
void KvDirectoryActor::on_find(const FindHolders& find) {
  KvHolders answer{find.op, {}};
  std::set<NodeId> listed = {find.asking};
  for (KvOwner owner : {find.owner, group_of(find.owner)})
    if (auto it = holders.find(owner); it != holders.end())
      for (NodeId id : it->second)
        if (auto node = nodes.find(id); node != nodes.end() && listed.insert(id).second)
          answer.sources.push_back(node->second);
  rt::tell(self, find.reply_to, std::move(answer));
}

void KvDirectoryActor::on_release(const KvRelease& release) {
  if (released.insert(release.owner).second) released_order.push_back(release.owner);
  if (released.size() > kReleasedMax) {
    released.erase(released_order.front());
    released_order.pop_front();
  }
  auto it = holders.find(release.owner);
  if (it == holders.end()) return;
  for (NodeId id : it->second)
    if (auto node = nodes.find(id); node != nodes.end()) rt::tell(self, node->second, release);
  holders.erase(it);
}

void KvDirectoryActor::on_bump(const KvBump& bump) {
  if (bump.version <= version) return;
  version = bump.version;
  for (auto& [id, node] : nodes) rt::tell(self, node, bump);
}

}  // namespace seer
