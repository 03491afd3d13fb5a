// Cluster: what a machine or an engine says of itself when it comes up, and whether it may join those that are there.
// Used by kv_directory_actor for KV nodes and by rollout_actor for instances.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "protocols/ids.h"
#include "protocols/result.h"

namespace seer {

/// Changes with every change of a message or of what is meant by one.
inline constexpr uint32_t kProtocolNumber = 5;

struct ClusterIdentity {
  uint32_t protocol = kProtocolNumber;
  std::string model;      // its name, which is the last part of the folder's path; empty: none loaded
  uint64_t layout = 0;    // of KV blocks, without the weights (EngineInfo::block_layout)
  uint64_t weights = 0;   // checksum; 0: any
  WeightVersion version;  // of the weights that it runs with; 0: those of whoever asks
  SEER_FIELDS(ClusterIdentity, protocol, model, layout, weights, version)
};

/// The model's name in an identity.
std::string model_name(std::string_view folder);
/// Whether `who` ("node 3") fits. If not, one sentence: which field, what was found, what was expected.
Status check_identity(std::string_view who, const ClusterIdentity& found, const ClusterIdentity& expected);

}  // namespace seer
