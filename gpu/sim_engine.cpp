#include "gpu/sim_engine.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "gpu/accept_draft.h"
#include "protocols/check.h"

namespace seer {

namespace {

constexpr size_t kStepsTogether = 4, kTokensTogether = 4;

StepShape shape_of(const StepBatch& batch) {
  StepShape shape;
  for (const SequenceStep& s : batch.sequences) shape.add(s.start, std::ssize(s.tokens), s.sample_rows);
  return shape;
}

}  // namespace

SimEngine::SimEngine(SimEngineConfig config, Oracle oracle, After after, Clock clock)
    : config_(std::move(config)), oracle_(std::move(oracle)), after_(std::move(after)), clock_(std::move(clock)) {
  const EngineInfo& info = config_.info;
  SEER_CHECK(info.steps_max == 1 || !config_.has_kv, info.steps_max);
  if (!config_.has_kv) {
    SEER_CHECK(clock_.now_ns && config_.last_position);
    return;
  }
  SEER_CHECK(info.block_bytes >= kSimTokenBytes * info.block_tokens, info.block_bytes);
  memory_.resize(static_cast<size_t>(info.block_bytes * info.device_blocks));
}

void SimEngine::submit(EngineWork work) {
  SEER_CHECK(queue_.size() < config_.info.queue_max, queue_.size());
  if (const auto* copy = std::get_if<CopyBatch>(&work); copy != nullptr && !config_.has_kv) return copy_beside(*copy);
  queue_.push_back(std::move(work));
  if (!busy_) start_next();
}

std::vector<EngineResult> SimEngine::take_results() { return std::exchange(results_, {}); }

int64_t SimEngine::step_ns(const StepShape& shape) const {
  if (config_.step_ns) return config_.step_ns(shape);
  return 1000 * (config_.step_us_base + config_.step_us_row * shape.rows);
}

/// When each step of the batch ends.
void SimEngine::plan_steps(const StepBatch& batch) {
  SEER_CHECK(batch.steps <= config_.info.steps_max, batch.steps);
  ends_ns_.clear();
  gained_.clear();
  taken_steps_ = 0;
  steps_asked_ = static_cast<size_t>(batch.steps);
  shape_ = shape_of(batch);
  const auto has_draft = [](const SequenceStep& s) { return s.sample_rows > 1; };
  const int64_t drafts = std::ranges::count_if(batch.sequences, has_draft);
  if (!config_.has_kv && (drafts > 0 || !batch.limits.empty())) return plan_verify_steps(batch, drafts);
  int64_t steps = batch.steps;
  if (steps > 1) {
    for (const SequenceStep& s : batch.sequences) {
      SEER_CHECK(s.sample_rows == 1, s.sample_rows);
      const int64_t next = s.start + std::ssize(s.tokens);
      if (!s.sampling->ignore_eos) steps = std::min(steps, config_.last_position(s.seed) - next + 1);
    }
  }
  StepShape shape = shape_;
  int64_t end_ns = 0;
  do {
    end_ns += step_ns(shape);
    ends_ns_.push_back(end_ns);
    shape.rows = shape.sampled_rows = shape.sequences;  // decode, whatever the first step was
    shape.attended = shape.kv_tokens += shape.sequences;
  } while (std::ssize(ends_ns_) < steps);
}

/// The same where sequences have drafts, each step as many as the first. A few steps of each sequence together: one that
/// ends is the end of the batch, so that others are not asked for much more than that.
void SimEngine::plan_verify_steps(const StepBatch& batch, int64_t drafts) {
  const size_t sequences = batch.sequences.size();
  gained_.resize(sequences * steps_asked_);
  verifies_.clear();
  for (size_t i = 0; i < sequences; ++i) {
    const SequenceStep& s = batch.sequences[i];
    SEER_CHECK(batch.steps == 1 || std::ssize(s.tokens) == s.sample_rows, s.tokens.size(), s.sample_rows);
    Verifies v{.start = s.start};
    if (!s.sampling->ignore_eos) v.last = v.stop = config_.last_position(s.seed);
    if (!batch.limits.empty()) {
      v.stop = std::min(v.last, s.start + batch.limits[i].gain_max + 1);
      v.covered = batch.limits[i].covered;
    }
    verifies_.push_back(v);
  }
  StepShape shape = shape_;
  int64_t end_ns = 0, blocks_free = batch.blocks_free;
  for (size_t first = 0, steps = steps_asked_; first < steps; first = ends_ns_.size()) {
    size_t end = std::min(first + kStepsTogether, steps);
    gains_.assign(end - first, {});
    for (size_t i = 0; i < sequences; ++i) {
      Verifies& v = verifies_[i];
      const auto gained = std::span(gained_).subspan(i * steps_asked_ + first, end - first);
      const size_t done = gain(batch.sequences[i], v, gained);
      const int64_t rows = std::ssize(batch.sequences[i].tokens);
      for (size_t step = 0; step < done; ++step) {
        v.start += gained[step];
        gains_[step].kv_tokens += gained[step];
        gains_[step].attended += gained[step] * rows;
        for (; v.start + rows > v.covered; v.covered += config_.info.block_tokens) ++gains_[step].blocks;
      }
      if (v.start >= v.stop) steps = end = first + done;
    }
    for (size_t step = 0; step < end - first; ++step) {
      end_ns += config_.draft_ns * drafts + step_ns(shape);
      ends_ns_.push_back(end_ns);
      shape.kv_tokens += gains_[step].kv_tokens;
      shape.attended += gains_[step].attended;
      blocks_free -= gains_[step].blocks;
      if (blocks_free < 0) return;
    }
  }
}

/// What verifies of this sequence's rows gain, one behind the other: the draft tokens that stand and the one behind them,
/// but nothing behind the last position of the response. Returns how many verifies there are until the sequence stops.
size_t SimEngine::gain(const SequenceStep& s, const Verifies& verifies, std::span<int32_t> gained) const {
  const int64_t draft_tokens = s.sample_rows - 1;
  int64_t first = verifies.start + std::ssize(s.tokens) - s.sample_rows;
  std::ranges::fill(gained, 0);
  if (draft_tokens < 0) return gained.size();
  if (draft_tokens > 0) config_.accepted(s.seed, first, draft_tokens, gained);
  for (size_t step = 0; step < gained.size(); ++step) {
    gained[step] = static_cast<int32_t>(std::min<int64_t>(1 + gained[step], verifies.last - first));
    first += gained[step];
    if (first >= verifies.stop) return step + 1;
  }
  return gained.size();
}

/// In these steps.
std::span<const int32_t> SimEngine::gained_by(size_t sequence, size_t first_step, size_t end_step) const {
  return std::span(gained_).subspan(sequence * steps_asked_ + first_step, end_step - first_step);
}

/// The tokens of verifies that begin at `start`, one behind the other: those drafted, then one that is not what was drafted
/// there. They gained so many. The first tokens of the draft are written each time, and what did not stand is overwritten by
/// what comes next: so much faster is a loop that seldom depends on what stood.
void SimEngine::sample_verified(const SequenceStep& s, int64_t start, std::span<const int32_t> gained,
                                std::vector<SampledToken>& sampled) {
  const auto tokens = static_cast<size_t>(std::reduce(gained.begin(), gained.end()));
  const auto draft = std::span(s.tokens).last(static_cast<size_t>(s.sample_rows)).subspan(1);
  sampled_.resize(tokens, {0, -1.0f});
  oracle_(s.seed, start + std::ssize(s.tokens) - s.sample_rows + 1, sampled_);
  drafted_.assign(std::max(draft.size() + 1, kTokensTogether), {-1, -1.0f});
  for (size_t i = 0; i < draft.size(); ++i) drafted_[i].token = draft[i];
  sampled.resize(tokens + kTokensTogether);
  size_t first = 0;
  for (const int32_t more : gained) {
    const size_t accepted = static_cast<size_t>(more) - 1, last = first + accepted;
    std::copy_n(drafted_.begin(), kTokensTogether, sampled.begin() + static_cast<ptrdiff_t>(first));
    for (size_t i = kTokensTogether; i < accepted; ++i) sampled[first + i] = drafted_[i];
    SampledToken next = sampled_[last];
    next.token += next.token == drafted_[accepted].token ? 1 : 0;
    sampled[last] = next;
    first = last + 1;
  }
  sampled.resize(tokens);
}

/// Work takes effect when its time is over, in order.
void SimEngine::start_next() {
  if (queue_.empty()) return;
  busy_ = true;
  if (const auto* step = std::get_if<StepBatch>(&queue_.front())) {
    plan_steps(*step);
    if (clock_.now_ns) started_ns_ = clock_.now_ns();
    end_front_after(ends_ns_[steps_to_result() - 1]);
  } else {
    end_front_after(1000 * config_.copy_us_block * std::ssize(std::get<CopyBatch>(queue_.front()).blocks));
  }
}

/// The copy starts when the step that runs and the copies before it are over.
void SimEngine::copy_beside(const CopyBatch& batch) {
  const int64_t now = clock_.now_ns();
  const int64_t step_ends = busy_ ? started_ns_ + ends_ns_[running_step()] : now;
  copies_end_ns_ = std::max(copies_end_ns_, step_ends) + 1000 * config_.copy_us_block * std::ssize(batch.blocks);
  end_copy_after(copies_end_ns_ - now, run(batch));
}

/// Of a step and a copy that end together, the step comes first, whether it is alone or one of several.
void SimEngine::end_copy_after(int64_t delay_ns, CopyResult result) {
  after_(delay_ns, [this, result = std::move(result), alive = std::weak_ptr<uint64_t>(timer_)] {
    if (alive.expired()) return;
    if (busy_ && started_ns_ + ends_ns_[steps_to_result() - 1] == clock_.now_ns()) return end_copy_after(0, result);
    results_.push_back(result);
    notify_();
  });
}

/// Of the batch at the front: behind how many steps its next result comes.
size_t SimEngine::steps_to_result() const {
  for (const int32_t steps : std::get<StepBatch>(queue_.front()).results_after)
    if (static_cast<size_t>(steps) > taken_steps_) return std::min(static_cast<size_t>(steps), ends_ns_.size());
  return ends_ns_.size();
}

/// Of the batch at the front: the step that runs now, whose end has not come.
size_t SimEngine::running_step() const {
  const auto running = std::upper_bound(ends_ns_.begin(), ends_ns_.end() - 1, clock_.fired_ns() - started_ns_);
  return static_cast<size_t>(running - ends_ns_.begin());
}

void SimEngine::end_front_after(int64_t delay_ns) {
  after_(delay_ns, [this, mine = ++*timer_, newest = std::weak_ptr<uint64_t>(timer_)] {
    if (const auto timer = newest.lock(); timer && *timer == mine) finish_front();
  });
}

void SimEngine::finish_front() {
  auto* running = std::get_if<StepBatch>(&queue_.front());
  if (const size_t done = running == nullptr ? 0 : steps_to_result(); done > 0 && done < ends_ns_.size()) {
    StepResult result = result_of(*running, std::exchange(taken_steps_, done), done);
    result.more = true;
    results_.push_back(std::move(result));
    end_front_after(started_ns_ + ends_ns_[steps_to_result() - 1] - clock_.now_ns());
    return notify_();
  }
  EngineWork work = std::move(queue_.front());
  queue_.pop_front();
  if (auto* batch = std::get_if<StepBatch>(&work)) {
    StepResult result = batch->steps == 1 ? run(*batch) : result_of(*batch, taken_steps_, ends_ns_.size());
    result.spent = std::move(batch->sequences);
    results_.push_back(std::move(result));
  } else {
    results_.push_back(run(std::get<CopyBatch>(work)));
  }
  busy_ = false;
  start_next();
  notify_();
}

int64_t SimEngine::steps_over() const {
  const bool steps = busy_ && std::holds_alternative<StepBatch>(queue_.front());
  return steps ? static_cast<int64_t>(running_step()) : 0;
}

std::optional<StepResult> SimEngine::take_steps_over() {
  auto* batch = busy_ ? std::get_if<StepBatch>(&queue_.front()) : nullptr;
  if (batch == nullptr || batch->steps == 1) return std::nullopt;
  const size_t done = running_step();
  if (done == taken_steps_) return std::nullopt;
  StepResult result = result_of(*batch, std::exchange(taken_steps_, done), done);
  result.more = true;
  return result;
}

std::optional<StepResult> SimEngine::split_step() {
  const auto* batch = busy_ ? std::get_if<StepBatch>(&queue_.front()) : nullptr;
  if (batch == nullptr || batch->steps == 1) return std::nullopt;
  if (const size_t steps = running_step() + 1; steps < ends_ns_.size()) {
    ends_ns_.resize(steps);
    end_front_after(started_ns_ + ends_ns_.back() - clock_.now_ns());
  }
  return take_steps_over();
}

/// Of the steps [first_step, end_step) of the batch at the front.
StepResult SimEngine::result_of(StepBatch& batch, size_t first_step, size_t end_step) {
  const size_t sequences = batch.sequences.size();
  StepResult result{.id = batch.id, .sampled = std::exchange(batch.spent, {})};
  result.steps = static_cast<int64_t>(end_step - first_step);
  result.sampled.resize(sequences);
  for (const auto& sampled : result.sampled) __builtin_prefetch(sampled.data(), 1);  // all at once, not one by one
  for (size_t i = 0; i < sequences; ++i) {
    const SequenceStep& s = batch.sequences[i];
    std::vector<SampledToken>& sampled = result.sampled[i];
    sampled.clear();
    if (gained_.empty()) {
      sampled.resize(end_step - first_step, {0, -1.0f});
      oracle_(s.seed, s.start + std::ssize(s.tokens) + static_cast<int64_t>(first_step), sampled);
      continue;
    }
    const auto before = gained_by(i, 0, first_step), gained = gained_by(i, first_step, end_step);
    sample_verified(s, std::reduce(before.begin(), before.end(), s.start), gained, sampled);
    result.gained.insert(result.gained.end(), gained.begin(), gained.end());
  }
  const int64_t ns = ends_ns_[end_step - 1] - (first_step == 0 ? 0 : ends_ns_[first_step - 1]);
  result.step_us = ns / 1000;
  if (config_.on_steps) {
    StepShape middle = shape_;  // of these steps, if drafts gain nothing
    middle.kv_tokens += middle.sequences * static_cast<int64_t>(first_step + end_step - 1) / 2;
    config_.on_steps(middle, ns, static_cast<int64_t>(end_step - first_step));
  }
  return result;
}

int32_t SimEngine::token_of(uint64_t seed, int64_t position) const {
  SampledToken sampled;
  oracle_(seed, position, {&sampled, 1});
  return sampled.token;
}

std::byte* SimEngine::token_at(const SequenceStep& sequence, int64_t position) {
  const auto block = static_cast<size_t>(position / config_.info.block_tokens);
  SEER_CHECK(block < sequence.blocks.size(), position, sequence.blocks.size());
  return memory_.data() + static_cast<int64_t>(sequence.blocks[block]) * config_.info.block_bytes +
         position % config_.info.block_tokens * kSimTokenBytes;
}

StepResult SimEngine::run(StepBatch& batch) {
  StepResult result{.id = batch.id, .sampled = std::exchange(batch.spent, {}), .step_us = ends_ns_[0] / 1000};
  result.sampled.resize(batch.sequences.size());
  if (config_.on_steps) config_.on_steps(shape_, ends_ns_[0], 1);
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceStep& sequence = batch.sequences[i];
    std::vector<SampledToken>& sampled = result.sampled[i];
    sampled.clear();
    if (!config_.has_kv) {
      SEER_CHECK(sequence.parents.empty());
      const int32_t gained = gained_.empty() ? 1 : gained_[i];
      if (sequence.sample_rows > 0) sample_verified(sequence, sequence.start, {&gained, 1}, sampled);
      sampled.resize(static_cast<size_t>(sequence.sample_rows));  // rows behind what stands: of no use
      continue;
    }
    if (!sequence.parents.empty()) {
      sampled = run_tree(sequence);
      continue;
    }
    PrefixHash prefix;
    if (sequence.start > 0) std::memcpy(&prefix, token_at(sequence, sequence.start - 1), sizeof prefix);
    const auto rows = static_cast<int64_t>(sequence.tokens.size());
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t position = sequence.start + row;
      prefix = extend_prefix(prefix, std::span(&sequence.tokens[static_cast<size_t>(row)], 1));
      std::memcpy(token_at(sequence, position), &prefix, sizeof prefix);
      if (row < rows - sequence.sample_rows) continue;
      sampled.push_back(sample(sequence, position, prefix));
    }
  }
  return result;
}

