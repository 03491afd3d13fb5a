// What a machine or an engine declares when it starts: its identity, which must fit the cluster it wants to join, and its roles.
// Used by cluster_actor for machines, by kv_directory_actor for KV nodes and by rollout_actor for instances.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocols/ids.h"
#include "protocols/result.h"

namespace seer {

/// Raised with every change to a message, its meaning, or the greeting.
inline constexpr uint32_t kProtocolNumber = 19;

struct ClusterIdentity {
  uint32_t protocol = kProtocolNumber;
  std::string model;      // model_name() of the folder; empty: none loaded
  uint64_t shape = 0;     // of the model (shape_hash()); 0: any
  uint64_t kv_layout = 0; // as in EngineInfo
  uint64_t weights = 0;   // kv_hash of the engines (EngineInfo); 0: any
  WeightVersion version;  // of its weights; 0: any
  std::string endings;    // endings_text() of the model; empty: any
  uint64_t tokenizer = 0; // checksum of the texts of all tokens, which stop strings are found in; 0: any
  SEER_FIELDS(ClusterIdentity, protocol, model, shape, kv_layout, weights, version, endings, tokenizer)
};

/// What a machine does in a cluster.
enum class NodeRole : uint8_t { kController = 0, kInstances, kKv, kDraft };
inline constexpr std::array<const char*, 4> kNodeRoleNames{"controller", "instances", "kv", "draft"};  // by value

/// Any mix of roles.
struct NodeRoles {
  uint8_t bits = 0;
  NodeRoles() = default;
  NodeRoles(std::initializer_list<NodeRole> roles) {
    for (const NodeRole role : roles) add(role);
  }
  void add(NodeRole role) { bits |= bit(role); }
  bool has(NodeRole role) const { return (bits & bit(role)) != 0; }
  bool operator==(const NodeRoles&) const = default;
  SEER_FIELDS(NodeRoles, bits)

 private:
  static uint8_t bit(NodeRole role) { return static_cast<uint8_t>(1u << static_cast<uint8_t>(role)); }
};
/// Their names, in the order of NodeRole.
std::vector<std::string> role_names(NodeRoles roles);

/// The model's name in an identity: the last part of the folder's path, also of "." and "..".
std::string model_name(std::string_view folder);
/// What ends responses: other EOS tokens, or another context, would end them elsewhere.
std::string endings_text(std::span<const int32_t> eos_ids, int64_t context_tokens_max);
/// Checks that `who` ("node 3") fits. The error names the field, what was found and what was expected.
Status check_identity(std::string_view who, const ClusterIdentity& found, const ClusterIdentity& expected);

}  // namespace seer
