// LearnedSteps: what the steps of a server cost, learned from when its tokens come, as points of a StepProfile. A server of others
// does not say what is in its steps. But each of them gives one token to every request that decodes, so the time between two parts of
// an answer, divided by the tokens of the second, is the mean time of the steps between; and who decoded meanwhile, over how much
// context, and whose prompts were prefilled, is known here.
//
// Such means go into bins of like steps (requests that decode, context of each, prefilled tokens per step), one point each. While a
// request waits for its first token, nobody knows whose steps its prefill slows down: means are taken when that token has come. The
// times have all that comes between two steps in them, so a simulation with them needs no gap (--step-gap-us). A simulated request has
// its first token after one step; where a real one waits longer, steps are taken to be longer in the proportion of the requests that
// are there to those that get a token.
//
// What it does not see: requests of other clients, a queue inside the server, drafts. With those the steps seem slower, or faster.
//
// Pure; time is passed in. Single owner, not thread-safe.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "gpu/step_profile.h"
#include "protocols/result.h"

namespace seer {

class LearnedSteps {
 public:
  /// The server is asked to go on from so many tokens. REQUIRES: no open request has this name.
  void asked(const std::string& rid, int64_t context_tokens, int64_t now_us);
  /// Some tokens came. `cached_tokens`: of the context, those whose KV the server had. Ignored if the request is not open.
  void came(const std::string& rid, int64_t tokens, int64_t cached_tokens, int64_t now_us);
  /// Nothing more comes. Ignored likewise.
  void ended(const std::string& rid, int64_t now_us);

  /// A point for each bin that has enough steps to be believed.
  std::vector<ProfilePoint> points() const;
  /// Adds what another one has learned of a server like this.
  void add(const LearnedSteps& other);

 private:
  /// Sums over time or events so far; what happened in between is the difference of two.
  struct Sums {
    // Integrals over microseconds: of the requests that decode, of their contexts, of the requests that wait for their first token.
    double decoding = 0, kv_tokens = 0, waiting = 0;
    // Of the prompts that were prefilled:
    double prefills = 0, prefill_tokens = 0, prefill_kv_tokens = 0, prefill_attended = 0;

    Sums& operator+=(const Sums& other);
    Sums operator-(const Sums& other) const;
    Sums operator*(double factor) const;
  };
  struct Open {
    int64_t context_tokens = 0;
    bool decodes = false;  // its first token has come
    int64_t since_us = 0;  // of the tokens that came until then, the steps have been noted
    int64_t tokens = 0;    // that came after that
    Sums then = {};        // at since_us
  };
  /// Steps that were alike. The integrals are of steps here, not of microseconds.
  struct Bin {
    double steps = 0, us = 0;
    Sums sums;
  };
  using BinKey = std::tuple<int, int, int>;  // see bin_of()

  void advance(int64_t now_us);
  void note_steps(const Open& request);
  static BinKey bin_of(double decoding, double kv_tokens, double prefill_tokens);

  std::map<std::string, Open> open_;
  Sums now_;
  int64_t now_us_ = 0;
  int64_t decoding_ = 0, waiting_ = 0, kv_tokens_ = 0;  // now
  std::map<BinKey, Bin> bins_;
};

/// The profile that these points make. Each counts by the time that its steps took, so that a few that were held up do not tell
/// for many, and none is held out, since one alone may tell how costs go on beyond the others. `source`: what was learned from.
/// Errors: kUnavailable: the points are too few.
Result<StepProfile> learned_profile(std::vector<ProfilePoint> points, const std::string& model, const std::string& source);

}  // namespace seer
