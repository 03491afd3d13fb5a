#include "cli/cluster_status.h"

#include <nlohmann/json.hpp>

#include "cli/cluster_access.h"
#include "cli/figure_text.h"
#include "cli/option.h"
#include "cli/terminal.h"

namespace seer {
namespace {

using Json = nlohmann::ordered_json;

/// Sums over the parts of a machine's report.
struct NodeFigures {
  int64_t chunks = 0, output_tokens = 0;
  int64_t kv_used_bytes = 0, kv_bytes = 0;  // on devices
  int64_t dram_used_bytes = 0, dram_bytes = 0, cold_used_bytes = 0, cold_bytes = 0, fetched_bytes = 0;
  int64_t moved_bytes = 0, guest_bytes = 0;
  int64_t kept_requests = 0;  // whose KV is in the pool
};
NodeFigures figures_of(const NodeReport& report) {
  NodeFigures sum;
  for (const InstanceReport& i : report.instances) {
    sum.chunks += i.chunks;
    sum.output_tokens += i.output_tokens;
    sum.kv_used_bytes += i.kv_blocks_used * i.kv_block_bytes;
    sum.kv_bytes += i.kv_blocks_total * i.kv_block_bytes;
  }
  for (const KvNodeReport& pool : report.pool) {
    sum.dram_used_bytes += pool.dram_used_bytes;
    sum.dram_bytes += pool.dram_capacity_bytes;
    sum.cold_used_bytes += pool.cold_used_bytes;
    sum.cold_bytes += pool.cold_capacity_bytes;
    sum.fetched_bytes += pool.fetched_bytes;
    sum.moved_bytes += pool.moved_bytes;
    sum.guest_bytes += pool.guest_bytes;
    sum.kept_requests += pool.kept_requests;
  }
  return sum;
}

const char* state_of(const ClusterStatus::Node& node) {
  return !node.report ? "silent" : node.member.draining ? "draining" : "up";
}

std::string address_of(const NodeAddress& at) { return address_text(at.host, at.port); }

std::string use_text(int64_t used, int64_t all) { return all == 0 ? "-" : cat(bytes_text(used), " of ", bytes_text(all)); }

std::string counted(size_t count, const char* what) { return cat(count, " ", what, count == 1 ? "" : "s"); }

std::string node_lines(const ClusterStatus::Node& node) {
  std::string text = formatted("%-5u %-21s %-9s", node.member.at.node.value, address_of(node.member.at).c_str(), state_of(node));
  const std::string roles = cat("      ", joined(role_names(node.member.roles)), "\n");
  if (!node.report) return text + "\n" + roles;
  const NodeFigures f = figures_of(*node.report);
  text += formatted(" %9zu %7lld %14s\n", node.report->instances.size(), static_cast<long long>(f.chunks), count_text(f.output_tokens).c_str());
  text += roles + cat("      KV ", use_text(f.kv_used_bytes, f.kv_bytes), ", DRAM ", use_text(f.dram_used_bytes, f.dram_bytes), ", cold ",
              use_text(f.cold_used_bytes, f.cold_bytes), " of ", counted(static_cast<size_t>(f.kept_requests), "request"), "\n");
  if (f.fetched_bytes > 0) text += cat("      ", bytes_text(f.fetched_bytes), " came from other nodes\n");
  if (f.moved_bytes > 0) text += cat("      ", bytes_text(f.moved_bytes), " went to other nodes for lack of room\n");
  if (f.guest_bytes > 0) text += cat("      ", bytes_text(f.guest_bytes), " came from nodes without room\n");
  for (const KvNodeReport& pool : node.report->pool)
    for (const std::string& peer : pool.peers) text += cat("      from ", peer, "\n");
  if (node.report->restarts > 0) text += cat("      ", node.report->restarts, " restarts of its parts\n");
  return text;
}

std::string rollout_line(const ClusterStatus::Rollout& rollout) {
  if (!rollout.summary) return cat("rollout ", rollout.id, "  silent\n");
  const RolloutSummary& s = *rollout.summary;
  return cat("rollout ", rollout.id, "  ", count_text(s.finished), " of ", count_text(s.requests), " requests, ", count_text(s.output_tokens),
             " tokens of those done, ", decimal_text(s.wall_s(), 1), " s", s.instances_lost > 0 ? cat(", ", s.instances_lost, " instances lost") : "", "\n");
}

}  // namespace

std::string status_text(const ClusterStatus& status, bool is_coloured) {
  std::string text = cat("cluster at ", status.address, ": ", counted(status.nodes.size(), "node"), ", ", counted(status.rollouts.size(), "rollout"), "\n");
  if (!status.nodes.empty())
    text += with_look("node  address               state     instances  chunks  output tokens", Look::kBold, is_coloured) + "\n";
  for (const ClusterStatus::Node& node : status.nodes) text += node_lines(node);
  for (const ClusterStatus::Rollout& rollout : status.rollouts) text += rollout_line(rollout);
  return text;
}

std::string status_json(const ClusterStatus& status) {
  Json nodes = Json::array(), rollouts = Json::array();
  for (const ClusterStatus::Node& node : status.nodes) {
    Json line{{"node", node.member.at.node.value}, {"address", address_of(node.member.at)}, {"state", state_of(node)},
              {"roles", role_names(node.member.roles)}, {"model", node.member.identity.model}, {"weight_version", node.member.identity.version.value}};
    if (node.report) {
      const NodeFigures f = figures_of(*node.report);
      std::vector<std::string> peers;
      for (const KvNodeReport& pool : node.report->pool) peers.insert(peers.end(), pool.peers.begin(), pool.peers.end());
      line.update({{"instances", node.report->instances.size()}, {"chunks", f.chunks}, {"output_tokens", f.output_tokens},
                   {"kv_used_bytes", f.kv_used_bytes}, {"kv_bytes", f.kv_bytes}, {"dram_used_bytes", f.dram_used_bytes},
                   {"dram_bytes", f.dram_bytes}, {"cold_used_bytes", f.cold_used_bytes}, {"cold_bytes", f.cold_bytes},
                   {"kept_requests", f.kept_requests}, {"fetched_bytes", f.fetched_bytes},
                   {"moved_bytes", f.moved_bytes}, {"guest_bytes", f.guest_bytes}, {"peers", std::move(peers)}, {"restarts", node.report->restarts}});
    }
    nodes.push_back(std::move(line));
  }
  for (const ClusterStatus::Rollout& rollout : status.rollouts) {
    Json line{{"rollout", rollout.id.value}};
    if (rollout.summary)
      line.update({{"finished", rollout.summary->finished}, {"requests", rollout.summary->requests}, {"output_tokens", rollout.summary->output_tokens},
                   {"wall_s", rollout.summary->wall_s()}, {"instances_lost", rollout.summary->instances_lost}});
    rollouts.push_back(std::move(line));
  }
  return Json{{"cluster", status.address}, {"nodes", std::move(nodes)}, {"rollouts", std::move(rollouts)}}.dump() + "\n";
}

}  // namespace seer
