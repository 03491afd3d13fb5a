#include "gpu/cuda/cuda_engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <limits>
#include <utility>

#include "gpu/cuda/cuda_forward.h"
#include "gpu/cuda/step_plan.h"
#include "gpu/slot_table.h"
#include "protocols/check.h"
#include "protocols/hash.h"
#include "protocols/kv.h"
#include "protocols/workers.h"

namespace seer {
namespace {

using namespace cuda;

// Changes when the bytes of a KV block change their meaning, or when the arithmetic that makes them changes.
constexpr uint64_t kLayoutVersion = 0x63756461'00000001;

int64_t wall_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

/// A slot table that remembers what the device has not been told.
class DeviceSlots final : public SlotTable {
 public:
  DeviceSlots(const EngineInfo& info, int32_t slots_max) : SlotTable(info), info_(info), slots_max_(slots_max) {}

  void join(int32_t slot, const SequenceStep& step, const std::optional<StepsLimit>& limit) override {
    SEER_CHECK(slot >= 0 && slot < slots_max_, slot, slots_max_);
    SlotTable::join(slot, step, limit);
    changes_.drop_slot(slot);
    changes_.add_sequence(slot, step, static_cast<int32_t>(info_.block_tokens));
  }
  void grant(int32_t slot, DeviceBlockId block) override {
    changes_.tables.push_back({slot, static_cast<int32_t>(next(slot).blocks.size()), block});
    SlotTable::grant(slot, block);
  }
  ChangeList take_changes() {
    changes_.unite_logs();
    return std::exchange(changes_, {});
  }

 private:
  const EngineInfo& info_;
  const int32_t slots_max_;
  ChangeList changes_;
};

class CudaEngine final : public Engine {
 public:
  CudaEngine(std::shared_ptr<const Model> model, std::unique_ptr<Device> device, std::unique_ptr<CudaForward> forward,
             const ForwardConfig& forward_config, const CudaEngineConfig& config)
      : config_(config),
        loader_(config.loader ? config.loader : std::make_shared<ModelLoader>()),
        limits_{.rows = config.rows_max,
                .row_splits = forward_config.row_splits_max,
                .sequences = config.slots_max,
                .tile_tokens = kTileRows / (model->config.heads / model->config.kv_heads)},
        slots_(info_, config.slots_max),
        model_(std::move(model)),
        device_(std::move(device)),
        forward_(std::move(forward)) {
    const ModelConfig& c = model_->config;
    info_.model = model_->folder;
    info_.vocab_size = c.vocab_size;
    info_.context_tokens_max = c.context_tokens_max;
    info_.eos_ids = c.eos_ids;
    info_.block_tokens = config.block_tokens;
    info_.block_bytes = forward_->block_bytes();
    info_.device_blocks = forward_config.blocks;
    info_.orders_max = 2;
    info_.block_layout = block_layout();
    info_.layout_hash = layout_hash();
    info_.version = version_ = config.version;
    staging_->engine = this;
  }
  ~CudaEngine() override {
    const std::lock_guard lock(staging_->mutex);
    staging_->engine = nullptr;
  }

  /// Memory for what goes to and comes from the device. Errors: kFull.
  Status reserve_staging() {
    for (Staged& s : staged_) {
      const int64_t bytes = std::max(CudaForward::kChangesBytes, CudaForward::plan_bytes(config_.rows_max));
      SEER_ASSIGN_OR_RETURN(s.memory, device_->allocate_pinned(bytes));
    }
    for (int32_t i = 0; i < kResultBuffers; ++i) {
      SEER_ASSIGN_OR_RETURN(std::byte * memory, device_->allocate_pinned(config_.rows_max * static_cast<int64_t>(sizeof(Sampled))));
      results_.put(reinterpret_cast<Sampled*>(memory));
    }
    return {};
  }

  const EngineInfo& info() const override { return info_; }
  void set_notify(std::function<void()> notify) override { done_.set_wake(std::move(notify)); }
  StepRun* step_run() override { return &slots_; }

