// DraftTree: proposes tokens for the requests of one group from what the group has written so far (grouped speculative
// decoding): the prompt, the request's own text, and the responses of the other requests, which are its references. Responses
// of earlier iterations to the same prompt are references too, if they are known. There is one tree per group and instance.
// The instance appends the tokens of its own requests at once, and those of others as it fetches them from the group's log.
// Used by instance_actor. Single owner, not thread-safe.
//
// A draft never changes a response, only its speed, so text may be incomplete or late. Appends may come twice, late or out of
// order (StreamLog). The same sequence of calls gives the same drafts.
//
//   draft_tree         what callers see; the search for the likeliest tokens; the cap on bytes
//   context_followers  the candidates for one row of a draft, with their counts
//   draft_scores       the probability of one candidate, learned online, shared by the groups of an instance
//   suffix_index       which strings occurred how often, and what followed
//   stream_log         the text
//
// Memory and time. Everything that grows with the tokens is in a handful of flat arrays. When a text passes half of its byte
// limit, it is renewed: a smaller copy grows beside it and then replaces it. Each append copies kRenewTokens tokens, and
// kRenewFactor more per token appended. So an append of n new tokens indexes at most kRenewTokens + n * (1 + kRenewFactor)
// tokens (kRenewTokens for every kPieceTokens begun), whatever the size of the tree. The copy takes about three tenths of the
// limit. It leaves out responses of earlier iterations first, then the references that were written to longest ago; of the last
// one left out, the end is kept. The end of the prompt always stays. If a text and its copy would pass bytes_max together, the
// copy replaces the text at once, even if it is not complete. end() still counts tokens that were dropped, so they are not sent
// again. Unused pages go back to the system kReleaseBytes at a time (PageBin).
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "actors/policy/draft/context_followers.h"
#include "actors/policy/draft/draft_scores.h"
#include "actors/policy/draft/drafter.h"
#include "actors/policy/draft/stream_log.h"
#include "actors/policy/draft/suffix_index.h"

namespace seer {

struct DraftTreeConfig {
  int64_t bytes_max = 128 << 20;  // of a group (own history only: of a request). At most 512 MiB
  bool own_history_only = false;  // draft from the prompt and the request itself only (suffix decoding without groups)
};

class DraftTree {
 public:
  static constexpr size_t kPieceTokens = 1024;  // an append is split into pieces; memory is checked after each
  static constexpr int64_t kRenewTokens = 256;
  static constexpr int64_t kRenewFactor = 4;
  static constexpr int64_t kReleaseBytes = 1 << 20;

  /// `scores` outlives the tree.
  DraftTree(const DraftTreeConfig& config, std::span<const int32_t> prompt, DraftScores& scores);

  /// Adds responses of earlier iterations to the same prompt, newest first. They are references of lower weight, which is
  /// learned, and they are dropped first: all at once if the first responses of this iteration do not repeat them. Together
  /// they take at most a quarter of the text's limit; the oldest are left out. No effect with own_history_only. Best called
  /// before the first append(), because later it renews the text. REQUIRES: tokens are not negative.
  void add_past(std::span<const std::vector<int32_t>> responses);

  /// Makes tokens[i] the token at `position` + i of the response of `sample` (RequestId::sample). Returns how many
  /// tokens became known. Tokens that answer the last draft of this request train the scores. REQUIRES: tokens are not
  /// negative.
  int64_t append(uint32_t sample, int64_t position, std::span<const int32_t> tokens);

  /// Continues the stream of `sample` at `position`: unknown tokens before it will not come.
  void begin_at(uint32_t sample, int64_t position);

  /// Proposes in `draft` tokens to follow the last known one of `sample`: at most limits.max_tokens, and none if nothing is
  /// likely enough.
  void draft(uint32_t sample, const DraftLimits& limits, Draft& draft);

  /// The position up to which tokens of `sample` are known: fetch from here. 0 if there are none.
  int64_t end(uint32_t sample) const;
  /// Tokens of `sample` from `position` on, see StreamLog::tokens().
  std::vector<int32_t> tokens(uint32_t sample, int64_t position, int64_t count_max) const;

  int64_t token_count() const;  // known tokens, with those of the prompt and of earlier iterations
  size_t bytes() const;         // with renewals, and pages not released yet
  int64_t dropped_tokens() const { return dropped_tokens_; }  // to stay below bytes_max, or because the past did not help
  int64_t indexed_tokens() const { return indexed_tokens_; }  // how often a token was indexed: the work done
  bool has_past() const { return !texts_.empty() && texts_.front().past_streams > 0; }

  /// Sets a limit lower than bytes_max (with own_history_only: for all requests together). The appends that follow bring the
  /// tree below it.
  void set_bytes_wanted(int64_t bytes) { bytes_wanted_ = bytes; }
  /// Drops the text; if it is being renewed, the copy so far replaces it. end() stays. The pages go to the bin.
  void drop_text(PageBin& bin);
  /// Gives up the tree, which must not be used again. All large memory goes to the bin, so this takes the same time for any
  /// size of group.
  void give_up(PageBin& bin);

