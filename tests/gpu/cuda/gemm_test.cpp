#include "gpu/cuda/gemm_rows.h"

namespace seer {

TEST_CASE("gemm: a row has the same bits in every kernel, tile and number of rows") {
  check_gemm_rows({1, 63, 64, 65, 129, 150}, 256);
  check_gemm_rows({17}, 2048);  // more steps than any kernel has on its way
}

}  // namespace seer
