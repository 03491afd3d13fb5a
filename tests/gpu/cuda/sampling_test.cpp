#include "gpu/cuda/sample_rows.h"

namespace seer {

TEST_CASE("sampling: the kernels give the bits of the CPU on any logits, under every rule") {
  check_sample_rows(sample_cases(2200));  // three parts
  check_sample_rows(long_sample_cases());
}

}  // namespace seer
