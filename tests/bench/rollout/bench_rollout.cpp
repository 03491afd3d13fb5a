// bench_rollout: runs policies on the same work, interleaved, short of KV. Prints one JSON line per run with the report's fields,
// then one line per policy with medians and ratios against the first one (verl).
//
// KV per instance is `kv_share` of the final KV of all its requests. A first run with room for everything gives that size, and the
// lengths for `oracle`. It checks that responses are the same in every run.
//
//   bench_rollout --model deploy/models/NAME --prompts deploy/examples/scratchpad/prompts.jsonl [--limit 64]
//                 [--group-size 8] [--runs 5] [--policies verl,divided,las,seer,seer+,auto] [--chunk-tokens 2048] [--reserve 1.0]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/engine_source.h"
#include "cli/rollout_run.h"
#include "protocols/hash.h"

using namespace seer;

namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Figures {
  std::vector<double> tokens_per_s, tail_s, actor_cpu_share;
};

/// Hash of every response's tokens and log-probabilities, in the order of requests.
struct ResponseHash {
  std::map<RequestId, uint64_t> by_request;
  std::map<RequestId, int64_t> lengths;
  void add(const Response& r) {
    uint64_t h = r.output.ids.size();
    for (size_t i = 0; i < r.output.ids.size(); ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, &r.output.logprobs[i], sizeof bits);
      h = hash_pair(h, uint64_t{static_cast<uint32_t>(r.output.ids[i])} << 32 | bits);
    }
    by_request[r.request] = h;
    lengths[r.request] = static_cast<int64_t>(r.output.ids.size());
  }
};

int fail_with(const Error& error) {
  std::cerr << "bench_rollout: " << error.detail << "\n";
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  RolloutOptions options;
  options.drafting = DraftSource::kOff;
  options.limit = 64;
  options.sampling.max_tokens = 3072;
  int64_t runs = 5;
  double kv_share = 1.0 / 3;
  std::vector<std::string> policies = chunk_policy_names([](const SchedulingPolicy& p) { return !p.needs_lengths; });
  policies.push_back(kAutoPolicy);
  CLI::App app("policies on the same work, short of KV");
  app.add_option("--model", options.model)->required();
  app.add_option("--prompts", options.prompts)->required();
  app.add_option("--limit", options.limit, "groups");
  app.add_option("--group-size", options.group_size);
  app.add_option("--runs", runs);
  app.add_option("--kv-share", kv_share, "KV per instance over the final KV of its requests");
  app.add_option("--policies", policies)->delimiter(',');
  app.add_option("--chunk-tokens", options.scheduler.chunk_tokens);
  app.add_option("--reserve", options.scheduler.reserve_share);
  app.add_option("--max-batch", options.max_batch);
  app.add_option("--max-tokens", options.sampling.max_tokens);
  CLI11_PARSE(app, argc, argv);

  if (const Status chosen = choose_instances(options); !chosen.ok()) return fail_with(chosen.error());
  auto work = load_work(options);
  if (!work.ok()) return fail_with(work.error());
  ResponseHash expected;
  options.kv_bytes = int64_t{2} << 30;
  auto first = run_rollout(options, *work, "divided", {.response = [&](const Response& r) { return expected.add(r), Status{}; }});
  if (!first.ok()) return fail_with(first.error());
  const ModelConfig& model = work->config;
  const int64_t token_bytes = int64_t{model.layers} * model.kv_size() * 2 * 2;  // K and V, bf16
  int64_t tokens = 0;
  for (GroupSpec& group : work->groups) {
    for (uint32_t s = 0; s < group.samples; ++s) group.known_tokens.push_back(expected.lengths.at({group.id, s}));
    for (int64_t length : group.known_tokens) tokens += length + static_cast<int64_t>(group.prompt_ids.size());
  }
  options.kv_bytes = static_cast<int64_t>(static_cast<double>(tokens * token_bytes / options.instances) * kv_share);

  std::map<std::string, Figures> figures;
  for (int64_t run = 0; run < runs; ++run) {
    for (const std::string& policy : policies) {
      ResponseHash got;
      auto outcome = run_rollout(options, *work, policy, {.response = [&](const Response& r) { return got.add(r), Status{}; }});
      if (!outcome.ok()) return fail_with(outcome.error());
      if (got.by_request != expected.by_request) return fail_with(fail(Code::kCorrupt, policy, ": responses differ"));
      const RolloutReport& report = outcome->report;
      auto line = nlohmann::ordered_json::parse(report_json(report));
      line["asked"] = policy;  // auto: what it took is under "policy"
      line["run"] = run;
      line["kv_bytes"] = options.kv_bytes;
      std::cout << line.dump() << std::endl;
      Figures& f = figures[policy];
      f.tokens_per_s.push_back(report.tokens_per_s());
      f.tail_s.push_back(report.rollout.tail_s);
      f.actor_cpu_share.push_back(report.actor_cpu_share);
    }
  }
  const Figures& base = figures.at(policies[0]);
  for (const std::string& policy : policies) {
    const Figures& f = figures.at(policy);
    const auto [low, high] = std::minmax_element(f.tokens_per_s.begin(), f.tokens_per_s.end());
    nlohmann::ordered_json line = {{"policy", policy},
                                   {"runs", runs},
                                   {"tokens_per_s", median(f.tokens_per_s)},
                                   {"tokens_per_s_min", *low},
                                   {"tokens_per_s_max", *high},
                                   {"tail_s", median(f.tail_s)},
                                   {"actor_cpu_share", median(f.actor_cpu_share)},
                                   {"speedup_vs_" + policies[0], median(f.tokens_per_s) / median(base.tokens_per_s)},
                                   {"tail_vs_" + policies[0], median(f.tail_s) / median(base.tail_s)}};
    std::cout << line.dump() << std::endl;
  }
  return 0;
}
