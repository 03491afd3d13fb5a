// TlsTunnel: TCP connections between processes under mutual TLS 1.2 or later. Each side speaks plainly with a port of its own host,
// and what goes between hosts is encrypted; who has no certificate of the CA gets no byte through. Used by ClusterNet. Thread-safe.
//
// CAF 0.17.6 has a TLS of its own, but there a connection that ends takes others with it.
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

class TlsTunnel {
 public:
  /// Errors: as check_tls_files().
  static Result<std::unique_ptr<TlsTunnel>> create(const TlsFiles& tls);
  ~TlsTunnel();  // ends all connections

  /// Connections to host:port go on to to_port of this host. Returns the port, which for 0 the system chooses. Errors: kUnavailable.
  Result<uint16_t> listen(const std::string& host, uint16_t port, uint16_t to_port);
  /// Connects, and returns a port of this host whose first connection, within some seconds, goes on there. Errors: kUnavailable.
  Result<uint16_t> connect(const std::string& host, uint16_t port);

 private:
  class Impl;
  explicit TlsTunnel(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace seer
