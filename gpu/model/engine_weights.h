// EngineWeights: the weights that an engine runs with and those staged beside them, as StageWeights and SwitchWeights of engine.h say.
// Used by CpuEngine and CudaEngine, which put the weights to use. Thread-safe.
#pragma once
#include <functional>
#include <memory>
#include <mutex>

#include "gpu/engine.h"
#include "gpu/model/model_loader.h"

namespace seer {

class EngineWeights {
 public:
  struct Loaded {
    uint64_t id = 0;  // of the StageWeights
    WeightVersion version;
    Result<std::shared_ptr<const Model>> model;
  };

  /// `loaded` gets what each stage() has loaded, on the loader's thread. A null loader: one of its own.
  EngineWeights(std::shared_ptr<const Model> model, WeightVersion version, uint64_t kv_layout, std::shared_ptr<ModelLoader> loader,
                std::function<void(Loaded)> loaded);
  ~EngineWeights() { close(); }
  /// `loaded` is not called after this.
  void close();

  /// Writes to `info` what the running model and its weights decide.
  void describe(EngineInfo& info) const;

  void stage(const StageWeights& weights);
  /// What was loaded is staged from now on, if it is a model. REQUIRES: nothing is staged.
  WeightResult keep(Loaded loaded);
  /// The staged weights are the running ones from now on; the old ones are freed. REQUIRES: some are staged.
  WeightResult switch_to_staged(uint64_t id);

  std::shared_ptr<const Model> running() const;
  std::shared_ptr<const Model> staged() const;  // or null
  WeightVersion version() const;                // of the running weights
  WeightVersion staged_version() const;

 private:
  /// How the loader reaches this engine while it exists.
  struct Link {
    std::mutex mutex;
    std::function<void(Loaded)> loaded;  // empty once closed
  };
  uint64_t kv_hash_of_running() const;
  WeightResult result(uint64_t id) const;

  const uint64_t kv_layout_;
  const std::shared_ptr<ModelLoader> loader_;
  const std::shared_ptr<Link> link_ = std::make_shared<Link>();
  mutable std::mutex mutex_;  // guards the rest
  std::shared_ptr<const Model> running_, staged_;
  WeightVersion version_, staged_version_;
};

}  // namespace seer
