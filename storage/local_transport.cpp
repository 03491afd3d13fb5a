#include "storage/local_transport.h"

#include <utility>

namespace seer {

LocalTransport::LocalTransport(const LocalTransportConfig& config) : config_(config) {
  thread_ = std::thread([this] { work(); });
}

LocalTransport::~LocalTransport() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
  for (Operation& operation : queue_)
    operation.done(std::vector<Status>(operation.fetches.size(), fail(Code::kCancelled, "the transport was closed")));
}

Status LocalTransport::fetch(std::vector<Fetch> fetches, Done done) {
  {
    std::lock_guard lock(mutex_);
    if (queue_.size() >= config_.queue_max) return fail(Code::kFull, "transport: ", queue_.size(), " fetches are open");
    queue_.push_back({std::move(fetches), std::move(done)});
  }
  wake_.notify_one();
  return {};
}

void LocalTransport::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    Operation operation = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    std::vector<Status> statuses;
    for (const Fetch& fetch : operation.fetches) statuses.push_back(arenas_.copy(fetch));
    operation.done(std::move(statuses));
    operation = {};
    lock.lock();
  }
}

}  // namespace seer
