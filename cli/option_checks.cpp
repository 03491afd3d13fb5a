#include "cli/option_checks.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/sim/sim_sweep.h"
#include "cli/suggestion.h"
#include "gpu/sampler.h"

namespace seer {
namespace {

// ---- checks that several commands share ------------------------------------------------------------------------

constexpr const char* kEnginesInCluster = "--engines cannot go with --cluster: requests run either on servers or on the machines of a cluster";

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

Status check_reach(const std::string& cluster, const ClusterAccess& access) {
  SEER_RETURN_IF_ERROR(require(cluster, "--cluster", "HOST:PORT of the controller"));
  SEER_RETURN_IF_ERROR(check_access(access));
  return check_address("--cluster", cluster, false, access);
}

// ---- seer rollout ----------------------------------------------------------------------------------------------

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
  if (!o.router.engines.empty()) {
    if (!o.html.empty()) return fail(Code::kInvalidArgument, "--html cannot go with --engines: servers of others draw no timelines");
    if (!o.draft_history.empty())
      return fail(Code::kInvalidArgument, "--draft-history cannot go with --engines: servers of others make their own drafts");
  }
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
  const Named out{"--out", &o.out}, report{"--report", &o.report}, html{"--html", &o.html}, log{"--log-file", &o.log.file},
      profile{"--profile-out", &o.profile_out};
  for (const auto& [one, other] : {std::pair{out, report}, {out, html}, {report, html}, {log, out}, {log, report}, {log, html},
                                   {profile, out}, {profile, report}, {profile, log}})
    if (!one.second->empty() && *one.second == *other.second)
      return fail(Code::kInvalidArgument, one.first, " and ", other.first, " both name ", *one.second, ": expected two files");
  return {};
}

// ---- seer node -------------------------------------------------------------------------------------------------

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

}  // namespace

// ---- each command ----------------------------------------------------------------------------------------------

Status check_together(const RolloutOptions& o) {
  SEER_RETURN_IF_ERROR(check_machine(o));
  SEER_RETURN_IF_ERROR(check_prompts(o));
  SEER_RETURN_IF_ERROR(check_machines(o));
  SEER_RETURN_IF_ERROR(check_kept(o));
  SEER_RETURN_IF_ERROR(check_policies(o));
  return check_files(o);
}

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

Status check_together(const NodeOptions& o) {
  SEER_RETURN_IF_ERROR(check_roles(o));
  if (roles_of(o).has(NodeRole::kInstances)) SEER_RETURN_IF_ERROR(check_machine(o));
  SEER_RETURN_IF_ERROR(check_access(o.access));
  SEER_RETURN_IF_ERROR(check_address("--listen", o.listen, true, o.access));
  return o.join.empty() ? Status{} : check_address("--join", o.join, false, o.access);
}

Status check_together(const StatusOptions& o) { return check_reach(o.cluster, o.access); }

Status check_together(const DrainOptions& o) {
  if (o.name < 0) return fail(Code::kInvalidArgument, "--name is missing: expected the number of the machine to drain");
  return check_reach(o.cluster, o.access);
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

}  // namespace seer
