#include "storage/ucx_transport.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "storage/ucx_borrower.h"
#include "storage/ucx_connection.h"
#include "storage/ucx_gets.h"
#include "storage/ucx_handles.h"
#include "storage/ucx_lender.h"
#include "storage/ucx_shared_memory.h"
#include "storage/ucx_slabs.h"
#include "storage/ucx_wire.h"

namespace seer {

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

  void set_info(NodeId node, uint64_t epoch, std::string info);

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
  // Of the worker, which may call both while it is destroyed.
  std::optional<UcxConnections> connections_;
  std::optional<UcxBorrower> borrower_;  // of blocks of others
  std::unique_ptr<UcxWorker> worker_;
  std::string worker_address_;
  int worker_fd_ = -1;
  WakeFd wake_;

  mutable std::mutex mutex_;  // guards the three below
  std::vector<std::function<void()>> commands_;
  std::map<NodeId, Opened> opened_;
  bool stops_ = false;

  std::thread thread_;
};

// ---- what any thread calls ---------------------------------------------------------------------------------------------

Result<std::unique_ptr<UcxTransport::Loop>> UcxTransport::Loop::create(const UcxTransportConfig& config) {
  std::unique_ptr<Loop> loop(new Loop(config));
  SEER_RETURN_IF_ERROR(loop->start());
  loop->thread_ = std::thread([l = loop.get()] { l->run(); });
  ::pthread_setname_np(loop->thread_.native_handle(), "seer.ucx");
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
  borrower_.emplace(config_, UcxBorrower::Parts{.own_address = worker_address_, .connections = *connections_, .memory = memory_.get(),
                                                .gets = gets_.get(), .tell_info = [this](NodeId node, uint64_t epoch, std::string info) {
                                                  set_info(node, epoch, std::move(info));
                                                }});
  SEER_RETURN_IF_ERROR(set_handlers());
  return connections_->check_sending(worker_address_);
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
      borrower_->open(node, epoch, std::move(address), way, std::move(not_memory));
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
    commands_.push_back([this, node] { borrower_->close(node, fail(Code::kUnavailable, "transport: node ", node, " was closed")); });
  }
  wake_.wake();
}

Status UcxTransport::Loop::fetch(std::vector<Fetch> fetches, int64_t timeout_us, FetchEvents events) {
  SEER_RETURN_IF_ERROR(borrower_->admit());
  const auto end = UcxClock::now() + std::chrono::microseconds(timeout_us);
  auto operation = std::make_shared<UcxFetch>(UcxFetch{std::move(fetches), timeout_us, end, std::move(events)});
  post([this, operation = std::move(operation)] { borrower_->begin(operation); });
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
    bool has_done = borrower_->advance();
    has_done |= lender_.advance(*connections_);
    connections_->end_closed();
    if (gets_) gets_->end_closed();
    has_done |= borrower_->take_ended_gets();
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
  auto until = borrower_->next_deadline(UcxClock::now() + std::chrono::seconds(10));
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
  borrower_->close_all(fail(Code::kCancelled, "the transport was closed"));
  lender_.close_all(*connections_);
  const auto give_up = UcxClock::now() + std::chrono::seconds(5);
  while ((connections_->has_closing() || (gets_ && gets_->has_closing())) && UcxClock::now() < give_up) {
    if (ucp_worker_progress(worker_->get()) == 0 && (!gets_ || !gets_->progress())) std::this_thread::yield();
    connections_->end_closed();
    if (gets_) gets_->end_closed();
  }
  if (gets_) gets_->stop();
  bool has_ended = true;
  while (has_ended) has_ended = borrower_->take_ended_gets();
  memory_.reset();
  worker_.reset();
}

void UcxTransport::Loop::set_info(NodeId node, uint64_t epoch, std::string info) {
  const std::lock_guard lock(mutex_);
  if (const auto known = opened_.find(node); known != opened_.end() && known->second.epoch == epoch) known->second.info = std::move(info);
}

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
  static_cast<Loop*>(argument)->borrower_->receive(reply, {static_cast<const std::byte*>(data), size});
  return UCS_OK;
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
