#include "cli/engine_source.h"

#include <doctest/doctest.h>

#include "gpu/cuda/cuda_device.h"
#include "gpu/cuda/cuda_engine.h"
#include "gpu/tiny_model.h"

using namespace seer;

namespace {

std::shared_ptr<const Model> tiny_model() {
  const TestFolder folder;
  write_tiny_model(folder.path(), tiny_config("qwen3"), "BF16", 1);
  return *load_model(folder.path());
}

}  // namespace

TEST_CASE("engine source: an engine of the CPU has the KV that options or the caller ask for") {
  const auto model = tiny_model();
  MachineOptions options;
  options.threads_per_instance = 1;
  options.block_tokens = 32;
  options.kv_bytes = 10 * kv_block_bytes_of(options, model->config);
  const EngineSource source = engine_source(options, model);
  CHECK(source.block_bytes == kv_block_bytes_of(options, model->config));
  CHECK(source.block_tokens == 32);
  CHECK(source.threads == 1);
  CHECK((*source.make(InstanceId{1}, 0))->info().device_blocks == 10);
  CHECK((*source.make(InstanceId{1}, 3))->info().device_blocks == 3);
}

TEST_CASE("engine source: on a CPU auto is two instances, or one for each node, with 256 MiB of KV each") {
  MachineOptions options;
  REQUIRE(choose_instances(options).ok());
  CHECK(options.instances == 2);
  CHECK(options.kv_bytes == 256 << 20);
  options.instances = kAutoNumber;
  REQUIRE(choose_instances(options, 3).ok());
  CHECK(options.instances == 3);
  options.instances = 1;
  options.kv_bytes = 5;
  REQUIRE(choose_instances(options).ok());
  REQUIRE(choose_kv_bytes(options, *tiny_model(), true).ok());
  CHECK(options.instances == 1);
  CHECK(options.kv_bytes == 5);
}

#ifdef SEER_HAVE_SIMT
TEST_CASE("engine source: on GPUs auto is the KV that their memory holds beside the weights, and new ones if a server takes them") {
  const auto model = tiny_model();
  const auto chosen = [&](int64_t tensor_parallel, bool takes_weights) {
    MachineOptions options;
    options.device = DeviceKind::kSimt;
    options.tensor_parallel = tensor_parallel;
    REQUIRE(choose_instances(options).ok());
    CHECK(options.kv_bytes == kAutoNumber);
    REQUIRE(choose_kv_bytes(options, *model, takes_weights).ok());
    return options.kv_bytes;
  };
  constexpr int64_t kMemory = int64_t{1} << 30;  // of an emulated GPU
  CHECK(chosen(1, false) < kMemory * 9 / 10);
  CHECK(chosen(1, false) > kMemory / 2);
  CHECK(chosen(1, true) < chosen(1, false));
  CHECK(chosen(1, true) > chosen(1, false) / 2);
  CHECK(chosen(2, false) > chosen(1, false) * 3 / 2);  // each GPU has half of each block
}
#endif

TEST_CASE("engine source: without a GPU auto says so") {
  MachineOptions options;
  options.device = DeviceKind::kCuda;
  const auto devices = cuda::count_cuda_devices();
  const Status chosen = choose_instances(options);
  if (!devices.ok())
    CHECK(chosen.error().code == Code::kUnavailable);
  else
    CHECK(options.instances == std::max(*devices, 1));
}

TEST_CASE("engine source: a GPU has KV of its own size, and what its engine cannot do names the flag") {
  const auto model = tiny_model();
  MachineOptions options;
  options.device = DeviceKind::kCuda;
  // 2 layers x 2 heads x 16 positions x 32 dims (16 are padded) x 2 (K, V) x 2 B
  CHECK(kv_block_bytes_of(options, model->config) == 8192);
  const EngineSource source = engine_source(options, model);
  CHECK(source.threads == 0);
  CHECK(source.block_bytes == 8192);
  if (const auto devices = cuda::count_cuda_devices(); !devices.ok() || *devices == 0)
    CHECK(source.make(InstanceId{0}, 4).error().code == Code::kUnavailable);
  CHECK(check_device(options).ok());
  options.drafting = DraftSource::kOwn;
  options.draft_shape = DraftShapes::kTree;
  CHECK(check_device(options).ok());
  options.weights = WeightType::kInt8;
  CHECK(check_device(options).error().detail ==
        "--weights int8: expected stored with --device cuda, whose engine computes weights as stored");
  options.device = DeviceKind::kCpu;
  CHECK(check_device(options).ok());
}
