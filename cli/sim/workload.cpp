#include "cli/sim/workload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <string_view>

#include "cli/toml_options.h"
#include "gpu/cpu/exact_math.h"
#include "gpu/philox.h"
#include "protocols/check.h"
#include "protocols/hash.h"

namespace seer {
namespace {

struct BuiltIn {
  const char* name;
  std::string_view toml;
};
constexpr std::array kBuiltIn{
    BuiltIn{
        "moonlight",
#include "embedded/moonlight.toml.inc"
    },
    BuiltIn{
        "qwen2-vl-72b",
#include "embedded/qwen2-vl-72b.toml.inc"
    },
    BuiltIn{
        "kimi-k2",
#include "embedded/kimi-k2.toml.inc"
    },
};

constexpr int64_t kGroupsMax = 1 << 24;
constexpr int64_t kGroupSizeMax = 1 << 16;
constexpr int64_t kTokensMax = 1 << 30;

// ---- reading -------------------------------------------------------------------------------------------------------

/// The keys of [workload]. 0, an empty text, or an icc below 0 means: not given.
struct WorkloadKeys {
  WorkloadKeys() { lengths.icc = -1; }

  std::string name, gpu, model, hardware_file, trace;
  int64_t instances = 0, gpus_per_instance = 1, tp = 1, dp = 1, ep = 1;
  double kv_reserve_share = 0.1, rank_skew = 1, time_scale = 1;
  int64_t groups = 0, group_size = 0, prompt_tokens = 0;
  double temperature = 1;
  double watermark_share = Workload{}.watermark_share;
  int64_t verl_block_tokens = 0;
  double verl_rank_skew = 0;
  WorkloadDrafting drafting;
  std::string draft_model;
  WorkloadLengths lengths;
};

std::vector<OptionGroup> key_groups(WorkloadKeys& k) {
  WorkloadLengths& l = k.lengths;
  WorkloadDrafting& d = k.drafting;
  return {
      {"Instances",
       {{"name", "TEXT", &k.name, "for reports"},
        {"gpu", "NAME", &k.gpu, "of the hardware catalog"},
        {"model", "NAME", &k.model, "of the hardware catalog"},
        {"hardware-file", "FILE", &k.hardware_file, "JSON like deploy/sim/hardware.json, which adds to what is built in"},
        {"instances", "N", &k.instances, "engines, each with its own KV cache", between(1, 65536)},
        {"gpus-per-instance", "N", &k.gpus_per_instance, "tp x dp", between(1, 65536)},
        {"tp", "N", &k.tp, "GPUs that share each matrix", between(1, 1024)},
        {"dp", "N", &k.dp, "ranks that share the sequences", between(1, 65536)},
        {"ep", "N", &k.ep, "GPUs that share the routed experts; 1: cut like other matrices", between(1, 65536)},
        {"kv-reserve-share", "SHARE", &k.kv_reserve_share, "of GPU memory, neither weights nor KV", from_below(0, 1)},
        {"watermark-share", "SHARE", &k.watermark_share, "of KV, left free by verl and streamrl-oracle when they admit requests",
         from_below(0, 1)},
        {"verl-block-tokens", "N", &k.verl_block_tokens, "per KV block under verl, streamrl-oracle and partial; 0: as under the other policies",
         between(0, 4096)},
        {"rank-skew", "X", &k.rank_skew, "sequences and KV of the busiest of dp ranks over their mean, if requests change ranks between chunks",
         between(1, 100)},
        {"verl-rank-skew", "X", &k.verl_rank_skew, "the same under verl, streamrl-oracle and partial, where they stay; 0: as rank-skew",
         between(0, 100)},
        {"time-scale", "X", &k.time_scale, "every step takes this many times as long", above_to(0, 1e6)}}},
      {"Drafting",
       {{"usual-drafter", "NAME", &d.usual, "how verl, streamrl-oracle and partial draft", OneOf{{"own", "model", "mtp"}}},
        {"own-accepted", "X", &d.own_accepted, "acceptance length of drafts from the own text, of up to 16 tokens", between(0, 17)},
        {"group-accepted", "X", &d.group_accepted, "of drafts from the group's texts, of up to 8 tokens, averaged over a rollout", between(0, 9)},
        {"draft-model", "NAME", &k.draft_model, "of the hardware catalog"},
        {"model-accepted", "X", &d.model_accepted, "of drafts of 3 tokens by the draft model", between(0, 4)},
        {"mtp-accepted", "X", &d.mtp_accepted, "of 1 token by multi-token prediction", between(0, 2)}}},
      {"Requests",
       {{"trace", "FILE", &k.trace, "JSONL of a real run, instead of drawn lengths"},
        {"groups", "N", &k.groups, "prompts", between(1, kGroupsMax)},
        {"group-size", "N", &k.group_size, "responses per prompt", between(1, kGroupSizeMax)},
        {"prompt-tokens", "N", &k.prompt_tokens, "of each prompt", between(1, kTokensMax)},
        {"temperature", "T", &k.temperature, "of sampling; for readers, since lengths are drawn", between(0, 100)}}},
      {"Lengths",
       {{"min-gen", "N", &l.min_gen, "output tokens at least", between(1, kTokensMax)},
        {"max-gen", "N", &l.max_gen, "output tokens at most", between(1, kTokensMax)},
        {"avg-gen", "X", &l.avg_gen, "output tokens on average", between(1, kTokensMax)},
        {"sigma", "X", &l.sigma, "deviation of ln length", above_to(0, 10)},
        {"icc", "SHARE", &l.icc, "share of its variance that is the group's", between(0, 1)},
        {"long-share", "SHARE", &l.long_share, "requests that are long-ratio times as long", between(0, 1)},
        {"long-ratio", "X", &l.long_ratio, "see long-share", between(1, 1000)},
        {"runaway-share", "SHARE", &l.runaway_share, "requests that run to max-gen", from_below(0, 1)},
        {"drift", "X", &l.drift, "growth of the mean ln length from the first group to the last", between(-10, 10)}}}};
}

const OptionSpec& key_of(const std::vector<OptionGroup>& groups, std::string_view name) {
  for (const OptionGroup& group : groups)
    for (const OptionSpec& spec : group.options)
      if (spec.name == name) return spec;
  SEER_CHECK(false, name);
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += cat(text.empty() ? "" : ", ", name);
  return text;
}

template <class Entry>
Result<Entry> find_named(const std::map<std::string, Entry>& known, const std::string& name, const std::string& field,
                         const std::string& source) {
  const auto found = known.find(name);
  if (found != known.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& entry : known) names.push_back(entry.first);
  return fail(Code::kInvalidArgument, source, ": ", field, " is \"", name, "\": expected one of ", listed(names));
}

Result<HardwareCatalog> catalog_of(const WorkloadKeys& k, const std::filesystem::path& folder) {
  if (k.hardware_file.empty()) return builtin_hardware();
  return read_hardware(folder / k.hardware_file, builtin_hardware());
}

/// An acceptance length counts the token that follows the draft, too.
Status check_accepted(const WorkloadDrafting& d, const std::string& source) {
  for (const auto& [key, accepted] : {std::pair{"own-accepted", d.own_accepted}, {"group-accepted", d.group_accepted},
                                      {"model-accepted", d.model_accepted}, {"mtp-accepted", d.mtp_accepted}})
    if (accepted != 0 && accepted < 1)
      return fail(Code::kInvalidArgument, source, ": ", key, " is ", accepted, ": expected at least 1, the token after the draft");
  return {};
}

Result<HardwareSetup> hardware_of(const WorkloadKeys& k, const std::string& source,
                                  const std::filesystem::path& folder) {
  SEER_ASSIGN_OR_RETURN(const HardwareCatalog catalog, catalog_of(k, folder));
  HardwareSetup setup;
  SEER_ASSIGN_OR_RETURN(setup.gpu, find_named(catalog.gpus, k.gpu, "gpu", source));
  SEER_ASSIGN_OR_RETURN(setup.model, find_named(catalog.models, k.model, "model", source));
  setup.costs = catalog.costs;
  setup.gpus_per_instance = k.gpus_per_instance;
  setup.tp = k.tp;
  setup.dp = k.dp;
  setup.ep = k.ep;
  setup.kv_reserve_share = k.kv_reserve_share;
  setup.rank_skew = k.rank_skew;
  setup.time_scale = k.time_scale;
  const Result<HardwareModel> model = HardwareModel::create(setup);
  if (!model.ok()) return fail(model.error().code, source, ": ", model.error().detail);
  return setup;
}

/// Takes requests, lengths and limit from a trace. A limit that is set stays.
Status take_trace(const std::string& path, Workload& w) {
  SEER_ASSIGN_OR_RETURN(Trace trace, read_trace(path));
  w.trace = std::move(trace.groups);
  w.left_out = trace.left_out;
  int64_t prompts = 0, outputs = 0, longest = 0;
  for (const GroupLengths& group : w.trace) {
    prompts += group.prompt_tokens;
    for (int64_t tokens : group.output_tokens) {
      outputs += tokens;
      longest = std::max(longest, tokens);
    }
  }
  w.groups = std::ssize(w.trace);
  for (const GroupLengths& group : w.trace) w.group_size = std::max<int64_t>(w.group_size, std::ssize(group.output_tokens));
  w.prompt_tokens = (prompts + w.groups / 2) / w.groups;
  if (w.lengths.max_gen == 0) w.lengths.max_gen = longest;
  w.lengths.avg_gen = static_cast<double>(outputs) / static_cast<double>(requests_of(w));
  if (longest > w.lengths.max_gen)
    return fail(Code::kInvalidArgument, path, ": a response has ", longest, " tokens: expected at most max-gen, ",
                w.lengths.max_gen);
  return {};
}

/// Refuses a mean that no mu reaches.
Status check_lengths(const WorkloadLengths& l, const std::string& source) {
  if (l.min_gen >= l.max_gen)
    return fail(Code::kInvalidArgument, source, ": min-gen is ", l.min_gen, ": expected less than max-gen, ",
                l.max_gen);
  const auto min = static_cast<double>(l.min_gen), max = static_cast<double>(l.max_gen);
  const double low = (1 - l.runaway_share) * min + l.runaway_share * max;
  if (l.avg_gen <= low || l.avg_gen >= max)
    return fail(Code::kInvalidArgument, source, ": avg-gen is ", l.avg_gen, ": expected above ", low, " and below ",
                max, ", as min-gen, max-gen and runaway-share say");
  return {};
}

Result<Workload> build(WorkloadKeys& k, const std::string& source, const std::filesystem::path& folder) {
  const std::vector<OptionGroup> groups = key_groups(k);
  const auto missing = [&](const char* key) {
    return fail(Code::kInvalidArgument, source, ": ", key, " is missing: expected ", expectation(key_of(groups, key)));
  };
  Workload w;
  w.name = k.name;
  w.watermark_share = k.watermark_share;
  w.verl_block_tokens = k.verl_block_tokens;
  w.verl_rank_skew = k.verl_rank_skew > 0 ? k.verl_rank_skew : k.rank_skew;
  w.drafting = k.drafting;
  if (k.gpu.empty() != k.model.empty()) return missing(k.gpu.empty() ? "gpu" : "model");
  if (!k.gpu.empty()) {
    SEER_ASSIGN_OR_RETURN(w.hardware, hardware_of(k, source, folder));
  }
  if (!k.draft_model.empty()) {
    SEER_ASSIGN_OR_RETURN(const HardwareCatalog catalog, catalog_of(k, folder));
    SEER_ASSIGN_OR_RETURN(w.drafting.model, find_named(catalog.models, k.draft_model, "draft-model", source));
  }
  SEER_RETURN_IF_ERROR(check_accepted(k.drafting, source));
  if (k.instances == 0) return missing("instances");
  w.instances = k.instances;
  w.temperature = k.temperature;
  const std::array<std::pair<const char*, bool>, 6> drawn{{{"groups", k.groups > 0},
                                                           {"group-size", k.group_size > 0},
                                                           {"prompt-tokens", k.prompt_tokens > 0},
                                                           {"avg-gen", k.lengths.avg_gen > 0},
                                                           {"sigma", k.lengths.sigma > 0},
                                                           {"icc", k.lengths.icc >= 0}}};
  for (const auto& [key, given] : drawn) {
    if (given && !k.trace.empty())
      return fail(Code::kInvalidArgument, source, ": ", key,
                  " is given, but trace says it, too: expected one of them");
    if (!given && k.trace.empty()) return missing(key);
  }
  if (!k.trace.empty()) {
    w.lengths.max_gen = k.lengths.max_gen;
    SEER_RETURN_IF_ERROR(take_trace((folder / k.trace).string(), w));
    return w;
  }
  if (k.lengths.max_gen == 0) return missing("max-gen");
  SEER_RETURN_IF_ERROR(check_lengths(k.lengths, source));
  w.lengths = k.lengths;
  w.groups = k.groups;
  w.group_size = k.group_size;
  w.prompt_tokens = k.prompt_tokens;
  return w;
}

TomlTable table_of(WorkloadKeys& k) {
  std::vector<OptionGroup> groups = key_groups(k);
  std::vector<std::string> names;
  for (const OptionGroup& group : groups)
    for (const OptionSpec& spec : group.options) names.push_back(spec.name);
  return {.name = "workload", .options = std::move(groups), .keys = cat("one of ", listed(names))};
}

// ---- lengths -------------------------------------------------------------------------------------------------------

/// A length before it is rounded.
double clipped(const WorkloadLengths& l, double log_length) {
  return std::clamp(exact_exp(log_length), static_cast<double>(l.min_gen), static_cast<double>(l.max_gen));
}

/// Mean of the clipped length of requests with this mu: Simpson's rule over 8 deviations to each side.
double mean_length_at(const WorkloadLengths& l, double mu) {
  constexpr int kSteps = 800;
  const double log_ratio = exact_log(l.long_ratio);
  double mean = 0, weights = 0;
  for (int i = 0; i <= kSteps; ++i) {
    const double z = -8 + 16.0 * i / kSteps;
    const double weight = (i == 0 || i == kSteps ? 1 : i % 2 == 1 ? 4 : 2) * exact_exp(-z * z / 2);
    const double log_length = mu + l.sigma * z;
    mean += weight * ((1 - l.long_share) * clipped(l, log_length) + l.long_share * clipped(l, log_length + log_ratio));
    weights += weight;
  }
  return (1 - l.runaway_share) * mean / weights + l.runaway_share * static_cast<double>(l.max_gen);
}

/// Mean over all requests; `mu` is the middle of the drift. Averages over equal parts of it.
double mean_length(const WorkloadLengths& l, double mu) {
  if (l.drift == 0) return mean_length_at(l, mu);
  constexpr int kParts = 32;
  double sum = 0;
  for (int i = 0; i < kParts; ++i) sum += mean_length_at(l, mu + l.drift * ((i + 0.5) / kParts - 0.5));
  return sum / kParts;
}

/// The random numbers of one group (sample -1) or request: four positions of the stream that only it uses.
class Draw {
 public:
  Draw(uint64_t seed, int64_t group, int64_t sample)
      : seed_(seed), position_((group * (kGroupSizeMax + 1) + sample + 1) * 4) {}
  /// Box-Muller.
  double normal() const {
    constexpr double kTurn = 6.283185307179586;
    return std::sqrt(-2 * exact_log(1 - uniform(0))) * exact_cos(kTurn * uniform(1));
  }
  bool is_long(const WorkloadLengths& l) const { return uniform(2) < l.long_share; }
  bool is_runaway(const WorkloadLengths& l) const { return uniform(3) < l.runaway_share; }

