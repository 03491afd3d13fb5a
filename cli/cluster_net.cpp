#include "cli/cluster_net.h"

#include <chrono>

namespace seer {
namespace {

int64_t steady_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Result<std::unique_ptr<ClusterNet>> ClusterNet::create(const ClusterAccess& access, const EventLog& log) {
  SEER_ASSIGN_OR_RETURN(std::string secret, read_secret(access));
  if (is_open_to_all(access.secret_file)) log.warn(steady_us(), "secret_open_to_all", {{"file", access.secret_file}});
  GateConfig config{.tls = access.tls, .secret = std::move(secret), .secret_flag = access.flag("secret-file")};
  config.on_stranger = [log](const std::string& address, uint64_t count) {
    log.warn(steady_us(), "stranger_refused", {{"address", address}, {"why", "another secret, or none"}, {"refused", count}});
  };
  SEER_ASSIGN_OR_RETURN(std::unique_ptr<ClusterGate> gate, ClusterGate::create(config));
  return std::make_unique<ClusterNet>(std::move(gate), !access.tls.empty());
}

}  // namespace seer
