// LengthPosterior: what the requests of one group, finished or not, tell about each other's lengths. A request that has
// reached 9 000 tokens says that its group is not short, long before it finishes.
//
//   ln(length) = log_mean + z + e,   z ~ N(0, between^2) shared by the group,   e ~ N(0, within^2) per request
//   P(z | group) ~ N(z; 0, between^2) * prod finished phi((ln length - log_mean - z) / within)
//                                     * prod unfinished Q((ln age - log_mean - z) / within),        Q(x) = P(N(0,1) >
//                                     x)
//
// z lives on a grid of kGridPoints, so that every sum below is over the grid. Logarithms are natural; lengths and ages
// are output tokens. Pure; used by LengthOutlook only. Source: the project's scheduling study ("seer+").
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace seer {

/// The three figures that all groups share.
struct LengthModel {
  double log_mean = 0;  // of ln(length)
  double between = 0;   // standard deviation of ln(length) between groups, > 0
  double within = 0;    // the same within a group, > 0
};

/// An unfinished request with fewer tokens says next to nothing and is left out.
inline constexpr int64_t kAgeTokensMin = 64;

/// Sums over requests and groups from which fit_length_model() makes the next model.
struct LengthMoments {
  double requests = 0, log_length = 0, within_squares = 0;
  double groups = 0, z = 0, between_squares = 0;
};

class LengthPosterior {
 public:
  static constexpr size_t kGridPoints = 25;
  using Grid = std::array<double, kGridPoints>;

  LengthPosterior() = default;
  /// With no observations yet.
  explicit LengthPosterior(const LengthModel& model);

  /// A member finished. `age_before`: the age at which it was last counted as unfinished; 0: it was not. O(grid).
  /// REQUIRES: tokens >= 1.
  void add_finished(int64_t tokens, int64_t age_before = 0);
  /// A member is longer than `age` tokens. Replaces `age_before`, the age at which it was last counted. O(grid).
  void add_unfinished(int64_t age, int64_t age_before = 0);

  const LengthModel& model() const { return model_; }
  /// P(z at each grid point | group); sums to 1.
  const Grid& weights() const;
  /// P(a member is longer than `tokens`).
  double survival(int64_t tokens) const;

  /// The length that a member already at `age` tokens exceeds with probability `exceed` (to 0.3 %), at most `limit`.
  /// The grid ends at 3.2 standard deviations of z, so the length is up to 5 % too small if `exceed` is 1e-4. With
  /// probability `outlier` the member follows no model and may reach the limit. REQUIRES: 0 < exceed < 1, 0 <= age <=
  /// limit.
  double length_exceeded(int64_t age, int64_t limit, double exceed, double outlier) const;

  /// Adds the group's expected moments (E step). An unfinished member counts as all lengths beyond its age.
  void add_moments_of_group(LengthMoments& moments) const;
  void add_moments_of_unfinished(int64_t tokens, LengthMoments& moments) const;

 private:
  void add_log_tail(int64_t age, double sign);
  double z_at(size_t point) const;

  LengthModel model_;
  Grid log_unfinished_{};                                // sum over the unfinished of ln Q(...), per grid point
  double finished_ = 0, log_sum_ = 0, log_squares_ = 0;  // of the finished: count, sum of ln(length), of its square
  mutable Grid weights_{};  // made when first needed, because several observations come at a time
  mutable bool weights_valid_ = false;
};

/// The M step: `prior` counts as kPriorRequests requests in kPriorGroups groups. Standard deviations stay in
/// [0.1, 1.5]. The mean of z is moved into log_mean; otherwise a wrong log_mean would stay in z for dozens of rounds.
LengthModel fit_length_model(const LengthMoments& moments, const LengthModel& prior);
inline constexpr double kPriorRequests = 30;
inline constexpr double kPriorGroups = 10;

}  // namespace seer
