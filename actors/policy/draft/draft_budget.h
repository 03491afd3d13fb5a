// DraftBudget: decides how many draft tokens the sequences of an instance get, and whether as paths or as trees. It weighs the
// cost of verifying them against how many were accepted so far. Owned by SequenceDrafts, which asks with each report of tokens.
// Pure: no clock, no threads. O(classes * shapes * rows_max) per decision. Single owner, not thread-safe.
//
// A sequence is of the high class (the probe of its group, whose length the others wait to know) or of the low one. The rows
// of a draft are sorted by probability, so a shorter draft is the beginning of a longer one. For each class, shape and row i
// two rates are learned, with older drafts counting less:
//   d_i  the share of drafts allowed i rows that have row i (the others have fewer candidates that are likely enough),
//   a_i  the share of the drafts allowed i rows whose row i is accepted.
// Let b_i = a_i / a_(i-1), so a_i = b_1 b_2 ... b_i. The time per token of the batch, T_SD of paper section 3.4, is
//   (D + T) / sum over sequences of (1 + a_1 + ... + a_g)
// where D is how much longer the engine waits for a step with drafts than for one that could be queued ahead, at least the time to
// make the drafts, and T the time of the step with 1 + d_1 + ... + d_g rows of each sequence, by the cost model of steps as measured
// steps correct it (StepTimeFit). The choice is the shape and g with the least T_SD, or no drafts if the best saves less than
// min_saving. So trees, which gain more but have more rows, are chosen when rows cost little: in small batches and in the tail.
//
// A row pays if the probability p that it is accepted is worth its cost: p > (T with it - T without it) / T_SD. The
// min_probability of a choice is this bound for a marginal row: one more per sequence, in a step that already has the drafts
// of the choice (at least one row per sequence). What a step with drafts costs whatever their number is no part of a row's
// price: it decides whether to draft, and rows share it. The fuller the batch, the surer drafts must be.
//
// Rules (paper 3.4, Algorithm 1). All have the budget g* B, where g* minimises T_SD with equal drafts. They differ in how they
// deal it out:
//   uniform   g* for every sequence.
//   printed   Algorithm 1 as printed: the benefit of one more token is B_x (b[g] - b[g + 1]), a fall in acceptance.
//   marginal  the same, but the benefit is the expected gain of one more token, B_x b[1] ... b[g + 1].
// No class gets drafts if even the best choice does not pay.
//
// Rates are learned only from drafts, and from trials (actors/instance/drafting.h). So now and then a sequence is a scout: it gets
// the longest draft allowed, of each shape in turn, whatever was chosen for the others. The rows of its draft must pass
// min_probability too. Beside other drafts a scout costs little more than the time to make its draft. Without them, scouts make
// their step pay for being one with drafts. So they wait until what they add to steps is at most scout_time of the time, and then
// go together. None go where drafts would not pay even if every row were accepted.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "actors/policy/draft/step_time_fit.h"
#include "protocols/step_cost.h"

namespace seer {

enum class DraftRule : uint8_t { kUniform, kPrinted, kMarginal };
inline constexpr std::array<const char*, 3> kDraftRuleNames{"uniform", "printed", "marginal"};  // by value
enum class DraftShape : uint8_t { kPath = 0, kTree = 1 };
inline constexpr size_t kDraftShapes = 2;

struct DraftBudgetConfig {
  DraftRule rule = DraftRule::kUniform;
  /// By shape: most draft tokens of one sequence in one step (paper: 8); 0: no drafts of this shape.
  std::array<int64_t, kDraftShapes> rows_max = {8, 0};
  double lambda = 2;             // the high class gets one more token if its gain is lambda times the low one's (paper: 2)
  double draft_ns = 1500;        // to make one sequence's draft, until drafting_took() measures it
  double wait_ns = 0;            // D, until engine_waited() measures it
  double prior_accept = 0.5;     // b_i before anything is learned
  double memory = 512;           // a draft counts 1/e after this many more drafts of its class and shape
  double min_saving = 0.02;      // share of the time per token without drafts
  double min_probability = 0.02; // least min_probability of a choice
  double scouts = 1.0 / 16;      // scouts' share of the sequences
  double scout_time = 1.0 / 64;  // most that scouts add to the time of steps while there are no other drafts
};

class DraftBudget {
 public:
  enum Class : uint8_t { kHigh = 0, kLow = 1 };
  static constexpr size_t kClasses = 2;
  using Tokens = std::array<int64_t, kClasses>;  // per sequence of the class
  struct Choice {
    Tokens tokens{};  // all 0: no drafts
    DraftShape shape = DraftShape::kPath;
    float min_probability = 0;
    double token_ns = 0;   // T_SD, or the time per token without drafts
    int64_t scouts = 0;    // sequences that get rows_max draft tokens instead; shapes take turns
    DraftShape scout_shape = DraftShape::kPath;  // of the first scout

