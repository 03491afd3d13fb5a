// Actors: the handle of every actor, the messages that carry handles, and the one block that registers all messages.
// Include exactly this header wherever a message is sent or handled (ids are counted in order: append only).
#pragma once
#include <string>
#include <vector>

#include "protocols/chunk.h"
#include "protocols/cluster.h"
#include "protocols/draft.h"
#include "protocols/kv.h"
#include "protocols/pool.h"
#include "protocols/rollout.h"
#include "protocols/rt.h"
#include "protocols/token_log.h"

namespace seer {

// ---- small control messages ------------------------------------------------------------------------------------------
/// A timer of the actor itself. `kind` is a number of its own, and `of` what the timer is about.
struct Tick { uint32_t kind = 0; uint64_t of = 0; SEER_FIELDS(Tick, kind, of) };
/// An engine, a cold store, a transport or a maker has results for its owner to take.
struct WorkReady { uint64_t what = 0; SEER_FIELDS(WorkReady, what) };
/// Ends a rollout in order; the responses that finished were sent already.
struct StopRollout { uint64_t what = 0; SEER_FIELDS(StopRollout, what) };
struct GetReport { uint64_t what = 0; SEER_FIELDS(GetReport, what) };
/// The context manager's answer to LengthSeen.
struct GroupEstimate {
  GroupId group;
  int64_t estimated_tokens = 0;
  SEER_FIELDS(GroupEstimate, group, estimated_tokens)
};
/// Ends a chunk at once. The answer is a ChunkDone with ChunkEnd::kAborted and all tokens. Ignored if the chunk is already
/// ending or gone.
struct CancelChunk { ChunkId chunk; SEER_FIELDS(CancelChunk, chunk) };
/// The rollout is over: ends all of its chunks on an instance, without an answer.
struct DropChunks { RolloutId rollout; SEER_FIELDS(DropChunks, rollout) };
/// The machine is being drained: ends all chunks early, keeps their KV in the pool and accepts no new ones.
struct YieldChunks { uint64_t what = 0; SEER_FIELDS(YieldChunks, what) };

// ---- chunks ------------------------------------------------------------------------------------------------------------
using ChunkSink = rt::iface<rt::oneway<ChunkProgress>, rt::oneway<ChunkDone>>;

/// A TokenLog travels as its list of tokens and how many of them are the prompt. Defined in protocols/messages.cpp, as for all messages.
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, TokenLog& log);

/// A rollout with these weights will send chunks: the instance keeps its weights until DropChunks. Without effect if it has others.
struct UseInstance {
  RolloutId rollout;
  WeightVersion version;
  ChunkSink reply_to;
  SEER_FIELDS(UseInstance, rollout, version, reply_to)
};

/// Run one chunk of a request. All that an instance needs is in here; KV comes from its device, the pool, or a prefill.
struct RunChunk {
  ChunkId chunk;
  RequestId request;
  WeightVersion version;
  TokenLog log;
  int64_t computed_tokens = 0;  // tokens of the log whose KV was computed before; it may have been lost since
  int64_t max_new_tokens = 0;   // length of the chunk
  SamplingParams sampling;
  uint64_t seed = 0;
  uint64_t yield_rank = 0;      // when KV runs short, the running chunk with the largest rank gives way first
  bool keep_kv = true;          // false: its KV never goes to the pool; it is dropped and recomputed
  bool is_live = false;         // as in GroupSpec
  std::vector<GroupId> over;    // groups that ran on this instance and are over: none of their requests will run again
  ChunkSink reply_to;
  SEER_FIELDS(RunChunk, chunk, request, version, log, computed_tokens, max_new_tokens, sampling, seed, yield_rank, keep_kv,
              is_live, over, reply_to)
};

// ---- KV pool -------------------------------------------------------------------------------------------------------------
using KvClient = rt::iface<rt::oneway<KvReserved>, rt::oneway<KvOpened>>;
struct ReserveBlocks {
  KvReservation what;
  KvClient reply_to;
  SEER_FIELDS(ReserveBlocks, what, reply_to)
};
struct OpenBlocks {
  KvOpening what;
  KvClient reply_to;
  SEER_FIELDS(OpenBlocks, what, reply_to)
};

