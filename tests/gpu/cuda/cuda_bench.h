// What the tests of the CUDA engine share: tiny models, engines on the emulated device, and references.
#pragma once
#include <doctest/doctest.h>

#include <random>
#include <string>
#include <utility>

#include "gpu/cpu/cpu_engine.h"
#include "gpu/cuda/cuda_engine.h"
#include "gpu/engine_runner.h"
#include "gpu/tiny_model.h"
#include "simt/simt_device.h"

namespace seer {

inline std::shared_ptr<const Model> tiny(const std::string& kind, const std::string& dtype,
                                         const nlohmann::json& changes = nlohmann::json::object(), const TinyEdit& edit = {}) {
  TestFolder folder;
  write_tiny_model(folder.path(), tiny_config(kind, changes), dtype, 7, edit);
  auto model = load_model(folder.path());
  REQUIRE_MESSAGE(model.ok(), model.error().detail);
  return *model;
}

inline CudaEngineConfig small_config(CudaType type) {
  return {.type = type, .device_blocks = 64, .slots_max = 32, .rows_max = 128, .row_splits_max = 256};
}

inline std::unique_ptr<Engine> simt_engine(const std::shared_ptr<const Model>& model, const CudaEngineConfig& config,
                                           const simt::SimtConfig& device = {}) {
  auto engine = make_cuda_engine(model, simt::make_simt_device(device), config);
  REQUIRE_MESSAGE(engine.ok(), engine.error().detail);
  return *std::move(engine);
}

inline std::vector<int32_t> random_tokens(int count, int vocab, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& t : tokens) t = static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab));
  return tokens;
}

inline TestSequence sequence_of(std::vector<int32_t> tokens, uint64_t seed, const SamplingParams& sampling) {
  TestSequence s;
  s.tokens = std::move(tokens);
  s.seed = seed;
  s.sampling = std::make_shared<const SamplingParams>(sampling);
  return s;
}

}  // namespace seer
