#include "cli/sim/sim_class_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "cli/sim/linear_program.h"

namespace seer {
namespace {

constexpr double kClassRatio = 0.93;     // of the steps of a class, the shortest response to the longest
constexpr size_t kClassesMax = 28;       // the last takes all shorter ones
constexpr size_t kNodesPerClass = 3;
constexpr int64_t kFineSequences = 256;  // ranges of one number of sequences up to here
constexpr int64_t kKvRanges = 256;
constexpr size_t kCoarse = 8;            // every so many ranges of each kind are tried first
constexpr int kRoundsMax = 300;
constexpr double kSlow = 2e-4;           // a round that lowers the time by a smaller share is slow
constexpr int kSlowRoundsMax = 4;
constexpr double kCloseEnough = 3e-3;    // of the best bound; then the prices are not improved further
constexpr double kOverpaid = 1e-3;       // a kind of step that is overpaid by a smaller share is not added

/// Responses of about as many decode steps, and the nodes between which the prices of their rows are linear.
struct LengthClass {
  int64_t steps_min = 0;
  double responses = 0;
  std::vector<double> context;  // of each node
  std::vector<double> rows;     // in the class's work, dealt to the nodes around each row's context
};

struct Response {
  int64_t prompt = 0, steps = 0;
};

/// Adds the rows of one response: contexts prompt + 1 to prompt + steps.
void add_rows(LengthClass& to, const Response& response) {
  const auto first = static_cast<double>(response.prompt + 1), last = static_cast<double>(response.prompt + response.steps);
  for (size_t node = 0; node + 1 < to.context.size(); ++node) {
    const double left = to.context[node], right = to.context[node + 1];
    // A context that is a node belongs to the segment on its right, the last one to that on its left.
    const bool is_last = node + 2 == to.context.size();
    const double from = std::max(first, std::ceil(left)), to_end = is_last ? last : std::min(last, std::ceil(right) - 1);
    if (from > to_end) continue;
    const double count = to_end - from + 1, sum = count * (from + to_end) / 2;
    const double on_right = right > left ? (sum - count * left) / (right - left) : 0;
    to.rows[node] += count - on_right;
    to.rows[node + 1] += on_right;
  }
}

std::vector<LengthClass> classes_of(std::vector<Response> responses) {
  std::ranges::sort(responses, std::greater{}, &Response::steps);
  std::vector<LengthClass> classes;
  for (size_t begin = 0; begin < responses.size();) {
    size_t end = begin;
    const double least = classes.size() + 1 == kClassesMax ? 0 : kClassRatio * static_cast<double>(responses[begin].steps);
    while (end < responses.size() && static_cast<double>(responses[end].steps) >= least) ++end;
    const std::span<const Response> members(&responses[begin], end - begin);
    int64_t low = std::numeric_limits<int64_t>::max(), high = 0;
    for (const Response& r : members) low = std::min(low, r.prompt + 1), high = std::max(high, r.prompt + r.steps);
    LengthClass c{members.back().steps, static_cast<double>(members.size()), {}, std::vector<double>(kNodesPerClass)};
    for (size_t node = 0; node < kNodesPerClass; ++node)
      c.context.push_back(static_cast<double>(low) + static_cast<double>((high - low) * static_cast<int64_t>(node)) / (kNodesPerClass - 1));
    for (const Response& r : members) add_rows(c, r);
    classes.push_back(std::move(c));
    begin = end;
  }
  return classes;
}

/// Steps with `first` to `last` sequences that read at most kv[i] tokens: they take time_ns[i] at least.
struct StepRange {
  int64_t last = 0;
  std::vector<double> kv, time_ns;
};

int64_t step_ns(const ClusterModel& cluster, int64_t sequences, int64_t kv_tokens) {
  StepShape shape;
  shape.sequences = shape.rows = shape.sampled_rows = sequences;
  shape.kv_tokens = shape.attended = std::max(sequences, kv_tokens);
  return cluster.step_ns(shape);
}

std::vector<StepRange> step_ranges(const ClusterModel& cluster, int64_t sequences, int64_t context_max, int64_t shared_max) {
  std::vector<StepRange> ranges;
  for (int64_t first = 1; first <= sequences;) {
    StepRange range{.last = std::min(sequences, first + first / kFineSequences), .kv = {}, .time_ns = {}};
    const int64_t kv_max = std::min(range.last * context_max, cluster.kv_tokens + range.last * shared_max);
    for (int64_t k = 0; k < kKvRanges; ++k) {
      int64_t least = std::numeric_limits<int64_t>::max();
      for (int64_t s = first; s <= range.last; ++s) least = std::min(least, step_ns(cluster, s, kv_max * k / kKvRanges));
      range.kv.push_back(static_cast<double>(kv_max * (k + 1) / kKvRanges));
      range.time_ns.push_back(static_cast<double>(std::max<int64_t>(1, least)));
    }
    first = range.last + 1;
    ranges.push_back(std::move(range));
  }
  return ranges;
}

/// A node of a class, as something that rows of a step may be.
struct Item {
  size_t of_class = 0, node = 0;
  double context = 0, rows = 0;
};

struct Prices {
  double machine = 0;
  std::vector<double> waiting;  // by class
  std::vector<double> row;      // by item
};

/// Up to two items of a step, and how many of each. With one, or none, the other amounts are 0.
struct Mix {
  size_t items[2] = {0, 0};
  double amounts[2] = {0, 0};
};

/// What is left of a step's price after paying for its rows at best: the most valuable mix of `items`, sorted by context, of
/// at most `rows` rows and `kv` tokens.
class BestMix {
 public:
  explicit BestMix(std::span<const Item> items) : items_(items) {}

