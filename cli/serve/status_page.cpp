#include "cli/serve/status_page.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "cli/json_lines.h"
#include "cli/serve/metrics.h"
#include "cli/serve/request_fields.h"
#include "cli/steady_time.h"

namespace seer {
namespace {

constexpr std::string_view kPage =
#include "embedded/status_page.html.inc"
    ;

double seconds(int64_t us) { return static_cast<double>(us) / 1e6; }

Out tier(const TierUse& use) { return {{"used_bytes", use.used_bytes}, {"bytes", use.bytes}}; }

Out instances(const GatewayReport& report) {
  Out all = Out::array();
  for (const NodeReport& node : report.nodes)
    for (const InstanceReport& i : node.instances)
      all.push_back({{"id", i.instance.value},
                     {"node", node.node.value},
                     {"running", i.chunks},
                     {"kv_used_bytes", i.kv_blocks_used * i.kv_block_bytes},
                     {"kv_bytes", i.kv_blocks_total * i.kv_block_bytes},
                     {"output_tokens", i.output_tokens},
                     {"preemptions", i.preemptions},
                     {"yields", i.yields}});
  return all;
}

Out rollouts(const GatewayReport& report, const Front& front) {
  Out all = Out::array();
  for (const GatewayRollout& r : report.rollouts) {
    const double busy_s = seconds(r.busy_us);
    all.push_back({{"id", r.id.value},
                   {"weight_version", front.version_label(r.version)},
                   {"is_over", r.is_over},
                   {"responses", r.responses},
                   {"ended", r.ended},
                   {"output_tokens", r.output_tokens},
                   {"tokens_per_s", busy_s > 0 ? static_cast<double>(r.output_tokens) / busy_s : 0},
                   {"busy_s", busy_s},
                   {"tail_s", seconds(r.tail_us)},
                   {"error", r.error}});
  }
  return all;
}

Out drafts(const GatewayReport& report) {
  const DraftCounts counts = draft_counts(report.nodes);
  if (counts.verifies == 0) return nullptr;
  return {{"verifies", counts.verifies},
          {"drafted", counts.drafted},
          {"accepted", counts.accepted},
          {"acceptance_length", counts.acceptance_length()}};
}

/// A sample is a list, and so is each of its instances: the history has hundreds of them.
Out history(const ServeFigures& figures, const StatusQuestion& question) {
  const uint64_t first =
      std::clamp(question.first_sample, figures.first_sample(), figures.first_sample() + figures.samples().size());
  Out samples = Out::array();
  for (size_t i = first - figures.first_sample(); i < figures.samples().size(); ++i) {
    const ServeSample& s = figures.samples()[i];
    Out by_instance = Out::array();
    for (const ServeSample::Instance& instance : s.instances)
      by_instance.push_back({instance.id.value, instance.running, instance.kv_share});
    samples.push_back({seconds(s.at_us - question.started_us), s.open.held, s.open.queued, s.open.running,
                       s.tokens_per_s, s.kv.device.share(), s.kv.dram.share(), s.kv.cold.share(),
                       std::move(by_instance)});
  }
  return {{"first_sample", first},
          {"next_sample", first + samples.size()},
          {"fields",
           {"at_s", "held", "queued", "running", "tokens_per_s", "kv_device", "kv_dram", "kv_cold",
            "instances: id, running, kv"}},
          {"samples", std::move(samples)}};
}

/// The sentence of an error's body, whatever the dialect it is in.
std::string sentence_of(std::string_view body) {
  const Json json = Json::parse(body, nullptr, false);
  const Json* at = &json;
  if (at->is_object() && at->contains("error")) at = &at->at("error");
  if (at->is_object() && at->contains("message")) at = &at->at("message");
  return at->is_string() ? at->get<std::string>() : std::string(body);
}

}  // namespace

std::string_view status_page_html() { return kPage; }

std::string status_json(const ServeFigures& figures, const GatewayLoads& now, const Front& front,
                        const StatusQuestion& question) {
  const GatewayReport& report = figures.report();
  const OpenResponses open = open_responses(now);
  const KvUse kv = kv_use(report.nodes);
  const ServeRates rates = figures.rates();
  int64_t restarts = 0;
  for (const NodeReport& node : report.nodes) restarts += node.restarts;
  return json_text({{"model", front.model().name},
                    {"weight_version", front.version_label(now.version)},
                    {"uptime_s", seconds(question.now_us - question.started_us)},
                    {"is_paused", now.is_paused},
                    {"is_updating", now.is_updating},
                    {"responses",
                     {{"held", open.held},
                      {"queued", open.queued},
                      {"running", open.running},
                      {"stop", now.finished - now.at_length},
                      {"length", now.at_length},
                      {"abort", now.aborted},
                      {"error", now.failed}}},
                    {"oldest_request_s", seconds(now.oldest_us)},
                    {"requests", now.requests},
                    {"groups", now.groups},
                    {"output_tokens", now.output_tokens},
                    {"tokens_per_s", rates.tokens_per_s},
                    {"cached_share", rates.cached_share},
                    {"preemptions", now.preemptions},
                    {"migrations", now.migrations},
                    {"weight_updates", now.updates},
                    {"weight_updates_failed", now.updates_failed},
                    {"drafts", drafts(report)},
                    {"kv", {{"device", tier(kv.device)}, {"dram", tier(kv.dram)}, {"cold", tier(kv.cold)}}},
                    {"instances_expected", front.model().instances_expected()},
                    {"restarts", restarts},
                    {"instances", instances(report)},
                    {"rollouts", rollouts(report, front)},
                    {"history", history(figures, question)}});
}

StatusPage::StatusPage(HttpServer& server, Front& front, const ServedRollouts& rollouts, EventLog log)
    : server_(server), front_(front), rollouts_(rollouts), log_(std::move(log)), started_us_(steady_us()) {
  server_.watch(
      [this](const std::string& path, int status, std::string_view body) { note_answer(path, status, body); });
  front_.watch([this](const Response& response, int64_t latency_us) { figures_.count_response(response, latency_us); });
}

bool StatusPage::handle(const HttpRequest& request, const Reply& reply) {
  if (request.path != "/" && request.path != "/seer/v1/status" && request.path != "/metrics") return false;
  if (request.method != "GET")
    reply->send(405, http_error_body(cat(request.path, " takes GET, not ", request.method)));
  else if (request.path == "/")
    reply->send(200, std::string(kPage), "text/html; charset=utf-8");
  else if (request.path == "/metrics")
    metrics(reply);
  else
    status(request, reply);
  return true;
}

void StatusPage::sample() {
  if (is_sampling_.exchange(true)) return;
  front_.report([this](const GatewayReport& report) {
    figures_.take(report, steady_us());
    is_sampling_ = false;
  });
}

void StatusPage::note_answer(const std::string& path, int status, std::string_view body) {
  figures_.count_answer(path, status);
  if (status >= 400 && log_.is_on(LogLevel::kInfo))
    log_.info(steady_us(), "http_refused", {{"path", path}, {"status", status}, {"error", sentence_of(body)}});
}

void StatusPage::status(const HttpRequest& request, const Reply& reply) {
  StatusQuestion question{.started_us = started_us_};
  if (const auto given = request.query.find("first_sample"); given != request.query.end()) {
    const std::string& text = given->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), question.first_sample);
    if (text.empty() || error != std::errc() || end != text.data() + text.size())
      return reply->send(400,
                         http_error_body(cat("first_sample is \"", shown(text), "\": expected a number from 0 on")));
  }
  front_.ask([](GatewayActor& gateway) { return gateway.loads(); },
             [this, question, reply](const GatewayLoads& now) mutable {
               question.now_us = steady_us();
               reply->send(200, status_json(figures_, now, front_, question));
             });
}

void StatusPage::metrics(const Reply& reply) {
  front_.ask([](GatewayActor& gateway) { return gateway.loads(); },
             [this, reply](const GatewayLoads& now) {
               std::optional<bool> journal_fails;
               if (rollouts_.has_journal()) journal_fails = !rollouts_.journal_failed().ok();
               const Result<std::string> text = metrics_text(figures_, now, front_.model(), server_.connections(), journal_fails);
               if (!text.ok()) return reply->send(501, http_error_body(text.error().detail, 501));
               reply->send(200, *text, kMetricsType);
             });
}

}  // namespace seer
