#include "cli/cluster_access.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <charconv>
#include <filesystem>

namespace seer {

bool is_of_this_host(const std::string& host) {
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool resolves(const std::string& host) {
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, nullptr, &found) != 0) return false;
  freeaddrinfo(found);
  return true;
}

std::string address_text(const std::string& host, uint16_t port) {
  return host.find(':') == std::string::npos ? cat(host, ":", port) : cat("[", host, "]:", port);
}

std::vector<OptionSpec> access_options(ClusterAccess& access) {
  const std::string& p = access.prefix;
  return {{p + "tls-cert", "FILE", &access.tls.certificate, "certificate of this machine (PEM): mutual TLS between processes"},
          {p + "tls-key", "FILE", &access.tls.key, "its private key"},
          {p + "tls-ca", "FILE", &access.tls.ca, "certificate of the CA that signed those of all machines of the cluster"},
          {p + "secret-file", "FILE", &access.secret_file, "file whose first line is the cluster's secret: processes with another one, or none, are refused"},
          {p + "insecure", "", &access.insecure, "use addresses of other hosts without TLS: whoever reaches a port, and has the secret if there is one, can take part"}};
}

Result<HostPort> parse_host_port(const char* flag, const std::string& text, bool may_choose) {
  const auto wrong = [&](const auto&... expected) {
    return fail(Code::kInvalidArgument, flag, " ", text, ": expected ", expected...);
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return wrong("HOST:PORT, as 127.0.0.1:7000");
  HostPort found{.host = text.substr(0, colon)};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, found.port);
  if (error != std::errc() || rest != end || (found.port == 0 && !may_choose))
    return wrong("a port from ", may_choose ? 0 : 1, " to 65535 after the colon");
  if (found.host == "localhost") found.host = "127.0.0.1";
  if (found.host.starts_with('[') && found.host.ends_with(']')) found.host = found.host.substr(1, found.host.size() - 2);
  return found;
}

Status check_address(const char* flag, const std::string& text, bool may_choose, const ClusterAccess& access) {
  SEER_ASSIGN_OR_RETURN(const HostPort at, parse_host_port(flag, text, may_choose));
  if (is_of_this_host(at.host) || !access.tls.empty() || access.insecure) return {};
  return fail(Code::kInvalidArgument, flag, " ", text, " is not of this host: expected ", access.flag("tls-cert"), ", ",
              access.flag("tls-key"), " and ", access.flag("tls-ca"), " with it, or ", access.flag("insecure"));
}

bool is_open_to_all(const std::string& file) {
  std::error_code missing;
  const std::filesystem::perms mode = std::filesystem::status(file, missing).permissions();
  return !missing && (mode & std::filesystem::perms::others_read) != std::filesystem::perms::none;
}

Status check_access(const ClusterAccess& access) {
  const TlsFiles& tls = access.tls;
  const bool any = !tls.certificate.empty() || !tls.key.empty() || !tls.ca.empty();
  const std::string cert = access.flag("tls-cert"), key = access.flag("tls-key"), ca = access.flag("tls-ca");
  for (const auto& [flag, file] : {std::pair{cert, &tls.certificate}, {key, &tls.key}, {ca, &tls.ca}})
    if (any && file->empty()) return fail(Code::kInvalidArgument, flag, " is missing: expected ", cert, ", ", key, " and ", ca, " together");
  if (any && access.insecure)
    return fail(Code::kInvalidArgument, access.flag("insecure"), " cannot go with ", cert, ": expected one of them");
  return {};
}

}  // namespace seer
