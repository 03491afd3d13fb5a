#include "gpu/sim/hardware_catalog.h"

#include <doctest/doctest.h>

using namespace seer;

namespace {

constexpr const char* kGpu = R"("hbm_gb": {"value": 24, "source": "s"}, "hbm_tb_per_s": {"value": 1, "source": "s"},
  "bf16_tflops": {"value": 165, "source": "s"}, "fp8_tflops": {"value": 330, "source": "s"},
  "nvlink_gb_per_s": {"value": 32, "source": "s"}, "nic_gb_per_s": {"value": 12.5, "source": "s"})";
constexpr const char* kModel = R"("layers": {"value": 2, "source": "s"}, "hidden": {"value": 64, "source": "s"},
  "heads": {"value": 4, "source": "s"}, "vocab": {"value": 100, "source": "s"},
  "weight_bytes": {"value": 2, "source": "s"}, "head_bytes": {"value": 2, "source": "s"},
  "kv_bytes": {"value": 2, "source": "s"})";

std::string model_with(const std::string& fields) { return cat(R"({"models": {"M": {)", kModel, ", ", fields, "}}}"); }
std::string whole(const char* name, int64_t value) {
  return cat("\"", name, "\": {\"value\": ", value, ", \"source\": \"s\"}");
}

}  // namespace

TEST_CASE("hardware catalog: the shipped one has every GPU and model") {
  for (const char* gpu : {"H800", "H100", "H200", "A100"}) CHECK(builtin_hardware().gpus.contains(gpu));
  for (const char* model :
       {"Moonlight", "Qwen2-VL-72B", "Kimi-K2", "Qwen2.5-7B", "Qwen2.5-32B", "Llama-3.1-8B", "Llama-3.1-70B"})
    CHECK(builtin_hardware().models.contains(model));
  CHECK(builtin_hardware().gpus.at("H800").nvlink_gb_per_s == 200);
  CHECK(builtin_hardware().models.at("Kimi-K2").q_lora_rank == 1536);
  CHECK(builtin_hardware().costs.nvlink_share == 0.765);
}

TEST_CASE("hardware catalog: a file adds to what is known and replaces what it names") {
  const std::string json = cat(R"({"gpus": {"L4": {)", kGpu, R"(, "gpus_per_node": {"value": 4, "source": "s"}}},
    "costs": {"step_us": {"value": 5, "source": "measured", "note": "n"}}})");
  const Result<HardwareCatalog> catalog = parse_hardware(json, "f", builtin_hardware());
  REQUIRE_MESSAGE(catalog.ok(), catalog.error().detail);
  CHECK(catalog->gpus.at("L4").gpus_per_node == 4);
  CHECK(catalog->gpus.at("L4").nic_gb_per_s == 12.5);
  CHECK(catalog->gpus.contains("H800"));
  CHECK(catalog->costs.step_us == 5);
  CHECK(catalog->costs.layer_us == builtin_hardware().costs.layer_us);
}

TEST_CASE("hardware catalog: a bad file is one sentence with file, field, value and what was expected") {
  const std::string grouped = whole("kv_heads", 2) + "," + whole("head_dim", 16) + "," + whole("dense_inter", 128);
  const struct {
    std::string json, error;
  } rows[] = {
      {"{", "f is not valid JSON"},
      {"[]", "f is []: expected an object with gpus, models or costs"},
      {R"({"gpu": {}})", "f: gpu is not a known section: expected one of gpus, models, costs"},
      {R"({"gpus": []})", "f: gpus is []: expected an object with one entry per name"},
      {R"({"gpus": {"X": 3}})", "f: gpus.X is 3: expected a table of constants"},
      {cat(R"({"gpus": {"X": {)", kGpu, "}}}"),
       "f: gpus.X.gpus_per_node is missing: expected a whole number from 1 to 1024"},
      {R"({"gpus": {"X": {"hbm_gb": 80}}})", R"(f: gpus.X.hbm_gb is 80: expected {"value": ..., "source": "..."})"},
      {R"({"gpus": {"X": {"hbm_gb": {"value": 80}}}})",
       R"(f: gpus.X.hbm_gb has no source: expected where its value is from, or "assumption")"},
      {R"({"gpus": {"X": {"hbm_gb": {"value": -1, "source": "s"}}}})",
       "f: gpus.X.hbm_gb.value is -1: expected a number from 1 to 100000"},
      {R"({"gpus": {"X": {"hbm_gb": {"value": "80", "source": "s"}}}})",
       "f: gpus.X.hbm_gb.value is \"80\": expected a number from 1 to 100000"},
      {R"({"gpus": {"X": {"gpus_per_node": {"value": 2.5, "source": "s"}}}})",
       "f: gpus.X.gpus_per_node.value is 2.5: expected a whole number from 1 to 1024"},
      {R"({"costs": {"layer_ms": {"value": 1, "source": "s"}}})",
       "f: costs.layer_ms is not a known field: expected one of weight_bandwidth_share, kv_bandwidth_share, expert_bandwidth_share, "
       "linear_flops_share, attention_flops_share, nvlink_share, nic_share, dispatch_bytes, combine_bytes, "
       "all_reduce_us, all_to_all_us, step_us, layer_us, sequence_us, expert_imbalance, verify_factor, dense_verify_factor"},
      {R"({"costs": {"nic_share": {"value": 1.5, "source": "s"}}})",
       "f: costs.nic_share.value is 1.5: expected a number from 0.001 to 1"},
      {model_with(whole("kv_heads", 2)),
       "f: models.M.head_dim is missing: expected a number above 0, as kv_lora_rank is not given"},
      {model_with(whole("kv_heads", 3) + "," + whole("head_dim", 16)),
       "f: models.M.kv_heads is 3: expected a divisor of heads, 4"},
      {model_with(whole("kv_heads", 2) + "," + whole("head_dim", 16)),
       "f: models.M.dense_inter is missing: expected a number above 0, as some layers have no experts"},
      {model_with(whole("kv_lora_rank", 8)),
       "f: models.M.qk_nope is missing: expected a number above 0, as kv_lora_rank is given"},
      {model_with(grouped + "," + whole("experts", 4)),
       "f: models.M.moe_inter is missing: expected a number above 0, as experts is given"},
      {model_with(grouped + "," + whole("experts", 4) + "," + whole("moe_inter", 8) + "," +
                  whole("experts_per_token", 5)),
       "f: models.M.experts_per_token is 5: expected a whole number from 1 to experts, 4"},
      {model_with(grouped + "," + whole("experts", 4) + "," + whole("moe_inter", 8) + "," +
                  whole("experts_per_token", 2) + "," + whole("first_dense_layers", 2)),
       "f: models.M.first_dense_layers is 2: expected less than layers, 2"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.json);
    const Result<HardwareCatalog> catalog = parse_hardware(row.json, "f", {});
    REQUIRE(!catalog.ok());
    CHECK(catalog.error().detail == row.error);
  }
  CHECK(read_hardware("/no/such.json", {}).error().code == Code::kNotFound);
}
