#include "cli/sim/linear_program.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "protocols/check.h"

namespace seer {
namespace {

constexpr double kZero = 1e-9;
constexpr double kPivotMin = 1e-8;
constexpr size_t kNone = static_cast<size_t>(-1);
constexpr size_t kRefactorEvery = 50;   // pivots; rounding errors grow with each
constexpr int kStuckMax = 30;           // pivots in a row without progress until the smallest index is taken, which cannot cycle (Bland)

}  // namespace

LinearProgram::LinearProgram(std::vector<double> least, double uncovered_cost)
    : rows_(least.size()), least_(std::move(least)), inverse_(rows_ * rows_), values_(rows_) {
  for (size_t row = 0; row < rows_; ++row) entries_.push_back({0, {{row, -1.0}}});
  for (size_t row = 0; row < rows_; ++row) entries_.push_back({uncovered_cost, {{row, 1.0}}});
  for (size_t row = 0; row < rows_; ++row) {
    SEER_CHECK(least_[row] >= 0, row, least_[row]);
    basis_.push_back(least_[row] > 0 ? rows_ + row : row);
    entries_[basis_[row]].is_basic = true;
  }
  refactor();
}

void LinearProgram::add_column(double cost, Column column) {
  SEER_CHECK(cost >= 0, cost);
  entries_.push_back({cost, std::move(column)});
}

bool LinearProgram::solve(size_t pivots_max) {
  int stuck = 0;
  for (size_t i = 0; i < pivots_max; ++i) {
    const bool by_index = stuck >= kStuckMax;
    const size_t enters = entering(prices(), by_index);
    if (enters == kNone) return true;
    const std::vector<double> direction = direction_of(entries_[enters].column);
    const size_t row = leaving(direction, by_index);
    if (row == kNone) return false;  // unbounded within rounding: costs are not negative
    stuck = values_[row] > kZero ? 0 : stuck + 1;
    pivot(row, enters, direction);
  }
  return false;
}

double LinearProgram::value() const {
  double sum = 0;
  for (size_t row = 0; row < rows_; ++row) sum += entries_[basis_[row]].cost * values_[row];
  return sum;
}

std::vector<double> LinearProgram::prices() const {
  std::vector<double> prices(rows_);
  for (size_t row = 0; row < rows_; ++row) {
    const double cost = entries_[basis_[row]].cost;
    if (cost == 0) continue;
    const double* inverse = &inverse_[row * rows_];
    for (size_t i = 0; i < rows_; ++i) prices[i] += cost * inverse[i];
  }
  return prices;
}

std::vector<double> LinearProgram::amounts() const {
  std::vector<double> amounts(entries_.size() - 2 * rows_);
  for (size_t row = 0; row < rows_; ++row)
    if (basis_[row] >= 2 * rows_) amounts[basis_[row] - 2 * rows_] = values_[row];
  return amounts;
}

double LinearProgram::reduced_cost(const Entry& entry, const std::vector<double>& prices) const {
  double cost = entry.cost;
  for (const auto& [row, value] : entry.column) cost -= prices[row] * value;
  return cost;
}

size_t LinearProgram::entering(const std::vector<double>& prices, bool by_index) const {
  size_t best = kNone;
  double least = -kZero;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].is_basic) continue;
    const double cost = reduced_cost(entries_[i], prices);
    if (cost >= least) continue;
    best = i, least = cost;
    if (by_index) break;
  }
  return best;
}

/// Harris' test: of the rows that reach 0 about first, the one with the largest pivot, so that rounding errors stay small.
size_t LinearProgram::leaving(const std::vector<double>& direction, bool by_index) const {
  double first = std::numeric_limits<double>::infinity();
  for (size_t row = 0; row < rows_; ++row)
    if (direction[row] > kPivotMin) first = std::min(first, (std::max(0.0, values_[row]) + kZero) / direction[row]);
  size_t best = kNone;
  for (size_t row = 0; row < rows_; ++row) {
    if (direction[row] <= kPivotMin || std::max(0.0, values_[row]) / direction[row] > first) continue;
    if (best == kNone || (by_index ? basis_[row] < basis_[best] : direction[row] > direction[best])) best = row;
  }
  return best;
}

std::vector<double> LinearProgram::direction_of(const Column& column) const {
  std::vector<double> direction(rows_);
  for (const auto& [from, value] : column)
    for (size_t row = 0; row < rows_; ++row) direction[row] += inverse_[row * rows_ + from] * value;
  return direction;
}

void LinearProgram::pivot(size_t row, size_t enters, const std::vector<double>& direction) {
  entries_[basis_[row]].is_basic = false;
  basis_[row] = enters;
  entries_[enters].is_basic = true;
  if (++pivots_since_refactor_ >= kRefactorEvery) return refactor();
  double* pivot_row = &inverse_[row * rows_];
  for (size_t i = 0; i < rows_; ++i) pivot_row[i] /= direction[row];
  values_[row] /= direction[row];
  for (size_t other = 0; other < rows_; ++other) {
    const double factor = direction[other];
    if (other == row || factor == 0) continue;
    double* line = &inverse_[other * rows_];
    for (size_t i = 0; i < rows_; ++i) line[i] -= factor * pivot_row[i];
    values_[other] -= factor * values_[row];
  }
}

/// Inverts the basis anew: Gauss-Jordan with the largest pivot of each column.
void LinearProgram::refactor() {
  pivots_since_refactor_ = 0;
  std::vector<double> matrix(rows_ * rows_), inverse(rows_ * rows_);
  for (size_t i = 0; i < rows_; ++i) {
    for (const auto& [row, value] : entries_[basis_[i]].column) matrix[row * rows_ + i] += value;
    inverse[i * rows_ + i] = 1;
  }
  const auto swap_rows = [&](std::vector<double>& of, size_t a, size_t b) {
    std::swap_ranges(&of[a * rows_], &of[a * rows_] + rows_, &of[b * rows_]);
  };
  for (size_t i = 0; i < rows_; ++i) {
    size_t largest = i;
    for (size_t row = i + 1; row < rows_; ++row)
      if (std::abs(matrix[row * rows_ + i]) > std::abs(matrix[largest * rows_ + i])) largest = row;
    if (largest != i) swap_rows(matrix, i, largest), swap_rows(inverse, i, largest);
    const double scale = 1 / matrix[i * rows_ + i];
    for (size_t j = 0; j < rows_; ++j) matrix[i * rows_ + j] *= scale, inverse[i * rows_ + j] *= scale;
    for (size_t row = 0; row < rows_; ++row) {
      const double factor = matrix[row * rows_ + i];
      if (row == i || factor == 0) continue;
      for (size_t j = 0; j < rows_; ++j) {
        matrix[row * rows_ + j] -= factor * matrix[i * rows_ + j];
        inverse[row * rows_ + j] -= factor * inverse[i * rows_ + j];
      }
    }
  }
  inverse_ = std::move(inverse);
  for (size_t row = 0; row < rows_; ++row) {
    values_[row] = 0;
    for (size_t i = 0; i < rows_; ++i) values_[row] += inverse_[row * rows_ + i] * least_[i];
  }
}

}  // namespace seer
