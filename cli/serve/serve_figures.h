// ServeFigures: what `seer serve` knows of itself over time: answers by path and status, distributions over responses,
// and a sample of the gateway's report every second of the last ten minutes. /metrics and the status page show it.
// Plain data of one thread, the server's.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/gateway_actor.h"

namespace seer {

/// Counts values by upper bounds, which rise. The last count is of values above all bounds.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds_in) : bounds(std::move(bounds_in)), counts(bounds.size() + 1) {}
  void add(double value);

  const std::vector<double> bounds;
  std::vector<uint64_t> counts;
  double sum = 0;
};

/// A tier of the KV cache, over all machines.
struct TierUse {
  int64_t used_bytes = 0, bytes = 0;
  double share() const { return bytes > 0 ? static_cast<double>(used_bytes) / static_cast<double>(bytes) : 0; }
};
struct KvUse {
  TierUse device, dram, cold;
};
KvUse kv_use(const std::vector<NodeReport>& nodes);
DraftCounts draft_counts(const std::vector<NodeReport>& nodes);
/// The instances of all machines that answered, by id.
std::vector<InstanceReport> instances_of(const std::vector<NodeReport>& nodes);
double kv_share(const InstanceReport& instance);

/// Responses asked for and not over, by what they wait for.
struct OpenResponses {
  int64_t held = 0;    // in no rollout: they are being gathered into groups, or generation is paused
  int64_t queued = 0;  // for an instance
  int64_t running = 0;
};
OpenResponses open_responses(const GatewayLoads& loads);

/// A moment of the history.
struct ServeSample {
  int64_t at_us = 0;  // on the clock of all other samples
  OpenResponses open;
  KvUse kv;
  double tokens_per_s = 0;
  struct Instance {
    InstanceId id;
    int64_t running = 0;
    double kv_share = 0;
  };
  std::vector<Instance> instances;
};

/// Over the last seconds.
struct ServeRates {
  double tokens_per_s = 0;
  double cached_share = 0;  // of the tokens that chunks began with: those whose KV was found, not computed
};

class ServeFigures {
 public:
  static constexpr size_t kSamplesMax = 600;
  /// Paths that are served have a counter each; all others share one.
  void count_answer(std::string_view path, int status);
  void count_response(const Response& response, int64_t latency_us);
  void take(const GatewayReport& report, int64_t now_us);

  /// By path (or "other") and status class ("2xx").
  using Answers = std::map<std::pair<std::string_view, std::string_view>, int64_t>;
  const Answers& answers() const { return answers_; }
  /// Responses that finished: those that were aborted or failed are in first_token_s() only.
  const Histogram& first_token_s() const { return first_token_s_; }
  const Histogram& latency_s() const { return latency_s_; }
  const Histogram& output_tokens() const { return output_tokens_; }
  /// The last report; empty before the first.
  const GatewayReport& report() const { return report_; }
  ServeRates rates() const;
  /// Samples are counted from 0; those before first_sample() are forgotten.
  uint64_t first_sample() const { return taken_ - samples_.size(); }
  const std::deque<ServeSample>& samples() const { return samples_; }

 private:
  /// Sums over instances of what they did since the first report.
  struct Counted {
    int64_t at_us = 0;
    int64_t output_tokens = 0, prefill_tokens = 0, cached_tokens = 0;
  };
  static const std::vector<double> kSecondsBounds, kTokensBounds;

  Answers answers_;
  Histogram first_token_s_{kSecondsBounds}, latency_s_{kSecondsBounds}, output_tokens_{kTokensBounds};
  GatewayReport report_;
  std::deque<ServeSample> samples_;
  std::deque<Counted> counted_;  // at the last few samples
  uint64_t taken_ = 0;
};

}  // namespace seer
