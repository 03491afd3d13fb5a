#include "gpu/cpu/cpu_engine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

#include "gpu/cpu/cpu_isa.h"
#include "gpu/cpu/denormals.h"
#include "gpu/cpu/forward.h"
#include "gpu/model/engine_weights.h"
#include "gpu/order_checks.h"
#include "protocols/check.h"
#include "protocols/cpu_time.h"
#include "protocols/hash.h"
#include "protocols/kv.h"
#include "protocols/workers.h"

namespace seer {
namespace {

// Changes when the bytes of a KV block change their meaning, or when the arithmetic that makes them changes.
constexpr uint64_t kLayoutVersion = 1;

int64_t wall_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

KvLayout kv_cache_layout(const ModelConfig& model, const CpuEngineConfig& config) {
  return {.layers = model.layers,
          .kv_heads = model.kv_heads,
          .head_dim = model.head_dim,
          .block_tokens = static_cast<int32_t>(config.block_tokens),
          .bf16 = config.kv_type == KvType::kBf16};
}

class CpuEngine final : public Engine {
 public:
  CpuEngine(std::shared_ptr<const Model> model, const CpuKernels& kernels, KvCache cache, const CpuEngineConfig& config,
            const std::vector<int32_t>& cores)
      : cache_(std::move(cache)),
        weights_(std::move(model), config.version, kv_layout(), config.loader,
                 [this](EngineWeights::Loaded loaded) { thread_.put(std::move(loaded)); }),
        pool_(config.threads, cores),
        forward_(*weights_.running(), kernels, cache_, pool_),
        thread_({.on_start = [core = cores.empty() ? -1 : cores[0]] { if (core >= 0) pin_thread(core); }},
                [this](Work& work) { run_work(work); }) {
    const KvLayout& layout = cache_.layout();
    weights_.describe(info_);
    info_.block_tokens = static_cast<uint32_t>(layout.block_tokens);
    info_.block_bytes = layout.block_bytes();
    info_.device_blocks = cache_.blocks();
    info_.orders_max = 2;
  }
  ~CpuEngine() override { weights_.close(); }

  const EngineInfo& info() const override { return info_; }

  void set_notify(std::function<void()> notify) override { results_.set_wake(std::move(notify)); }

  void submit(EngineWork work) override {
    SEER_CHECK(open_ < info_.queue_max, open_);
    ++open_;
    if (auto* const step = std::get_if<StepBatch>(&work)) {
      for (const SequenceStep& sequence : step->sequences) {
        check_rows(step->id, sequence, info_);
        check_contents(step->id, sequence, info_);
      }
      thread_.put(std::move(*step));
    } else if (auto* const copy = std::get_if<CopyBatch>(&work)) {
      check_copy(*copy, info_);
      thread_.put(std::move(*copy));
    } else if (auto* const weights = std::get_if<StageWeights>(&work)) {
      weights_.stage(*weights);
    } else {
      thread_.put(std::get<SwitchWeights>(work));
    }
  }

  std::vector<EngineResult> take_results() override {
    std::vector<EngineResult> results = results_.take();
    open_ -= results.size();
    for (const EngineResult& result : results)
      if (const auto* weights = std::get_if<WeightResult>(&result)) take_over(*weights, info_);
    return results;
  }

 private:
  using Work = std::variant<StepBatch, CopyBatch, EngineWeights::Loaded, SwitchWeights>;

  void run_work(Work& work) {
    begun_cpu_ns_ = thread_cpu_ns();
    results_.put(std::visit(
        [this](auto& w) -> EngineResult {
          const FlushDenormals flush;
          return run(w);
        },
        work));
  }

  StepResult run(StepBatch& batch) {
    const int64_t start_us = wall_us();
    StepResult result;
    result.id = batch.id;
    result.version = weights_.version();
    feed(batch);
    result.sampled = forward_.run(batch);
    result.kept = forward_.take_kept();
    last_tokens_.clear();
    for (const auto& sampled : result.sampled) last_tokens_.push_back(sampled.empty() ? 0 : sampled.back().token);
    result.step_us = wall_us() - start_us;
    result.cpu_us = take_cpu_us();
    result.spent = std::move(batch.sequences);
    return result;
  }

  /// Fills in the tokens that were not known when their rows were queued.
  void feed(StepBatch& batch) const {
    for (SequenceStep& s : batch.sequences)
      if (s.fed_by >= 0) s.tokens[0] = std::max(0, last_tokens_[static_cast<size_t>(s.fed_by)]);  // instead of kNotFinite
  }