  void submit(EngineWork work) override {
    SEER_CHECK(open_ < info_.queue_max, open_);
    ++open_;
    if (auto* const batch = std::get_if<StepBatch>(&work)) {
      thread_.put(batch->sequences.empty() ? plan_order(*batch) : plan_rows(*batch));
    } else if (auto* const copy = std::get_if<CopyBatch>(&work)) {
      check_copy(*copy);
      thread_.put(std::move(*copy));
    } else if (auto* const weights = std::get_if<StageWeights>(&work)) {
      stage(*weights);
    } else {
      thread_.put(std::get<SwitchWeights>(work));
    }
  }

  std::vector<EngineResult> take_results() override {
    std::vector<EngineResult> results;
    for (Done& done : done_.take()) {
      --open_;
      if (auto* const step = std::get_if<StepResult>(&done.result); step != nullptr && done.is_order) {
        if (step->status.ok())
          slots_.end_order(step->sampled, *step);
        else
          slots_.drop_order();
      } else if (const auto* weights = std::get_if<WeightResult>(&done.result)) {
        info_.version = weights->version;
        info_.layout_hash = weights->layout_hash;
      }
      results.push_back(std::move(done.result));
    }
    return results;
  }

 private:
  /// A step as the engine's thread gets it.
  struct StepWork {
    StepResult result;          // with room for all samples
    bool is_order = false;      // of the slots; else of given rows
    std::vector<Pass> passes;
    std::vector<DeviceBlockId> written;  // blocks that it writes to
  };
  struct StagedModel {
    uint64_t id = 0;  // of the StageWeights
    WeightVersion version;
    Result<std::shared_ptr<const Model>> model;
  };
  using Work = std::variant<StepWork, CopyBatch, StagedModel, SwitchWeights>;
  /// Work that is on the device.
  struct InFlight {
    EventId event = 0;
    StepWork step;                 // of a step: its last pass is in `sampled`
    Sampled* sampled = nullptr;
    int64_t start_us = 0;
    std::optional<CopyBatch> copy;
    CopyResult copied;
    std::optional<WeightResult> weights;  // over already: it only keeps its place among the results
  };
  struct Done {
    EngineResult result;
    bool is_order = false;
  };
  /// Pinned memory for one upload, free after the event.
  struct Staged {
    std::byte* memory = nullptr;
    EventId used = 0;
  };
  /// Buffers that go from one thread to the other and back.
  class ResultBuffers {
   public:
    void put(Sampled* buffer) {
      {
        const std::lock_guard lock(mutex_);
        free_.push_back(buffer);
      }
      wake_.notify_one();
    }
    Sampled* take() {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return !free_.empty(); });
      Sampled* const buffer = free_.back();
      free_.pop_back();
      return buffer;
    }

   private:
    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<Sampled*> free_;
  };
  struct Staging {  // how the loader reaches this engine while it exists
    std::mutex mutex;
    CudaEngine* engine = nullptr;
  };

  // ---- the owner's thread: what a step is ----

  StepWork plan_order(const StepBatch& batch) {
    StepWork work;
    work.is_order = true;
    work.result.id = batch.id;
    std::vector<PlannedSequence> planned;
    for (const int32_t slot : slots_.begin_order()) {
      const SequenceStep& next = slots_.next(slot);
      check_sequence(batch.id, next);
      const bool decodes = next.tokens.size() == 1 && next.sample_rows == 1 && next.targets.empty();
      planned.push_back({.slot = slot, .step = &next, .goes_on = decodes});
    }
    finish_plan(work, planned);
    if (!work.passes.empty()) work.passes.front().changes = slots_.take_changes();
    slots_.advance();
    return work;
  }

  /// Given rows are in slots after those of the running batch, numbered anew in each pass.
  StepWork plan_rows(StepBatch& batch) {
    StepWork work;
    work.result.id = batch.id;
    std::vector<PlannedSequence> planned;
    for (const SequenceStep& s : batch.sequences) {
      check_sequence(batch.id, s);
      SEER_CHECK(s.fed_by < 0, batch.id);
      const auto index = static_cast<int32_t>(planned.size());
      planned.push_back({.slot = config_.slots_max + index % config_.slots_max, .step = &s});
    }
    finish_plan(work, planned);
    for (Pass& pass : work.passes) {
      for (const int32_t index : pass.begun) {
        const PlannedSequence& p = planned[static_cast<size_t>(index)];
        pass.changes.add_sequence(p.slot, *p.step, static_cast<int32_t>(config_.block_tokens));
      }
      pass.changes.unite_logs();
    }
    work.result.spent = std::move(batch.sequences);
    return work;
  }

