#include "cli/config.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>

#include "actors/policy/schedule/seer_plus_scheduler.h"
#include "cli/ineffective_options.h"
#include "cli/man_page.h"
#include "cli/option.h"
#include "cli/sampling_options.h"
#include "cli/shell_completion.h"
#include "cli/sim/sim_policy.h"
#include "cli/sim/sim_sweep.h"
#include "cli/suggestion.h"
#include "cli/toml_options.h"
#include "gpu/sampler.h"

namespace seer {
namespace {

constexpr const char* kVersion = "seer 0.1.0";

constexpr const char* kPartialRefused =
    "partial carries unfinished responses over to other weights; Seer is strictly on-policy, so that it is only "
    "simulated, for comparison";

// ---- the policies ------------------------------------------------------------------------------------------------

std::string note_line(std::string_view name, std::string_view what) {
  constexpr size_t kNameWidth = 18;
  return cat("  ", name, std::string(kNameWidth - std::min(kNameWidth, name.size()), ' '), what, "\n");
}

std::string policy_notes() {
  std::string text = "Policies:\n";
  for (const SchedulingPolicy& policy : scheduling_policies()) text += note_line(policy.name, policy.what);
  return text;
}

std::string rollout_notes() {
  return policy_notes() + note_line(kAutoPolicy, cat(kSeerPlusPolicy, " if a fuller batch costs less per token, else ", kSeerPolicy));
}

std::string simulate_notes() {
  std::string text = policy_notes() + note_line(kPartialPolicy, kPartialWhat) +
                     note_line(cat("...", kDraftingSuffix), "the same policy with speculative decoding") + "Parts of seer+ (--without):\n";
  for (const SeerPlusPart& part : kSeerPlusParts) text += note_line(part.name, part.what);
  return text;
}

OptionGroup log_options(LogConfig& log) {
  return {"Log",
          {{"log-level", "L", named_field(&log.level, log_level_of),
            "which events are logged; each level includes the levels before it", OneOf{log_level_names()}},
           {"log-file", "FILE", &log.file, "file that the log is appended to; without it the log goes to stderr"}}};
}

// ---- the options of each subcommand, one line each -------------------------------------------------------------

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
        enum_option("weights", "T", &o.weights, kWeightTypeNames, "keep weights as in the folder, or as int8 in half the memory; results differ"),
        {"max-batch", "N", &o.max_batch, "most requests that run on an instance; --policy auto may choose fewer", between(1, 65536)},
        {"prefill-tokens", "N", &o.prefill_tokens, "most prompt tokens in one step", between(1, 1e6)},
        {"step-depth", "N", &o.step_depth, "1: an engine gets its next step after the last one's tokens were read; 2: before",
         between(1, 2)}};
}

constexpr const char* kInstancesHelp =
    "engines, each with its own KV cache; auto: one for each GPU, or for each --tensor-parallel of them, and 2 on a CPU";

