#include "storage/local_transport.h"

#include <utility>

namespace seer {

LocalTransport::LocalTransport(const LocalTransportConfig& config)
    : config_(config), thread_({}, [this](Operation& operation) { run(operation); }) {}

LocalTransport::~LocalTransport() {
  for (Operation& operation : thread_.stop())
    operation.done(std::vector<Status>(operation.fetches.size(), fail(Code::kCancelled, "the transport was closed")));
}

Status LocalTransport::fetch(std::vector<Fetch> fetches, Done done) {
  const size_t queued = queued_.fetch_add(1);
  if (queued >= config_.queue_max) {
    --queued_;
    return fail(Code::kFull, "transport: ", queued, " fetches are open");
  }
  thread_.put({std::move(fetches), std::move(done)});
  return {};
}

void LocalTransport::run(Operation& operation) {
  --queued_;
  std::vector<Status> statuses;
  for (const Fetch& fetch : operation.fetches) statuses.push_back(arenas_.copy(fetch));
  operation.done(std::move(statuses));
}

}  // namespace seer
