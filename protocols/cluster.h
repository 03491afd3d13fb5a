// ClusterIdentity: what a machine or an engine declares when it starts, and whether that fits the cluster it wants to join.
// Used by kv_directory_actor for KV nodes and by rollout_actor for instances.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "protocols/ids.h"
#include "protocols/result.h"

namespace seer {

/// Raised with every change to a message or its meaning.
inline constexpr uint32_t kProtocolNumber = 7;

struct ClusterIdentity {
  uint32_t protocol = kProtocolNumber;
  std::string model;      // last part of the folder's path; empty: none loaded
  uint64_t layout = 0;    // of KV blocks, without the weights (EngineInfo::block_layout)
  uint64_t weights = 0;   // checksum; 0: any
  WeightVersion version;  // of its weights; 0: any
  SEER_FIELDS(ClusterIdentity, protocol, model, layout, weights, version)
};

/// The model's name in an identity: the last part of the folder's path.
std::string model_name(std::string_view folder);
/// Checks that `who` ("node 3") fits. The error names the field, what was found and what was expected.
Status check_identity(std::string_view who, const ClusterIdentity& found, const ClusterIdentity& expected);

}  // namespace seer
