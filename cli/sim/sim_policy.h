// SimPolicy: the meaning of a name in `seer simulate --policies`. Besides the scheduling policies there is `partial`, a baseline
// that is only simulated (sim_partial.h). +sd at the end of any name adds speculative decoding.
// Used by cli/ only. Pure.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace seer {

/// How drafts are made. kAuto: from the group's texts under policies with a pool; under the others in the usual way for the
/// model, as the workload says.
enum class DrafterKind : uint8_t { kAuto, kOwn, kGroup, kModel, kMtp };
inline constexpr std::array<const char*, 5> kDrafterNames{"auto", "own", "group", "model", "mtp"};  // by value

inline constexpr const char* kPartialPolicy = "partial";
inline constexpr const char* kPartialWhat = "baseline: iterations end early and carry unfinished requests over; not strictly synchronous";
inline constexpr const char* kDraftingSuffix = "+sd";

struct SimPolicy {
  std::string name;            // as given: "seer+sd"
  std::string scheduling;      // the policy of policies.h that places requests; for partial the baseline
  bool is_partial = false;
  bool drafts = false;
  bool whole_groups = false;   // a group's requests stay where they started; drafts come from a request's own text
};

/// REQUIRES: one of sim_policy_names().
SimPolicy sim_policy(const std::string& name);
/// The names of simulated policies, first all without +sd, then all with it.
std::vector<std::string> sim_policy_names();

}  // namespace seer
