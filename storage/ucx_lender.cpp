#include "storage/ucx_lender.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "protocols/crc32c.h"

namespace seer {
namespace {

constexpr size_t kRequestsMax = 1024;  // that wait for advance()

}  // namespace

void UcxLender::receive(std::span<const std::byte> header, std::span<const std::byte> data) {
  Request request;
  if (header.size() != sizeof request.header || requests_.size() >= kRequestsMax) return;
  std::memcpy(&request.header, header.data(), sizeof request.header);
  const size_t asker_bytes = request.header.asker_bytes;
  if (request.header.tag != tag_ || crc32c(data) != request.header.data_crc) return;
  if (asker_bytes == 0 || asker_bytes > kWireAskerBytesMax || asker_bytes > data.size()) return;
  request.asker.assign(reinterpret_cast<const char*>(data.data()), asker_bytes);
  const std::span<const std::byte> slots = data.subspan(asker_bytes);
  if (slots.empty() || slots.size() % sizeof(WireSlot) != 0 || slots.size() > kWireSlotsMax * sizeof(WireSlot)) return;
  request.slots.resize(slots.size() / sizeof(WireSlot));
  std::memcpy(request.slots.data(), slots.data(), slots.size());
  requests_.push_back(std::move(request));
}

bool UcxLender::advance(UcxConnections& connections) {
  bool has_done = !requests_.empty();
  for (const Request& request : std::exchange(requests_, {}))
    if (Asker* const asker = asker_of(request, connections)) answer(request, *asker);
  for (auto asker = askers_.begin(); asker != askers_.end();) {
    has_done |= send_to(*asker);
    asker = asker->connection->lost() == UCS_OK ? std::next(asker) : drop(asker, connections);
  }
  return has_done;
}

void UcxLender::close_all(UcxConnections& connections) {
  requests_.clear();
  for (auto asker = askers_.begin(); asker != askers_.end();) asker = drop(asker, connections);
}

UcxLender::Asker* UcxLender::asker_of(const Request& request, UcxConnections& connections) {
  auto known = std::ranges::find(askers_, request.asker, &Asker::address);
  if (known != askers_.end()) {
    const auto newer = static_cast<int64_t>(request.header.link - known->link);
    if (newer < 0) return nullptr;
    if (newer == 0) {
      askers_.splice(askers_.end(), askers_, known);
      return &*known;
    }
    drop(known, connections);
  }
  if (askers_.size() >= askers_max_) {
    const auto idle = std::ranges::find_if(askers_, [](const Asker& asker) { return asker.replies.empty(); });
    if (idle == askers_.end()) return nullptr;
    drop(idle, connections);
  }
  auto connection = connections.connect(request.asker);
  if (!connection.ok()) return nullptr;  // it died
  return &askers_.emplace_back(Asker{request.asker, request.header.link, *std::move(connection), {}});
}

UcxLender::Askers::iterator UcxLender::drop(Askers::iterator asker, UcxConnections& connections) {
  replies_ -= asker->replies.size();
  connections.close(std::move(asker->connection));
  return askers_.erase(asker);
}

void UcxLender::answer(const Request& request, Asker& asker) {
  const auto reply_to = [&](uint64_t id) { return Reply{.header = {.tag = tag_, .id = id}}; };
  Reply grants = reply_to(request.header.id);  // for the blocks after the last one that was not granted
  const auto add_grants = [&] {
    if (!grants.data.empty()) add(asker, std::move(grants));
  };
  for (size_t i = 0; i < request.slots.size(); ++i) {
    const uint64_t id = request.header.id + i;
    const WireSlot& slot = request.slots[i];
    auto arena = lend(request.header, slot);
    if (arena.ok() && request.header.want == WireWant::kGrant) {
      const uint64_t offset = static_cast<uint64_t>((*arena)->span(slot.slot).data() - (*arena)->span(0).data());
      grants.data.append(reinterpret_cast<const char*>(&offset), sizeof offset);
    } else {
      add_grants();
      grants = reply_to(id + 1);
      Reply reply = reply_to(id);
      if (arena.ok()) {
        reply.arena = *std::move(arena);
        reply.block = reply.arena->span(slot.slot);
      } else {
        reply.header.code = static_cast<uint32_t>(arena.error().code);
        reply.data = arena.error().detail;
      }
      add(asker, std::move(reply));
    }
  }
  add_grants();
}

Result<std::shared_ptr<HostArena>> UcxLender::lend(const WireRequest& request, const WireSlot& slot) {
  const NodeId node{request.node};
  if (request.want != WireWant::kBytes && request.want != WireWant::kGrant)
    return fail(Code::kInvalidArgument, "transport: request ", static_cast<uint32_t>(request.want), " is not known");
  if (replies_ >= blocks_max_) return fail(Code::kFull, "transport: node ", node, " answers ", replies_, " requests");
  return arenas_.lend({node, request.epoch, slot.slot, slot.generation, 0}, request.block_bytes);
}

void UcxLender::add(Asker& asker, Reply reply) {
  if (replies_ >= 2 * blocks_max_) return;  // a peer that asks so much gets no answer
  asker.replies.push_back(std::move(reply));
  ++replies_;
}

bool UcxLender::send_to(Asker& asker) {
  constexpr size_t kBytesAtOnce = 1 << 20;
  size_t bytes = 0;
  while (!asker.replies.empty() && bytes < kBytesAtOnce) {
    Reply& reply = asker.replies.front();
    const auto chunk = reply.arena ? reply.block.first(std::min(reply.block.size(), kUcxDataBytesMax)) : std::as_bytes(std::span(reply.data));
    if (!asker.connection->send(static_cast<unsigned>(WireKind::kReply), std::as_bytes(std::span(&reply.header, 1)), chunk)) break;
    bytes += sizeof reply.header + chunk.size();
    reply.header.offset += chunk.size();
    if (reply.arena) reply.block = reply.block.subspan(chunk.size());
    if (reply.block.empty()) {
      asker.replies.pop_front();
      --replies_;
    }
  }
  return bytes > 0;
}

}  // namespace seer
