// The kernels of the CUDA engine as PTX, interpreted. SEER_PTX is the file.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "protocols/check.h"
#include "simt/ptx.h"
#include "simt/simt_kernels.h"

namespace simt {

namespace {

const std::string& ptx_text() {
  static const std::string text = [] {
    std::ifstream file(SEER_PTX);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }();
  return text;
}

}  // namespace

PtxModule& ptx_module() {
  static PtxModule module = [] {
    check_all_accesses();
    return PtxModule(ptx_text());
  }();
  return module;
}

bool edit_ptx(const std::string& entry, const std::string& from, const std::string& to) {
  std::string text = ptx_text();
  const size_t begin = text.find(".entry " + entry + "("), end = std::min(text.find(".entry ", begin + 1), text.size());
  const size_t at = text.find(from, begin);
  const bool found = !from.empty() && begin != std::string::npos && at < end;
  if (found) text.replace(at, from.size(), to);
  ptx_module() = PtxModule(text);
  return found;
}

// Before any device memory is there: what is written to it must be known.
static const bool kChecks = (ptx_module(), true);

bool kernels_have_group_mma() {
  static const bool have = ptx_text().find("wgmma.") != std::string::npos;
  return have;
}

void run_kernel(seer::cuda::KernelId kernel, seer::cuda::Grid grid, const void* args) {
  const seer::cuda::KernelInfo& info = seer::cuda::info_of(kernel);
  const auto dim = [](int32_t n) { return static_cast<unsigned>(n); };
  SEER_CHECK(kChecks);
  const bool found = ptx_module().launch(std::string("seer_") + info.name, {dim(grid.x), dim(grid.y), dim(grid.z)}, dim(info.threads),
                                         static_cast<size_t>(info.shared_bytes), {args});
  SEER_CHECK(found, info.name, SEER_PTX);
}

}  // namespace simt
