#include "cli/serve/router_dialect.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "cli/serve/group_calls.h"
#include "cli/serve/request_fields.h"
#include "served/server_dialect.h"

namespace seer {
namespace {

constexpr std::string_view kWorker = "/workers/";

void refuse(const std::shared_ptr<HttpReply>& reply, int status, const std::string& why) { reply->send(status, http_error_body(why, status)); }

/// "seer=http://..." without the kind.
std::string plain_url(const std::string& worker) {
  const size_t kind_end = worker.find('=');
  return kind_end < worker.find("://") ? worker.substr(kind_end + 1) : worker;
}

Out worker_json(const RoutedServer& server) {
  return {{"id", server.id}, {"url", server.url}, {"is_healthy", server.is_up}, {"worker_type", "regular"}, {"kind", server.kind},
          {"engine", server.engine}, {"weight_version", server.weights}, {"draining", server.is_draining}, {"deterministic", server.is_deterministic},
          {"running", server.running}, {"waiting", server.waiting}, {"error", server.why_out.empty() ? Out() : Out(server.why_out)}};
}

bool takes_part(const RoutedServer& server) { return server.is_up && !server.is_draining; }

}  // namespace

int64_t ranks_in_group(const RoutedServers& servers) {
  int64_t ranks = 0;
  for (const RoutedServer& server : servers.list())
    if (takes_part(server)) ranks += server.ranks;
  return ranks;
}

bool RouterDialect::handle(const HttpRequest& request, const Reply& reply) {
  const std::string& path = request.path;
  if (path == "/workers" || path == "/list_workers" || path.starts_with(kWorker) || path == "/add_worker" || path == "/remove_worker") workers(request, reply);
  else if (path == "/seer/v1/profile" && request.method == "GET") profile(request, reply);
  else if (path == "/pause" && request.method == "POST") pause(request, reply);
  else if (path == "/resume" && request.method == "POST") go_on(reply);
  else if (path == "/continue_generation" && request.method == "POST" && (has_new_weights_ || is_passing_)) go_on(reply);
  else if (path == "/get_world_size" && request.method == "GET") world_size(reply);
  else if (auto call = group_call_at(path); call && request.method == "POST") pass_on(*std::move(call), request, reply);
  else return false;
  return true;
}

void RouterDialect::workers(const HttpRequest& request, const Reply& reply) {
  if (request.method == "GET") return list_workers(reply);
  const auto remove = [&](const std::string& worker) {
    const Status removed = servers_.remove(plain_url(worker));
    if (!removed.ok()) return refuse(reply, 404, removed.error().detail);
    reply->send(202, json_text({{"success", true}}));
  };
  // By its id, or its URL with percent signs.
  if (request.method == "DELETE" && request.path.starts_with(kWorker)) return remove(decode_percent(request.path.substr(kWorker.size())));
  const Result<std::string> url = worker_url(request);
  if (!url.ok()) return refuse(reply, 400, url.error().detail);
  if (request.method == "DELETE" || request.path == "/remove_worker") return remove(*url);
  const Result<std::string> id = servers_.add(*url);
  if (!id.ok()) return refuse(reply, 400, id.error().detail);
  reply->send(202, json_text({{"status", "accepted"}, {"worker_id", *id}, {"url", plain_url(*url)}}));
}

/// A trainer may take the router for its engine and its router in one (slime), register it here, and abort the requests of each worker. Then
/// the servers must not be among the workers: a request that is aborted at a server only goes to another one.
void RouterDialect::list_workers(const Reply& reply) {
  Out servers = Out::array(), itself = Out::array();
  const std::vector<RoutedServer> all = servers_.list();
  const bool is_any_up = std::ranges::any_of(all, &RoutedServer::is_up);
  for (const RoutedServer& server : all) {
    Out worker = worker_json(server);
    const bool is_itself = server.why_out == kIsThisProcess;
    if (is_itself) worker["is_healthy"] = is_any_up, worker["error"] = nullptr;
    (is_itself ? itself : servers).push_back(std::move(worker));
  }
  const Out& workers = itself.empty() ? servers : itself;
  Out urls = Out::array();
  for (const Out& worker : workers) urls.push_back(worker["url"]);
  Out answer = {{"workers", workers}, {"urls", urls}, {"total", workers.size()}};
  if (!itself.empty()) answer["servers"] = servers;
  reply->send(200, json_text(answer));
}

void RouterDialect::profile(const HttpRequest& request, const Reply& reply) {
  if (const Status names = check_query(request, {"worker"}); !names.ok()) return refuse(reply, 400, names.error().detail);
  const auto worker = request.query.find("worker");
  const Result<StepProfile> learned = servers_.profile(worker == request.query.end() ? "" : worker->second);
  if (!learned.ok()) return refuse(reply, learned.error().code == Code::kNotFound ? 404 : 409, learned.error().detail);
  reply->send(200, step_profile_json(*learned));
}

// ---- weights over a trainer's group -----------------------------------------------------------------------------------------------

void RouterDialect::pause(const HttpRequest& request, const Reply& reply) {
  if (const Status names = check_query_spelling(request, {"mode", "clear_cache"}); !names.ok()) return refuse(reply, 400, names.error().detail);
  const auto mode = request.query.find("mode");
  const Result<InFlight> in_flight = read_in_flight(mode == request.query.end() ? "" : mode->second, {{"wait", InFlight::kFinish}, {"keep", InFlight::kRedo}});
  if (!in_flight.ok()) return refuse(reply, 400, in_flight.error().detail);
  front_.pause(*in_flight, [reply] { reply->send(200, json_text({{"status", "paused"}})); });
}

/// As vLLM says it, of all servers together.
void RouterDialect::world_size(const Reply& reply) { reply->send(200, json_text({{"world_size", ranks_in_group(servers_)}})); }

void RouterDialect::pass_on(GroupCall call, const HttpRequest& request, const Reply& reply) {
  if (const Status read = read_group_call(call, request); !read.ok()) return answer_trainer(reply, false, read.error().detail);
  if (is_passing_) return answer_trainer(reply, false, cat(call.path, ": another call of this kind is under way"));
  Result<Members> members = members_of(call);
  if (!members.ok()) return answer_trainer(reply, false, members.error().detail);
  if (members->empty()) return answer_trainer(reply, false, cat(call.path, ": no server takes part"));
  is_passing_ = true;
  if (!call.changes_weights()) return ask_members(call, *members, reply);
  check_paused(front_, call.path, true, [this, call, members = *std::move(members), reply](const Status& paused) {
    const Status ready = paused.ok() ? note_version(call) : paused;
    if (ready.ok()) {
      servers_.weights_move(front_.version());
      return ask_members(call, members, reply);
    }
    is_passing_ = false;
    answer_trainer(reply, false, ready.error().detail);
  });
}

/// All parts of an update have one version, which the servers are told with each. Where none is given (AReaL), it is the next one, taken with
/// the first part: a number that an update got which failed since is not used again.
Status RouterDialect::note_version(const GroupCall& call) {
  if (!names_version(call)) return {};
  const std::string given = version_of(call);
  const bool is_first = !new_label_ || *new_label_->number < front_.next_version();
  if (given.empty() && !is_first) return {};
  SEER_ASSIGN_OR_RETURN(WeightLabel label, read_trainer_label("weight_version", given, front_.last_used()));
  if (!label.number) label.number = front_.next_version();
  new_label_ = std::move(label);
  return {};
}

Result<RouterDialect::Members> RouterDialect::members_of(const GroupCall& call) {
  if (call.stage != GroupStage::kInit) {
    const auto group = groups_.find(group_of(call));
    if (group == groups_.end()) return fail(Code::kNotFound, call.path, ": no server has joined a group ", group_of(call));
    return group->second;
  }
  Members members;
  int64_t ranks = 0;
  for (const RoutedServer& server : servers_.list()) {
    if (!takes_part(server)) continue;
    if (server.kind != to_string(call.kind)) return fail(Code::kInvalidArgument, call.path, ": ", server.url, " is of kind ", server.kind, ", which does not have it");
    members.push_back(server.id);
    ranks += server.ranks;
  }
  if (ranks != ranks_of(call))
    return fail(Code::kInvalidArgument, call.path, ": ", ranks_of(call), " ranks are for the servers, and ", members.size(), " servers have ", ranks);
  return members;
}

/// All at the same time: each answers when the others have taken part.
void RouterDialect::ask_members(const GroupCall& call, const Members& members, const Reply& reply) {
  struct Answers {
    std::vector<Status> all;
    std::atomic<size_t> left;
  };
  const auto answers = std::make_shared<Answers>();
  answers->all.resize(members.size());
  answers->left = members.size();
  std::map<std::string, int64_t> ranks;
  for (const RoutedServer& server : servers_.list()) ranks[server.id] = server.ranks;
  const WeightVersion version = new_label_ ? *new_label_->number : WeightVersion{};
  int64_t before = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    servers_.pass(members[i], asks_of(call, before, servers_.label_of(version)), [this, answers, i, call, members, reply](Status status) {
      answers->all[i] = std::move(status);
      if (--answers->left == 0) http_.post([this, answers, call, members, reply] { over(call, members, answers->all, reply); });
    });
    before += ranks[members[i]];
  }
}

