#include "gpu/cuda/cuda_engine.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "gpu/cuda/communicator.h"
#include "gpu/cuda/cuda_forward.h"
#include "gpu/cuda/cuda_rank.h"
#include "gpu/cuda/step_plan.h"
#include "gpu/model/engine_weights.h"
#include "gpu/order_checks.h"
#include "gpu/slot_table.h"
#include "protocols/check.h"
#include "protocols/hash.h"
#include "protocols/kv.h"

namespace seer {
namespace {

using namespace cuda;

// Changes when the bytes of a KV block change their meaning, or when the arithmetic that makes them changes.
constexpr uint64_t kLayoutVersion = 0x63756461'00000003;

constexpr int64_t kSumsShare = 64;  // of the KV's memory, that partial sums of attention may have

uint64_t kv_layout_of(const ModelConfig& c, const CudaEngineConfig& config, int32_t sum_parts, const std::vector<std::unique_ptr<Device>>& devices) {
  const size_t ranks = devices.size();
  const DeviceProperties& device = devices.front()->properties();
  uint64_t hash = hash_pair(kLayoutVersion, static_cast<uint64_t>(device.compute_major * 100 + device.compute_minor));  // other chips round otherwise
  for (const int32_t size : {c.layers, c.kv_heads, c.head_dim, static_cast<int32_t>(config.block_tokens), static_cast<int32_t>(config.type)})
    hash = hash_pair(hash, static_cast<uint64_t>(size));
  // Sums in other parts have other bits, and ranks have their bytes one after the other.
  if (sum_parts > 1) hash = hash_pair(hash_pair(hash, static_cast<uint64_t>(sum_parts)), ranks);
  return hash;
}

/// A slot table that remembers what the device has not been told.
class DeviceSlots final : public SlotTable {
 public:
  DeviceSlots(const EngineInfo& info, int32_t slots_max) : SlotTable(info), info_(info), slots_max_(slots_max) {}

  void join(int32_t slot, const SequenceStep& step, const std::optional<StepsLimit>& limit) override {
    SEER_CHECK(slot >= 0 && slot < slots_max_, slot, slots_max_);
    SlotTable::join(slot, step, limit);
    changes_.drop_slot(slot);
    changes_.add_sequence(slot, step, static_cast<int32_t>(info_.block_tokens), info_.eos_ids);
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
  CudaEngine(std::shared_ptr<const Model> model, const ForwardConfig& forward, const CudaEngineConfig& config, uint64_t kv_layout)
      : config_(config),
        limits_{.rows = config.rows_max,
                .row_splits = forward.row_splits_max,
                .splits_all = forward.f32,  // its kernel has no tiles
                .sequences = config.slots_max,
                .tile_tokens = kTileRows / (model->config.heads / model->config.kv_heads),
                .tree_rows = config.tree_rows_max},
        slots_(info_, config.slots_max),
        weights_(model, config.version, kv_layout, config.loader,
                 [this](EngineWeights::Loaded loaded) { begin_upload(std::move(loaded)); }) {
    weights_.describe(info_);
    info_.block_tokens = config.block_tokens;
    info_.block_bytes = cuda_kv_block_bytes(model->config, config);
    info_.device_blocks = forward.blocks;
    info_.orders_max = 2;
  }
  ~CudaEngine() override {
    weights_.close();
    for (const auto& rank : ranks_) rank->stop();
    while (!ranks_.empty()) ranks_.pop_back();  // the first has memory that serves all
  }

  /// REQUIRES: called for each rank, in order, before any work.
  Status add_rank(std::unique_ptr<Device> device, std::unique_ptr<Communicator> peers, std::unique_ptr<CudaForward> forward) {
    const CudaRank::Config config{.rows_max = config_.rows_max, .block_bytes = forward->block_bytes(), .version = config_.version};
    ranks_.push_back(std::make_unique<CudaRank>(std::move(device), std::move(peers), std::move(forward), config,
                                                [this](Job& job) { std::visit([&](auto& work) { finish(job, work); }, job.work); }));
    return ranks_.back()->reserve_staging();
  }

  const EngineInfo& info() const override { return info_; }
  void set_notify(std::function<void()> notify) override { done_.set_wake(std::move(notify)); }
  StepRun* step_run() override { return &slots_; }

  void submit(EngineWork work) override {
    SEER_CHECK(open_ < info_.queue_max, open_);
    ++open_;
    if (auto* const batch = std::get_if<StepBatch>(&work)) {
      put(plan_rows(*batch));
    } else if (const auto* const order = std::get_if<StepOrder>(&work)) {
      put(plan_order(order->id));
    } else if (auto* const copy = std::get_if<CopyBatch>(&work)) {
      check_copy(*copy, info_);
      const auto job = std::make_shared<Job>(static_cast<int32_t>(ranks_.size()));
      auto& copied = job->work.emplace<CopyWork>();
      copied.result.id = copy->id;
      copied.result.direction = copy->direction;
      copied.batch = std::move(*copy);
      for (const auto& rank : ranks_) rank->put(job);
    } else if (auto* const weights = std::get_if<StageWeights>(&work)) {
      weights_.stage(*weights);
    } else {
      put(SwitchWork{std::get<SwitchWeights>(work).id, weights_.staged(), weights_.staged_version()});
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
        take_over(*weights, info_);
      }
      results.push_back(std::move(done.result));
    }
    return results;
  }