/// Options of commands whose machines are all within this process.
std::vector<OptionSpec> local_instance_options(MachineOptions& o, int64_t& nodes) {
  std::vector<OptionSpec> options = instance_options(o);
  options.insert(options.begin(),
                 {{"instances", "N", &o.instances, kInstancesHelp, between(1, 1024), true},
                  {"nodes", "N", &nodes, "machines (within this process) that instances are dealt to; each has its own pool tiers",
                   between(1, 64)}});
  return options;
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

bool foresees_nothing(const SchedulingPolicy& policy) { return !policy.needs_lengths; }

OneOf seer_plus_parts() {
  OneOf parts;
  for (const SeerPlusPart& part : kSeerPlusParts) parts.names.push_back(part.name);
  return parts;
}

OneOf policies_or_auto(bool (*chosen)(const SchedulingPolicy& policy) = nullptr) {
  OneOf policies{chunk_policy_names(chosen), {{kPartialPolicy, kPartialRefused}}};
  policies.names.insert(policies.names.begin(), kAutoPolicy);
  return policies;
}

std::vector<OptionGroup> option_groups(RolloutOptions& o) {
  const OneOf policies = policies_or_auto();
  std::vector<OptionSpec> sampling = sampling_options(o.sampling);
  sampling.push_back({"raw-logprobs", "", &o.sampling.logprob_mode, "log-probabilities are log-softmax(logits), without the temperature"});
  std::vector<OptionSpec> drafting = drafting_options(o);
  drafting.push_back({"draft-history", "DIR", &o.draft_history,
         "folder of past responses: drafts use those to the same prompts, and this rollout adds its own"});
  std::vector<OptionSpec> instances = local_instance_options(o, o.nodes);
  std::vector<OptionSpec> cluster = access_options(o.access);
  cluster.insert(cluster.begin(),
                 {{"cluster", "HOST:PORT", &o.cluster, "controller of a cluster, whose machines run the rollout instead of this one"},
                  controller_wait_option(o.controller_wait_s)});
  std::vector<OptionSpec> router = router_options(o.router);
  router.push_back({"profile-out", "FILE", &o.profile_out, "JSON with step times learned from the servers' answers, for seer simulate --profile"});
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
        {"chunk-tokens", "N", &o.scheduler.chunk_tokens, "tokens until a request gives up its instance; 0: never",
         at_least(0)},
        {"reserve", "SHARE", &o.scheduler.reserve_share,
         "share of a chunk's KV reserved before it starts; below 0: the policy's default", between(-1, 1)},
        {"lengths", "FILE", &o.lengths,
         "response lengths for oracle policies: JSONL of {group, sample, tokens}, or an --out file"}}},
      {"Drafting", std::move(drafting)},
      {"Instances", std::move(instances)},
      kv_options(o),
      {"Cluster", std::move(cluster)},
      {"Router", std::move(router)},
      {"Sampling", std::move(sampling)},
      log_options(o.log),
  };
}

std::vector<OptionGroup> option_groups(NodeOptions& o) {
  std::vector<OptionSpec> instances = instance_options(o);
  instances.insert(instances.begin(), {"instances", "N", &o.instances, cat(kInstancesHelp, "; 0: none"), between(0, 1024), true});
  std::vector<OptionSpec> cluster = access_options(o.access);
  cluster.insert(cluster.begin(),
                 {{"name", "N", &o.name, "number of this machine, unique in the cluster", between(0, 1 << 20)},
                  {"roles", "LIST", CommaListField{&o.roles},
                   "what this machine does; without it: all that its other options allow. kv alone lends its DRAM and disk to the others",
                   OneOf{{kNodeRoleNames.begin(), kNodeRoleNames.end()}}},
                  {"join", "HOST:PORT", &o.join, "address of the controller; without it this machine is the controller"},
                  controller_wait_option(o.controller_wait_s),
                  {"listen", "HOST:PORT", &o.listen, "address of this machine that the others can reach; port 0: the system chooses"}});
  return {
      {"Cluster", std::move(cluster)},
      {"Model", {{"model", "DIR", &o.model, "model folder in Hugging Face layout; the same on all machines"}}},
      {"Drafting", drafting_options(o)},
      {"Instances", std::move(instances)},
      kv_options(o),
      log_options(o.log),
  };
}

std::vector<OptionGroup> option_groups(ServeOptions& o) {
  std::vector<OptionSpec> instances = local_instance_options(o, o.nodes);
  std::vector<OptionSpec> cluster = access_options(o.cluster_access);
  cluster.insert(cluster.begin(), {{"cluster", "HOST:PORT", &o.cluster, "controller of a cluster, whose machines run the requests instead of this one"},
                                   controller_wait_option(o.controller_wait_s)});
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
        {"chunk-tokens", "N", &o.scheduler.chunk_tokens, "tokens until a request gives up its instance; 0: never", at_least(0)},
        {"reserve", "SHARE", &o.scheduler.reserve_share,
         "share of a chunk's KV reserved before it starts; below 0: the policy's default", between(-1, 1)}}},
      {"Drafting", drafting_options(o)},
      {"Instances", std::move(instances)},
      kv_options(o),
      {"Cluster", std::move(cluster)},
      {"Router", router_options(o.router)},
      log_options(o.log),
  };
}

/// Options for reaching a cluster.
std::vector<OptionSpec> reach_options(std::string& cluster, ClusterAccess& access) {
  std::vector<OptionSpec> options = access_options(access);
  options.insert(options.begin(), {"cluster", "HOST:PORT", &cluster, "the controller"});
  return options;
}

