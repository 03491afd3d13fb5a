#include "gpu/least_squares.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "protocols/check.h"

namespace seer {
namespace {

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;

// Columns have length 1: below this a column is a combination of the others, or a value is rounding.
constexpr double kTiny = 1e-10;

/// Solves gram x = moments over the columns in `passive` (the others are 0) by Cholesky. Empty: their columns depend on
/// each other.
Vector solve_passive(const Matrix& gram, const Vector& moments, const std::vector<size_t>& passive) {
  const size_t n = passive.size();
  Matrix lower(n, Vector(n));
  Vector y(n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = gram[passive[i]][passive[j]];
      for (size_t k = 0; k < j; ++k) sum -= lower[i][k] * lower[j][k];
      if (i == j && sum < kTiny) return {};
      lower[i][j] = i == j ? std::sqrt(sum) : sum / lower[j][j];
    }
    double sum = moments[passive[i]];
    for (size_t k = 0; k < i; ++k) sum -= lower[i][k] * y[k];
    y[i] = sum / lower[i][i];
  }
  Vector x(gram.size());
  for (size_t i = n; i-- > 0;) {
    double sum = y[i];
    for (size_t k = i + 1; k < n; ++k) sum -= lower[k][i] * x[passive[k]];
    x[passive[i]] = sum / lower[i][i];
  }
  return x;
}

/// The column outside `passive` along which the residual falls fastest, or the number of columns.
size_t best_entering(const Matrix& gram, const Vector& moments, const Vector& x, const std::vector<bool>& closed) {
  size_t best = x.size();
  double best_slope = kTiny;
  for (size_t j = 0; j < x.size(); ++j) {
    if (closed[j]) continue;
    double slope = moments[j];
    for (size_t k = 0; k < x.size(); ++k) slope -= gram[j][k] * x[k];
    if (slope > best_slope) {
      best_slope = slope;
      best = j;
    }
  }
  return best;
}

}  // namespace

std::vector<double> non_negative_least_squares(const std::vector<std::vector<double>>& rows,
                                               const std::vector<double>& targets) {
  SEER_CHECK(rows.size() == targets.size(), rows.size(), targets.size());
  const size_t n = rows.empty() ? 0 : rows[0].size();
  // Normal equations over columns, and a target, of length 1.
  Vector scale(n);
  double target_length = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    SEER_CHECK(rows[r].size() == n, r, rows[r].size(), n);
    for (size_t j = 0; j < n; ++j) scale[j] += rows[r][j] * rows[r][j];
    target_length += targets[r] * targets[r];
  }
  for (double& s : scale) s = s > 0 ? std::sqrt(s) : 1;
  target_length = target_length > 0 ? std::sqrt(target_length) : 1;
  Matrix gram(n, Vector(n));
  Vector moments(n);
  for (size_t r = 0; r < rows.size(); ++r)
    for (size_t i = 0; i < n; ++i) {
      moments[i] += rows[r][i] / scale[i] * (targets[r] / target_length);
      for (size_t j = 0; j < n; ++j) gram[i][j] += rows[r][i] / scale[i] * (rows[r][j] / scale[j]);
    }

  Vector x(n);
  std::vector<size_t> passive;         // columns whose value is not held at 0
  std::vector<bool> closed(n, false);  // passive, or tried since the last step without effect
  // Each round lowers the residual, so that no set of columns comes twice; the bound guards against rounding.
  for (size_t round = 0; round < 10 * n + 10; ++round) {
    const size_t entering = best_entering(gram, moments, x, closed);
    if (entering == n) break;
    closed[entering] = true;
    passive.push_back(entering);
    Vector wanted = solve_passive(gram, moments, passive);
    if (wanted.empty() || wanted[entering] <= 0) {
      passive.pop_back();  // depends on the others: adds nothing
      continue;
    }
    // Walk from x towards the solution; a column that reaches 0 on the way is held there.
    while (std::any_of(passive.begin(), passive.end(), [&](size_t j) { return wanted[j] <= 0; })) {
      double walk = 1;
      for (const size_t j : passive)
        if (wanted[j] <= 0) walk = std::min(walk, x[j] / (x[j] - wanted[j]));
      for (const size_t j : passive) x[j] += walk * (wanted[j] - x[j]);
      std::erase_if(passive, [&](size_t j) {
        const bool leaves = wanted[j] <= 0 && x[j] <= kTiny;
        if (leaves) x[j] = 0;
        return leaves;
      });
      wanted = solve_passive(gram, moments, passive);
    }
    x = wanted;
    closed.assign(n, false);
    for (const size_t j : passive) closed[j] = true;
  }
  for (size_t j = 0; j < n; ++j) x[j] *= target_length / scale[j];
  return x;
}

}  // namespace seer
