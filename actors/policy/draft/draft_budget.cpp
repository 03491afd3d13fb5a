#include "actors/policy/draft/draft_budget.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "protocols/check.h"

namespace seer {
namespace {

constexpr double kPriorDrafts = 16;       // weight of the estimate from the row before
constexpr int64_t kFirstScouts = 8;       // sent at once, so that a short rollout sees all shapes
constexpr double kDraftsMemory = 4096;   // the time of a draft counts 1/e after this many more drafts
constexpr double kMinProbabilityMax = 0.95;
constexpr double kWaitsMemory = 256;      // a wait counts 1/e after this many more waits of its kind

/// The step with this many draft rows. REQUIRES: decode.sequences >= 1.
StepShape with_rows(const StepShape& decode, int64_t rows) {
  StepShape step = decode;
  step.rows += rows;
  step.sampled_rows += rows;
  step.kv_tokens += rows;
  step.attended += rows * (decode.kv_tokens / decode.sequences);
  return step;
}

}  // namespace

DraftBudget::DraftBudget(DraftBudgetConfig config, StepNs step_ns)
    : config_(config), step_ns_(std::move(step_ns)), draft_ns_(config.draft_ns), waited_ns_{0, config.wait_ns} {
  SEER_CHECK(config_.lambda >= 0 && config_.memory >= 1, config_.lambda, config_.memory);
  for (size_t shape = 0; shape < kDraftShapes; ++shape) {
    SEER_CHECK(config_.rows_max[shape] >= 0, config_.rows_max[shape]);
    for (auto& shapes : rows_) {
      shapes[shape].row.resize(static_cast<size_t>(config_.rows_max[shape]) + 1);
      sum_up(shapes[shape]);
    }
  }
}

void DraftBudget::verified(Class of, DraftShape shape, int64_t allowed, int64_t drafted, std::span<const int32_t> rows) {
  SEER_CHECK(drafted <= allowed && allowed <= rows_max(shape), drafted, allowed);
  SEER_CHECK(!rows.empty() && rows.back() <= drafted, rows.size(), drafted);
  Rows& learned = rows_[of][static_cast<size_t>(shape)];
  size_t next = 1;
  for (int64_t i = 1; i <= allowed; ++i) {
    Row& row = learned.row[static_cast<size_t>(i)];
    const bool accepted = next < rows.size() && rows[next] == i;
    next += accepted;
    row.asked_since += 1;
    row.drafted_since += i <= drafted ? 1 : 0;
    row.accepted_since += accepted ? 1 : 0;
  }
  ++learned.drafts;
}

void DraftBudget::verified_paths(Class of, int64_t allowed, int64_t drafted, std::span<const int32_t> gained) {
  SEER_CHECK(drafted <= allowed && allowed <= rows_max(DraftShape::kPath), drafted, allowed);
  Rows& learned = rows_[of][static_cast<size_t>(DraftShape::kPath)];
  const auto drafts = static_cast<int64_t>(gained.size());
  gaining_.assign(static_cast<size_t>(drafted) + 2, 0);
  for (const int32_t tokens : gained) ++gaining_[static_cast<size_t>(tokens)];
  int64_t accepted = 0;  // drafts whose row i was accepted
  for (int64_t i = allowed; i >= 1; --i) {
    Row& row = learned.row[static_cast<size_t>(i)];
    if (i <= drafted) accepted += gaining_[static_cast<size_t>(i) + 1];
    row.asked_since += drafts;
    row.drafted_since += i <= drafted ? drafts : 0;
    row.accepted_since += accepted;
  }
  learned.drafts += drafts;
}

/// Adds the counts since the last choose() together, so that neither the order nor the grouping of verifies matters. The older
/// counts age by as many drafts, and the new ones by those after each of them, on average. So what is known stays known for as
/// long as nothing is drafted.
void DraftBudget::add_new(Rows& rows) const {
  const auto drafts = static_cast<double>(std::exchange(rows.drafts, 0));
  if (drafts == 0) return;
  const double kept = std::exp(-drafts / config_.memory);
  const double weight = config_.memory * (1 - kept) / drafts;  // (1 + k + ... + k^(n - 1)) / n with k = exp(-1 / memory), for a long memory
  for (Row& row : rows.row) {
    row.asked = kept * row.asked + weight * static_cast<double>(std::exchange(row.asked_since, 0));
    row.drafted = kept * row.drafted + weight * static_cast<double>(std::exchange(row.drafted_since, 0));
    row.accepted = kept * row.accepted + weight * static_cast<double>(std::exchange(row.accepted_since, 0));
  }
}

/// A row about which little is known is assumed to be drafted as often as the row before, and accepted at the same ratio.
void DraftBudget::sum_up(Rows& rows) const {
  double drafted = 1, accepted = 1, ratio = config_.prior_accept;  // d_i, a_i, b_i
  for (size_t i = 1; i < rows.row.size(); ++i) {
    Row& row = rows.row[i];
    const double before = accepted, weight = row.asked + kPriorDrafts;
    drafted = (row.drafted + kPriorDrafts * drafted) / weight;
    accepted = (row.accepted + kPriorDrafts * accepted * ratio) / weight;
    ratio = before > 0 ? std::min(1.0, accepted / before) : 0;
    row.rows = rows.row[i - 1].rows + drafted;
    row.gain = rows.row[i - 1].gain + accepted;
  }
}

double DraftBudget::expected_gain(Class of, DraftShape shape, int64_t tokens) const {
  return rows_of(of, shape).row[static_cast<size_t>(std::clamp<int64_t>(tokens, 0, rows_max(shape)))].gain;
}

double DraftBudget::expected_rows(Class of, DraftShape shape, int64_t tokens) const {
  return rows_of(of, shape).row[static_cast<size_t>(std::clamp<int64_t>(tokens, 0, rows_max(shape)))].rows;
}

double DraftBudget::accept_share(Class of, DraftShape shape, int64_t row) const {
  return row == 0 ? 1 : expected_gain(of, shape, row) - expected_gain(of, shape, row - 1);
}

double DraftBudget::acceptance(Class of, DraftShape shape, int64_t row) const {
  const double before = accept_share(of, shape, row - 1);
  return before > 0 ? accept_share(of, shape, row) / before : 0;
}

// ---- times -----------------------------------------------------------------------------------------------------------

void DraftBudget::took(const StepShape& decode, const StepShape& step, double ns) {
  const double plain_ns = step_ns_(decode);
  step_times_.add(plain_ns, step_ns_(step) - plain_ns, ns);
}

void DraftBudget::drafting_took(int64_t drafts, double ns) {
  if (drafts == 0) return;
  const double share = std::min(1.0, static_cast<double>(drafts) / kDraftsMemory);
  draft_ns_ += share * (ns / static_cast<double>(drafts) - draft_ns_);
}

void DraftBudget::engine_waited(bool for_drafts, double ns) {
  double& waited_ns = waited_ns_[for_drafts ? 1 : 0];
  waited_ns += (ns - waited_ns) / kWaitsMemory;
}

/// The engine waits while drafts are made, so what was measured has their time in it.
double DraftBudget::wait_ns(double drafts) const { return std::max(drafts * draft_ns_, extra_wait_ns(waited_ns_[1])); }

double DraftBudget::predict_ns(const StepShape& decode, const StepShape& step) const {
  const double plain_ns = step_ns_(decode);
  return step_times_.predict_ns(plain_ns, std::max(0.0, step_ns_(step) - plain_ns));
}

StepShape DraftBudget::with_drafts(const StepShape& decode, const std::array<int64_t, kClasses>& sequences,
                                   DraftShape shape, const Tokens& tokens) const {
  StepShape step = decode;
  double rows = 0, attended = 0;  // of drafts
  const auto context = static_cast<double>(decode.kv_tokens / std::max<int64_t>(1, decode.sequences));
  for (size_t c = 0; c < kClasses; ++c) {
    const double each = expected_rows(static_cast<Class>(c), shape, tokens[c]);
    rows += static_cast<double>(sequences[c]) * each;
    // Row i of a draft attends to the context and i tokens of the draft.
    attended += static_cast<double>(sequences[c]) * each * (context + (each + 1) / 2);
  }
  step.rows += std::llround(rows);
  step.sampled_rows += std::llround(rows);
  step.kv_tokens += std::llround(rows);
  step.attended += std::llround(attended);
  return step;
}

double DraftBudget::time_per_token(const StepShape& decode, const std::array<int64_t, kClasses>& sequences,
                                   DraftShape shape, const Tokens& tokens) const {
  double gained = 0, drafts = 0;
  for (size_t c = 0; c < kClasses; ++c) {
    gained += static_cast<double>(sequences[c]) * expected_gain(static_cast<Class>(c), shape, tokens[c]);
    if (tokens[c] > 0) drafts += static_cast<double>(sequences[c]);
  }
  return ((drafts > 0 ? wait_ns(drafts) : 0) + predict_ns(decode, with_drafts(decode, sequences, shape, tokens))) / gained;
}

// ---- choices ---------------------------------------------------------------------------------------------------------

DraftBudget::Choice DraftBudget::choose(const StepShape& decode, const std::array<int64_t, kClasses>& sequences) {
  Choice choice;
  if (decode.sequences == 0 || (!has(DraftShape::kPath) && !has(DraftShape::kTree))) return choice;
  for (auto& shapes : rows_)
    for (Rows& rows : shapes) {
      add_new(rows);
      sum_up(rows);
    }
  step_times_.fit();
  const double plain_ns = time_per_token(decode, sequences, choice.shape, {});
  double best_ns = (1 - config_.min_saving) * plain_ns;
  int64_t best = 0;
  for (const DraftShape shape : {DraftShape::kPath, DraftShape::kTree})
    for (int64_t g = 1; g <= rows_max(shape); ++g) {
      const double ns = time_per_token(decode, sequences, shape, {g, g});
      if (ns < best_ns) best_ns = ns, best = g, choice.shape = shape;
    }
  choice.tokens = {best, best};
  if (best > 0 && config_.rule != DraftRule::kUniform) {
    const Tokens dealt = deal_out(best * decode.sequences, sequences, choice.shape);
    if (time_per_token(decode, sequences, choice.shape, dealt) < plain_ns) choice.tokens = dealt;
  }
  choice.token_ns = time_per_token(decode, sequences, choice.shape, choice.tokens);

  const int64_t drafted = with_drafts(decode, sequences, choice.shape, choice.tokens).rows - decode.rows;
  choice.min_probability =
      static_cast<float>(std::clamp(row_ns(decode, std::max(drafted, decode.sequences)) / choice.token_ns,
                                    config_.min_probability, kMinProbabilityMax));
  send_scouts(decode, choice);
  return choice;
}

/// Time that one more row adds to a step that has `rows` draft rows. Measured over as many as there are sequences, because the
/// time of a step is counted in whole nanoseconds and may have small bends.
double DraftBudget::row_ns(const StepShape& decode, int64_t rows) const {
  const double more_ns =
      predict_ns(decode, with_rows(decode, rows + decode.sequences)) - predict_ns(decode, with_rows(decode, rows));
  return more_ns / static_cast<double>(decode.sequences);
}

/// Whether drafts would pay if every row were accepted.
bool DraftBudget::could_pay(const StepShape& decode) const {
  const auto sequences = static_cast<double>(decode.sequences);
  const double plain_ns = predict_ns(decode, decode);
  for (const DraftShape shape : {DraftShape::kPath, DraftShape::kTree})
    for (int64_t g = 1; g <= rows_max(shape); ++g) {
      const double ns = wait_ns(sequences) + predict_ns(decode, with_rows(decode, g * decode.sequences));
      if (ns / static_cast<double>(1 + g) < (1 - config_.min_saving) * plain_ns) return true;
    }
  return false;
}

/// Time that scouts add to a step without other drafts, if all their rows are drafted.
double DraftBudget::scouts_ns(const StepShape& decode, int64_t scouts) const {
  const int64_t rows = scouts * std::max(rows_max(DraftShape::kPath), rows_max(DraftShape::kTree));
  return wait_ns(static_cast<double>(scouts)) + predict_ns(decode, with_rows(decode, rows)) - predict_ns(decode, decode);
}

void DraftBudget::send_scouts(const StepShape& decode, Choice& choice) {
  if (config_.scouts <= 0) return;
  const auto most = static_cast<double>(decode.sequences);
  scouts_due_ = std::min(most, scouts_due_ + config_.scouts * most);
  auto scouts = static_cast<int64_t>(scouts_due_);
  if (scouts_sent_ < kFirstScouts) scouts = std::max<int64_t>(1, scouts);
  if (scouts == 0 || !could_pay(decode)) return;
  if (!choice.drafts()) {
    const double cost_ns = scouts_ns(decode, scouts);
    scout_ns_due_ = std::min(cost_ns, scout_ns_due_ + config_.scout_time * predict_ns(decode, decode));
    if (scout_ns_due_ < cost_ns && scouts_sent_ >= kFirstScouts) return;
    scout_ns_due_ = 0;
  }
  choice.scouts = scouts;
  scouts_due_ = std::max(0.0, scouts_due_ - static_cast<double>(scouts));
  choice.scout_shape = shape_after(scouts_sent_ % 2 == 0 ? DraftShape::kTree : DraftShape::kPath);
  scouts_sent_ += scouts;
}

/// Algorithm 1, from line 4. The paper begins with budget - B left, as if each sequence had a token already; here only those that have
/// one count.
DraftBudget::Tokens DraftBudget::deal_out(int64_t budget, const std::array<int64_t, kClasses>& sequences,
                                          DraftShape shape) const {
  const int64_t high = sequences[kHigh], low = sequences[kLow], most = rows_max(shape);
  Tokens tokens{};
  auto& [g_high, g_low] = tokens;
  int64_t left = budget;
  if (high > 0) g_high = 1, left -= high;
  while (left > 0) {
    const double high_benefit = benefit(kHigh, shape, high, g_high), low_benefit = benefit(kLow, shape, low, g_low);
    if (high > 0 && high_benefit > config_.lambda * low_benefit && g_high < most && left >= high)
      ++g_high, left -= high;
    else if (low > 0 && g_low < most && left >= low)
      ++g_low, left -= low;
    else
      break;
  }
  return tokens;
}

/// The gain of one more draft token for every sequence of the class.
double DraftBudget::benefit(Class of, DraftShape shape, int64_t sequences, int64_t tokens) const {
  const auto count = static_cast<double>(sequences);
  if (config_.rule == DraftRule::kPrinted)
    return count * ((tokens == 0 ? 1 : acceptance(of, shape, tokens)) - acceptance(of, shape, tokens + 1));
  return count * accept_share(of, shape, tokens + 1);
}

}  // namespace seer
