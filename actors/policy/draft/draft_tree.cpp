#include "actors/policy/draft/draft_tree.h"

#include <algorithm>

namespace seer {
namespace {

constexpr int64_t kBytesMax = 512 << 20;      // SuffixIndex::kPlacesMax tokens take at least 8 bytes each
constexpr int64_t kPromptBytesPerToken = 256;  // 30 to 50 are needed, so a prompt takes at most a fifth of a text
constexpr int64_t kPastBytesPerToken = 256;    // earlier iterations too
// Shares of a text's limit. A renewal copies kRenewFactor tokens for each token that comes, so while it copies a share s, both
// texts grow by s / 3. At the end they take 0.5 + 0.3 + 2 * 0.1.
constexpr double kShareToRenew = 0.5;
constexpr double kShareThatStays = 0.3;
constexpr int64_t kReleaseBytesPerToken = 256;  // more than a token can take
constexpr int64_t kBytesWantedMin = 64 << 10;   // of a text
// Past responses whose text does not come again only blur the counts. The test: how many tokens of this iteration end a match of
// kPastMatchMin tokens that only a past response has. If past responses are as alike as members of a group, 2 to 40 % do; if
// not, less than 0.5 %.
constexpr uint32_t kPastMatchMin = 6;
constexpr int64_t kPastMatchTokensMax = 200;  // with more tokens per such match, the past is dropped
constexpr int64_t kJudgedTokensMin = 1024;
constexpr uint32_t kSourceMatchMin = 3;       // shorter matches are no source
constexpr uint32_t kSourceMissesMax = 2;
constexpr uint32_t kSourceRunForgives = 8;  // tokens after which earlier misses are forgotten

constexpr uint32_t kContexts = DraftScores::kContexts;

}  // namespace

DraftTree::DraftTree(const DraftTreeConfig& config, std::span<const int32_t> prompt, DraftScores& scores)
    : config_(config), scores_(scores), bytes_wanted_(kBytesMax) {
  SEER_CHECK(config.bytes_max > 0 && config.bytes_max <= kBytesMax, config.bytes_max);
  prompt = prompt.last(std::min(prompt.size(), static_cast<size_t>(config.bytes_max / kPromptBytesPerToken)));
  if (config_.own_history_only)
    prompt_.assign(prompt.begin(), prompt.end());
  else
    texts_.push_back(make_text(prompt));
}

void DraftTree::add_past(std::span<const std::vector<int32_t>> responses) {
  if (config_.own_history_only) return;
  int64_t left = bytes_wanted() / kPastBytesPerToken, count = 0;
  std::vector<std::vector<int32_t>> past;  // oldest first
  for (const std::vector<int32_t>& response : responses) {
    const auto taken = std::min(std::ssize(response), left);
    if (taken > 0) past.emplace(past.begin(), response.begin(), response.begin() + taken);
    left -= taken;
    count += taken;
  }
  const StreamLog& log = texts_.front().log;
  const bool nothing_written = log.token_count() == log.end(0);
  renew(0, std::move(past), true, 0);
  advance(0, nothing_written ? log.token_count() + count : kRenewTokens + kRenewFactor * count);
}

int64_t DraftTree::append(uint32_t sample, int64_t position, std::span<const int32_t> tokens) {
  Request& r = request(sample);
  int64_t count = 0;
  while (!tokens.empty()) {
    const std::span<const int32_t> piece = tokens.first(std::min(tokens.size(), kPieceTokens));
    count += append_piece(r, position, piece);
    tokens = tokens.subspan(piece.size());
    position += std::ssize(piece);
  }
  return count;
}

void DraftTree::begin_at(uint32_t sample, int64_t position) {
  Request& r = request(sample);
  Text& text = texts_[r.text];
  if (text.log.end(r.stream) >= position) return;
  r.stream = text.log.add_stream(position);
  r.source = {};
  r.draft_position = -1;
  if (!text.renewal) return;
  const auto index = static_cast<size_t>(&r - requests_.data());
  for (Copy& copy : text.renewal->copies)
    if (copy.request == index) copy.request = kNoRequest;
  text.renewal->copies.push_back({r.stream, text.renewal->text.log.add_stream(position), index, {}});
}

int64_t DraftTree::append_piece(Request& r, int64_t position, std::span<const int32_t> tokens) {
  StreamLog& log = texts_[r.text].log;
  const int64_t from = log.end(r.stream);
  const int64_t count = log.append(r.stream, position, tokens);
  if (count == 0) return 0;
  r.appended = ++appends_;
  if (r.draft_position >= 0) learn(r, from + count);
  index_tokens(r, from);
  keep_in_bounds(r.text, count);
  return count;
}

int64_t DraftTree::end(uint32_t sample) const {
  const auto found = request_of_.find(sample);
  if (found == request_of_.end()) return 0;
  const Request& r = requests_[found->second];
  return texts_[r.text].log.end(r.stream);
}

std::vector<int32_t> DraftTree::tokens(uint32_t sample, int64_t position, int64_t count_max) const {
  const auto found = request_of_.find(sample);
  if (found == request_of_.end()) return {};
  const Request& r = requests_[found->second];
  return texts_[r.text].log.tokens(r.stream, position, count_max);
}

int64_t DraftTree::token_count() const {
  int64_t sum = 0;
  for (const Text& text : texts_) sum += text.log.token_count();
  return sum;
}

size_t DraftTree::bytes() const {
  size_t sum = bin_.bytes() + prompt_.size() * sizeof(int32_t) + offered_.capacity() * sizeof(Candidate);
  for (const Text& text : texts_) sum += text.bytes() + (text.renewal ? text.renewal->text.bytes() : 0);
  return sum;
}

DraftTree::Text DraftTree::make_text(std::span<const int32_t> prompt) {
  Text text;
  text.log.add_stream();
  if (prompt.empty()) return text;
  text.log.append(0, 0, prompt);
  index_stream(text, 0, 0, [](int32_t, const SuffixMatch&) {});
  text.prompt_end = text.index.branch(text.log, text.log.place(0, text.log.end(0) - 1));
  return text;
}

DraftTree::Request& DraftTree::request(uint32_t sample) {
  const auto [at, is_new] = request_of_.try_emplace(sample, requests_.size());
  if (!is_new) return requests_[at->second];
  if (config_.own_history_only) texts_.push_back(make_text(prompt_));
  Request& r = requests_.emplace_back();
  r.text = texts_.size() - 1;
  Text& text = texts_[r.text];
  r.stream = text.log.add_stream();
  if (text.renewal)
    text.renewal->copies.push_back({r.stream, text.renewal->text.log.add_stream(), requests_.size() - 1, {}});
  return r;
}

void DraftTree::index_tokens(Request& r, int64_t from) {
  Text& text = texts_[r.text];
  index_stream(text, r.stream, from, [&](int32_t token, const SuffixMatch& match) {
    if (r.drafts) follow(text, r.source, token, match);
  });
}

/// Indexes the tokens of a stream from `from` on. Calls visit(token, match) for each. REQUIRES: from < the stream's end.
template <class Visit>
void DraftTree::index_stream(Text& text, uint32_t stream, int64_t from, Visit visit) {
  const int64_t begin = text.log.begin(stream), end = text.log.end(stream);
  const bool judges_past = text.past_streams > 0 && stream > text.past_streams;
  // A response whose first tokens were dropped does not follow the prompt.
  SuffixState last = from > begin ? text.index.state(text.log.place(stream, from - 1))
                     : begin == 0 ? text.prompt_end
                                  : SuffixIndex::kRoot;
  TokenPlace place = text.log.place(stream, from);
  for (int64_t position = from;; place = text.log.next(place)) {
    const SuffixMatch match = text.index.append(text.log, place, last, position == begin);
    visit(text.log.token(place), match);
    if (judges_past) {
      ++text.judged_tokens;
      text.past_matches += match.length >= kPastMatchMin && text.is_past(match.occurrence);
    }
    if (++position == end) break;
    last = text.index.state(place);
  }
  indexed_tokens_ += end - from;
}

void DraftTree::follow(const Text& text, Source& source, int32_t token, const SuffixMatch& match) const {
  if (source.next != kNoPlace) {
    if (!text.index.indexed(source.next)) {
      source.next = kNoPlace;
    } else if (text.log.token(source.next) == token) {
      if (++source.run_tokens > kSourceRunForgives) source.misses = 0;
    } else {
      source.run_tokens = 0;
      if (++source.misses > kSourceMissesMax) source.next = kNoPlace;
    }
    if (source.next != kNoPlace) source.next = text.log.next(source.next);
  }
  if (match.length >= kSourceMatchMin && (source.next == kNoPlace || match.length > source.run_tokens + 4))
    source = {text.log.next(match.occurrence), match.length, 0};
}

/// Compares the request's draft with its tokens before `end`. Learns from each draft token whose parent was accepted.
void DraftTree::learn(Request& r, int64_t end) {
  const StreamLog& log = texts_[r.text].log;
  int32_t row = 0;  // the last accepted one
  int64_t position = r.draft_position;
  for (size_t i = 0; i < r.candidates.size() && position < end; ++i) {
    const Candidate& c = r.candidates[i];
    if (c.parent != row) continue;
    // Siblings need not be adjacent: look at all children of this row, then go on from the accepted one.
    const int32_t token = log.token(log.place(r.stream, position));
    int32_t next = -1;
    for (size_t j = i; j < r.candidates.size(); ++j) {
      if (r.candidates[j].parent != row) continue;
      const bool accepted = r.candidates[j].token == token;
      scores_.learn(r.candidates[j].evidence, accepted);
      if (accepted) next = static_cast<int32_t>(j);
    }
    if (next < 0) break;
    row = next + 1;
    i = static_cast<size_t>(next);
    ++position;
  }
  r.draft_position = -1;
}

void DraftTree::draft(uint32_t sample, const DraftLimits& limits, Draft& draft) {
  draft.clear();
  Request& r = request(sample);
  const Text& text = texts_[r.text];
  const int64_t begin = text.log.begin(r.stream), end = text.log.end(r.stream);
  r.drafts = true;
  r.candidates.clear();
  r.draft_position = end;

  Candidate known = {};
  known.probability = 1;
  known.state = end > begin  ? text.index.state(text.log.place(r.stream, end - 1))
                : begin == 0 ? text.prompt_end
                             : SuffixIndex::kRoot;
  while (known.state != SuffixIndex::kRoot && !text.index.has_followers(text.log, known.state))
    known.state = text.index.link(known.state);
  known.match_tokens = text.index.length(known.state);
  known.source = r.source;
  heap_.clear();
  offered_.clear();
  const Asked asked = {text, limits, r.stream, end};
  if (limits.max_tokens > 0) expand(asked, known, 0);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), less_likely);
    const Candidate& chosen = r.candidates.emplace_back(offered_[heap_.back().offered]);
    heap_.pop_back();
    draft.tokens.push_back(chosen.token);
    draft.parents.push_back(chosen.parent);
    draft.probabilities.push_back(chosen.probability);
    const auto row = static_cast<int32_t>(draft.tokens.size());
    if (!limits.tree) offered_.clear();
    if (row >= limits.max_tokens) break;
    expand(asked, chosen, row);
  }
  // Keep the candidate that was not likely enough, to learn from it too. Otherwise a score that is too low would never be
  // corrected, and of candidates near the limit only the overrated ones would be learned from.
  if (!limits.tree && heap_.empty() && !offered_.empty()) r.candidates.push_back(offered_.back());
}

