// DraftTree: proposes tokens for the requests of one group from what the group has made so far (grouped speculative
// decoding): the prompt, the request's own history and the responses of the others, its references; and from what
// earlier iterations made of the same prompt, where that is known. One per group and instance; an instance appends the
// tokens of its own requests at once, and those of others as it fetches them from the group's log. Used by
// instance_actor. Single owner, not thread-safe.
//
// A draft never changes a response, only how fast it is made, so nothing here needs to be complete or in time. Appends
// may be duplicate, late or out of order (StreamLog). The same sequence of calls gives the same drafts.
//
//   draft_tree         what callers see; the search for the likeliest tokens; the cap on bytes
//   context_followers  the candidates for one row of a draft, with their counts
//   draft_scores       the probability of one candidate, learned online, shared by the groups of an instance
//   suffix_index       which strings occurred how often, and what followed
//   stream_log          the text
//
// Memory and time. All that grows with the tokens lies in a handful of flat arrays. A text that passes half of what it may
// take is renewed: beside it grows another one with what stays, kRenewTokens and kRenewFactor per appended token at a time,
// which then takes its place. So an append by which n tokens become known indexes at most kRenewTokens + n * (1 +
// kRenewFactor) of them (kRenewTokens for every kPieceTokens begun), whatever the size of the tree. What stays is about three tenths of what the text may take: the responses of
// earlier iterations go first, then the references whose last token came longest ago, of the last of these its earlier
// part; the end of the prompt stays. Where a text and its renewal would pass bytes_max together, the renewal takes its
// place as it is. Tokens that were dropped stay known by end(): nobody has to send them again.
// Pages that are no longer needed go back to the system kReleaseBytes at a time (PageBin).
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
  static constexpr size_t kPieceTokens = 1024;  // an append is taken in pieces, with a look at the bytes after each
  static constexpr int64_t kRenewTokens = 256;
  static constexpr int64_t kRenewFactor = 4;
  static constexpr int64_t kReleaseBytes = 1 << 20;

  /// `scores` outlives the tree.
  DraftTree(const DraftTreeConfig& config, std::span<const int32_t> prompt, DraftScores& scores);

  /// Responses of earlier iterations to the same prompt, newest first: references that weigh less, as they prove to be
  /// worth, and the first to go: at once if the first responses of this iteration do not repeat them. Best before the
  /// first append(): later, the text is renewed with them. What would take more than a quarter of what the text may take
  /// is left out, the oldest first; with own_history_only, all. REQUIRES: tokens are not negative.
  void add_past(std::span<const std::vector<int32_t>> responses);

  /// Makes tokens[i] the token at `position` + i of the response of `sample` (RequestId::sample). Returns how many
  /// tokens became known. Tokens that answer the last draft of this request train the scores. REQUIRES: tokens are not
  /// negative.
  int64_t append(uint32_t sample, int64_t position, std::span<const int32_t> tokens);

  /// Tokens of `sample` before `position` that are not known are not wanted: it goes on from there.
  void begin_at(uint32_t sample, int64_t position);

  /// Proposes tokens behind the last known one of `sample`, into `draft`: at most limits.max_tokens, none if nothing is
  /// likely enough.
  void draft(uint32_t sample, const DraftLimits& limits, Draft& draft);

  /// Tokens of `sample` are known up to here: fetch from here. 0 if there are none.
  int64_t end(uint32_t sample) const;
  /// Tokens of `sample` from `position` on, see StreamLog::tokens().
  std::vector<int32_t> tokens(uint32_t sample, int64_t position, int64_t count_max) const;

  int64_t token_count() const;  // known, the prompt and the past included
  size_t bytes() const;         // renewals and pages that are to be released included
  int64_t dropped_tokens() const { return dropped_tokens_; }  // to stay below bytes_max, or of a past of no use
  int64_t indexed_tokens() const { return indexed_tokens_; }  // how often a token was indexed: the work done
  bool has_past() const { return !texts_.empty() && texts_.front().past_streams > 0; }

  /// What the tree is to take at most, in place of bytes_max where that is more (own history only: of all requests
  /// together). It comes to that with the appends that follow.
  void set_bytes_wanted(int64_t bytes) { bytes_wanted_ = bytes; }
  /// Drops the text, or where it is being renewed what was not copied yet; ends stay known. The pages are the bin's.
  void drop_text(PageBin& bin);
  /// Leaves the tree without use. What grows with the tokens goes to the bin, so this takes the same time whatever the
  /// size of the group.
  void give_up(PageBin& bin);

 private:
  struct Renewal;
  /// Text and index: of the group, or with own_history_only of one request. Stream 0 of the log is the prompt. Those up
  /// to past_streams are of earlier iterations, oldest first. They are indexed before all others: so what occurred last
  /// in one of them, occurred in no response of this iteration.
  struct Text {
    StreamLog log;
    SuffixIndex index;
    SuffixState prompt_end = SuffixIndex::kRoot;  // where responses go on from
    uint32_t past_streams = 0;
    int64_t judged_tokens = 0, past_matches = 0;  // tokens indexed behind the past; those that it foretold alone
    std::unique_ptr<Renewal> renewal;  // maybe none
    bool is_past(TokenPlace place) const { return log.stream(place) - 1 < past_streams; }
    size_t bytes() const { return log.bytes() + index.bytes(); }  // without the renewal's
    void give_up(PageBin& bin);
  };
  /// A stream that a renewed text takes over: of the text before it, or `past`.
  struct Copy {
    uint32_t from = 0, to = 0;
    size_t request = kNoRequest;  // index into requests_
    std::vector<int32_t> past;
    int64_t end(const Text& text) const { return past.empty() ? text.log.end(from) : std::ssize(past); }
    std::vector<int32_t> tokens(const Text& text, int64_t position, int64_t count) const;
  };
  /// The text that is to take the place of another one. It has all when left_tokens is 0.
  struct Renewal {
    Text text;
    std::vector<Copy> copies;  // the prompt, the past, the requests
    size_t at = 0;             // the copy being made; those before it lack what came since
    int64_t left_tokens = 0;
    int64_t new_tokens = 0;    // of responses that the text before does not have
  };
  static constexpr size_t kNoRequest = ~size_t{0};
  /// A passage that the request seems to repeat. It is followed on past tokens that differ, which counts do not see.
  struct Source {
    TokenPlace next = kNoPlace;  // what it has for the next token
    uint32_t run_tokens = 0;     // agreed so far without a miss
    uint32_t misses = 0;         // lately
  };
  struct Candidate {
    float probability;  // of the path up to here
    int32_t token;
    int32_t parent;     // row that it follows
    SuffixState state;  // kRoot: known from the source only
    uint32_t match_tokens;
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
    uint64_t appended = 0;  // when last, in appends_
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
  static DraftScores::Seen seen_at(const Asked& asked, TokenPlace place);
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
  std::vector<int32_t> prompt_;  // of texts to come: with own_history_only
  DraftScores& scores_;
  std::vector<Text> texts_;
  std::unordered_map<uint32_t, size_t> request_of_;  // sample -> index into requests_; only looked up
  std::vector<Request> requests_;
  uint64_t appends_ = 0;
  int64_t dropped_tokens_ = 0, indexed_tokens_ = 0;
  int64_t bytes_wanted_;
  PageBin bin_;
  std::vector<Candidate> offered_;  // for the draft being made
  std::vector<Offer> heap_;         // those not yet chosen, the likeliest first
};

}  // namespace seer
