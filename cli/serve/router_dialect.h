// What a router has beside what other front ends have: the list of its servers (/workers), and what it has learned of them
// (/seer/v1/profile).
#pragma once
#include <memory>

#include "cli/serve/http_server.h"
#include "cli/serve/routed_servers.h"

namespace seer {

class RouterDialect {
 public:
  explicit RouterDialect(RoutedServers& servers) : servers_(servers) {}
  /// False: the path is not of this dialect.
  bool handle(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);

 private:
  using Reply = std::shared_ptr<HttpReply>;
  void workers(const HttpRequest& request, const Reply& reply);
  void profile(const HttpRequest& request, const Reply& reply);

  RoutedServers& servers_;
};

}  // namespace seer
