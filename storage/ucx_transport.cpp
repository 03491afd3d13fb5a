#include "storage/ucx_transport.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <unordered_map>
#include <utility>

#include "protocols/crc32c.h"
#include "storage/ucx_connection.h"
#include "storage/ucx_fetch.h"
#include "storage/ucx_gets.h"
#include "storage/ucx_handles.h"
#include "storage/ucx_lender.h"
#include "storage/ucx_shared_memory.h"
#include "storage/ucx_slabs.h"
#include "storage/ucx_wire.h"

namespace seer {
namespace {

constexpr size_t kBytesAtOnce = 1 << 20;  // copied or checked before other work gets its turn

Status check_sum(const RemoteSlot& from, uint32_t crc) {
  if (crc == from.crc32c) return {};
  return fail(Code::kCorrupt, "transport: slot ", from.slot, " of node ", from.node, " does not match its checksum");
}

/// How blocks arrive from a peer.
enum class UcxWay : uint8_t { kMemory, kGet, kMessages };

}  // namespace

class UcxTransport::Loop {
 public:
  static Result<std::unique_ptr<Loop>> create(const UcxTransportConfig& config);
  ~Loop();

  SlabAllocator slab_allocator() const;
  std::string publish(NodeId node, uint64_t epoch, std::shared_ptr<HostArena> arena);
  void withdraw(NodeId node, uint64_t epoch) { lender_.withdraw(node, epoch); }
  Status open_peer(NodeId node, uint64_t epoch, const std::string& address);
  void close_peer(NodeId node, uint64_t epoch);
  Status fetch(std::vector<Fetch> fetches, int64_t timeout_us, FetchEvents events);
  std::string peer_info(NodeId node) const;

 private:
  struct Request {
    WireRequest header;
    std::string data;
  };
  struct Connection {
    UcxTag tag = {};                  // of the peer
    uint64_t link = 0;                // its number, which rises
    std::unique_ptr<UcxConnection> to_peer;
    std::deque<Request> unsent;
    size_t unanswered = 0;            // blocks, late ones too
    bool has_late = false;            // some of these are of a late fetch
    UcxClock::time_point heard = {};  // last sign of life, or when it was made

    void hear() {
      heard = UcxClock::now();
      if (unanswered == 0) has_late = false;
    }
  };
  struct Peer {
    uint64_t epoch = 0;
    UcxAddress address;
    UcxWay way = UcxWay::kMessages;
    std::string not_memory;  // why not that way
    std::deque<UcxBlock> waiting;
    std::unique_ptr<Connection> connection;  // none: the next fetch makes one
    std::unique_ptr<UcxMapping> mapping;     // of its slab, from the first grant on
    std::unique_ptr<UcxGetLink> get_link;    // to its slab: the same
  };
  struct Asked {
    UcxBlock block;
    Connection* connection = nullptr;
    WireWant want = WireWant::kBytes;
    size_t received_bytes = 0;
    uint32_t crc = 0;  // of these
  };
  struct Granted {
    UcxBlock block;
    uint64_t offset = 0;
  };
  struct Opened {
    uint64_t epoch = 0;
    std::string info;
  };

  explicit Loop(const UcxTransportConfig& config)
      : config_(config),
        tag_(new_ucx_tag()),
        host_(ucx_host_name()),
        lender_(tag_, config.serve_blocks_max, config.askers_max) {}
  Status start();
  Status set_handlers();
  void post(std::function<void()> command);

  // All below: on the thread.
  void run();
  /// False: the thread must end.
  bool run_commands();
  void sleep();
  void end();

