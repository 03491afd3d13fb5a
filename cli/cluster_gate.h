// ClusterGate: the way between the processes of a cluster. A process has one open port, its gate. Who comes there must greet in the same
// protocol, and where the gate has TLS files with a certificate of the same CA; else no byte goes through. Used by ClusterNet.
// Thread-safe.
//
// Behind its gate a process uses a port of loopback, so only processes of its host reach that. The gate is there because CAF trusts
// the length in a message header: a few random bytes make it allocate gigabytes. It also does TLS, because in CAF 0.17.6 the end of one
// TLS connection breaks others.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "protocols/result.h"

namespace seer {

/// Files in PEM format. None of them: no TLS.
struct TlsFiles {
  std::string certificate, key, ca;
  bool empty() const { return certificate.empty(); }
};
/// Whether they can be used: they are there, belong together, and the certificate is good today. Errors: kInvalidArgument, naming
/// the flag and the file.
Status check_tls_files(const TlsFiles& tls);

class ClusterGate {
 public:
  /// Errors: as check_tls_files().
  static Result<std::unique_ptr<ClusterGate>> create(const TlsFiles& tls);
  virtual ~ClusterGate() = default;  // ends all connections

  /// Connections to host:port go on to to_port of this host. Returns the port, which for 0 the system chooses. Errors: kUnavailable.
  virtual Result<uint16_t> listen(const std::string& host, uint16_t port, uint16_t to_port) = 0;
  /// Connects, and returns a port of this host whose first connection, within some seconds, goes on there. Errors: kUnavailable;
  /// kInvalidArgument: who listens there speaks another protocol.
  virtual Result<uint16_t> connect(const std::string& host, uint16_t port) = 0;
};

}  // namespace seer
