#include "actors/policy/schedule/length_posterior.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "protocols/check.h"

namespace seer {
namespace {

constexpr double kGridReach = 3.2;  // the grid ends at this many standard deviations `between`
constexpr int kBisections = 12;     // of ln(length), over at most ln(1e6): 0.3 % of the length

// Q(x), ln Q(x) and the hazard phi(x) / Q(x), linear between 4097 points: within 1e-4 of the exact ratio for |x| <= 6.
// Beyond 8 the values of 8 are used: the model explains nothing there.
class NormalTail {
 public:
  NormalTail() {
    for (int i = 0; i <= kCells; ++i) {
      const double x = -kReach + 2 * kReach * i / kCells;
      survival_[i] = 0.5 * std::erfc(x / std::numbers::sqrt2);
      log_survival_[i] = std::log(survival_[i]);
      hazard_[i] = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi) / survival_[i];
    }
  }
  double survival(double x) const { return at(survival_, x); }
  double log_survival(double x) const { return at(log_survival_, x); }
  double hazard(double x) const { return at(hazard_, x); }

 private:
  static constexpr int kCells = 4096;
  static constexpr double kReach = 8;
  using Table = double[kCells + 1];

  double at(const Table& table, double x) const {
    const double place = (std::clamp(x, -kReach, kReach - 1e-3) + kReach) * (kCells / (2 * kReach));
    const int cell = static_cast<int>(place);
    return table[cell] + (place - cell) * (table[cell + 1] - table[cell]);
  }

  Table survival_, log_survival_, hazard_;
};

const NormalTail& tail() {
  static const NormalTail table;
  return table;
}

double log_of(int64_t tokens) { return std::log(static_cast<double>(std::max<int64_t>(1, tokens))); }

}  // namespace

LengthPosterior::LengthPosterior(const LengthModel& model) : model_(model) {
  SEER_CHECK(model.between > 0, model.between);
  SEER_CHECK(model.within > 0, model.within);
}

double LengthPosterior::z_at(size_t point) const {
  constexpr double kStep = 2 * kGridReach / (kGridPoints - 1);
  return (-kGridReach + kStep * static_cast<double>(point)) * model_.between;
}

void LengthPosterior::add_finished(int64_t tokens, int64_t age_before) {
  SEER_CHECK(tokens >= 1, tokens);
  if (age_before > 0) add_log_tail(age_before, -1);
  const double x = log_of(tokens);
  finished_ += 1;
  log_sum_ += x;
  log_squares_ += x * x;
  weights_valid_ = false;
}

void LengthPosterior::add_unfinished(int64_t age, int64_t age_before) {
  if (age_before > 0) add_log_tail(age_before, -1);
  add_log_tail(age, 1);
  weights_valid_ = false;
}

void LengthPosterior::add_log_tail(int64_t age, double sign) {
  const double x = log_of(age) - model_.log_mean;
  for (size_t i = 0; i < kGridPoints; ++i)
    log_unfinished_[i] += sign * tail().log_survival((x - z_at(i)) / model_.within);
}

// Of the finished, sum (ln L - m)^2 = squares - 2 m sum + n m^2 with m = log_mean + z.
const LengthPosterior::Grid& LengthPosterior::weights() const {
  if (weights_valid_) return weights_;
  weights_valid_ = true;
  double highest = -1e300;
  for (size_t i = 0; i < kGridPoints; ++i) {
    const double z = z_at(i), m = model_.log_mean + z;
    const double squares = log_squares_ - 2 * m * log_sum_ + finished_ * m * m;
    weights_[i] = log_unfinished_[i] - 0.5 * z * z / (model_.between * model_.between) -
                  0.5 * squares / (model_.within * model_.within);
    highest = std::max(highest, weights_[i]);
  }
  double sum = 0;
  for (double& weight : weights_) sum += weight = std::exp(weight - highest);
  for (double& weight : weights_) weight /= sum;
  return weights_;
}

