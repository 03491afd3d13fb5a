// Checks of what an engine is asked for. They end the process: who orders is the process itself, so what breaks the contract of
// engine.h is a bug. Used by CpuEngine and CudaEngine. Pure, thread-safe.
#pragma once
#include <cstdint>

#include "gpu/engine.h"

namespace seer {

/// Its rows, blocks and samples must fit together. `order` is named in the message.
void check_rows(uint64_t order, const SequenceStep& step, const EngineInfo& info);
/// Its blocks, tokens, targets and history must be there.
void check_contents(uint64_t order, const SequenceStep& step, const EngineInfo& info);
void check_copy(const CopyBatch& batch, const EngineInfo& info);

}  // namespace seer
