// Checks that a KV cache is large enough for a model. Used by `seer rollout`, `node` and `score`.
#pragma once
#include <cstdint>

#include "protocols/result.h"

namespace seer {

/// Checks that --kv-bytes has room for a KV block. Errors: kInvalidArgument, naming the flag.
inline Status check_kv_bytes(int64_t kv_bytes, int64_t block_bytes, int64_t block_tokens) {
  if (kv_bytes >= block_bytes) return {};
  return fail(Code::kInvalidArgument, "--kv-bytes ", kv_bytes, ": expected room for a KV block; one of ", block_tokens,
              " tokens of this model needs ", block_bytes);
}

}  // namespace seer
