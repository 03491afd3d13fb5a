// The GEMM kernels for wgmma as PTX of capability 9.0a, interpreted: the bits of the kernels for mma, and every instruction is reached.
#include <array>
#include <string>

#include "gpu/cuda/gemm_rows.h"
#include "simt/ptx.h"

namespace seer {

TEST_CASE("ptx with wgmma: no finding, the bits of mma, and no instruction that none reaches") {
  check_gemm_rows({129}, 256);
  check_gemm_rows({1}, 128);    // one step per part
  check_gemm_rows({17}, 1536);  // more steps than any kernel has on its way
  const auto of_groups = [](const std::string& place) { return place.starts_with("seer_gemm_groups_"); };
  const simt::PtxModule::Unreached unreached = simt::ptx_module().unreached();
  for (const std::string& instruction : unreached.instructions) CHECK_MESSAGE(!of_groups(instruction), instruction);
  // These skip a first step or first columns, which there always are, or are for more threads than a block has.
  CHECK(std::ranges::count_if(unreached.branches, of_groups) <= 102);
}

TEST_CASE("ptx with wgmma: each bug planted in its text is a finding or a wrong result") {
  GemmBench bench(17, 2048);
  const auto& kernel = *std::ranges::find(cuda::kGemmKernels, cuda::KernelId::k_gemm_groups_64_64, &cuda::GemmKernel::id);
  const auto want = bench.run(kernel, 0, 17, GemmOut::kSums);
  const std::vector<std::array<std::string, 2>> edits = {
      {"cp.async.wait_group 9;", "cp.async.wait_group 10;"},
      {"bar.sync \t0;", ""},
      {"fence.proxy.async.shared::cta;", ""},
      {"wgmma.fence.sync.aligned;", ""},
      {"wgmma.commit_group.sync.aligned;", ""},
      {"wgmma.wait_group.sync.aligned 1;", "wgmma.wait_group.sync.aligned 2;"},
      {"wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 1;"},
      {"1, 1, 1, 0, 0;", "1, 1, 1, 0, 1;"},             // the second matrix transposed
      {"4611686293305360384", "4611686018427453440"},  // eight rows follow eight after 0 bytes
      {".m64n64k16.f32.bf16.bf16", ".m64n64k16.f32.f16.f16"}};
  for (const auto& [from, to] : edits) {
    CAPTURE(from);
    CAPTURE(to);
    REQUIRE(simt::edit_ptx("seer_gemm_groups_64_64", from, to));
    const auto got = bench.try_run(kernel, 0, 17, GemmOut::kSums);
    CHECK((!got.ok() || *got != want));
  }
  CHECK(!simt::edit_ptx("", "", ""));
}

}  // namespace seer
