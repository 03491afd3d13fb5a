#include "gpu/model/engine_weights.h"

#include <utility>

#include "protocols/check.h"
#include "protocols/hash.h"

namespace seer {
namespace {

uint64_t kv_hash(const Model& model, uint64_t kv_layout) { return hash_pair(model.weights_hash, kv_layout); }

Error others_text(const StageWeights& weights) {
  return fail(Code::kInvalidArgument, weights.folder, " does not have the weights of version ", weights.version,
              " any more: their checksum differs from that of the weights that run elsewhere");
}

}  // namespace

EngineWeights::EngineWeights(std::shared_ptr<const Model> model, WeightVersion version, uint64_t kv_layout,
                             std::shared_ptr<ModelLoader> loader, std::function<void(Loaded)> loaded)
    : kv_layout_(kv_layout),
      loader_(loader ? std::move(loader) : std::make_shared<ModelLoader>()),
      running_(std::move(model)),
      version_(version) {
  link_->loaded = std::move(loaded);
}

void EngineWeights::close() {
  const std::lock_guard lock(link_->mutex);
  link_->loaded = nullptr;
}

void EngineWeights::describe(EngineInfo& info) const {
  const std::lock_guard lock(mutex_);
  const ModelConfig& config = running_->config;
  info.model = running_->folder;
  info.model_shape = shape_hash(config);
  info.vocab_size = config.vocab_size;
  info.context_tokens_max = config.context_tokens_max;
  info.eos_ids = config.eos_ids;
  info.kv_layout = kv_layout_;
  info.kv_hash = kv_hash_of_running();
  info.version = version_;
}

void EngineWeights::stage(const StageWeights& weights) {
  loader_->load(weights.folder, weights.version, running(),
                [link = link_, weights, layout = kv_layout_](const Result<std::shared_ptr<const Model>>& model) {
                  const bool are_others = model.ok() && weights.kv_hash != 0 && kv_hash(**model, layout) != weights.kv_hash;
                  const std::lock_guard lock(link->mutex);
                  if (!link->loaded) return;
                  if (are_others) return link->loaded({weights.id, weights.version, others_text(weights)});
                  link->loaded({weights.id, weights.version, model});
                });
}

WeightResult EngineWeights::keep(Loaded loaded) {
  const std::lock_guard lock(mutex_);
  SEER_CHECK(staged_ == nullptr, loaded.id);
  WeightResult kept = result(loaded.id);
  if (loaded.model.ok()) {
    staged_ = *std::move(loaded.model);
    staged_version_ = loaded.version;
  } else {
    kept.status = loaded.model.error();
  }
  return kept;
}

WeightResult EngineWeights::switch_to_staged(uint64_t id) {
  std::shared_ptr<const Model> old;  // freed without the lock: that may take long
  const std::lock_guard lock(mutex_);
  SEER_CHECK(staged_ != nullptr, id);
  old = std::exchange(running_, std::exchange(staged_, nullptr));
  version_ = staged_version_;
  loader_->keep({running_, version_});
  return result(id);
}

std::shared_ptr<const Model> EngineWeights::running() const {
  const std::lock_guard lock(mutex_);
  return running_;
}
std::shared_ptr<const Model> EngineWeights::staged() const {
  const std::lock_guard lock(mutex_);
  return staged_;
}
WeightVersion EngineWeights::version() const {
  const std::lock_guard lock(mutex_);
  return version_;
}
WeightVersion EngineWeights::staged_version() const {
  const std::lock_guard lock(mutex_);
  return staged_version_;
}

uint64_t EngineWeights::kv_hash_of_running() const { return kv_hash(*running_, kv_layout_); }

WeightResult EngineWeights::result(uint64_t id) const {
  return {.id = id, .status = {}, .version = version_, .kv_hash = kv_hash_of_running()};
}

}  // namespace seer
