#include "cli/decode_times.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace seer {
namespace {

/// With values that never fall.
std::map<int64_t, double> rising(std::map<int64_t, double> points) {
  double most = 0;
  for (auto& [x, value] : points) value = most = std::max(most, value);
  return points;
}

/// On the line through the two points nearest to x. REQUIRES: there are points.
double value_at(const std::map<int64_t, double>& points, int64_t x) {
  if (points.size() == 1) return points.begin()->second;
  auto right = points.lower_bound(x);
  if (right == points.begin()) ++right;
  if (right == points.end()) --right;
  const auto left = std::prev(right);
  const double way = static_cast<double>(x - left->first) / static_cast<double>(right->first - left->first);
  return left->second + way * (right->second - left->second);
}

}  // namespace

void DecodeTimes::add(int64_t sequences, int64_t context_tokens, double step_us) { us_[sequences][context_tokens] = step_us; }

double DecodeTimes::step_us(int64_t sequences, int64_t context_tokens) const {
  if (us_.empty()) return 0;
  std::map<int64_t, double> at_context;
  for (const auto& [size, by_context] : us_) at_context[size] = value_at(rising(by_context), context_tokens);
  return value_at(rising(std::move(at_context)), sequences);
}

}  // namespace seer
