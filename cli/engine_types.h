// Option values that name types and sizes of the engine. config.cpp has checked that the values are known.
#pragma once
#include <string>

#include "gpu/cpu/cpu_engine.h"
#include "gpu/model/weight_store.h"

namespace seer {

inline KvType kv_type_of(const std::string& kv_dtype) { return kv_dtype == "f32" ? KvType::kF32 : KvType::kBf16; }
inline WeightType weight_type_of(const std::string& weights) {
  return weights == "int8" ? WeightType::kInt8 : WeightType::kAsStored;
}

/// Whether --kv-bytes has room for a KV block. Errors: kInvalidArgument, naming the flag.
inline Status check_kv_bytes(int64_t kv_bytes, const ModelConfig& model, const CpuEngineConfig& config) {
  const int64_t block_bytes = kv_block_bytes(model, config);
  if (kv_bytes >= block_bytes) return {};
  return fail(Code::kInvalidArgument, "--kv-bytes ", kv_bytes, ": expected room for a KV block; one of ", config.block_tokens,
              " tokens of this model needs ", block_bytes);
}

}  // namespace seer
