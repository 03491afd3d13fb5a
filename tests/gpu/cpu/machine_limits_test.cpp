#include "gpu/cpu/machine_limits.h"

#include <doctest/doctest.h>

#include <cmath>
#include <initializer_list>

#include "gpu/cpu/kernels.h"

namespace seer {
namespace {

TEST_CASE("machine limits: every instruction set counts its operations, and its chains end at their fixed point") {
  for (const CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvxVnni, CpuIsa::kAvx512, CpuIsa::kAmx}) {
    const CpuKernels* const kernels = cpu_kernels(isa);
    if (kernels == nullptr) continue;
    CAPTURE(kernels->name);
    float sum = -1;
    const int64_t one = kernels->fma_chains(1, &sum), many = kernels->fma_chains(20'000, &sum);
    CHECK(one > 0);
    CHECK(many == 20'000 * one);
    // Each of the one / 2 chains goes to 1; those of tiles multiply zeros.
    CHECK(std::fabs(sum - (isa == CpuIsa::kAmx ? 0.0f : static_cast<float>(one / 2))) < 0.5f);
  }
}

TEST_CASE("machine limits: two threads compute and read something") {
  const MachineLimits limits = measure_limits(*cpu_kernels(CpuIsa::kAuto), 2, size_t{4} << 20);
  CHECK(limits.gflop_s > 0);
  CHECK(limits.read_gb_s > 0);
}

}  // namespace
}  // namespace seer
