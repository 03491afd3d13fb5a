// Options of every subcommand, and the code that reads them: flags override the TOML file, which overrides the defaults here.
// Each struct is passed whole to its user. A new option is a field here, a line in option_tables.cpp, and a line in
// deploy/seer.toml (`seer rollout --print-config` prints that file).
// Used by seer.cpp.
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "actors/log.h"
#include "actors/policy/draft/draft_budget.h"
#include "actors/policy/schedule/policies.h"
#include "actors/policy/schedule/policy_choice.h"
#include "cli/arguments.h"
#include "cli/cluster_access.h"
#include "cli/router_options.h"
#include "cli/sim/sim_iteration.h"
#include "cli/sim/sim_policy.h"
#include "gpu/cpu/cpu_engine.h"
#include "gpu/model/weight_store.h"
#include "protocols/cluster.h"
#include "protocols/result.h"
#include "protocols/rollout.h"

namespace seer {

/// Speculative decoding, and from whose text: the request's own, or that of its group. kAuto: see draft_source().
enum class DraftSource : uint8_t { kAuto, kOff, kOwn, kGrouped };
inline constexpr std::array<const char*, 4> kDraftSourceNames{"auto", "off", "own", "grouped"};  // by value
enum class DraftShapes : uint8_t { kAuto, kPath, kTree };                                // auto: whichever saves more time
inline constexpr std::array<const char*, 3> kDraftShapesNames{"auto", "path", "tree"};

/// What engines compute on. simt, the emulated GPU of tests, is only in builds with SEER_WITH_SIMT.
enum class DeviceKind : uint8_t { kCpu, kCuda, kSimt };
#ifdef SEER_HAVE_SIMT
inline constexpr std::array<const char*, 3> kDeviceKindNames{"cpu", "cuda", "simt"};  // by value
#else
inline constexpr std::array<const char*, 2> kDeviceKindNames{"cpu", "cuda"};
#endif

/// The parts of a machine: engines, their KV caches and pool tiers, drafts. Paths are empty if not given. What is kAutoNumber is chosen for
/// the device before engines are made: choose_instances() and choose_kv_bytes() of engine_source.h.
struct MachineOptions {
  std::string model;                // folder in Hugging Face layout
  int64_t weight_version = 1;       // of the weights in `model`, as the trainer counts them
  WeightType weights = WeightType::kAsStored;

  DeviceKind device = DeviceKind::kCpu;
  int64_t tensor_parallel = 1;      // GPUs of an instance
  int64_t instances = kAutoNumber;  // engines, each with its own KV cache
  int64_t threads_per_instance = 0; // 0: an even share of the cores
  bool pin = false;                 // threads of instances are pinned to cores
  int64_t max_batch = 256;          // most running requests of an instance
  int64_t prefill_tokens = 512;     // most prompt tokens in one step
  int64_t step_depth = 2;           // steps in the queue of an engine: 1 or 2

  DraftSource drafting = DraftSource::kAuto;
  DraftShapes draft_shape = DraftShapes::kAuto;
  int64_t draft_tokens_max = 16;    // of one sequence in one step
  DraftRule draft_rule = DraftRule::kUniform;
  double draft_lambda = 2;          // see DraftBudgetConfig::lambda
  std::string draft_profile;        // step times from `seer profile`, also for --policy auto; empty: measured at the start

  int64_t kv_bytes = kAutoNumber;           // KV cache per instance
  KvType kv_dtype = KvType::kBf16;
  int64_t block_tokens = 16;                // tokens per KV block
  int64_t dram_bytes = int64_t{1} << 30;    // DRAM tier of the pool
  std::string cold_dir;                     // folder of the cold tier; empty: none
  int64_t cold_bytes = int64_t{8} << 30;    // most bytes of the cold tier

  LogConfig log;
};

/// What `drafting` means here: kAuto is kGrouped on CPUs and kOff on GPUs. The draft budget ends drafts that do not pay, so they are
/// the default; on GPUs they wait until their bits were checked on one (docs/cuda.md).
inline DraftSource draft_source(const MachineOptions& options) {
  if (options.drafting != DraftSource::kAuto) return options.drafting;
  return options.device == DeviceKind::kCpu ? DraftSource::kGrouped : DraftSource::kOff;
}

/// `seer rollout`: on machines within this process, those of a cluster, or servers that others run.
struct RolloutOptions : MachineOptions {
  std::string prompts;              // JSONL; "-": stdin, as they come
  std::string out;                  // JSONL of responses; may be empty only with `compare`
  std::string report;               // JSON
  std::string html;                 // page; empty: none
  int64_t limit = 0;                // most prompts that are read; 0: all
  int64_t group_size = 8;           // responses per prompt
  uint64_t seed = 1;                // run seed: sample seeds are hashes of it, the group and the sample
  std::string cluster;              // HOST:PORT of a cluster's controller; empty: none
  int64_t controller_wait_s = 60;   // how long to wait for a controller that died or cannot be reached
  ClusterAccess access;             // to the cluster
  int64_t nodes = 1;                // machines that the instances are dealt to in turn, each with its own KV pool tiers, as in a
                                    // cluster; all are in this process