/// What one KV node asks of another: lend blocks, take a lease back, forget an owner whose blocks were copied.
using KvSource = rt::iface<rt::oneway<OpenBlocks>, rt::oneway<KvClose>, rt::oneway<KvRelease>>;
/// A node that may lend blocks, and how the transport reaches its arena.
struct KvLender {
  KvSource handle;
  NodeId node;
  uint64_t epoch = 0;
  std::string address;
  SEER_FIELDS(KvLender, handle, node, epoch, address)
};
/// The directory's answer to FindHolders: other nodes that keep blocks of the owner or of its group.
struct KvHolders {
  uint64_t op = 0;
  std::vector<KvLender> sources;
  SEER_FIELDS(KvHolders, op, sources)
};
using KvHoldersSink = rt::iface<rt::oneway<KvHolders>>;
struct FindHolders {
  uint64_t op = 0;
  NodeId asking;
  KvOwner owner;
  KvHoldersSink reply_to;
  SEER_FIELDS(FindHolders, op, asking, owner, reply_to)
};

/// Asks a node with room to take blocks. It answers KvClose, with those that it took.
struct TakeBlocks {
  KvMove what;
  KvLender from;
  SEER_FIELDS(TakeBlocks, what, from)
};
using KvTaker = rt::iface<rt::oneway<TakeBlocks>>;
/// How many more blocks a node takes from machines whose DRAM is full. Sent when that has changed much.
struct KvRoom {
  NodeId node;
  int64_t blocks = 0;       // from a machine with a cold tier of its own
  int64_t last_blocks = 0;  // from one without: may be more, because this node can write others to its cold tier
  bool is_kv_only = false;   // it has no instances, so its DRAM is for others
  SEER_FIELDS(KvRoom, node, blocks, last_blocks, is_kv_only)
};
/// The answer to FindRoom: a node that takes this many blocks from the one that asked.
struct KvRoomFound {
  int64_t blocks = 0;  // 0: there is none, and `node` and `taker` are not set
  NodeId node;
  KvTaker taker;
  SEER_FIELDS(KvRoomFound, blocks, node, taker)
};
using KvRoomSink = rt::iface<rt::oneway<KvRoomFound>>;
struct FindRoom {
  NodeId asking;
  int64_t blocks = 0;          // wanted
  bool has_cold = false;       // the asking node can write to a cold tier instead
  std::vector<NodeId> except;  // nodes that took nothing lately
  KvRoomSink reply_to;
  SEER_FIELDS(FindRoom, asking, blocks, has_cold, except, reply_to)
};

/// The directory refuses this node; `why` is one sentence.
struct KvRefused {
  std::string why;
  SEER_FIELDS(KvRefused, why)
};

/// A KV node as the directory sees it.
using KvMember = rt::iface<rt::oneway<OpenBlocks>, rt::oneway<TakeBlocks>, rt::oneway<KvClose>, rt::oneway<KvRelease>, rt::oneway<KvBump>, rt::oneway<KvRefused>,
                           rt::rpc<GetReport, KvNodeReport>>;
/// Epochs of one start of a machine: each restart of its KV node takes the next one.
inline constexpr uint64_t kEpochsOfStart = uint64_t{1} << 20;
/// A KV node has started or restarted. It sends KvHolds the first time it keeps a block for an owner.
struct KvNodeUp {
  NodeId node;
  KvMember handle;
  uint64_t epoch = 0;        // of its arena: rises at every restart of the node
  std::string address = {};  // by which other nodes open its arena (KvTransport); empty: they cannot
  ClusterIdentity identity = {};
  SEER_FIELDS(KvNodeUp, node, handle, epoch, address, identity)
};
/// `guest`: the blocks came from a machine whose DRAM was full. The owner has not run here since.
struct KvHolds {
  NodeId node;
  KvOwner owner;
  bool guest = false;
  SEER_FIELDS(KvHolds, node, owner, guest)
};
/// The node keeps nothing of the owner any more, because another node copied all of it.
struct KvLetGo {
  NodeId node;
  KvOwner owner;
  SEER_FIELDS(KvLetGo, node, owner)
};
/// The node will leave. It drops a request's blocks once another node keeps blocks of that request.
struct KvDraining { NodeId node; SEER_FIELDS(KvDraining, node) };
/// A rollout has died: releases everything it kept.
struct KvDropRollout { RolloutId rollout; SEER_FIELDS(KvDropRollout, rollout) };
/// Only these rollouts are left of those with ids up to `last` (ids come from a clock). Releases what the others kept.
struct KvKeepRollouts {
  RolloutId last;
  std::vector<RolloutId> rollouts;
  SEER_FIELDS(KvKeepRollouts, last, rollouts)
};
/// A rollout that was said to be over has come back.
struct KvRolloutReturned { RolloutId rollout; SEER_FIELDS(KvRolloutReturned, rollout) };
using KvDirectoryHandle = rt::iface<rt::oneway<KvNodeUp>, rt::oneway<KvHolds>, rt::oneway<KvLetGo>, rt::oneway<KvDraining>, rt::oneway<FindHolders>,
                                    rt::oneway<KvRoom>, rt::oneway<FindRoom>, rt::oneway<KvRelease>, rt::oneway<KvDropRollout>, rt::oneway<KvKeepRollouts>,
                                    rt::oneway<KvRolloutReturned>, rt::oneway<KvBump>, rt::rpc<GetReport, std::vector<KvNodeReport>>>;
