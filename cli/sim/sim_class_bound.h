// A tighter lower bound on the time of an iteration: besides the work of all steps it counts that a long response needs many steps
// in a row, so it must run in steps that are short enough, and those feed few rows each. Used by sim_bound. Pure; thread-safe if
// ClusterModel::step_ns is.
//
// Responses are put into classes by their number of decode steps. Prices say what the time is worth:
//   machine        of time on an instance
//   waiting[c]     of time that a response of class c spends in a step
//   row[c](k)      of a row of class c that reads k tokens of KV: piecewise linear in k, given at a few nodes
// They are *valid* if
//   (1) machine * instances + sum over c of waiting[c] * responses of c = 1, none negative, and
//   (2) in every possible step, the prices of its rows are at most  time of the step * (machine + waiting[c] of each row).
//
// No schedule ends before the sum of the prices of all rows. Proof. Take a schedule that ends at T and add (2) over its steps. On
// the left is the sum of the prices of all rows, which does not depend on the schedule: each response is decoded at each of its
// contexts once. On the right is
//   machine * (busy time of all instances) + sum over c of waiting[c] * (time that responses of c spend in steps).
// No instance is busy for longer than T, and no response spends more than T in steps, since it is in one step at a time. So the
// right is at most T * (machine * instances + sum of waiting[c] * responses of c) = T.
//
// The best valid prices are the dual of a linear program: the least T for which numbers of steps of each kind feed all rows. Its
// kinds of steps are made when needed (column generation). Its solution need not be exact, because (2) is checked afterwards over
// all possible steps, and the row prices are divided by the largest factor by which it fails.
//
// (2) is checked for ranges of the number of sequences S and of the KV read K, with a range's least time and its largest S and
// K. What the rows of a step are worth depends on how contexts are mixed. A row at context k is worth what the two nodes around k
// are, in the proportion in which their contexts average to k; so the most valuable step is a choice of amounts of nodes with at
// most S rows and K tokens in all, a knapsack that is solved by the upper hull of (context, worth).
// Whether a step fits in memory is part of the largest K: the KV held is at least the KV read, less what a row shares with others
// (its prompt, with the rest of its group, and a beginning that it has in common with an earlier response).
// What it does not see: the order in which a response's rows come (memory is full of contexts of all lengths from the start to the
// end), and that a step has at most as many rows of a class as the class has responses.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "cli/sim/sim_rollout.h"

namespace seer {

/// A bound, and the prices of time that prove it.
struct TimePrices {
  struct Waiting {
    int64_t decode_steps = 0;  // of the shortest response of the class
    double price = 0;
  };
  double bound_s = 0;            // without prefills and drafts
  double machine = 0;
  std::vector<Waiting> waiting;  // by class, the longest first; responses of no class: 0
  /// In ns: the most that `sequences` rows are worth that read `kv_tokens` together, less what they wait for `step_ns`. Not more than
  /// machine * step_ns of a step that decodes them.
  std::function<double(int64_t sequences, int64_t kv_tokens, double step_ns)> rows_worth_ns;

  double waiting_of(int64_t decode_steps) const;
};

/// bound_s is 0 if there is no decode step, or if no bound could be proven.
/// REQUIRES: step_ns() does not fall when a step has more KV.
TimePrices class_bound(const ClusterModel& cluster, const SimWork& work);

}  // namespace seer
