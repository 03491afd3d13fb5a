// What a router has beside what other front ends have: the list of its servers (/workers), what it has learned of them
// (/seer/v1/profile), and weights that a trainer sends to them over a communication group of its own (served/weights_group.h).
//
// Such weights come in parts, and between two parts a server has weights of no version. So parts are taken only while generation is
// paused and nothing runs. When it continues (/continue_generation, /resume), each server must say that it has the new version: it
// takes part again, or is out. A server that fails in the middle leaves the list: nobody knows what it has.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/serve/front.h"
#include "cli/serve/http_server.h"
#include "cli/serve/routed_servers.h"
#include "served/weights_group.h"

namespace seer {

/// How many ranks the servers that take part now have in a trainer's group, together.
int64_t ranks_in_group(const RoutedServers& servers);

class RouterDialect {
 public:
  RouterDialect(HttpServer& http, Front& front, RoutedServers& servers) : http_(http), front_(front), servers_(servers) {}
  /// False: the path is not of this dialect.
  bool handle(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);

 private:
  using Reply = std::shared_ptr<HttpReply>;
  using Members = std::vector<std::string>;  // ids of servers, by rank
  void workers(const HttpRequest& request, const Reply& reply);
  void list_workers(const Reply& reply);
  void profile(const HttpRequest& request, const Reply& reply);
  void pass_on(GroupCall call, const HttpRequest& request, const Reply& reply);
  Status note_version(const GroupCall& call);
  Result<Members> members_of(const GroupCall& call);
  void ask_members(const GroupCall& call, const Members& members, const Reply& reply);
  void over(const GroupCall& call, const Members& members, const std::vector<Status>& answers, const Reply& reply);
  void pause(const HttpRequest& request, const Reply& reply);
  void go_on(const Reply& reply);
  void world_size(const Reply& reply);

  HttpServer& http_;
  Front& front_;
  RoutedServers& servers_;
  std::map<std::string, Members> groups_;  // by name
  bool is_passing_ = false;                // a call is under way
  bool has_new_weights_ = false;           // parts of them have come, and generation has not continued since
  WeightVersion version_then_;             // that ran then; if another one runs since, weights came whole in another way
  std::optional<WeightLabel> new_label_;   // what the trainer calls them, with their number; none: the call that may say so has not come
};

}  // namespace seer