 private:
  double uniform(int64_t i) const { return philox_uniform(seed_, position_ + i); }

  uint64_t seed_;
  int64_t position_;
};

}  // namespace

std::vector<std::string> workload_names() {
  std::vector<std::string> names;
  for (const BuiltIn& workload : kBuiltIn) names.emplace_back(workload.name);
  return names;
}

Result<Workload> load_workload(const std::string& name_or_path) {
  WorkloadKeys keys;
  for (const BuiltIn& workload : kBuiltIn)
    if (name_or_path == workload.name) {
      keys.name = workload.name;
      SEER_RETURN_IF_ERROR(apply_toml_text(workload.toml, workload.name, table_of(keys)));
      return build(keys, workload.name, {});
    }
  const std::filesystem::path path = name_or_path;
  if (path.extension() == ".jsonl") {
    Workload w;
    w.name = path.stem().string();
    SEER_RETURN_IF_ERROR(take_trace(name_or_path, w));
    return w;
  }
  if (path.extension() != ".toml")
    return fail(Code::kInvalidArgument, "workload ", name_or_path, ": expected one of ", listed(workload_names()),
                ", a FILE.toml or a TRACE.jsonl");
  keys.name = path.stem().string();
  SEER_RETURN_IF_ERROR(apply_toml_file(name_or_path, table_of(keys)));
  return build(keys, name_or_path, path.parent_path());
}

int64_t requests_of(const Workload& w) {
  if (w.trace.empty()) return w.groups * w.group_size;
  int64_t requests = 0;
  for (const GroupLengths& group : w.trace) requests += std::ssize(group.output_tokens);
  return requests;
}

double solve_mu(const WorkloadLengths& l) {
  const double slack = 1 + 10 * l.sigma + std::abs(l.drift);
  double low = exact_log(static_cast<double>(l.min_gen)) - slack - exact_log(l.long_ratio);
  double high = exact_log(static_cast<double>(l.max_gen)) + slack;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (mean_length(l, middle) < l.avg_gen ? low : high) = middle;
  }
  return (low + high) / 2;
}

