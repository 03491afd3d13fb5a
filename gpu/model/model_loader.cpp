#include "gpu/model/model_loader.h"

#include <utility>

namespace seer {

ModelLoader::ModelLoader() : ModelLoader(Weights()) {}
ModelLoader::ModelLoader(Weights first, Fits fits) : fits_(std::move(fits)), kept_(std::move(first)), thread_({}, [this](Job& job) { run(job); }) {}

void ModelLoader::load(std::string folder, WeightVersion version, std::shared_ptr<const Model> like, Done done) {
  thread_.put({std::move(folder), version, std::move(like), std::move(done)});
}

void ModelLoader::offer(std::string name, std::shared_ptr<const WeightMemory> memory) {
  const std::lock_guard lock(mutex_);
  offered_[std::move(name)] = std::move(memory);
}

void ModelLoader::withdraw(const std::string& name) {
  const std::lock_guard lock(mutex_);
  offered_.erase(name);
}

void ModelLoader::keep(Weights running) {
  Weights freed;  // without the lock: that may take long
  const std::lock_guard lock(mutex_);
  if (running.model == kept_.model) return;
  freed = std::exchange(kept_, std::move(running));
  if (before_.model == nullptr) std::swap(before_, freed);  // else what was kept has never been settled
}

void ModelLoader::settle(WeightVersion version) {
  Weights freed;
  const std::lock_guard lock(mutex_);
  if (version >= kept_.version) freed = std::exchange(before_, {});
}

ModelLoader::Weights ModelLoader::current() const {
  const std::lock_guard lock(mutex_);
  return before_.model != nullptr ? before_ : kept_;
}

int64_t ModelLoader::loads() const {
  const std::lock_guard lock(mutex_);
  return loads_;
}

void ModelLoader::run(Job& job) { job.done(find_or_load(job)); }

Result<std::shared_ptr<const Model>> ModelLoader::find_or_load(const Job& job) {
  const Key key{job.version, job.folder};
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(held_, [](const auto& entry) { return entry.second.expired(); });
    if (const auto held = held_.find(key); held != held_.end())
      if (std::shared_ptr<const Model> model = held->second.lock()) return model;
    ++loads_;
  }
  Result<std::shared_ptr<const Model>> model = read(job);
  if (model.ok()) {
    const std::lock_guard lock(mutex_);
    held_[key] = *model;
  }
  return model;
}

Result<std::shared_ptr<const Model>> ModelLoader::read(const Job& job) {
  std::shared_ptr<const WeightMemory> memory;
  {
    const std::lock_guard lock(mutex_);
    if (const auto offered = offered_.find(job.folder); offered != offered_.end()) memory = offered->second;
  }
  if (fits_) SEER_RETURN_IF_ERROR(fits_(cat("the weights of ", job.folder), job.like->weight_bytes()));
  if (memory == nullptr) return load_weights(std::filesystem::path(job.folder), *job.like);
  SEER_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(*memory, job.folder));
  return load_weights(checkpoint, *job.like);
}

}  // namespace seer
