#include "cli/serve/serve_figures.h"

#include <algorithm>
#include <array>

namespace seer {
namespace {

constexpr size_t kRateSamples = 6;  // rates are over five seconds

/// What a client asked for: a label must not hold what clients write.
constexpr auto kPaths = std::to_array<std::string_view>({"/",
                                                         "/abort_request",
                                                         "/add_worker",
                                                         "/continue_generation",
                                                         "/flush_cache",
                                                         "/generate",
                                                         "/get_load",
                                                         "/get_model_info",
                                                         "/get_server_info",
                                                         "/get_weight_version",
                                                         "/health",
                                                         "/health_generate",
                                                         "/list_workers",
                                                         "/metrics",
                                                         "/model_info",
                                                         "/pause_generation",
                                                         "/seer/v1/status",
                                                         "/server_info",
                                                         "/update_weights_from_disk",
                                                         "/v1/chat/completions",
                                                         "/v1/completions",
                                                         "/v1/loads",
                                                         "/v1/models",
                                                         "/workers"});
/// Paths that begin so are counted as one.
constexpr auto kPathBeginnings =
    std::to_array<std::string_view>({"/seer/v1/rollouts", "/seer/v1/weights", "/v1/models/", "/workers/"});
constexpr auto kStatusClasses = std::to_array<std::string_view>({"other", "1xx", "2xx", "3xx", "4xx", "5xx"});

std::string_view path_class(std::string_view path) {
  if (const auto known = std::ranges::find(kPaths, path); known != kPaths.end()) return *known;
  for (const std::string_view beginning : kPathBeginnings)
    if (path.starts_with(beginning)) return beginning;
  return "other";
}

std::string_view status_class(int status) {
  const auto hundreds = static_cast<size_t>(std::max(status, 0)) / 100;
  return hundreds < kStatusClasses.size() ? kStatusClasses[hundreds] : kStatusClasses[0];
}

}  // namespace

void Histogram::add(double value) {
  ++counts[static_cast<size_t>(std::ranges::lower_bound(bounds, value) - bounds.begin())];
  sum += value;
}

KvUse kv_use(const std::vector<NodeReport>& nodes) {
  KvUse sum;
  for (const NodeReport& node : nodes) {
    for (const InstanceReport& instance : node.instances) {
      sum.device.used_bytes += instance.kv_blocks_used * instance.kv_block_bytes;
      sum.device.bytes += instance.kv_blocks_total * instance.kv_block_bytes;
    }
    for (const KvNodeReport& pool : node.pool) {
      sum.dram.used_bytes += pool.dram_used_bytes;
      sum.dram.bytes += pool.dram_capacity_bytes;
      sum.cold.used_bytes += pool.cold_used_bytes;
      sum.cold.bytes += pool.cold_capacity_bytes;
    }
  }
  return sum;
}

DraftCounts draft_counts(const std::vector<NodeReport>& nodes) {
  DraftCounts sum;
  for (const NodeReport& node : nodes)
    for (const InstanceReport& instance : node.instances) sum += instance.drafting.all();
  return sum;
}

std::vector<InstanceReport> instances_of(const std::vector<NodeReport>& nodes) {
  std::vector<InstanceReport> all;
  for (const NodeReport& node : nodes) all.insert(all.end(), node.instances.begin(), node.instances.end());
  std::ranges::sort(all, {}, &InstanceReport::instance);
  return all;
}

double kv_share(const InstanceReport& instance) {
  return instance.kv_blocks_total > 0
             ? static_cast<double>(instance.kv_blocks_used) / static_cast<double>(instance.kv_blocks_total)
             : 0;
}

OpenResponses open_responses(const GatewayLoads& loads) {
  return {.held = loads.waiting, .queued = loads.running - loads.on_instances, .running = loads.on_instances};
}

const std::vector<double> ServeFigures::kSecondsBounds{0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1,    2,    5,
                                                       10,   20,   50,   100, 200, 500, 1000, 2000, 5000};
const std::vector<double> ServeFigures::kTokensBounds{16,   32,   64,   128,    256,    512,    1024,
                                                      2048, 4096, 8192, 16'384, 32'768, 65'536, 131'072};

void ServeFigures::count_answer(std::string_view path, int status) {
  ++answers_[{path_class(path), status_class(status)}];
}

void ServeFigures::count_response(const Response& response, int64_t latency_us) {
  const int64_t after_first_us = response.queue_us + response.run_us - response.first_token_us;
  if (response.first_token_us > 0)
    first_token_s_.add(static_cast<double>(std::max<int64_t>(0, latency_us - after_first_us)) / 1e6);
  if (response.finish != FinishReason::kStop && response.finish != FinishReason::kLength) return;
  latency_s_.add(static_cast<double>(latency_us) / 1e6);
  output_tokens_.add(static_cast<double>(response.output.ids.size()));
}

void ServeFigures::take(const GatewayReport& report, int64_t now_us) {
  const std::vector<InstanceReport> before = instances_of(report_.nodes), now = instances_of(report.nodes);
  Counted sums = counted_.empty() ? Counted{} : counted_.back();
  sums.at_us = now_us;
  for (const InstanceReport& instance : now) {
    const auto known = std::ranges::lower_bound(before, instance.instance, {}, &InstanceReport::instance);
    if (known == before.end() || known->instance != instance.instance) continue;
    // One that was started again counts from 0.
    sums.output_tokens += std::max<int64_t>(0, instance.output_tokens - known->output_tokens);
    sums.prefill_tokens += std::max<int64_t>(0, instance.prefill_tokens - known->prefill_tokens);
    sums.cached_tokens += std::max<int64_t>(0, instance.cached_tokens - known->cached_tokens);
  }
  counted_.push_back(sums);
  if (counted_.size() > kRateSamples) counted_.pop_front();
  report_ = report;

  ServeSample sample{.at_us = now_us,
                     .open = open_responses(report.loads),
                     .kv = kv_use(report.nodes),
                     .tokens_per_s = rates().tokens_per_s,
                     .instances = {}};
  for (const InstanceReport& instance : now)
    sample.instances.push_back({instance.instance, instance.chunks, kv_share(instance)});
  samples_.push_back(std::move(sample));
  ++taken_;
  if (samples_.size() > kSamplesMax) samples_.pop_front();
}

ServeRates ServeFigures::rates() const {
  if (counted_.size() < 2) return {};
  const Counted &first = counted_.front(), &last = counted_.back();
  const int64_t us = last.at_us - first.at_us;
  const int64_t cached = last.cached_tokens - first.cached_tokens,
                prefilled = last.prefill_tokens - first.prefill_tokens;
  return {
      .tokens_per_s =
          us > 0 ? static_cast<double>(last.output_tokens - first.output_tokens) * 1e6 / static_cast<double>(us) : 0,
      .cached_share =
          cached + prefilled > 0 ? static_cast<double>(cached) / static_cast<double>(cached + prefilled) : 0};
}

}  // namespace seer
