// Non-negative least squares. Pure, deterministic.
#pragma once
#include <vector>

namespace seer {

/// The x >= 0 for which the sum over rows of (row . x - target)^2 is least; one of them if there are several (columns that
/// depend on each other). An active-set method (Lawson and Hanson): columns enter one by one where the residual falls
/// fastest, and leave when their value would be negative. REQUIRES: rows and targets are of one size, all rows of one size,
/// all values finite.
std::vector<double> non_negative_least_squares(const std::vector<std::vector<double>>& rows,
                                               const std::vector<double>& targets);

}  // namespace seer
