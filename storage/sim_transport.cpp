#include "storage/sim_transport.h"

#include <utility>

namespace seer {

SimTransport::SimTransport(SimTransportConfig config, Schedule schedule)
    : config_(std::move(config)), schedule_(std::move(schedule)) {}

Status SimTransport::fetch(std::vector<Fetch> fetches, Done done) {
  if (open_ >= config_.queue_max) return fail(Code::kFull, "transport: ", open_, " fetches are open");
  ++open_;
  int64_t bytes = 0;
  for (const Fetch& f : fetches) bytes += static_cast<int64_t>(f.to.size());
  const int64_t us = config_.latency_us + bytes * 1'000'000 / config_.bytes_per_s;
  schedule_(us, [this, fetches = std::move(fetches), done = std::move(done), alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired()) return;
    --open_;
    std::vector<Status> statuses;
    for (const Fetch& f : fetches) {
      const std::optional<Code> fault = config_.fault ? config_.fault(f.from) : std::nullopt;
      statuses.push_back(fault ? Status(fail(*fault, "transport: simulated fault")) : arenas_.copy(f));
    }
    done(std::move(statuses));
  });
  return {};
}

}  // namespace seer
