#include "storage/kv_lifecycle.h"

#include <doctest/doctest.h>

#include <map>
#include <utility>

using namespace seer;
using S = BlockState;
using E = BlockEvent;

namespace {

// The protocol, written out a second time: every pair that is not here must be refused.
const std::map<std::pair<S, E>, S> kLegal = {
    {{S::kFree, E::kReserve}, S::kReserved},
    {{S::kReserved, E::kGrant}, S::kWriting},
    {{S::kWriting, E::kSeal}, S::kSealed},
    {{S::kWriting, E::kAbort}, S::kAborted},
    {{S::kSealed, E::kSpill}, S::kSpilling},
    {{S::kSpilling, E::kSpilled}, S::kSpilled},
    {{S::kSpilling, E::kSpillKept}, S::kSealed},
    {{S::kSpilled, E::kPromote}, S::kPromoting},
    {{S::kPromoting, E::kPromoted}, S::kSealed},
    {{S::kReserved, E::kLose}, S::kLost},
    {{S::kWriting, E::kLose}, S::kLost},
    {{S::kSealed, E::kLose}, S::kLost},
    {{S::kSpilling, E::kLose}, S::kLost},
    {{S::kSpilled, E::kLose}, S::kLost},
    {{S::kPromoting, E::kLose}, S::kLost},
    {{S::kAborted, E::kLose}, S::kLost},
    {{S::kAborted, E::kDiscard}, S::kQuarantined},
    {{S::kLost, E::kDiscard}, S::kQuarantined},
    {{S::kSealed, E::kDiscard}, S::kQuarantined},
    {{S::kSpilling, E::kDiscard}, S::kQuarantined},
    {{S::kSpilled, E::kDiscard}, S::kQuarantined},
    {{S::kPromoting, E::kDiscard}, S::kQuarantined},
    {{S::kQuarantined, E::kDrained}, S::kFree},
};

}  // namespace

TEST_CASE("kv lifecycle: exactly the transitions of the protocol are legal") {
  for (int s = 0; s < kBlockStateCount; ++s) {
    for (int e = 0; e < kBlockEventCount; ++e) {
      const auto state = static_cast<S>(s);
      const auto event = static_cast<E>(e);
      CAPTURE(to_string(state));
      CAPTURE(to_string(event));
      const auto next = next_state(state, event);
      const auto it = kLegal.find({state, event});
      REQUIRE(next.has_value() == (it != kLegal.end()));
      if (next) CHECK(*next == it->second);
    }
  }
}

TEST_CASE("kv lifecycle: a block that was handed to a writer is free again only through quarantine") {
  for (int s = 0; s < kBlockStateCount; ++s)
    for (int e = 0; e < kBlockEventCount; ++e)
      if (next_state(static_cast<S>(s), static_cast<E>(e)) == S::kFree) CHECK(static_cast<S>(s) == S::kQuarantined);
}

TEST_CASE("kv lifecycle: bytes are readable in DRAM only between seal and the end of a spill") {
  for (int s = 0; s < kBlockStateCount; ++s) {
    const auto state = static_cast<S>(s);
    CHECK(readable_in_dram(state) == (state == S::kSealed || state == S::kSpilling));
  }
}

TEST_CASE("kv lifecycle: every state and event has a name") {
  for (int s = 0; s < kBlockStateCount; ++s) CHECK(std::string(to_string(static_cast<S>(s))) != "unknown");
  for (int e = 0; e < kBlockEventCount; ++e) CHECK(std::string(to_string(static_cast<E>(e))) != "unknown");
}
