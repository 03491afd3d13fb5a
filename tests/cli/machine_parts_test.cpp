#include "cli/machine_parts.h"

#include <doctest/doctest.h>

using namespace seer;

namespace {

const std::string kModel = SEER_SOURCE_DIR "/deploy/models/scratchpad-1m8";

struct Parts {
  explicit Parts(MachineOptions options_in = {}) : options(std::move(options_in)) {
    options.model = kModel;
    auto made = load_model_of(options);
    REQUIRE(made.ok());
    loaded = *std::move(made);
  }
  MachineOptions options;
  LoadedModel loaded;
  SlowWork aside{{}, [](std::function<void()>& f) { f(); }};
};

}  // namespace

TEST_CASE("machine parts: an engine has what the options say, and its threads their cores, one instance after the other") {
  MachineOptions options;
  options.threads_per_instance = 3;
  options.pin = true;
  options.kv_bytes = 1 << 20;
  options.block_tokens = 32;
  options.kv_dtype = KvType::kF32;
  options.weight_version = 9;
  const CpuEngineConfig config = engine_config(options, node_instance(NodeId{4}, 2));
  CHECK(config.threads == 3);
  CHECK(config.first_core == 6);  // the third instance of its machine
  CHECK(config.kv_bytes == 1 << 20);
  CHECK(config.block_tokens == 32);
  CHECK((config.kv_type == KvType::kF32));
  CHECK(config.version == WeightVersion{9});
  options.pin = false;
  CHECK(engine_config(options, InstanceId{2}).first_core == -1);
}

TEST_CASE("machine parts: KV caches and pools without room for one block are named by their flag, with what is needed") {
  Parts p;
  const ModelConfig& model = p.loaded.model()->config;
  const int64_t block_bytes = kv_block_bytes(model, engine_config(p.options, InstanceId{0}));
  p.options.kv_bytes = p.options.dram_bytes = block_bytes;
  CHECK(check_sizes(p.options, model).ok());
  p.options.dram_bytes = 0;  // no pool
  CHECK(check_sizes(p.options, model).ok());
  p.options.dram_bytes = block_bytes - 1;
  CHECK(check_sizes(p.options, model).error().detail ==
        cat("--dram-bytes ", block_bytes - 1, ": expected 0, or room for a KV block; one of this model needs ", block_bytes));
  p.options.kv_bytes = block_bytes - 1;
  CHECK(check_sizes(p.options, model).error().detail ==
        cat("--kv-bytes ", block_bytes - 1, ": expected room for a KV block; one of 16 tokens of this model needs ", block_bytes));
}

TEST_CASE("machine parts: parts that are not configured have no maker") {
  Parts p;
  p.options.drafting = DraftSource::kOff;
  const auto makers = make_node_makers(p.options, p.loaded, p.aside);
  REQUIRE(makers.ok());
  CHECK(makers->make_engine);
  CHECK(makers->make_arena);
  CHECK_FALSE(makers->open_cold);
  CHECK_FALSE(makers->make_drafting);
  CHECK(makers->transport == nullptr);
  p.options.dram_bytes = 0;
  CHECK_FALSE(make_node_makers(p.options, p.loaded, p.aside)->make_arena);
}

TEST_CASE("machine parts: drafts from the group are the default on CPUs") {
  Parts p;
  p.options.threads_per_instance = 1;
  const auto makers = make_node_makers(p.options, p.loaded, p.aside);
  REQUIRE(makers.ok());
  CHECK(makers->make_drafting);
  CHECK(fleet_config(p.options, 1).node.draft_server);
  p.options.device = DeviceKind::kCuda;
  CHECK_FALSE(fleet_config(p.options, 1).node.draft_server);
}

TEST_CASE("machine parts: drafts come from a request's own text or its group's, as paths, trees or both") {
  Parts p;
  p.options.threads_per_instance = 1;
  p.options.drafting = DraftSource::kOwn;
  p.options.draft_tokens_max = 5;
  p.options.draft_rule = DraftRule::kMarginal;
  using Rows = std::array<int64_t, kDraftShapes>;
  for (const auto& [shapes, rows] : {std::pair{DraftShapes::kAuto, Rows{5, 5}}, {DraftShapes::kPath, Rows{5, 0}}, {DraftShapes::kTree, Rows{0, 5}}}) {
    p.options.draft_shape = shapes;
    const auto makers = make_node_makers(p.options, p.loaded, p.aside);
    REQUIRE(makers.ok());
    const auto drafting = makers->make_drafting(InstanceId{0});
    REQUIRE(drafting.ok());
    CHECK(drafting->budget.rows_max == rows);
    CHECK((drafting->budget.rule == DraftRule::kMarginal));
    CHECK(drafting->step_ns(StepShape{.rows = 4}) > 0);  // measured here
  }
}

TEST_CASE("machine parts: a step profile that cannot be read is an error of its own, before any machine starts") {
  Parts p;
  p.options.drafting = DraftSource::kGrouped;
  p.options.draft_profile = "/none/such.json";
  const auto makers = make_node_makers(p.options, p.loaded, p.aside);
  REQUIRE_FALSE(makers.ok());
  CHECK(makers.error().detail.find("/none/such.json") != std::string::npos);
}

TEST_CASE("machine parts: what a machine that stays up may fill must fit in its memory, but for KV on GPUs") {
  constexpr int64_t kMiB = 1 << 20, kGiB = 1 << 30;
  MachineOptions options;
  options.model = kModel;
  options.instances = 2;
  options.kv_bytes = 3 * kGiB;
  options.dram_bytes = kGiB;
  const MachineMemory machine{.bytes = 8 * kGiB, .free_bytes = 8 * kGiB - 512 * kMiB};
  const auto error = [&](std::optional<int64_t> nodes = {}) {
    const Status fits = check_memory_to_stay(options, nodes, machine);
    return fits.ok() ? "" : fits.error().detail;
  };
  CHECK(error() == "");
  CHECK(error(9) == "--dram-bytes 1073741824 for --nodes 9 may take 9.0 GiB of memory, but this machine has 8.0 GiB");
  options.dram_bytes = 2 * kGiB;  // together more than is free
  CHECK(error().starts_with("not enough memory: 8.0 GiB are needed, 7.5 GiB of 8.0 GiB are free; for --kv-bytes 3221225472 for --instances 2 (6.0 GiB), "
                            "--dram-bytes 2147483648 (2.0 GiB), the weights of "));
  options.kv_bytes = 5 * kGiB;
  CHECK(error() == "--kv-bytes 5368709120 for --instances 2 may take 10.0 GiB of memory, but this machine has 8.0 GiB");
  options.device = DeviceKind::kCuda;
  CHECK(error() == "");
  options.dram_bytes = int64_t{1} << 60;
  CHECK(error().starts_with("--dram-bytes 1152921504606846976 may take"));
  options.device = DeviceKind::kCpu;
  options.instances = 0;  // a machine that lends its DRAM
  options.dram_bytes = 2 * kGiB;
  CHECK(error() == "");
}

TEST_CASE("machine parts: work that cannot fill a tier needs only a part of it") {
  MachineOptions options;
  options.instances = 2;
  options.kv_bytes = 100;
  options.dram_bytes = 1000;
  const std::vector<MemoryDemand> demands = kv_demands(options, 3, 150);
  REQUIRE(demands.size() == 2);
  CHECK(demands[0].asked_bytes == 200);
  CHECK(demands[0].used_bytes == 150);
  CHECK(demands[1].asked_bytes == 3000);
  CHECK(demands[1].used_bytes == 150);
}
