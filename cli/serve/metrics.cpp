#include "cli/serve/metrics.h"

#ifdef SEER_HAVE_PROMETHEUS
#include <prometheus/text_serializer.h>

#include <limits>
#include <sstream>
#include <utility>
#include <vector>
#endif

namespace seer {

#ifdef SEER_HAVE_PROMETHEUS
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

/// The values of one metric, by its labels.
class Family {
 public:
  Family(std::string name, MetricType type, std::string help) : family_{std::move(name), std::move(help), type, {}} {}
  template <class Number>
  Family& add(Number value, Labels labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    (family_.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = static_cast<double>(value);
    family_.metric.push_back(std::move(metric));
    return *this;
  }
  Family& add(const Histogram& histogram) {
    ClientMetric metric;
    metric.histogram.sample_sum = histogram.sum;
    for (size_t i = 0; i < histogram.counts.size(); ++i) {
      metric.histogram.sample_count += histogram.counts[i];
      const bool is_last = i == histogram.bounds.size();
      metric.histogram.bucket.push_back(
          {metric.histogram.sample_count, is_last ? std::numeric_limits<double>::infinity() : histogram.bounds[i]});
    }
    family_.metric.push_back(std::move(metric));
    return *this;
  }
  MetricFamily take() { return std::move(family_); }

 private:
  MetricFamily family_;
};

Family counter(const char* name, const char* help) { return {name, MetricType::Counter, help}; }
Family gauge(const char* name, const char* help) { return {name, MetricType::Gauge, help}; }
Family histogram(const char* name, const char* help) { return {name, MetricType::Histogram, help}; }

double seconds(int64_t us) { return static_cast<double>(us) / 1e6; }

using Families = std::vector<MetricFamily>;

void add_http(Families& out, const ServeFigures& figures, size_t connections) {
  Family answers = counter("seer_http_requests_total", "Answers that were begun, by path and class of status.");
  for (const auto& [key, count] : figures.answers())
    answers.add(count, {{"path", std::string(key.first)}, {"status", std::string(key.second)}});
  out.push_back(answers.take());
  out.push_back(gauge("seer_http_connections", "Connections that are open.").add(connections).take());
}

void add_gateway(Families& out, const GatewayLoads& now) {
  const OpenResponses open = open_responses(now);
  out.push_back(gauge("seer_gateway_open_responses",
                      "Responses asked for and not over: held (in no rollout yet), queued (for an "
                      "instance), running.")
                    .add(open.held, {{"state", "held"}})
                    .add(open.queued, {{"state", "queued"}})
                    .add(open.running, {{"state", "running"}})
                    .take());
  out.push_back(gauge("seer_gateway_oldest_request_seconds", "Age of the oldest request that is not over.")
                    .add(seconds(now.oldest_us))
                    .take());
  out.push_back(counter("seer_gateway_requests_total", "Requests that came.").add(now.requests).take());
  out.push_back(counter("seer_gateway_groups_total", "Groups that were made of requests.").add(now.groups).take());
  out.push_back(counter("seer_gateway_responses_total", "Responses that are over, by how they ended.")
                    .add(now.finished - now.at_length, {{"finish", "stop"}})
                    .add(now.at_length, {{"finish", "length"}})
                    .add(now.aborted, {{"finish", "abort"}})
                    .add(now.failed, {{"finish", "error"}})
                    .take());
  out.push_back(counter("seer_gateway_prompt_tokens_total", "Tokens of prompts, once for each request.")
                    .add(now.prompt_tokens)
                    .take());
  out.push_back(
      counter("seer_gateway_output_tokens_total", "Tokens of responses that are over.").add(now.output_tokens).take());
  out.push_back(counter("seer_gateway_preemptions_total", "Times that responses that are over had lost their KV.")
                    .add(now.preemptions)
                    .take());
  out.push_back(counter("seer_gateway_migrations_total", "Times that responses that are over had changed instances.")
                    .add(now.migrations)
                    .take());
  out.push_back(gauge("seer_gateway_open_rollouts", "Rollouts that take groups, or whose responses are not all over.")
                    .add(now.rollouts)
                    .take());
  out.push_back(gauge("seer_gateway_weight_version", "Number of the weights that run.").add(now.version.value).take());
  out.push_back(counter("seer_gateway_weight_updates_total", "Updates of weights, by what became of them.")
                    .add(now.updates, {{"outcome", "success"}})
                    .add(now.updates_failed, {{"outcome", "failure"}})
                    .take());
  out.push_back(gauge("seer_gateway_paused", "1 while generation is paused.").add(now.is_paused ? 1 : 0).take());
  out.push_back(gauge("seer_gateway_updating", "1 while weights are updated.").add(now.is_updating ? 1 : 0).take());
}

void add_responses(Families& out, const ServeFigures& figures) {
  out.push_back(histogram("seer_response_first_token_seconds", "Time from a request until its first tokens.")
                    .add(figures.first_token_s())
                    .take());
  out.push_back(histogram("seer_response_latency_seconds",
                          "Time from a request until its response, if that ended with stop or length.")
                    .add(figures.latency_s())
                    .take());
  out.push_back(histogram("seer_response_output_tokens", "Tokens of responses that ended with stop or length.")
                    .add(figures.output_tokens())
                    .take());
}

void add_machines(Families& out, const GatewayReport& report, const ServedModel& model) {
  const std::vector<InstanceReport> instances = instances_of(report.nodes);
  out.push_back(gauge("seer_fleet_instances_up", "Instances that answer.").add(instances.size()).take());
  out.push_back(gauge("seer_fleet_instances_expected", "Instances that there should be.").add(model.instances_expected()).take());
  Family restarts = counter("seer_fleet_restarts_total", "Parts of a machine that died and were started again.");
  for (const NodeReport& node : report.nodes) restarts.add(node.restarts, {{"node", cat(node.node)}});
  out.push_back(restarts.take());

  // Prometheus has a label "instance" of its own: the server.
  const auto add = [&](Family family, auto value) {
    for (const InstanceReport& instance : instances)
      family.add(value(instance), {{"engine", cat(instance.instance)}});
    out.push_back(family.take());
  };
  add(gauge("seer_instance_chunks", "Chunks that are on the instance."), [](const auto& i) { return i.chunks; });
  add(gauge("seer_instance_kv_blocks_used", "KV blocks of the device in use."),
      [](const auto& i) { return i.kv_blocks_used; });
  add(gauge("seer_instance_kv_blocks", "KV blocks of the device."), [](const auto& i) { return i.kv_blocks_total; });
  add(counter("seer_instance_busy_seconds_total", "Time inside steps."),
      [](const auto& i) { return seconds(i.busy_us); });
  add(counter("seer_instance_steps_total", "Steps."), [](const auto& i) { return i.steps; });
  add(counter("seer_instance_output_tokens_total", "Tokens that were sampled."),
      [](const auto& i) { return i.output_tokens; });
  add(counter("seer_instance_prefill_tokens_total", "Tokens that were fed without sampling from them."),
      [](const auto& i) { return i.prefill_tokens; });
  add(counter("seer_instance_cached_tokens_total",
              "Tokens whose KV was found, on the device or in the pool, when a chunk began."),
      [](const auto& i) { return i.cached_tokens; });
  add(counter("seer_instance_preemptions_total", "Chunks that ended early and lost their KV, for lack of room."),
      [](const auto& i) { return i.preemptions; });
  add(counter("seer_instance_yields_total", "Chunks that ended early, for lack of room; their KV went to the pool."),
      [](const auto& i) { return i.yields; });
  add(counter("seer_instance_corrupt_blocks_total", "KV blocks whose checksum did not match: computed again."),
      [](const auto& i) { return i.corrupt_blocks; });
  add(counter("seer_draft_verifies_total", "Drafts that were verified."),
      [](const auto& i) { return i.drafting.all().verifies; });
  add(counter("seer_draft_tokens_total", "Draft tokens that were verified."),
      [](const auto& i) { return i.drafting.all().drafted; });
  add(counter("seer_draft_accepted_tokens_total", "Draft tokens that were accepted."),
      [](const auto& i) { return i.drafting.all().accepted; });
}

void add_kv(Families& out, const GatewayReport& report) {
  const KvUse tiers = kv_use(report.nodes);
  out.push_back(gauge("seer_kv_used_bytes", "KV cache in use, by tier.")
                    .add(tiers.device.used_bytes, {{"tier", "device"}})
                    .add(tiers.dram.used_bytes, {{"tier", "dram"}})
                    .add(tiers.cold.used_bytes, {{"tier", "cold"}})
                    .take());
  out.push_back(gauge("seer_kv_capacity_bytes", "Size of the KV cache, by tier.")
                    .add(tiers.device.bytes, {{"tier", "device"}})
                    .add(tiers.dram.bytes, {{"tier", "dram"}})
                    .add(tiers.cold.bytes, {{"tier", "cold"}})
                    .take());
  const auto add = [&](Family family, auto value) {
    for (const NodeReport& node : report.nodes)
      for (const KvNodeReport& pool : node.pool) family.add(value(pool), {{"node", cat(node.node)}});
    out.push_back(family.take());
  };
  add(counter("seer_pool_spilled_bytes_total", "KV from DRAM to the cold tier."),
      [](const auto& p) { return p.spilled_bytes; });
  add(counter("seer_pool_promoted_bytes_total", "KV from the cold tier to DRAM."),
      [](const auto& p) { return p.promoted_bytes; });
  add(counter("seer_pool_fetched_bytes_total", "KV from other machines."),
      [](const auto& p) { return p.fetched_bytes; });
  add(counter("seer_pool_dropped_blocks_total", "KV blocks that the pool dropped for lack of room."),
      [](const auto& p) { return p.dropped_blocks; });
  add(counter("seer_pool_refused_blocks_total", "KV blocks that the pool had no room for."),
      [](const auto& p) { return p.refused_blocks; });
  add(counter("seer_pool_corrupt_blocks_total", "KV blocks of the pool whose checksum did not match."),
      [](const auto& p) { return p.corrupt_blocks; });
  add(counter("seer_pool_fetch_failures_total", "KV blocks that did not come from another machine."),
      [](const auto& p) { return p.fetch_failures; });
  add(counter("seer_pool_cold_failures_total", "Reads and writes of the cold tier that failed."),
      [](const auto& p) { return p.cold_failures; });
}

/// As SGLang means them.
void add_aliases(Families& out, const ServeFigures& figures, const GatewayLoads& now, const ServedModel& model) {
  const OpenResponses open = open_responses(now);
  const ServeRates rates = figures.rates();
  const DraftCounts drafts = draft_counts(figures.report().nodes);
  const auto add = [&](const char* name, const char* help, auto value) {
    out.push_back(gauge(name, help).add(value, {{"model_name", model.name}}).take());
  };
  add("sglang:num_running_reqs", "Responses that run on an instance.", open.running);
  add("sglang:num_queue_reqs", "Responses that wait.", open.held + open.queued);
  add("sglang:token_usage", "Share of the devices' KV blocks in use.", now.kv_use_share);
  add("sglang:gen_throughput", "Tokens per second, over the last 5 s.", rates.tokens_per_s);
  add("sglang:cache_hit_rate", "Share of the tokens whose KV was found, over the last 5 s.", rates.cached_share);
  add("sglang:spec_accept_length", "Tokens for each verified draft, since the start; 0 without drafts.",
      drafts.verifies > 0 ? drafts.acceptance_length() : 0);
}

}  // namespace

bool has_metrics() { return true; }

Result<std::string> metrics_text(const ServeFigures& figures, const GatewayLoads& now, const ServedModel& model,
                                 size_t connections, std::optional<bool> journal_fails) {
  Families families;
  add_http(families, figures, connections);
  add_gateway(families, now);
  add_responses(families, figures);
  add_machines(families, figures.report(), model);
  add_kv(families, figures.report());
  if (journal_fails)
    families.push_back(gauge("seer_journal_failed", "1 while the journal cannot be written: groups of rollouts are refused.")
                           .add(*journal_fails ? 1 : 0)
                           .take());
  add_aliases(families, figures, now, model);
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return std::move(text).str();
}

#else

bool has_metrics() { return false; }

Result<std::string> metrics_text(const ServeFigures&, const GatewayLoads&, const ServedModel&, size_t, std::optional<bool>) {
  return fail(Code::kUnavailable, "metrics need prometheus-cpp, but this build was made without it");
}

#endif

}  // namespace seer