/// The log-probability carries the prefix hash: a response whose KV was ever wrong shows it.
SampledToken SimEngine::sample(const SequenceStep& s, int64_t position, const PrefixHash& prefix) const {
  return {token_of(s.seed, position + 1), -1.0f - static_cast<float>(prefix.hi & 0xffff) / 65536.0f};
}

/// The KV of the path that stands stays, in its order; that of other rows is of no use to anyone, and shows it.
std::vector<SampledToken> SimEngine::run_tree(const SequenceStep& s) {
  const size_t rows = s.tokens.size();
  SEER_CHECK(s.parents.size() == rows && s.sample_rows == static_cast<int32_t>(rows), s.parents.size(), s.sample_rows, rows);
  std::vector<PrefixHash> prefixes(rows);
  std::vector<int64_t> positions(rows);
  std::vector<SampledToken> sampled;
  for (size_t row = 0; row < rows; ++row) {
    PrefixHash prefix;
    if (row > 0) {
      const auto parent = static_cast<size_t>(s.parents[row]);
      SEER_CHECK(parent < row, parent, row);
      prefix = prefixes[parent];
      positions[row] = positions[parent] + 1;
    } else {
      positions[row] = s.start;
      if (s.start > 0) std::memcpy(&prefix, token_at(s, s.start - 1), sizeof prefix);
    }
    prefixes[row] = extend_prefix(prefix, std::span(&s.tokens[row], 1));
    sampled.push_back(sample(s, positions[row], prefixes[row]));
  }
  const std::vector<int32_t> path = accepted_path(s.tokens, s.parents, sampled);
  for (size_t i = 0; i < rows; ++i) {
    const PrefixHash kept = i < path.size() ? prefixes[static_cast<size_t>(path[i])] : PrefixHash{};
    std::memcpy(token_at(s, s.start + static_cast<int64_t>(i)), &kept, sizeof kept);
  }
  return sampled;
}

CopyResult SimEngine::run(const CopyBatch& batch) {
  CopyResult result{.id = batch.id, .direction = batch.direction, .crc32c = {}};
  const bool is_export = batch.direction == CopyBatch::Direction::kExport;
  for (const BlockCopy& copy : batch.blocks) {
    // Without KV nothing moves, but others check what they read of the host memory.
    std::byte* const device =
        config_.has_kv ? memory_.data() + static_cast<int64_t>(copy.block) * config_.info.block_bytes : nullptr;
    if (device != nullptr && is_export) std::memcpy(copy.host.data(), device, copy.host.size());
    result.crc32c.push_back(crc32c(copy.host));
    if (device != nullptr && !is_export && result.crc32c.back() == copy.crc32c)
      std::memcpy(device, copy.host.data(), copy.host.size());
  }
  return result;
}

}  // namespace seer
