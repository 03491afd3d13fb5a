// The kernels under the checker, which sees every access to memory: bounds, reads of what was never written, races, cp.async in
// flight, alignment, divergence. A finding is an error of the device. Steps of an engine reach every kernel.
#include "gpu/cuda/kernel_steps.h"
#include "simt/simt.h"

namespace seer {
namespace {

/// So that a GEMM uses each of its two stages twice.
const nlohmann::json kLongSums = {{"intermediate_size", 200}};

/// Restores the options of the emulation.
struct Options {
  const simt::Options before = simt::options();
  ~Options() { simt::options() = before; }
};

}  // namespace

TEST_CASE("kernels: no finding in any order of threads, and equal bits in each, with either rounding of an mma") {
  const Options options;
  for (const CudaType type : {CudaType::kBf16, CudaType::kF32}) {
    const auto model = tiny("qwen3", type == CudaType::kBf16 ? "BF16" : "F32", kLongSums);
    for (const simt::Mma mma : {simt::Mma::kChain, simt::Mma::kTruncatingTree}) {
      std::vector<std::vector<SampledToken>> want;
      for (const simt::Order order : {simt::Order::kForward, simt::Order::kReverse, simt::Order::kRandom}) {
        CAPTURE(static_cast<int>(type));
        CAPTURE(static_cast<int>(mma));
        CAPTURE(static_cast<int>(order));
        simt::options().order = order;
        simt::options().mma = mma;
        const StepsRun run = run_steps(model, type);
        REQUIRE_MESSAGE(run.status.ok(), run.status.error().detail);
        if (want.empty()) want = run.sampled;
        CHECK(run.sampled == want);
      }
    }
  }
}

TEST_CASE("kernels: tokens are the same where the sum in any order decides and where only that in order does") {
  const Options options;
  const auto model = tiny("qwen3", "BF16", {{"vocab_size", 1500}, {"num_hidden_layers", 1}});
  const StepsRun want = run_wide_steps(model, CudaType::kBf16);
  simt::options().planted = 10;  // nothing is sure
  const StepsRun in_order = run_wide_steps(model, CudaType::kBf16);
  REQUIRE(want.status.ok());
  REQUIRE(in_order.status.ok());
  CHECK(in_order.sampled == want.sampled);
}

TEST_CASE("kernels: each planted bug is found, whether or not a result is wrong") {
  const Options options;
  const auto bf16 = tiny("qwen3", "BF16", kLongSums), f32 = tiny("qwen3", "F32");
  for (const auto& [bug, kind, type] :
       {std::tuple{1, "in_flight", CudaType::kBf16}, {2, "init", CudaType::kBf16}, {3, "in_flight", CudaType::kBf16},
        {4, "bounds", CudaType::kBf16}, {5, "race", CudaType::kBf16}, {6, "race", CudaType::kBf16}, {7, "race", CudaType::kBf16},
        {9, "race", CudaType::kF32}}) {
    CAPTURE(bug);
    simt::options().planted = bug;
    const StepsRun run = run_steps(type == CudaType::kBf16 ? bf16 : f32, type);
    REQUIRE(!run.status.ok());
    CHECK(run.status.error().code == Code::kUnavailable);
    CHECK_MESSAGE(run.status.error().detail.find(kind) != std::string::npos, run.status.error().detail);
  }
}

}  // namespace seer
