// New weights in a running CpuEngine: what it computes after an update is what a fresh engine computes, and a folder that it
// cannot take changes nothing.
#include <doctest/doctest.h>

#include <cmath>

#include "gpu/engine_runner.h"
#include "gpu/tiny_model.h"

namespace seer {
namespace {

struct Folders {
  TestFolder a, b;
  Folders() {
    write_tiny_model(a.path(), tiny_config("qwen3"), "BF16", 7);
    write_tiny_model(b.path(), tiny_config("qwen3"), "BF16", 8);
  }
};

std::shared_ptr<const Model> load(const TestFolder& folder) {
  auto model = load_model(folder.path());
  REQUIRE_MESSAGE(model.ok(), model.error().detail);
  return *model;
}

EngineRunner runner(const std::shared_ptr<const Model>& model) {
  auto engine = make_cpu_engine(model, {.device_blocks = 64});
  REQUIRE_MESSAGE(engine.ok(), engine.error().detail);
  return EngineRunner(std::move(*engine));
}

WeightsLoaded update(EngineRunner& engine, const std::filesystem::path& folder, uint64_t version) {
  return std::get<WeightsLoaded>(engine.run(LoadWeights{version, folder.string(), WeightVersion{version}}));
}

/// A response computed from nothing; its blocks are free again afterwards.
std::vector<SampledToken> answer(EngineRunner& engine, uint64_t seed) {
  TestSequence s;
  s.tokens = {5, 17, 40, 3};
  s.seed = seed;
  s.sampling = std::make_shared<const SamplingParams>();
  std::vector<SampledToken> out = engine.decode(s, 20);
  engine.free_blocks().insert(engine.free_blocks().end(), s.blocks.begin(), s.blocks.end());
  return out;
}

TEST_CASE("weight update: after each of 100 updates an engine computes what a fresh one does") {
  Folders folders;
  EngineRunner fresh_a = runner(load(folders.a)), fresh_b = runner(load(folders.b));
  REQUIRE(answer(fresh_a, 1) != answer(fresh_b, 1));
  EngineRunner engine = runner(load(folders.a));
  for (uint64_t version = 1; version <= 100; ++version) {
    const bool b = version % 2 == 1;
    const WeightsLoaded loaded = update(engine, (b ? folders.b : folders.a).path(), version);
    REQUIRE_MESSAGE(loaded.status.ok(), loaded.status.error().detail);
    CHECK(loaded.version == WeightVersion{version});
    CHECK(engine.info().layout_hash == (b ? fresh_b : fresh_a).info().layout_hash);
    CHECK(answer(engine, version) == answer(b ? fresh_b : fresh_a, version));
    TestSequence s;
    s.tokens = {1};
    const StepResult step = engine.step({engine.plan(s, 1, 1)});
    CHECK(step.version == WeightVersion{version});
    engine.free_blocks().insert(engine.free_blocks().end(), s.blocks.begin(), s.blocks.end());
  }
}

TEST_CASE("weight update: a folder that does not fit is refused by tensor and shape, and the old weights go on") {
  Folders folders;
  EngineRunner engine = runner(load(folders.a));
  const std::vector<SampledToken> before = answer(engine, 3);
  const auto refused = [&](const TestFolder& folder, const std::string& part) {
    const WeightsLoaded loaded = update(engine, folder.path(), 2);
    REQUIRE(!loaded.status.ok());
    CHECK_MESSAGE(loaded.status.error().detail.find(part) != std::string::npos, loaded.status.error().detail);
    CHECK(loaded.version == WeightVersion{});
    CHECK(answer(engine, 3) == before);
  };
  TestFolder wider, deeper, f32, broken, none;
  write_tiny_model(wider.path(), tiny_config("qwen3", {{"intermediate_size", 128}}), "BF16", 7);
  refused(wider, "mlp.gate_proj.weight");
  write_tiny_model(deeper.path(), tiny_config("qwen3", {{"num_hidden_layers", 3}}), "BF16", 7);
  refused(deeper, "model.layers.2.");
  write_tiny_model(f32.path(), tiny_config("qwen3"), "F32", 7);
  refused(f32, "has dtype F32");
  write_tiny_model(broken.path(), tiny_config("qwen3"), "BF16", 7, [](const TinyTensor& t, uint64_t i, float value) {
    return t.name == "model.norm.weight" && i == 5 ? INFINITY : value;
  });
  refused(broken, "model.norm.weight holds inf at [5]");
  refused(none, "config.json");
}

TEST_CASE("weight update: engines with one loader share the weights that they take") {
  Folders folders;
  const auto running = load(folders.a);
  SharedWeightLoader loader;
  const auto first = loader.load(*running, folders.b.path().string(), WeightVersion{1});
  const auto second = loader.load(*running, folders.b.path().string(), WeightVersion{1});
  const auto later = loader.load(*running, folders.b.path().string(), WeightVersion{2});
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  REQUIRE(later.ok());
  CHECK(*first == *second);
  CHECK(*first != *later);
}

}  // namespace
}  // namespace seer
