#include "cli/sim/sim_bound.h"

#include <algorithm>
#include <limits>
#include <numbers>
#include <utility>
#include <vector>

namespace seer {
namespace {

/// Time of a decode step with one row of each sequence.
double step_ns(const ClusterModel& cluster, int64_t sequences, int64_t kv_tokens) {
  StepShape shape;
  shape.sequences = shape.rows = shape.sampled_rows = sequences;
  shape.kv_tokens = shape.attended = kv_tokens;
  return static_cast<double>(cluster.step_ns(shape));
}

/// The work of all decode steps of an iteration. The first token of a response comes from its prefill.
struct DecodeWork {
  double rows = 0;
  double kv_tokens = 0;           // read, over all rows
  double held_tokens = 0;         // of KV held, over all rows; KV that responses share counts once
  int64_t sequences = 0;          // most in one step
  int64_t context_max = 1;        // most KV read by a row
  int64_t shared_tokens_max = 0;  // most tokens of it that others hold too
};

DecodeWork decode_work(const ClusterModel& cluster, const SimWork& work) {
  DecodeWork all;
  for (const GroupLengths& group : work.groups) {
    const auto prompt = static_cast<double>(group.prompt_tokens);
    for (size_t sample = 0; sample < group.output_tokens.size(); ++sample) {
      const int64_t steps = group.output_tokens[sample] - 1;
      if (steps < 1) continue;
      const int64_t shared = std::min(steps, group.shared.empty() ? 0 : group.shared[sample].tokens);
      const auto rows = static_cast<double>(steps), own = static_cast<double>(steps - shared);
      all.rows += rows;
      all.kv_tokens += rows * prompt + rows * (rows + 1) / 2;
      all.held_tokens += rows * prompt / static_cast<double>(group.output_tokens.size()) + own * (own + 1) / 2;
      all.context_max = std::max(all.context_max, group.prompt_tokens + steps);
      all.shared_tokens_max = std::max(all.shared_tokens_max, group.prompt_tokens + shared);
      ++all.sequences;
    }
  }
  all.sequences = std::min(all.sequences, cluster.rows_max);
  return all;
}

/// The largest value of a concave function between 0 and `end`, found by golden-section search; never above the true maximum.
template <class Function>
double largest(double end, Function&& value) {
  constexpr double kInner = 1 / std::numbers::phi;
  double begin = 0, left = end * (1 - kInner), right = end * kInner;
  double at_left = value(left), at_right = value(right), most = std::max({value(0.0), at_left, at_right});
  for (int i = 0; i < 60; ++i) {
    if (at_left < at_right) {
      begin = left, left = right, at_left = at_right;
      at_right = value(right = begin + (end - begin) * kInner);
    } else {
      end = right, right = left, at_right = at_left;
      at_left = value(left = end - (end - begin) * kInner);
    }
    most = std::max({most, at_left, at_right});
  }
  return most;
}

/// Prices for a row, for a token of KV read and for a token of KV held, such that no step costs more than its time: for every number
/// of sequences S and KV read K, row * S + read * K + held * (KV of an instance) <= time of the step. Then the price of all rows,
/// all KV read and all KV held is at most the time of all steps, however they are divided into steps. The condition is checked
/// for ranges of S and K, with a range's least time and its largest S and K.
class PriceList {
 public:
  PriceList(const ClusterModel& cluster, const DecodeWork& work)
      : work_(work), held_max_(static_cast<double>(cluster.kv_tokens)) {
    for (int64_t first = 1; first <= work.sequences;) {
      const int64_t last = std::min(work.sequences, first + first / kFineSequences);
      const int64_t kv_max = std::min(last * work.context_max, cluster.kv_tokens + last * work.shared_tokens_max);
      StepRange range{static_cast<double>(first), static_cast<double>(last), {}, {}};
      for (int64_t k = 0; k < kKvRanges; ++k) {
        range.least_ns.push_back(step_ns(cluster, first, std::max(first, kv_max * k / kKvRanges)));
        range.most_kv.push_back(static_cast<double>(kv_max * (k + 1) / kKvRanges));
      }
      ranges_.push_back(std::move(range));
      first = last + 1;
    }
    dearest_ns_ = ranges_.empty() ? 0 : ranges_.back().least_ns.back();
  }

  /// The cost of the work at the best prices.
  double best_ns() const {
    std::vector<double> rest(ranges_.size());
    return largest(dearest_ns_, [&](double read) {
      for (size_t i = 0; i < ranges_.size(); ++i) rest[i] = ranges_[i].least_rest(read);
      return largest(dearest_ns_ / held_max_, [&](double held) {
        return work_.rows * row_price(rest, held) + work_.kv_tokens * read + work_.held_tokens * held;
      });
    });
  }

 private:
  static constexpr int64_t kFineSequences = 256;  // ranges of one number of sequences up to here
  static constexpr int64_t kKvRanges = 512;

  struct StepRange {
    double first, last;  // sequences
    std::vector<double> least_ns, most_kv;

    /// The least rest of a step's time after paying for its KV read.
    double least_rest(double read) const {
      double least = std::numeric_limits<double>::infinity();
      for (size_t i = 0; i < least_ns.size(); ++i) least = std::min(least, least_ns[i] - read * most_kv[i]);
      return least;
    }
  };

  double row_price(const std::vector<double>& rest, double held) const {
    double price = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < ranges_.size(); ++i) {
      const double left = rest[i] - held * held_max_;
      price = std::min(price, left / (left > 0 ? ranges_[i].last : ranges_[i].first));
    }
    return price;
  }

  DecodeWork work_;
  double held_max_;
  double dearest_ns_;
  std::vector<StepRange> ranges_;
};

/// Time of the slowest request, alone on an instance.
double longest_ns(const ClusterModel& cluster, const DecodeWork& work, const SimWork& requests) {
  std::vector<double> up_to(static_cast<size_t>(work.context_max) + 1);
  for (int64_t kv = 1; kv <= work.context_max; ++kv)
    up_to[static_cast<size_t>(kv)] = up_to[static_cast<size_t>(kv) - 1] + step_ns(cluster, 1, kv);
  double longest = 0;
  for (const GroupLengths& group : requests.groups)
    for (const int64_t tokens : group.output_tokens) {
      const auto begin = static_cast<size_t>(group.prompt_tokens);
      if (tokens > 1) longest = std::max(longest, up_to[begin + static_cast<size_t>(tokens) - 1] - up_to[begin]);
    }
  return longest;
}

}  // namespace

double work_bound_s(const ClusterModel& cluster, const SimWork& work) {
  const DecodeWork all = decode_work(cluster, work);
  if (all.sequences == 0) return 0;
  const double work_ns = PriceList(cluster, all).best_ns() / static_cast<double>(cluster.instances);
  return std::max(work_ns, longest_ns(cluster, all, work)) / 1e9;
}

SimBounds lower_bounds(const ClusterModel& cluster, const SimWork& work) {
  const double work_s = work_bound_s(cluster, work);
  TimePrices prices = class_bound(cluster, work);
  return {work_s, std::max(work_s, prices.bound_s), std::move(prices)};
}

}  // namespace seer
