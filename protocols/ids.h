// Ids: distinct types, so that a group can never be passed where an instance is meant. Ordered, printable, hashable.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>

#include "protocols/fields.h"

namespace seer {

template <class Tag, class Rep = uint64_t>
struct Id {
  Rep value = 0;
  constexpr auto operator<=>(const Id&) const = default;
  SEER_FIELDS(Id, value)
};
template <class Tag, class Rep>
std::ostream& operator<<(std::ostream& out, Id<Tag, Rep> id) { return out << +id.value; }

using GroupId = Id<struct GroupTag, uint32_t>;        // index of a prompt within the rollout iteration, from 0
using ChunkId = Id<struct ChunkTag>;                  // one run of one request on one instance; never reused
using InstanceId = Id<struct InstanceTag, uint32_t>;  // one engine
using NodeId = Id<struct NodeTag, uint32_t>;          // one machine
using WeightVersion = Id<struct WeightVersionTag>;    // monotone; part of every KV key

inline constexpr InstanceId kNoInstance{0xffffffffu};
inline constexpr NodeId kNoNode{0xffffffffu};

/// One response to be made: sample `sample` (0-based) of group `group`.
struct RequestId {
  GroupId group;
  uint32_t sample = 0;
  constexpr auto operator<=>(const RequestId&) const = default;
  SEER_FIELDS(RequestId, group, sample)
};
inline std::ostream& operator<<(std::ostream& out, RequestId id) { return out << id.group << "." << id.sample; }

}  // namespace seer

template <class Tag, class Rep>
struct std::hash<seer::Id<Tag, Rep>> {
  size_t operator()(seer::Id<Tag, Rep> id) const { return std::hash<uint64_t>{}(id.value); }
};
template <>
struct std::hash<seer::RequestId> {
  size_t operator()(seer::RequestId id) const {
    return std::hash<uint64_t>{}(uint64_t{id.group.value} << 32 | id.sample);
  }
};
