// ClusterNet: an actor system that listens for and dials other processes of a cluster, under TLS where it is given files for that.
#pragma once
#include <memory>
#include <string>
#include <utility>

#include "cli/cluster_access.h"
#include "cli/tls_tunnel.h"
#include "protocols/rt_net.h"

namespace seer {

/// Threads of an actor system of a real run: actors use a few per cent of one core; more threads only wake each other.
inline constexpr size_t kActorThreads = 1;

class ClusterNet {
 public:
  /// Errors: of the TLS files.
  static Result<std::unique_ptr<ClusterNet>> create(const ClusterAccess& access) {
    auto net = std::make_unique<ClusterNet>();
    if (access.tls.empty()) return net;
    SEER_ASSIGN_OR_RETURN(net->tunnel_, TlsTunnel::create(access.tls));
    return net;
  }

  rt::system& system() { return system_; }

  /// Other processes can dial the actor at this address from now on. Returns the port, which for 0 the system chooses.
  /// Errors: kUnavailable.
  template <class Handle>
  Result<uint16_t> listen(const Handle& actor, const std::string& host, uint16_t port) {
    if (!tunnel_) return rt::listen(system_, actor, host, port);
    SEER_ASSIGN_OR_RETURN(const uint16_t near_port, rt::listen(system_, actor, "127.0.0.1", 0));
    return tunnel_->listen(host, port, near_port);
  }
  /// The actor that listens there. Blocks until it is connected. Errors: kUnavailable; kInvalidArgument: it is of another protocol.
  template <class Handle>
  Result<Handle> dial(const std::string& host, uint16_t port) {
    if (!tunnel_) return rt::dial<Handle>(system_, host, port);
    SEER_ASSIGN_OR_RETURN(const uint16_t near_port, tunnel_->connect(host, port));
    return rt::dial<Handle>(system_, "127.0.0.1", near_port);
  }
  bool uses_tls() const { return tunnel_ != nullptr; }

 private:
  std::unique_ptr<TlsTunnel> tunnel_;  // ends after the system, whose connections it carries
  rt::NetConfig config_{kActorThreads};
  rt::system system_{config_};
};

}  // namespace seer
