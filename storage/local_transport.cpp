#include "storage/local_transport.h"

#include <chrono>
#include <utility>

namespace seer {

LocalTransport::LocalTransport(const LocalTransportConfig& config)
    : config_(config), thread_({}, [this](Operation& operation) { run(operation); }) {}

LocalTransport::~LocalTransport() {
  for (Operation& operation : thread_.stop())
    operation.events.done({std::vector<Status>(operation.fetches.size(), fail(Code::kCancelled, "the transport was closed"))});
}

Status LocalTransport::fetch(std::vector<Fetch> fetches, int64_t timeout_us, FetchEvents events) {
  const size_t queued = queued_.fetch_add(1);
  if (queued >= config_.queue_max) {
    --queued_;
    return fail(Code::kFull, "transport: ", queued, " fetches are open");
  }
  thread_.put({std::move(fetches), timeout_us, std::move(events)});
  return {};
}

void LocalTransport::run(Operation& operation) {
  --queued_;
  FetchResult result;
  auto came = std::chrono::steady_clock::now();
  for (const Fetch& fetch : operation.fetches) {
    const bool late = std::chrono::steady_clock::now() >= came + std::chrono::microseconds(operation.timeout_us);
    result.statuses.push_back(late ? Status(late_fetch(fetch.from.node, operation.timeout_us)) : arenas_.copy(fetch));
    if (!late) came = std::chrono::steady_clock::now();
  }
  operation.events.done(std::move(result));
}

}  // namespace seer
