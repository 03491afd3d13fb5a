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

using RolloutId = Id<struct RolloutTag, uint32_t>;    // one rollout; never reused while its messages may be in flight
using InstanceId = Id<struct InstanceTag, uint32_t>;  // one engine
using NodeId = Id<struct NodeTag, uint32_t>;          // one machine
using WeightVersion = Id<struct WeightVersionTag>;    // monotone; part of every KV key

inline constexpr InstanceId kNoInstance{0xffffffffu};
inline constexpr NodeId kNoNode{0xffffffffu};

/// Prompt `index` (0-based) of a rollout. Ids are ordered by rollout first; rollout 0 is the default and is not printed.
struct GroupId {
  uint32_t index = 0;
  RolloutId rollout = {};
  constexpr bool operator==(const GroupId&) const = default;
  constexpr auto operator<=>(const GroupId& other) const {
    return rollout == other.rollout ? index <=> other.index : rollout <=> other.rollout;
  }
  SEER_FIELDS(GroupId, index, rollout)
};
inline std::ostream& operator<<(std::ostream& out, GroupId id) {
  return id.rollout == RolloutId{} ? out << id.index : out << id.rollout << ":" << id.index;
}

/// One run of one request on one instance; never reused. Ordered like groups.
struct ChunkId {
  uint64_t number = 0;  // within the rollout, from 1
  RolloutId rollout = {};
  constexpr bool operator==(const ChunkId&) const = default;
  constexpr auto operator<=>(const ChunkId& other) const {
    return rollout == other.rollout ? number <=> other.number : rollout <=> other.rollout;
  }
  SEER_FIELDS(ChunkId, number, rollout)
};
inline std::ostream& operator<<(std::ostream& out, ChunkId id) {
  return id.rollout == RolloutId{} ? out << id.number : out << id.rollout << ":" << id.number;
}

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
// Ids of one rollout hash to their own dense numbers. An odd factor (2^64 / golden ratio) keeps rollouts apart.
namespace seer {
constexpr size_t spread(RolloutId rollout) { return rollout.value * size_t{0x9e3779b97f4a7c15}; }
}  // namespace seer
template <>
struct std::hash<seer::GroupId> {
  size_t operator()(seer::GroupId id) const { return id.index ^ seer::spread(id.rollout); }
};
template <>
struct std::hash<seer::ChunkId> {
  size_t operator()(seer::ChunkId id) const { return id.number ^ seer::spread(id.rollout); }
};
template <>
struct std::hash<seer::RequestId> {
  size_t operator()(seer::RequestId id) const {
    return (size_t{id.group.index} << 32 | id.sample) ^ seer::spread(id.group.rollout);
  }
};
