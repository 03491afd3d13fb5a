// LinearProgram: a small dense simplex. Minimises cost . x subject to rows A x >= least, x >= 0. Columns may be added between
// two solve() calls, which start from the last basis (column generation). Used by sim_bound. Pure; single owner.
//
// It is ours and not a library's (Clp, GLPK), because `seer` should build from what it needs to run, the programs here have some
// hundred rows, and the caller does not rely on an exact solution: it checks the prices itself and only loses tightness if they
// are not the best. Revised simplex, with the inverse of the basis kept as a dense matrix.
#pragma once
#include <cstddef>
#include <utility>
#include <vector>

namespace seer {

class LinearProgram {
 public:
  /// The entries of a column that are not 0: row and value. Those of the same row add up.
  using Column = std::vector<std::pair<size_t, double>>;

  /// One row for each of `least`. Until columns cover it, a row is covered at `uncovered_cost` for each 1 of it.
  /// REQUIRES: least >= 0; uncovered_cost is larger than the row's price in the solution.
  LinearProgram(std::vector<double> least, double uncovered_cost);
  /// REQUIRES: cost >= 0.
  void add_column(double cost, Column column);

  /// Returns whether the solution is optimal (within 1e-9); false: it gave up after `pivots_max` pivots.
  bool solve(size_t pivots_max);

  double value() const;                // cost of the solution
  std::vector<double> prices() const;  // of each row, >= 0 at the optimum: value() = prices . least
  std::vector<double> amounts() const; // x, by column

 private:
  struct Entry {
    double cost = 0;
    Column column;
    bool is_basic = false;
  };
  double reduced_cost(const Entry& entry, const std::vector<double>& prices) const;
  size_t entering(const std::vector<double>& prices, bool by_index) const;
  size_t leaving(const std::vector<double>& direction, bool by_index) const;
  std::vector<double> direction_of(const Column& column) const;
  void pivot(size_t row, size_t enters, const std::vector<double>& direction);
  void refactor();

  size_t rows_;
  std::vector<double> least_;
  std::vector<Entry> entries_;    // for each row what exceeds it, for each row what is uncovered, then the columns
  std::vector<size_t> basis_;     // entry of each row
  std::vector<double> inverse_;   // of the basis, row by row
  std::vector<double> values_;    // of the basic entries
  size_t pivots_since_refactor_ = 0;
};

}  // namespace seer
