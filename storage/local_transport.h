// LocalTransport: a KvTransport between arenas of one process, as memory copies on a thread of its own. For several
// (simulated) nodes in one process and for instances that do not share an arena. Thread-safe.
//
// Each fetch is checked as a remote one would be (ArenaRegistry). `done` runs on the transport's thread.
#pragma once
#include <atomic>
#include <cstddef>
#include <vector>

#include "protocols/workers.h"
#include "storage/arena_registry.h"
#include "storage/kv_transport.h"

namespace seer {

struct LocalTransportConfig {
  size_t queue_max = 256;  // fetch calls open at most
};

class LocalTransport final : public KvTransport {
 public:
  explicit LocalTransport(const LocalTransportConfig& config = {});
  ~LocalTransport() override;  // fetches that are still queued are answered with kCancelled

  /// Whose memory can be fetched.
  ArenaRegistry& arenas() { return arenas_; }

  Status fetch(std::vector<Fetch> fetches, Done done) override;

 private:
  struct Operation {
    std::vector<Fetch> fetches;
    Done done;
  };

  void run(Operation& operation);

  const LocalTransportConfig config_;
  ArenaRegistry arenas_;
  std::atomic<size_t> queued_ = 0;
  Workers<Operation> thread_;  // last: joined before anything it uses goes
};

}  // namespace seer
