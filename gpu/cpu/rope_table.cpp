#include "gpu/cpu/rope_table.h"

#include "gpu/cpu/exact_math.h"

namespace seer {

void RopeTable::reserve(int64_t positions) {
  while (static_cast<int64_t>(segments_.size()) * kSegment < positions) {
    const int64_t first = static_cast<int64_t>(segments_.size()) * kSegment;
    std::vector<float>& segment = segments_.emplace_back();
    segment.reserve(kSegment * 2 * frequencies_.size());
    for (int64_t position = first; position < first + kSegment; ++position) {
      for (double f : frequencies_)
        segment.push_back(static_cast<float>(exact_cos(static_cast<double>(position) * f) * factor_));
      for (double f : frequencies_)
        segment.push_back(static_cast<float>(exact_sin(static_cast<double>(position) * f) * factor_));
    }
  }
}

}  // namespace seer