double LengthPosterior::survival(int64_t tokens) const {
  const Grid& weights = this->weights();
  const double x = log_of(tokens) - model_.log_mean;
  double sum = 0;
  for (size_t i = 0; i < kGridPoints; ++i) sum += weights[i] * tail().survival((x - z_at(i)) / model_.within);
  return sum;
}

// The member is an outlier with probability w = outlier / (outlier + (1 - outlier) * survival(age)), and its length x
// solves w + (1 - w) * E_z[Q_z(x) / Q_z(age)] = exceed.
double LengthPosterior::length_exceeded(int64_t age, int64_t limit, double exceed, double outlier) const {
  const Grid& weights = this->weights();
  const auto limit_tokens = static_cast<double>(limit);
  const double w = outlier > 0 ? outlier / (outlier + (1 - outlier) * survival(age)) : 0;
  if (w >= exceed) return limit_tokens;
  exceed = (exceed - w) / (1 - w);

  // Leave out grid points that cannot change the answer; that makes a bisection step about three times faster.
  std::array<double, kGridPoints> center, share;  // share: weight / Q_z(age)
  size_t points = 0;
  const double log_age = log_of(age);
  double used = 0;
  for (size_t i = 0; i < kGridPoints; ++i) {
    if (weights[i] < 0.05 * exceed / kGridPoints) continue;
    center[points] = model_.log_mean + z_at(i);
    share[points] = weights[i] / tail().survival((log_age - center[points]) / model_.within);
    used += weights[i];
    ++points;
  }
  const auto exceeds = [&](double log_tokens) {
    double sum = 0;
    for (size_t i = 0; i < points; ++i) sum += share[i] * tail().survival((log_tokens - center[i]) / model_.within);
    return sum / used;
  };
  double low = log_age, high = log_of(limit);
  if (exceeds(high) >= exceed) return limit_tokens;
  for (int step = 0; step < kBisections; ++step) {
    const double middle = 0.5 * (low + high);
    (exceeds(middle) > exceed ? low : high) = middle;
  }
  return std::exp(0.5 * (low + high));
}

void LengthPosterior::add_moments_of_group(LengthMoments& moments) const {
  const Grid& weights = this->weights();
  moments.groups += 1;
  moments.requests += finished_;
  for (size_t i = 0; i < kGridPoints; ++i) {
    const double z = z_at(i), m = model_.log_mean + z;
    moments.z += weights[i] * z;
    moments.between_squares += weights[i] * z * z;
    moments.log_length += weights[i] * (log_sum_ - finished_ * z);
    moments.within_squares += weights[i] * (log_squares_ - 2 * m * log_sum_ + finished_ * m * m);
  }
}

// Beyond u = (ln age - log_mean - z) / within, with hazard h: E[e] = within * h, E[e^2] = within^2 * (1 + u h).
void LengthPosterior::add_moments_of_unfinished(int64_t tokens, LengthMoments& moments) const {
  const Grid& weights = this->weights();
  const double x = log_of(tokens) - model_.log_mean;
  moments.requests += 1;
  for (size_t i = 0; i < kGridPoints; ++i) {
    const double u = (x - z_at(i)) / model_.within, h = tail().hazard(u);
    moments.log_length += weights[i] * (model_.log_mean + model_.within * h);
    moments.within_squares += weights[i] * model_.within * model_.within * (1 + u * h);
  }
}

LengthModel fit_length_model(const LengthMoments& moments, const LengthModel& prior) {
  const double requests = moments.requests + kPriorRequests, groups = moments.groups + kPriorGroups;
  const double within_squares = moments.within_squares + kPriorRequests * prior.within * prior.within;
  const double between_squares = moments.between_squares + kPriorGroups * prior.between * prior.between;
  const double mean_z = moments.z / groups;
  return {.log_mean = (moments.log_length + kPriorRequests * prior.log_mean) / requests + mean_z,
          .between = std::clamp(std::sqrt(between_squares / groups - mean_z * mean_z), 0.1, 1.5),
          .within = std::clamp(std::sqrt(within_squares / requests), 0.1, 1.5)};
}

}  // namespace seer
