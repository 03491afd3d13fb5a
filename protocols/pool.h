// Pool messages: how instances, KV nodes and the KV directory speak of blocks. Bytes never travel in these: they are
// written to and read from the arena of the instance's machine, or move over the transport.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "protocols/kv.h"
#include "protocols/rollout.h"

namespace seer {

/// Who keeps a block: a request (its own tokens), or a group (the prompt that its requests share). Ordered by rollout first.
struct KvOwner {
  uint64_t value = 0;  // group index << 32 | sample, which is 0xffffffff for the group
  RolloutId rollout = {};
  constexpr bool operator==(const KvOwner&) const = default;
  constexpr auto operator<=>(const KvOwner& other) const {
    return rollout == other.rollout ? value <=> other.value : rollout <=> other.rollout;
  }
  SEER_FIELDS(KvOwner, value, rollout)
};
inline std::ostream& operator<<(std::ostream& out, KvOwner owner) { return out << owner.rollout << ":" << owner.value; }
constexpr KvOwner owner_of(RequestId r) { return {uint64_t{r.group.index} << 32 | r.sample, r.group.rollout}; }
constexpr KvOwner owner_of(GroupId g) { return {uint64_t{g.index} << 32 | 0xffffffffu, g.rollout}; }
/// The group that a request's owner belongs to.
constexpr KvOwner group_of(KvOwner request) { return {request.value | 0xffffffffu, request.rollout}; }

enum class GrantState : uint8_t {
  kWrite = 0,  // the slot is yours: fill it, then KvSeal, or KvAbort
  kHere,       // the pool has it, or another writer is filling it: held for the owner, nothing to write
  kLater,      // no room yet, but some is being made: ask again for this block and those after it
  kRefused,    // waiting will not help: weights too old, no room, or a wrong chain index. Computed again when it is needed
};
struct KvGrant {
  GrantState state = GrantState::kRefused;
  uint32_t slot = 0;
  uint64_t token = 0;  // names this write; a completion with another token is ignored
  SEER_FIELDS(KvGrant, state, slot, token)
};

/// Asks for room for blocks about to leave the device; blocks[0] is the owner's block number first_index. With `park` the
/// chunk is ending: the answer waits until at least one block has room (the node bounds how many wait), and the owner's
/// blocks may be spilled from now on, the largest next_use first. Otherwise the answer is immediate.
struct KvReservation {
  uint64_t op = 0;
  KvOwner owner;
  std::vector<BlockRef> blocks;
  uint32_t first_index = 0;
  bool prompt = false;  // blocks that the requests of a group share
  bool park = false;
  uint64_t next_use = 0;
  SEER_FIELDS(KvReservation, op, owner, blocks, first_index, prompt, park, next_use)
};
struct KvReserved {
  uint64_t op = 0;
  std::vector<KvGrant> grants;  // one per block
  SEER_FIELDS(KvReserved, op, grants)
};
struct KvWritten {
  uint64_t token = 0;
  uint32_t crc32c = 0;
  SEER_FIELDS(KvWritten, token, crc32c)
};
struct KvSeal {
  std::vector<KvWritten> blocks;
  SEER_FIELDS(KvSeal, blocks)
};
struct KvAbort {
  std::vector<uint64_t> tokens;
  SEER_FIELDS(KvAbort, tokens)
};

/// Asks for the longest prefix of `blocks` that the pool has. The lease holds until closed. Its owner counts as running.
struct KvOpening {
  uint64_t op = 0;
  KvOwner owner;                // a request
  std::vector<BlockRef> blocks;
  uint32_t first_index = 0;     // index of blocks[0] in the request's sequence
  uint32_t prompt_blocks = 0;   // this many blocks at the start of the sequence belong to the group
  bool lend = false;            // another node asks: answer with what is here, fetch nothing
  SEER_FIELDS(KvOpening, op, owner, blocks, first_index, prompt_blocks, lend)
};
struct KvOpenedBlock {
  uint32_t slot = 0;
  uint64_t generation = 0;  // of the slot, for readers on other machines
  uint32_t crc32c = 0;
  SEER_FIELDS(KvOpenedBlock, slot, generation, crc32c)
};
struct KvOpened {
  uint64_t op = 0;
  uint64_t lease = 0;                  // of all blocks; 0 if there are none
  std::vector<KvOpenedBlock> blocks;   // for the first blocks.size() blocks asked for
  NodeId node;                         // where they are, and the epoch of its arena
  uint64_t epoch = 0;
  SEER_FIELDS(KvOpened, op, lease, blocks, node, epoch)
};
/// Gives a lease back.
struct KvClose {
  uint64_t lease = 0;
  std::vector<BlockKey> corrupt;     // their bytes did not match their checksum: the node drops that copy
  std::vector<BlockKey> taken = {};  // of a KvMove: the reader keeps them, so the node may drop its copy
  SEER_FIELDS(KvClose, lease, corrupt, taken)
};
/// Blocks that shall leave a machine whose DRAM is full: consecutive ones of an owner. Nothing changes them until KvClose.
struct KvMove {
  uint64_t lease = 0;                 // of all blocks
  KvOwner owner;
  std::vector<BlockRef> blocks;
  std::vector<KvOpenedBlock> slots;   // where each of them is
  uint32_t first_index = 0;           // of blocks[0] in the owner's chain
  bool prompt = false;
  uint64_t next_use = 0;              // as in KvReservation
  bool has_cold = false;              // the machine can write them to a cold tier instead
  SEER_FIELDS(KvMove, lease, owner, blocks, slots, first_index, prompt, next_use, has_cold)
};

/// Frees all blocks that only this owner keeps. `copied`: another node has them all now, and the directory does not know.
struct KvRelease {
  KvOwner owner;
  bool copied = false;
  SEER_FIELDS(KvRelease, owner, copied)
};
/// KV below this weight version is refused and dropped from now on.
struct KvBump {
  WeightVersion version;
  SEER_FIELDS(KvBump, version)
};

struct KvNodeReport {
  NodeId node;
  int64_t dram_capacity_bytes = 0, dram_used_bytes = 0, dram_peak_bytes = 0;
  int64_t cold_capacity_bytes = 0, cold_used_bytes = 0;
  int64_t spilled_bytes = 0, promoted_bytes = 0;
  int64_t dropped_blocks = 0, corrupt_blocks = 0, refused_blocks = 0;
  int64_t sealed_blocks = 0, opened_blocks = 0;
  int64_t fetched_bytes = 0;    // of blocks from other nodes, for openings here
  int64_t moved_bytes = 0;      // of blocks that went to the DRAM of other nodes, for lack of room here
  int64_t guest_bytes = 0;      // of blocks that came from other nodes for lack of room there
  int64_t fetch_failures = 0;   // blocks that did not arrive intact: recomputed
  int64_t kept_requests = 0;    // whose KV is here
  std::vector<std::string> peers;  // how blocks arrive from each node that sent some: "node 2: network (tcp)"
  int64_t cold_cpu_us = 0;
  int64_t cold_failures = 0;    // reads and writes of the cold tier that failed, for lack of space or otherwise
  SEER_FIELDS(KvNodeReport, node, dram_capacity_bytes, dram_used_bytes, dram_peak_bytes, cold_capacity_bytes,
              cold_used_bytes, spilled_bytes, promoted_bytes, dropped_blocks, corrupt_blocks, refused_blocks,
              sealed_blocks, opened_blocks, fetched_bytes, moved_bytes, guest_bytes, fetch_failures, kept_requests, peers, cold_cpu_us, cold_failures)
};

}  // namespace seer

template <>
struct std::hash<seer::KvOwner> {
  size_t operator()(seer::KvOwner owner) const { return owner.value ^ seer::spread(owner.rollout); }
};
