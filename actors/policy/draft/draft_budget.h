// DraftBudget: how many draft tokens the sequences of an instance get, as paths or as trees, from what verifying them costs
// and from how many have stood so far. Owned by instance_actor, asked every so many steps. Pure: no clock, no threads.
// O(classes * shapes * rows_max) per decision. Single owner, not thread-safe.
//
// A sequence is of the high class (the probe of its group, whose length the others wait to know) or of the low one. Its
// draft is a path or a tree; its rows come in the order of their probability, so that a shorter draft is the beginning of
// a longer one. Of each class and shape two rates are learned per row i, older drafts counting less:
//   d_i  a draft that may have i rows has them (few candidates are likely enough),
//   a_i  and row i stands.
// With b_i = a_i / a_(i-1), a_i is b_1 b_2 ... b_i. Time per token of the batch, T_SD of paper section 3.4:
//   (D + T) / sum over sequences of (1 + a_1 + ... + a_g)
// D is the time to make the drafts, T that of the step with 1 + d_1 + ... + d_g rows of each sequence. The steps' cost model
// gives T up to two factors, one for the step without drafts and one for what drafts add, fitted to the steps that were
// seen (took()): the second to how steps differ that follow one another closely, since batches and loads of the machine
// come and go. Shape and g with the least T_SD are taken, or no drafts where that saves less than min_saving: so trees,
// which gain more but have more rows, come where rows cost little: in small batches, and in the tail.
//
// A row pays if the probability that it stands is worth its cost, p > (T with it - T without it) / T_SD. min_probability
// of a choice is that, for an average row of a step with at least one more for each sequence: the fuller the batch, the surer
// drafts must be.
//
// Rules (paper 3.4, Algorithm 1): all share the budget g* B, where g* minimises T_SD with equal drafts; they differ in
// how it is dealt out.
//   uniform   g* for every sequence.
//   printed   Algorithm 1 as printed: the benefit of one more token is B_x (b[g] - b[g + 1]), a fall in acceptance.
//   marginal  the same with the gain expected of one more token, B_x b[1] ... b[g + 1].
// No class gets a draft where even the best does not pay.
//
// What is not drafted cannot be learned of: now and then a sequence is a scout, with as long a draft as may be, of each
// shape in turn, whatever the choice for the others is. Since its rows are as likely as their cost demands, a scout costs
// little more than the time to make its draft.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocols/step_cost.h"

namespace seer {

enum class DraftRule : uint8_t { kUniform, kPrinted, kMarginal };
enum class DraftShape : uint8_t { kPath = 0, kTree = 1 };
inline constexpr size_t kDraftShapes = 2;

struct DraftBudgetConfig {
  DraftRule rule = DraftRule::kUniform;
  /// By shape: draft tokens of one sequence in one step at most (paper: 8); 0: none of this shape.
  std::array<int64_t, kDraftShapes> rows_max = {8, 0};
  double lambda = 2;             // the high class gets one more where it promises so many times more (paper: 2)
  double draft_ns = 1500;        // to make one sequence's draft, until drafting_took() says better
  double prior_accept = 0.5;     // b_i before anything is known
  double memory = 512;           // drafts of a class and shape after which an old one counts 1/e
  double min_saving = 0.02;      // of T_SD against the time per token without drafts
  double min_probability = 0.02; // never less
  double scouts = 1.0 / 16;      // scouts' share of the drafts
};

/// uniform, printed, marginal.
std::vector<std::string> draft_rule_names();
/// REQUIRES: one of draft_rule_names().
DraftRule parse_draft_rule(std::string_view name);

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
    int64_t scouts = 0;    // so many sequences are to have drafts of rows_max tokens instead, by turns of each shape,
    DraftShape scout_shape = DraftShape::kPath;  // the first of this one