void RouterDialect::over(const GroupCall& call, const Members& members, const std::vector<Status>& answers, const Reply& reply) {
  is_passing_ = false;
  Members good;
  std::string why;
  for (size_t i = 0; i < members.size(); ++i) {
    if (answers[i].ok()) {
      good.push_back(members[i]);
      continue;
    }
    why += cat(why.empty() ? "" : "; ", answers[i].error().detail);
    if (call.changes_weights()) (void)servers_.remove(members[i]);
  }
  const std::string group = group_of(call);
  if (call.stage == GroupStage::kInit && why.empty()) groups_[group] = members;
  if (call.stage == GroupStage::kDestroy) groups_.erase(group);
  if (call.changes_weights()) {
    groups_[group] = good;  // what the others have is not known
    has_new_weights_ = true;
    version_then_ = front_.version();
  }
  answer_trainer(reply, why.empty(), why.empty() ? cat(members.size(), " servers have answered.") : why);
}

/// With new weights: each server says what it has, and takes part if that is right.
void RouterDialect::go_on(const Reply& reply) {
  if (is_passing_) return answer_trainer(reply, false, "a part of new weights is under way");
  const auto proceed = [this, reply](const std::string& message) { continue_generation(front_, reply, message); };
  if (front_.version() != version_then_) has_new_weights_ = false, new_label_.reset();
  if (!has_new_weights_) return proceed("Generation continued successfully.");
  if (!new_label_) return answer_trainer(reply, false, "the new weights have no version: expected /finish_weight_update before");
  const WeightVersion before = front_.version();
  front_.update_weights({.version = {}, .folder = ""}, InFlight::kAbort, *new_label_, [this, reply, before, proceed](const WeightsDone& done) {
    if (front_.version() == before) return answer_trainer(reply, false, done.status.ok() ? "no server has the new weights" : done.status.error().detail);
    has_new_weights_ = false;
    new_label_.reset();
    proceed(cat("Generation continued with weight version ", front_.version_label(front_.version()), done.who_is_out(), "."));
  });
}

}  // namespace seer