 private:
  struct Done {
    EngineResult result;
    bool is_order = false;
  };

  // ---- the owner's thread: what a step is ----

  StepWork plan_order(uint64_t id) {
    StepWork work;
    work.is_order = true;
    work.result.id = id;
    std::vector<PlannedSequence> planned;
    for (const int32_t slot : slots_.begin_order()) {
      const SequenceStep& next = slots_.next(slot);
      check_sequence(id, next);
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
        pass.changes.add_sequence(p.slot, *p.step, static_cast<int32_t>(config_.block_tokens), info_.eos_ids);
      }
      pass.changes.unite_logs();
    }
    work.result.spent = std::move(batch.sequences);
    return work;
  }

  void finish_plan(StepWork& work, const std::vector<PlannedSequence>& planned) {
    const auto block_tokens = static_cast<int64_t>(config_.block_tokens);
    const bool gives_kept = std::ranges::any_of(planned, [](const PlannedSequence& p) { return p.step->gives_kept(); });
    for (const PlannedSequence& p : planned) {
      if (gives_kept) work.result.kept.emplace_back(p.step->gives_kept() ? static_cast<size_t>(p.step->sample_rows) : 0);
      work.result.sampled.emplace_back(static_cast<size_t>(p.step->sample_rows));
      const int64_t end = p.step->start + std::ssize(p.step->tokens);
      for (int64_t block = p.step->start / block_tokens; block * block_tokens < end; ++block)
        work.written.push_back(p.step->blocks[static_cast<size_t>(block)]);
    }
    work.passes = plan_passes(planned, limits_);
  }

  void check_sequence(uint64_t id, const SequenceStep& s) const {
    check_rows(id, s, info_);
    const int64_t rows = std::ssize(s.tokens);
    if (!s.parents.empty()) SEER_CHECK(rows <= std::min(config_.tree_rows_max, kTreeRows), id, rows, config_.tree_rows_max);
    if (s.fed_by < 0) check_contents(id, s, info_);  // others were checked when they joined
  }

  // ---- any thread: jobs for the ranks, and their results ----

  template <class Work>
  void put(Work work) {
    const auto job = std::make_shared<Job>(static_cast<int32_t>(ranks_.size()));
    job->work.template emplace<Work>(std::move(work));
    for (const auto& rank : ranks_) rank->put(job);
  }

  void begin_upload(EngineWeights::Loaded loaded) {
    if (loaded.model.ok())
      put(UploadWork{std::move(loaded)});
    else
      done_.put({weights_.keep(std::move(loaded))});
  }

  void finish(Job& job, StepWork& work) {
    if (!job.status().ok()) work.result = {.id = work.result.id, .status = job.status()};
    done_.put({std::move(work.result), work.is_order});
  }
  void finish(Job& job, CopyWork& work) {
    work.result.status = job.status();
    if (work.batch.direction == CopyBatch::Direction::kExport)
      for (const BlockCopy& copy : work.batch.blocks) work.result.crc32c.push_back(crc32c(copy.host));
    done_.put({std::move(work.result)});
  }
  void finish(Job& job, UploadWork& work) {
    if (!job.status().ok()) work.loaded.model = job.status().error();
    done_.put({weights_.keep(std::move(work.loaded))});
  }
  void finish(Job& job, SwitchWork& work) {
    WeightResult result = weights_.switch_to_staged(work.id);
    result.status = job.status();
    done_.put({std::move(result)});
  }