/// A new, empty directory replaces one that died. KV nodes tell it what they keep, rollouts what they released.
struct DirectoryUp { KvDirectoryHandle directory; SEER_FIELDS(DirectoryUp, directory) };

using KvNodeHandle =
    rt::iface<rt::oneway<ReserveBlocks>, rt::oneway<OpenBlocks>, rt::oneway<KvSeal>, rt::oneway<KvAbort>,
              rt::oneway<KvClose>, rt::oneway<KvRelease>, rt::oneway<KvBump>, rt::oneway<WorkReady>,
              rt::oneway<KvHolders>, rt::oneway<TakeBlocks>, rt::oneway<KvRoomFound>, rt::oneway<KvReserved>, rt::oneway<KvOpened>,
              rt::oneway<KvRefused>, rt::oneway<DirectoryUp>, rt::oneway<Tick>, rt::rpc<GetReport, KvNodeReport>>;

// ---- draft servers ---------------------------------------------------------------------------------------------------------
using DraftClient = rt::iface<rt::oneway<CstFetched>>;
/// Asks for the tokens of these groups that the sender lacks. Answered by CstFetched.
struct FetchCst {
  std::vector<CstCursor> groups;
  DraftClient reply_to;
  SEER_FIELDS(FetchCst, groups, reply_to)
};
using DraftServerHandle = rt::iface<rt::oneway<RegisterGroups>, rt::oneway<RegisterPast>, rt::oneway<DropGroup>,
                                    rt::oneway<UpdateCst>, rt::oneway<FetchCst>, rt::oneway<Tick>, rt::rpc<GetReport, DraftServerReport>>;
/// A draft server has started or restarted, empty.
struct DraftServerUp {
  NodeId node;
  DraftServerHandle handle;
  SEER_FIELDS(DraftServerUp, node, handle)
};
/// All running draft servers, by node; sent to every instance when the list changes.
struct DraftServers {
  std::vector<DraftServerUp> servers;
  SEER_FIELDS(DraftServers, servers)
};

// ---- weights ---------------------------------------------------------------------------------------------------------------
/// Outcome of a weight update on one instance. After an error (one sentence) the old weights stay in use.
struct InstanceWeights {
  InstanceId instance;
  WeightVersion version;  // in use now
  uint64_t kv_hash = 0;   // with them, as in BlockKey
  std::string error;
  SEER_FIELDS(InstanceWeights, instance, version, kv_hash, error)
};
struct WeightsUpdated {
  NodeId node;
  WeightVersion version;  // the one asked for
  std::string error;      // empty: all running instances use it; others load it before they are announced
  uint64_t weights = 0;   // checksum of the new weights (ClusterIdentity); 0: no instance took them
  SEER_FIELDS(WeightsUpdated, node, version, error, weights)
};
using WeightsSink = rt::iface<rt::oneway<WeightsUpdated>>;
using InstanceWeightsSink = rt::iface<rt::oneway<InstanceWeights>>;

/// Bytes of weights that a client sent to a server, in order. Asked for by machines, a few parts ahead.
struct WeightPart {
  WeightVersion version;
  uint64_t offset = 0;
  std::string bytes;  // at most kWeightPartBytes
  SEER_FIELDS(WeightPart, version, offset, bytes)
};
inline constexpr uint64_t kWeightPartBytes = uint64_t{1} << 20;
using WeightPartSink = rt::iface<rt::oneway<WeightPart>>;
/// Asks for the part at `offset`.
struct ReadWeights {
  WeightVersion version;
  uint64_t offset = 0;
  WeightPartSink reply_to;
  SEER_FIELDS(ReadWeights, version, offset, reply_to)
};
using WeightSourceHandle = rt::iface<rt::oneway<ReadWeights>>;