    bool drafts() const { return tokens[kHigh] + tokens[kLow] > 0; }
  };
  using StepNs = std::function<double(const StepShape&)>;

  /// `step_ns`: T, the time of a step of this shape. REQUIRES: rows_max >= 0, lambda >= 0, memory >= 1.
  DraftBudget(DraftBudgetConfig config, StepNs step_ns);

  /// Chooses for a batch of decoding sequences. `decode`: the shape of their step without drafts. `sequences`: how many there
  /// are of each class. Counts gathered since the last call take effect now.
  Choice choose(const StepShape& decode, const std::array<int64_t, kClasses>& sequences);
  bool has(DraftShape shape) const { return rows_max(shape) > 0; }
  /// Shapes take turns, if drafts may have both.
  DraftShape shape_after(DraftShape shape) const {
    const DraftShape other = shape == DraftShape::kPath ? DraftShape::kTree : DraftShape::kPath;
    return has(other) ? other : shape;
  }
  int64_t rows_max(DraftShape shape) const { return config_.rows_max[static_cast<size_t>(shape)]; }

  /// A draft that was allowed `allowed` tokens had `drafted`, perhaps 0. `rows`: the accepted rows, as accepted_path() gives
  /// them; row i is the draft's token i - 1.
  void verified(Class of, DraftShape shape, int64_t allowed, int64_t drafted, std::span<const int32_t> rows);
  /// The same for several paths. `gained`: tokens that each gained; all but the last are accepted draft tokens. REQUIRES: each
  /// gained 0 to drafted + 1.
  void verified_paths(Class of, int64_t allowed, int64_t drafted, std::span<const int32_t> gained);
  /// A step took this long. `step`: its shape; `decode`: its shape without drafts.
  void took(const StepShape& decode, const StepShape& step, double ns);
  void drafting_took(int64_t drafts, double ns);
  /// The engine stood still for this long before a step. `for_drafts`: its batch had a choice with drafts or scouts.
  void engine_waited(bool for_drafts, double ns);

  /// a_i for i from 1 to rows_max, as of the last choose(); 0 beyond.
  double accept_share(Class of, DraftShape shape, int64_t row) const;
  /// b_i, likewise.
  double acceptance(Class of, DraftShape shape, int64_t row) const;
  /// 1 + a_1 + ... + a_tokens: tokens that a verify gains on average.
  double expected_gain(Class of, DraftShape shape, int64_t tokens) const;
  /// d_1 + ... + d_tokens: rows that such a draft has on average.
  double expected_rows(Class of, DraftShape shape, int64_t tokens) const;
  /// T of the cost model, corrected by the times of past steps.
  double predict_ns(const StepShape& decode, const StepShape& step) const;
  /// D with this many drafts.
  double wait_ns(double drafts) const;
  /// How much longer a wait for drafts was than the average wait without.
  double extra_wait_ns(double ns) const { return ns > waited_ns_[0] ? ns - waited_ns_[0] : 0; }

 private:
  /// What was learned about row i of a class and shape.
  struct Row {
    double asked = 0, drafted = 0, accepted = 0;                     // drafts, by age
    int64_t asked_since = 0, drafted_since = 0, accepted_since = 0;  // drafts since the last choose()
    double rows = 0, gain = 1;                                       // of rows 1 to i together, as of the last choose()
  };
  struct Rows {
    std::vector<Row> row;   // row 0 only starts the sums
    int64_t drafts = 0;     // since the last choose()
  };

  const Rows& rows_of(Class of, DraftShape shape) const { return rows_[of][static_cast<size_t>(shape)]; }
  void add_new(Rows& rows) const;
  void sum_up(Rows& rows) const;
  StepShape with_drafts(const StepShape& decode, const std::array<int64_t, kClasses>& sequences, DraftShape shape,
                        const Tokens& tokens) const;
  double time_per_token(const StepShape& decode, const std::array<int64_t, kClasses>& sequences, DraftShape shape,
                        const Tokens& tokens) const;
  Tokens deal_out(int64_t budget, const std::array<int64_t, kClasses>& sequences, DraftShape shape) const;
  double benefit(Class of, DraftShape shape, int64_t sequences, int64_t tokens) const;
  double row_ns(const StepShape& decode, int64_t rows) const;
  bool could_pay(const StepShape& decode) const;
  double scouts_ns(const StepShape& decode, int64_t scouts) const;
  void send_scouts(const StepShape& decode, Choice& choice);

  DraftBudgetConfig config_;
  StepNs step_ns_;
  std::array<std::array<Rows, kDraftShapes>, kClasses> rows_;
  double draft_ns_;
  std::array<double, 2> waited_ns_;  // before a step without, with drafts or scouts
  StepTimeFit step_times_;
  double scouts_due_ = 0;
  double scout_ns_due_ = 0;  // of time that scouts may add to steps
  int64_t scouts_sent_ = 0;
  std::vector<int64_t> gaining_;  // scratch of verified_paths(): number of verifies by tokens gained
};

}  // namespace seer
