// ClusterGate: connects the processes of a cluster. A process has one open port, its gate. A peer must greet there in the same
// protocol, prove that it knows the cluster's secret and, if the gate has TLS files, have a certificate of the same CA; otherwise no
// byte is passed on. Used by ClusterNet. Thread-safe.
//
// A connection whose two sides have greeted is handed over as a socket; the gate of a plain one has no more to do with it. The gate
// exists because CAF trusts the length in a message header: a few random bytes make it allocate gigabytes. It also does TLS, because
// in CAF 0.17.6 the end of one TLS connection breaks others; what it hands over is then one end of a socket pair.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "protocols/result.h"
#include "protocols/unique_fd.h"

namespace seer {

/// Files in PEM format. All empty: no TLS.
struct TlsFiles {
  std::string certificate, key, ca;
  bool empty() const { return certificate.empty(); }
};
/// Checks that the files exist, belong together, and the certificate is valid today. Errors: kInvalidArgument, naming the flag
/// and the file.
Status check_tls_files(const TlsFiles& tls);

struct GateConfig {
  TlsFiles tls;
  std::string secret;                         // the same in all processes of the cluster; empty: theirs is empty too
  std::string secret_flag = "--secret-file";  // where it comes from, for errors
  /// A peer had another secret; `count` did so far. Called on the gate's thread, once a second at most. May be empty.
  std::function<void(const std::string& address, uint64_t count)> on_stranger;
  size_t newcomers_max = 1024;  // connections that have not greeted yet; at most a quarter of the process's file descriptors
};

class ClusterGate {
 public:
  static constexpr std::chrono::seconds kHandshakeMax{10};

  /// Errors: those of check_tls_files().
  static Result<std::unique_ptr<ClusterGate>> create(const GateConfig& config);
  virtual ~ClusterGate() = default;  // ends handshakes and TLS connections

  /// Listens on host:port. Calls on_peer, on the gate's thread, with the socket of each peer that has greeted. Returns the port; if
  /// `port` is 0, the system chooses it. When there are too many newcomers, the oldest is closed, so that silent connections of
  /// strangers do not keep peers out. Errors: kUnavailable; kInvalidArgument if the host is a name, other than localhost, of an
  /// address that only this host can reach.
  virtual Result<uint16_t> listen(const std::string& host, uint16_t port, std::function<void(UniqueFd)> on_peer) = 0;
  /// After it returns, on_peer is not called any more.
  virtual void stop_listening() = 0;
  /// Connects to host:port and greets; blocks for `within` at most. Errors: kUnavailable; kInvalidArgument if the peer has another
  /// protocol or secret.
  virtual Result<UniqueFd> connect(const std::string& host, uint16_t port, std::chrono::milliseconds within = kHandshakeMax) = 0;
};

}  // namespace seer
