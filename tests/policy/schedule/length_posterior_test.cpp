#include "actors/policy/schedule/length_posterior.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

using namespace seer;

namespace {

double log_of(int64_t tokens) { return std::log(static_cast<double>(tokens)); }
double q_exact(double x) { return 0.5 * std::erfc(x / std::sqrt(2.0)); }

/// The exact posterior, by a sum over 4001 values of z and exact normal tails.
struct BruteForce {
  LengthModel model;
  std::vector<int64_t> finished, unfinished;

  static constexpr int kPoints = 4001;
  double z_at(int i) const { return (-8 + 16.0 * i / (kPoints - 1)) * model.between; }
  double log_likelihood(double z) const {
    double sum = -0.5 * z * z / (model.between * model.between);
    for (int64_t tokens : finished) sum -= 0.5 * std::pow((log_of(tokens) - model.log_mean - z) / model.within, 2);
    for (int64_t tokens : unfinished) sum += std::log(q_exact((log_of(tokens) - model.log_mean - z) / model.within));
    return sum;
  }
  /// REQUIRES: the members are complete. Every expect() is over these weights.
  void find_posterior() {
    posterior.clear();
    for (int i = 0; i < kPoints; ++i) posterior.push_back(log_likelihood(z_at(i)));
    const double highest = *std::max_element(posterior.begin(), posterior.end());
    double sum = 0;
    for (double& weight : posterior) sum += weight = std::exp(weight - highest);
    for (double& weight : posterior) weight /= sum;
  }
  /// E[f(z)] over the posterior of z.
  template <class F>
  double expect(F f) const {
    double sum = 0;
    for (int i = 0; i < kPoints; ++i) sum += posterior[static_cast<size_t>(i)] * f(z_at(i));
    return sum;
  }
  double tail(double z, double tokens) const { return q_exact((std::log(tokens) - model.log_mean - z) / model.within); }
  double survival(double tokens) const {
    return expect([&](double z) { return tail(z, tokens); });
  }
  /// Solved for `exceed` by bisection down to a factor of 1 + 1e-5, where the tests ask for 2 %.
  double length_exceeded(int64_t age, int64_t limit, double exceed, double outlier) const {
    const auto from = static_cast<double>(std::max<int64_t>(1, age));
    const double w = outlier / (outlier + (1 - outlier) * survival(from));
    std::vector<double> share;  // weight / tail beyond `from`
    for (int i = 0; i < kPoints; ++i) share.push_back(posterior[static_cast<size_t>(i)] / tail(z_at(i), from));
    const auto exceeds = [&](double tokens) {
      double sum = 0;
      for (int i = 0; i < kPoints; ++i) sum += share[static_cast<size_t>(i)] * tail(z_at(i), tokens);
      return w + (1 - w) * sum;
    };
    double low = from, high = static_cast<double>(limit);
    if (exceeds(high) >= exceed) return high;
    while (high > low * (1 + 1e-5)) {
      const double middle = std::sqrt(low * high);
      (exceeds(middle) > exceed ? low : high) = middle;
    }
    return low;
  }

  std::vector<double> posterior;  // P(z_at(i)), all together 1
};

struct Case {
  BruteForce exact;
  LengthPosterior posterior;
};

/// A group of the model, some of its members finished and some of them at an age, with the shapes of a rollout.
Case random_case(uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::uniform_real_distribution<double> uniform;
  std::normal_distribution<double> normal;
  const LengthModel model{
      .log_mean = 7 + 2 * uniform(rng), .between = 0.3 + 0.7 * uniform(rng), .within = 0.4 + 0.4 * uniform(rng)};
  Case made{.exact = {.model = model}, .posterior = LengthPosterior(model)};
  const double z = normal(rng) * std::min(1.0, model.between);
  const uint64_t members = 1 + rng() % 12;
  for (uint64_t i = 0; i < members; ++i) {
    const auto length = static_cast<int64_t>(std::exp(model.log_mean + z + normal(rng) * model.within)) + 1;
    if (uniform(rng) < 0.5) {
      made.exact.finished.push_back(length);
      made.posterior.add_finished(length);
    } else {
      made.exact.unfinished.push_back(1 + static_cast<int64_t>(static_cast<double>(length) * uniform(rng)));
      made.posterior.add_unfinished(made.exact.unfinished.back());
    }
  }
  made.exact.find_posterior();
  return made;
}

}  // namespace

TEST_CASE("length posterior: survival and upper quantiles are those of an integration by brute force") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    const Case c = random_case(seed);
    for (const double factor : {0.2, 1.0, 3.0}) {
      const auto tokens = static_cast<int64_t>(factor * std::exp(c.exact.model.log_mean));
      CHECK(c.posterior.survival(tokens) ==
            doctest::Approx(c.exact.survival(static_cast<double>(tokens))).epsilon(0.02));
    }
    const int64_t age = c.exact.unfinished.empty() ? 0 : c.exact.unfinished[0];
    for (const double exceed : {0.08, 1e-2, 1e-4})
      for (const double outlier : {0.0, 1e-5, 1e-3}) {
        CAPTURE(exceed);
        CAPTURE(outlier);
        const double expected = c.exact.length_exceeded(age, 1'000'000, exceed, outlier);
        const double tolerance = exceed > 1e-3 ? 0.02 : 0.05;
        CHECK(c.posterior.length_exceeded(age, 1'000'000, exceed, outlier) ==
              doctest::Approx(expected).epsilon(tolerance));
      }
  }
}

