#include "gpu/least_squares.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <random>

using namespace seer;

namespace {

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;

double residual(const Matrix& rows, const Vector& targets, const Vector& x) {
  double sum = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    double error = -targets[r];
    for (size_t j = 0; j < x.size(); ++j) error += rows[r][j] * x[j];
    sum += error * error;
  }
  return sum;
}

/// Least squares over the columns whose bit is set, without bounds, by Gauss and Jordan; empty where they depend on
/// each other.
Vector solve_columns(const Matrix& rows, const Vector& targets, uint32_t columns) {
  const size_t n = rows[0].size();
  Matrix a(n, Vector(n + 1));
  for (size_t i = 0; i < n; ++i) {
    if (!(columns >> i & 1)) {
      a[i][i] = 1;
      continue;
    }
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t j = 0; j < n; ++j)
        if (columns >> j & 1) a[i][j] += rows[r][i] * rows[r][j];
      a[i][n] += rows[r][i] * targets[r];
    }
  }
  for (size_t i = 0; i < n; ++i) {
    size_t pivot = i;
    for (size_t k = i; k < n; ++k)
      if (std::abs(a[k][i]) > std::abs(a[pivot][i])) pivot = k;
    std::swap(a[i], a[pivot]);
    if (std::abs(a[i][i]) < 1e-9) return {};
    for (size_t k = 0; k < n; ++k) {
      if (k == i) continue;
      const double factor = a[k][i] / a[i][i];
      for (size_t j = i; j <= n; ++j) a[k][j] -= factor * a[i][j];
    }
  }
  Vector x(n);
  for (size_t i = 0; i < n; ++i) x[i] = a[i][n] / a[i][i];
  return x;
}

/// The best of all sets of columns whose solution has no negative value: the optimum is one of them.
double brute_force_residual(const Matrix& rows, const Vector& targets) {
  const size_t n = rows[0].size();
  double best = residual(rows, targets, Vector(n));
  for (uint32_t columns = 1; columns < (1u << n); ++columns) {
    const Vector x = solve_columns(rows, targets, columns);
    bool allowed = !x.empty();
    for (const double value : x) allowed = allowed && value >= 0;
    if (allowed) best = std::min(best, residual(rows, targets, x));
  }
  return best;
}

}  // namespace

TEST_CASE("least squares: random problems are solved as well as by trying all sets of columns") {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 rng(seed);
    std::normal_distribution<double> normal;
    const size_t n = 1 + rng() % 5, m = n + rng() % 8;
    Matrix rows(m, Vector(n));
    Vector targets(m);
    for (size_t r = 0; r < m; ++r) {
      for (size_t j = 0; j < n; ++j) rows[r][j] = normal(rng) * (j % 2 ? 1000 : 1);
      targets[r] = normal(rng) * 10;
    }
    const Vector x = non_negative_least_squares(rows, targets);
    REQUIRE(x.size() == n);
    for (const double value : x) CHECK(value >= 0);
    const double best = brute_force_residual(rows, targets);
    CHECK(residual(rows, targets, x) <= best * (1 + 1e-6) + 1e-9);
  }
}

TEST_CASE("least squares: an exact solution is found, also among columns that depend on each other") {
  const Matrix rows{{1, 2, 3}, {1, 0, 1}, {1, 5, 6}, {1, 1, 2}};  // the third column is the sum of the others
  const Vector targets{8, 2, 17, 5};                              // 2 and 3 of the first two
  CHECK(residual(rows, targets, non_negative_least_squares(rows, targets)) < 1e-12);
}

TEST_CASE("least squares: a column that only a negative value would fit gets 0, and so does a column of zeros") {
  const Vector x = non_negative_least_squares({{1, 0, 0}, {0, 1, 0}}, {-5, 3});
  CHECK(x == Vector{0, 3, 0});
  CHECK(non_negative_least_squares({}, {}).empty());
}
