// StatusPage: what `seer serve` tells people and monitors of itself: a page that draws itself (GET /), the figures that
// it draws (GET /seer/v1/status), and GET /metrics. Runs on the server's thread.
//
// The page has no figures in it and needs no token. It asks for the token and sends it with each question.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "actors/log.h"
#include "cli/serve/front.h"
#include "cli/serve/serve_figures.h"
#include "cli/serve/served_rollouts.h"

namespace seer {

/// The whole page, which fetches nothing but /seer/v1/status.
std::string_view status_page_html();
struct StatusQuestion {
  uint64_t first_sample = 0;  // of the history; those that are forgotten are left out
  int64_t started_us = 0;     // the server, on the clock of the samples
  int64_t now_us = 0;
};
/// Writes the object that docs/serve.md describes. `now` may be later than the last report in `figures`.
std::string status_json(const ServeFigures& figures, const GatewayLoads& now, const Front& front,
                        const StatusQuestion& question);

class StatusPage {
 public:
  /// Watches what server and front answer, and logs what they refuse. REQUIRES: the server has not started.
  StatusPage(HttpServer& server, Front& front, const ServedRollouts& rollouts, EventLog log);
  /// False: the path is none of these.
  bool handle(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  /// Asks the gateway for the next sample of the history, unless it has not answered for the last one. Thread-safe.
  void sample();

 private:
  using Reply = std::shared_ptr<HttpReply>;
  void note_answer(const std::string& path, int status, std::string_view body);
  void status(const HttpRequest& request, const Reply& reply);
  void metrics(const Reply& reply);

  HttpServer& server_;
  Front& front_;
  const ServedRollouts& rollouts_;
  const EventLog log_;
  const int64_t started_us_;
  std::atomic<bool> is_sampling_ = false;
  ServeFigures figures_;
};

}  // namespace seer
