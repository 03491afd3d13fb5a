// ClusterStatus: the machines and rollouts of a cluster at one moment, as a table for people and as JSON for programs.
// Pure. Used by `seer status`.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "protocols/actors.h"

namespace seer {

struct ClusterStatus {
  struct Node {
    ClusterNodeReport member;
    std::optional<NodeReport> report;  // none: it did not answer
  };
  struct Rollout {
    RolloutId id;
    std::optional<RolloutSummary> summary;  // so far; none: it did not answer
  };
  std::string address;  // of the controller
  std::vector<Node> nodes;
  std::vector<Rollout> rollouts;
};

/// In 80 columns, unless names are too long.
std::string status_text(const ClusterStatus& status, bool is_coloured = false);
/// One line.
std::string status_json(const ClusterStatus& status);

}  // namespace seer