/// Loads weights of the same model while the old ones stay in use. An instance switches when the rollouts it works for are over.
struct NewWeights {
  WeightVersion version;           // higher than the one in use
  std::string folder;              // readable on each node; with a source only their name; empty: servers of others have them already
  WeightSourceHandle source = {};  // gives their bytes; null: they are read from the folder, or lie in this process
  uint64_t bytes = 0;              // from the source
  uint32_t crc = 0;                // CRC32C of these
  uint64_t weights = 0;            // their kv_hash (ClusterIdentity): others are refused; 0: not known yet
  SEER_FIELDS(NewWeights, version, folder, source, bytes, crc, weights)
};
/// Asks a node to update all of its instances. It answers once.
struct UpdateWeights {
  NewWeights what;
  WeightsSink reply_to;
  SEER_FIELDS(UpdateWeights, what, reply_to)
};
struct UpdateInstance {
  NewWeights what;
  InstanceWeightsSink reply_to;
  SEER_FIELDS(UpdateInstance, what, reply_to)
};

// ---- instances, nodes ------------------------------------------------------------------------------------------------------
using InstanceHandle = rt::iface<rt::oneway<RunChunk>, rt::oneway<CancelChunk>, rt::oneway<DropChunks>, rt::oneway<YieldChunks>,
                                 rt::oneway<UseInstance>, rt::oneway<UpdateInstance>, rt::oneway<WorkReady>, rt::oneway<Tick>,
                                 rt::oneway<KvReserved>, rt::oneway<KvOpened>, rt::oneway<DraftServers>,
                                 rt::oneway<CstFetched>, rt::rpc<GetReport, InstanceReport>>;

/// An instance has started or restarted, empty. Also sent, with the same handle, when its weights changed.
struct InstanceUp {
  InstanceId instance;
  NodeId node;
  int64_t kv_blocks = 0;
  uint32_t block_tokens = 0;
  int32_t rows_max = 0;
  InstanceHandle handle;
  ClusterIdentity identity = {};
  SEER_FIELDS(InstanceUp, instance, node, kv_blocks, block_tokens, rows_max, handle, identity)
};
/// A part of a machine is gone for good: it could not be restarted, or the machine gave up or left. The rollout continues
/// without it.
struct PartLost {
  NodeId node;
  std::vector<InstanceId> instances;  // that will not come back; empty if the part was the KV pool
  std::string reason;                 // one sentence that names the part; empty: the machine was drained and has left
  SEER_FIELDS(PartLost, node, instances, reason)
};
/// These instances accept no more chunks. Their running chunks come back early.
struct InstancesDraining {
  NodeId node;
  std::vector<InstanceId> instances;
  SEER_FIELDS(InstancesDraining, node, instances)
};
using InstanceSink = rt::iface<rt::oneway<InstanceUp>, rt::oneway<DraftServerUp>, rt::oneway<InstancesDraining>, rt::oneway<PartLost>>;
/// Subscribes a rollout to a node. The node sends InstanceUp for each instance and DraftServerUp if it has a draft server,
/// again after each restart, and PartLost for what is gone for good.
struct AttachRollout {
  InstanceSink reply_to;
  SEER_FIELDS(AttachRollout, reply_to)
};
/// Makes the machine leave. Its chunks continue elsewhere; it ends when no request needs its KV any more, or after timeout_us.
struct DrainNode { int64_t timeout_us = 0; SEER_FIELDS(DrainNode, timeout_us) };
struct NodeReport {
  NodeId node;
  bool draining = false;
  int32_t restarts = 0;                     // of its parts
  std::vector<InstanceReport> instances;    // that are up
  std::vector<KvNodeReport> pool;           // one entry; empty without a KV pool
  ClusterIdentity identity;                 // of its running instance with the newest weights; empty: none runs
  SEER_FIELDS(NodeReport, node, draining, restarts, instances, pool, identity)
};
using NodeHandle = rt::iface<rt::oneway<AttachRollout>, rt::oneway<UpdateWeights>, rt::oneway<WeightPart>, rt::oneway<InstanceWeights>, rt::oneway<DrainNode>,
                             rt::oneway<DirectoryUp>, rt::oneway<Tick>, rt::oneway<WorkReady>, rt::rpc<GetReport, NodeReport>>;

