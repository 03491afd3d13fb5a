#include "cli/sim/linear_program.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

using namespace seer;

namespace {

struct Dense {
  std::vector<double> least, cost;
  std::vector<std::vector<double>> a;  // [row][column]
};

/// Solves a system of equations by Gauss-Jordan; false if it is singular.
bool solved(std::vector<std::vector<double>> m, std::vector<double>& x) {
  const size_t n = m.size();
  for (size_t i = 0; i < n; ++i) {
    size_t largest = i;
    for (size_t r = i; r < n; ++r)
      if (std::abs(m[r][i]) > std::abs(m[largest][i])) largest = r;
    if (std::abs(m[largest][i]) < 1e-9) return false;
    std::swap(m[i], m[largest]);
    for (size_t r = 0; r < n; ++r) {
      if (r == i) continue;
      const double factor = m[r][i] / m[i][i];
      for (size_t c = i; c <= n; ++c) m[r][c] -= factor * m[i][c];
    }
  }
  for (size_t i = 0; i < n; ++i) x[i] = m[i][n] / m[i][i];
  return true;
}

/// The least cost over all corners: each choice of as many tight conditions (a row, or a column at 0) as there are columns.
double least_cost_of_corners(const Dense& p) {
  const size_t columns = p.cost.size(), conditions = p.least.size() + columns;
  double least = std::numeric_limits<double>::infinity();
  for (uint32_t chosen = 0; chosen < (1u << conditions); ++chosen) {
    if (static_cast<size_t>(__builtin_popcount(chosen)) != columns) continue;
    std::vector<std::vector<double>> system;
    for (size_t i = 0; i < conditions; ++i) {
      if ((chosen >> i & 1) == 0) continue;
      std::vector<double> line(columns + 1);
      if (i < p.least.size()) {
        std::copy(p.a[i].begin(), p.a[i].end(), line.begin());
        line[columns] = p.least[i];
      } else {
        line[i - p.least.size()] = 1;
      }
      system.push_back(line);
    }
    std::vector<double> x(columns);
    if (!solved(system, x)) continue;
    bool holds = true;
    for (const double amount : x) holds = holds && amount >= -1e-9;
    double cost = 0;
    for (size_t c = 0; c < columns; ++c) cost += p.cost[c] * x[c];
    for (size_t r = 0; r < p.least.size() && holds; ++r) {
      double sum = 0;
      for (size_t c = 0; c < columns; ++c) sum += p.a[r][c] * x[c];
      holds = sum >= p.least[r] - 1e-9;
    }
    if (holds) least = std::min(least, cost);
  }
  return least;
}

}  // namespace

TEST_CASE("linear program: the same cost as the best corner, with columns added one by one") {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto between = [&](int low, int high) { return static_cast<double>(std::uniform_int_distribution(low, high)(random)); };
    Dense p;
    const auto rows = static_cast<size_t>(between(1, 4)), columns = static_cast<size_t>(between(1, 5));
    for (size_t r = 0; r < rows; ++r) p.least.push_back(between(0, 4));
    p.a.assign(rows, std::vector<double>(columns));
    for (size_t c = 0; c < columns; ++c) {
      p.cost.push_back(between(0, 6));
      for (auto& line : p.a) line[c] = between(-3, 5);
    }
    LinearProgram program(p.least, 1e6);
    bool optimal = true;
    for (size_t c = 0; c < columns; ++c) {
      LinearProgram::Column column;
      for (size_t r = 0; r < rows; ++r)
        for (const double part : {p.a[r][c] - 1, 1.0})  // entries of the same row add up
          if (p.a[r][c] != 0) column.emplace_back(r, part);
      program.add_column(p.cost[c], column);
      optimal = program.solve(1000);
    }
    const double least = least_cost_of_corners(p);
    if (!std::isfinite(least)) {
      CHECK(program.value() > 1e5);  // a row stays uncovered
      continue;
    }
    REQUIRE(optimal);
    CHECK(program.value() == doctest::Approx(least).epsilon(1e-7));
    double priced = 0, cost = 0;
    for (size_t r = 0; r < rows; ++r) priced += program.prices()[r] * p.least[r];
    for (size_t c = 0; c < columns; ++c) cost += program.amounts()[c] * p.cost[c];
    CHECK(priced == doctest::Approx(least).epsilon(1e-7));
    CHECK(cost == doctest::Approx(least).epsilon(1e-7));
  }
}