  ChunkSchedulerConfig scheduler{.policy = kAutoPolicy};  // policy, chunk_tokens, reserve_share
  RouterOptions router;             // servers of others
  std::string profile_out;          // JSON: step times learned from these servers (gpu/step_profile.h); empty: none
  std::vector<std::string> compare; // policies run in turn on the same work; empty: only scheduler.policy
  std::string lengths;              // JSONL of known response lengths, for oracle policies
  std::string draft_history;        // folder of responses of earlier rollouts; empty: none
  std::string journal;              // folder; empty: none
  bool resume = false;              // continues from the journal

  SamplingParams sampling;

  /// Not in a cluster or on servers of others.
  bool runs_here() const { return cluster.empty() && router.engines.empty(); }
  bool streams_prompts() const { return prompts == "-"; }
  std::string prompts_name() const { return streams_prompts() ? "stdin" : prompts; }  // in messages
};

/// `seer node`: one machine of a cluster.
struct NodeOptions : MachineOptions {
  std::vector<std::string> roles;       // names out of kNodeRoleNames; empty: see roles_of()
  int64_t name = 0;                     // of the machine, in the cluster
  std::string listen = "127.0.0.1:0";   // HOST:PORT; port 0: the system chooses
  std::string join;                     // HOST:PORT of the controller; empty: this machine is it
  int64_t controller_wait_s = 60;       // how long to wait for a controller that died or cannot be reached
  ClusterAccess access;
};

/// The roles of a machine. Without --roles: the controller's if it joins none; the others if it has instances.
NodeRoles roles_of(const NodeOptions& options);

/// `seer serve`: on machines within this process, those of a cluster, or servers that others run.
struct ServeOptions : MachineOptions {
  std::string listen = "127.0.0.1:30000";  // HOST:PORT; port 0: the system chooses
  std::string served_name;                 // of the model, for clients; empty: its folder's
  std::string tls_cert, tls_key;           // PEM files; empty: no TLS
  std::string token_file;                  // its first line is the bearer token; empty: none
  bool insecure = false;                   // an address of other hosts is allowed without both
  int64_t body_bytes = 64 << 20;           // largest body of a request
  int64_t connections = 20'000;            // most connections at a time
  std::string cluster;                     // HOST:PORT of the controller; empty: machines within this process
  ClusterAccess cluster_access{.prefix = "cluster-"};
  int64_t controller_wait_s = 60;          // as in RolloutOptions
  RouterOptions router;                    // servers of others
  int64_t nodes = 1;                       // as in RolloutOptions
  uint64_t seed = 1;                       // of requests that have none
  std::string journal;                     // folder of rollouts that outlive the process; empty: none
  int64_t kept_bytes = int64_t{1} << 30;   // no more groups are taken while they take this: running prompts, and unacknowledged responses
  ChunkSchedulerConfig scheduler{.policy = "auto"};
};

/// `seer status`.
struct StatusOptions {
  std::string cluster;   // HOST:PORT of the controller
  ClusterAccess access;
  bool watch = false;    // prints again every second
  bool json = false;
};

/// `seer drain`.
struct DrainOptions {
  std::string cluster;       // HOST:PORT of the controller
  ClusterAccess access;
  int64_t name = -1;         // of the machine; -1: not given
  int64_t timeout_s = 300;   // then it leaves at once; KV that it still has is prefilled again elsewhere
};

/// `seer score`.
struct ScoreOptions {
  std::string model;                // folder in Hugging Face layout
  std::string in;                   // JSONL, as written by `seer rollout --out`
  std::string out;                  // JSONL: the same lines with "scores" added
  float temperature = 1.0f;         // scores are log-softmax(logits / temperature); 0: raw
  LogprobMode logprob_mode = LogprobMode::kProcessed;
  DeviceKind device = DeviceKind::kCpu;  // must be the rollout's, for the same bits, as the next
  int64_t tensor_parallel = 1;      // GPUs that compute the model together
  int64_t threads = 0;              // 0: all cores
  WeightType weights = WeightType::kAsStored;  // must be the rollout's, for the same bits
  int64_t kv_bytes = int64_t{256} << 20;
  KvType kv_dtype = KvType::kBf16;  // likewise
};

/// `seer profile`.
struct ProfileOptions {
  std::string model;                // folder in Hugging Face layout
  std::string out;                  // JSON (gpu/step_profile.h)
  DeviceKind device = DeviceKind::kCpu;
  int64_t tensor_parallel = 1;      // GPUs of an engine
  int64_t instances = 1;            // engines side by side, as in a rollout
  int64_t threads = 0;              // of each; 0: its share of the cores
  WeightType weights = WeightType::kAsStored;
  /// Points that need more KV are left out. 0: a share of half of the free memory; on GPUs, as much as the points need.
  int64_t kv_bytes = 0;
  KvType kv_dtype = KvType::kBf16;
  int64_t rows_max = 64;            // most sequences of a decode or verify step
  int64_t context_max = 4096;       // most tokens before a step; the model's own limit holds too
  int64_t repeats = 9;              // measurements of each point; the median counts
  bool quick = false;               // about a quarter of the points
};

/// `seer simulate`.
struct SimulateOptions {
  std::string workload = "moonlight";  // a name, a TOML file, or a JSONL trace (cli/sim/workload.h)
  std::vector<std::string> policies = chunk_policy_names();
  int64_t seeds = 3;                // runs of each policy, with seeds seed, seed + 1, ...
  uint64_t seed = 1;
  std::string draft_acceptance;     // FILE; empty: the paper's Table 2
  std::string drafting = "linear";  // which curve of draft_acceptance
  DrafterKind drafter = DrafterKind::kAuto;
  DraftRule draft_rule = DraftRule::kUniform;
  int64_t draft_tokens_max = 8;     // of one sequence in one step; twice that if drafts come from its own text alone
  ChunkSchedulerConfig scheduler{.chunk_tokens = 8192};  // chunk_tokens, reserve_share
  double over_issue = 2;            // partial: requests issued / requests that an iteration waits for
  std::string profile;              // of `seer profile`: step times, instead of the workload's GPUs
  int64_t step_gap_us = 0;          // from one step to the next, with a profile
  int64_t instances = 0;            // 0: as the workload says
  int64_t kv_tokens = 0;            // KV capacity of an instance; 0: what the GPUs hold
  int64_t block_tokens = 0;         // of a KV block; 0: see cluster_of() in simulate_command.cpp
  int64_t max_batch = 256;          // most running requests of an instance (of each data-parallel rank)
  int64_t dram_bytes = 2'000'000'000'000;  // DRAM tier of each machine's pool (paper: 2 TB)
  int64_t cold_bytes = 0;           // cold tier of each machine; 0: none
  double ssd_read_gb_per_s = 13, ssd_write_gb_per_s = 6;  // of the devices of a machine's cold tier; RocksDB reaches a share
  IterationTimes iteration;         // what comes around the rollout
  std::vector<std::string> sweep;   // KEY=VALUE,VALUE: all combinations are simulated (cli/sim/sim_sweep.h)
  int64_t sweep_runs_max = 300;
  std::string report, csv, html;    // files to write; empty: none
  std::string command_line;         // that these options were given with, for the page; not an option
  int64_t max_tokens = 0;           // limit of the responses of a trace; 0: the longest of them
  int64_t kv_bytes_per_token = 0;   // of the model, with a profile; 0: not known
  int64_t requests = 0;             // only the first ones, in whole groups; 0: all, with `faults` kFaultRequests
  bool faults = false;              // runs have faults drawn from the seed and are checked, not measured (cli/sim/sim_fault_command.h)
  LogConfig log{.clock = LogClock::kVirtual};
};

/// `seer doctor`.
struct DoctorOptions {};

using Command = std::variant<PrintAndExit, RolloutOptions, ServeOptions, NodeOptions, StatusOptions, DrainOptions, ScoreOptions, ProfileOptions, SimulateOptions, DoctorOptions>;

/// Parses the arguments (without the program's name). Every error is one sentence with the flag, or the file, line and key, the
/// value and what was expected. Opens only the file of --config. `warnings` gets a sentence for each option that is given and
/// has no effect.
Result<Command> parse_command_line(const std::vector<std::string>& arguments, std::vector<std::string>* warnings = nullptr);

}  // namespace seer
