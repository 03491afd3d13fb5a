// CudaRank: one GPU of an engine, with its share of weights and KV, and two threads: one queues work on the device, the other waits
// until it is over. An engine has one rank, or with tensor parallelism several, which all get the same jobs in the same order.
// Used by CudaEngine.
//
// Work is queued in the order of the jobs. Steps run on one stream and copies of KV on another, ordered by events: a copy sees the
// steps before it; a step waits only for imports, and for exports of blocks that it writes to.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "gpu/cuda/communicator.h"
#include "gpu/cuda/cuda_forward.h"
#include "gpu/cuda/device.h"
#include "gpu/cuda/step_plan.h"
#include "gpu/engine.h"
#include "gpu/model/engine_weights.h"
#include "protocols/workers.h"

namespace seer::cuda {

struct StepWork {
  StepResult result;      // with room for all samples; rank 0 fills it in
  bool is_order = false;  // of the slots; else of given rows
  std::vector<Pass> passes;
  std::vector<DeviceBlockId> written;  // blocks that it writes to
};
/// Copies of blocks. In the host, the bytes of a block are those of rank 0, of rank 1 and so on.
struct CopyWork {
  CopyBatch batch;
  CopyResult result;
  std::once_flag checked;  // the blocks to import: `result` has their checksums then
};
/// New weights are put on the devices that have room for them. REQUIRES: `loaded` has a model.
struct UploadWork {
  EngineWeights::Loaded loaded;
};
struct SwitchWork {
  uint64_t id = 0;  // of the SwitchWeights
  std::shared_ptr<const Model> model;
  WeightVersion version;
};

/// What all ranks do once.
class Job {
 public:
  explicit Job(int32_t ranks) : open_(ranks) {}

  std::variant<StepWork, CopyWork, UploadWork, SwitchWork> work;

  /// A rank has done its part. True for the last one.
  bool end(const Status& status);
  /// The first error. REQUIRES: all have ended.
  const Status& status() const { return status_; }

 private:
  std::mutex mutex_;  // guards the rest
  int32_t open_;
  Status status_;
};

class CudaRank {
 public:
  struct Config {
    int32_t rows_max = 0;
    int64_t block_bytes = 0;  // of this rank
    WeightVersion version;
  };
  /// `over` is called once per job, by the last rank, on its waiting thread. `peers` is null for a rank that is alone.
  CudaRank(std::unique_ptr<Device> device, std::unique_ptr<Communicator> peers, std::unique_ptr<CudaForward> forward, const Config& config,
           std::function<void(Job&)> over);
  /// Drops jobs that have not begun, and waits for what is on the device. REQUIRES: stop() of every rank was called.
  ~CudaRank() = default;
  void stop();

  /// Memory for what goes to and comes from the device. Errors: kFull.
  Status reserve_staging();

  /// An UploadWork goes beside all other jobs.
  void put(const std::shared_ptr<Job>& job);

 private:
  /// Pinned memory for what a pass samples, of rank 0.
  struct Results {
    Sampled* sampled = nullptr;
    int32_t *kept_counts = nullptr, *kept = nullptr;
  };
  /// A job whose work is on the device.
  struct InFlight {
    std::shared_ptr<Job> job;
    EventId event = 0;
    Status status;                // of what is over already
    Results results = {};         // of a step: its last pass, on rank 0
    int64_t start_us = 0;
  };
  /// Pinned memory for one upload, free after the event.
  struct Staged {
    std::byte* memory = nullptr;
    EventId used = 0;
  };
  /// Buffers that go from one thread to the other and back.
  class ResultBuffers {
   public:
    void put(Results buffer);
    Results take();

   private:
    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<Results> free_;
  };

  bool is_first() const { return !peers_ || peers_->rank() == 0; }
  Status wait(EventId event) { return peers_ ? peers_->wait(event) : device_->wait(event); }

  // The thread that queues.
  InFlight queue(StepWork& work);
  InFlight queue(CopyWork& work);
  InFlight queue(UploadWork& work);
  InFlight queue(SwitchWork& work);
  Staged& next_staged();
  void upload_changes(const ChangeList& changes);
  void upload_plan(const Pass& pass);
  void wait_for_exports(const std::vector<DeviceBlockId>& written);

  // The thread that waits.
  void drain_copies();
  void finish(InFlight& flight);
  static void read_samples(const Pass& pass, const Results& results, StepResult& result);

  static constexpr int32_t kResultBuffers = 4;

  const Config config_;
  const std::function<void(Job&)> over_;
  const std::unique_ptr<Communicator> peers_;  // before the device, whose work ends first
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<CudaForward> forward_;
  WeightVersion version_;  // this and the next five: used by the queuing thread
  std::array<Staged, 4> staged_;
  size_t next_staged_ = 0;
  std::vector<std::byte> plan_, new_plan_;  // on the device; memory for the next
  EventId last_step_ = 0;
  std::vector<std::pair<DeviceBlockId, EventId>> exporting_;
  std::atomic<EventId> copies_over_ = 0;  // set by the waiting thread
  std::optional<std::chrono::steady_clock::time_point> drains_until_;  // of the waiting thread; none: nothing failed yet
  int64_t last_over_us_ = 0;              // used by the waiting thread
  ResultBuffers results_;                 // used by both
  // Last: they use the above.
  Workers<InFlight> waiter_{{}, [this](InFlight& flight) { finish(flight); }};
  Workers<std::shared_ptr<Job>> uploader_;
  Workers<std::shared_ptr<Job>> thread_;
};

}  // namespace seer::cuda