  void open(NodeId node, uint64_t epoch, UcxAddress address, UcxWay way, std::string not_memory);
  void close(NodeId node, const Error& why);
  void begin(const std::shared_ptr<UcxFetch>& operation);
  void ask_waiting(NodeId node, Peer& peer);
  Status connect(NodeId node, Peer& peer);
  /// REQUIRES: they are as many as one request may name, and of one size.
  void ask(Peer& peer, std::span<const UcxBlock> blocks);
  /// False: nothing was sent.
  static bool send_requests(Connection& connection);
  bool take_granted();
  size_t take_next_granted();
  bool map_slab_of(NodeId node, Peer& peer);
  bool link_to(NodeId node, Peer& peer);
  bool take_ended_gets();
  size_t on_get_ended(const UcxGets::Ended& ended);
  void close_get_link(Peer& peer);
  /// The peer is reached over TCP from now on.
  void fall_back(NodeId node, Peer& peer, const std::string& why);
  void set_info(NodeId node, const Peer& peer, std::string info);
  void ask_again(const UcxBlock& block, Peer& peer);

  void drop_lost();
  void drop_silent();
  /// Asks again, over a new connection, for what was not answered.
  void reconnect(Peer& peer);
  /// Ends the connection. Requests sent over it get no answer.
  void disconnect(Peer& peer);
  /// Ends the connection and fails all fetches from the peer.
  void drop(NodeId node, Peer& peer, const Error& why);

  void expire();
  void expire(const std::shared_ptr<UcxFetch>& operation);
  void resolve(const UcxBlock& block, Status status);
  /// All of its blocks are over. Gets of a late one may still be open.
  void finish(UcxFetch& operation);
  void on_reply(const WireReply& reply, std::span<const std::byte> data);
  /// Takes the request out of asked_. Nothing: it is late, and its fetch is over.
  std::optional<UcxBlock> answered(std::unordered_map<uint64_t, Asked>::iterator it);
  void on_grants(uint64_t first_id, std::span<const std::byte> offsets);
  void grant(const UcxBlock& block, uint64_t offset);
  void receive(std::unordered_map<uint64_t, Asked>::iterator it, uint64_t offset, std::span<const std::byte> bytes);

  static ucs_status_t am_unknown(void*, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*) { return UCS_OK; }
  static ucs_status_t am_request(void*, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*);
  static ucs_status_t am_reply(void*, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*);

  const UcxTransportConfig config_;
  const UcxTag tag_;      // of what is published here
  const std::string host_;
  UcxLender lender_;      // of what is published here
  std::unique_ptr<UcxSharedMemory> memory_;  // null: memory is not shared
  std::string not_shared_;                   // why
  std::unique_ptr<UcxGets> gets_;            // null: this process takes no part in gets
  std::string no_gets_;                      // why
  std::optional<UcxConnections> connections_;  // of the worker, which may report errors to them while it is destroyed
  std::unique_ptr<UcxWorker> worker_;
  std::string worker_address_;
  int worker_fd_ = -1;
  std::atomic<size_t> open_count_ = 0;  // fetches that are not done
  WakeFd wake_;

  mutable std::mutex mutex_;  // guards the three below
  std::vector<std::function<void()>> commands_;
  std::map<NodeId, Opened> opened_;
  bool stops_ = false;

  // All below: on the thread.
  std::map<NodeId, Peer> peers_;
  std::multimap<UcxClock::time_point, std::shared_ptr<UcxFetch>> operations_;  // not done, by deadline
  std::unordered_map<uint64_t, Asked> asked_;                                // by id of the request
  std::deque<Granted> granted_;
  uint64_t last_id_ = std::random_device{}();
  uint64_t last_link_ = 0;

