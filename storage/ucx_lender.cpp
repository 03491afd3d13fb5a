#include "storage/ucx_lender.h"

#include <utility>

namespace seer {
namespace {

// Larger blocks are sent by rendezvous: straight into their slots, but after a handshake. The receiver copies smaller ones once more.
constexpr size_t kEagerBytesMax = 64 << 10;

}  // namespace

void UcxLender::answer(const WireRequest& request, std::span<const WireSlot> slots, ucp_ep_h from) {
  const auto reply_to = [&](uint64_t id) { return Reply{.lender = this, .header = {.tag = request.tag, .id = id}}; };
  Reply grants = reply_to(request.id);  // for the blocks after the last one that was not granted
  const auto send_grants = [&] {
    if (!grants.data.empty()) send(from, std::move(grants));
  };
  for (size_t i = 0; i < slots.size(); ++i) {
    const uint64_t id = request.id + i;
    auto arena = lend(request, slots[i]);
    if (arena.ok() && request.want == WireWant::kGrant) {
      const uint64_t offset = static_cast<uint64_t>((*arena)->span(slots[i].slot).data() - (*arena)->span(0).data());
      grants.data.append(reinterpret_cast<const char*>(&offset), sizeof offset);
    } else {
      send_grants();
      grants = reply_to(id + 1);
      Reply reply = reply_to(id);
      std::span<const std::byte> block;
      if (arena.ok()) {
        reply.arena = *std::move(arena);
        block = reply.arena->span(slots[i].slot);
      } else {
        reply.header.code = static_cast<uint32_t>(arena.error().code);
        reply.data = arena.error().detail;
      }
      send(from, std::move(reply), block);
    }
  }
  send_grants();
}

Result<std::shared_ptr<HostArena>> UcxLender::lend(const WireRequest& request, const WireSlot& slot) {
  const NodeId node{request.node};
  if (request.tag != tag_) return fail(Code::kInvalidArgument, "transport: node ", node, " was asked by a peer that does not have its address");
  if (request.want != WireWant::kBytes && request.want != WireWant::kGrant)
    return fail(Code::kInvalidArgument, "transport: request ", static_cast<uint32_t>(request.want), " is not known");
  if (replies_.size() >= blocks_max_)
    return fail(Code::kFull, "transport: node ", node, " answers ", replies_.size(), " requests");
  return arenas_.lend({node, request.epoch, slot.slot, slot.generation, 0}, request.block_bytes);
}

void UcxLender::send(ucp_ep_h to, Reply unsent, std::span<const std::byte> block) {
  if (replies_.size() >= 2 * blocks_max_) return;  // a peer that asks so much gets no answer
  const auto reply = replies_.insert(replies_.end(), std::move(unsent));
  reply->self = reply;
  const std::span<const std::byte> bytes = block.empty() ? std::as_bytes(std::span(reply->data)) : block;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.flags = bytes.size() <= kEagerBytesMax ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
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
