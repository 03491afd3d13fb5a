#include "storage/ucx_raw_peer.h"

#include "storage/ucx_handles.h"
#include "storage/ucx_wire.h"

namespace seer {
namespace {

Status finish(const UcxWorker& worker, void* request) {
  ucs_status_t status = UCS_PTR_STATUS(request);
  if (UCS_PTR_IS_PTR(request)) {
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) ucp_worker_progress(worker.get());
    ucp_request_free(request);
  }
  if (status != UCS_OK) return ucx_error(Code::kIo, "sending", status);
  return {};
}

}  // namespace

Status send_raw_ucx(const std::string& address, unsigned id, std::span<const std::string> headers, const std::string& data) {
  SEER_ASSIGN_OR_RETURN(const UcxAddress to, read_ucx_address(address));
  SEER_ASSIGN_OR_RETURN(auto context, UcxContext::create({{"TLS", "tcp"}}, UCP_FEATURE_AM));
  SEER_ASSIGN_OR_RETURN(const auto worker, UcxWorker::create(std::move(context)));
  // Answers are dropped. UCX crashes on a message of a worker that has no handlers.
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB;
  handler.id = static_cast<unsigned>(WireKind::kReply);
  handler.cb = [](void*, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*) { return UCS_OK; };
  if (const ucs_status_t s = ucp_worker_set_am_recv_handler(worker->get(), &handler); s != UCS_OK)
    return ucx_error(Code::kIo, "setting a message handler", s);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.address = reinterpret_cast<const ucp_address_t*>(to.worker.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  ucp_ep_h endpoint = nullptr;
  if (const ucs_status_t s = ucp_ep_create(worker->get(), &params, &endpoint); s != UCS_OK)
    return ucx_error(Code::kUnavailable, "an endpoint", s);
  for (const std::string& header : headers) {
    ucp_request_param_t send{};
    send.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    send.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
    SEER_RETURN_IF_ERROR(finish(*worker, ucp_am_send_nbx(endpoint, id, header.data(), header.size(), data.data(), data.size(), &send)));
  }
  ucp_request_param_t flush{};
  SEER_RETURN_IF_ERROR(finish(*worker, ucp_ep_flush_nbx(endpoint, &flush)));
  ucp_request_param_t close{};
  return finish(*worker, ucp_ep_close_nbx(endpoint, &close));
}

}  // namespace seer