 private:
  struct Renewal;
  /// Text and index of the group or, with own_history_only, of one request. Stream 0 of the log is the prompt; streams up to
  /// past_streams are of earlier iterations, oldest first. These are indexed before all others, so a string whose last
  /// occurrence is in one of them occurs in no response of this iteration.
  struct Text {
    StreamLog log;
    SuffixIndex index;
    SuffixState prompt_end = SuffixIndex::kRoot;  // where responses start
    uint32_t past_streams = 0;
    int64_t judged_tokens = 0, past_matches = 0;  // tokens indexed after the past, and those that only the past predicted
    std::unique_ptr<Renewal> renewal;  // may be null
    bool is_past(TokenPlace place) const { return log.stream(place) - 1 < past_streams; }
    size_t bytes() const { return log.bytes() + index.bytes(); }  // without the renewal's
    void give_up(PageBin& bin);
  };
  /// A stream to copy into a renewed text: from the old text, or `past`.
  struct Copy {
    uint32_t from = 0, to = 0;
    size_t request = kNoRequest;  // index into requests_
    std::vector<int32_t> past;
    int64_t end(const Text& text) const { return past.empty() ? text.log.end(from) : std::ssize(past); }
    std::vector<int32_t> tokens(const Text& text, int64_t position, int64_t count) const;
  };
  /// A text that will replace another one: complete when left_tokens is 0.
  struct Renewal {
    Text text;
    std::vector<Copy> copies;  // the prompt, the past, the requests
    size_t at = 0;             // the copy in progress; those before it lack what was appended since
    int64_t left_tokens = 0;
    int64_t new_tokens = 0;    // of past responses that the old text does not have
  };
  static constexpr size_t kNoRequest = ~size_t{0};
  /// A passage that the request seems to repeat. Unlike counts, it is followed even across tokens that differ.
  struct Source {
    TokenPlace next = kNoPlace;  // its next token
    uint32_t run_tokens = 0;     // tokens since the last miss
    uint32_t misses = 0;         // recent ones
  };
  struct Candidate {
    float probability = 0;  // of the path up to here
    int32_t token = 0;
    int32_t parent = 0;     // row that it follows
    SuffixState state = SuffixIndex::kRoot;  // kRoot: known from the source only
    uint32_t match_tokens = 0;
    Source source;
    DraftScores::Evidence evidence;
  };
  struct Offer {
    float probability;
    int32_t token;
    uint32_t offered;  // index into offered_
  };
  struct Request {
    size_t text = 0;  // index into texts_
    uint32_t stream = 0;
    uint64_t appended = 0;  // appends_ at its last append
    bool drafts = false;    // draft() was called for it
    Source source;
    int64_t draft_position = -1;        // of the draft's first token; -1: none to learn from
    std::vector<Candidate> candidates;  // of the draft: tokens in order
  };

  /// The draft being made.
  struct Asked {
    const Text& text;
    const DraftLimits& limits;
    uint32_t stream;
    int64_t end;  // of the stream
  };

  Text make_text(std::span<const int32_t> prompt);
  Request& request(uint32_t sample);
  int64_t append_piece(Request& request, int64_t position, std::span<const int32_t> tokens);
  void index_tokens(Request& request, int64_t from);
  void follow(const Text& text, Source& source, int32_t token, const SuffixMatch& match) const;
  void learn(Request& request, int64_t end);
  void expand(const Asked& asked, const Candidate& from, int32_t row);
  void offer(const Asked& asked, const Candidate& from, float logit, Candidate& candidate);
  static DraftScores::LastSeen last_seen(const Asked& asked, TokenPlace place);
  static bool less_likely(const Offer& a, const Offer& b) {
    return a.probability < b.probability || (a.probability == b.probability && a.token > b.token);
  }

  template <class Visit>
  void index_stream(Text& text, uint32_t stream, int64_t from, Visit visit);
  int64_t bytes_wanted() const;
  static bool past_is_of_no_use(const Text& text);
  void keep_in_bounds(size_t text_index, int64_t new_tokens);
  void renew_smaller(size_t text_index);
  void renew(size_t text_index, std::vector<std::vector<int32_t>> new_past, bool keeps_past, int64_t surplus_tokens);
  void advance(size_t text_index, int64_t tokens_max);
  void finish_renewal(size_t text_index);

  DraftTreeConfig config_;
  std::vector<int32_t> prompt_;  // with own_history_only: for the texts of further requests
  DraftScores& scores_;
  std::vector<Text> texts_;
  std::unordered_map<uint32_t, size_t> request_of_;  // sample -> index into requests_; only looked up
  std::vector<Request> requests_;
  uint64_t appends_ = 0;
  int64_t dropped_tokens_ = 0, indexed_tokens_ = 0;
  int64_t bytes_wanted_;
  PageBin bin_;
  std::vector<Candidate> offered_;  // for the draft being made
  std::vector<Offer> heap_;         // those not chosen yet, the likeliest first
};

}  // namespace seer
