// ClusterAccess: the command line's options for who may take part in a cluster. Addresses of this host need nothing. Others need
// mutual TLS, or --insecure. A secret keeps clusters apart, and strangers out where there is no TLS.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cli/option.h"
#include "cli/cluster_gate.h"
#include "protocols/result.h"

namespace seer {

struct HostPort {
  std::string host;
  uint16_t port = 0;
};

struct ClusterAccess {
  TlsFiles tls;
  std::string secret_file;  // its first line is the cluster's secret; empty: it has none
  bool insecure = false;    // addresses of other hosts are allowed without TLS
  std::string prefix = {};  // of the options' names: "cluster-" if the command has other options called --tls-cert
  std::string flag(const char* name) const { return "--" + prefix + name; }
};

std::vector<OptionSpec> access_options(ClusterAccess& access);

/// HOST:PORT; an IPv6 address in brackets.
std::string address_text(const std::string& host, uint16_t port);
/// Errors: kInvalidArgument, naming the flag. `may_choose`: port 0 is allowed, and the system chooses one.
Result<HostPort> parse_host_port(const char* flag, const std::string& text, bool may_choose);
/// Whether only processes of this host can reach the address.
bool is_of_this_host(const std::string& host);
/// Whether the host is an address, or a name of one. Asks the system's resolver, which may take seconds.
bool resolves(const std::string& host);
/// Checks that the address is valid and may be used. Reads no file.
Status check_address(const char* flag, const std::string& text, bool may_choose, const ClusterAccess& access);
/// Whether every user of this machine can read the file.
bool is_open_to_all(const std::string& file);
/// Checks that the options go together. Reads no file.
Status check_access(const ClusterAccess& access);

}  // namespace seer
