#include "storage/ucx_shared_memory.h"

#include <utility>

namespace seer {

Result<std::unique_ptr<UcxSharedMemory>> UcxSharedMemory::create() {
  SEER_ASSIGN_OR_RETURN(auto context, UcxContext::create({{"TLS", "posix,sysv"}}, UCP_FEATURE_RMA));
  std::unique_ptr<UcxSharedMemory> memory(new UcxSharedMemory);
  memory->slabs_ = std::make_shared<UcxSlabs>(context);
  SEER_ASSIGN_OR_RETURN(memory->worker_, UcxWorker::create(std::move(context)));
  SEER_ASSIGN_OR_RETURN(const std::string address, memory->worker_->address());
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  if (const ucs_status_t s = ucp_ep_create(memory->worker_->get(), &params, &memory->endpoint_); s != UCS_OK)
    return ucx_error(Code::kIo, "an endpoint for shared memory", s);
  return memory;
}

UcxSharedMemory::~UcxSharedMemory() {
  if (endpoint_ == nullptr) return;
  ucp_request_param_t params{};
  void* const request = ucp_ep_close_nbx(endpoint_, &params);
  if (!UCS_PTR_IS_PTR(request)) return;
  while (ucp_request_check_status(request) == UCS_INPROGRESS) ucp_worker_progress(worker_->get());
  ucp_request_free(request);
}

}  // namespace seer
