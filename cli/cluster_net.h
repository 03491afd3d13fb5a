// ClusterNet: an actor system that listens for and dials other processes of a cluster, through a gate (cluster_gate.h).
#pragma once
#include <memory>
#include <string>
#include <utility>

#include "cli/cluster_access.h"
#include "cli/cluster_gate.h"
#include "protocols/rt_net.h"

namespace seer {

/// Threads of an actor system of a real run: actors use a few per cent of one core; more threads only wake each other.
inline constexpr size_t kActorThreads = 1;

class ClusterNet {
 public:
  /// Errors: of the TLS files.
  static Result<std::unique_ptr<ClusterNet>> create(const ClusterAccess& access) {
    SEER_ASSIGN_OR_RETURN(std::unique_ptr<ClusterGate> gate, ClusterGate::create(access.tls));
    return std::make_unique<ClusterNet>(std::move(gate), !access.tls.empty());
  }
  ClusterNet(std::unique_ptr<ClusterGate> gate, bool uses_tls) : gate_(std::move(gate)), uses_tls_(uses_tls) {}

  rt::system& system() { return system_; }
  bool uses_tls() const { return uses_tls_; }

  /// Other processes can dial the actor at this address from now on. Returns the port, which for 0 the system chooses.
  /// Errors: kUnavailable.
  template <class Handle>
  Result<uint16_t> listen(const Handle& actor, const std::string& host, uint16_t port) {
    SEER_ASSIGN_OR_RETURN(const uint16_t near_port, rt::listen(system_, actor, "127.0.0.1", 0));
    return gate_->listen(host, port, near_port);
  }
  /// The actor that listens there. Blocks until it is connected. Errors: kUnavailable; kInvalidArgument: it is of another protocol.
  template <class Handle>
  Result<Handle> dial(const std::string& host, uint16_t port) {
    SEER_ASSIGN_OR_RETURN(const uint16_t near_port, gate_->connect(host, port));
    return rt::dial<Handle>(system_, "127.0.0.1", near_port);
  }

 private:
  const std::unique_ptr<ClusterGate> gate_;  // ends after the system, whose connections it carries
  const bool uses_tls_;
  rt::NetConfig config_{kActorThreads};
  rt::system system_{config_};
};

}  // namespace seer
