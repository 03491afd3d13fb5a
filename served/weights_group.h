// WeightsGroup: weights that a trainer sends over a communication group of its own (NCCL), of which it is rank 0. A router passes the
// trainer's calls on to its servers: all of them take part in each, at the same time. For engines of Seer a process beside the server
// takes part (cli/serve/weights_receiver.h). Pure.
//
//   SGLang                            vLLM (VLLM_SERVER_DEV_MODE=1)
//   /init_weights_update_group        /init_weight_transfer_engine    joins the group, from rank_offset on
//                                     /start_weight_update
//   /update_weights_from_distributed  /update_weights                 takes some tensors
//                                     /finish_weight_update           with the weight_version, which SGLang's updates have
//   /destroy_weights_update_group                                     leaves it
//
// The servers share the ranks after the offset: the first gets as many as it has processes, then the next.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "protocols/result.h"
#include "served/engine_server.h"

namespace seer {

enum class GroupStage : uint8_t { kInit, kStart, kUpdate, kFinish, kDestroy };

struct GroupCall {
  ServerKind kind;  // whose interface it is; only such servers can take part
  GroupStage stage;
  std::string path;
  nlohmann::json body = nlohmann::json::object();

  /// Whether servers have weights of no version from this call on, until all calls are over.
  bool changes_weights() const { return stage != GroupStage::kInit && stage != GroupStage::kDestroy; }
};

/// None: the path is no such call.
std::optional<GroupCall> group_call_at(const std::string& path);
/// Takes the body. Errors: kInvalidArgument: a field of it is missing or wrong; one sentence.
Status read_group_body(GroupCall& call, const std::string& body);
/// Whether it is a call that says which version the weights are.
bool names_version(const GroupCall& call);

/// How many ranks a kInit leaves for the servers.
int64_t ranks_of(const GroupCall& call);
/// The name of the group that a call is about; vLLM's servers have one, without a name.
std::string group_of(const GroupCall& call);
/// Version of the weights; empty: this call does not say, as those of AReaL.
std::string version_of(const GroupCall& call);

/// What a server is asked, in turn. `ranks_before`: of the servers before it. `version`: what it is to call the weights, instead of
/// version_of(call).
std::vector<HttpAsk> asks_of(const GroupCall& call, int64_t ranks_before, const std::string& version);

}  // namespace seer
