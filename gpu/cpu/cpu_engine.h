// CpuEngine: the real engine on the processor. Loads a model (weight_store.h) once, keeps a paged KV cache and runs
// steps of any mix of prefill, decode and verify rows on a thread of its own. Exact: the tokens and log-probabilities
// of a sequence are the same bits whatever the batch, the chunking, the block table, the number of threads and the
// instruction set. See engine.h for the seam.
#pragma once
#include <array>
#include <memory>

#include "gpu/cpu/kernels.h"
#include "gpu/engine.h"
#include "gpu/model/model_loader.h"
#include "gpu/model/weight_store.h"

namespace seer {

enum class KvType : uint8_t { kBf16, kF32 };
inline constexpr std::array<const char*, 2> kKvTypeNames{"bf16", "f32"};  // by value

struct CpuEngineConfig {
  int32_t threads = 1;           // threads that compute, the engine's own included; 1..256
  int32_t first_core = -1;       // >= 0: its threads are pinned, one each, to the cores from this one on, counted among
                                 // those that the process may use
  int64_t kv_bytes = 256 << 20;  // memory for KV blocks; used if device_blocks is 0
  int32_t device_blocks = 0;     // KV blocks, or 0: as many as fit in kv_bytes
  uint32_t block_tokens = 16;    // a multiple of 16
  KvType kv_type = KvType::kBf16;
  CpuIsa isa = CpuIsa::kAuto;  // which kernels (cpu_isa.h); all give the same bits
  WeightVersion version{1};    // of the model that it starts with
  /// Loads new weights; engines that share it share them. Null: the engine gets one of its own.
  std::shared_ptr<ModelLoader> loader = nullptr;
};

/// Bytes of one KV block of an engine with this config.
int64_t kv_block_bytes(const ModelConfig& model, const CpuEngineConfig& config);

/// An engine for this model; several may share it.
/// Errors: kInvalidArgument (a field of the config, for kv_bytes with the least that works; SEER_CPU_ISA),
/// kUnavailable (this processor lacks the instruction set), kFull (the system lacks the memory).
Result<std::unique_ptr<Engine>> make_cpu_engine(std::shared_ptr<const Model> model, const CpuEngineConfig& config);

}  // namespace seer