// ---- cluster -----------------------------------------------------------------------------------------------------------------
/// A machine asks to join: before it starts anything, or while it runs, after its controller was restarted.
struct EnterCluster {
  NodeId node;
  ClusterIdentity identity;      // without weights if it has no instances; without a model if it has no KV either
  uint64_t epoch = 0;            // from the previous controller; 0: the machine does not run yet
  NodeRoles roles = {NodeRole::kInstances, NodeRole::kKv};
  int64_t kv_block_bytes = 0;    // of a KV block of this layout; 0: it has none
  SEER_FIELDS(EnterCluster, node, identity, epoch, roles, kv_block_bytes)
};
struct ClusterEntered {
  std::string error;            // why it was refused; empty: accepted, and its name is reserved
  uint64_t epoch = 0;           // of its arenas: higher than any that a machine of this name had
  KvDirectoryHandle directory;
  SEER_FIELDS(ClusterEntered, error, epoch, directory)
};
/// Where a machine listens for the other machines.
struct NodeAddress {
  NodeId node;
  std::string host;
  uint16_t port = 0;
  SEER_FIELDS(NodeAddress, node, host, port)
};
/// A machine that was accepted is up.
struct NodeReady {
  NodeAddress at;
  NodeHandle handle;
  uint32_t instances = 0;
  SEER_FIELDS(NodeReady, at, handle, instances)
};
struct NodeJoined {
  NodeAddress at;
  NodeHandle handle;
  uint32_t instances = 0;
  SEER_FIELDS(NodeJoined, at, handle, instances)
};
/// The cluster has new weights, whose checksum is known. Machines that join with older ones are updated to them.
struct ClusterWeights {
  NewWeights what;
  std::vector<NodeId> nodes;  // those that have changed already; the controller asks the others
  SEER_FIELDS(ClusterWeights, what, nodes)
};
/// Hears which machines join, and which weights they have. PartLost: a machine died or gave up, and all of it is lost.
using ClusterSink = rt::iface<rt::oneway<NodeJoined>, rt::oneway<PartLost>, rt::oneway<ClusterWeights>>;
/// Subscribes to these. The sink hears first of the machines already there.
struct WatchCluster { ClusterSink reply_to; SEER_FIELDS(WatchCluster, reply_to) };
/// A rollout asks to run in the cluster.
struct EnterRollout {
  RolloutId id;              // from the previous controller; 0: the rollout does not run yet
  ClusterIdentity identity;  // of the model that it expects: name and shape; without a name: any
  SEER_FIELDS(EnterRollout, id, identity)
};
struct RolloutEntered {
  RolloutId id;                 // never used by another rollout
  WeightVersion version;        // of the weights that the machines run with
  uint64_t weights = 0;         // their checksum (ClusterIdentity)
  uint32_t instances = 0;       // of the machines that are up
  KvDirectoryHandle directory;
  std::string error;            // why it was refused; empty: accepted
  bool may_enter_later = false; // it was refused because no machine that could run it has started yet
  SEER_FIELDS(RolloutEntered, id, version, weights, instances, directory, error, may_enter_later)
};
// ---- iteration owner --------------------------------------------------------------------------------------------------------
using EstimateSink = rt::iface<rt::oneway<GroupEstimate>>;
/// A response is complete: the context manager learns its length.
struct LengthSeen {
  RequestId request;
  int64_t tokens = 0;
  EstimateSink reply_to;
  SEER_FIELDS(LengthSeen, request, tokens, reply_to)
};
using ContextHandle = rt::iface<rt::oneway<LengthSeen>>;

/// Receives the events of a rollout: every response once, progress from time to time, the summary last.
using RolloutEvents = rt::iface<rt::oneway<Response>, rt::oneway<RolloutProgress>, rt::oneway<RolloutCommits>, rt::oneway<RolloutSummary>>;

