#include "cli/serve/router_dialect.h"

#include <string>

#include "cli/serve/request_fields.h"

namespace seer {
namespace {

void refuse(const std::shared_ptr<HttpReply>& reply, int status, const std::string& why) { reply->send(status, http_error_body(why, status)); }

}  // namespace

bool RouterDialect::handle(const HttpRequest& request, const Reply& reply) {
  const std::string& path = request.path;
  if (path == "/workers" || path == "/list_workers" || path.starts_with("/workers/") || path == "/add_worker") workers(request, reply);
  else if (path == "/seer/v1/profile" && request.method == "GET") profile(request, reply);
  else return false;
  return true;
}

void RouterDialect::workers(const HttpRequest& request, const Reply& reply) {
  if (request.method == "GET") {
    Out list = Out::array(), urls = Out::array();
    for (const RoutedServer& server : servers_.list()) {
      list.push_back({{"id", server.id}, {"url", server.url}, {"is_healthy", server.is_up}, {"worker_type", "regular"}, {"kind", server.kind},
                      {"engine", server.engine}, {"weight_version", server.weights}, {"draining", server.is_draining}, {"deterministic", server.is_deterministic}, {"running", server.running}, {"waiting", server.waiting}, {"error", server.why_out.empty() ? Out() : Out(server.why_out)}});
      urls.push_back(server.url);
    }
    return reply->send(200, json_text({{"workers", list}, {"urls", urls}, {"total", list.size()}}));
  }
  if (request.method == "DELETE") {
    const Status removed = servers_.remove(request.path.substr(request.path.rfind('/') + 1));
    if (!removed.ok()) return refuse(reply, 404, removed.error().detail);
    return reply->send(202, json_text({{"success", true}}));
  }
  const Result<std::string> url = worker_url(request);
  if (!url.ok()) return refuse(reply, 400, url.error().detail);
  const Result<std::string> id = servers_.add(*url);
  if (!id.ok()) return refuse(reply, 400, id.error().detail);
  reply->send(202, json_text({{"status", "accepted"}, {"worker_id", *id}, {"url", *url}}));
}

void RouterDialect::profile(const HttpRequest& request, const Reply& reply) {
  const auto worker = request.query.find("worker");
  const Result<StepProfile> learned = servers_.profile(worker == request.query.end() ? "" : worker->second);
  if (!learned.ok()) return refuse(reply, learned.error().code == Code::kNotFound ? 404 : 409, learned.error().detail);
  reply->send(200, step_profile_json(*learned));
}

}  // namespace seer
