// ServedStreams: the answers that come from a server, token by token. A server is asked for more than one chunk, and goes on when a
// chunk is full. The stream then waits for the request's next chunk, which takes it over if it starts with exactly the tokens that the
// stream has given so far: no new HTTP request, no queue and no prefix lookup at the server. A stream that waits in vain is closed.
// Used by ServedInstanceActor. Not thread-safe.
//
// Always true:
//  (1) a chunk has at most one stream, and at most one stream of a request waits;
//  (2) a stream gives at most the tokens that it was asked for, so what it holds is bounded;
//  (3) a stream that leaves is ended at the server, unless the server ended it well or owes nothing more.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "protocols/ids.h"
#include "protocols/token_log.h"
#include "served/engine_server.h"

namespace seer {

struct ServedStream {
  uint64_t number = 0;      // names it here
  std::string rid;          // and at the server
  RequestId request;
  ChunkId chunk;            // takes its tokens; while the stream waits: the last one that did
  bool waits = false;       // for the request's next chunk
  int64_t tokens_left = 0;  // that the server may still give
  ServedPart rest;          // has come, and no chunk has taken it
  // While it waits:
  TokenLog log;             // what the next chunk must start with
  int64_t until_us = 0;     // when it is closed

  /// Nothing more comes from the server.
  bool is_over() const { return rest.end != ServedEnd::kNone || tokens_left == 0; }
};

class ServedStreams {
 public:
  explicit ServedStreams(std::shared_ptr<EngineServer> server) : server_(std::move(server)) {}
  ~ServedStreams();
  ServedStreams(const ServedStreams&) = delete;
  ServedStreams& operator=(const ServedStreams&) = delete;

  /// Asks the server. `part` gets the stream's number with each part. REQUIRES: the chunk has no stream.
  void open(RequestId request, ChunkId chunk, ServedAsk ask, std::function<void(uint64_t, ServedPart)> part);
  /// False: it was closed.
  bool has(uint64_t number) const { return streams_.contains(number); }
  /// A part came. REQUIRES: the stream is here.
  ServedStream& add(uint64_t number, ServedPart part);
  /// Takes at most tokens_max tokens out of `rest`, with the end if none are left then.
  static ServedPart take(ServedStream& stream, int64_t tokens_max);

  /// Null: the chunk has none.
  ServedStream* of(ChunkId chunk);
  /// The chunk is full. REQUIRES: the stream has something left to give, or the server has.
  static void keep(ServedStream& stream, TokenLog log, int64_t until_us);
  /// The stream that waits for a chunk that starts with `log`, from now on the chunk's; null: none. One that waits for another
  /// continuation of the request is closed.
  ServedStream* take_over(RequestId request, ChunkId chunk, const TokenLog& log);

  void close(uint64_t number);
  /// Ends the stream of the chunk, if it has one.
  void close_of(ChunkId chunk);
  /// Streams that wait: all; the one that waits longest; those of a rollout; those that waited until now_us.
  void close_all_waiting();
  void close_oldest_waiting();
  void close_waiting(RolloutId rollout);
  size_t close_waited(int64_t now_us);  // returns how many

  uint64_t last_number() const { return last_number_; }
  size_t size() const { return streams_.size(); }
  size_t waiting() const;

 private:
  template <class Which>
  size_t close_where(Which&& which);

  const std::shared_ptr<EngineServer> server_;
  std::map<uint64_t, ServedStream> streams_;  // by number
  uint64_t last_number_ = 0;
};

}  // namespace seer