/// Adds groups to an open rollout. It assigns their ids, continuing the indices of the groups before.
struct AddGroups {
  std::vector<GroupSpec> groups;
  std::vector<ResumedRequest> resumed = {};  // requests of `groups`, each once; its group's index is that in `groups`
  SEER_FIELDS(AddGroups, groups, resumed)
};
struct GroupsAdded {
  GroupId first;      // the others follow
  std::string error;  // why none of them was added; empty: all were
  SEER_FIELDS(GroupsAdded, first, error)
};
/// Ends the unfinished requests of a group, or one request. Each is answered with the tokens it has (FinishReason::kAborted),
/// or normally if it finishes before the cancel reaches its instance.
struct CancelGroup { GroupId group; SEER_FIELDS(CancelGroup, group) };
struct CancelRequest { RequestId request; SEER_FIELDS(CancelRequest, request) };
struct Cancelled {
  int64_t requests = 0;  // unfinished ones that are being ended
  std::string error;     // the group or request is unknown or already over
  SEER_FIELDS(Cancelled, requests, error)
};
/// These responses need not be kept any longer.
struct AckResponses { std::vector<RequestId> requests; SEER_FIELDS(AckResponses, requests) };
/// Sends all events here from now on, starting with the responses not yet acknowledged.
struct AttachEvents { RolloutEvents reply_to; SEER_FIELDS(AttachEvents, reply_to) };
/// No more groups come: the rollout ends when all requests are over.
struct CloseRollout { uint64_t what = 0; SEER_FIELDS(CloseRollout, what) };

/// GetReport is answered with the summary so far, at any time.
using RolloutHandle = rt::iface<rt::oneway<InstanceUp>, rt::oneway<DraftServerUp>, rt::oneway<InstancesDraining>, rt::oneway<PartLost>,
                                rt::oneway<ChunkProgress>, rt::oneway<ChunkDone>,
                                rt::oneway<DirectoryUp>, rt::oneway<GroupEstimate>, rt::rpc<AddGroups, GroupsAdded>, rt::rpc<CancelGroup, Cancelled>,
                                rt::rpc<CancelRequest, Cancelled>, rt::oneway<AckResponses>, rt::oneway<AttachEvents>,
                                rt::oneway<CloseRollout>, rt::rpc<GetReport, RolloutSummary>, rt::oneway<StopRollout>,
                                rt::oneway<Tick>>;

// ---- reports of a cluster ---------------------------------------------------------------------------------------------------
/// A rollout that was accepted is running.
struct RolloutStarted {
  RolloutId id;
  RolloutHandle handle;
  SEER_FIELDS(RolloutStarted, id, handle)
};
/// Asks the controller to drain a machine (DrainNode). The error is one sentence; empty: the machine was told.
struct DrainMachine {
  NodeId node;
  int64_t timeout_us = 0;
  SEER_FIELDS(DrainMachine, node, timeout_us)
};
struct Drained { std::string error; SEER_FIELDS(Drained, error) };
struct ClusterNodeReport {
  NodeAddress at;
  NodeHandle handle;
  uint32_t instances = 0;
  bool draining = false;
  ClusterIdentity identity;
  NodeRoles roles = {};
  int64_t kv_block_bytes = 0;  // as in EnterCluster
  SEER_FIELDS(ClusterNodeReport, at, handle, instances, draining, identity, roles, kv_block_bytes)
};
struct ClusterReport {
  std::vector<ClusterNodeReport> nodes;     // by name
  std::vector<RolloutStarted> rollouts;     // running, by id
  SEER_FIELDS(ClusterReport, nodes, rollouts)
};
using ClusterHandle = rt::iface<rt::oneway<Tick>, rt::rpc<EnterCluster, ClusterEntered>, rt::oneway<NodeReady>,
                                rt::rpc<EnterRollout, RolloutEntered>, rt::oneway<RolloutStarted>, rt::oneway<WatchCluster>,
                                rt::oneway<ClusterWeights>, rt::oneway<WeightsUpdated>, rt::rpc<DrainMachine, Drained>, rt::rpc<GetReport, ClusterReport>>;

}  // namespace seer

