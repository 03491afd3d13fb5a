// RoutedServers: the list of servers behind `seer serve --engines`, as /workers shows and changes it. RoutedMachines is the one there is.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpu/step_profile.h"
#include "protocols/ids.h"
#include "protocols/result.h"
#include "served/http_message.h"

namespace seer {

/// A server as /workers shows it.
struct RoutedServer {
  std::string id;    // "worker-0"
  std::string kind;  // sglang, vllm, seer
  std::string url;
  std::string engine, weights;  // as the server said last; empty: it has not answered yet
  bool is_up = false;
  bool is_draining = false;
  bool is_deterministic = false;
  int64_t running = 0, waiting = 0;  // requests of all its clients
  std::string why_out;               // what its last failure was, if it is out
  int64_t ranks = 1;                 // as in ServerState
};

/// The servers of a router. Thread-safe.
class RoutedServers {
 public:
  virtual ~RoutedServers() = default;
  virtual std::vector<RoutedServer> list() const = 0;
  /// KIND=URL, or a URL of SGLang's kind. Returns the id; a server that is there already keeps its own. Errors: kInvalidArgument; kFull.
  virtual Result<std::string> add(const std::string& engine) = 0;
  /// Its requests go elsewhere with their tokens, then it is forgotten. Errors: kNotFound.
  virtual Status remove(const std::string& id) = 0;
  /// What its steps cost, as learned so far; no id: those of all together. Errors: kNotFound; kUnavailable: too little was seen.
  virtual Result<StepProfile> profile(const std::string& id) const = 0;
  /// What the servers call the weights that they get as this version.
  virtual std::string label_of(WeightVersion version) const = 0;
  /// A trainer replaces the weights of servers with this version (ServerFleet::weights_move).
  virtual void weights_move(WeightVersion from) = 0;
  /// Asks a server these in turn. `then` is called on another thread. Errors: the first that fails; kNotFound.
  virtual void pass(const std::string& id, std::vector<HttpAsk> asks, std::function<void(Status)> then) = 0;
};

}  // namespace seer
