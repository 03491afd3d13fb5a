// DraftAcceptance: how many tokens one verify gains on average. It depends on the references (finished or running
// responses of the group that the draft can be made from) and on the length of the draft. Published (paper v3, Table 2)
// or measured; JSON, see deploy/sim/draft_acceptance.json. Used by `seer simulate`. Pure except for reading a file.
//
// The table gives the acceptance length at one draft length. Each entry gives the probability a that a draft token is
// accepted if all before it were, the same at every position (paper section 3.4, T_SD):
// acceptance length = 1 + a + ... + a^g = (1 - a^(g+1)) / (1 - a). Between numbers of references, a is interpolated on
// ln(1 + references); beyond the last, it is constant.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocols/result.h"

namespace seer {

class DraftAcceptance {
 public:
  /// Table 2 of the paper. `drafting`: linear | multipath-2 | multipath-4. Errors: kInvalidArgument.
  static Result<DraftAcceptance> published(const std::string& drafting);
  /// A file of the same format. Errors: as parse(), kNotFound, kIo.
  static Result<DraftAcceptance> read(const std::string& path, const std::string& drafting);
  /// The same acceptance length whatever the references. REQUIRES: 1 <= accepted <= 1 + draft_tokens.
  static DraftAcceptance constant(double accepted, int64_t draft_tokens);
  /// `name` is the text's name in errors. Errors: kInvalidArgument (one sentence: name, field, value, expected).
  static Result<DraftAcceptance> parse(std::string_view json, const std::string& name, const std::string& drafting);

  /// The same curve for texts that are easier or harder to guess: the acceptance length at `references` is `accepted`, and what
  /// a draft gains at other numbers of references differs by the same factor. REQUIRES: 1 <= accepted <= 1 + the draft length.
  DraftAcceptance scaled(double accepted, double references) const;

  /// Probability that a draft token is accepted if all before it were.
  double token_acceptance(double references) const;
  /// Acceptance length of a verify, bonus token included: 1 without draft tokens. REQUIRES: both at least 0.
  double mean_accepted(double references, int64_t draft_tokens) const;

 private:
  int64_t draft_tokens_ = 0;        // of the drafts that the table is about
  std::vector<double> references_;  // ascending
  std::vector<double> acceptance_;  // at each of them
};

}  // namespace seer