  void finish_plan(StepWork& work, const std::vector<PlannedSequence>& planned) {
    const auto block_tokens = static_cast<int64_t>(config_.block_tokens);
    for (const PlannedSequence& p : planned) {
      work.result.sampled.emplace_back(static_cast<size_t>(p.step->sample_rows));
      const int64_t end = p.step->start + std::ssize(p.step->tokens);
      for (int64_t block = p.step->start / block_tokens; block * block_tokens < end; ++block)
        work.written.push_back(p.step->blocks[static_cast<size_t>(block)]);
    }
    work.passes = plan_passes(planned, limits_);
  }

  void check_sequence(uint64_t id, const SequenceStep& s) const {
    const int64_t rows = std::ssize(s.tokens);
    SEER_CHECK(rows > 0, id);
    SEER_CHECK(s.start >= 0, id, s.start);
    SEER_CHECK(std::ssize(s.blocks) * info_.block_tokens >= s.start + rows, id, s.blocks.size());
    SEER_CHECK(s.sample_rows >= 0 && s.sample_rows <= rows, id, s.sample_rows, rows);
    SEER_CHECK(s.parents.empty(), id);
    if (s.fed_by >= 0) return;  // checked when it joined
    for (DeviceBlockId b : s.blocks) SEER_CHECK(b >= 0 && b < info_.device_blocks, id, b);
    for (int32_t t : s.tokens) SEER_CHECK(t >= 0 && t < info_.vocab_size, id, t);
    if (s.sample_rows == 0) return;
    SEER_CHECK(s.sampling != nullptr, id);
    SEER_CHECK(s.targets.empty() || std::ssize(s.targets) == s.sample_rows, id, s.targets.size());
    for (int32_t t : s.targets) SEER_CHECK(t >= 0 && t < info_.vocab_size, id, t);
    if (s.sampling->repetition_penalty != 1.0f && s.targets.empty())
      SEER_CHECK(std::ssize(s.history) == s.start, id, s.history.size(), s.start);
  }

  void check_copy(const CopyBatch& batch) const {
    for (const BlockCopy& copy : batch.blocks) {
      SEER_CHECK(copy.block >= 0 && copy.block < info_.device_blocks, batch.id, copy.block);
      SEER_CHECK(std::ssize(copy.host) == info_.block_bytes, batch.id, copy.host.size());
    }
  }

  void stage(const StageWeights& weights) {
    loader_->load(weights.folder, weights.version, model_,
                  [staging = staging_, id = weights.id, version = weights.version](const auto& model) {
                    const std::lock_guard lock(staging->mutex);
                    if (staging->engine != nullptr) staging->engine->thread_.put(StagedModel{id, version, model});
                  });
  }

  // ---- the engine's thread: queues work on the device ----

  void run(StepWork& work) {
    InFlight flight{.start_us = wall_us()};
    work.result.version = version_;
    wait_for_exports(work.written);
    for (size_t i = 0; i < work.passes.size(); ++i) {
      const Pass& pass = work.passes[i];
      upload_changes(pass.changes);
      upload_plan(pass);
      forward_->run(*device_, pass);
      if (pass.samples.empty()) continue;
      flight.sampled = results_.take();
      device_->copy_out(Stream::kSteps, flight.sampled, forward_->sampled(),
                        static_cast<int64_t>(pass.samples.size() * sizeof(Sampled)));
      if (i + 1 == work.passes.size()) break;
      if (device_->wait(device_->record(Stream::kSteps)).ok()) read_samples(pass, flight.sampled, work.result);
      results_.put(std::exchange(flight.sampled, nullptr));
    }
    flight.event = last_step_ = device_->record(Stream::kSteps);
    flight.step = std::move(work);
    waiter_.put(std::move(flight));
  }