  double find(std::span<const double> worth, double rows, double kv, Mix* mix) {
    hull_.clear();
    hull_.push_back({0, 0, 0});  // an empty row
    for (size_t i = 0; i < items_.size(); ++i) {
      const Point next{items_[i].context, worth[i], i};
      if (next.worth <= hull_.back().worth) continue;  // worth no more, for more KV
      while (hull_.size() > 1 && !is_above(hull_[hull_.size() - 2], hull_.back(), next)) hull_.pop_back();
      hull_.push_back(next);
    }
    const double each = kv / rows;
    size_t right = 0;
    while (right < hull_.size() && hull_[right].context <= each) ++right;
    const Point& a = hull_[right - 1];
    const bool alone = right == hull_.size();
    const double share = alone ? 0 : (each - a.context) / (hull_[right].context - a.context);
    if (mix != nullptr) {
      *mix = {{a.item, alone ? 0 : hull_[right].item}, {right == 1 ? 0 : rows * (1 - share), rows * share}};
    }
    return rows * (alone ? a.worth : a.worth + share * (hull_[right].worth - a.worth));
  }

 private:
  struct Point {
    double context, worth;
    size_t item;
  };
  static bool is_above(const Point& a, const Point& b, const Point& c) {
    return (b.worth - a.worth) * (c.context - a.context) > (c.worth - a.worth) * (b.context - a.context);
  }
  std::span<const Item> items_;
  std::vector<Point> hull_;
};

class ClassBound {
 public:
  ClassBound(const ClusterModel& cluster, std::vector<LengthClass> classes, std::vector<StepRange> ranges)
      : instances_(static_cast<double>(cluster.instances)), classes_(std::move(classes)), ranges_(std::move(ranges)) {
    for (size_t c = 0; c < classes_.size(); ++c)
      for (size_t node = 0; node < classes_[c].context.size(); ++node)
        if (classes_[c].rows[node] > 0) items_.push_back({c, node, classes_[c].context[node], classes_[c].rows[node]});
    std::ranges::sort(items_, {}, &Item::context);
    for (const StepRange& range : ranges_) scale_ns_ = std::max(scale_ns_, range.time_ns.back());
    double rows = 0;
    for (const Item& item : items_) rows += item.rows;
    scale_ns_ *= std::max(1.0, rows / instances_ / static_cast<double>(ranges_.back().last));
  }

  TimePrices best() {
    LinearProgram program(least_amounts(), kUncoveredCost);
    program.add_column(1, time_column());
    BestMix best(items_);
    add_equal_rows(program);
    double value = 0;
    int slow_rounds = 0;
    size_t stride = kCoarse;
    for (int round = 0; round < kRoundsMax; ++round) {
      program.solve(kPivotsMax);
      slow_rounds = program.value() > value * (1 - kSlow) ? slow_rounds + 1 : 0;
      value = program.value();  // more kinds of steps only lower it
      const Prices prices = prices_of(program);
      if (add_violated(program, prices, stride) > 0 && slow_rounds < kSlowRoundsMax) continue;
      if (stride == 1 && valid_ns(prices) >= (1 - kCloseEnough) * value * scale_ns_) break;
      stride = 1;
      slow_rounds = 0;
    }
    Prices prices = prices_of(program);
    const double sum = rows_price(prices), valid = valid_ns(prices);
    for (double& row : prices.row) row *= valid / sum;
    TimePrices found{valid / 1e9, prices.machine, {}, {}};
    for (size_t c = 0; c < classes_.size(); ++c) found.waiting.push_back({classes_[c].steps_min, prices.waiting[c]});
    found.rows_worth_ns = [prices = std::move(prices), of = *this](int64_t sequences, int64_t kv_tokens, double step_ns) {
      std::vector<double> worth;
      of.price_items(prices, 1, step_ns, worth);
      return BestMix(of.items_).find(worth, static_cast<double>(sequences), static_cast<double>(kv_tokens), nullptr);
    };
    return found;
  }