/// Offers the tokens that may follow `from`, which is row `row`: the likeliest or, for a tree, all of them.
void DraftTree::expand(const Asked& asked, const Candidate& from, int32_t row) {
  ContextFollowers found;
  found.find(asked.text.log, asked.text.index, from.state, from.match_tokens);
  const StreamLog& log = asked.text.log;
  const bool has_source = from.source.next != kNoPlace && asked.text.index.indexed(from.source.next);
  const int32_t source_token = has_source ? log.token(from.source.next) : -1;
  if (has_source) found.add_source(source_token, from.source.run_tokens < kSourceMatchMin);

  std::optional<DraftScores::Source> source;
  if (has_source) source = {from.source.run_tokens, from.source.misses, asked.text.is_past(from.source.next)};
  const DraftScores::Row candidates({found.lengths.data(), found.contexts}, {found.totals.data(), found.contexts}, source);

  std::optional<Candidate> best;
  float best_logit = 0;
  for (uint32_t k = 0; k < found.count; ++k) {
    const ContextFollowers::Follower& f = found.followers[k];
    if (!asked.limits.tree && !f.leads) continue;
    const bool agrees = f.token == source_token;
    std::optional<DraftScores::LastSeen> last;
    if (f.state != SuffixIndex::kRoot) last = last_seen(asked, asked.text.index.occurrence(f.state));
    Candidate c = {.token = f.token,
                   .parent = row,
                   .state = f.state,
                   .match_tokens = f.match_tokens,
                   .source = {agrees ? log.next(from.source.next) : kNoPlace, from.source.run_tokens + 1, from.source.misses},
                   .evidence = candidates.evidence(f.counts, agrees, last)};
    const float logit = scores_.logit(c.evidence);
    if (asked.limits.tree) {
      offer(asked, from, logit, c);
    } else if (!best || logit > best_logit || (logit == best_logit && f.token < best->token)) {
      best = c;
      best_logit = logit;
    }
  }
  if (best) offer(asked, from, best_logit, *best);
}

