#include "gpu/order_checks.h"

#include <iterator>

#include "protocols/check.h"

namespace seer {
namespace {

void check_tree(uint64_t order, const SequenceStep& step) {
  const int64_t rows = std::ssize(step.tokens);
  SEER_CHECK(std::ssize(step.parents) == rows, order, step.parents.size(), rows);
  SEER_CHECK(step.sample_rows == rows && step.targets.empty(), order, step.sample_rows, rows);
  for (int32_t row = 0; row < rows; ++row) {
    const int32_t parent = step.parents[static_cast<size_t>(row)];
    SEER_CHECK(row == 0 ? parent == -1 : parent >= 0 && parent < row, order, row, parent);
  }
}

}  // namespace

void check_rows(uint64_t order, const SequenceStep& step, const EngineInfo& info) {
  const int64_t rows = std::ssize(step.tokens);
  SEER_CHECK(rows > 0, order);
  SEER_CHECK(step.start >= 0, order, step.start);
  SEER_CHECK(std::ssize(step.blocks) * info.block_tokens >= step.start + rows, order, step.blocks.size());
  SEER_CHECK(step.sample_rows >= 0 && step.sample_rows <= rows, order, step.sample_rows, rows);
  if (!step.parents.empty()) check_tree(order, step);
}

void check_contents(uint64_t order, const SequenceStep& step, const EngineInfo& info) {
  for (DeviceBlockId b : step.blocks) SEER_CHECK(b >= 0 && b < info.device_blocks, order, b);
  for (int32_t t : step.tokens) SEER_CHECK(t >= 0 && t < info.vocab_size, order, t);
  if (step.sample_rows == 0) return;
  SEER_CHECK(step.sampling != nullptr, order);
  SEER_CHECK(step.targets.empty() || std::ssize(step.targets) == step.sample_rows, order, step.targets.size());
  for (int32_t t : step.targets) SEER_CHECK(t >= 0 && t < info.vocab_size, order, t);
  if (step.sampling->repetition_penalty != 1.0f && step.targets.empty())
    SEER_CHECK(std::ssize(step.history) == step.start, order, step.history.size(), step.start);
}

void check_copy(const CopyBatch& batch, const EngineInfo& info) {
  for (const BlockCopy& copy : batch.blocks) {
    SEER_CHECK(copy.block >= 0 && copy.block < info.device_blocks, batch.id, copy.block);
    SEER_CHECK(std::ssize(copy.host) == info.block_bytes, batch.id, copy.host.size());
  }
}

}  // namespace seer
