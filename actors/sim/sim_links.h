// Links: actors that simulate the network between machines in a SimCluster. They pass messages on in order, some late,
// some never. What the runtime tolerates:
//   may be lost        RunChunk, ChunkProgress, ChunkDone (the rollout notices the gap or the silence, and restarts the
//                      instance), CancelChunk (the chunk runs to its end), FindHolders and FindRoom (the node goes on with
//                      what it has), and all messages to and from draft servers (drafts get worse)
//   may only be late   DropChunks, YieldChunks, UpdateInstance, DraftServers, all others to the directory (KvNodeUp, KvHolds, ...)
// All others are delivered at once: InstanceUp, InstancesDraining, PartLost, messages within a machine, and messages between KV
// nodes. There a lost KvClose or KvRelease would keep memory for the rest of the iteration; in a real network the broken
// connection shows as DOWN.
#pragma once
#include <algorithm>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "protocols/actors.h"

namespace seer {

/// Called for each message. Empty: every message arrives at once.
struct SimLinkFaults {
  std::function<bool()> is_lost = {};        // for messages that may be lost
  std::function<int64_t()> late_us = {};
  bool splits_chunk_ends = false;  // a planted bug: the last tokens of a chunk are sent apart from its ChunkDone
};

/// One direction of a link.
class SimWire {
 public:
  explicit SimWire(const SimLinkFaults* faults) : faults_(faults) {}

  template <class Self, class Dest, class Message>
  void send_or_lose(Self* self, const Dest& to, Message message) {
    if (!faults_->is_lost || !faults_->is_lost()) send(self, to, std::move(message));
  }
  template <class Self, class Dest, class Message>
  void send(Self* self, const Dest& to, Message message) {
    const int64_t late_us = faults_->late_us ? faults_->late_us() : 0, now = rt::now_us(self);
    if (late_us == 0 && now > last_us_) return rt::tell(self, to, std::move(message));
    last_us_ = std::max(last_us_, now + late_us - 1) + 1;  // after the last message
    rt::tell_after(self, last_us_ - now, to, std::move(message));
  }