/// Adds the candidate to those that the next token is chosen from, if it is likely enough.
void DraftTree::offer(const Asked& asked, const Candidate& from, float logit, Candidate& c) {
  c.evidence.probability = DraftScores::probability(logit);
  c.probability = from.probability * c.evidence.probability;
  offered_.push_back(c);
  if (c.probability < asked.limits.min_probability) return;
  heap_.push_back({c.probability, c.token, static_cast<uint32_t>(offered_.size() - 1)});
  std::push_heap(heap_.begin(), heap_.end(), less_likely);
}

DraftScores::LastSeen DraftTree::last_seen(const Asked& asked, TokenPlace place) {
  const StreamLog& log = asked.text.log;
  if (log.stream(place) == asked.stream) return {DraftScores::Seen::kHere, asked.end - log.position(place)};
  return {asked.text.is_past(place) ? DraftScores::Seen::kInPast : DraftScores::Seen::kElsewhere};
}

/// The byte limit of one text.
int64_t DraftTree::bytes_wanted() const {
  const int64_t wanted = config_.own_history_only ? bytes_wanted_ / std::max<int64_t>(1, std::ssize(texts_)) : bytes_wanted_;
  return std::min(std::max(wanted, kBytesWantedMin), config_.bytes_max);
}

bool DraftTree::past_is_of_no_use(const Text& text) {
  return text.judged_tokens >= kJudgedTokensMin && text.past_matches * kPastMatchTokensMax < text.judged_tokens;
}