TEST_CASE("length posterior: an age that is counted again replaces the earlier age") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    const Case c = random_case(seed);
    LengthPosterior grown(c.exact.model);
    std::vector<int64_t> ages;
    for (int64_t tokens : c.exact.unfinished) {
      grown.add_unfinished(tokens / 3 + 1);
      grown.add_unfinished(tokens, tokens / 3 + 1);
    }
    for (int64_t tokens : c.exact.finished) {
      grown.add_unfinished(tokens / 2 + 1);
      grown.add_finished(tokens, tokens / 2 + 1);
    }
    for (size_t i = 0; i < LengthPosterior::kGridPoints; ++i)
      CHECK(grown.weights()[i] == doctest::Approx(c.posterior.weights()[i]).epsilon(1e-6));
  }
}

TEST_CASE("length posterior: the moments are those of an integration by brute force") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    const Case c = random_case(seed);
    const LengthModel& model = c.exact.model;
    LengthMoments moments;
    c.posterior.add_moments_of_group(moments);
    for (int64_t tokens : c.exact.unfinished) c.posterior.add_moments_of_unfinished(tokens, moments);
    // Of a member beyond its age: ln(length) - log_mean - z = within * e, e ~ N(0,1) beyond u; integrated in steps.
    const auto beyond = [&](int64_t tokens, double z, int power) {
      const double u = (log_of(tokens) - model.log_mean - z) / model.within;
      double sum = 0, weights = 0;
      for (int i = 0; i < 400; ++i) {
        const double e = std::max(u, -8.0) + (i + 0.5) * 0.04, weight = std::exp(-0.5 * (e * e - u * u));
        sum += weight * std::pow(model.within * e, power);
        weights += weight;
      }
      return sum / weights;
    };
    const double between = c.exact.expect([](double z) { return z * z; });
    const double log_length = c.exact.expect([&](double z) {
      double sum = 0;
      for (int64_t tokens : c.exact.finished) sum += log_of(tokens) - z;
      for (int64_t tokens : c.exact.unfinished) sum += model.log_mean + beyond(tokens, z, 1);
      return sum;
    });
    const double within = c.exact.expect([&](double z) {
      double sum = 0;
      for (int64_t tokens : c.exact.finished) sum += std::pow(log_of(tokens) - model.log_mean - z, 2);
      for (int64_t tokens : c.exact.unfinished) sum += beyond(tokens, z, 2);
      return sum;
    });
    CHECK(moments.groups == 1);
    CHECK(moments.requests == c.exact.finished.size() + c.exact.unfinished.size());
    CHECK(moments.between_squares == doctest::Approx(between).epsilon(0.03));
    CHECK(moments.log_length == doctest::Approx(log_length).epsilon(0.01));
    CHECK(moments.within_squares == doctest::Approx(within).epsilon(0.03));
  }
}

TEST_CASE("length model: fitting finds the law that made the lengths, also when many are unfinished") {
  const LengthModel law{.log_mean = 8.5, .between = 0.9, .within = 0.4};
  for (const bool cut : {false, true}) {
    CAPTURE(cut);
    std::mt19937_64 rng(5);
    std::normal_distribution<double> normal;
    std::vector<std::vector<int64_t>> groups(1500);
    for (auto& group : groups) {
      const double z = normal(rng) * law.between;
      for (int i = 0; i < 8; ++i)
        group.push_back(static_cast<int64_t>(std::exp(law.log_mean + z + normal(rng) * law.within)) + 1);
    }
    const int64_t seen_tokens = cut ? 6000 : 1'000'000;  // 6 000: two in five are still unfinished
    const LengthModel prior{.log_mean = 10, .between = 0.7, .within = 0.5};
    LengthModel model = prior;
    for (int round = 0; round < 25; ++round) {
      LengthMoments moments;
      for (const auto& group : groups) {
        LengthPosterior posterior(model);
        for (int64_t length : group)
          length < seen_tokens ? posterior.add_finished(length) : posterior.add_unfinished(seen_tokens);
        posterior.add_moments_of_group(moments);
        for (int64_t length : group)
          if (length >= seen_tokens) posterior.add_moments_of_unfinished(seen_tokens, moments);
      }
      model = fit_length_model(moments, prior);
    }
    CHECK(model.log_mean == doctest::Approx(law.log_mean).epsilon(0.02));
    CHECK(model.between == doctest::Approx(law.between).epsilon(0.08));
    CHECK(model.within == doctest::Approx(law.within).epsilon(0.08));
  }
}

TEST_CASE("length posterior: an outlier more probable than the level asked for may reach the limit") {
  LengthPosterior posterior({.log_mean = 7, .between = 0.5, .within = 0.4});
  for (int i = 0; i < 6; ++i) posterior.add_finished(900);
  CHECK(posterior.length_exceeded(500, 100'000, 1e-3, 0) < 5000);
  CHECK(posterior.length_exceeded(500, 100'000, 1e-3, 1e-2) == 100'000);
  CHECK_MESSAGE(posterior.length_exceeded(4000, 100'000, 1e-3, 1e-5) == 100'000,
                "at an age that the model calls impossible only an outlier is left");
}