std::vector<OptionGroup> option_groups(StatusOptions& o) {
  std::vector<OptionSpec> options = reach_options(o.cluster, o.access);
  options.push_back({"watch", "", &o.watch, "print again every second, until Ctrl-C"});
  options.push_back({"json", "", &o.json, "print JSON, a line each time"});
  return {{"Cluster", std::move(options)}};
}

std::vector<OptionGroup> option_groups(DrainOptions& o) {
  std::vector<OptionSpec> options = reach_options(o.cluster, o.access);
  options.push_back({"name", "N", &o.name, "number of the machine to drain", between(0, 1 << 20)});
  options.push_back({"timeout", "SECONDS", &o.timeout_s, "after this time it leaves at once; KV that it still has is prefilled again elsewhere",
                     between(0, 1e6)});
  return {{"Cluster", std::move(options)}};
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
        enum_option("weights", "T", &o.weights, kWeightTypeNames, "keep weights as in the folder, or as int8; as in the rollout for the same bits"),
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
        enum_option("weights", "T", &o.weights, kWeightTypeNames, "keep weights as in the folder, or as int8"),
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
       {{"chunk-tokens", "N", &o.scheduler.chunk_tokens, "tokens until a request gives up its instance; 0: never",
         at_least(0)},
        {"reserve", "SHARE", &o.scheduler.reserve_share,
         "share of a chunk's KV reserved before it starts; below 0: the policy's default", between(-1, 1)},
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

std::vector<OptionGroup> option_groups(DoctorOptions&) { return {}; }

constexpr const char* kRolloutExamples = R"(  seer rollout --model DIR --prompts prompts.jsonl --out responses.jsonl --report report.json
  seer rollout --config deploy/seer.toml --model DIR --prompts prompts.jsonl --out responses.jsonl --policy divided
  seer rollout --model DIR --prompts prompts.jsonl --compare verl,divided,seer --report compare.json
  seer rollout --model DIR --prompts prompts.jsonl --out greedy.jsonl --group-size 1 --temperature 0
  seer rollout --model DIR --prompts prompts.jsonl --out out.jsonl --dram-bytes 32MiB --cold-dir DIR
  seer rollout --print-config --group-size 16 > my.toml
)";
constexpr const char* kServeExamples = R"(  seer serve --model DIR                                                   # at 127.0.0.1:30000
  seer serve --model DIR --listen 0.0.0.0:30000 --tls-cert cert.pem --tls-key key.pem --token-file token.txt
  curl -s 127.0.0.1:30000/generate -d '{"text": "2+2=", "sampling_params": {"max_new_tokens": 8}}'
)";
constexpr const char* kNodeExamples = R"(  seer node --model DIR --listen 127.0.0.1:7000                          # the controller, with instances of its own
  seer node --model DIR --name 1 --join 127.0.0.1:7000                   # one more machine
  seer node --name 2 --join 127.0.0.1:7000 --roles kv --dram-bytes 64GiB # one that keeps KV for the others
  seer rollout --cluster 127.0.0.1:7000 --model DIR --prompts prompts.jsonl --out responses.jsonl
)";
constexpr const char* kStatusExamples = R"(  seer status --cluster 127.0.0.1:7000
  seer status --cluster 127.0.0.1:7000 --watch
)";
constexpr const char* kDrainExamples = R"(  seer drain --cluster 127.0.0.1:7000 --name 1      # returns when machine 1 has left
)";
constexpr const char* kScoreExamples = R"(  seer score --model DIR --in responses.jsonl --out scored.jsonl
  seer score --model REFERENCE_DIR --in responses.jsonl --out reference.jsonl --raw-logprobs
)";
constexpr const char* kProfileExamples = R"(  seer profile --model DIR --out profile.json
  seer profile --model DIR --out profile.json --instances 2 --quick --context-max 2048
)";
constexpr const char* kSimulateExamples = R"(  seer simulate --workload moonlight --policies verl,divided,seer --seeds 5 --html moonlight.html
  seer simulate --workload responses.jsonl --profile profile.json --instances 2 --kv-tokens 50000 --chunk-tokens 512
  seer simulate --workload moonlight --policies seer,divided --seeds 10 --faults
  seer simulate --policies seer+ --sweep instances=16,32 dram=1TiB,2TiB --train-s 650 --update-s 90 --html sweep.html
)";
constexpr const char* kCompletionExamples = R"(  source <(seer completion bash)                            # for this shell
  seer completion bash > ~/.local/share/bash-completion/completions/seer
  seer completion zsh > ~/.zfunc/_seer                      # with ~/.zfunc in fpath
  seer completion fish > ~/.config/fish/completions/seer.fish
)";
constexpr const char* kManExamples = R"(  seer man | man -l -
)";
constexpr const char* kDoctorExamples = R"(  seer doctor          # exit code 0 when `seer rollout` can run here
)";