/// Called after `new_tokens` were appended to the text. Starts or continues its renewal if one is due, and keeps text and
/// renewal together below the limit.
void DraftTree::keep_in_bounds(size_t text_index, int64_t new_tokens) {
  Text& text = texts_[text_index];
  if (text.renewal)
    text.renewal->left_tokens += new_tokens;
  else if (static_cast<double>(text.bytes()) > static_cast<double>(bytes_wanted()) * kShareToRenew)
    renew_smaller(text_index);
  else if (past_is_of_no_use(text))
    renew(text_index, {}, false, 0);
  advance(text_index, kRenewTokens + kRenewFactor * new_tokens);

  bin_.release(static_cast<size_t>(kReleaseBytes + kReleaseBytesPerToken * new_tokens));
  const auto over = [&] {
    const size_t renewal_bytes = text.renewal ? text.renewal->text.bytes() : 0;
    return static_cast<int64_t>(text.bytes() + renewal_bytes) - config_.bytes_max;
  };
  if (over() > 0) {
    if (!text.renewal) renew_smaller(text_index);
    finish_renewal(text_index);
  }
  if (const int64_t surplus = over() + static_cast<int64_t>(bin_.bytes()); surplus > 0)
    bin_.release(static_cast<size_t>(surplus));
}

/// Begins a renewal that keeps kShareThatStays of the text's limit.
void DraftTree::renew_smaller(size_t text_index) {
  const Text& text = texts_[text_index];
  const double share = kShareThatStays * static_cast<double>(bytes_wanted()) / static_cast<double>(text.bytes());
  const int64_t tokens = text.log.token_count();
  renew(text_index, {}, false, tokens - std::min(tokens, static_cast<int64_t>(static_cast<double>(tokens) * share)));
}

