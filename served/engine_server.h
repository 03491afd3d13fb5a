// EngineServer: an HTTP server of an inference engine that somebody else runs (SGLang, vLLM, another Seer), as the actors use it.
// connect_server() makes one that speaks HTTP; tests make simulated ones.
//
// Thread-safe. It calls back on threads of its own; a callback may only hand over what it got (Outbox). Nothing here decides what
// becomes of a response: a part says what the server sent, and the actor holds that against the token log.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "protocols/hash.h"
#include "protocols/ids.h"
#include "protocols/output_tokens.h"
#include "protocols/result.h"
#include "protocols/rollout.h"
#include "served/http_message.h"

namespace seer {

enum class ServerKind : uint8_t { kSglang, kVllm, kSeer };
const char* to_string(ServerKind kind);

/// A request to a server: to go on from some tokens.
struct ServedAsk {
  std::string rid;               // its name at the server; no other one has it
  std::vector<int32_t> tokens;   // the prompt, and the output so far
  int64_t prompt_tokens = 0;     // of `tokens`
  int64_t max_new_tokens = 0;
  SamplingParams sampling;
  uint64_t seed = 0;             // of the response

  /// How many of the new tokens come before an EOS or stop token, at least.
  int64_t min_new_tokens() const {
    return std::clamp<int64_t>(sampling.min_tokens - (std::ssize(tokens) - prompt_tokens), 0, max_new_tokens);
  }
};

/// Why no more parts of an answer come.
enum class ServedEnd : uint8_t {
  kNone,     // more come
  kStop,     // the server found the end of the response
  kLength,   // the server gave as many tokens as it will
  kRefused,  // the request is wrong, and would be elsewhere too
  kFailed,   // it may go well elsewhere or later: an abort, a broken stream, an answer that makes no sense
};

/// Some tokens of an answer, and maybe its end.
struct ServedPart {
  OutputTokens output = {};
  ServedEnd end = ServedEnd::kNone;
  std::string matched = {};     // with kStop: the token id or the text, if the server says
  std::string why = {};         // with kRefused and kFailed: one sentence
  bool is_busy = false;         // with kFailed: the server had no room (503, 429)
  bool is_abort = false;        // with kFailed: a client of the server, maybe another one, had the request aborted
  std::string weights = {};     // label of the weights that computed the tokens; empty: the server does not say
  int64_t cached_tokens = 0;    // of the tokens asked with: those whose KV the server had
};

/// What a server says of itself. 0 and empty: it does not say.
struct ServerState {
  std::string engine;            // "SGLang 0.5.3"
  std::string model;             // its name or folder
  std::string weights;           // label of its weights
  int64_t kv_tokens = 0;         // that its KV cache holds
  int64_t context_tokens = 0;    // of one request, prompt and output
  int64_t rows_max = 0;          // requests that run at a time
  int64_t ranks = 1;             // its processes, each with a GPU, in a group that a trainer sends weights over
  int64_t running = 0, waiting = 0;  // requests now, of all its clients
  double kv_use_share = 0;
  bool is_deterministic = false; // the same request gives the same bits, whatever runs beside it
  std::vector<std::string> server_ids = {};  // its own, then those of the servers that it passes requests on to
};

/// Used as the checksum of weights (ClusterIdentity) of a server that only labels them. 0 for an empty label.
constexpr uint64_t label_hash(std::string_view label) { return label.empty() ? 0 : hash_text(label); }

class EngineServer {
 public:
  virtual ~EngineServer() = default;
  /// Its address, for people: "http://a:30000".
  virtual const std::string& name() const = 0;
  /// Starts a request. `part` is called until it gets one with an end, and not after end(). REQUIRES: its rid was never used here.
  virtual void run(ServedAsk ask, std::function<void(ServedPart)> part) = 0;
  /// Nobody wants the answer any more: aborts the request at the server. A part may be on its way. Ignored if it is over.
  virtual void end(const std::string& rid) = 0;
  virtual void look(std::function<void(Result<ServerState>)> then) = 0;
  /// Loads weights from a folder that the server can read, and labels them. Afterwards answers carry the label, if the server can.
  /// REQUIRES: no request runs.
  virtual void update_weights(std::string folder, std::string label, std::function<void(Status)> then) = 0;
  /// Passes calls of a trainer on (WeightsGroup), one after the other. Errors: the first one that fails.
  virtual void pass(std::vector<HttpAsk> asks, std::function<void(Status)> then) = 0;
};

}  // namespace seer
