// rt_net: actors of other processes, over CAF's network module. The rest of the runtime knows handles only.
#pragma once
#include <caf/io/all.hpp>
#include <string>

#include "protocols/actors.h"

namespace seer::rt {

/// Config of an actor system that can listen and dial.
struct NetConfig : SeerConfig {
  explicit NetConfig(size_t threads = 1) : SeerConfig(threads) { load<caf::io::middleman>(); }
};

/// Lets other processes of this machine dial the actor. Returns the port, which for 0 the system chooses. Errors: kUnavailable.
template <class Handle>
Result<uint16_t> listen_on_loopback(system& sys, const Handle& actor, uint16_t port) {
  auto bound = sys.middleman().publish(actor, port, "127.0.0.1", true);
  if (!bound) return fail(Code::kUnavailable, "cannot listen on 127.0.0.1:", port, ": ", sys.render(bound.error()));
  return *bound;
}

/// The actor that listens there. Blocks until it is connected. Errors: kUnavailable.
template <class Handle>
Result<Handle> dial(system& sys, const std::string& host, uint16_t port) {
  auto peer = sys.middleman().remote_actor<Handle>(host, port);
  if (!peer) return fail(Code::kUnavailable, "cannot dial ", host, ":", port, ": ", sys.render(peer.error()));
  return *peer;
}

}  // namespace seer::rt
