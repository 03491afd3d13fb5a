#include "storage/ucx_connection.h"

#include <chrono>
#include <thread>
#include <utility>

namespace seer {

bool UcxConnection::send(unsigned id, std::span<const std::byte> header, std::span<const std::byte> data) {
  SEER_CHECK(header.size() <= kUcxHeaderBytesMax, header.size());
  SEER_CHECK(data.size() <= kUcxDataBytesMax, data.size());
  if (lost_ != UCS_OK) return false;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL;
  params.flags = UCP_AM_SEND_FLAG_EAGER;
  void* const sent = ucp_am_send_nbx(endpoint_, id, header.data(), header.size(), data.data(), data.size(), &params);
  SEER_CHECK(!UCS_PTR_IS_PTR(sent), id);
  const ucs_status_t status = UCS_PTR_STATUS(sent);
  if (status != UCS_OK && status != UCS_ERR_NO_RESOURCE) lost_ = status;
  return status == UCS_OK;
}

UcxContext::Settings UcxConnections::settings(const std::string& devices) {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  // From 1.17 on, the name of a setting of a transport begins with that of the transport.
  const bool is_named = std::pair(major, minor) >= std::pair(1u, 17u);
  const std::string segment_bytes = std::to_string(kUcxHeaderBytesMax + kUcxDataBytesMax + 256);  // with the headers of UCX
  return {{"TLS", "tcp"},
          {"NET_DEVICES", devices},
          {is_named ? "TCP_TX_SEG_SIZE" : "TX_SEG_SIZE", segment_bytes},
          {is_named ? "TCP_RX_SEG_SIZE" : "RX_SEG_SIZE", segment_bytes},
          // Else the thread waits for a host that does not answer, and UCX 1.13 aborts if the peer dies just after it was connected
          // (tcp_ep.c: "!(ep->flags & UCT_TCP_EP_FLAG_CTX_TYPE_TX)").
          {is_named ? "TCP_CONN_NB" : "CONN_NB", "y"},
          {"PROTO_ENABLE", "n"}};  // else newer versions hand over less at once
}

Status UcxConnections::check_sending(const std::string& own_address) {
  SEER_ASSIGN_OR_RETURN(auto to_self, connect(own_address));
  const std::vector<std::byte> header(kUcxHeaderBytesMax), data(kUcxDataBytesMax);
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  bool was_sent = false;
  while (!was_sent && to_self->lost() == UCS_OK && std::chrono::steady_clock::now() < give_up) {
    was_sent = to_self->send(UINT16_MAX, header, data);
    if (ucp_worker_progress(worker_) == 0) std::this_thread::yield();
  }
  close(std::move(to_self));
  if (was_sent) return {};
  return fail(Code::kUnavailable, "UCX ", ucp_get_version_string(), " does not send ", data.size(), " bytes at once over TCP");
}

Result<std::unique_ptr<UcxConnection>> UcxConnections::connect(const std::string& address) {
  auto connection = std::make_unique<UcxConnection>();
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.arg = connection.get();
  params.err_handler.cb = [](void* argument, ucp_ep_h, ucs_status_t status) { static_cast<UcxConnection*>(argument)->lost_ = status; };
  if (const ucs_status_t s = ucp_ep_create(worker_, &params, &connection->endpoint_); s != UCS_OK)
    return ucx_error(Code::kUnavailable, "connecting", s);
  return connection;
}

void UcxConnections::close(std::unique_ptr<UcxConnection> connection) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  connection->closing_ = ucp_ep_close_nbx(connection->endpoint_, &params);
  closing_.push_back(std::move(connection));
}

void UcxConnections::end_closed() {
  std::erase_if(closing_, [](const std::unique_ptr<UcxConnection>& connection) {
    void* const request = connection->closing_;
    if (!UCS_PTR_IS_PTR(request)) return true;
    if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucp_request_free(request);
    return true;
  });
}

}  // namespace seer
