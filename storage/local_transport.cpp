#include "storage/local_transport.h"

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
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(timeout_us);
  thread_.put({std::move(fetches), timeout_us, end, std::move(events)});
  return {};
}

void LocalTransport::run(Operation& operation) {
  --queued_;
  FetchResult result;
  for (const Fetch& fetch : operation.fetches) {
    const bool late = std::chrono::steady_clock::now() >= operation.end;
    result.statuses.push_back(late ? Status(late_fetch(fetch.from.node, operation.timeout_us)) : arenas_.copy(fetch));
  }
  operation.events.done(std::move(result));
}

}  // namespace seer
