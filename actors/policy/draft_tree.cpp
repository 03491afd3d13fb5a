#include "actors/policy/draft_tree.h"

#include <algorithm>

namespace seer {
namespace {

constexpr int64_t kBytesMax = 512 << 20;      // SuffixIndex::kPlacesMax tokens take at least 8 bytes each
constexpr int64_t kPromptBytesPerToken = 64;  // a prompt may take about half of the cap
constexpr int64_t kPastBytesPerToken = 96;    // earlier iterations too: 30 to 50 are needed
// Earlier iterations whose text does not come again only blur the counts. Of the tokens of this iteration, 2-40 % end a
// match of so many tokens that nothing but a past response had, where those are as alike as the members of a group, and
// under 0.5 % where they are not.
constexpr uint32_t kPastMatchMin = 6;
constexpr int64_t kPastMatchTokensMax = 200;  // tokens per such match: with more, the past is dropped
constexpr int64_t kJudgedTokensMin = 1024;
constexpr double kShareKept = 0.75;           // of the cap, when references are dropped
constexpr uint32_t kSourceMatchMin = 3;       // shorter matches are no source
constexpr uint32_t kSourceMissesMax = 2;
constexpr uint32_t kSourceRunForgives = 8;  // tokens after which earlier misses are forgotten

constexpr uint32_t kContexts = DraftScores::kContexts;

}  // namespace

DraftTree::DraftTree(const DraftTreeConfig& config, std::span<const int32_t> prompt, DraftScores& scores)
    : config_(config), scores_(scores) {
  SEER_CHECK(config.bytes_max > 0 && config.bytes_max <= kBytesMax, config.bytes_max);
  const auto kept = std::min(prompt.size(), static_cast<size_t>(config.bytes_max / kPromptBytesPerToken));
  prompt_.assign(prompt.end() - static_cast<std::ptrdiff_t>(kept), prompt.end());
  if (!config_.own_history_only) texts_.push_back(make_text({}));
}

void DraftTree::add_past(std::span<const std::vector<int32_t>> responses) {
  if (config_.own_history_only) return;
  const StreamLog& log = texts_.front().log;
  int64_t left = config_.bytes_max / kPastBytesPerToken;
  std::vector<std::vector<int32_t>> past;  // oldest first: these, then what was there
  for (const std::vector<int32_t>& response : responses) {
    const auto count = std::min(static_cast<int64_t>(response.size()), left);
    if (count > 0) past.emplace(past.begin(), response.begin(), response.begin() + count);
    left -= count;
  }
  for (uint32_t stream = 1; stream <= texts_.front().past_streams; ++stream)
    past.push_back(log.tokens(stream, 0, log.end(stream)));
  index_anew(0, past, 0);
}

int64_t DraftTree::append(uint32_t sample, int64_t position, std::span<const int32_t> tokens) {
  Request& r = request(sample);
  StreamLog& log = texts_[r.text].log;
  const int64_t from = log.end(r.stream);
  const int64_t count = log.append(r.stream, position, tokens);
  if (count == 0) return 0;
  r.appended = ++appends_;
  if (r.draft_position >= 0) learn(r, from + count);
  index_tokens(r, from);
  const Text& text = texts_[r.text];
  if (text.judged_tokens >= kJudgedTokensMin && text.past_matches * kPastMatchTokensMax < text.judged_tokens) {
    for (uint32_t stream = 1; stream <= text.past_streams; ++stream) dropped_tokens_ += text.log.end(stream);
    index_anew(r.text, {}, 0);
  }
  if (static_cast<int64_t>(texts_[r.text].bytes()) > config_.bytes_max) drop_oldest(r.text);
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
  size_t sum = 0;
  for (const Text& text : texts_) sum += text.bytes();
  return sum;
}

DraftTree::Text DraftTree::make_text(std::span<const std::vector<int32_t>> past) const {
  Text text;
  const auto add = [&](std::span<const int32_t> tokens) {
    const uint32_t stream = text.log.add_stream();
    text.log.append(stream, 0, tokens);
    SuffixState last = text.prompt_end;
    for (int64_t position = 0; position < text.log.end(stream); ++position) {
      const TokenPlace place = text.log.place(stream, position);
      text.index.append(text.log, place, last, position == 0);
      last = text.index.state(place);
    }
  };
  add(prompt_);
  if (!prompt_.empty()) text.prompt_end = text.index.branch(text.log, text.log.place(0, text.log.end(0) - 1));
  for (const std::vector<int32_t>& tokens : past) add(tokens);
  text.past_streams = static_cast<uint32_t>(past.size());
  return text;
}

DraftTree::Request& DraftTree::request(uint32_t sample) {
  const auto [at, is_new] = request_of_.try_emplace(sample, requests_.size());
  if (!is_new) return requests_[at->second];
  if (config_.own_history_only) texts_.push_back(make_text({}));
  Request& r = requests_.emplace_back();
  r.text = texts_.size() - 1;
  r.stream = texts_[r.text].log.add_stream();
  return r;
}

void DraftTree::index_tokens(Request& r, int64_t from) {
  Text& text = texts_[r.text];
  const int64_t begin = text.log.begin(r.stream), end = text.log.end(r.stream);
  // A response that lost its first tokens to the cap does not go on from the prompt.
  SuffixState last = from > begin ? text.index.state(text.log.place(r.stream, from - 1))
                     : begin == 0 ? text.prompt_end
                                  : SuffixIndex::kRoot;
  TokenPlace place = text.log.place(r.stream, from);
  for (int64_t position = from;; place = text.log.next(place)) {
    const SuffixMatch match = text.index.append(text.log, place, last, position == begin);
    if (r.drafts) follow(text, r.source, text.log.token(place), match);
    if (text.past_streams > 0) {
      ++text.judged_tokens;
      text.past_matches += match.length >= kPastMatchMin && text.is_past(match.occurrence);
    }
    if (++position == end) break;
    last = text.index.state(place);
  }
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

/// The tokens before `end` answer the request's draft: a token whose parent stands came true or did not.
void DraftTree::learn(Request& r, int64_t end) {
  const StreamLog& log = texts_[r.text].log;
  int32_t row = 0;  // the last that stands
  int64_t position = r.draft_position;
  for (size_t i = 0; i < r.candidates.size() && position < end; ++i) {
    const Candidate& c = r.candidates[i];
    if (c.parent != row) continue;
    // Siblings are not in a row: look at all that follow this row, then go on from the one that stands.
    const int32_t token = log.token(log.place(r.stream, position));
    int32_t stands = -1;
    for (size_t j = i; j < r.candidates.size(); ++j) {
      if (r.candidates[j].parent != row) continue;
      const bool accepted = r.candidates[j].token == token;
      scores_.learn(r.candidates[j].evidence, accepted);
      if (accepted) stands = static_cast<int32_t>(j);
    }
    if (stands < 0) break;
    row = stands + 1;
    i = static_cast<size_t>(stands);
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
    if (row >= limits.max_tokens) break;
    if (!limits.tree) heap_.clear();
    expand(asked, chosen, row);
  }
}

/// Offers the tokens that may follow `from`, which is row `row`: the likeliest or, for a tree, all of them.
void DraftTree::expand(const Asked& asked, const Candidate& from, int32_t row) {
  ContextFollowers found;
  found.find(asked.text.log, asked.text.index, from.state, from.match_tokens);
  const StreamLog& log = asked.text.log;
  const bool has_source = from.source.next != kNoPlace && asked.text.index.indexed(from.source.next);
  const int32_t source_token = has_source ? log.token(from.source.next) : -1;
  const bool source_is_past = has_source && asked.text.is_past(from.source.next);
  if (has_source) found.add_source(source_token, from.source.run_tokens < kSourceMatchMin);

  const uint32_t match_tokens = found.contexts > 0 ? found.lengths[0] : 0;
  std::array<DraftScores::Cell, kContexts> context_cells;
  for (uint32_t i = 0; i < found.contexts; ++i)
    context_cells[i] = DraftScores::context_cells(found.lengths[i], found.totals[i]);
  Candidate c = {.parent = row, .source = {.run_tokens = from.source.run_tokens + 1, .misses = from.source.misses}};
  for (uint32_t i = found.contexts; i < kContexts; ++i) c.evidence.cells[i] = DraftScores::kNoCell;

  Candidate best;
  float best_logit = 0;
  bool any = false;
  for (uint32_t k = 0; k < found.count; ++k) {
    const ContextFollowers::Follower& f = found.followers[k];
    if (!asked.limits.tree && !f.leads) continue;
    const bool agrees = f.token == source_token;
    for (uint32_t i = 0; i < found.contexts; ++i)
      c.evidence.cells[i] =
          static_cast<DraftScores::Cell>(context_cells[i] + DraftScores::share(f.counts[i], found.totals[i]));
    c.evidence.cells[kContexts] = has_source
                                      ? DraftScores::source_cell(from.source.run_tokens, from.source.misses,
                                                                 match_tokens, agrees, source_is_past)
                                      : DraftScores::kNoCell;
    bool past = source_is_past;
    c.evidence.cells[kContexts + 1] = DraftScores::kNoCell;
    if (f.state != SuffixIndex::kRoot) {
      const TokenPlace at = asked.text.index.occurrence(f.state);
      const DraftScores::Seen seen = seen_at(asked, at);
      past = seen == DraftScores::Seen::kInPast;
      const int64_t tokens_ago = seen == DraftScores::Seen::kHere ? asked.end - log.position(at) : 0;
      c.evidence.cells[kContexts + 1] = static_cast<DraftScores::Cell>(
          DraftScores::age_cells(match_tokens, seen, tokens_ago) + c.evidence.cells[0] % 16);
    }
    c.evidence.weight_set = DraftScores::weight_set(match_tokens, !has_source ? DraftScores::Source::kNone
                                                                  : agrees    ? DraftScores::Source::kAgrees
                                                                              : DraftScores::Source::kDiffers,
                                                    past);
    c.token = f.token;
    c.state = f.state;
    c.match_tokens = f.match_tokens;
    c.source.next = agrees ? log.next(from.source.next) : kNoPlace;
    const float logit = scores_.logit(c.evidence);
    if (asked.limits.tree) {
      offer(asked, from, logit, c);
    } else if (!any || logit > best_logit || (logit == best_logit && f.token < best.token)) {
      best = c;
      best_logit = logit;
      any = true;
    }
  }
  if (any) offer(asked, from, best_logit, best);
}

/// Puts the candidate among those that the next token is chosen from, if it is likely enough.
void DraftTree::offer(const Asked& asked, const Candidate& from, float logit, Candidate& c) {
  c.evidence.probability = DraftScores::probability(logit);
  c.probability = from.probability * c.evidence.probability;
  if (c.probability < asked.limits.min_probability) return;
  heap_.push_back({c.probability, c.token, static_cast<uint32_t>(offered_.size())});
  offered_.push_back(c);
  std::push_heap(heap_.begin(), heap_.end(), less_likely);
}

DraftScores::Seen DraftTree::seen_at(const Asked& asked, TokenPlace place) {
  const uint32_t stream = asked.text.log.stream(place);
  return stream == asked.stream        ? DraftScores::Seen::kHere
         : asked.text.is_past(place) ? DraftScores::Seen::kInPast
                                       : DraftScores::Seen::kElsewhere;
}

void DraftTree::drop_oldest(size_t text_index) {
  const Text& text = texts_[text_index];
  const auto tokens_max =
      static_cast<int64_t>(static_cast<double>(text.log.token_count()) * kShareKept *
                           static_cast<double>(config_.bytes_max) / static_cast<double>(text.bytes()));
  int64_t surplus_tokens = text.log.token_count() - tokens_max;
  std::vector<std::vector<int32_t>> past;
  for (uint32_t stream = 1; stream <= text.past_streams; ++stream) {
    const int64_t tokens = text.log.end(stream);
    if (surplus_tokens > 0) {
      surplus_tokens -= tokens;
      dropped_tokens_ += tokens;
    } else {
      past.push_back(text.log.tokens(stream, 0, tokens));
    }
  }
  index_anew(text_index, past, surplus_tokens);
}

/// Indexes what there is, with these responses of earlier iterations, and without surplus_tokens of the references that
/// were appended to longest ago.
void DraftTree::index_anew(size_t text_index, std::span<const std::vector<int32_t>> past, int64_t surplus_tokens) {
  Text& text = texts_[text_index];
  std::vector<Request*> oldest_first;
  for (Request& r : requests_)
    if (r.text == text_index) oldest_first.push_back(&r);
  std::sort(oldest_first.begin(), oldest_first.end(),
            [](const Request* a, const Request* b) { return a->appended < b->appended; });

  Text kept = make_text(past);
  for (Request* r : oldest_first) {
    const int64_t end = text.log.end(r->stream);
    int64_t count = end - text.log.begin(r->stream);
    if (surplus_tokens > 0) {
      const int64_t stays = r == oldest_first.back() ? count / 2 : 0;
      surplus_tokens -= count - stays;
      dropped_tokens_ += count - stays;
      count = stays;
    }
    const std::vector<int32_t> last = text.log.tokens(r->stream, end - count, count);
    r->stream = kept.log.add_stream(end - count);
    r->source = {};
    r->draft_position = -1;
    kept.log.append(r->stream, end - count, last);
  }
  text = std::move(kept);
  for (Request* r : oldest_first)
    if (text.log.end(r->stream) > text.log.begin(r->stream)) index_tokens(*r, text.log.begin(r->stream));
}

}  // namespace seer
