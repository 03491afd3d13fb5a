// What the tests of KV nodes share.
#pragma once
#include <vector>

#include "actors/recorder.h"
#include "protocols/actors.h"

namespace seer {

constexpr int64_t kBlockBytes = 64;
constexpr RequestId kRequest{GroupId{1}, 2};
constexpr KvOwner kOwner = owner_of(kRequest);

using Client = Recorder<KvClient, KvReserved, KvOpened>;

/// A directory that says nothing, like one whose machine is gone.
struct SilentDirectory {
  using handle = KvDirectoryHandle;
  static constexpr const char* kActorName = "silent_directory";
  explicit SilentDirectory(rt::self_ptr<SilentDirectory>) {}
  handle::behavior_type make_behavior() {
    return {[](const KvNodeUp&) {}, [](const KvHolds&) {}, [](const KvLetGo&) {}, [](const KvDraining&) {}, [](const FindHolders&) {},
            [](const KvRoom&) {}, [](const FindRoom&) {}, [](const KvRelease&) {}, [](const KvDropRollout&) {}, [](const KvKeepRollouts&) {},
            [](const KvRolloutReturned&) {}, [](const KvBump&) {}, [](const GetReport&) { return std::vector<KvNodeReport>(); }};
  }
};

/// A KV node that says nothing, like one whose machine is gone.
struct SilentNode {
  using handle = KvNodeHandle;
  static constexpr const char* kActorName = "silent_node";
  explicit SilentNode(rt::self_ptr<SilentNode>) {}
  handle::behavior_type make_behavior() {
    return {[](const ReserveBlocks&) {}, [](const OpenBlocks&) {}, [](const KvSeal&) {}, [](const KvAbort&) {},
            [](const KvClose&) {}, [](const KvRelease&) {}, [](const KvBump&) {}, [](const WorkReady&) {},
            [](const KvHolders&) {}, [](const TakeBlocks&) {}, [](const KvRoomFound&) {}, [](const KvReserved&) {}, [](const KvOpened&) {},
            [](const KvRefused&) {}, [](const DirectoryUp&) {},
            [](const Tick&) {}, [](const GetReport&) { return KvNodeReport{}; }};
  }
};

}  // namespace seer
