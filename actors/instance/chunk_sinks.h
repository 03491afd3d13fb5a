// ChunkSinks: whom an instance tells of its chunks, by rollout. Used by InstanceActor and ServedInstanceActor. Owned by one actor.
#pragma once
#include <map>
#include <optional>
#include <utility>

#include "protocols/actors.h"
#include "protocols/rt.h"

namespace seer {

class ChunkSinks {
 public:
  /// From now on `self` tells this sink of the rollout's chunks, and hears when it is down.
  template <class Self>
  void note(Self* self, RolloutId rollout, const ChunkSink& to) {
    ChunkSink& sink = sinks_[rollout];
    if (sink == to) return;
    sink = to;
    rt::monitor(self, sink);
  }
  /// REQUIRES: note() named one.
  const ChunkSink& of(RolloutId rollout) const { return sinks_.at(rollout); }
  /// The rollout whose sink is down. Nothing: it is that of none.
  std::optional<RolloutId> lost(const rt::down& message) const {
    for (const auto& [rollout, sink] : sinks_)
      if (rt::is_source(message, sink)) return rollout;
    return std::nullopt;
  }
  void erase(RolloutId rollout) { sinks_.erase(rollout); }
  bool empty() const { return sinks_.empty(); }
  auto begin() const { return sinks_.begin(); }
  auto end() const { return sinks_.end(); }

 private:
  std::map<RolloutId, ChunkSink> sinks_;
};

}  // namespace seer
