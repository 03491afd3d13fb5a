// The calls as slime 624b824 makes them (backends/sglang_utils/sglang_engine.py) and as vLLM's router takes them
// (entrypoints/serve/dev/rlhf/api_router.py at 0100a21, distributed/weight_transfer/nccl_engine.py at 04b06ef).
#include "served/weights_group.h"

#include <doctest/doctest.h>

using namespace seer;
using nlohmann::json;

namespace {

GroupCall call_of(const std::string& path, const std::string& body) {
  auto call = group_call_at(path);
  REQUIRE(call);
  const Status read = read_group_body(*call, body);
  REQUIRE_MESSAGE(read.ok(), read.error().detail);
  return *call;
}

const std::string kInit = R"({"master_address": "10.0.0.1", "master_port": 29500, "rank_offset": 1, "world_size": 9, "group_name": "slime-pp_0", "backend": "nccl"})";
const std::string kUpdate =
    R"({"names": ["a", "b"], "dtypes": ["bfloat16", "float32"], "shapes": [[2, 3], [4]], "group_name": "slime-pp_0", "flush_cache": false, "weight_version": "7", "load_format": null})";

}  // namespace

TEST_CASE("weights group: each server joins with the ranks after those of the servers before it, and else with the trainer's words") {
  const GroupCall call = call_of("/init_weights_update_group", kInit);
  CHECK(call.kind == ServerKind::kSglang);
  CHECK_FALSE(call.changes_weights());
  CHECK(ranks_of(call) == 8);
  CHECK(group_of(call) == "slime-pp_0");
  const std::vector<HttpAsk> asks = asks_of(call, 4, "");
  REQUIRE(asks.size() == 1);
  CHECK(asks[0].target == "/init_weights_update_group");
  json expected = json::parse(kInit);
  expected["rank_offset"] = 5;
  CHECK(json::parse(asks[0].body) == expected);

  const GroupCall vllm = call_of("/init_weight_transfer_engine", R"({"init_info": {"master_address": "h", "master_port": 1, "rank_offset": 1, "world_size": 5}})");
  CHECK(vllm.kind == ServerKind::kVllm);
  CHECK(ranks_of(vllm) == 4);
  CHECK(json::parse(asks_of(vllm, 2, "")[0].body)["init_info"]["rank_offset"] == 3);
}

TEST_CASE("weights group: tensors are named to all servers alike, with the router's version, and no KV of the weights before stays") {
  const GroupCall call = call_of("/update_weights_from_distributed", kUpdate);
  CHECK(call.changes_weights());
  CHECK(version_of(call) == "7");
  json expected = json::parse(kUpdate);
  expected["flush_cache"] = true;
  expected["weight_version"] = "12";
  for (const int64_t before : {0, 4}) {
    const std::vector<HttpAsk> asks = asks_of(call, before, "12");
    REQUIRE(asks.size() == 1);
    CHECK(json::parse(asks[0].body) == expected);
  }
}

TEST_CASE("weights group: vLLM's servers are paused before the first part, and told the version after the last") {
  const auto targets = [](const std::vector<HttpAsk>& asks) {
    std::vector<std::string> all;
    for (const HttpAsk& ask : asks) all.push_back(ask.target);
    return all;
  };
  using Texts = std::vector<std::string>;
  CHECK(targets(asks_of(call_of("/start_weight_update", ""), 0, "")) == Texts{"/pause?mode=abort", "/start_weight_update"});
  const std::string update = R"({"update_info":{"names":["a"],"dtype_names":["bfloat16"],"shapes":[[2]],"packed":true}})";
  CHECK(json::parse(asks_of(call_of("/update_weights", update), 3, "9")[0].body) == json::parse(update));
  const GroupCall finish = call_of("/finish_weight_update", R"({"weight_version": "7"})");
  CHECK(version_of(finish) == "7");
  const std::vector<HttpAsk> asks = asks_of(finish, 0, "9");
  CHECK(targets(asks) == Texts{"/finish_weight_update", "/reset_prefix_cache", "/resume"});
  CHECK(json::parse(asks[0].body)["weight_version"] == "9");
}

TEST_CASE("weights group: a part whose trainer gives no version, as AReaL's, is told to the servers with the router's") {
  const GroupCall call = call_of("/update_weights_from_distributed", R"({"names": ["a"], "dtypes": ["bfloat16"], "shapes": [[2]], "group_name": "update_weight_group", "abort_all_requests": true})");
  CHECK(names_version(call));
  CHECK(version_of(call).empty());
  CHECK(json::parse(asks_of(call, 0, "12")[0].body)["weight_version"] == "12");
  CHECK(names_version(call_of("/finish_weight_update", "{}")));
  CHECK_FALSE(names_version(call_of("/update_weights", "{}")));
  CHECK_FALSE(names_version(call_of("/init_weights_update_group", kInit)));
}

TEST_CASE("weights group: a call without what the router needs is refused, and other paths are none") {
  const auto error = [](const std::string& path, const std::string& body) {
    auto call = group_call_at(path);
    REQUIRE(call);
    const Status read = read_group_body(*call, body);
    REQUIRE_FALSE(read.ok());
    return read.error().detail;
  };
  CHECK(error("/init_weights_update_group", R"({"rank_offset": 0, "world_size": 3})") == "/init_weights_update_group: rank_offset: expected an integer of at least 1; the trainer has rank 0");
  CHECK(error("/init_weight_transfer_engine", "{}") == "/init_weight_transfer_engine: init_info is missing: expected an object");
  CHECK(error("/update_weights", "[1") == "/update_weights: the body is no JSON object");
  CHECK(group_of(call_of("/destroy_weights_update_group", "{}")) == "weight_update_group");
  CHECK_FALSE(group_call_at("/update_weights_from_disk"));
}
