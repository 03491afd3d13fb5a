// Option values that name types of the engine. config.cpp has checked that the values are known.
#pragma once
#include <string>

#include "gpu/cpu_engine.h"
#include "gpu/weight_store.h"

namespace seer {

inline KvType kv_type_of(const std::string& kv_dtype) { return kv_dtype == "f32" ? KvType::kF32 : KvType::kBf16; }
inline WeightType weight_type_of(const std::string& weights) {
  return weights == "int8" ? WeightType::kInt8 : WeightType::kAsStored;
}

}  // namespace seer