  Staged& next_staged() {
    Staged& s = staged_[next_staged_++ % staged_.size()];
    (void)device_->wait(s.used);  // an error is seen at the end of the step
    return s;
  }

  void upload_changes(const ChangeList& changes) {
    size_t slot = 0, table = 0, log = 0;
    while (slot < changes.slots.size() || table < changes.tables.size() || log < changes.logs.size()) {
      Staged& staged = next_staged();
      size_t room = CudaForward::kChangesMax;
      std::byte* to = staged.memory + sizeof(Changes);
      const auto put = [&](const auto& list, size_t& next) {
        const size_t taken = std::min(room, list.size() - next);
        if (taken > 0) std::memcpy(to, &list[next], taken * sizeof list[0]);
        to += taken * sizeof list[0];
        next += taken;
        room -= taken;
        return static_cast<int32_t>(taken);
      };
      Changes header;
      header.slots = put(changes.slots, slot);
      header.tables = put(changes.tables, table);
      header.logs = put(changes.logs, log);
      std::memcpy(staged.memory, &header, sizeof header);
      forward_->apply_changes(*device_, staged.memory, to - staged.memory, header.slots + header.tables + header.logs);
      staged.used = device_->record(Stream::kSteps);
    }
  }

  /// The plan stays on the device while the same slots go on.
  void upload_plan(const Pass& pass) {
    new_plan_.resize(static_cast<size_t>(CudaForward::plan_bytes(config_.rows_max)));
    new_plan_.resize(static_cast<size_t>(CudaForward::write_plan(pass, new_plan_.data())));
    if (new_plan_ == plan_) return;
    std::swap(plan_, new_plan_);
    Staged& staged = next_staged();
    std::memcpy(staged.memory, plan_.data(), plan_.size());
    forward_->load_plan(*device_, staged.memory, std::ssize(plan_));
    staged.used = device_->record(Stream::kSteps);
  }

  /// Orders the step after exports of blocks that it writes to; others run beside it.
  void wait_for_exports(const std::vector<DeviceBlockId>& written) {
    std::erase_if(exporting_, [over = copies_over_.load()](const auto& e) { return e.second <= over; });
    for (const auto& [block, event] : exporting_)
      if (std::ranges::find(written, block) != written.end()) device_->wait_on(Stream::kSteps, event);
  }

  void run(CopyBatch& batch) {
    InFlight flight;
    flight.copied.id = batch.id;
    flight.copied.direction = batch.direction;
    const bool exports = batch.direction == CopyBatch::Direction::kExport;
    device_->wait_on(Stream::kCopies, last_step_);
    for (const BlockCopy& copy : batch.blocks) {
      if (exports) {
        device_->copy_out(Stream::kCopies, copy.host.data(), forward_->block(copy.block), info_.block_bytes);
        continue;
      }
      const uint32_t found = crc32c(copy.host);
      if (found == copy.crc32c)
        device_->copy_in(Stream::kCopies, forward_->block(copy.block), copy.host.data(), info_.block_bytes);
      flight.copied.crc32c.push_back(found);
    }
    flight.event = device_->record(Stream::kCopies);
    if (exports)
      for (const BlockCopy& copy : batch.blocks) exporting_.emplace_back(copy.block, flight.event);
    else
      device_->wait_on(Stream::kSteps, flight.event);
    flight.copy = std::move(batch);
    waiter_.put(std::move(flight));
  }

  void run(StagedModel& staged) {
    SEER_CHECK(staged_model_ == nullptr, staged.id);
    WeightResult result = weight_result(staged.id);
    if (!staged.model.ok()) {
      result.status = staged.model.error();
    } else {
      staged_model_ = *std::move(staged.model);
      staged_version_ = staged.version;
    }
    waiter_.put({.weights = std::move(result)});
  }

  /// New weights take the old ones' place on the device, after all steps that were queued before.
  void run(const SwitchWeights& weights) {
    SEER_CHECK(staged_model_ != nullptr, weights.id);
    const Status uploaded = forward_->set_weights(*device_, *staged_model_);
    model_ = std::exchange(staged_model_, nullptr);
    version_ = staged_version_;
    WeightResult result = weight_result(weights.id);
    result.status = uploaded;
    waiter_.put({.weights = std::move(result)});
  }
  WeightResult weight_result(uint64_t id) const {
    return {.id = id, .status = {}, .version = version_, .layout_hash = layout_hash()};
  }