  std::thread thread_;
};

// ---- what any thread calls ---------------------------------------------------------------------------------------------

Result<std::unique_ptr<UcxTransport::Loop>> UcxTransport::Loop::create(const UcxTransportConfig& config) {
  std::unique_ptr<Loop> loop(new Loop(config));
  SEER_RETURN_IF_ERROR(loop->start());
  loop->thread_ = std::thread([l = loop.get()] { l->run(); });
  return loop;
}

Status UcxTransport::Loop::start() {
  SEER_ASSIGN_OR_RETURN(auto context, UcxContext::create(UcxConnections::settings(config_.network_devices),
                                                         UCP_FEATURE_AM | UCP_FEATURE_WAKEUP));
  SEER_ASSIGN_OR_RETURN(worker_, UcxWorker::create(std::move(context)));
  connections_.emplace(worker_->get());
  SEER_ASSIGN_OR_RETURN(worker_address_, worker_->address());
  if (worker_address_.size() > kWireAskerBytesMax)
    return fail(Code::kIo, "UCX: the address of a worker has ", worker_address_.size(), " bytes, expected ", kWireAskerBytesMax, " at most");
  if (const ucs_status_t s = ucp_worker_get_efd(worker_->get(), &worker_fd_); s != UCS_OK)
    return ucx_error(Code::kIo, "the event descriptor of a worker", s);
  SEER_RETURN_IF_ERROR(set_handlers());
  SEER_RETURN_IF_ERROR(connections_->check_sending(worker_address_));
  if (!config_.shares_memory)
    not_shared_ = "memory is not shared here";
  else if (auto memory = UcxSharedMemory::create(); memory.ok())
    memory_ = *std::move(memory);
  else
    not_shared_ = memory.error().detail;
  if (auto gets = UcxGets::create(config_.get_transports, config_.network_devices); gets.ok())
    gets_ = *std::move(gets);
  else
    no_gets_ = gets.error().detail;
  return {};
}

/// Sets a handler for every message id there can be: UCX crashes on an id without one.
Status UcxTransport::Loop::set_handlers() {
  for (unsigned id = 0; id <= UINT16_MAX; ++id) {
    ucp_am_handler_param_t params{};
    params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    params.id = id;
    params.cb = id == static_cast<unsigned>(WireKind::kRequest) ? am_request
                : id == static_cast<unsigned>(WireKind::kReply) ? am_reply
                                                                : am_unknown;
    params.arg = this;
    if (const ucs_status_t s = ucp_worker_set_am_recv_handler(worker_->get(), &params); s != UCS_OK)
      return ucx_error(Code::kIo, "setting a message handler", s);
  }
  return {};
}

UcxTransport::Loop::~Loop() {
  if (!thread_.joinable()) return;  // was not started
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  wake_.wake();
  thread_.join();
}

SlabAllocator UcxTransport::Loop::slab_allocator() const {
  return [shared = memory_ ? memory_->slabs() : nullptr, network = gets_ ? gets_->slabs() : nullptr](int64_t bytes) -> Result<Slab> {
    Result<Slab> slab = shared ? shared->allocate(bytes) : map_slab(bytes);
    if (!slab.ok() || !network) return slab;
    // Else its blocks are sent in messages, and UCX has logged why it does not register the slab.
    if (auto registration = network->register_slab(slab->bytes()); registration.ok()) slab->keep(*std::move(registration));
    return slab;
  };
}

std::string UcxTransport::Loop::publish(NodeId node, uint64_t epoch, std::shared_ptr<HostArena> arena) {
  const std::byte* const base = arena->span(0).data();
  UcxAddress address{.tag = tag_, .node = node, .epoch = epoch, .slab_base = reinterpret_cast<uint64_t>(base),
                     .slab_bytes = arena->slot_count() * static_cast<uint64_t>(arena->slot_bytes()), .host = host_,
                     .worker = worker_address_};
  if (memory_) address.slab_key = memory_->slabs()->key_of(base);
  if (gets_) address.get_key = gets_->slabs()->key_of(base);
  if (!address.get_key.empty()) address.get_worker = gets_->address();
  lender_.publish(node, epoch, std::move(arena));
  return write_ucx_address(address);
}

Status UcxTransport::Loop::open_peer(NodeId node, uint64_t epoch, const std::string& text) {
  SEER_ASSIGN_OR_RETURN(UcxAddress address, read_ucx_address(text));
  if (address.node != node)
    return fail(Code::kInvalidArgument, "transport: the address is that of node ", address.node, ", not of node ", node);
  if (address.epoch != epoch)
    return fail(Code::kStale, "transport: node ", node, " is in epoch ", address.epoch, ", not ", epoch);
  std::string not_memory, no_get;
  if (address.host != host_)
    not_memory = "another host";
  else if (!memory_)
    not_memory = not_shared_;
  else if (address.slab_key.empty())
    not_memory = "its slab is not shared";
  if (!gets_)
    no_get = no_gets_;
  else if (address.get_key.empty())
    no_get = "its slab is not registered for gets";
  const UcxWay way = not_memory.empty() ? UcxWay::kMemory : no_get.empty() ? UcxWay::kGet : UcxWay::kMessages;
  std::string info = way == UcxWay::kMemory ? "shared memory: same host"
                     : way == UcxWay::kGet  ? cat("network (get over ", config_.get_transports, "): ", not_memory)
                                            : cat("network (tcp): ", not_memory, "; ", no_get);
  {
    const std::lock_guard lock(mutex_);
    const auto known = opened_.find(node);
    if (known != opened_.end() && known->second.epoch > epoch)
      return fail(Code::kStale, "transport: node ", node, " was opened in epoch ", known->second.epoch, ", not ", epoch);
    if (known != opened_.end() && known->second.epoch == epoch) return {};
    opened_[node] = {epoch, std::move(info)};
    commands_.push_back([this, node, epoch, address = std::move(address), way, not_memory = std::move(not_memory)]() mutable {
      open(node, epoch, std::move(address), way, std::move(not_memory));
    });
  }
  wake_.wake();
  return {};
}

void UcxTransport::Loop::close_peer(NodeId node, uint64_t epoch) {
  {
    const std::lock_guard lock(mutex_);
    const auto known = opened_.find(node);
    if (known == opened_.end() || known->second.epoch != epoch) return;
    opened_.erase(known);
    commands_.push_back([this, node] { close(node, fail(Code::kUnavailable, "transport: node ", node, " was closed")); });
  }
  wake_.wake();
}

Status UcxTransport::Loop::fetch(std::vector<Fetch> fetches, int64_t timeout_us, FetchEvents events) {
  const size_t open = open_count_.fetch_add(1);
  if (open >= config_.queue_max) {
    --open_count_;
    return fail(Code::kFull, "transport: ", open, " fetches are open");
  }
  const auto end = UcxClock::now() + std::chrono::microseconds(timeout_us);
  auto operation = std::make_shared<UcxFetch>(UcxFetch{std::move(fetches), timeout_us, end, std::move(events)});
  post([this, operation = std::move(operation)] { begin(operation); });
  return {};
}

std::string UcxTransport::Loop::peer_info(NodeId node) const {
  const std::lock_guard lock(mutex_);
  const auto known = opened_.find(node);
  return known == opened_.end() ? "" : known->second.info;
}

void UcxTransport::Loop::post(std::function<void()> command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  wake_.wake();
}

// ---- the thread -----------------------------------------------------------------------------------------------------------

void UcxTransport::Loop::run() {
  while (run_commands()) {
    drop_lost();
    expire();
    drop_silent();
    bool has_done = take_granted();
    for (auto& [node, peer] : peers_) {
      ask_waiting(node, peer);
      if (peer.connection) has_done |= send_requests(*peer.connection);
    }
    has_done |= lender_.advance(*connections_);
    connections_->end_closed();
    if (gets_) gets_->end_closed();
    has_done |= take_ended_gets();
    // Last: UCX may sleep only if nothing was started since it found nothing to do.
    has_done |= ucp_worker_progress(worker_->get()) != 0;
    if (gets_) has_done |= gets_->progress();
    if (!has_done) sleep();
  }
  end();
}

bool UcxTransport::Loop::run_commands() {
  std::vector<std::function<void()>> commands;
  bool stops = false;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
    stops = stops_;
  }
  for (const auto& command : commands) command();
  return !stops;
}