// ---- the file ------------------------------------------------------------------------------------------------------

/// All options as a file that --config reads.
std::string config_text(const std::vector<OptionGroup>& groups, const std::string& table_name) {
  std::string text = cat("# Options of `seer ", table_name, "`, for --config. Flags of the same names override them.\n",
                         "# An empty text or list means: not given.\n[", table_name, "]\n");
  for (const OptionGroup& group : groups) {
    text += cat("\n# ---- ", group.title, "\n");
    for (const OptionSpec& spec : group.options) {
      const bool named = std::holds_alternative<OneOf>(spec.check);
      text += cat("# ", spec.help, named ? cat(": ", expectation(spec)) : "", "\n", spec.name, " = ", toml_value(spec),
                  "\n");
    }
  }
  return text;
}

// ---- what must hold between options ----------------------------------------------------------------------------

Status require(const std::string& value, const char* flag, const char* what) {
  return value.empty() ? Status{fail(Code::kInvalidArgument, flag, " is missing: expected ", what)} : Status{};
}

Status check_temperature(float temperature) {
  if (temperature == 0 || temperature >= kTemperatureLeast) return {};
  return fail(Code::kInvalidArgument, "--temperature ", temperature, ": expected 0 (greedy) or a number, at least ", kTemperatureLeast);
}

/// The folder may be new, but its parent must exist; otherwise the path is probably mistyped.
Status check_new_folder(const char* flag, const std::string& path) {
  const std::filesystem::path parent = (std::filesystem::path(path) / "").parent_path().parent_path();
  std::error_code ignored;
  if (path.empty() || parent.empty() || std::filesystem::is_directory(parent, ignored)) return {};
  return fail(Code::kNotFound, flag, " ", path, ": there is no folder ", parent.string(), " to make it in");
}

Status check_machine(const MachineOptions& o) {
  SEER_RETURN_IF_ERROR(require(o.model, "--model", "a model folder in Hugging Face layout"));
  if (o.block_tokens % 16 == 0) return {};
  return fail(Code::kInvalidArgument, "--block-tokens ", o.block_tokens, ": expected a multiple of 16");
}

Status check_nodes(int64_t nodes, int64_t instances) {
  if (instances == kAutoNumber || nodes <= instances) return {};
  return fail(Code::kInvalidArgument, "--nodes ", nodes, ": expected at most --instances, which is ", instances,
              ": each node has at least one instance");
}

Status check_roles(const NodeOptions& o) {
  const NodeRoles roles = roles_of(o);
  const bool is_controller = roles.has(NodeRole::kController);
  if (roles == NodeRoles{})
    return fail(Code::kInvalidArgument, "--instances 0 cannot go with --join: expected instances, or --roles kv or draft, or the controller alone");
  if (is_controller != o.join.empty())
    return fail(Code::kInvalidArgument, "--roles ", joined(o.roles), is_controller ? " cannot go with --join: the controller joins none"
                                                                                  : " needs --join: only the controller joins none");
  if (roles.has(NodeRole::kInstances) && o.instances == 0)
    return fail(Code::kInvalidArgument, "--roles ", joined(o.roles), " cannot go with --instances 0");
  if (!o.roles.empty() && roles.has(NodeRole::kKv) && o.dram_bytes == 0)
    return fail(Code::kInvalidArgument, "--roles ", joined(o.roles), " cannot go with --dram-bytes 0: the pool is in DRAM");
  return {};
}

