// rt_net: actors of other processes, over CAF's network module. The rest of the runtime knows handles only.
//
// Processes compare protocol numbers when they connect and refuse a different one. A peer that is silent for kSilentUs counts as
// dead.
#pragma once
#include <caf/io/all.hpp>
#include <string>

#include "protocols/actors.h"

namespace seer::rt {

inline constexpr int64_t kHeartbeatUs = 1'000'000;
inline constexpr int64_t kSilentUs = 8'000'000;

/// Config of an actor system that can listen and dial.
struct NetConfig : SeerConfig {
  explicit NetConfig(size_t threads = 1) : SeerConfig(threads) {
    load<caf::io::middleman>();
    set("middleman.app-identifiers", std::vector<std::string>{cat("seer/", kProtocolNumber)});
    set("middleman.heartbeat-interval", caf::timespan(std::chrono::microseconds(kHeartbeatUs)));
    set("middleman.connection-timeout", caf::timespan(std::chrono::microseconds(kSilentUs)));
  }
};

template <class One, class Other>
bool same_process(const One& one, const Other& other) { return one.node() == other.node(); }

/// Lets other processes dial the actor at an address of this machine. Returns the port; for 0 the system chooses one.
/// Errors: kUnavailable.
template <class Handle>
Result<uint16_t> listen(system& sys, const Handle& actor, const std::string& host, uint16_t port) {
  auto bound = sys.middleman().publish(actor, port, host.c_str(), true);
  if (!bound) return fail(Code::kUnavailable, "cannot listen on ", host, ":", port, ": ", sys.render(bound.error()));
  return *bound;
}

/// Connects to the actor that listens there; blocks until then. Errors: kUnavailable; kInvalidArgument: it has another protocol.
template <class Handle>
Result<Handle> dial(system& sys, const std::string& host, uint16_t port) {
  auto peer = sys.middleman().remote_actor<Handle>(host, port);
  if (peer) return *peer;
  if (peer.error() == caf::sec::incompatible_application_ids)
    return fail(Code::kInvalidArgument, "the server at ", host, ":", port, " is not Seer, or has another protocol than ", kProtocolNumber);
  return fail(Code::kUnavailable, "cannot dial ", host, ":", port, ": ", sys.render(peer.error()));
}

}  // namespace seer::rt