    bool drafts() const { return tokens[kHigh] + tokens[kLow] > 0; }
  };
  using StepNs = std::function<double(const StepShape&)>;

  /// `step_ns`: T, what a step of this shape takes. REQUIRES: rows_max >= 0, lambda >= 0, memory >= 1.
  DraftBudget(DraftBudgetConfig config, StepNs step_ns);

  /// For a batch of decoding sequences: `decode` is the shape of their step without drafts, `sequences` how many are of
  /// each class. Takes what was learned since the last call into account.
  Choice choose(const StepShape& decode, const std::array<int64_t, kClasses>& sequences);
  bool has(DraftShape shape) const { return rows_max(shape) > 0; }
  int64_t rows_max(DraftShape shape) const { return config_.rows_max[static_cast<size_t>(shape)]; }

  /// A draft of at most `allowed` tokens had `drafted` of them, perhaps none, of which those of `rows` stood: what
  /// accepted_path() gives, row i being the draft's token i - 1.
  void verified(Class of, DraftShape shape, int64_t allowed, int64_t drafted, std::span<const int32_t> rows);
  /// The same for several paths: all but one of the tokens that each gained were drafted, and stood. REQUIRES: each gained
  /// 0 to drafted + 1.
  void verified_paths(Class of, int64_t allowed, int64_t drafted, std::span<const int32_t> gained);
  /// A step of shape `step`, `decode` without its drafts, took so long.
  void took(const StepShape& decode, const StepShape& step, double ns);
  void drafting_took(int64_t drafts, double ns);

  /// a_i, i from 1 to rows_max, as of the last choose(); 0 beyond.
  double stands(Class of, DraftShape shape, int64_t row) const;
  /// b_i, likewise.
  double acceptance(Class of, DraftShape shape, int64_t row) const;
  /// 1 + a_1 + ... + a_tokens: what a verify is expected to gain.
  double expected_gain(Class of, DraftShape shape, int64_t tokens) const;
  /// d_1 + ... + d_tokens: draft rows that it is expected to have.
  double expected_rows(Class of, DraftShape shape, int64_t tokens) const;
  /// T: as the cost model has it, corrected by what steps took.
  double predict_ns(const StepShape& decode, const StepShape& step) const;

 private:
  /// Of row i of a class and shape.
  struct Row {
    double asked = 0, drafted = 0, stood = 0;                     // learned: so many drafts
    int64_t asked_since = 0, drafted_since = 0, stood_since = 0;  // and so many since the last choose()
    double rows = 0, gain = 1;                                    // of i rows together, as of the last choose()
  };
  struct Rows {
    std::vector<Row> row;   // row 0: of no use but as the beginning of the sums
    int64_t drafts = 0;     // since the last choose()
  };

  const Rows& rows_of(Class of, DraftShape shape) const { return rows_[of][static_cast<size_t>(shape)]; }
  void add_new(Rows& rows) const;
  void age(Rows& rows) const;
  void sum_up(Rows& rows) const;
  void fit_times();
  StepShape with_drafts(const StepShape& decode, const std::array<int64_t, kClasses>& sequences, DraftShape shape,
                        const Tokens& tokens) const;
  double time_per_token(const StepShape& decode, const std::array<int64_t, kClasses>& sequences, DraftShape shape,
                        const Tokens& tokens) const;
  Tokens deal_out(int64_t budget, const std::array<int64_t, kClasses>& sequences, DraftShape shape) const;
  double benefit(Class of, DraftShape shape, int64_t sequences, int64_t tokens) const;
  double row_ns(const StepShape& decode, int64_t rows) const;
  void send_scouts(int64_t sequences, Choice& choice);

  DraftBudgetConfig config_;
  StepNs step_ns_;
  std::array<std::array<Rows, kDraftShapes>, kClasses> rows_;
  double draft_ns_;
  /// Sums over steps of x, what drafts add to the step in the cost model, and y, the time it took, both by the step
  /// without drafts in the cost model.
  struct Steps {
    double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  };
  Steps recent_;           // since the last choose()
  Steps steps_;            // before; xx and xy of deviations from the mean between two choose()
  double base_factor_ = 1, drafts_factor_ = 1;
  double scouts_due_ = 0;
  int64_t scouts_sent_ = 0;
  std::vector<int64_t> gaining_;  // scratch of verified_paths(): verifies by how much they gained
};

}  // namespace seer