/// Sleeps until UCX has an event, another thread posts a command, or a deadline has come.
void UcxTransport::Loop::sleep() {
  // Not armed: something came meanwhile.
  if (ucp_worker_arm(worker_->get()) != UCS_OK || (gets_ && !gets_->arm())) return;
  auto until = UcxClock::now() + std::chrono::seconds(10);
  if (!operations_.empty()) until = std::min(until, operations_.begin()->first);
  for (const auto& [node, peer] : peers_)
    if (peer.connection && peer.connection->has_late)
      until = std::min(until, peer.connection->heard + std::chrono::microseconds(config_.silent_us));
  // Closing does not always raise an event.
  if (connections_->has_closing() || (gets_ && gets_->has_closing()))
    until = std::min(until, UcxClock::now() + std::chrono::milliseconds(1));
  const int64_t ns = std::max<int64_t>(0, std::chrono::nanoseconds(until - UcxClock::now()).count());
  const timespec timeout{ns / 1'000'000'000, ns % 1'000'000'000};
  pollfd fds[] = {{worker_fd_, POLLIN, 0}, {wake_.get(), POLLIN, 0}, {gets_ ? gets_->event_fd() : -1, POLLIN, 0}};
  if (ppoll(fds, std::size(fds), &timeout, nullptr) > 0 && fds[1].revents != 0) wake_.clear();
}

