#include "gpu/sim/sim_step_run.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "protocols/check.h"

namespace seer {

namespace {

constexpr int64_t kDrawnTogether = 32, kDrawnLeast = 16;

}  // namespace

SimStepRun::SimStepRun(Config config) : config_(std::move(config)) {
  ring_.resize(std::bit_ceil(static_cast<size_t>(config_.steps_max + kDrawnTogether)));
}

/// `sign` -1 subtracts it.
void SimStepRun::add(const Sequence& s, int64_t start, int64_t sign) {
  shape_.sequences += sign;
  shape_.rows += sign * s.rows;
  shape_.sampled_rows += sign * s.sample_rows;
  shape_.kv_tokens += sign * (start + s.rows);
  shape_.attended += sign * (s.rows * start + s.rows * (int64_t{s.rows} + 1) / 2);
  drafted_ += s.has_draft() ? sign : 0;
  plain_kv_tokens_ += sign * s.gains();
  plain_attended_ += sign * s.gains() * s.rows;
}

void SimStepRun::join(int32_t slot, const SequenceStep& step, const std::optional<StepsLimit>& limit) {
  if (static_cast<size_t>(slot) >= sequences_.size()) sequences_.resize(static_cast<size_t>(slot) + 1);
  Sequence& s = at(slot);
  SEER_CHECK(!s.here && step.parents.empty(), slot);
  s.here = true;
  s.stopped = false;
  ++s.joined;
  s.rows = static_cast<int32_t>(step.tokens.size());
  s.sample_rows = step.sample_rows;
  s.seed = step.seed;
  s.start = s.taken_start = step.start;
  s.drawn = s.taken = over_;
  s.last = step.sampling->ignore_eos ? kNever : config_.last_position(step.seed);
  s.draft.clear();
  if (s.has_draft()) s.draft.assign(step.tokens.end() - (s.sample_rows - 1), step.tokens.end());
  s.gained.clear();
  if (limit) {
    SEER_CHECK(s.rows == s.sample_rows, s.rows, s.sample_rows);
    s.stop = std::min(s.last, s.start + limit->gain_max + 1);
    s.covered = limit->covered;
  } else {
    s.stop = s.start;
    s.covered = kNever;
  }
  add(s, s.start, 1);
  draw(slot, drawn_);
}

void SimStepRun::leave(int32_t slot) {
  Sequence& s = at(slot);
  SEER_CHECK(s.here, slot);
  int64_t start = s.taken_start + (over_ - s.taken) * s.gains();
  for (int64_t step = s.taken; s.has_draft() && step < s.drawn; ++step) {
    const int64_t gained = s.gained[static_cast<size_t>(step - s.taken)];
    if (step < over_) {
      start += gained;
    } else {
      step_at(step).kv_tokens -= gained;
      step_at(step).attended -= gained * s.rows;
    }
  }
  add(s, start, -1);
  s.here = false;
  ++s.joined;
}

bool SimStepRun::is_here(const Event& event) const {
  const Sequence& s = sequences_[static_cast<size_t>(event.slot)];
  return s.here && s.joined == event.joined;
}

/// Draws the steps before `end`, or up to the one after which the sequence stops.
void SimStepRun::draw(int32_t slot, int64_t end) {
  const Sequence& s = at(slot);
  if (!s.here || s.stopped || s.drawn >= end) return;
  if (s.has_draft())
    draw_drafted(slot, end);
  else
    draw_plain(slot, end);
}

/// Each step gains one token; a step that gains none is the only one.
void SimStepRun::draw_plain(int32_t slot, int64_t end) {
  Sequence& s = at(slot);
  const int64_t steps = std::max<int64_t>(1, s.stop - s.start);  // until it stops
  s.stopped = steps <= end - s.drawn;
  const int64_t drawn = s.stopped ? s.drawn + steps : end;
  // After step drawn + k it begins at start + k + 1.
  for (; s.covered < s.start + (drawn - s.drawn) + s.rows - (s.stopped ? 1 : 0); s.covered += config_.block_tokens)
    step_at(s.drawn + s.covered - s.start - s.rows).events.push_back({slot, s.joined, false});
  if (s.stopped) step_at(drawn - 1).events.push_back({slot, s.joined, true});
  s.start += (drawn - s.drawn) * s.gains();
  s.drawn = drawn;
}

void SimStepRun::draw_drafted(int32_t slot, int64_t end) {
  Sequence& s = at(slot);
  const auto known = s.gained.size();
  s.gained.resize(known + static_cast<size_t>(end - s.drawn));
  const auto gained = std::span(s.gained).subspan(known);
  gain(s, gained);
  size_t steps = 0;
  while (steps < gained.size() && !s.stopped) {
    Step& step = step_at(s.drawn + static_cast<int64_t>(steps));
    const int64_t more = gained[steps++];
    s.start += more;
    step.kv_tokens += more;
    step.attended += more * s.rows;
    s.stopped = s.start >= s.stop;
    if (s.stopped) step.events.push_back({slot, s.joined, true});
    for (; !s.stopped && s.start + s.rows > s.covered; s.covered += config_.block_tokens)
      step.events.push_back({slot, s.joined, false});
  }
  s.gained.resize(known + steps);
  s.drawn += static_cast<int64_t>(steps);
}

/// What the sequence gains in consecutive verifies: the accepted draft tokens and the one after them, but nothing after the
/// last position of the response.
void SimStepRun::gain(const Sequence& s, std::span<int32_t> gained) const {
  std::ranges::fill(gained, 0);
  int64_t first = s.start;
  config_.accepted(s.seed, first, s.sample_rows - 1, gained);
  for (int32_t& tokens : gained) {
    tokens = static_cast<int32_t>(std::min<int64_t>(1 + tokens, std::max<int64_t>(0, s.last - first)));
    first += tokens;
  }
}

void SimStepRun::draw_all(int64_t end) {
  for (int64_t step = drawn_; step < end; ++step) {
    Step& next = step_at(step);
    next.kv_tokens = next.attended = 0;
    next.events.clear();
  }
  drawn_ = end;
  for (size_t slot = 0; slot < sequences_.size(); ++slot) draw(static_cast<int32_t>(slot), end);
}

void SimStepRun::plan(int64_t steps_max, int64_t blocks_free) {
  SEER_CHECK(steps_max <= config_.steps_max, steps_max);
  SEER_CHECK(shape_.sequences > 0 && reported_ == over_, shape_.sequences, reported_, over_);
  first_ = over_;
  ends_ns_.clear();
  StepShape shape = shape_;
  int64_t end_ns = 0;
  bool stops = false;
  while (!stops && blocks_free >= 0 && std::ssize(ends_ns_) < steps_max) {
    const int64_t next = first_ + std::ssize(ends_ns_);
    end_ns += config_.draft_ns * drafted_ + config_.step_ns(shape);
    ends_ns_.push_back(end_ns);
    if (next == drawn_) draw_all(next + std::clamp(first_ + steps_max - next, kDrawnLeast, kDrawnTogether));
    const Step& step = step_at(next);
    pass(step, shape);
    for (const Event& event : step.events) {
      if (!is_here(event)) continue;
      stops |= event.stops;
      blocks_free -= event.stops ? 0 : 1;
    }
  }
}

/// Moves `shape` on to the next step.
void SimStepRun::pass(const Step& step, StepShape& shape) const {
  shape.kv_tokens += step.kv_tokens + plain_kv_tokens_;
  shape.attended += step.attended + plain_attended_;
}

std::vector<int32_t> SimStepRun::pass() {
  over_ = first_ + std::ssize(ends_ns_);
  for (int64_t step = first_; step < over_; ++step) pass(step_at(step), shape_);
  std::vector<int32_t> ended;
  for (const Event& event : step_at(over_ - 1).events)
    if (event.stops && is_here(event)) ended.push_back(event.slot);
  return ended;
}

SimStepRun::Taken SimStepRun::take(int32_t slot, int64_t steps) {
  Sequence& s = at(slot);
  SEER_CHECK(s.here, slot);
  const int64_t untaken = std::max<int64_t>(0, first_ + steps - s.taken);
  Taken t{.seed = s.seed,
          .steps = untaken,
          .position = s.taken_start + s.rows - s.sample_rows + 1,
          .tokens = untaken * s.gains(),
          .draft = s.draft,
          .gained = {}};
  if (s.has_draft()) {
    const auto taken = s.gained.begin() + static_cast<ptrdiff_t>(t.steps);
    taken_.assign(s.gained.begin(), taken);
    s.gained.erase(s.gained.begin(), taken);
    t.gained = taken_;
    t.tokens = std::reduce(taken_.begin(), taken_.end(), int64_t{0});
  }
  s.taken += t.steps;
  s.taken_start += t.tokens;
  return t;
}

std::vector<int32_t> SimStepRun::take_block_needs(int64_t steps) {
  std::vector<int32_t> slots;
  for (; reported_ < first_ + steps; ++reported_)
    for (const Event& event : step_at(reported_).events)
      if (!event.stops && is_here(event)) slots.push_back(event.slot);
  return slots;
}

}  // namespace seer