/// Begins the renewal of a text, without surplus_tokens of it and with `new_past`, more responses of earlier iterations, oldest
/// first. keeps_past: keep those that it has. A renewal in progress is given up.
void DraftTree::renew(size_t text_index, std::vector<std::vector<int32_t>> new_past, bool keeps_past,
                      int64_t surplus_tokens) {
  Text& text = texts_[text_index];
  if (text.renewal) text.renewal->text.give_up(bin_);
  text.renewal = std::make_unique<Renewal>();
  Renewal& renewal = *text.renewal;
  const auto copy = [&](Copy stream, int64_t begin) {
    stream.to = renewal.text.log.add_stream(begin);
    renewal.left_tokens += stream.end(text) - begin;
    renewal.copies.push_back(std::move(stream));
  };
  const int64_t prompt_end = text.log.end(0);
  copy({.from = 0}, std::max(text.log.begin(0), prompt_end - bytes_wanted() / kPromptBytesPerToken));

  for (std::vector<int32_t>& tokens : new_past) {
    renewal.new_tokens += std::ssize(tokens);
    copy({.past = std::move(tokens)}, 0);
  }
  for (uint32_t stream = 1; stream <= text.past_streams; ++stream) {
    if (keeps_past)
      copy({.from = stream}, 0);
    else
      surplus_tokens -= text.log.end(stream);
  }
  renewal.text.past_streams = static_cast<uint32_t>(renewal.copies.size() - 1);

  std::vector<size_t> oldest_first;
  for (size_t i = 0; i < requests_.size(); ++i)
    if (requests_[i].text == text_index) oldest_first.push_back(i);
  std::ranges::sort(oldest_first, {}, [&](size_t i) { return std::pair(requests_[i].appended, i); });
  for (size_t i : oldest_first) {
    const uint32_t stream = requests_[i].stream;
    const int64_t begin = text.log.begin(stream);
    const int64_t dropped = std::clamp<int64_t>(surplus_tokens, 0, text.log.end(stream) - begin);
    surplus_tokens -= dropped;
    copy({.from = stream, .request = i}, begin + dropped);
  }
}

/// Copies at most `tokens_max` tokens into the renewal, if there is one. A complete renewal replaces the text.
void DraftTree::advance(size_t text_index, int64_t tokens_max) {
  const Text& text = texts_[text_index];
  if (!text.renewal) return;
  Renewal& renewal = *text.renewal;
  while (renewal.left_tokens > 0 && tokens_max > 0) {
    const Copy& copy = renewal.copies[renewal.at];
    StreamLog& log = renewal.text.log;
    const int64_t done = log.end(copy.to), end = copy.end(text);
    const int64_t count = std::min(tokens_max, end - done);
    if (count > 0) {
      log.append(copy.to, done, copy.tokens(text, done, count));
      index_stream(renewal.text, copy.to, done, [](int32_t, const SuffixMatch&) {});
      tokens_max -= count;
      renewal.left_tokens -= count;
      if (renewal.at == 0 && done + count == end)
        renewal.text.prompt_end = renewal.text.index.branch(log, log.place(0, end - 1));
    }
    if (done + count == end) renewal.at = (renewal.at + 1) % renewal.copies.size();
  }
  if (renewal.left_tokens == 0) finish_renewal(text_index);
}

/// Replaces the text by its renewal. Tokens that the renewal lacks are dropped. REQUIRES: the text has a renewal.
void DraftTree::finish_renewal(size_t text_index) {
  Text& text = texts_[text_index];
  const std::unique_ptr<Renewal> renewal = std::move(text.renewal);
  StreamLog& log = renewal->text.log;
  for (const Copy& copy : renewal->copies) {
    if (copy.request == kNoRequest) continue;
    Request& r = requests_[copy.request];
    const int64_t end = text.log.end(r.stream);
    r.stream = log.end(copy.to) == end ? copy.to : log.add_stream(end);
    r.source = {};
  }
  dropped_tokens_ += text.log.token_count() + renewal->new_tokens - log.token_count();
  text.give_up(bin_);
  text = std::move(renewal->text);
}

std::vector<int32_t> DraftTree::Copy::tokens(const Text& text, int64_t position, int64_t count) const {
  if (past.empty()) return text.log.tokens(from, position, count);
  return {past.begin() + position, past.begin() + position + count};
}

void DraftTree::Text::give_up(PageBin& bin) {
  log.give_up(bin);
  index.give_up(bin);
  if (renewal) renewal->text.give_up(bin);
}

void DraftTree::drop_text(PageBin& bin) {
  for (size_t i = 0; i < texts_.size(); ++i) {
    if (!texts_[i].renewal) renew_smaller(i);
    finish_renewal(i);
  }
  bin.put_all(bin_);
}

void DraftTree::give_up(PageBin& bin) {
  for (Text& text : texts_) text.give_up(bin);
  bin.put_all(bin_);
}

}  // namespace seer
