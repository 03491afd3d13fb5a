#include "storage/ucx_lender.h"

#include <utility>

namespace seer {

void UcxLender::answer(const WireRequest& request, ucp_ep_h from) {
  Reply reply{.lender = this, .header = {.tag = request.tag, .id = request.id}};
  std::span<const std::byte> bytes;
  const auto lend = [&]() -> Status {
    const NodeId node{request.node};
    if (request.tag != tag_) return fail(Code::kInvalidArgument, "transport: node ", node, " belongs to another run");
    if (request.want != WireWant::kBytes && request.want != WireWant::kGrant)
      return fail(Code::kInvalidArgument, "transport: request ", static_cast<uint32_t>(request.want), " is not known");
    if (replies_.size() >= blocks_max_)
      return fail(Code::kFull, "transport: node ", node, " answers ", replies_.size(), " requests");
    SEER_ASSIGN_OR_RETURN(reply.arena, arenas_.lend({node, request.epoch, request.slot, request.generation, 0}, request.block_bytes));
    bytes = reply.arena->span(request.slot);
    if (request.want == WireWant::kGrant) {
      reply.header.offset = static_cast<uint64_t>(bytes.data() - reply.arena->span(0).data());
      bytes = {};
    }
    return {};
  };
  if (const Status lent = lend(); !lent.ok()) {
    reply.header.code = static_cast<uint32_t>(lent.error().code);
    reply.text = lent.error().detail;
  }
  if (replies_.size() < 2 * blocks_max_) send(from, std::move(reply), bytes);
}

void UcxLender::send(ucp_ep_h to, Reply unsent, std::span<const std::byte> bytes) {
  const auto reply = replies_.insert(replies_.end(), std::move(unsent));
  reply->self = reply;
  const bool is_block = !bytes.empty();
  if (!is_block) bytes = std::as_bytes(std::span(reply->text));
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.flags = is_block ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  params.cb.send = [](void* sent, ucs_status_t, void* user) {
    auto* const done = static_cast<Reply*>(user);
    done->lender->replies_.erase(done->self);
    ucp_request_free(sent);
  };
  params.user_data = &*reply;
  void* const sent = ucp_am_send_nbx(to, static_cast<unsigned>(WireKind::kReply), &reply->header, sizeof(WireReply),
                                     bytes.empty() ? nullptr : bytes.data(), bytes.size(), &params);
  if (!UCS_PTR_IS_PTR(sent)) replies_.erase(reply);
}

}  // namespace seer
