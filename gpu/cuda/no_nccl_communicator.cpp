// In a build without NCCL's header; otherwise nccl_communicator.cpp.
#include "gpu/cuda/peers.h"

namespace seer::cuda {

Result<std::string> nccl_version() { return fail(Code::kUnavailable, "this build has no NCCL"); }
Result<std::vector<std::unique_ptr<Communicator>>> make_nccl_communicators(std::span<Device* const>, const CommunicatorConfig&) {
  return nccl_version().error();
}

}  // namespace seer::cuda
