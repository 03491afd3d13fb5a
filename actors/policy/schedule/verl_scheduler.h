// VerlScheduler: the baseline. It deals groups to the instances round robin, whatever their lengths; see
// WholeGroupScheduler for how the instances serve them. Single owner, not thread-safe.
#pragma once
#include "actors/policy/schedule/whole_group_scheduler.h"

namespace seer {

class VerlScheduler final : public WholeGroupScheduler {
 public:
  using WholeGroupScheduler::WholeGroupScheduler;

 private:
  std::vector<Home> deal(const std::vector<GroupId>& homeless) override;

  uint64_t deals_ = 0;
};

}  // namespace seer
