// Kernels that other tests do not reach in all their shapes: under the checker, and on a GPU.
#include "gpu/cuda/kernel_steps.h"
#include "gpu/cuda/norm_rows.h"

namespace seer {

TEST_CASE("kernels: biases, heads of other sizes and a longer vocabulary have no finding") {
  for (const int32_t dim : {32, 48, 80}) {  // with 32, 64 and 128 in memory
    const auto model = tiny("llama", "BF16", {{"head_dim", dim}, {"num_hidden_layers", 1}, {"attention_bias", true}, {"mlp_bias", true},
                                              {"vocab_size", 1500}, {"num_attention_heads", 6}});
    const StepsRun run = run_steps(model, CudaType::kBf16);
    REQUIRE_MESSAGE(run.status.ok(), run.status.error().detail);
  }
}

TEST_CASE("kernels: norms of rows of any size, with any number of parts, are near those in double") {
  for (const NormCase& c : norm_cases()) check_norm_rows(c);
}

TEST_CASE("kernels: the scan finds a number that is not finite wherever it is") {
  for (const bool f32 : {false, true}) check_finite_scan(f32);
}

}  // namespace seer
