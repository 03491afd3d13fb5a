#include "storage/ucx_borrower.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <utility>

#include "protocols/check.h"
#include "protocols/crc32c.h"

namespace seer {
namespace {

constexpr size_t kBytesAtOnce = 1 << 20;  // copied or checked before other work gets its turn

Status check_sum(const RemoteSlot& from, uint32_t crc) {
  if (crc == from.crc32c) return {};
  return fail(Code::kCorrupt, "transport: slot ", from.slot, " of node ", from.node, " does not match its checksum");
}

}  // namespace

UcxBorrower::UcxBorrower(const UcxTransportConfig& config, Parts parts)
    : config_(config), parts_(std::move(parts)), last_id_(std::random_device{}()) {}

Status UcxBorrower::admit() {
  const size_t open = open_count_.fetch_add(1);
  if (open < config_.queue_max) return {};
  --open_count_;
  return fail(Code::kFull, "transport: ", open, " fetches are open");
}

bool UcxBorrower::advance() {
  drop_lost();
  expire();
  drop_silent();
  bool has_done = take_granted();
  for (auto& [node, peer] : peers_) {
    ask_waiting(node, peer);
    if (peer.connection) has_done |= send_requests(*peer.connection);
  }
  return has_done;
}

UcxClock::time_point UcxBorrower::next_deadline(UcxClock::time_point otherwise) const {
  UcxClock::time_point next = otherwise;
  if (!operations_.empty()) next = std::min(next, operations_.begin()->first);
  for (const auto& [node, peer] : peers_)
    if (peer.connection && peer.connection->has_late)
      next = std::min(next, peer.connection->heard + std::chrono::microseconds(config_.silent_us));
  return next;
}

// ---- peers and connections -------------------------------------------------------------------------------------------------

void UcxBorrower::open(NodeId node, uint64_t epoch, UcxAddress address, UcxWay way, std::string not_memory) {
  close(node, fail(Code::kStale, "transport: node ", node, " is in epoch ", epoch));
  Peer& peer = peers_[node];
  peer.epoch = epoch;
  peer.address = std::move(address);
  peer.way = way;
  peer.not_memory = std::move(not_memory);
}

void UcxBorrower::close(NodeId node, const Error& why) {
  const auto it = peers_.find(node);
  if (it == peers_.end()) return;
  drop(node, it->second, why);
  peers_.erase(it);
}

void UcxBorrower::close_all(const Error& why) {
  for (auto& [node, peer] : peers_) drop(node, peer, why);
  peers_.clear();
}

Status UcxBorrower::connect(NodeId node, Peer& peer) {
  auto to_peer = parts_.connections.connect(peer.address.worker);
  if (!to_peer.ok()) return fail(Code::kUnavailable, "transport: node ", node, " cannot be reached: ", to_peer.error().detail);
  peer.connection = std::make_unique<Connection>(Connection{
      .tag = peer.address.tag, .link = ++last_link_, .to_peer = *std::move(to_peer), .unsent = {}, .heard = UcxClock::now()});
  return {};
}

void UcxBorrower::drop_lost() {
  for (auto& [node, peer] : peers_) {
    if (peer.connection && peer.connection->to_peer->lost() != UCS_OK)
      drop(node, peer, fail(Code::kUnavailable, "transport: the connection to node ", node,
                            " was lost: ", ucs_status_string(peer.connection->to_peer->lost())));
    if (peer.get_link && peer.get_link->lost() != UCS_OK) fall_back(node, peer, ucs_status_string(peer.get_link->lost()));
  }
}

void UcxBorrower::drop_silent() {
  for (auto& [node, peer] : peers_)
    if (peer.connection && peer.connection->has_late &&
        UcxClock::now() >= peer.connection->heard + std::chrono::microseconds(config_.silent_us))
      reconnect(peer);
}

void UcxBorrower::reconnect(Peer& peer) {
  for (const auto& [id, asked] : asked_)
    if (asked.connection == peer.connection.get() && asked.block.state() == UcxBlockState::kAsked) ask_again(asked.block, peer);
  disconnect(peer);
}

void UcxBorrower::disconnect(Peer& peer) {
  if (!peer.connection) return;
  std::erase_if(asked_, [&](const auto& asked) { return asked.second.connection == peer.connection.get(); });
  parts_.connections.close(std::move(peer.connection->to_peer));
  peer.connection.reset();
}

void UcxBorrower::drop(NodeId node, Peer& peer, const Error& why) {
  disconnect(peer);
  close_get_link(peer);
  peer.waiting.clear();
  peer.mapping.reset();
  std::vector<std::shared_ptr<UcxFetch>> failed;
  for (const auto& [end, operation] : operations_)
    if (operation->fetches.front().from.node == node) failed.push_back(operation);
  for (const auto& operation : failed)
    for (size_t i = 0; i < operation->fetches.size(); ++i) resolve({operation, i}, why);
}

// ---- fetches -----------------------------------------------------------------------------------------------------------------

void UcxBorrower::begin(const std::shared_ptr<UcxFetch>& operation) {
  if (operation->fetches.empty()) {
    --open_count_;
    return operation->events.done({});
  }
  operations_.emplace(operation->end, operation);
  const RemoteSlot& first = operation->fetches.front().from;
  for (const Fetch& f : operation->fetches) {
    SEER_CHECK(f.from.node == first.node, f.from.node, first.node);
    SEER_CHECK(f.from.epoch == first.epoch, f.from.epoch, first.epoch);
  }
  const auto peer = peers_.find(first.node);
  Status usable;
  if (peer == peers_.end())
    usable = fail(Code::kUnavailable, "transport: node ", first.node, " is not open");
  else if (peer->second.epoch != first.epoch)
    usable = fail(Code::kStale, "transport: node ", first.node, " was opened in epoch ", peer->second.epoch, ", not ", first.epoch);
  for (size_t i = 0; i < operation->fetches.size(); ++i) {
    if (usable.ok())
      peer->second.waiting.push_back({operation, i});
    else
      resolve({operation, i}, usable);
  }
}

/// Waits until half of the window is free, so that a request asks for several blocks at once.
void UcxBorrower::ask_waiting(NodeId node, Peer& peer) {
  if (peer.waiting.empty()) return;
  const bool by_messages = peer.way == UcxWay::kMessages;
  const size_t window = by_messages ? config_.window_blocks : kWireSlotsMax;
  size_t open = peer.connection ? peer.connection->unanswered : 0;
  if (!by_messages) open += granted_.size();
  if (peer.get_link) open += peer.get_link->open_count();
  if (open > window / 2) return;
  std::vector<UcxBlock> blocks;
  while (!peer.waiting.empty() && open + blocks.size() < window) {
    if (peer.waiting.front().state() == UcxBlockState::kWaiting) blocks.push_back(std::move(peer.waiting.front()));
    peer.waiting.pop_front();
  }
  if (blocks.empty()) return;
  if (!peer.connection)
    if (const Status connected = connect(node, peer); !connected.ok()) return drop(node, peer, connected.error());
  const auto bytes_of = [](const UcxBlock& block) { return block.fetch().to.size(); };
  for (std::span<const UcxBlock> rest = blocks; !rest.empty();) {
    const auto end = std::ranges::find_if(rest, [&](const UcxBlock& block) { return bytes_of(block) != bytes_of(rest.front()); });
    const size_t alike = std::min(kWireSlotsMax, static_cast<size_t>(end - rest.begin()));
    ask(peer, rest.first(alike));
    rest = rest.subspan(alike);
  }
}

void UcxBorrower::ask(Peer& peer, std::span<const UcxBlock> blocks) {
  Connection& connection = *peer.connection;
  const Fetch& first = blocks.front().fetch();
  const WireWant want = peer.way == UcxWay::kMessages ? WireWant::kBytes : WireWant::kGrant;
  Request request{{.tag = connection.tag, .id = last_id_ + 1, .link = connection.link, .epoch = first.from.epoch,
                   .block_bytes = first.to.size(), .node = first.from.node.value, .want = want,
                   .asker_bytes = static_cast<uint32_t>(parts_.own_address.size())},
                  parts_.own_address};
  if (connection.unanswered == 0) connection.heard = UcxClock::now();
  for (const UcxBlock& block : blocks) {
    const RemoteSlot& from = block.fetch().from;
    const WireSlot slot{.generation = from.generation, .slot = from.slot};
    request.data.append(reinterpret_cast<const char*>(&slot), sizeof slot);
    asked_.emplace(++last_id_, Asked{block, &connection, want});
    block.state() = UcxBlockState::kAsked;
    block.operation->came = UcxClock::now();
    ++connection.unanswered;
  }
  request.header.data_crc = crc32c(std::as_bytes(std::span(request.data)));
  connection.unsent.push_back(std::move(request));
}

bool UcxBorrower::send_requests(Connection& connection) {
  bool has_sent = false;
  while (!connection.unsent.empty()) {
    const Request& request = connection.unsent.front();
    if (!connection.to_peer->send(static_cast<unsigned>(WireKind::kRequest), std::as_bytes(std::span(&request.header, 1)),
                                  std::as_bytes(std::span(request.data))))
      break;
    connection.unsent.pop_front();
    has_sent = true;
  }
  return has_sent;
}

void UcxBorrower::note_arrival(const UcxBlock& block) {
  block.operation->came = UcxClock::now();
  if (const auto peer = peers_.find(block.fetch().from.node); peer != peers_.end()) peer->second.came = block.operation->came;
}

/// A fetch has time from what came of it last. While some of its blocks wait for their turn, what else comes from the peer counts too.
void UcxBorrower::expire() {
  const auto now = UcxClock::now();
  while (!operations_.empty() && operations_.begin()->first <= now) {
    const std::shared_ptr<UcxFetch> operation = operations_.begin()->second;
    operations_.erase(operations_.begin());
    const auto peer = peers_.find(operation->fetches.front().from.node);
    const bool waits = peer != peers_.end() && std::ranges::find(operation->states, UcxBlockState::kWaiting) != operation->states.end();
    const auto end = std::max(operation->came, waits ? peer->second.came : UcxClock::time_point()) + std::chrono::microseconds(operation->timeout_us);
    if (end > now)
      operations_.emplace(operation->end = end, operation);
    else
      expire(operation);
  }
}

/// Late answers are dropped, late gets are stopped.
void UcxBorrower::expire(const std::shared_ptr<UcxFetch>& operation) {
  const NodeId node = operation->fetches.front().from.node;
  for (size_t i = 0; i < operation->fetches.size(); ++i) {
    UcxBlockState& state = operation->states[i];
    if (state != UcxBlockState::kOver) operation->statuses[i] = late_fetch(node, operation->timeout_us);
    if (const auto peer = peers_.find(node); peer != peers_.end()) {
      if (state == UcxBlockState::kAsked && peer->second.connection) peer->second.connection->has_late = true;
      if (state == UcxBlockState::kGetting) close_get_link(peer->second);
    }
    state = UcxBlockState::kOver;
  }
  finish(*operation);
}

void UcxBorrower::resolve(const UcxBlock& block, Status status) {
  UcxFetch& operation = *block.operation;
  if (block.state() == UcxBlockState::kOver) return;
  block.state() = UcxBlockState::kOver;
  if (status.ok()) note_arrival(block);
  operation.statuses[block.index] = std::move(status);
  if (--operation.left > 0) return;
  const auto [first, last] = operations_.equal_range(operation.end);
  operations_.erase(std::find_if(first, last, [&](const auto& known) { return known.second == block.operation; }));
  finish(operation);
}

void UcxBorrower::finish(UcxFetch& operation) {
  --open_count_;
  const bool still_writing = operation.gets > 0;
  operation.events.done({std::move(operation.statuses), still_writing});
  operation.events.done = nullptr;
  if (!still_writing) operation.events.quiet = nullptr;
}

/// Copies blocks for some 100 us, at least one, and begins gets; then other work gets its turn. False: none was granted.
bool UcxBorrower::take_granted() {
  if (granted_.empty()) return false;
  size_t bytes = 0;
  while (!granted_.empty() && bytes < kBytesAtOnce) bytes += take_next_granted();
  return true;
}

/// Returns the bytes copied. REQUIRES: one is granted.
size_t UcxBorrower::take_next_granted() {
  const Granted granted = std::move(granted_.front());
  granted_.pop_front();
  const UcxBlock& block = granted.block;
  if (block.state() != UcxBlockState::kGranted) return 0;
  const RemoteSlot& from = block.fetch().from;
  Peer& peer = peers_.at(from.node);
  if (peer.way == UcxWay::kGet && (peer.get_link || link_to(from.node, peer))) {
    block.state() = UcxBlockState::kGetting;
    parts_.gets->get(*peer.get_link, block, peer.address.slab_base + granted.offset);
    return 0;
  }
  if (peer.way != UcxWay::kMemory || (!peer.mapping && !map_slab_of(from.node, peer))) {
    ask_again(block, peer);
    return 0;
  }
  const std::span<std::byte> to = block.fetch().to;
  resolve(block, check_sum(from, copy_and_crc32c(to, peer.mapping->base() + granted.offset)));
  return to.size();
}

/// Called after a grant: the owner is alive then, so its key is valid. False: the peer is reached over TCP from now on.
bool UcxBorrower::map_slab_of(NodeId node, Peer& peer) {
  auto mapping = parts_.memory->map(peer.address.slab_key, peer.address.slab_base);
  if (mapping.ok()) {
    peer.mapping = *std::move(mapping);
    return true;
  }
  fall_back(node, peer, cat("its slab cannot be mapped: ", mapping.error().detail));
  return false;
}

/// Called after a grant, as above. False: the peer is reached over TCP from now on.
bool UcxBorrower::link_to(NodeId node, Peer& peer) {
  auto link = parts_.gets->connect(peer.address.get_worker, peer.address.get_key);
  if (!link.ok()) {
    fall_back(node, peer, cat("no get: ", link.error().detail));
    return false;
  }
  peer.get_link = *std::move(link);
  if (!peer.get_link->transport().empty())
    parts_.tell_info(node, peer.epoch, cat("network (get over ", peer.get_link->transport(), "): ", peer.not_memory));
  return true;
}

/// Checks the blocks that gets brought, for some 100 us. False: none has ended.
bool UcxBorrower::take_ended_gets() {
  bool has_ended = false;
  size_t bytes = 0;
  while (parts_.gets != nullptr && bytes < kBytesAtOnce) {
    const std::optional<UcxGets::Ended> ended = parts_.gets->take_ended();
    if (!ended) break;
    bytes += on_get_ended(*ended);
    has_ended = true;
  }
  return has_ended;
}

/// Returns the bytes checked.
size_t UcxBorrower::on_get_ended(const UcxGets::Ended& ended) {
  const UcxBlock& block = ended.block;
  UcxFetch& operation = *block.operation;
  if (block.state() != UcxBlockState::kGetting) {
    if (operation.gets == 0 && !operation.events.done && operation.events.quiet) std::exchange(operation.events.quiet, nullptr)();
    return 0;
  }
  const RemoteSlot& from = block.fetch().from;
  const std::span<std::byte> to = block.fetch().to;
  if (ended.status == UCS_OK) {
    resolve(block, check_sum(from, crc32c(to)));
    return to.size();
  }
  // Not late and not dropped, so the peer is there: its link was closed for another fetch, or the get failed.
  Peer& peer = peers_.at(from.node);
  if (!ended.was_closed) fall_back(from.node, peer, cat("a get failed: ", ucs_status_string(ended.status)));
  ask_again(block, peer);
  return 0;
}

void UcxBorrower::close_get_link(Peer& peer) {
  if (peer.get_link) parts_.gets->close(std::move(peer.get_link));
}

void UcxBorrower::fall_back(NodeId node, Peer& peer, const std::string& why) {
  close_get_link(peer);
  peer.way = UcxWay::kMessages;
  parts_.tell_info(node, peer.epoch, cat("network (tcp): ", why));
}

void UcxBorrower::ask_again(const UcxBlock& block, Peer& peer) {
  block.state() = UcxBlockState::kWaiting;
  peer.waiting.push_front(block);
}

// ---- answers -----------------------------------------------------------------------------------------------------------------
void UcxBorrower::receive(const WireReply& reply, std::span<const std::byte> data) {
  const auto it = asked_.find(reply.id);
  if (it == asked_.end() || reply.tag != it->second.connection->tag) return;
  note_arrival(it->second.block);
  if (reply.code != 0) {
    const bool is_known = reply.code <= static_cast<uint32_t>(Code::kCancelled);
    const std::string_view text(reinterpret_cast<const char*>(data.data()), std::min<size_t>(data.size(), 300));
    if (const std::optional<UcxBlock> block = answered(it))
      resolve(*block, fail(is_known ? static_cast<Code>(reply.code) : Code::kIo, text));
  } else if (it->second.want == WireWant::kGrant) {
    on_grants(reply.id, data);
  } else {
    on_bytes(it, reply.offset, data);
  }
}

std::optional<UcxBlock> UcxBorrower::answered(std::unordered_map<uint64_t, Asked>::iterator it) {
  const Asked asked = std::move(it->second);
  asked_.erase(it);
  --asked.connection->unanswered;
  asked.connection->hear();
  if (asked.block.state() != UcxBlockState::kAsked) return std::nullopt;
  return asked.block;
}

void UcxBorrower::on_grants(uint64_t first_id, std::span<const std::byte> offsets) {
  uint64_t offset;
  for (size_t i = 0; (i + 1) * sizeof offset <= offsets.size(); ++i) {
    const auto it = asked_.find(first_id + i);
    if (it == asked_.end() || it->second.want != WireWant::kGrant) return;
    std::memcpy(&offset, offsets.data() + i * sizeof offset, sizeof offset);
    if (const std::optional<UcxBlock> block = answered(it)) grant(*block, offset);
  }
}

void UcxBorrower::grant(const UcxBlock& block, uint64_t offset) {
  const Fetch& fetch = block.fetch();
  const uint64_t slab_bytes = peers_.at(fetch.from.node).address.slab_bytes;
  if (fetch.to.size() > slab_bytes || offset > slab_bytes - fetch.to.size()) {
    return resolve(block, fail(Code::kInvalidArgument, "transport: node ", fetch.from.node, " granted bytes from ", offset, " of its ",
                               slab_bytes));
  }
  block.state() = UcxBlockState::kGranted;
  note_arrival(block);
  granted_.push_back({block, offset});
}

/// Some bytes of a block came. Those of a late fetch are only counted: its slots are no longer ours.
void UcxBorrower::on_bytes(std::unordered_map<uint64_t, Asked>::iterator it, uint64_t offset, std::span<const std::byte> bytes) {
  Asked& asked = it->second;
  const Fetch& fetch = asked.block.fetch();
  if (offset != asked.received_bytes || bytes.size() > fetch.to.size() - asked.received_bytes) {
    const uint64_t end = offset + bytes.size();
    if (const std::optional<UcxBlock> block = answered(it))
      resolve(*block, fail(Code::kInvalidArgument, "transport: node ", fetch.from.node, " sent the bytes up to ", end, " of ", fetch.to.size(),
                           " out of order"));
    return;
  }
  if (asked.block.state() == UcxBlockState::kAsked)
    asked.crc = copy_and_crc32c(fetch.to.subspan(offset, bytes.size()), bytes.data(), asked.crc);
  asked.received_bytes += bytes.size();
  asked.connection->hear();
  if (asked.received_bytes < fetch.to.size()) return;
  const uint32_t crc = asked.crc;
  if (const std::optional<UcxBlock> block = answered(it)) resolve(*block, check_sum(fetch.from, crc));
}

}  // namespace seer
