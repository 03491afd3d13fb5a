// served_instance_actor: a server that somebody else runs (EngineServer) as an instance. It takes the messages of instance_actor: a
// chunk becomes a request to the server, whose parts are checked, held against the stop rule and reported as they come. Where the
// chunks of a request follow each other here, they share one request to the server (ServedStreams).
//
// The server owns its KV, so there is no pool here: a chunk that is placed on another server is prefilled there again from the token
// log, unless the servers share a KV store of their own.
//
// A chunk ends early with the tokens that are certain when the server aborts it, closes the stream, has no room, or sends what makes
// no sense; the rollout places it again. After failures_max failures with no token in between the actor ends, and with it all of its
// chunks: server_node_actor looks at the server, and starts another one when it answers. Aborts count only as kAbortsMax in a row:
// a trainer may abort all requests of each server that it knows.
//
// Always true:
//  (1) every RunChunk is answered by exactly one ChunkDone, unless DropChunks of its rollout came first or the actor ended;
//  (2) all tokens that were taken are reported, in order, the last of them with the ChunkDone;
//  (3) a token is taken only from an answer labelled with this instance's weights, or with none. The server is asked to change them
//      only while there are no chunks, no stream waits for one, and no rollout uses the instance.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/handover.h"
#include "actors/instance/chunk_sinks.h"
#include "actors/instance/sequence.h"
#include "actors/instance/served_streams.h"
#include "actors/log.h"
#include "gpu/stop_rule.h"
#include "gpu/text/tokenizer.h"
#include "protocols/actors.h"
#include "served/engine_server.h"

namespace seer {

struct ServedInstanceConfig {
  InstanceId id;
  int64_t kv_tokens = 0;        // that the server's KV cache holds, for the reports
  uint32_t block_tokens = 16;
  StopLimits stop;              // of the model
  WeightVersion version{1};
  std::string weights;          // the server's label for them; empty: it has none
  std::string rid_prefix;       // of the names of requests; no other process uses it
  std::string label_suffix;     // of the labels of weights that came through here; no other process uses it
  int32_t failures_max = 3;
  int64_t rows_max = 0;         // requests that the server runs at a time; 0: not known
  // A server is asked for this many tokens at least, if a response may need them, so that its next chunks need no new request. 0: for
  // a chunk only. More would not help much: SGLang's events repeat all tokens so far, which costs the square, and its admission plans
  // for 4096 new tokens at most.
  int64_t stream_tokens = 4096;
  // A full chunk's stream waits this long for the next one. The rollout, in this process, places requests again at once, so what comes
  // later goes elsewhere first, and the server computes in vain.
  int64_t return_us = 100'000;
  int64_t alive_us = 60'000'000;  // a report of all chunks is sent so often, also of those that wait for the server

  /// What a server calls the weights that it got as this version.
  std::string label_of(WeightVersion given) const { return cat(given, label_suffix); }
};

struct ServedInstanceParts {
  std::shared_ptr<EngineServer> server;
  std::shared_ptr<const Tokenizer> tokenizer;  // may be null; needed for stop strings
  EventLog log = {};
};

struct ServedInstanceActor {
  using handle = InstanceHandle;
  static constexpr const char* kActorName = "served_instance";

  ServedInstanceActor(rt::self_ptr<ServedInstanceActor> self_in, ServedInstanceConfig config_in, ServedInstanceParts parts_in);
  handle::behavior_type make_behavior();

  void on_use(const UseInstance& use);
  void on_run_chunk(RunChunk chunk);
  void on_work_ready();
  void close_waited();
  void cancel_chunk(ChunkId id);
  void drop_chunks(RolloutId rollout);
  void yield_chunks();
  void on_down(const rt::down& message);
  void update_weights(const UpdateInstance& asked);
  const InstanceReport& current_report();

  void start(Sequence& s);
  void end_without_room(Sequence& s);
  void ask_server(const Sequence& s);
  void on_part(uint64_t stream, ServedPart part);
  void take_tokens(Sequence& s, ServedStream& stream);
  void end_full(const Sequence& s, ServedStream& stream);
  void end_part(Sequence& s, const ServedStream& stream, const ServedPart& part);
  void on_failure(Sequence& s, const ServedPart& part);
  void end_request(Sequence& s, Ending ending);
  void answer(ChunkId id, ChunkEnd end);
  void after_work();
  void report_tokens(bool all = false);
  void report_all();
  void run_held();
  void switch_when_unused();
  void on_switched(const Status& status, const Result<ServerState>& now);
  void answer_update(std::string error);
  int64_t blocks_of(const Sequence& s) const;

  rt::self_ptr<ServedInstanceActor> self;
  ServedInstanceConfig config;
  ServedInstanceParts parts;
  std::shared_ptr<Handover> handover;
  SequenceTable sequences;
  ServedStreams streams;                  // one for each of `sequences` but the held; and those that wait for a chunk
  std::vector<ChunkId> held;              // of `sequences`: the server had no room for them; oldest first
  ChunkSinks sinks;                       // of the rollouts that use this, until they drop their chunks
  InstanceReport report;
  int64_t blocks_used = 0;
  uint64_t asks = 0;                      // requests to the server so far
  int32_t failures = 0;                   // since the last token
  int32_t aborts = 0;                     // likewise: times that the server aborted requests, those that ran together once
  uint64_t aborted_to = 0;                // streams up to this one ran when it did last
  std::string ends_why;                   // the actor ends after this handler; empty: it does not
  bool draining = false;
  bool report_due = false;                // of all chunks, in a while
  std::optional<UpdateInstance> update;   // until it is answered
  bool switching = false;                 // the server changes its weights
  std::shared_ptr<const SamplingParams> last_sampling;
};

}  // namespace seer