/// Answers all open fetches and destroys what belongs to this thread.
void UcxTransport::Loop::end() {
  const Error closed = fail(Code::kCancelled, "the transport was closed");
  for (auto& [node, peer] : peers_) drop(node, peer, closed);
  lender_.close_all(*connections_);
  const auto give_up = UcxClock::now() + std::chrono::seconds(5);
  while ((connections_->has_closing() || (gets_ && gets_->has_closing())) && UcxClock::now() < give_up) {
    if (ucp_worker_progress(worker_->get()) == 0 && (!gets_ || !gets_->progress())) std::this_thread::yield();
    connections_->end_closed();
    if (gets_) gets_->end_closed();
  }
  if (gets_) gets_->stop();
  while (take_ended_gets()) {
  }
  peers_.clear();  // with their mappings
  memory_.reset();
  worker_.reset();
}

// ---- peers and connections -------------------------------------------------------------------------------------------------

void UcxTransport::Loop::open(NodeId node, uint64_t epoch, UcxAddress address, UcxWay way, std::string not_memory) {
  close(node, fail(Code::kStale, "transport: node ", node, " is in epoch ", epoch));
  Peer& peer = peers_[node];
  peer.epoch = epoch;
  peer.address = std::move(address);
  peer.way = way;
  peer.not_memory = std::move(not_memory);
}

void UcxTransport::Loop::close(NodeId node, const Error& why) {
  const auto it = peers_.find(node);
  if (it == peers_.end()) return;
  drop(node, it->second, why);
  peers_.erase(it);
}

Status UcxTransport::Loop::connect(NodeId node, Peer& peer) {
  auto to_peer = connections_->connect(peer.address.worker);
  if (!to_peer.ok()) return fail(Code::kUnavailable, "transport: node ", node, " cannot be reached: ", to_peer.error().detail);
  peer.connection = std::make_unique<Connection>(Connection{
      .tag = peer.address.tag, .link = ++last_link_, .to_peer = *std::move(to_peer), .unsent = {}, .heard = UcxClock::now()});
  return {};
}

void UcxTransport::Loop::drop_lost() {
  for (auto& [node, peer] : peers_) {
    if (peer.connection && peer.connection->to_peer->lost() != UCS_OK)
      drop(node, peer, fail(Code::kUnavailable, "transport: the connection to node ", node,
                            " was lost: ", ucs_status_string(peer.connection->to_peer->lost())));
    if (peer.get_link && peer.get_link->lost() != UCS_OK) fall_back(node, peer, ucs_status_string(peer.get_link->lost()));
  }
}

void UcxTransport::Loop::drop_silent() {
  for (auto& [node, peer] : peers_)
    if (peer.connection && peer.connection->has_late &&
        UcxClock::now() >= peer.connection->heard + std::chrono::microseconds(config_.silent_us))
      reconnect(peer);
}

