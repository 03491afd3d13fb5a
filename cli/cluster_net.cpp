#include "cli/cluster_net.h"

#include "cli/secret_file.h"
#include "cli/steady_time.h"

namespace seer {

Result<std::unique_ptr<ClusterNet>> ClusterNet::create(const ClusterAccess& access, const EventLog& log) {
  SEER_ASSIGN_OR_RETURN(std::string secret, read_secret_file(access.flag("secret-file"), access.secret_file));
  if (is_open_to_all(access.secret_file)) log.warn(steady_us(), "secret_open_to_all", {{"file", access.secret_file}});
  GateConfig config{.tls = access.tls, .secret = std::move(secret), .secret_flag = access.flag("secret-file")};
  config.on_stranger = [log](const std::string& address, uint64_t count) {
    log.warn(steady_us(), "stranger_refused", {{"address", address}, {"why", "another secret, or none"}, {"refused", count}});
  };
  SEER_ASSIGN_OR_RETURN(std::unique_ptr<ClusterGate> gate, ClusterGate::create(config));
  return std::make_unique<ClusterNet>(std::move(gate), !access.tls.empty());
}

}  // namespace seer