  const CudaEngineConfig config_;
  const PassLimits limits_;
  EngineInfo info_;    // this and the next two: used by the owner's thread
  DeviceSlots slots_;
  size_t open_ = 0;    // pieces of work whose results were not taken
  EngineWeights weights_;
  Outbox<Done> done_;
  std::vector<std::unique_ptr<CudaRank>> ranks_;  // last: their threads use the above
};

Status check_model(const Model& model, const CudaEngineConfig& config) {
  const ModelConfig& c = model.config;
  const bool f32 = config.type == CudaType::kF32;
  if (model.weight_type != WeightType::kAsStored)
    return fail(Code::kInvalidArgument, "cuda engine: computes weights as stored, not ", kWeightTypeNames[static_cast<size_t>(model.weight_type)]);
  if (!f32 && model.matrix_type != TensorType::kBf16)
    return fail(Code::kInvalidArgument, "cuda engine: ", model.folder, " has ", to_string(model.matrix_type),
                " weights; bf16 would round them, f32 keeps them");
  if (kv_dim(c, f32) == 0)
    return fail(Code::kInvalidArgument, "cuda engine: ", model.folder, " has heads of ", c.head_dim, " dimensions, at most 128 are known");
  if (c.heads / c.kv_heads > kTileRows)
    return fail(Code::kInvalidArgument, "cuda engine: ", model.folder, " has ", c.heads / c.kv_heads,
                " query heads per KV head, at most ", kTileRows, " are known");
  if (c.vocab_size > kPartsMax * kPart)
    return fail(Code::kInvalidArgument, "cuda engine: ", model.folder, " has a vocabulary of ", c.vocab_size, ", at most ",
                kPartsMax * kPart, " are known");
  return {};
}

Status check_ranks(const Model& model, int32_t ranks, int32_t sum_parts) {
  const ModelConfig& c = model.config;
  for (const auto& [size, name] : {std::pair{c.heads, "query heads"}, {c.kv_heads, "KV heads"}, {c.intermediate_size, "intermediate_size"}})
    if (size % ranks != 0)
      return fail(Code::kInvalidArgument, "cuda engine: ", model.folder, ": ", name, " ", size, ", expected a multiple of the ", ranks, " GPUs");
  if (sum_parts % ranks != 0)
    return fail(Code::kInvalidArgument, "cuda engine: sum_parts is ", sum_parts, ", expected a multiple of the ", ranks, " GPUs");
  if (sum_parts == ranks) return {};
  for (const int32_t columns : {c.query_size(), c.intermediate_size})
    if (columns % (sum_parts * kGemmSteps) != 0)
      return fail(Code::kInvalidArgument, "cuda engine: sum_parts is ", sum_parts, ", but ", columns, " columns are not that many times ",
                  kGemmSteps);
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
  SEER_RETURN_IF_ERROR(expect("sum_parts", config.sum_parts, 0, 64));
  SEER_RETURN_IF_ERROR(expect("peer_timeout_us", config.peer_timeout_us, 1, int64_t{1} << 40));
  SEER_RETURN_IF_ERROR(expect("rows_max", config.rows_max, kSamplesMax, 1 << 15));
  if (config.tree_rows_max > 0) SEER_RETURN_IF_ERROR(expect("tree_rows_max", config.tree_rows_max, kTreeRows, config.rows_max));
  return expect("row_splits_max", config.row_splits_max, 0, kRowSplitsMost);
}

/// In bf16 four where the columns allow, so that a few rows keep a whole GPU busy; in f32 the CPU's one.
int32_t sum_parts_for(const ModelConfig& c, CudaType type, int32_t ranks) {
  if (type == CudaType::kBf16)
    for (const int32_t parts : {4, 2})
      if (parts % ranks == 0 && c.query_size() % (parts * kGemmSteps) == 0 && c.intermediate_size % (parts * kGemmSteps) == 0) return parts;
  return ranks;
}

/// What fits is not checked here.
Result<ForwardConfig> forward_config(const Model& model, const CudaEngineConfig& config, int32_t ranks) {
  const int64_t block_bytes = cuda_kv_block_bytes(model.config, config), fitting = config.kv_bytes / block_bytes;
  if (config.device_blocks == 0 && fitting < 1)
    return fail(Code::kInvalidArgument, "cuda engine: kv_bytes is ", config.kv_bytes, ", one KV block of ", config.block_tokens,
                " tokens of this model needs ", block_bytes);
  ForwardConfig forward{.f32 = config.type == CudaType::kF32,
                        .block_tokens = static_cast<int32_t>(config.block_tokens),
                        .slots = 2 * config.slots_max,
                        .rows_max = config.rows_max,
                        .graphs = config.graphs,
                        .sum_parts = config.sum_parts > 0 ? config.sum_parts : sum_parts_for(model.config, config.type, ranks),
                        .tree_rows_max = config.tree_rows_max};
  forward.blocks = config.device_blocks > 0 ? config.device_blocks
                                            : static_cast<int32_t>(std::min<int64_t>(fitting, std::numeric_limits<int32_t>::max()));
  const int64_t context_blocks = model.config.context_tokens_max / config.block_tokens + 1;
  forward.table_stride = static_cast<int32_t>(std::min<int64_t>(context_blocks, forward.blocks));
  const int32_t splits = (forward.table_stride * forward.block_tokens + kSplit - 1) / kSplit;
  const int64_t sums_bytes = int64_t{model.config.heads} * (forward.f32 ? kSplit : kv_dim(model.config, false) + 2) * 4;  // of a row and split
  const int32_t row_splits = config.row_splits_max > 0
                                 ? config.row_splits_max
                                 : row_splits_for(config.slots_max, splits, forward.blocks * block_bytes / kSumsShare / sums_bytes);
  // At least one row of the longest context, or one tree.
  forward.row_splits_max = std::max(row_splits, splits * (config.tree_rows_max > 0 ? kTreeRows : 1));
  return forward;
}

Status check_alike(const std::vector<std::unique_ptr<Device>>& devices) {
  const DeviceProperties& first = devices.front()->properties();
  for (const auto& device : devices) {
    const DeviceProperties& other = device->properties();
    if (other.compute_major != first.compute_major || other.compute_minor != first.compute_minor)
      return fail(Code::kInvalidArgument, "cuda engine: ", first.name, " and ", other.name, " cannot share an instance: expected GPUs of one compute capability");
  }
  return {};
}

Result<ForwardConfig> check_all(const Model& model, const CudaEngineConfig& config, int32_t ranks) {
  SEER_RETURN_IF_ERROR(check_config(config));
  SEER_RETURN_IF_ERROR(check_model(model, config));
  SEER_ASSIGN_OR_RETURN(const ForwardConfig forward, forward_config(model, config, ranks));
  SEER_RETURN_IF_ERROR(check_ranks(model, ranks, forward.sum_parts));
  return forward;
}

}  // namespace