 private:
  static constexpr double kUncoveredCost = 100;
  static constexpr size_t kPivotsMax = 2000;
  static constexpr int kDivisorRoundsMax = 50;
  static constexpr double kPerturbation = 1e-7;

  // Rows of the program: the machine, each class, each item. All amounts are scaled to be around 1: times by scale_ns_.
  // No two rows have the same least amount and none has 0, or the simplex would make many pivots without progress. That changes which
  // prices are best a little, not that they are valid.
  std::vector<double> least_amounts() const {
    std::vector<double> least;
    for (size_t row = 0; row <= classes_.size() + items_.size(); ++row)
      least.push_back((row <= classes_.size() ? 0 : 1) + kPerturbation * static_cast<double>(1 + row * 37 % 101));
    return least;
  }
  LinearProgram::Column time_column() const {
    LinearProgram::Column column;
    for (size_t row = 0; row <= classes_.size(); ++row) column.emplace_back(row, 1.0);
    return column;
  }
  /// Steps of `time_ns`, in a number that makes the largest amount 1.
  LinearProgram::Column step_column(double time_ns, const Mix& mix) const {
    const double steps = instances_ * scale_ns_ / time_ns;
    LinearProgram::Column column{{0, -1.0}};
    for (size_t i = 0; i < 2; ++i) {
      if (mix.amounts[i] <= 0) continue;
      const Item& item = items_[mix.items[i]];
      const double rows = steps * mix.amounts[i];
      column.emplace_back(1 + item.of_class, -rows * time_ns / scale_ns_ / classes_[item.of_class].responses);
      column.emplace_back(1 + classes_.size() + mix.items[i], rows / item.rows);
    }
    double largest = 0;
    for (const auto& [row, value] : column) largest = std::max(largest, std::abs(value));
    for (auto& [row, value] : column) value /= largest;
    return column;
  }

  /// Steps whose rows are all of one node: enough to feed all rows, so that the first prices are not far off.
  void add_equal_rows(LinearProgram& program) const {
    for (size_t i = 0; i < items_.size(); ++i)
      for (size_t r = 0; r < ranges_.size(); r += 1 + r / 2) {
        const StepRange& range = ranges_[r];
        const double rows = static_cast<double>(range.last), kv = rows * items_[i].context;
        const size_t k = static_cast<size_t>(std::ranges::lower_bound(range.kv, kv) - range.kv.begin());
        if (k < range.kv.size()) program.add_column(0, step_column(range.time_ns[k], {{i, 0}, {rows, 0}}));
      }
  }

  /// The program's prices as times in ns, made to meet (1) of the header.
  Prices prices_of(const LinearProgram& program) const {
    const std::vector<double> dual = program.prices();
    Prices prices{std::max(0.0, dual[0]) / instances_, {}, {}};
    double sum = std::max(0.0, dual[0]);
    for (size_t c = 0; c < classes_.size(); ++c) {
      const double all = std::max(0.0, dual[1 + c]);
      sum += all;
      prices.waiting.push_back(all / classes_[c].responses);
    }
    if (sum <= 0) sum = 1, prices.machine = 1 / instances_;
    prices.machine /= sum;
    for (double& price : prices.waiting) price /= sum;
    for (size_t i = 0; i < items_.size(); ++i)
      prices.row.push_back(std::max(0.0, dual[1 + classes_.size() + i]) * scale_ns_ / items_[i].rows / sum);
    return prices;
  }

  void price_items(const Prices& prices, double factor, double time_ns, std::vector<double>& worth) const {
    worth.resize(items_.size());
    for (size_t i = 0; i < items_.size(); ++i)
      worth[i] = prices.row[i] * factor - time_ns * prices.waiting[items_[i].of_class];
  }

  /// Calls visit(k, k) for every stride-th of `ranges` ranges of KV, but leaves out those that cannot matter: it asks visit(first, last)
  /// for all of them, then for halves, and goes no deeper where the answer is false. `visit` must answer true if any step from first to
  /// last might matter; such a step takes the time of range `first` at least and reads the KV of range `last` at most.
  template <class Visit>
  static void for_likely(size_t ranges, size_t stride, const Visit& visit) {
    const auto halve = [&](const auto& self, size_t begin, size_t end) -> void {
      if (!visit((begin + 1) * stride - 1, end * stride - 1) || end - begin == 1) return;
      const size_t middle = begin + (end - begin) / 2;
      self(self, begin, middle);
      self(self, middle, end);
    };
    if (ranges >= stride) halve(halve, 0, ranges / stride);
  }

