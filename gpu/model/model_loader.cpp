#include "gpu/model/model_loader.h"

namespace seer {

ModelLoader::ModelLoader() : thread_({}, [this](Job& job) { run(job); }) {}

void ModelLoader::load(std::string folder, WeightVersion version, std::shared_ptr<const Model> like, Done done) {
  thread_.put({std::move(folder), version, std::move(like), std::move(done)});
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
  Result<std::shared_ptr<const Model>> model = load_weights(job.folder, *job.like);
  if (model.ok()) {
    const std::lock_guard lock(mutex_);
    held_[key] = *model;
  }
  return model;
}

}  // namespace seer
