#include "served/weights_group.h"

#include <array>

#include "served/server_dialect.h"

namespace seer {
namespace {

using nlohmann::json;

struct Known {
  const char* path;
  ServerKind kind;
  GroupStage stage;
};
constexpr std::array<Known, 7> kKnown{{{"/init_weights_update_group", ServerKind::kSglang, GroupStage::kInit},
                                       {"/update_weights_from_distributed", ServerKind::kSglang, GroupStage::kUpdate},
                                       {"/destroy_weights_update_group", ServerKind::kSglang, GroupStage::kDestroy},
                                       {"/init_weight_transfer_engine", ServerKind::kVllm, GroupStage::kInit},
                                       {"/start_weight_update", ServerKind::kVllm, GroupStage::kStart},
                                       {"/update_weights", ServerKind::kVllm, GroupStage::kUpdate},
                                       {"/finish_weight_update", ServerKind::kVllm, GroupStage::kFinish}}};

/// With the fields of a kInit.
const json& init_fields(const GroupCall& call) { return call.kind == ServerKind::kVllm ? call.body["init_info"] : call.body; }

}  // namespace

std::optional<GroupCall> group_call_at(const std::string& path) {
  for (const Known& known : kKnown)
    if (path == known.path) return GroupCall{known.kind, known.stage, path};
  return std::nullopt;
}

Status read_group_body(GroupCall& call, const std::string& body) {
  if (!body.empty()) call.body = json::parse(body, nullptr, false);
  if (!call.body.is_object()) return fail(Code::kInvalidArgument, call.path, ": the body is no JSON object");
  if (call.stage == GroupStage::kInit) {
    const json* const fields = call.kind == ServerKind::kVllm ? field_of(call.body, "init_info") : &call.body;
    if (fields == nullptr || !fields->is_object()) return fail(Code::kInvalidArgument, call.path, ": init_info is missing: expected an object");
    for (const char* const name : {"rank_offset", "world_size"})
      if (number_of(*fields, name, -1) < 1) return fail(Code::kInvalidArgument, call.path, ": ", name, ": expected an integer of at least 1; the trainer has rank 0");
  }
  return {};
}

bool names_version(const GroupCall& call) { return call.kind == ServerKind::kVllm ? call.stage == GroupStage::kFinish : call.stage == GroupStage::kUpdate; }

int64_t ranks_of(const GroupCall& call) {
  const json& fields = init_fields(call);
  return number_of(fields, "world_size") - number_of(fields, "rank_offset");
}

std::string group_of(const GroupCall& call) {
  if (call.kind == ServerKind::kVllm) return "";
  const std::string name = text_of(call.body, "group_name");
  return name.empty() ? "weight_update_group" : name;  // SGLang's default
}

std::string version_of(const GroupCall& call) { return names_version(call) ? text_of(call.body, "weight_version") : ""; }

std::vector<HttpAsk> asks_of(const GroupCall& call, int64_t ranks_before, const std::string& version) {
  json body = call.body;
  if (call.stage == GroupStage::kInit) {
    json& offset = (call.kind == ServerKind::kVllm ? body["init_info"] : body)["rank_offset"];
    offset = offset.get<int64_t>() + ranks_before;
  }
  if (names_version(call)) body["weight_version"] = version;
  // KV of the weights before must not be used with the new ones.
  if (call.kind == ServerKind::kSglang && call.stage == GroupStage::kUpdate) body["flush_cache"] = true;
  std::vector<HttpAsk> asks{{"POST", call.path, body.dump()}};
  if (call.kind == ServerKind::kVllm && call.stage == GroupStage::kStart) asks.insert(asks.begin(), {"POST", "/pause?mode=abort"});
  if (call.kind == ServerKind::kVllm && call.stage == GroupStage::kFinish) {
    asks.push_back({"POST", "/reset_prefix_cache"});
    asks.push_back({"POST", "/resume"});
  }
  return asks;
}

}  // namespace seer