  /// Adds, for each number of sequences, the step that its rows overpay the most. Returns how many.
  size_t add_violated(LinearProgram& program, const Prices& prices, size_t stride) {
    BestMix best(items_);
    std::vector<double> worth;
    size_t added = 0;
    for (size_t r = 0; r < ranges_.size(); r += r < kFineStart ? 1 : stride) {
      const StepRange& range = ranges_[r];
      double most = kOverpaid;
      size_t at = kKvRanges;
      for_likely(range.kv.size(), stride, [&](size_t first, size_t last) {
        price_items(prices, 1, range.time_ns[first], worth);
        const double paid = best.find(worth, static_cast<double>(range.last), range.kv[last], nullptr);
        const double over = paid / (prices.machine * range.time_ns[first] + kTiny) - 1;
        if (over > most && first == last) most = over, at = first;
        return over > most;
      });
      if (at == kKvRanges) continue;
      Mix mix;
      price_items(prices, 1, range.time_ns[at], worth);
      best.find(worth, static_cast<double>(range.last), range.kv[at], &mix);
      program.add_column(0, step_column(range.time_ns[at], mix));
      ++added;
    }
    return added;
  }

  /// The sum of the prices of all rows, after they are divided by what makes (2) of the header true.
  double valid_ns(const Prices& prices) const {
    BestMix best(items_);
    std::vector<double> worth;
    double divisor = 1;
    bool is_proven = true;
    for (const StepRange& range : ranges_)
      for_likely(range.kv.size(), 1, [&](size_t first, size_t last) {
        // Ends when the best mix at this divisor overpays no more; each round takes the divisor at which the mix just pays.
        for (int round = 0; round < kDivisorRoundsMax; ++round) {
          price_items(prices, 1 / divisor, range.time_ns[first], worth);
          Mix mix;
          const double time_price = prices.machine * range.time_ns[first];
          if (best.find(worth, static_cast<double>(range.last), range.kv[last], &mix) <= time_price) return false;
          if (first < last) return true;
          double rows_price = 0, waiting = 0;
          for (size_t j = 0; j < 2; ++j) {
            if (mix.amounts[j] <= 0) continue;
            rows_price += mix.amounts[j] * prices.row[mix.items[j]];
            waiting += mix.amounts[j] * prices.waiting[items_[mix.items[j]].of_class] * range.time_ns[first];
          }
          divisor = std::max(divisor * (1 + 1e-9), rows_price / std::max(time_price + waiting, 1e-300));
        }
        is_proven = false;
        return false;
      });
    if (!is_proven) return 0;
    return rows_price(prices) / divisor;
  }
  double rows_price(const Prices& prices) const {
    double sum = 0;
    for (size_t i = 0; i < items_.size(); ++i) sum += prices.row[i] * items_[i].rows;
    return sum;
  }

  static constexpr size_t kFineStart = 32;
  static constexpr double kTiny = 1e-30;

  double instances_;
  std::vector<LengthClass> classes_;
  std::vector<StepRange> ranges_;
  std::vector<Item> items_;  // by context
  double scale_ns_ = 1;
};

}  // namespace

double TimePrices::waiting_of(int64_t decode_steps) const {
  const auto of = std::ranges::find_if(waiting, [&](const Waiting& w) { return decode_steps >= w.decode_steps; });
  return of == waiting.end() ? 0 : of->price;
}

TimePrices class_bound(const ClusterModel& cluster, const SimWork& work) {
  std::vector<Response> responses;
  int64_t context_max = 1;
  double shared_max = 0;
  for (const GroupLengths& group : work.groups) {
    const auto samples = static_cast<double>(group.output_tokens.size());
    for (size_t sample = 0; sample < group.output_tokens.size(); ++sample) {
      const int64_t steps = group.output_tokens[sample] - 1;
      if (steps < 1) continue;
      const int64_t beginning = group.shared.empty() ? 0 : std::min(steps, group.shared[sample].tokens);
      responses.push_back({group.prompt_tokens, steps});
      context_max = std::max(context_max, group.prompt_tokens + steps);
      shared_max = std::max(shared_max, static_cast<double>(group.prompt_tokens) * (1 - 1 / samples) + static_cast<double>(beginning));
    }
  }
  if (responses.empty()) return {};
  const int64_t sequences = std::min(cluster.rows_max, static_cast<int64_t>(responses.size()));
  std::vector<StepRange> ranges = step_ranges(cluster, sequences, context_max, static_cast<int64_t>(std::ceil(shared_max)));
  return ClassBound(cluster, classes_of(std::move(responses)), std::move(ranges)).best();
}

}  // namespace seer
