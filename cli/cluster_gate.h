// ClusterGate: connects the processes of a cluster. A process has one open port, its gate. A peer must greet there in the same
// protocol and, if the gate has TLS files, with a certificate of the same CA; otherwise no byte is passed on. Used by ClusterNet.
// Thread-safe.
//
// The gate passes connections on to a loopback port, which only processes of the same host can reach. It exists because CAF trusts
// the length in a message header: a few random bytes make it allocate gigabytes. It also does TLS, because in CAF 0.17.6 the end
// of one TLS connection breaks others.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "protocols/result.h"

namespace seer {

/// Files in PEM format. All empty: no TLS.
struct TlsFiles {
  std::string certificate, key, ca;
  bool empty() const { return certificate.empty(); }
};
/// Checks that the files exist, belong together, and the certificate is valid today. Errors: kInvalidArgument, naming the flag
/// and the file.
Status check_tls_files(const TlsFiles& tls);

class ClusterGate {
 public:
  /// Errors: those of check_tls_files().
  static Result<std::unique_ptr<ClusterGate>> create(const TlsFiles& tls);
  virtual ~ClusterGate() = default;  // ends all connections

  /// Passes connections to host:port on to to_port of this host. Returns the port; if `port` is 0, the system chooses it.
  /// Errors: kUnavailable.
  virtual Result<uint16_t> listen(const std::string& host, uint16_t port, uint16_t to_port) = 0;
  /// Connects to host:port. Returns a port of this host; its first connection, within some seconds, is passed on there. Errors:
  /// kUnavailable; kInvalidArgument if the peer has another protocol.
  virtual Result<uint16_t> connect(const std::string& host, uint16_t port) = 0;
};

}  // namespace seer
