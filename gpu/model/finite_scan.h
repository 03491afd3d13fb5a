// Looks for weights that are NaN or infinite. One such weight turns every logit into NaN, so they are searched for when
// a model is loaded, over bytes that are in the core's cache because they are about to be packed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "gpu/model/safetensors.h"

namespace seer {

/// Index of the first element that is NaN or infinite; -1 if there is none. REQUIRES: `type` is F32, F16 or BF16 and
/// `bytes` are whole elements (they need no alignment).
int64_t first_not_finite(std::span<const std::byte> bytes, TensorType type);

}  // namespace seer
