// Relays: actors in front of the machines of a cluster. They pass all messages on, and report chunks that come and go to a
// ChunkWatcher. So a benchmark sees the messages between an instance and its rollout without changing either.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "protocols/actors.h"

namespace seer {

/// Called on the thread of the actors.
class ChunkWatcher {
 public:
  virtual ~ChunkWatcher() = default;
  virtual void instance_up(InstanceId) {}
  virtual void instance_lost(InstanceId) {}
  virtual void chunk_came(InstanceId, const RunChunk&) = 0;
  virtual void tokens_came(InstanceId, const ChunkTokens&) {}
  virtual void chunk_done(InstanceId, const ChunkDone&) = 0;
};

/// Before the sink that an instance tells of its chunks.
struct ChunkSinkRelay {
  using handle = ChunkSink;
  static constexpr const char* kActorName = "chunk_sink_relay";
  ChunkSinkRelay(rt::self_ptr<ChunkSinkRelay> self_in, ChunkSink to_in, InstanceId instance_in,
                 std::shared_ptr<ChunkWatcher> watcher_in)
      : self(self_in), to(std::move(to_in)), instance(instance_in), watcher(std::move(watcher_in)) {}
  handle::behavior_type make_behavior() {
    return {[this](ChunkProgress& progress) {
              for (const ChunkTokens& part : progress.chunks) watcher->tokens_came(instance, part);
              rt::tell(self, to, std::move(progress));
            },
            [this](ChunkDone& done) {
              watcher->chunk_done(instance, done);
              rt::tell(self, to, std::move(done));
            }};
  }
  rt::self_ptr<ChunkSinkRelay> self;
  ChunkSink to;
  InstanceId instance;
  std::shared_ptr<ChunkWatcher> watcher;
};

/// Before an instance. Ends with it.
struct InstanceRelay {
  using handle = InstanceHandle;
  static constexpr const char* kActorName = "instance_relay";
  InstanceRelay(rt::self_ptr<InstanceRelay> self_in, InstanceHandle to_in, InstanceId instance_in,
                std::shared_ptr<ChunkWatcher> watcher_in)
      : self(self_in), to(std::move(to_in)), instance(instance_in), watcher(std::move(watcher_in)) {
    rt::on_down(self, [this](const rt::down&) {
      watcher->instance_lost(instance);
      self->quit();
    });
    rt::monitor(self, to);
  }
  handle::behavior_type make_behavior() {
    return {[this](RunChunk& chunk) {
              watcher->chunk_came(instance, chunk);
              if (!back) back = rt::spawn<ChunkSinkRelay>(self->system(), chunk.reply_to, instance, watcher);
              chunk.reply_to = back;
              rt::tell(self, to, std::move(chunk));
            },
            [this](const CancelChunk& cancel) { rt::tell(self, to, cancel); },
            [this](const DropChunks& drop) { rt::tell(self, to, drop); },
            [this](const YieldChunks& yield) { rt::tell(self, to, yield); },
            [this](UseInstance& use) {
              if (!back) back = rt::spawn<ChunkSinkRelay>(self->system(), use.reply_to, instance, watcher);
              use.reply_to = back;
              rt::tell(self, to, use);
            },
            [this](const UpdateInstance& update) { rt::tell(self, to, update); },
            [](const WorkReady&) {},
            [](const Tick&) {},
            [](const KvReserved&) {},
            [](const KvOpened&) {},
            [this](const DraftServers& servers) { rt::tell(self, to, servers); },
            [](const CstFetched&) {},
            [this](const GetReport& ask) { return self->delegate(to, ask); }};
  }
  rt::self_ptr<InstanceRelay> self;
  InstanceHandle to;
  InstanceId instance;
  std::shared_ptr<ChunkWatcher> watcher;
  ChunkSink back;  // of the one rollout
};

/// Before a rollout: puts a relay before each instance that it is told of.
struct RolloutRelay {
  using handle = InstanceSink;
  static constexpr const char* kActorName = "rollout_relay";
  RolloutRelay(rt::self_ptr<RolloutRelay> self_in, InstanceSink to_in, std::shared_ptr<ChunkWatcher> watcher_in)
      : self(self_in), to(std::move(to_in)), watcher(std::move(watcher_in)) {}
  handle::behavior_type make_behavior() {
    return {[this](InstanceUp& up) {
              watcher->instance_up(up.instance);
              up.handle = relays.emplace_back(rt::spawn<InstanceRelay>(self->system(), up.handle, up.instance, watcher));
              rt::tell(self, to, std::move(up));
            },
            [this](const DraftServerUp& up) { rt::tell(self, to, up); },
            [this](const InstancesDraining& leaving) { rt::tell(self, to, leaving); },
            [this](const PartLost& lost) { rt::tell(self, to, lost); }};
  }
  rt::self_ptr<RolloutRelay> self;
  InstanceSink to;
  std::shared_ptr<ChunkWatcher> watcher;
  std::vector<InstanceHandle> relays;  // kept: an actor without a handle ends
};

/// Before a machine: puts a relay before each rollout that attaches.
struct NodeRelay {
  using handle = NodeHandle;
  static constexpr const char* kActorName = "node_relay";
  NodeRelay(rt::self_ptr<NodeRelay> self_in, NodeHandle to_in, std::shared_ptr<ChunkWatcher> watcher_in)
      : self(self_in), to(std::move(to_in)), watcher(std::move(watcher_in)) {}
  handle::behavior_type make_behavior() {
    return {[this](AttachRollout& attach) {
              attach.reply_to = relays.emplace_back(rt::spawn<RolloutRelay>(self->system(), attach.reply_to, watcher));
              rt::tell(self, to, std::move(attach));
            },
            [this](const UpdateWeights& update) { rt::tell(self, to, update); },
            [this](const WeightPart& part) { rt::tell(self, to, part); },
            [this](const InstanceWeights& weights) { rt::tell(self, to, weights); },
            [this](const DrainNode& drain) { rt::tell(self, to, drain); },
            [this](const DirectoryUp& up) { rt::tell(self, to, up); },
            [](const Tick&) {},
            [](const WorkReady&) {},
            [this](const GetReport& ask) { return self->delegate(to, ask); }};
  }
  rt::self_ptr<NodeRelay> self;
  NodeHandle to;
  std::shared_ptr<ChunkWatcher> watcher;
  std::vector<InstanceSink> relays;
};

}  // namespace seer