  // ---- the waiting thread: makes results of what is over ----

  static void read_samples(const Pass& pass, const Sampled* sampled, StepResult& result) {
    for (size_t i = 0; i < pass.destinations.size(); ++i) {
      const Pass::Destination& to = pass.destinations[i];
      result.sampled[static_cast<size_t>(to.sequence)][static_cast<size_t>(to.sample)] = {sampled[i].token, sampled[i].logprob};
    }
  }

  void finish(InFlight& flight) {
    if (flight.weights) {
      done_.put({*std::move(flight.weights)});
      return;
    }
    const Status status = device_->wait(flight.event);
    if (flight.copy) {
      copies_over_ = flight.event;
      flight.copied.status = status;
      if (flight.copied.direction == CopyBatch::Direction::kExport)
        for (const BlockCopy& copy : flight.copy->blocks) flight.copied.crc32c.push_back(crc32c(copy.host));
      done_.put({std::move(flight.copied)});
      return;
    }
    StepResult& result = flight.step.result;
    if (status.ok()) {
      if (flight.sampled != nullptr) read_samples(flight.step.passes.back(), flight.sampled, result);
    } else {
      result = {.id = result.id, .status = status};
    }
    if (flight.sampled != nullptr) results_.put(flight.sampled);
    const int64_t now_us = wall_us();
    result.step_us = now_us - std::max(flight.start_us, std::exchange(last_over_us_, now_us));
    done_.put({std::move(result), flight.step.is_order});
  }

  uint64_t block_layout() const {
    uint64_t hash = kLayoutVersion;
    const ModelConfig& c = model_->config;
    for (const int32_t size : {c.layers, c.kv_heads, c.head_dim, static_cast<int32_t>(config_.block_tokens),
                               static_cast<int32_t>(config_.type)})
      hash = hash_pair(hash, static_cast<uint64_t>(size));
    return hash;
  }
  uint64_t layout_hash() const { return hash_pair(model_->weights_hash, block_layout()); }

  static constexpr int32_t kResultBuffers = 4;

  const CudaEngineConfig config_;
  const std::shared_ptr<ModelLoader> loader_;
  const PassLimits limits_;
  EngineInfo info_;    // this and the next two: used by the owner's thread
  DeviceSlots slots_;
  size_t open_ = 0;    // pieces of work whose results were not taken
  const std::shared_ptr<Staging> staging_ = std::make_shared<Staging>();

  std::shared_ptr<const Model> model_;  // from here on: used by the engine's thread, except as said
  std::shared_ptr<const Model> staged_model_;
  WeightVersion staged_version_, version_;
  const std::unique_ptr<Device> device_;  // also by the waiting thread
  const std::unique_ptr<CudaForward> forward_;
  std::array<Staged, 4> staged_;
  size_t next_staged_ = 0;
  std::vector<std::byte> plan_, new_plan_;  // on the device; memory for the next
  EventId last_step_ = 0;
  std::vector<std::pair<DeviceBlockId, EventId>> exporting_;
  std::atomic<EventId> copies_over_ = 0;  // set by the waiting thread
  int64_t last_over_us_ = 0;              // used by the waiting thread
  ResultBuffers results_;                 // used by both
  Outbox<Done> done_;
  // Last: they use the above. At the end, work that has not begun is dropped, and what is on the device is waited for.
  Workers<InFlight> waiter_{{}, [this](InFlight& flight) { finish(flight); }};
  Workers<Work> thread_{{}, [this](Work& work) { std::visit([this](auto& w) { run(w); }, work); }};
};

