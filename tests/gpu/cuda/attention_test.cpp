// The attention kernels by themselves, on the emulation or on a GPU: sums of a row in f32, before anything rounds them away.
#include <cmath>
#include <cstring>
#include <numeric>

#include "gpu/cuda/cuda_forward.h"
#include "gpu/cuda/gemm_rows.h"

namespace seer {
namespace {

using namespace cuda;  // NOLINT: a test of its kernels

/// One sequence whose tokens at the positions [first, first + rows) attend to random KV, with scores of tens.
class AttentionBench {
 public:
  static constexpr int32_t kHeads = 4, kKvHeads = 2, kGroup = kHeads / kKvHeads, kBlockTokens = 16;

  AttentionBench(int32_t dim, int32_t first, int32_t rows)
      : dim_(dim), first_(first), rows_(rows), splits_((first + rows - 1) / kSplit + 1), device_(simt::make_simt_device({})) {
    const int32_t blocks = (first + rows - 1) / kBlockTokens + 1;
    kv_ = put_on(*device_, random_bf16(static_cast<size_t>(blocks * block_elements()), 1));
    query_ = put_on(*device_, random_bf16(static_cast<size_t>(rows * kHeads * dim), 2));
    std::vector<int32_t> table(static_cast<size_t>(blocks));
    std::iota(table.begin(), table.end(), 0);
    tables_ = put_on(*device_, table);
    std::vector<RowState> states;
    for (int32_t i = 0; i < rows; ++i)
      states.push_back({.slot = 0, .position = first + i, .token = 0, .block = 0, .place = first + i, .root = 0x7fffffff, .parent = -1, .tree = -1});
    states_ = put_on(*device_, states);
    partial_ = *device_->allocate(partial_bytes());
    stats_ = *device_->allocate(stats_bytes());
    plan_ = *device_->allocate(CudaForward::plan_bytes(rows));
    host_ = *device_->allocate_pinned(partial_bytes() + stats_bytes());
  }

  /// Attends with `together` rows in each tile. Returns the sums of every row for the splits that it sees.
  std::vector<uint32_t> run(int32_t together) {
    Pass pass;
    pass.rows.resize(static_cast<size_t>(rows_));
    pass.split_rows = rows_;
    for (int32_t i = 0; i < rows_; i += together) pass.tiles.push_back({.first_row = i, .rows = std::min(together, rows_ - i), .first_split_row = i});
    std::vector<std::byte> plan(static_cast<size_t>(CudaForward::plan_bytes(rows_)));
    device_->copy_in(Stream::kSteps, plan_, plan.data(), CudaForward::write_plan(pass, plan.data()));
    device_->clear(Stream::kSteps, partial_, partial_bytes());
    device_->clear(Stream::kSteps, stats_, stats_bytes());
    const KernelId kernel = dim_ == 32 ? KernelId::k_attention_32 : dim_ == 64 ? KernelId::k_attention_64 : KernelId::k_attention_128;
    device_->launch(Stream::kSteps, kernel, {splits_, kKvHeads, static_cast<int32_t>(std::ssize(pass.tiles))},
                    AttentionArgs{.plan = reinterpret_cast<const Plan*>(plan_), .rows = reinterpret_cast<const RowState*>(states_),
                                  .tables = reinterpret_cast<const int32_t*>(tables_), .query = query_, .kv = kv_, .paths = nullptr,
                                  .out = nullptr, .partial = reinterpret_cast<float*>(partial_), .stats = stats_,
                                  .kv_block_elements = block_elements(), .kv_layer_elements = 0, .table_stride = 64,
                                  .block_tokens = kBlockTokens, .heads = kHeads, .kv_heads = kKvHeads, .head_dim = dim_,
                                  .padded_dim = dim_, .splits = splits_, .out_stride = kHeads * dim_,
                                  .scale = 1.44269504f / std::sqrt(static_cast<float>(dim_))});
    device_->copy_out(Stream::kSteps, host_, partial_, partial_bytes());
    device_->copy_out(Stream::kSteps, host_ + partial_bytes(), stats_, stats_bytes());
    const Status status = device_->wait(device_->record(Stream::kSteps));
    REQUIRE_MESSAGE(status.ok(), status.error().detail);
    return seen_splits();
  }

 private:
  int64_t block_elements() const { return int64_t{2} * kKvHeads * kBlockTokens * dim_; }
  int64_t partial_bytes() const { return int64_t{4} * rows_ * kHeads * splits_ * dim_; }
  int64_t stats_bytes() const { return int64_t{8} * rows_ * kHeads * splits_; }
  std::vector<uint32_t> seen_splits() const {
    std::vector<uint32_t> words;
    const auto add = [&](int64_t word, int32_t count) {
      const size_t had = words.size();
      words.resize(had + static_cast<size_t>(count));
      std::memcpy(&words[had], host_ + word * 4, static_cast<size_t>(count) * 4);
    };
    for (int32_t row = 0; row < rows_; ++row)
      for (int32_t head = 0; head < kHeads; ++head)
        for (int32_t split = 0; split <= (first_ + row) / kSplit; ++split) {
          add(((int64_t{row} * kHeads + head) * splits_ + split) * dim_, dim_);
          add(partial_bytes() / 4 + ((int64_t{head / kGroup} * splits_ + split) * rows_ * kGroup + row * kGroup + head % kGroup) * 2, 2);
        }
    return words;
  }
  const int32_t dim_, first_, rows_, splits_;
  const std::unique_ptr<Device> device_;
  std::byte *kv_ = nullptr, *query_ = nullptr, *tables_ = nullptr, *states_ = nullptr, *partial_ = nullptr, *stats_ = nullptr,
            *plan_ = nullptr, *host_ = nullptr;
};

}  // namespace

TEST_CASE("attention: the sums of a row have the same bits alone and beside rows that see more") {
  for (const int32_t dim : {32, 64, 128}) {
    CAPTURE(dim);
    for (const int32_t first : {40, 236}) {  // rows on both sides of the end of a tile, and of a split
      CAPTURE(first);
      AttentionBench bench(dim, first, 32);
      const std::vector<uint32_t> want = bench.run(1);
      for (const int32_t together : {2, 5, 32}) {
        CAPTURE(together);
        const std::vector<uint32_t> got = bench.run(together);
        int different = 0;
        for (size_t i = 0; i < want.size(); ++i) different += got[i] != want[i];
        CHECK(different == 0);
      }
    }
  }
}

}  // namespace seer
