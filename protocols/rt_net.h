// rt_net: actors of other processes, over CAF's network module. The rest of the runtime knows handles only.
//
// Processes compare protocol numbers when they connect and refuse a different one. A peer that is silent for kSilentUs counts as
// dead.
#pragma once
#include <caf/io/all.hpp>
#include <caf/io/basp_broker.hpp>
#include <set>
#include <string>
#include <utility>

#include "protocols/actors.h"
#include "protocols/unique_fd.h"

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

inline caf::actor basp_of(system& sys) { return sys.middleman().named_broker<caf::io::basp_broker>(caf::atom("BASP")); }

/// Whether this process has a connection of its own to that one. Without one, a third process passes messages on; when it ends, they
/// are lost, and nobody hears of the end of actors there. Thread-safe.
inline bool is_connected(system& sys, const process& peer) {
  const caf::actor basp = basp_of(sys);
  auto* const broker = static_cast<caf::io::basp_broker*>(caf::actor_cast<caf::abstract_actor*>(basp));
  return peer == sys.node() || broker->instance.tbl().lookup_direct(peer);
}

/// Offers the actor to the process at the other end of the socket, which dials it. Thread-safe.
template <class Handle>
void serve(system& sys, const Handle& actor, UniqueFd socket) {
  constexpr uint16_t kPort = 1;  // any: the peer does not ask for one
  caf::io::scribe_ptr connection = sys.middleman().backend().new_scribe(socket.release());
  caf::anon_send(basp_of(sys), caf::publish_atom_v, std::move(connection), kPort, caf::actor_cast<caf::strong_actor_ptr>(actor),
                 sys.message_types(caf::detail::type_list<Handle>{}));
}

/// Returns the actor that the process at the other end of the socket serves; blocks until then. `where`: for errors. Errors:
/// kUnavailable; kInvalidArgument: it has another protocol.
template <class Handle>
Result<Handle> dial(system& sys, UniqueFd socket, const std::string& where) {
  caf::io::scribe_ptr connection = sys.middleman().backend().new_scribe(socket.release());
  caf::scoped_actor self(sys);
  Result<Handle> found = fail(Code::kUnavailable, "cannot dial ", where);
  self->request(basp_of(sys), std::chrono::microseconds(kControlTimeoutUs), caf::connect_atom_v, std::move(connection), uint16_t{0})
      .receive(
          [&](const caf::node_id&, const caf::strong_actor_ptr& actor, const std::set<std::string>& types) {
            if (actor != nullptr && sys.assignable(types, sys.message_types(caf::detail::type_list<Handle>{})))
              found = caf::actor_cast<Handle>(actor);
            else
              found = fail(Code::kInvalidArgument, "the process at ", where, " is another part of Seer than expected");
          },
          [&](const caf::error& error) {
            found = error == caf::sec::incompatible_application_ids
                        ? fail(Code::kInvalidArgument, "the process at ", where, " has another protocol than ", kProtocolNumber)
                        : fail(Code::kUnavailable, "cannot dial ", where, ": ", sys.render(error));
          });
  return found;
}

}  // namespace seer::rt
