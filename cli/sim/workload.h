// Workload: one rollout iteration to simulate: how many requests of which lengths, on which instances. It is built in (the
// three of the paper's evaluation), a TOML file with the same keys, or the trace of a real run. Used by `seer
// simulate`. Pure except for reading the named files.
//
// Lengths that are not from a trace are drawn: ln L = mu + z_g + e_i, where z_g ~ N(0, sigma^2 icc) is the group's part and
// e_i ~ N(0, sigma^2 (1 - icc)) the request's, clipped to [min-gen, max-gen] and rounded. mu is chosen so that the mean of the
// clipped lengths is avg-gen. Three other families test policies with lengths that they do not assume. long-share: this share of
// requests is longer by the factor long-ratio. runaway-share: this share of requests runs to max-gen, whatever their group. drift:
// mu grows by this much from the first group to the last, so that early groups mislead about later ones. The mean stays avg-gen.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/policy/schedule/chunk_scheduler.h"
#include "cli/jsonl.h"
#include "gpu/sim/hardware_model.h"
#include "protocols/result.h"

namespace seer {

/// Lengths in tokens; see above. Shares are probabilities.
struct WorkloadLengths {
  int64_t min_gen = 64;
  int64_t max_gen = 0;
  double avg_gen = 0;
  double sigma = 0;  // of ln L before it is clipped
  double icc = 0;    // share of sigma^2 between groups
  double long_share = 0, long_ratio = 1;
  double runaway_share = 0;
  double drift = 0;  // of mu, over the groups
};

/// What is known of drafts for this model and these prompts. 0: not known.
struct WorkloadDrafting {
  std::string usual = "own";  // how policies with whole groups draft: own, model or mtp
  double own_accepted = 0;    // acceptance lengths: of suffixes of the own text,
  double group_accepted = 0;  // of suffixes of the group's texts,
  double model_accepted = 0;  // of a draft model,
  double mtp_accepted = 0;    // and of multi-token prediction
  std::optional<ModelSpec> model;  // the draft model
};

struct Workload {
  std::string name;
  std::optional<HardwareSetup> hardware;  // none: the caller has step times (a measured profile)
  int64_t instances = 0;                  // 0 (a bare trace): the caller says how many
  int64_t groups = 0, group_size = 0;     // of a trace, whose groups may differ: the size of the largest
  int64_t prompt_tokens = 0;  // of every prompt; of a trace, the mean
  double temperature = 1;
  double watermark_share = ChunkSchedulerConfig{}.watermark_share;
  int64_t verl_block_tokens = 0;  // tokens per KV block under verl, streamrl-oracle and partial, without a measured
                                  // profile; 0: as under the other policies
  double verl_rank_skew = 1;        // HardwareSetup::rank_skew under those policies
  WorkloadDrafting drafting;
  WorkloadLengths lengths;          // of a trace: only max_gen and avg_gen
  std::vector<GroupLengths> trace;  // not empty: these are the lengths, for every seed
  int64_t left_out = 0;             // responses of the trace that failed or were aborted
};

/// The number of requests of all groups.
int64_t requests_of(const Workload& workload);

/// The built-in names: moonlight, qwen2-vl-72b, kimi-k2.
std::vector<std::string> workload_names();

/// Loads a built-in name, FILE.toml, or TRACE.jsonl (see read_trace()). A TOML file has the table [workload]. With `trace` it takes
/// its requests from that file; with `hardware-file` it adds GPUs, models and costs; both paths are relative to it. Errors:
/// kNotFound, kIo, kInvalidArgument (one sentence: file, line, field, value, what was expected).
Result<Workload> load_workload(const std::string& name_or_path);

/// The mu for which the mean of the clipped lengths over all groups is avg_gen; with drift, the mu of the middle group.
/// REQUIRES: lengths that load_workload() accepts.
double solve_mu(const WorkloadLengths& lengths);

/// Draws the lengths of all groups. The same workload and seed give the same lengths on every machine. Unless they drift, the
/// lengths of a group do not depend on the number of groups. `first`: number of the first of them; with more than 0 they follow others,
/// and drift anew.
std::vector<GroupLengths> draw_lengths(const Workload& workload, uint64_t seed, int64_t first = 0);

}  // namespace seer