int64_t cuda_kv_block_bytes(const ModelConfig& model, const CudaEngineConfig& config) {
  return kv_block_bytes(model, config.type == CudaType::kF32, static_cast<int32_t>(config.block_tokens));
}

Result<int64_t> cuda_kv_bytes_that_fit(const Model& model, const CudaEngineConfig& config, int32_t ranks, int64_t device_bytes) {
  const auto needed = [&](int64_t blocks) -> Result<int64_t> {
    CudaEngineConfig asked = config;
    asked.device_blocks = static_cast<int32_t>(blocks);
    SEER_ASSIGN_OR_RETURN(const ForwardConfig forward, check_all(model, asked, ranks));
    return CudaForward::bytes_needed(model, forward, ranks, config.weights_beside);
  };
  SEER_ASSIGN_OR_RETURN(const int64_t least, needed(1));
  if (least > device_bytes)
    return fail(Code::kFull, "cuda engine: needs ", least, " bytes with one KV block, and ", device_bytes, " are to be used of each GPU");
  const int64_t block_bytes = cuda_kv_block_bytes(model.config, config);
  int64_t fits = 1, too_many = std::min<int64_t>(device_bytes / (block_bytes / ranks), std::numeric_limits<int32_t>::max() - 1) + 1;
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    SEER_ASSIGN_OR_RETURN(const int64_t bytes, needed(middle));
    (bytes <= device_bytes ? fits : too_many) = middle;
  }
  return fits * block_bytes;
}

Result<std::unique_ptr<Engine>> make_cuda_engine(std::shared_ptr<const Model> model, std::vector<std::unique_ptr<Device>> devices,
                                                 const CudaEngineConfig& config) {
  SEER_CHECK(model != nullptr);
  SEER_CHECK(!devices.empty());
  const auto ranks = static_cast<int32_t>(devices.size());
  SEER_ASSIGN_OR_RETURN(const ForwardConfig forward, check_all(*model, config, ranks));
  SEER_RETURN_IF_ERROR(check_alike(devices));

  std::vector<std::unique_ptr<Communicator>> peers(devices.size());
  if (ranks > 1) {
    std::vector<Device*> all;
    for (const auto& device : devices) all.push_back(device.get());
    const CommunicatorConfig communicator{.bytes_max = gather_bytes_max(model->config, forward, ranks), .timeout_us = config.peer_timeout_us};
    SEER_ASSIGN_OR_RETURN(peers, make_communicators(all, communicator));
  }
  const uint64_t kv_layout = kv_layout_of(model->config, config, forward.sum_parts, devices);
  auto engine = std::make_unique<CudaEngine>(model, forward, config, kv_layout);
  // All ranks alike: those whose weights moved capture their graphs again, with gathers that need the others.
  const bool beside = config.weights_beside &&
                      std::ranges::all_of(devices, [&](const auto& device) { return CudaForward::fits_beside(*model, forward, ranks, *device); });
  for (size_t i = 0; i < devices.size(); ++i) {
    SEER_ASSIGN_OR_RETURN(auto kernels, CudaForward::make(*model, forward, peers[i].get(), *devices[i], beside));
    SEER_RETURN_IF_ERROR(engine->add_rank(std::move(devices[i]), std::move(peers[i]), std::move(kernels)));
  }
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace seer