 private:
  const SimLinkFaults* faults_;
  int64_t last_us_ = -1;  // when the last message arrives
};

/// Carries what an instance tells the rollout. Ends with the rollout.
struct ChunkSinkLink {
  using handle = ChunkSink;
  static constexpr const char* kActorName = "chunk_sink_link";
  ChunkSinkLink(rt::self_ptr<ChunkSinkLink> self_in, ChunkSink to_in, const SimLinkFaults* faults)
      : self(self_in), to(std::move(to_in)), splits_ends(faults->splits_chunk_ends), wire(faults) {
    rt::on_down(self, [this](const rt::down&) { self->quit(); });
    rt::monitor(self, to);
  }
  handle::behavior_type make_behavior() {
    return {[this](const ChunkProgress& progress) { wire.send_or_lose(self, to, progress); },
            [this](ChunkDone& done) {
              if (splits_ends) {
                wire.send_or_lose(self, to, ChunkProgress{done.instance, {done.last}, done.kv_blocks_used});
                done.last = {done.chunk, done.last.first_index + std::ssize(done.last.output.ids)};
              }
              wire.send_or_lose(self, to, std::move(done));
            }};
  }
  rt::self_ptr<ChunkSinkLink> self;
  ChunkSink to;
  bool splits_ends;
  SimWire wire;
};

/// An instance as the rollout on another machine sees it. Each of the two ends with the other.
struct InstanceLink {
  using handle = InstanceHandle;
  static constexpr const char* kActorName = "instance_link";
  InstanceLink(rt::self_ptr<InstanceLink> self_in, InstanceHandle to_in, const SimLinkFaults* faults_in)
      : self(self_in), to(std::move(to_in)), faults(faults_in), wire(faults_in) {
    rt::on_down(self, [this](const rt::down&) { self->quit(); });
    rt::monitor(self, to);
  }
  ~InstanceLink() { rt::stop(to); }
  handle::behavior_type make_behavior() {
    return {[this](RunChunk& chunk) {
              if (!back) back = rt::spawn<ChunkSinkLink>(self->system(), chunk.reply_to, faults);
              chunk.reply_to = back;
              wire.send_or_lose(self, to, std::move(chunk));
            },
            [this](UseInstance& use) {
              if (!back) back = rt::spawn<ChunkSinkLink>(self->system(), use.reply_to, faults);
              use.reply_to = back;
              wire.send(self, to, use);
            },
            [this](const CancelChunk& cancel) { wire.send_or_lose(self, to, cancel); },
            [this](const DropChunks& drop) { wire.send(self, to, drop); },
            [this](const YieldChunks& yield) { wire.send(self, to, yield); },
            [this](const UpdateInstance& update) { wire.send(self, to, update); },
            [](const WorkReady&) {},
            [](const Tick&) {},
            [](const KvReserved&) {},
            [](const KvOpened&) {},
            [this](const DraftServers& servers) { wire.send(self, to, servers); },
            [](const CstFetched&) {},
            [this](const GetReport& ask) { return self->delegate(to, ask); }};
  }
  rt::self_ptr<InstanceLink> self;
  InstanceHandle to;
  const SimLinkFaults* faults;
  SimWire wire;
  ChunkSink back;
};

/// An instance as a draft server on another machine sees it.
struct DraftClientLink {
  using handle = DraftClient;
  static constexpr const char* kActorName = "draft_client_link";
  DraftClientLink(rt::self_ptr<DraftClientLink> self_in, DraftClient to_in, const SimLinkFaults* faults)
      : self(self_in), to(std::move(to_in)), wire(faults) {}
  handle::behavior_type make_behavior() {
    return {[this](const CstFetched& answer) { wire.send_or_lose(self, to, answer); }};
  }
  rt::self_ptr<DraftClientLink> self;
  DraftClient to;
  SimWire wire;
};

/// A draft server as actors on other machines see it: all messages to it may be lost. Ends with the server.
struct DraftServerLink {
  using handle = DraftServerHandle;
  static constexpr const char* kActorName = "draft_server_link";
  DraftServerLink(rt::self_ptr<DraftServerLink> self_in, DraftServerHandle to_in, const SimLinkFaults* faults_in)
      : self(self_in), to(std::move(to_in)), faults(faults_in), wire(faults_in) {
    rt::on_down(self, [this](const rt::down&) { self->quit(); });
    rt::monitor(self, to);
  }
  handle::behavior_type make_behavior() {
    return {[this](const RegisterGroups& groups) { wire.send_or_lose(self, to, groups); },
            [this](const RegisterPast& past) { wire.send_or_lose(self, to, past); },
            [this](const DropGroup& over) { wire.send_or_lose(self, to, over); },
            [this](const UpdateCst& update) { wire.send_or_lose(self, to, update); },
            [this](FetchCst& fetch) {
              DraftClient& back = clients[fetch.reply_to];
              if (!back) back = rt::spawn<DraftClientLink>(self->system(), fetch.reply_to, faults);
              fetch.reply_to = back;
              wire.send_or_lose(self, to, std::move(fetch));
            },
            [](const Tick&) {},
            [this](const GetReport& ask) { return self->delegate(to, ask); }};
  }
  rt::self_ptr<DraftServerLink> self;
  DraftServerHandle to;
  const SimLinkFaults* faults;
  SimWire wire;
  std::map<DraftClient, DraftClient> clients;
};

/// Puts a link before each instance and draft server that a node announces.
struct InstanceSinkLink {
  using handle = InstanceSink;
  static constexpr const char* kActorName = "instance_sink_link";
  InstanceSinkLink(rt::self_ptr<InstanceSinkLink> self_in, InstanceSink to_in, const SimLinkFaults* faults_in)
      : self(self_in), to(std::move(to_in)), faults(faults_in) {}
  handle::behavior_type make_behavior() {
    return {[this](InstanceUp& up) {
      InstanceHandle& link = links[up.handle];
      if (!link) link = rt::spawn<InstanceLink>(self->system(), up.handle, faults);
      up.handle = link;
      rt::tell(self, to, std::move(up));
    },
            [this](DraftServerUp& up) {
              up.handle = servers.emplace_back(rt::spawn<DraftServerLink>(self->system(), up.handle, faults));
              rt::tell(self, to, std::move(up));
            },
            [this](const InstancesDraining& leaving) { rt::tell(self, to, leaving); },
            [this](const PartLost& lost) { rt::tell(self, to, lost); }};
  }
  rt::self_ptr<InstanceSinkLink> self;
  InstanceSink to;
  const SimLinkFaults* faults;
  std::map<InstanceHandle, InstanceHandle> links;  // kept, because a link without a handle ends, and its instance with it
  std::vector<DraftServerHandle> servers;
};

/// The directory as a KV node on another machine sees it.
struct DirectoryLink {
  using handle = KvDirectoryHandle;
  static constexpr const char* kActorName = "directory_link";
  DirectoryLink(rt::self_ptr<DirectoryLink> self_in, KvDirectoryHandle to_in, const SimLinkFaults* faults)
      : self(self_in), to(std::move(to_in)), wire(faults) {}
  handle::behavior_type make_behavior() {
    return {[this](const KvNodeUp& up) { wire.send(self, to, up); },
            [this](const KvHolds& holds) { wire.send(self, to, holds); },
            [this](const KvLetGo& left) { wire.send(self, to, left); },
            [this](const KvDraining& node) { wire.send(self, to, node); },
            [this](const FindHolders& find) { wire.send_or_lose(self, to, find); },
            [this](const KvRoom& room) { wire.send(self, to, room); },
            [this](const FindRoom& find) { wire.send_or_lose(self, to, find); },
            [this](const KvRelease& release) { wire.send(self, to, release); },
            [this](const KvDropRollout& drop) { wire.send(self, to, drop); },
            [this](const KvKeepRollouts& keep) { wire.send(self, to, keep); },
            [this](const KvRolloutReturned& returned) { wire.send(self, to, returned); },
            [this](const KvBump& bump) { wire.send(self, to, bump); },
            [this](const GetReport& ask) { return self->delegate(to, ask); }};
  }
  rt::self_ptr<DirectoryLink> self;
  KvDirectoryHandle to;
  SimWire wire;
};

}  // namespace seer