  CopyResult run(const CopyBatch& batch) {
    CopyResult result;
    result.id = batch.id;
    result.direction = batch.direction;
    for (const BlockCopy& copy : batch.blocks) {
      const std::span<std::byte> memory = cache_.block(copy.block);
      if (batch.direction == CopyBatch::Direction::kExport) {
        std::memcpy(copy.host.data(), memory.data(), memory.size());
        result.crc32c.push_back(crc32c(copy.host));
      } else {
        const uint32_t found = crc32c(copy.host);
        if (found == copy.crc32c) std::memcpy(memory.data(), copy.host.data(), memory.size());
        result.crc32c.push_back(found);
      }
    }
    result.cpu_us = take_cpu_us();
    return result;
  }

  WeightResult run(EngineWeights::Loaded& loaded) { return weights_.keep(std::move(loaded)); }

  WeightResult run(const SwitchWeights& weights) {
    const std::shared_ptr<const Model> staged = weights_.staged();
    SEER_CHECK(staged != nullptr, weights.id);
    forward_.set_weights(*staged);
    return weights_.switch_to_staged(weights.id);
  }

  uint64_t kv_layout() const {
    const KvLayout& layout = cache_.layout();
    uint64_t hash = kLayoutVersion;
    for (const int32_t size : {layout.layers, layout.kv_heads, layout.head_dim, layout.block_tokens, layout.bf16 ? 1 : 0})
      hash = hash_pair(hash, static_cast<uint64_t>(size));
    return hash;
  }

  /// CPU time of the engine's threads for the work that runs. REQUIRES: called by the engine's thread.
  int64_t take_cpu_us() {
    const int64_t workers_us = pool_.workers_cpu_us();
    return (thread_cpu_ns() - begun_cpu_ns_) / 1000 + workers_us - std::exchange(workers_reported_us_, workers_us);
  }

  KvCache cache_;
  EngineWeights weights_;
  std::vector<int32_t> last_tokens_;  // per sequence of the last step, what it sampled last; used by the engine's thread only
  ThreadPool pool_;
  CpuForward forward_;  // uses all of the above
  EngineInfo info_;
  int64_t begun_cpu_ns_ = 0, workers_reported_us_ = 0;  // used by the engine's thread only

  size_t open_ = 0;  // pieces of work whose results were not taken
  Outbox<EngineResult> results_;
  Workers<Work> thread_;  // last: it uses all of the above. At the end, work that has not begun is dropped
};

}  // namespace

int64_t kv_block_bytes(const ModelConfig& model, const CpuEngineConfig& config) {
  return kv_cache_layout(model, config).block_bytes();
}

Result<std::unique_ptr<Engine>> make_cpu_engine(std::shared_ptr<const Model> model, const CpuEngineConfig& config) {
  SEER_CHECK(model != nullptr);
  if (config.threads < 1 || config.threads > 256)
    return fail(Code::kInvalidArgument, "cpu engine: threads is ", config.threads, ", expected 1 to 256");
  std::vector<int32_t> cores;
  if (config.first_core >= 0) {
    cores = usable_cores();
    if (config.first_core + config.threads > std::ssize(cores))
      return fail(Code::kInvalidArgument, "cpu engine: ", config.threads, " threads pinned from core ",
                  config.first_core, " on need ", config.first_core + config.threads, " cores, this process may use ",
                  cores.size());
    cores = {cores.begin() + config.first_core, cores.begin() + config.first_core + config.threads};
  }
  if (config.block_tokens < 16 || config.block_tokens > 4096 || config.block_tokens % kTilePositions != 0)
    return fail(Code::kInvalidArgument, "cpu engine: block_tokens is ", config.block_tokens,
                ", expected a multiple of 16 up to 4096");
  if (config.device_blocks < 0)
    return fail(Code::kInvalidArgument, "cpu engine: device_blocks is ", config.device_blocks, ", expected 0 or more");
  const Result<CpuIsa> isa = resolve_cpu_isa(config.isa);
  if (!isa.ok()) return fail(isa.error().code, "cpu engine: ", isa.error().detail);

  const KvLayout layout = kv_cache_layout(model->config, config);
  const int64_t fitting = config.kv_bytes / layout.block_bytes();
  if (config.device_blocks == 0 && fitting < 1)
    return fail(Code::kInvalidArgument, "cpu engine: kv_bytes is ", config.kv_bytes, ", one KV block of ",
                config.block_tokens, " tokens of this model needs ", layout.block_bytes());
  const auto blocks = config.device_blocks > 0
                          ? config.device_blocks
                          : static_cast<int32_t>(std::min<int64_t>(fitting, std::numeric_limits<int32_t>::max()));
  KvCache cache(layout, blocks);
  if (cache.blocks() == 0)
    return fail(Code::kFull, "cpu engine: the system has no memory for ", blocks, " KV blocks of ",
                layout.block_bytes(), " bytes");
  return std::unique_ptr<Engine>(
      std::make_unique<CpuEngine>(std::move(model), *cpu_kernels(*isa), std::move(cache), config, cores));
}

}  // namespace seer
