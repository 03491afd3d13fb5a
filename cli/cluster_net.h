// ClusterNet: an actor system that listens for other processes of a cluster and dials them, through a gate (cluster_gate.h).
#pragma once
#include <memory>
#include <string>
#include <utility>

#include "actors/log.h"
#include "cli/cluster_access.h"
#include "cli/cluster_gate.h"
#include "protocols/rt_net.h"

namespace seer {

/// Threads of the actor system in a real run. Actors use a few per cent of one core; more threads would only wake each other.
inline constexpr size_t kActorThreads = 1;

class ClusterNet {
 public:
  /// Logs peers with another secret. Errors: those of the TLS files and of the secret's.
  static Result<std::unique_ptr<ClusterNet>> create(const ClusterAccess& access, const EventLog& log = {});
  ClusterNet(std::unique_ptr<ClusterGate> gate, bool uses_tls) : gate_(std::move(gate)), uses_tls_(uses_tls) {}

  ~ClusterNet() { gate_->stop_listening(); }  // before the system, which it gives peers to

  rt::system& system() { return system_; }
  bool uses_tls() const { return uses_tls_; }

  /// Lets other processes dial the actor at this address. Returns the port; if `port` is 0, the system chooses it.
  /// Errors: those of ClusterGate::listen().
  template <class Handle>
  Result<uint16_t> listen(const Handle& actor, const std::string& host, uint16_t port) {
    return gate_->listen(host, port, [this, actor](UniqueFd socket) { rt::serve(system_, actor, std::move(socket)); });
  }
  /// Returns the actor that listens there. Blocks until connected, `within` that time but for CAF's own handshake. Errors: kUnavailable; kInvalidArgument if it has another
  /// protocol or secret.
  template <class Handle>
  Result<Handle> dial(const std::string& host, uint16_t port, std::chrono::milliseconds within = ClusterGate::kHandshakeMax) {
    SEER_ASSIGN_OR_RETURN(UniqueFd socket, gate_->connect(host, port, within));
    return rt::dial<Handle>(system_, std::move(socket), cat(host, ":", port));
  }

 private:
  const std::unique_ptr<ClusterGate> gate_;  // destroyed after the system, whose connections it carries
  const bool uses_tls_;
  rt::NetConfig config_{kActorThreads};
  rt::system system_{config_};
};

}  // namespace seer
