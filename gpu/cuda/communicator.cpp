#include "gpu/cuda/communicator.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "gpu/cuda/peers.h"
#include "protocols/check.h"

namespace seer::cuda {
namespace {

constexpr int64_t kPollUs = 5'000;  // after which a waiting rank looks at its peers

/// Through pinned memory of the host, which has room for what all ranks give to one gather. Not for GPUs: CUDA may run calls of the host
/// one at a time, also those of several GPUs, so that none may wait for another.
class HostCommunicator final : public PeerCommunicator {
 public:
  HostCommunicator(int32_t rank, Device& device, std::shared_ptr<Peers> peers, std::byte* exchange, int64_t bytes_max)
      : PeerCommunicator(rank, device, std::move(peers)), exchange_(exchange), bytes_max_(bytes_max), meeting_(rank_, *peers_) {}

  void all_gather(std::byte* memory, int64_t bytes) override {
    SEER_CHECK(bytes <= bytes_max_, bytes, bytes_max_);
    device_.copy_out(Stream::kSteps, exchange_ + rank_ * bytes, memory + rank_ * bytes, bytes);
    device_.call(Stream::kSteps, meeting_);  // all of it is there
    for (int64_t other = 0; other < ranks(); ++other)
      if (other != rank_) device_.copy_in(Stream::kSteps, memory + other * bytes, exchange_ + other * bytes, bytes);
    device_.call(Stream::kSteps, meeting_);  // and nobody needs it any more
  }

 private:
  class Meeting final : public HostCall {
   public:
    Meeting(int32_t rank, Peers& peers) : rank_(rank), peers_(peers) {}
    Status run() override { return peers_.arrive_and_wait(rank_); }

   private:
    const int32_t rank_;
    Peers& peers_;
  };

  std::byte* const exchange_;
  const int64_t bytes_max_;
  Meeting meeting_;
};

}  // namespace

Status Peers::arrive_and_wait(int32_t rank) {
  std::unique_lock lock(mutex_);
  return wait_for_all(lock, arrived_, rank, "a gather");
}

Result<bool> Peers::agree(int32_t rank, bool yes) {
  std::unique_lock lock(mutex_);
  const int64_t vote = voted_[static_cast<size_t>(rank)] + 1;
  int64_t& refused = refused_[static_cast<size_t>(vote % 2)];
  if (!yes) refused = vote;
  SEER_RETURN_IF_ERROR(wait_for_all(lock, voted_, rank, "a vote"));
  return refused != vote;
}

Status Peers::wait_for_all(std::unique_lock<std::mutex>& lock, Counts& counts, int32_t rank, const char* to_what) {
  const int64_t times = ++counts[static_cast<size_t>(rank)];
  changed_.notify_all();
  const auto late = [&] { return std::ranges::find_if(counts, [times](int64_t n) { return n < times; }); };
  const bool in_time = changed_.wait_for(lock, std::chrono::microseconds(timeout_us_),
                                         [&] { return failure_.has_value() || late() == counts.end(); });
  if (!in_time) {
    failure_ = fail(Code::kUnavailable, "cuda: rank ", late() - counts.begin(), " of ", counts.size(), " did not come to ", to_what,
                    " within ", timeout_us_, " us");
    changed_.notify_all();
  }
  return failure_ ? Status(*failure_) : Status();
}

void Peers::abort(const Error& why) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = why;
  changed_.notify_all();
}

std::optional<Error> Peers::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

bool PeerCommunicator::agree(bool yes) {
  const Result<bool> agreed = peers_->agree(rank_, yes);
  if (!agreed.ok()) device_.fail_with(agreed.error());
  return agreed.ok() && *agreed;
}

Status PeerCommunicator::wait(EventId event) {
  const auto begin = std::chrono::steady_clock::now();
  bool over = false;
  while (!over) {
    over = device_.wait_for(event, kPollUs);
    if (const Status found = check(); !found.ok()) device_.fail_with(found.error());
    if (!over && std::chrono::steady_clock::now() - begin > std::chrono::microseconds(peers_->timeout_us()))
      device_.fail_with(fail(Code::kUnavailable, "cuda: ", name(), " did not end its work within ", peers_->timeout_us(), " us"));
    if (const std::optional<Error> failure = peers_->failure()) device_.fail_with(*failure);
    if (const Status status = device_.status(); !status.ok()) {
      peers_->abort(fail(Code::kUnavailable, "cuda: ", name(), " failed: ", status.error().detail));
      device_.drop_graphs();  // first: they have gathers, too
      end_gathers();
      over = true;
    }
  }
  return device_.status();
}

Result<std::vector<std::unique_ptr<Communicator>>> make_communicators(std::span<Device* const> devices, const CommunicatorConfig& config) {
  if (std::ranges::any_of(devices, [](Device* d) { return d->native_stream(Stream::kSteps) != nullptr; })) {
    if (const Result<std::string> nccl = nccl_version(); !nccl.ok())
      return fail(Code::kUnavailable, "cuda engine: an instance on ", devices.size(), " GPUs needs NCCL, libnccl.so.2: ", nccl.error().detail);
    return make_nccl_communicators(devices, config);
  }
  SEER_ASSIGN_OR_RETURN(std::byte * exchange, devices[0]->allocate_pinned(std::ssize(devices) * config.bytes_max));
  const auto peers = std::make_shared<Peers>(static_cast<int32_t>(devices.size()), config.timeout_us);
  std::vector<std::unique_ptr<Communicator>> made;
  for (Device* device : devices)
    made.push_back(std::make_unique<HostCommunicator>(static_cast<int32_t>(made.size()), *device, peers, exchange, config.bytes_max));
  return made;
}

}  // namespace seer::cuda