void UcxTransport::Loop::reconnect(Peer& peer) {
  for (const auto& [id, asked] : asked_)
    if (asked.connection == peer.connection.get() && asked.block.state() == UcxBlockState::kAsked) ask_again(asked.block, peer);
  disconnect(peer);
}

void UcxTransport::Loop::disconnect(Peer& peer) {
  if (!peer.connection) return;
  std::erase_if(asked_, [&](const auto& asked) { return asked.second.connection == peer.connection.get(); });
  connections_->close(std::move(peer.connection->to_peer));
  peer.connection.reset();
}

void UcxTransport::Loop::drop(NodeId node, Peer& peer, const Error& why) {
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

void UcxTransport::Loop::begin(const std::shared_ptr<UcxFetch>& operation) {
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
void UcxTransport::Loop::ask_waiting(NodeId node, Peer& peer) {
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

void UcxTransport::Loop::ask(Peer& peer, std::span<const UcxBlock> blocks) {
  Connection& connection = *peer.connection;
  const Fetch& first = blocks.front().fetch();
  const WireWant want = peer.way == UcxWay::kMessages ? WireWant::kBytes : WireWant::kGrant;
  Request request{{.tag = connection.tag, .id = last_id_ + 1, .link = connection.link, .epoch = first.from.epoch,
                   .block_bytes = first.to.size(), .node = first.from.node.value, .want = want,
                   .asker_bytes = static_cast<uint32_t>(worker_address_.size())},
                  worker_address_};
  if (connection.unanswered == 0) connection.heard = UcxClock::now();
  for (const UcxBlock& block : blocks) {
    const RemoteSlot& from = block.fetch().from;
    const WireSlot slot{.generation = from.generation, .slot = from.slot};
    request.data.append(reinterpret_cast<const char*>(&slot), sizeof slot);
    asked_.emplace(++last_id_, Asked{block, &connection, want});
    block.state() = UcxBlockState::kAsked;
    ++connection.unanswered;
  }
  request.header.data_crc = crc32c(std::as_bytes(std::span(request.data)));
  connection.unsent.push_back(std::move(request));
}

bool UcxTransport::Loop::send_requests(Connection& connection) {
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

void UcxTransport::Loop::expire() {
  const auto now = UcxClock::now();
  while (!operations_.empty() && operations_.begin()->first <= now) {
    const std::shared_ptr<UcxFetch> operation = operations_.begin()->second;
    operations_.erase(operations_.begin());
    expire(operation);
  }
}

/// Late answers are dropped, late gets are stopped.
void UcxTransport::Loop::expire(const std::shared_ptr<UcxFetch>& operation) {
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

void UcxTransport::Loop::resolve(const UcxBlock& block, Status status) {
  UcxFetch& operation = *block.operation;
  if (block.state() == UcxBlockState::kOver) return;
  block.state() = UcxBlockState::kOver;
  operation.statuses[block.index] = std::move(status);
  if (--operation.left > 0) return;
  const auto [first, last] = operations_.equal_range(operation.end);
  operations_.erase(std::find_if(first, last, [&](const auto& known) { return known.second == block.operation; }));
  finish(operation);
}

void UcxTransport::Loop::finish(UcxFetch& operation) {
  --open_count_;
  const bool still_writing = operation.gets > 0;
  operation.events.done({std::move(operation.statuses), still_writing});
  operation.events.done = nullptr;
  if (!still_writing) operation.events.quiet = nullptr;
}

/// Copies blocks for some 100 us, at least one, and begins gets; then other work gets its turn. False: none was granted.
bool UcxTransport::Loop::take_granted() {
  if (granted_.empty()) return false;
  size_t bytes = 0;
  while (!granted_.empty() && bytes < kBytesAtOnce) bytes += take_next_granted();
  return true;
}

/// Returns the bytes copied. REQUIRES: one is granted.
size_t UcxTransport::Loop::take_next_granted() {
  const Granted granted = std::move(granted_.front());
  granted_.pop_front();
  const UcxBlock& block = granted.block;
  if (block.state() != UcxBlockState::kGranted) return 0;
  const RemoteSlot& from = block.fetch().from;
  Peer& peer = peers_.at(from.node);
  if (peer.way == UcxWay::kGet && (peer.get_link || link_to(from.node, peer))) {
    block.state() = UcxBlockState::kGetting;
    gets_->get(*peer.get_link, block, peer.address.slab_base + granted.offset);
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
bool UcxTransport::Loop::map_slab_of(NodeId node, Peer& peer) {
  auto mapping = memory_->map(peer.address.slab_key, peer.address.slab_base);
  if (mapping.ok()) {
    peer.mapping = *std::move(mapping);
    return true;
  }
  fall_back(node, peer, cat("its slab cannot be mapped: ", mapping.error().detail));
  return false;
}

/// Called after a grant, as above. False: the peer is reached over TCP from now on.
bool UcxTransport::Loop::link_to(NodeId node, Peer& peer) {
  auto link = gets_->connect(peer.address.get_worker, peer.address.get_key);
  if (!link.ok()) {
    fall_back(node, peer, cat("no get: ", link.error().detail));
    return false;
  }
  peer.get_link = *std::move(link);
  if (!peer.get_link->transport().empty())
    set_info(node, peer, cat("network (get over ", peer.get_link->transport(), "): ", peer.not_memory));
  return true;
}

/// Checks the blocks that gets brought, for some 100 us. False: none has ended.
bool UcxTransport::Loop::take_ended_gets() {
  bool has_ended = false;
  size_t bytes = 0;
  while (gets_ && bytes < kBytesAtOnce) {
    const std::optional<UcxGets::Ended> ended = gets_->take_ended();
    if (!ended) break;
    bytes += on_get_ended(*ended);
    has_ended = true;
  }
  return has_ended;
}

/// Returns the bytes checked.
size_t UcxTransport::Loop::on_get_ended(const UcxGets::Ended& ended) {
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

void UcxTransport::Loop::close_get_link(Peer& peer) {
  if (peer.get_link) gets_->close(std::move(peer.get_link));
}

void UcxTransport::Loop::fall_back(NodeId node, Peer& peer, const std::string& why) {
  close_get_link(peer);
  peer.way = UcxWay::kMessages;
  set_info(node, peer, cat("network (tcp): ", why));
}

void UcxTransport::Loop::set_info(NodeId node, const Peer& peer, std::string info) {
  const std::lock_guard lock(mutex_);
  if (const auto known = opened_.find(node); known != opened_.end() && known->second.epoch == peer.epoch)
    known->second.info = std::move(info);
}

void UcxTransport::Loop::ask_again(const UcxBlock& block, Peer& peer) {
  block.state() = UcxBlockState::kWaiting;
  peer.waiting.push_front(block);
}

// ---- messages ----------------------------------------------------------------------------------------------------------------

ucs_status_t UcxTransport::Loop::am_request(void* argument, const void* header, size_t header_bytes, void* data, size_t size,
                                            const ucp_am_recv_param_t* params) {
  if ((params->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return UCS_OK;  // the data is not here, and is not wanted
  static_cast<Loop*>(argument)->lender_.receive({static_cast<const std::byte*>(header), header_bytes},
                                                {static_cast<const std::byte*>(data), size});
  return UCS_OK;
}

ucs_status_t UcxTransport::Loop::am_reply(void* argument, const void* header, size_t header_bytes, void* data, size_t size,
                                          const ucp_am_recv_param_t* params) {
  WireReply reply;
  if (header_bytes != sizeof reply || (params->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return UCS_OK;
  std::memcpy(&reply, header, sizeof reply);
  static_cast<Loop*>(argument)->on_reply(reply, {static_cast<const std::byte*>(data), size});
  return UCS_OK;
}

void UcxTransport::Loop::on_reply(const WireReply& reply, std::span<const std::byte> data) {
  const auto it = asked_.find(reply.id);
  if (it == asked_.end() || reply.tag != it->second.connection->tag) return;
  if (reply.code != 0) {
    const bool is_known = reply.code <= static_cast<uint32_t>(Code::kCancelled);
    const std::string_view text(reinterpret_cast<const char*>(data.data()), std::min<size_t>(data.size(), 300));
    if (const std::optional<UcxBlock> block = answered(it))
      resolve(*block, fail(is_known ? static_cast<Code>(reply.code) : Code::kIo, text));
  } else if (it->second.want == WireWant::kGrant) {
    on_grants(reply.id, data);
  } else {
    receive(it, reply.offset, data);
  }
}

std::optional<UcxBlock> UcxTransport::Loop::answered(std::unordered_map<uint64_t, Asked>::iterator it) {
  const Asked asked = std::move(it->second);
  asked_.erase(it);
  --asked.connection->unanswered;
  asked.connection->hear();
  if (asked.block.state() != UcxBlockState::kAsked) return std::nullopt;
  return asked.block;
}

void UcxTransport::Loop::on_grants(uint64_t first_id, std::span<const std::byte> offsets) {
  uint64_t offset;
  for (size_t i = 0; (i + 1) * sizeof offset <= offsets.size(); ++i) {
    const auto it = asked_.find(first_id + i);
    if (it == asked_.end() || it->second.want != WireWant::kGrant) return;
    std::memcpy(&offset, offsets.data() + i * sizeof offset, sizeof offset);
    if (const std::optional<UcxBlock> block = answered(it)) grant(*block, offset);
  }
}

void UcxTransport::Loop::grant(const UcxBlock& block, uint64_t offset) {
  const Fetch& fetch = block.fetch();
  const uint64_t slab_bytes = peers_.at(fetch.from.node).address.slab_bytes;
  if (fetch.to.size() > slab_bytes || offset > slab_bytes - fetch.to.size()) {
    return resolve(block, fail(Code::kInvalidArgument, "transport: node ", fetch.from.node, " granted bytes from ", offset, " of its ",
                               slab_bytes));
  }
  block.state() = UcxBlockState::kGranted;
  granted_.push_back({block, offset});
}

/// Some bytes of a block came. Those of a late fetch are only counted: its slots are no longer ours.
void UcxTransport::Loop::receive(std::unordered_map<uint64_t, Asked>::iterator it, uint64_t offset, std::span<const std::byte> bytes) {
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

// ---- UcxTransport ------------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<UcxTransport>> UcxTransport::create(const UcxTransportConfig& config) {
  SEER_ASSIGN_OR_RETURN(auto loop, Loop::create(config));
  return std::unique_ptr<UcxTransport>(new UcxTransport(std::move(loop)));
}
UcxTransport::UcxTransport(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
UcxTransport::~UcxTransport() = default;

SlabAllocator UcxTransport::slab_allocator() const { return loop_->slab_allocator(); }
std::string UcxTransport::publish(NodeId node, uint64_t epoch, std::shared_ptr<HostArena> arena) {
  return loop_->publish(node, epoch, std::move(arena));
}
void UcxTransport::withdraw(NodeId node, uint64_t epoch) { loop_->withdraw(node, epoch); }
Status UcxTransport::open_peer(NodeId node, uint64_t epoch, const std::string& address) {
  return loop_->open_peer(node, epoch, address);
}
void UcxTransport::close_peer(NodeId node, uint64_t epoch) { loop_->close_peer(node, epoch); }
Status UcxTransport::fetch(std::vector<Fetch> fetches, int64_t timeout_us, FetchEvents events) {
  return loop_->fetch(std::move(fetches), timeout_us, std::move(events));
}
std::string UcxTransport::peer_info(NodeId node) const { return loop_->peer_info(node); }

}  // namespace seer
