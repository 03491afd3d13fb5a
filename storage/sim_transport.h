// SimTransport: the transport seam on a virtual clock: copies between arenas of one process that take the time that a
// network would. Deterministic; single-threaded. Faults are decided by a hook.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "storage/arena_registry.h"
#include "storage/kv_transport.h"

namespace seer {

struct SimTransportConfig {
  int64_t latency_us = 20;                      // of each fetch call
  int64_t bytes_per_s = 10'000'000'000;
  size_t queue_max = 256;                       // fetch calls open at most
  std::function<std::optional<Code>(const RemoteSlot&)> fault = {};  // the error of one fetch, or nothing
};

class SimTransport final : public KvTransport {
 public:
  /// Runs a function after a delay, later and on the caller's thread.
  using Schedule = std::function<void(int64_t delay_us, std::function<void()>)>;
  SimTransport(SimTransportConfig config, Schedule schedule);

  /// Whose memory can be fetched.
  ArenaRegistry& arenas() { return arenas_; }
  Status fetch(std::vector<Fetch> fetches, Done done) override;

 private:
  SimTransportConfig config_;
  Schedule schedule_;
  ArenaRegistry arenas_;
  size_t open_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // timers that fire after our end do nothing
};

}  // namespace seer