Status check_model(const Model& model, const CudaEngineConfig& config) {
  const ModelConfig& c = model.config;
  const bool f32 = config.type == CudaType::kF32;
  if (model.weight_type != WeightType::kAsStored)
    return fail(Code::kInvalidArgument, "cuda engine: computes weights as stored, not int8");
  if (!f32 && model.matrix_type != TensorType::kBf16)
    return fail(Code::kInvalidArgument, "cuda engine: ", model.folder, " has ", to_string(model.matrix_type),
                " weights; bf16 would round them, f32 keeps them");
  if (kv_dim(c, f32) == 0)
    return fail(Code::kInvalidArgument, "cuda engine: ", model.folder, " has heads of ", c.head_dim, " dimensions, at most 128 are known");
  if (c.heads / c.kv_heads > kTileRows)
    return fail(Code::kInvalidArgument, "cuda engine: ", model.folder, " has ", c.heads / c.kv_heads,
                " query heads per KV head, at most ", kTileRows, " are known");
  return {};
}

Status check_config(const CudaEngineConfig& config) {
  const auto expect = [](const char* field, int64_t value, int64_t least, int64_t most) -> Status {
    if (value >= least && value <= most) return {};
    return fail(Code::kInvalidArgument, "cuda engine: ", field, " is ", value, ", expected ", least, " to ", most);
  };
  if (config.block_tokens < 16 || config.block_tokens > 4096 || config.block_tokens % 16 != 0)
    return fail(Code::kInvalidArgument, "cuda engine: block_tokens is ", config.block_tokens,
                ", expected a multiple of 16 up to 4096");
  SEER_RETURN_IF_ERROR(expect("device_blocks", config.device_blocks, 0, std::numeric_limits<int32_t>::max()));
  SEER_RETURN_IF_ERROR(expect("slots_max", config.slots_max, 1, 1 << 16));
  SEER_RETURN_IF_ERROR(expect("rows_max", config.rows_max, kSamplesMax, 1 << 15));
  return expect("row_splits_max", config.row_splits_max, 1, 1 << 24);
}

}  // namespace

int64_t cuda_kv_block_bytes(const ModelConfig& model, const CudaEngineConfig& config) {
  return kv_block_bytes(model, config.type == CudaType::kF32, static_cast<int32_t>(config.block_tokens));
}

Result<std::unique_ptr<Engine>> make_cuda_engine(std::shared_ptr<const Model> model, std::unique_ptr<Device> device,
                                                 const CudaEngineConfig& config) {
  SEER_CHECK(model != nullptr);
  SEER_CHECK(device != nullptr);
  SEER_RETURN_IF_ERROR(check_config(config));
  SEER_RETURN_IF_ERROR(check_model(*model, config));
  const int64_t block_bytes = cuda_kv_block_bytes(model->config, config), fitting = config.kv_bytes / block_bytes;
  if (config.device_blocks == 0 && fitting < 1)
    return fail(Code::kInvalidArgument, "cuda engine: kv_bytes is ", config.kv_bytes, ", one KV block of ",
                config.block_tokens, " tokens of this model needs ", block_bytes);
  ForwardConfig forward{.f32 = config.type == CudaType::kF32,
                        .block_tokens = static_cast<int32_t>(config.block_tokens),
                        .slots = 2 * config.slots_max,
                        .rows_max = config.rows_max,
                        .graphs = config.graphs};
  forward.blocks = config.device_blocks > 0 ? config.device_blocks
                                            : static_cast<int32_t>(std::min<int64_t>(fitting, std::numeric_limits<int32_t>::max()));
  const int64_t context_blocks = model->config.context_tokens_max / config.block_tokens + 1;
  forward.table_stride = static_cast<int32_t>(std::min<int64_t>(context_blocks, forward.blocks));
  const int32_t splits = (forward.table_stride * forward.block_tokens + kSplit - 1) / kSplit;
  forward.row_splits_max = std::max(config.row_splits_max, splits);  // at least one row of the longest context

  DeviceMemory memory;
  auto kernels = std::make_unique<CudaForward>(*model, forward, memory);
  SEER_RETURN_IF_ERROR(memory.reserve(*device));
  memory.clear(*device);
  SEER_RETURN_IF_ERROR(kernels->begin(*device, *model));
  auto engine = std::make_unique<CudaEngine>(std::move(model), std::move(device), std::move(kernels), forward, config);
  SEER_RETURN_IF_ERROR(engine->reserve_staging());
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace seer
