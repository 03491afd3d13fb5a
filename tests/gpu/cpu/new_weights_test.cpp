// New weights in a running CpuEngine: after a switch it computes the same as a fresh engine.
#include <doctest/doctest.h>

#include <future>
#include <string>
#include <vector>

#include "gpu/engine_runner.h"
#include "gpu/model/model_loader.h"
#include "gpu/tiny_model.h"

namespace seer {
namespace {

/// Folders with models of one shape and different weights, by seed.
class Folders {
 public:
  std::filesystem::path operator[](uint64_t seed) const {
    const std::filesystem::path folder = parent_.path() / std::to_string(seed);
    if (std::filesystem::create_directory(folder)) write_tiny_model(folder, tiny_config("qwen3"), "BF16", seed);
    return folder;
  }

 private:
  TestFolder parent_;
};

EngineRunner runner(const std::filesystem::path& folder, std::shared_ptr<ModelLoader> loader = nullptr) {
  return EngineRunner(
      *make_cpu_engine(*load_model(folder), {.threads = 2, .device_blocks = 16, .loader = std::move(loader)}));
}

/// A response of 12 tokens, in blocks that are free again afterwards.
std::vector<SampledToken> response(EngineRunner& engine) {
  TestSequence s;
  s.tokens = {5, 17, 42, 8, 3};
  std::vector<SampledToken> tokens = engine.decode(s, 12);
  engine.free_blocks().insert(engine.free_blocks().end(), s.blocks.rbegin(), s.blocks.rend());
  return tokens;
}

std::vector<SampledToken> fresh_response(const std::filesystem::path& folder) {
  EngineRunner engine = runner(folder);
  return response(engine);
}

}  // namespace

TEST_CASE("new weights: after each of 100 updates the engine gives the bits of a fresh one") {
  const Folders folders;
  const std::vector<SampledToken> right[] = {fresh_response(folders[1]), fresh_response(folders[2])};
  REQUIRE(right[0] != right[1]);
  EngineRunner engine = runner(folders[1]);
  std::vector<uint64_t> layouts = {engine.info().kv_hash};
  const uint64_t kv_layout = engine.info().kv_layout;
  for (uint64_t update = 1; update <= 100; ++update) {
    CAPTURE(update);
    const WeightVersion version{1 + update};
    REQUIRE(engine.update(version, folders[1 + update % 2]).ok());
    REQUIRE(engine.info().version == version);
    REQUIRE(response(engine) == right[update % 2]);
    layouts.push_back(engine.info().kv_hash);
  }
  // KV of other weights has another name, even where versions were mixed up.
  CHECK(layouts[0] != layouts[1]);
  CHECK(layouts[0] == layouts[2]);
  CHECK(engine.info().kv_layout == kv_layout);
}

TEST_CASE("new weights: until the switch steps run with the old ones, and each result names its version") {
  const Folders folders;
  const auto loader = std::make_shared<ModelLoader>();
  EngineRunner engine = runner(folders[1], loader);
  const std::vector<SampledToken> old = response(engine);
  // The loader is held up, so that the steps certainly pass it.
  std::promise<void> go_on;
  loader->load("", WeightVersion{}, *load_model(folders[1]), [&](const auto&) { go_on.get_future().wait(); });
  engine.submit(StageWeights{.id = 900, .version = WeightVersion{7}, .folder = folders[2].string()});
  CHECK(response(engine) == old);
  go_on.set_value();
  const auto staged = std::get<WeightResult>(engine.wait());
  CHECK(staged.id == 900);
  CHECK(staged.status.ok());
  CHECK(staged.version == WeightVersion{1});
  CHECK(response(engine) == old);
  TestSequence s;
  s.tokens = {5};
  CHECK(engine.step({engine.plan(s, 1, 1)}).version == WeightVersion{1});
  const auto switched = std::get<WeightResult>(engine.run(SwitchWeights{.id = 901}));
  CHECK(switched.version == WeightVersion{7});
  CHECK(response(engine) == fresh_response(folders[2]));
  TestSequence t;
  t.tokens = {5};
  CHECK(engine.step({engine.plan(t, 1, 1)}).version == WeightVersion{7});
}

TEST_CASE("new weights: a folder that is refused leaves the engine as it was, and the next one is taken") {
  const Folders folders;
  EngineRunner engine = runner(folders[1]);
  const std::vector<SampledToken> old = response(engine);
  TestFolder wide;
  write_tiny_model(wide.path(), tiny_config("qwen3", {{"intermediate_size", 128}}), "BF16", 2);
  const Status refused = engine.update(WeightVersion{2}, wide.path());
  REQUIRE(!refused.ok());
  CHECK(refused.error().detail.find("mlp.gate_proj.weight should have shape [96, 64], found [128, 64]") != std::string::npos);
  CHECK(engine.info().version == WeightVersion{1});
  CHECK(response(engine) == old);
  CHECK(engine.update(WeightVersion{2}, folders[2]).ok());
  CHECK(response(engine) == fresh_response(folders[2]));
}

TEST_CASE("new weights: a folder that was written to since others loaded it is refused, and taken once it has their weights") {
  const Folders folders;
  TestFolder changing;
  const auto write = [&](int of) {
    std::filesystem::copy(folders[of], changing.path(), std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  };
  write(2);
  EngineRunner other = runner(folders[1]), late = runner(folders[1]);
  const std::vector<SampledToken> old = response(late);
  REQUIRE(other.update(WeightVersion{2}, changing.path()).ok());
  write(1);
  const Status refused = late.update(WeightVersion{2}, changing.path(), other.info().kv_hash);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().detail == cat(changing.path().string(), " does not have the weights of version 2 any more: their checksum differs from that of the weights that run elsewhere"));
  CHECK(late.info().version == WeightVersion{1});
  CHECK(response(late) == old);
  write(2);
  CHECK(late.update(WeightVersion{2}, changing.path(), other.info().kv_hash).ok());
  CHECK(late.info().kv_hash == other.info().kv_hash);
  CHECK(response(late) == response(other));
}

TEST_CASE("new weights: engines that share a loader read a version once, and an engine may end while it is read") {
  const Folders folders;
  const auto loader = std::make_shared<ModelLoader>();
  EngineRunner a = runner(folders[1], loader), b = runner(folders[1], loader);
  CHECK(a.update(WeightVersion{2}, folders[2]).ok());
  CHECK(b.update(WeightVersion{2}, folders[2]).ok());
  CHECK(loader->loads() == 1);
  CHECK(response(a) == response(b));
  std::promise<void> go_on;
  loader->load("", WeightVersion{}, *load_model(folders[1]), [&](const auto&) { go_on.get_future().wait(); });
  {
    EngineRunner c = runner(folders[1], loader);
    c.submit(StageWeights{.id = 1, .version = WeightVersion{3}, .folder = folders[1].string()});
  }
  go_on.set_value();
  CHECK(a.update(WeightVersion{3}, folders[1]).ok());
}

}  // namespace seer
