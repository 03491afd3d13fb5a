#include "cli/option_tables.h"

#include "actors/policy/schedule/seer_plus_scheduler.h"
#include "cli/sampling_options.h"
#include "cli/sim/sim_sweep.h"

namespace seer {
namespace {

// ---- options that several commands share -----------------------------------------------------------------------

std::vector<OptionSpec> concat(std::vector<OptionSpec> options, const std::vector<OptionSpec>& more) {
  options.insert(options.end(), more.begin(), more.end());
  return options;
}

std::vector<OptionSpec> drafting_options(MachineOptions& o) {
  return {enum_option("drafting", "D", &o.drafting, kDraftSourceNames, "speculative decoding, with drafts from a request's own text or from that of its group; auto: grouped on CPUs, off on GPUs"),
          {"draft-max", "N", &o.draft_tokens_max, "most draft tokens of one request in one step", between(1, 64)},
          enum_option("draft-shape", "S", &o.draft_shape, kDraftShapesNames, "shape of drafts; auto: whichever saves more time"),
          enum_option("draft-rule", "R", &o.draft_rule, kDraftRuleNames, "how the draft budget is divided between probes and other requests"),
          {"draft-lambda", "X", &o.draft_lambda,
           "rules other than uniform: a probe gets another draft token only if that gains X times as much as for other requests", at_least(0)},
          {"draft-profile", "FILE", &o.draft_profile,
           "step times from seer profile, for drafting and --policy auto; without it some are measured at the start"}};
}

std::vector<OptionSpec> instance_options(MachineOptions& o) {
  return {
        enum_option("device", "D", &o.device, kDeviceKindNames, "what engines compute on; cuda: the GPUs of this machine, instances in turn"),
        {"tensor-parallel", "N", &o.tensor_parallel, "GPUs of each instance, which compute its model together", between(1, 64)},
        {"threads-per-instance", "N", &o.threads_per_instance, "threads of each instance; 0: an even share of the cores", between(0, 1024)},
        {"pin", "", &o.pin, "pin each thread of the instances to a core of its own, in order"},
        {"weight-version", "N", &o.weight_version, "version of the weights in --model, as the trainer counts; each response names it",
         at_least(1)},
        enum_option("weights", "T", &o.weights, kWeightTypeNames, "keep weights as in the folder, as int8 (half the memory) or as w8a8 (inputs are int8 too: faster); results differ"),
        {"max-batch", "N", &o.max_batch, "most requests that run on an instance; --policy auto may choose fewer", between(1, 65536)},
        {"prefill-tokens", "N", &o.prefill_tokens, "most prompt tokens in one step", between(1, 1e6)},
        {"step-depth", "N", &o.step_depth, "1: an engine gets its next step after the last one's tokens were read; 2: before",
         between(1, 2)}};
}

constexpr const char* kInstancesHelp =
    "engines, each with its own KV cache; auto: one for each GPU, or for each --tensor-parallel of them, and 2 on a CPU";

/// Options of commands whose machines are all within this process.
std::vector<OptionSpec> local_instance_options(MachineOptions& o, int64_t& nodes) {
  return concat({{"instances", "N", &o.instances, kInstancesHelp, between(1, 1024), true},
                 {"nodes", "N", &nodes, "machines (within this process) that instances are dealt to; each has its own pool tiers",
                  between(1, 64)}},
                instance_options(o));
}

OptionGroup log_options(LogConfig& log) {
  return {"Log",
          {{"log-level", "L", named_field(&log.level, log_level_of),
            "which events are logged; each level includes the levels before it", OneOf{log_level_names()}},
           {"log-file", "FILE", &log.file, "file that the log is appended to; without it the log goes to stderr"}}};
}

OptionGroup kv_options(MachineOptions& o) {
  return {"KV cache",
       {{"kv-bytes", "SIZE", SizeField{&o.kv_bytes}, "KV cache of one instance; auto: what its GPUs have free, 256 MiB on a CPU",
         at_least(1), true},
        enum_option("kv-dtype", "T", &o.kv_dtype, kKvTypeNames, "type of K and V; on a GPU of weights and activations too"),
        {"block-tokens", "N", &o.block_tokens, "tokens per KV block, a multiple of 16", between(16, 4096)},
        {"dram-bytes", "SIZE", SizeField{&o.dram_bytes}, "DRAM tier of the KV pool; 0: none", at_least(0)},
        {"cold-dir", "DIR", &o.cold_dir, "folder of the cold tier on disk; without it there is none"},
        {"cold-bytes", "SIZE", SizeField{&o.cold_bytes}, "size of the cold tier", at_least(1)}}};
}

OptionSpec controller_wait_option(int64_t& wait_s) {
  return {"controller-wait", "S", &wait_s, "seconds to wait until a controller that died, or cannot be reached, answers at its address again",
          between(0, 86'400)};
}

constexpr const char* kPolicyHelp =
    "which request runs next, and where (auto: seer+ if a fuller batch costs less per token, else seer)";

OptionSpec chunk_tokens_option(ChunkSchedulerConfig& scheduler) {
  return {"chunk-tokens", "N", &scheduler.chunk_tokens, "tokens until a request gives up its instance; 0: never", at_least(0)};
}

OptionSpec reserve_option(ChunkSchedulerConfig& scheduler) {
  return {"reserve", "SHARE", &scheduler.reserve_share,
          "share of a chunk's KV reserved before it starts; below 0: the policy's default", between(-1, 1)};
}

bool foresees_nothing(const SchedulingPolicy& policy) { return !policy.needs_lengths; }

OneOf seer_plus_parts() {
  OneOf parts;
  for (const SeerPlusPart& part : kSeerPlusParts) parts.names.push_back(part.name);
  return parts;
}

constexpr const char* kPartialRefused =
    "partial carries unfinished responses over to other weights; Seer is strictly on-policy, so that it is only "
    "simulated, for comparison";

OneOf policies_or_auto(bool (*chosen)(const SchedulingPolicy& policy) = nullptr) {
  OneOf policies{chunk_policy_names(chosen), {{kPartialPolicy, kPartialRefused}}};
  policies.names.insert(policies.names.begin(), kAutoPolicy);
  return policies;
}

/// Options for reaching a cluster.
std::vector<OptionSpec> reach_options(std::string& cluster, ClusterAccess& access) {
  return concat({{"cluster", "HOST:PORT", &cluster, "the controller"}}, access_options(access));
}

}  // namespace

// ---- the options of each command, one line each ----------------------------------------------------------------

std::vector<OptionGroup> option_groups(RolloutOptions& o) {
  const OneOf policies = policies_or_auto();
  return {
      {"Work",
       {{"model", "DIR", &o.model, "model folder in Hugging Face layout"},
        {"prompts", "FILE", &o.prompts,
         "JSONL, one prompt per line: {id?, prompt | prompt_ids | messages, n?, seed?, max_tokens?, temperature?, ...}; -: stdin, as lines arrive"},
        {"group-size", "N", &o.group_size, "responses per prompt, unless its line has n", kGroupSizes},
        {"limit", "N", &o.limit, "only the first N prompts; 0: all", at_least(0)},
        {"seed", "S", &o.seed,
         "the same seed gives the same responses; prompt lines with ids or seeds keep theirs in any order"},
        {"out", "FILE", &o.out, "JSONL, one response per line; written to FILE.partial, renamed at the end; -: stdout"},
        {"report", "FILE", &o.report, "JSON with the run's figures"},
        {"html", "FILE", &o.html, "page with timelines, completions and the figures"},
        {"journal", "DIR", &o.journal, "folder that keeps tokens and responses until all are written"},
        {"resume", "", &o.resume, "continue from the journal, if it has anything"}}},
      {"Scheduling",
       {{"policy", "P", &o.scheduler.policy, kPolicyHelp, policies},
        {"compare", "P,P,...", CommaListField{&o.compare}, "run these policies in turn on the same work", policies},
        chunk_tokens_option(o.scheduler),
        reserve_option(o.scheduler),
        {"lengths", "FILE", &o.lengths,
         "response lengths for oracle policies: JSONL of {group, sample, tokens}, or an --out file"}}},
      {"Drafting",
       concat(drafting_options(o),
              {{"draft-history", "DIR", &o.draft_history,
                "folder of past responses: drafts use those to the same prompts, and this rollout adds its own"}})},
      {"Instances", local_instance_options(o, o.nodes)},
      kv_options(o),
      {"Cluster",
       concat({{"cluster", "HOST:PORT", &o.cluster, "controller of a cluster, whose machines run the rollout instead of this one"},
               controller_wait_option(o.controller_wait_s)},
              access_options(o.access))},
      {"Router",
       concat(router_options(o.router),
              {{"profile-out", "FILE", &o.profile_out,
                "JSON with step times learned from the servers' answers, for seer simulate --profile"}})},
      {"Sampling",
       concat(sampling_options(o.sampling),
              {{"raw-logprobs", "", &o.sampling.logprob_mode,
                "log-probabilities are log-softmax(logits), without the temperature"}})},
      log_options(o.log),
  };
}

std::vector<OptionGroup> option_groups(NodeOptions& o) {
  return {
      {"Cluster",
       concat({{"name", "N", &o.name, "number of this machine, unique in the cluster", between(0, 1 << 20)},
               {"roles", "LIST", CommaListField{&o.roles},
                "what this machine does; without it: all that its other options allow. kv alone lends its DRAM and disk to the others",
                OneOf{{kNodeRoleNames.begin(), kNodeRoleNames.end()}}},
               {"join", "HOST:PORT", &o.join, "address of the controller; without it this machine is the controller"},
               controller_wait_option(o.controller_wait_s),
               {"listen", "HOST:PORT", &o.listen, "address of this machine that the others can reach; port 0: the system chooses"}},
              access_options(o.access))},
      {"Model", {{"model", "DIR", &o.model, "model folder in Hugging Face layout; the same on all machines"}}},
      {"Drafting", drafting_options(o)},
      {"Instances",
       concat({{"instances", "N", &o.instances, cat(kInstancesHelp, "; 0: none"), between(0, 1024), true}}, instance_options(o))},
      kv_options(o),
      log_options(o.log),
  };
}

std::vector<OptionGroup> option_groups(ServeOptions& o) {
  return {
      {"Server",
       {{"model", "DIR", &o.model, "model folder in Hugging Face layout"},
        {"listen", "HOST:PORT", &o.listen, "address to listen at; port 0: the system chooses"},
        {"served-name", "NAME", &o.served_name, "name of the model for clients; without it the folder's name"},
        {"seed", "S", &o.seed, "seed of requests that have none"},
        {"journal", "DIR", &o.journal, "folder that keeps rollouts of /seer/v1/rollouts as they come, so that they outlive this process"},
        {"kept-bytes", "SIZE", SizeField{&o.kept_bytes},
         "more groups are refused while such rollouts take so much: prompts, and responses until they are acknowledged", at_least(1 << 20)},
        {"tls-cert", "FILE", &o.tls_cert, "PEM certificate of this server; without it there is no TLS"},
        {"tls-key", "FILE", &o.tls_key, "its PEM key"},
        {"token-file", "FILE", &o.token_file, "file whose first line every request must carry as \"Authorization: Bearer ...\""},
        {"insecure", "", &o.insecure, "listen at an address of other hosts without TLS and token"},
        {"body-bytes", "SIZE", SizeField{&o.body_bytes}, "largest body of a request", at_least(1024)},
        {"connections", "N", &o.connections, "most connections at a time", between(1, 1e6)}}},
      {"Scheduling",
       {{"policy", "P", &o.scheduler.policy, kPolicyHelp, policies_or_auto(foresees_nothing)},
        chunk_tokens_option(o.scheduler),
        reserve_option(o.scheduler)}},
      {"Drafting", drafting_options(o)},
      {"Instances", local_instance_options(o, o.nodes)},
      kv_options(o),
      {"Cluster",
       concat({{"cluster", "HOST:PORT", &o.cluster, "controller of a cluster, whose machines run the requests instead of this one"},
               controller_wait_option(o.controller_wait_s)},
              access_options(o.cluster_access))},
      {"Router", router_options(o.router)},
      log_options(o.log),
  };
}

std::vector<OptionGroup> option_groups(StatusOptions& o) {
  return {{"Cluster",
           concat(reach_options(o.cluster, o.access),
                  {{"watch", "", &o.watch, "print again every second, until Ctrl-C"},
                   {"json", "", &o.json, "print JSON, a line each time"}})}};
}

std::vector<OptionGroup> option_groups(DrainOptions& o) {
  return {{"Cluster",
           concat(reach_options(o.cluster, o.access),
                  {{"name", "N", &o.name, "number of the machine to drain", between(0, 1 << 20)},
                   {"timeout", "SECONDS", &o.timeout_s,
                    "after this time it leaves at once; KV that it still has is prefilled again elsewhere", between(0, 1e6)}})}};
}

std::vector<OptionGroup> option_groups(ScoreOptions& o) {
  return {
      {"Work",
       {{"model", "DIR", &o.model, "model folder in Hugging Face layout"},
        {"in", "FILE", &o.in, "JSONL as seer rollout --out writes it: {prompt_ids, output_ids, ...}"},
        {"out", "FILE", &o.out, "the same lines with \"scores\" added: a log-probability per output token"},
        {"temperature", "T", &o.temperature, "scores are log-softmax(logits / T); 0: raw", between(0, 100)},
        {"raw-logprobs", "", &o.logprob_mode, "scores are log-softmax(logits), whatever the temperature"}}},
      {"Engine",
       {enum_option("device", "D", &o.device, kDeviceKindNames, "what the engine computes on; as in the rollout for the same bits"),
        {"tensor-parallel", "N", &o.tensor_parallel, "GPUs that compute the model together; as in the rollout", between(1, 64)},
        {"threads", "N", &o.threads, "threads of the engine; 0: all cores", between(0, 1024)},
        enum_option("weights", "T", &o.weights, kWeightTypeNames, "keep weights as in the folder, as int8 or as w8a8; as in the rollout for the same bits"),
        {"kv-bytes", "SIZE", SizeField{&o.kv_bytes}, "KV cache; must hold the longest line", at_least(1)},
        enum_option("kv-dtype", "T", &o.kv_dtype, kKvTypeNames, "type of K and V; as in the rollout for the same bits")}},
  };
}

std::vector<OptionGroup> option_groups(ProfileOptions& o) {
  return {
      {"Work",
       {{"model", "DIR", &o.model, "model folder in Hugging Face layout"},
        {"out", "FILE", &o.out, "JSON with the measured steps and the cost model fitted to them"},
        {"rows-max", "N", &o.rows_max, "most sequences in a decode or verify step", between(1, 4096)},
        {"context-max", "N", &o.context_max, "most tokens that a sequence has before a step", between(16, 1 << 20)},
        {"repeats", "N", &o.repeats, "times that each step is measured; the median counts", between(1, 1000)},
        {"quick", "", &o.quick, "measure only about a quarter of the steps"}}},
      {"Engine",
       {enum_option("device", "D", &o.device, kDeviceKindNames, "what engines compute on; cuda: the GPUs of this machine, engines in turn"),
        {"tensor-parallel", "N", &o.tensor_parallel, "GPUs of each engine, which compute its model together", between(1, 64)},
        {"instances", "N", &o.instances, "engines that run the same steps at the same time, as in a rollout; one is measured",
         between(1, 1024)},
        {"threads", "N", &o.threads, "threads of each engine; 0: an even share of the cores", between(0, 256)},
        enum_option("weights", "T", &o.weights, kWeightTypeNames, "keep weights as in the folder, as int8 or as w8a8"),
        {"kv-bytes", "SIZE", SizeField{&o.kv_bytes},
         "KV cache of each engine; steps that need more are left out; 0: an even share of half the free memory, on GPUs what steps need",
         at_least(0)},
        enum_option("kv-dtype", "T", &o.kv_dtype, kKvTypeNames, "type of K and V")}},
  };
}

std::vector<OptionGroup> option_groups(SimulateOptions& o) {
  const OneOf policies{sim_policy_names()};
  const std::string draft_max_help =
      "most draft tokens of one request in one step; twice that for drafts from its own text, at most 3 by a draft model and 1 by "
      "multi-token prediction";
  return {
      {"Work",
       {{"workload", "W", &o.workload, "moonlight, qwen2-vl-72b, kimi-k2, a TOML file, or the --out of a seer rollout"},
        {"policies", "P,P,...", CommaListField{&o.policies}, "each runs with every seed", policies},
        {"seeds", "N", &o.seeds, "runs of each policy", between(1, 10000)},
        {"seed", "S", &o.seed, "seed of the first run, S + 1 of the next; the same seed gives the same events"},
        {"max-tokens", "N", &o.max_tokens, "limit of responses that the run of a trace had; 0: the length of the longest, which policies would not know",
         at_least(0)},
        {"requests", "N", &o.requests, "simulate only the first N requests, in whole groups; 0: all, or 64 with --faults",
         at_least(0)},
        {"faults", "", &o.faults,
         "draw crashes, slow instances, lost and late messages, corrupt blocks and full disks from the seed, and check "
         "every response"},
        {"report", "FILE", &o.report, "JSON with each figure's mean and 95 % interval"},
        {"csv", "FILE", &o.csv, "the same as CSV"},
        {"html", "FILE", &o.html, "page with timelines, completions and the table; with --sweep the table of all points"},
        {"sweep", "KEY=V,V", RepeatedField{&o.sweep, true},
         cat("simulate all combinations of these values; one or more of ", sweep_keys())},
        {"sweep-runs-max", "N", &o.sweep_runs_max, "a sweep with more runs is refused", between(1, 1'000'000)}}},
      {"Scheduling",
       {chunk_tokens_option(o.scheduler),
        reserve_option(o.scheduler),
        {"unexplained", "SHARE", &o.scheduler.unexplained_before,
         "seer+: share of earlier iterations' requests with lengths that the model did not explain; 1: no iteration before", between(0, 1)},
        {"without", "P,P,...", CommaListField{&o.scheduler.without}, "seer+: parts left out, to see what each is worth", seer_plus_parts()},
        {"over-issue", "X", &o.over_issue, "partial: requests issued for each request that an iteration waits for",
         between(1, 16)}}},
      {"Drafting (policies that end in +sd)",
       {{"draft-acceptance", "FILE", &o.draft_acceptance,
         "JSON with acceptance lengths by number of known responses; empty: as published (the paper's Table 2)"},
        enum_option("drafter", "D", &o.drafter, kDrafterNames,
                    "how drafts are made: from the request's own text, from its group's, by a draft model or by multi-token prediction; auto: "
                    "group, and under verl, streamrl-oracle and partial as is usual for the model (usual-drafter of the workload)"),
        {"drafting", "D", &o.drafting, "which curve of draft-acceptance: linear, multipath-2, multipath-4"},
        enum_option("draft-rule", "R", &o.draft_rule, kDraftRuleNames, "how the draft budget is divided between probes and other requests"),
        {"draft-max", "N", &o.draft_tokens_max, draft_max_help, between(1, 64)}}},
      {"Cluster",
       {{"profile", "FILE", &o.profile, "step times as seer profile measured them, instead of the workload's GPUs"},
        {"step-gap-us", "N", &o.step_gap_us, "with --profile, which has only the time inside steps: microseconds between two "
         "steps, as idle_s / steps of an instance in the report of seer rollout", between(0, 1'000'000)},
        {"instances", "N", &o.instances, "number of instances; 0: as the workload says", between(0, 100000)},
        {"kv-tokens", "N", &o.kv_tokens, "KV capacity of an instance, tokens; 0: what its GPUs hold", at_least(0)},
        {"kv-bytes-per-token", "SIZE", SizeField{&o.kv_bytes_per_token}, "KV of a token, with --profile: 2 x layers x KV heads x head size x bytes "
         "of a number; needed for --dram-bytes and --cold-bytes", at_least(0)},
        {"block-tokens", "N", &o.block_tokens, "tokens per KV block; 0: as profiled, else 256 (512 if responses may be "
         "longer than 65536): larger than real ones, for fewer events", between(0, 4096)},
        {"max-batch", "N", &o.max_batch, "most requests that run on an instance (or data-parallel rank)",
         between(1, 65536)},
        {"dram-bytes", "SIZE", SizeField{&o.dram_bytes}, "DRAM tier of each machine's KV pool", at_least(1)},
        {"cold-bytes", "SIZE", SizeField{&o.cold_bytes}, "cold tier of each machine's KV pool; 0: none", at_least(0)},
        {"ssd-read-gb-per-s", "X", &o.ssd_read_gb_per_s, "what the devices of a machine's cold tier read; RocksDB's share is as measured",
         above_to(0, 10000)},
        {"ssd-write-gb-per-s", "X", &o.ssd_write_gb_per_s, "what they write, likewise", above_to(0, 10000)}}},
      {"Iteration (around the rollout; 0: left out)",
       {{"reward-s", "X", &o.iteration.reward_s, "seconds to judge a response, from its end on, while the rollout runs", between(0, 1e6)},
        {"reward-workers", "N", &o.iteration.reward_workers, "responses judged at a time", between(1, 1'000'000)},
        {"train-s", "X", &o.iteration.train_s, "seconds of training after the rollout and its rewards", between(0, 1e7)},
        {"update-s", "X", &o.iteration.update_s, "seconds until the new weights are on all instances", between(0, 1e6)}}},
      log_options(o.log),
  };
}

}  // namespace seer