Status check_together(const NodeOptions& o) {
  SEER_RETURN_IF_ERROR(check_roles(o));
  if (roles_of(o).has(NodeRole::kInstances)) SEER_RETURN_IF_ERROR(check_machine(o));
  SEER_RETURN_IF_ERROR(check_access(o.access));
  SEER_RETURN_IF_ERROR(check_address("--listen", o.listen, true, o.access));
  return o.join.empty() ? Status{} : check_address("--join", o.join, false, o.access);
}

Status check_reach(const std::string& cluster, const ClusterAccess& access) {
  SEER_RETURN_IF_ERROR(require(cluster, "--cluster", "HOST:PORT of the controller"));
  SEER_RETURN_IF_ERROR(check_access(access));
  return check_address("--cluster", cluster, false, access);
}

constexpr const char* kEnginesInCluster = "--engines cannot go with --cluster: requests run either on servers or on the machines of a cluster";

Status check_together(const ServeOptions& o) {
  if (std::ranges::any_of(o.served_name, [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
    return fail(Code::kInvalidArgument, "--served-name ", shown_value(o.served_name), ": expected a name without control characters");
  SEER_RETURN_IF_ERROR(check_machine(o));
  SEER_RETURN_IF_ERROR(check_nodes(o.nodes, o.instances));
  if (!o.cluster.empty()) SEER_RETURN_IF_ERROR(check_reach(o.cluster, o.cluster_access));
  if (!o.cluster.empty() && !o.router.engines.empty()) return fail(Code::kInvalidArgument, kEnginesInCluster);
  SEER_RETURN_IF_ERROR(check_router(o.router));
  SEER_RETURN_IF_ERROR(check_new_folder("--journal", o.journal));
  SEER_ASSIGN_OR_RETURN(const HostPort listen, parse_host_port("--listen", o.listen, true));
  if (o.tls_cert.empty() != o.tls_key.empty())
    return fail(Code::kInvalidArgument, o.tls_cert.empty() ? "--tls-key needs --tls-cert" : "--tls-cert needs --tls-key");
  if (is_of_this_host(listen.host) || o.insecure || (!o.tls_cert.empty() && !o.token_file.empty())) return {};
  if (!resolves(listen.host))
    return fail(Code::kInvalidArgument, "--listen ", o.listen, ": the name ", listen.host, " cannot be resolved");
  return fail(Code::kInvalidArgument, "--listen ", o.listen,
              ": other hosts can reach this address: expected --tls-cert, --tls-key and --token-file, or --insecure");
}

Status check_together(const StatusOptions& o) { return check_reach(o.cluster, o.access); }
Status check_together(const DrainOptions& o) {
  if (o.name < 0) return fail(Code::kInvalidArgument, "--name is missing: expected the number of the machine to drain");
  return check_reach(o.cluster, o.access);
}

Status check_prompts(const RolloutOptions& o) {
  SEER_RETURN_IF_ERROR(require(o.prompts, "--prompts", "a JSONL file of prompts"));
  for (const auto& [flag, is_given] : {std::pair{"--compare", !o.compare.empty()}, {"--lengths", !o.lengths.empty()},
                                       {"--draft-history", !o.draft_history.empty()}, {"--journal", !o.journal.empty()}})
    if (o.streams_prompts() && is_given)
      return fail(Code::kInvalidArgument, flag, " cannot go with --prompts -: it needs all prompts at the start");
  if (o.compare.empty()) SEER_RETURN_IF_ERROR(require(o.out, "--out", "the JSONL file to write the responses to"));
  return check_temperature(o.sampling.temperature);
}

/// Where it runs.
Status check_machines(const RolloutOptions& o) {
  if (!o.cluster.empty()) {
    SEER_RETURN_IF_ERROR(check_reach(o.cluster, o.access));
    if (!o.html.empty()) return fail(Code::kInvalidArgument, "--html cannot go with --cluster: instances of other processes draw no timelines");
    if (!o.router.engines.empty()) return fail(Code::kInvalidArgument, kEnginesInCluster);
  }
  SEER_RETURN_IF_ERROR(check_router(o.router));
  if (!o.router.engines.empty())
    for (const auto& [flag, is_given] : {std::pair{"--html", !o.html.empty()}, {"--draft-history", !o.draft_history.empty()}})
      if (is_given) return fail(Code::kInvalidArgument, flag, " cannot go with --engines: servers of others ", flag == std::string("--html") ? "draw no timelines" : "make their own drafts");
  return check_nodes(o.nodes, o.instances);
}

/// What it keeps for later runs, and has from earlier ones.
Status check_kept(const RolloutOptions& o) {
  SEER_RETURN_IF_ERROR(check_new_folder("--draft-history", o.draft_history));
  SEER_RETURN_IF_ERROR(check_new_folder("--journal", o.journal));
  if (o.resume && o.journal.empty()) return fail(Code::kInvalidArgument, "--resume needs --journal, the folder to continue from");
  if (!o.journal.empty() && !o.compare.empty())
    return fail(Code::kInvalidArgument, "--journal cannot go with --compare: it keeps the responses of one run");
  if (!o.draft_history.empty() && draft_source(o) != DraftSource::kGrouped)
    return fail(Code::kInvalidArgument, "--draft-history needs --drafting grouped, not ",
                kDraftSourceNames[static_cast<size_t>(draft_source(o))]);
  if (!o.draft_history.empty() && !o.compare.empty())
    return fail(Code::kInvalidArgument, "--draft-history cannot go with --compare: each policy would draft from the responses of the one before");
  return {};
}

Status check_policies(const RolloutOptions& o) {
  const std::vector<std::string> policies = o.compare.empty() ? std::vector{o.scheduler.policy} : o.compare;
  for (size_t i = 0; i < policies.size(); ++i) {
    const SchedulingPolicy* const policy = find_policy(policies[i]);
    if (policy != nullptr && policy->needs_lengths && o.lengths.empty())
      return fail(Code::kInvalidArgument, "--lengths is missing: the ", policies[i],
                  " policy takes the response lengths from it");
    if (std::find(policies.begin(), policies.begin() + i, policies[i]) != policies.begin() + i)
      return fail(Code::kInvalidArgument, "--compare names ", policies[i], " twice: expected different policies");
  }
  return {};
}

Status check_files(const RolloutOptions& o) {
  using Named = std::pair<const char*, const std::string*>;
  const Named out{"--out", &o.out}, report{"--report", &o.report}, html{"--html", &o.html}, log{"--log-file", &o.log.file}, profile{"--profile-out", &o.profile_out};
  for (const auto& [one, other] : {std::pair{out, report}, {out, html}, {report, html}, {log, out}, {log, report}, {log, html}, {profile, out}, {profile, report}, {profile, log}})
    if (!one.second->empty() && *one.second == *other.second)
      return fail(Code::kInvalidArgument, one.first, " and ", other.first, " both name ", *one.second, ": expected two files");
  return {};
}

Status check_together(const RolloutOptions& o) {
  SEER_RETURN_IF_ERROR(check_machine(o));
  SEER_RETURN_IF_ERROR(check_prompts(o));
  SEER_RETURN_IF_ERROR(check_machines(o));
  SEER_RETURN_IF_ERROR(check_kept(o));
  SEER_RETURN_IF_ERROR(check_policies(o));
  return check_files(o);
}

Status check_together(const ScoreOptions& o) {
  SEER_RETURN_IF_ERROR(require(o.model, "--model", "a model folder in Hugging Face layout"));
  SEER_RETURN_IF_ERROR(check_temperature(o.temperature));
  SEER_RETURN_IF_ERROR(require(o.in, "--in", "a JSONL file as written by seer rollout --out"));
  return require(o.out, "--out", "the JSONL file to write the scored lines to");
}

Status check_together(const ProfileOptions& o) {
  SEER_RETURN_IF_ERROR(require(o.model, "--model", "a model folder in Hugging Face layout"));
  return require(o.out, "--out", "the JSON file to write the profile to");
}

Status check_together(const SimulateOptions& o) {
  for (size_t i = 0; i < o.policies.size(); ++i)
    if (std::find(o.policies.begin(), o.policies.begin() + i, o.policies[i]) != o.policies.begin() + i)
      return fail(Code::kInvalidArgument, "--policies names ", o.policies[i], " twice: expected different policies");
  if (const Result<std::vector<SweepAxis>> axes = parse_sweep(o.sweep); !axes.ok()) return axes.error();
  if (!o.faults) return {};
  if (!o.sweep.empty())
    return fail(Code::kInvalidArgument, "--sweep does not go with --faults: such runs are checked, not measured");
  for (const std::string& policy : o.policies)
    if (sim_policy(policy).is_partial)
      return fail(Code::kInvalidArgument, "--policies ", policy,
                  " does not go with --faults: it leaves requests unfinished, which cannot be checked");
  for (const auto& [flag, path] : {std::pair{"--report", &o.report}, {"--csv", &o.csv}, {"--html", &o.html}})
    if (!path->empty())
      return fail(Code::kInvalidArgument, flag, " does not go with --faults: such runs are checked, not measured");
  return {};
}

Status check_together(const DoctorOptions&) { return {}; }

// ---- a subcommand ----------------------------------------------------------------------------------------------

/// A subcommand: its option table, and the function that reads its options.
struct Subcommand {
  CommandSpec spec;
  std::function<Result<Command>(const TypedCommand& typed, std::vector<std::string>* warnings)> finish;
};

/// The options that are given by flag, or have another value than the default.
std::set<std::string> given_options(const std::vector<OptionGroup>& groups, const std::vector<OptionGroup>& defaults,
                                    const TypedCommand& typed) {
  std::set<std::string> given;
  for (size_t g = 0; g < groups.size(); ++g)
    for (size_t i = 0; i < groups[g].options.size(); ++i) {
      const OptionSpec& spec = groups[g].options[i];
      if (typed.values.contains(spec.name) || toml_value(spec) != toml_value(defaults[g].options[i])) given.insert(spec.name);
    }
  return given;
}

template <class Options>
Subcommand make_subcommand(const char* name, const char* what, const char* examples, bool has_config, std::string notes = "") {
  struct Open {
    Options options;
    std::vector<OptionGroup> in_file;
    std::string config_path;
    bool print_config = false, help = false;
  };
  auto open = std::make_shared<Open>();
  open->in_file = option_groups(open->options);
  OptionGroup general{"Options", {{kHelpOption, "", &open->help, "print this help and exit"}}};
  if (has_config) {
    general.options.push_back({"config", "FILE", &open->config_path, cat("TOML file with a table [", name, "]; flags override it")});
    general.options.push_back({"print-config", "", &open->print_config, "print the options in effect as such a file and exit"});
  }
  const CommandSpec about_file{name, what, examples, {general}};
  CommandSpec spec = about_file;
  spec.notes = std::move(notes);
  spec.options.insert(spec.options.end(), open->in_file.begin(), open->in_file.end());
  const auto finish = [open, about_file, spec](const TypedCommand& typed, std::vector<std::string>* warnings) -> Result<Command> {
    SEER_RETURN_IF_ERROR(apply_typed(about_file, typed));
    if (!open->config_path.empty())
      SEER_RETURN_IF_ERROR(apply_toml_file(
          open->config_path, {.name = spec.name,
                              .options = open->in_file,
                              .keys = cat("the name of a flag of seer ", spec.name, " without its dashes")}));
    SEER_RETURN_IF_ERROR(apply_typed(spec, typed));  // over the file
    if (open->print_config) return Command{PrintAndExit{config_text(open->in_file, spec.name)}};
    SEER_RETURN_IF_ERROR(check_together(open->options));
    if (warnings) {
      Options defaults;
      *warnings = ineffective_options(open->options, given_options(open->in_file, option_groups(defaults), typed));
      for (std::string& warning : *warnings)  // "--NAME has no effect ...": of what the file gives, it names the file
        if (!typed.values.contains(warning.substr(2, warning.find(' ') - 2))) warning = cat(open->config_path, ": ", warning);
    }
    return Command{open->options};
  };
  return {std::move(spec), finish};
}

/// A command that prints a text made from the table of all commands. `text` gets the word after the command.
Subcommand make_printer(CommandSpec spec, std::function<std::string(const std::string& word)> text) {
  const auto finish = [text, spec](const TypedCommand& typed, std::vector<std::string>*) -> Result<Command> {
    const bool known = spec.word.empty() || std::find(spec.words.begin(), spec.words.end(), typed.word) != spec.words.end();
    if (!known)
      return fail(Code::kInvalidArgument, "seer ", spec.name, typed.word.empty() ? "" : " ", shown_value(typed.word), ": expected one of ",
                  joined(spec.words), did_you_mean(typed.word, spec.words));
    return Command{PrintAndExit{text(typed.word)}};
  };
  return {spec, finish};
}

}  // namespace

NodeRoles roles_of(const NodeOptions& options) {
  NodeRoles roles;
  for (const std::string& name : options.roles)
    roles.add(static_cast<NodeRole>(std::ranges::find(kNodeRoleNames, name) - kNodeRoleNames.begin()));
  if (!options.roles.empty()) return roles;
  if (options.join.empty()) roles.add(NodeRole::kController);
  if (options.instances == 0) return roles;
  roles.add(NodeRole::kInstances);
  if (options.dram_bytes > 0) roles.add(NodeRole::kKv);
  if (draft_source(options) == DraftSource::kGrouped) roles.add(NodeRole::kDraft);
  return roles;
}

/// As a shell takes them, without the files that they name for output: these change no figure.
std::string command_text(const std::vector<std::string>& arguments) {
  std::string text = "seer";
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const std::string name = argument.substr(0, argument.find('='));
    if (name == "--html" || name == "--report" || name == "--csv" || name == "--log-file") {
      i += name.size() == argument.size() ? 1 : 0;
      continue;
    }
    const bool is_plain = !argument.empty() && std::ranges::all_of(argument, [](unsigned char c) { return std::isalnum(c) || std::strchr("-_./=,:+@%", c) != nullptr; });
    if (is_plain) {
      text += cat(' ', argument);
      continue;
    }
    text += " '";
    for (const char c : argument) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    text += '\'';
  }
  return text;
}

Result<Command> parse_command_line(const std::vector<std::string>& arguments, std::vector<std::string>* warnings) {
  ProgramSpec program{.version = kVersion, .what = "rollouts of language models for reinforcement learning", .commands = {}};
  std::vector<Subcommand> subcommands{
      make_subcommand<RolloutOptions>("rollout", "make a group of responses for every prompt", kRolloutExamples, true, rollout_notes()),
      make_subcommand<ServeOptions>("serve", "answer trainers and other clients over HTTP, as SGLang does", kServeExamples, true),
      make_subcommand<NodeOptions>("node", "run a machine of a cluster: instances, drafts and KV pool", kNodeExamples, true),
      make_subcommand<StatusOptions>("status", "show the machines and rollouts of a cluster", kStatusExamples, false),
      make_subcommand<DrainOptions>("drain", "let a machine leave a cluster; its work goes on elsewhere", kDrainExamples, false),
      make_subcommand<ScoreOptions>("score", "compute log-probabilities of given responses", kScoreExamples, false),
      make_subcommand<ProfileOptions>("profile", "measure how long steps of a model take, and fit a cost model",
                                      kProfileExamples, false),
      make_subcommand<SimulateOptions>("simulate", "simulate rollouts of whole clusters in virtual time, policies side by side",
                                       kSimulateExamples, true, simulate_notes()),
      make_subcommand<DoctorOptions>("doctor", "what this machine has, and how to add what it lacks", kDoctorExamples, false),
      make_printer({"completion", "print the completions of a shell", kCompletionExamples, {}, "SHELL", completion_shells()},
                   [&](const std::string& shell) { return shell_completion(program, shell); }),
      make_printer({"man", "print the manual page", kManExamples, {}}, [&](const std::string&) { return man_page(program); }),
      make_printer({kHelpCommand, "list the commands, or the options of one", "", {}, "COMMAND", {}}, {})};
  for (const Subcommand& subcommand : subcommands) program.commands.push_back(subcommand.spec);
  for (const Subcommand& subcommand : subcommands) program.commands.back().words.push_back(subcommand.spec.name);

  SEER_ASSIGN_OR_RETURN(const auto read, read_arguments(program, arguments));
  if (const auto* print = std::get_if<PrintAndExit>(&read)) return Command{*print};
  const auto& typed = std::get<TypedCommand>(read);
  const auto found = std::ranges::find_if(subcommands, [&](const Subcommand& s) { return s.spec.name == typed.name; });
  SEER_ASSIGN_OR_RETURN(Command command, found->finish(typed, warnings));
  if (auto* const simulate = std::get_if<SimulateOptions>(&command)) simulate->command_line = command_text(arguments);
  return command;
}

}  // namespace seer
