// ModelLoader: loads new weights beside the running ones, on a thread of its own, once for all engines of a process that ask for
// the same folder and version. Used by CpuEngine. Thread-safe.
//
// Loads run one after the other. The loader keeps the weights that an engine changed to last, so an engine that is started again gets
// them although their folder or memory is gone, also while others are staged. The ones before are kept too, until settle(): the engine
// may have died before anybody heard that it had changed. What no engine changed to is read anew. When all engines of a process update
// together, memory holds the old weights and one staged copy of the new ones.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "gpu/model/weight_store.h"
#include "protocols/ids.h"
#include "protocols/workers.h"

namespace seer {

class ModelLoader {
 public:
  /// Gets the weights or what is wrong with them, on the loader's thread.
  using Done = std::function<void(const Result<std::shared_ptr<const Model>>&)>;

  struct Weights {
    std::shared_ptr<const Model> model;  // null: there are none
    WeightVersion version{};
  };
  /// Checks that this many bytes of memory are free. `what` says what for, in the error.
  using Fits = std::function<Status(const std::string& what, int64_t bytes)>;
  /// `first`: those that the engines begin with. Weights that do not fit are not loaded; without `fits` nothing is checked.
  explicit ModelLoader(Weights first, Fits fits = {});
  ModelLoader();
  /// Waits for the running load. `done` is not called for loads that have not begun.
  ~ModelLoader() = default;

  /// load() of a folder with this name reads this memory, until it is withdrawn.
  void offer(std::string name, std::shared_ptr<const WeightMemory> memory);
  void withdraw(const std::string& name);

  /// Calls `done` with the weights in `folder`, for a model of the shape of `like`. Does not read them again while an engine or the loader
  /// holds this version from this folder.
  void load(std::string folder, WeightVersion version, std::shared_ptr<const Model> like, Done done);

  /// An engine changed to these.
  void keep(Weights running);
  /// It is known that engines changed to this version: none starts with those before any more, and they are freed once none runs with them.
  void settle(WeightVersion version);
  /// What an engine starts with.
  Weights current() const;

  int64_t loads() const;  // folders read so far

 private:
  struct Job {
    std::string folder;
    WeightVersion version;
    std::shared_ptr<const Model> like;
    Done done;
  };
  using Key = std::pair<WeightVersion, std::string>;
  void run(Job& job);
  Result<std::shared_ptr<const Model>> find_or_load(const Job& job);

  Result<std::shared_ptr<const Model>> read(const Job& job);

  const Fits fits_;
  mutable std::mutex mutex_;                        // guards the five below
  std::map<std::string, std::shared_ptr<const WeightMemory>> offered_;
  std::map<Key, std::weak_ptr<const Model>> held_;  // the next load removes entries that nobody holds
  Weights kept_, before_;                           // the newest, and until they are settled those before
  int64_t loads_ = 0;
  Workers<Job> thread_;  // last: it uses all of the above
};

}  // namespace seer