std::vector<GroupLengths> draw_lengths(const Workload& w, uint64_t seed, int64_t first) {
  if (!w.trace.empty()) return w.trace;
  const WorkloadLengths& l = w.lengths;
  const double mu = solve_mu(l), log_ratio = exact_log(l.long_ratio);
  const double group_sigma = l.sigma * std::sqrt(l.icc), own_sigma = l.sigma * std::sqrt(1 - l.icc);
  const uint64_t stream = mix64(seed);  // so that it differs from the seeds of sampling
  std::vector<GroupLengths> groups(static_cast<size_t>(w.groups));
  for (int64_t g = 0; g < w.groups; ++g) {
    GroupLengths& group = groups[static_cast<size_t>(g)];
    group.prompt_tokens = w.prompt_tokens;
    const double place = (static_cast<double>(g) + 0.5) / static_cast<double>(w.groups) - 0.5;  // from -1/2 to 1/2
    const double group_mu = mu + l.drift * place + group_sigma * Draw(stream, first + g, -1).normal();
    for (int64_t i = 0; i < w.group_size; ++i) {
      const Draw draw(stream, first + g, i);
      const double log_length = group_mu + own_sigma * draw.normal() + (draw.is_long(l) ? log_ratio : 0);
      const double length = draw.is_runaway(l) ? static_cast<double>(l.max_gen) : clipped(l, log_length);
      group.output_tokens.push_back(static_cast<int64_t>(std::floor(length + 0.5)));
    }
  }
  return groups;
}

}  // namespace seer