CAF_BEGIN_TYPE_ID_BLOCK(seer, first_custom_type_id)
  CAF_ADD_TYPE_ID(seer, (seer::Tick))
  CAF_ADD_TYPE_ID(seer, (seer::WorkReady))
  CAF_ADD_TYPE_ID(seer, (seer::StopRollout))
  CAF_ADD_TYPE_ID(seer, (seer::GetReport))
  CAF_ADD_TYPE_ID(seer, (seer::GroupEstimate))
  CAF_ADD_TYPE_ID(seer, (seer::DropChunks))
  CAF_ADD_TYPE_ID(seer, (seer::ChunkProgress))
  CAF_ADD_TYPE_ID(seer, (seer::ChunkDone))
  CAF_ADD_TYPE_ID(seer, (seer::InstanceReport))
  CAF_ADD_TYPE_ID(seer, (seer::Response))
  CAF_ADD_TYPE_ID(seer, (seer::RolloutProgress))
  CAF_ADD_TYPE_ID(seer, (seer::RolloutSummary))
  CAF_ADD_TYPE_ID(seer, (seer::RunChunk))
  CAF_ADD_TYPE_ID(seer, (seer::UseInstance))
  CAF_ADD_TYPE_ID(seer, (seer::KvReserved))
  CAF_ADD_TYPE_ID(seer, (seer::KvSeal))
  CAF_ADD_TYPE_ID(seer, (seer::KvAbort))
  CAF_ADD_TYPE_ID(seer, (seer::KvOpened))
  CAF_ADD_TYPE_ID(seer, (seer::KvClose))
  CAF_ADD_TYPE_ID(seer, (seer::KvRelease))
  CAF_ADD_TYPE_ID(seer, (seer::KvBump))
  CAF_ADD_TYPE_ID(seer, (seer::KvNodeReport))
  CAF_ADD_TYPE_ID(seer, (std::vector<seer::KvNodeReport>))
  CAF_ADD_TYPE_ID(seer, (seer::ReserveBlocks))
  CAF_ADD_TYPE_ID(seer, (seer::OpenBlocks))
  CAF_ADD_TYPE_ID(seer, (seer::KvNodeUp))
  CAF_ADD_TYPE_ID(seer, (seer::KvHolds))
  CAF_ADD_TYPE_ID(seer, (seer::KvLetGo))
  CAF_ADD_TYPE_ID(seer, (seer::InstanceUp))
  CAF_ADD_TYPE_ID(seer, (seer::AttachRollout))
  CAF_ADD_TYPE_ID(seer, (seer::LengthSeen))
  CAF_ADD_TYPE_ID(seer, (seer::ChunkSink))
  CAF_ADD_TYPE_ID(seer, (seer::KvClient))
  CAF_ADD_TYPE_ID(seer, (seer::KvMember))
  CAF_ADD_TYPE_ID(seer, (seer::KvDirectoryHandle))
  CAF_ADD_TYPE_ID(seer, (seer::InstanceHandle))
  CAF_ADD_TYPE_ID(seer, (seer::InstanceSink))
  CAF_ADD_TYPE_ID(seer, (seer::NodeHandle))
  CAF_ADD_TYPE_ID(seer, (seer::EstimateSink))
  CAF_ADD_TYPE_ID(seer, (seer::ContextHandle))
  CAF_ADD_TYPE_ID(seer, (seer::RolloutHandle))
  CAF_ADD_TYPE_ID(seer, (seer::RolloutEvents))
  CAF_ADD_TYPE_ID(seer, (seer::KvSource))
  CAF_ADD_TYPE_ID(seer, (seer::KvHolders))
  CAF_ADD_TYPE_ID(seer, (seer::KvHoldersSink))
  CAF_ADD_TYPE_ID(seer, (seer::FindHolders))
  CAF_ADD_TYPE_ID(seer, (seer::RegisterGroups))
  CAF_ADD_TYPE_ID(seer, (seer::DropGroup))
  CAF_ADD_TYPE_ID(seer, (seer::UpdateCst))
  CAF_ADD_TYPE_ID(seer, (seer::FetchCst))
  CAF_ADD_TYPE_ID(seer, (seer::CstFetched))
  CAF_ADD_TYPE_ID(seer, (seer::DraftServerReport))
  CAF_ADD_TYPE_ID(seer, (seer::DraftServerUp))
  CAF_ADD_TYPE_ID(seer, (seer::DraftServers))
  CAF_ADD_TYPE_ID(seer, (seer::DraftClient))
  CAF_ADD_TYPE_ID(seer, (seer::DraftServerHandle))
  CAF_ADD_TYPE_ID(seer, (seer::RegisterPast))
  CAF_ADD_TYPE_ID(seer, (seer::CancelChunk))
  CAF_ADD_TYPE_ID(seer, (seer::AddGroups))
  CAF_ADD_TYPE_ID(seer, (seer::GroupsAdded))
  CAF_ADD_TYPE_ID(seer, (seer::CancelGroup))
  CAF_ADD_TYPE_ID(seer, (seer::CancelRequest))
  CAF_ADD_TYPE_ID(seer, (seer::Cancelled))
  CAF_ADD_TYPE_ID(seer, (seer::AckResponses))
  CAF_ADD_TYPE_ID(seer, (seer::AttachEvents))
  CAF_ADD_TYPE_ID(seer, (seer::CloseRollout))
  CAF_ADD_TYPE_ID(seer, (seer::KvRefused))
  CAF_ADD_TYPE_ID(seer, (seer::PartLost))
  CAF_ADD_TYPE_ID(seer, (seer::InstanceWeights))
  CAF_ADD_TYPE_ID(seer, (seer::WeightsUpdated))
  CAF_ADD_TYPE_ID(seer, (seer::WeightsSink))
  CAF_ADD_TYPE_ID(seer, (seer::InstanceWeightsSink))
  CAF_ADD_TYPE_ID(seer, (seer::NewWeights))
  CAF_ADD_TYPE_ID(seer, (seer::UpdateWeights))
  CAF_ADD_TYPE_ID(seer, (seer::UpdateInstance))
  CAF_ADD_TYPE_ID(seer, (seer::EnterCluster))
  CAF_ADD_TYPE_ID(seer, (seer::ClusterEntered))
  CAF_ADD_TYPE_ID(seer, (seer::NodeReady))
  CAF_ADD_TYPE_ID(seer, (seer::NodeJoined))
  CAF_ADD_TYPE_ID(seer, (seer::ClusterSink))
  CAF_ADD_TYPE_ID(seer, (seer::WatchCluster))
  CAF_ADD_TYPE_ID(seer, (seer::EnterRollout))
  CAF_ADD_TYPE_ID(seer, (seer::RolloutEntered))
  CAF_ADD_TYPE_ID(seer, (seer::ClusterReport))
  CAF_ADD_TYPE_ID(seer, (seer::ClusterHandle))
  CAF_ADD_TYPE_ID(seer, (seer::YieldChunks))
  CAF_ADD_TYPE_ID(seer, (seer::RolloutCommits))
  CAF_ADD_TYPE_ID(seer, (seer::KvDraining))
  CAF_ADD_TYPE_ID(seer, (seer::InstancesDraining))
  CAF_ADD_TYPE_ID(seer, (seer::DrainNode))
  CAF_ADD_TYPE_ID(seer, (seer::NodeReport))
  CAF_ADD_TYPE_ID(seer, (seer::DirectoryUp))
  CAF_ADD_TYPE_ID(seer, (seer::KvKeepRollouts))
  CAF_ADD_TYPE_ID(seer, (seer::RolloutStarted))
  CAF_ADD_TYPE_ID(seer, (seer::DrainMachine))
  CAF_ADD_TYPE_ID(seer, (seer::Drained))
  CAF_ADD_TYPE_ID(seer, (seer::KvDropRollout))
  CAF_ADD_TYPE_ID(seer, (seer::KvRolloutReturned))
  CAF_ADD_TYPE_ID(seer, (seer::ClusterWeights))
  CAF_ADD_TYPE_ID(seer, (seer::WeightPart))
  CAF_ADD_TYPE_ID(seer, (seer::WeightPartSink))
  CAF_ADD_TYPE_ID(seer, (seer::ReadWeights))
  CAF_ADD_TYPE_ID(seer, (seer::WeightSourceHandle))
  CAF_ADD_TYPE_ID(seer, (seer::TakeBlocks))
  CAF_ADD_TYPE_ID(seer, (seer::KvTaker))
  CAF_ADD_TYPE_ID(seer, (seer::KvRoom))
  CAF_ADD_TYPE_ID(seer, (seer::KvRoomFound))
  CAF_ADD_TYPE_ID(seer, (seer::KvRoomSink))
  CAF_ADD_TYPE_ID(seer, (seer::FindRoom))
CAF_END_TYPE_ID_BLOCK(seer)

namespace seer {

/// Teaches a config all messages.
void add_messages(caf::actor_system_config& config);

/// Config of an actor system with real threads that knows all messages.
struct SeerConfig : rt::config {
  explicit SeerConfig(size_t threads = 1) : rt::config(threads) { add_messages(*this); }
};

}  // namespace seer
