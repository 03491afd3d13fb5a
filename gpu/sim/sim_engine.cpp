#include "gpu/sim/sim_engine.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "gpu/accept_draft.h"
#include "protocols/check.h"
#include "protocols/hash.h"

namespace seer {

namespace {

constexpr size_t kTokensTogether = 4;

StepShape shape_of(const StepBatch& batch) {
  StepShape shape;
  for (const SequenceStep& s : batch.sequences) shape.add(s.start, std::ssize(s.tokens), s.sample_rows);
  return shape;
}

}  // namespace

SimEngine::SimEngine(SimEngineConfig config, Oracle oracle, After after, Clock clock)
    : config_(std::move(config)),
      oracle_(std::move(oracle)),
      after_(std::move(after)),
      clock_(std::move(clock)),
      run_({.block_tokens = config_.info.block_tokens,
            .steps_max = config_.info.steps_max,
            .draft_ns = config_.draft_ns,
            .step_ns = [this](const StepShape& shape) { return step_ns(shape); },
            .last_position = config_.last_position,
            .accepted = config_.accepted}) {
  const EngineInfo& info = config_.info;
  version_ = info.version;
  first_kv_hash_ = info.kv_hash;
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
  if (const auto* weights = std::get_if<StageWeights>(&work)) return stage(*weights);
  queue_.push_back(std::move(work));
  if (!busy_) start_next();
}

std::vector<EngineResult> SimEngine::take_results() {
  for (const EngineResult& result : results_)
    if (const auto* weights = std::get_if<WeightResult>(&result)) take_over(*weights, config_.info);
  return std::exchange(results_, {});
}

int64_t SimEngine::step_ns(const StepShape& shape) const {
  if (config_.step_ns) return config_.step_ns(shape);
  return 1000 * (config_.step_us_base + config_.step_us_row * shape.rows);
}

/// Without a draft: the oracle's tokens. With one, each step gains its accepted draft tokens and then one token that differs
/// from the draft. Every step first copies kTokensTogether draft tokens; the next step overwrites those that were rejected.
/// This is much faster than a loop whose length depends on how many were accepted.
void SimEngine::sample_gained(const SimStepRun::Taken& taken, std::vector<SampledToken>& sampled) {
  const auto tokens = static_cast<size_t>(taken.tokens);
  if (taken.draft.empty()) {
    sampled.assign(tokens, {0, -1.0f});
    oracle_(taken.seed, taken.position, sampled);
    return;
  }
  sampled_.resize(tokens, {0, -1.0f});
  oracle_(taken.seed, taken.position, sampled_);
  drafted_.assign(std::max(taken.draft.size() + 1, kTokensTogether), {-1, -1.0f});
  for (size_t i = 0; i < taken.draft.size(); ++i) drafted_[i].token = taken.draft[i];
  sampled.resize(tokens + kTokensTogether);
  size_t first = 0;
  for (const int32_t more : taken.gained) {
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
  if (const auto* copy = std::get_if<CopyBatch>(&queue_.front()))
    return end_front_after(1000 * config_.copy_us_block * std::ssize(copy->blocks));
  if (std::holds_alternative<SwitchWeights>(queue_.front())) return end_front_after(0);
  if (const auto* order = std::get_if<StepOrder>(&queue_.front()))
    run_.plan(order->steps, order->blocks_free);
  else
    start(std::get<StepBatch>(queue_.front()));
  taken_steps_ = 0;
  if (clock_.now_ns) started_ns_ = clock_.now_ns();
  end_front_after(ends_ns().back());
}

void SimEngine::start(const StepBatch& batch) {
  SEER_CHECK(config_.has_kv, batch.id);
  shape_ = shape_of(batch);
  ends_ns_.assign(1, step_ns(shape_));
}

/// The copy starts when the step that runs and the copies before it are over.
void SimEngine::copy_beside(const CopyBatch& batch) {
  const int64_t now = clock_.now_ns();
  const int64_t step_ends = busy_ ? started_ns_ + ends_ns()[static_cast<size_t>(step_running())] : now;
  copies_end_ns_ = std::max(copies_end_ns_, step_ends) + 1000 * config_.copy_us_block * std::ssize(batch.blocks);
  end_copy_after(copies_end_ns_ - now, run(batch));
}

/// If a step and a copy end together, the step comes first, whether it is alone or one of several.
void SimEngine::end_copy_after(int64_t delay_ns, CopyResult result) {
  after_(delay_ns, [this, result = std::move(result), alive = std::weak_ptr<uint64_t>(timer_)] {
    if (alive.expired()) return;
    if (busy_ && started_ns_ + ends_ns().back() == clock_.now_ns()) return end_copy_after(0, result);
    results_.push_back(result);
    notify_();
  });
}

void SimEngine::end_front_after(int64_t delay_ns) {
  after_(delay_ns, [this, mine = ++*timer_, newest = std::weak_ptr<uint64_t>(timer_)] {
    if (const auto timer = newest.lock(); timer && *timer == mine) finish_front();
  });
}

void SimEngine::finish_front() {
  EngineWork work = std::move(queue_.front());
  queue_.pop_front();
  if (auto* batch = std::get_if<StepBatch>(&work)) {
    StepResult result = run(*batch);
    result.spent = std::move(batch->sequences);
    results_.push_back(std::move(result));
  } else if (const auto* order = std::get_if<StepOrder>(&work)) {
    results_.push_back(end_steps(*order));
  } else if (const auto* copy = std::get_if<CopyBatch>(&work)) {
    results_.push_back(run(*copy));
  } else {
    results_.push_back(run(std::get<SwitchWeights>(work)));
  }
  busy_ = false;
  start_next();
  notify_();
}

// ---- many steps at once ----------------------------------------------------------------------------------------------

void SimEngine::join(int32_t place, const SequenceStep& step, const std::optional<StepsLimit>& limit) {
  run_.join(place, step, limit);
  if (!config_.on_leave) return;
  joined_.resize(std::max(joined_.size(), static_cast<size_t>(place) + 1));
  joined_[static_cast<size_t>(place)] = {step.seed, clock_.now_ns()};
}

void SimEngine::leave(int32_t place) {
  run_.leave(place);
  if (!config_.on_leave) return;
  const Joined& joined = joined_[static_cast<size_t>(place)];
  config_.on_leave(joined.seed, clock_.now_ns() - joined.ns);
}

int64_t SimEngine::step_running() const {
  if (ends_ns().empty()) return 0;
  if (!busy_) return std::ssize(ends_ns()) - 1;
  const auto running = std::upper_bound(ends_ns().begin(), ends_ns().end() - 1, clock_.fired_ns() - started_ns_);
  return running - ends_ns().begin();
}

void SimEngine::split() {
  if (const auto steps = static_cast<size_t>(step_running()) + 1; busy_ && steps < ends_ns().size()) {
    run_.shorten(steps);
    end_front_after(started_ns_ + ends_ns().back() - clock_.now_ns());
  }
}

StepResult SimEngine::end_steps(const StepOrder& order) {
  StepResult result = result_of_steps(ends_ns().size());
  result.id = order.id;
  result.ended = run_.pass();
  return result;
}

std::optional<StepResult> SimEngine::take_steps_over() {
  const auto steps = static_cast<size_t>(step_running());
  return steps > taken_steps_ ? std::optional(result_of_steps(steps)) : std::nullopt;
}

/// Figures of the steps before this one that were not reported yet.
StepResult SimEngine::result_of_steps(size_t end_step) {
  const size_t first_step = std::exchange(taken_steps_, end_step);
  const int64_t ns = ends_ns()[end_step - 1] - (first_step == 0 ? 0 : ends_ns()[first_step - 1]);
  const auto steps = static_cast<int64_t>(end_step - first_step);
  if (config_.on_steps) {
    StepShape middle = run_.shape();  // of these steps, if drafts gain nothing
    middle.kv_tokens += middle.sequences * static_cast<int64_t>(first_step + end_step - 1) / 2;
    config_.on_steps(middle, ns, steps);
  }
  return {.version = version_, .steps = steps, .step_us = ns / 1000};
}

void SimEngine::take(int32_t slot, int64_t steps, GainedTokens& gained) {
  const SimStepRun::Taken taken = run_.take(slot, steps);
  gained.steps = taken.steps;
  gained.by_step.assign(taken.gained.begin(), taken.gained.end());
  sample_gained(taken, gained.sampled);
}

// ---- effects ---------------------------------------------------------------------------------------------------------

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
  StepResult result{.id = batch.id,
                    .sampled = std::exchange(batch.spent, {}),
                    .version = version_,
                    .step_us = ends_ns()[0] / 1000};
  result.sampled.resize(batch.sequences.size());
  if (config_.on_steps) config_.on_steps(shape_, ends_ns_[0], 1);
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceStep& sequence = batch.sequences[i];
    std::vector<SampledToken>& sampled = result.sampled[i];
    sampled.clear();
    if (!sequence.parents.empty()) {
      sampled = run_tree(sequence);
      continue;
    }
    PrefixHash prefix = root_;
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

/// The log-probability carries the prefix hash, so it shows if the KV of a response was ever wrong.
SampledToken SimEngine::sample(const SequenceStep& s, int64_t position, const PrefixHash& prefix) const {
  return {token_of(s.seed, position + 1), -1.0f - static_cast<float>(prefix.hi & 0xffff) / 65536.0f};
}

/// Keeps the KV of the accepted path, in its order, and overwrites that of the other rows, so that using it would be noticed.
std::vector<SampledToken> SimEngine::run_tree(const SequenceStep& s) {
  const size_t rows = s.tokens.size();
  SEER_CHECK(s.parents.size() == rows && s.sample_rows == static_cast<int32_t>(rows), s.parents.size(), s.sample_rows, rows);
  std::vector<PrefixHash> prefixes(rows);
  std::vector<int64_t> positions(rows);
  std::vector<SampledToken> sampled;
  for (size_t row = 0; row < rows; ++row) {
    PrefixHash prefix = root_;
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

void SimEngine::stage(const StageWeights& weights) {
  SEER_CHECK(!staged_, weights.id);
  after_(1000 * config_.stage_us, [this, weights, alive = std::weak_ptr<uint64_t>(timer_)] {
    if (alive.expired()) return;
    WeightResult staged{weights.id, {}, version_, config_.info.kv_hash};
    if (weights.kv_hash != 0 && weights.kv_hash != kv_hash_of(weights.version))
      staged.status = fail(Code::kInvalidArgument, weights.folder, " has other weights");
    else if (config_.stage_fault)
      staged.status = config_.stage_fault();
    if (staged.status.ok()) staged_ = weights.version;
    results_.push_back(std::move(staged));
    notify_();
  });
}

WeightResult SimEngine::run(const SwitchWeights& weights) {
  SEER_CHECK(staged_, weights.id);
  version_ = *std::exchange(staged_, std::nullopt);
  root_ = root_of(version_);
  return {weights.id, {}, version_, kv_hash_of(version_)};
}

CopyResult SimEngine::run(const CopyBatch& batch) {
  CopyResult result{.id = batch.id, .direction = batch.direction, .crc32c = {}};
  const bool is_export = batch.direction == CopyBatch::Direction::kExport;
  for (const BlockCopy& copy : batch.blocks) {
    // Without KV nothing is copied. The checksums are still needed: the caller compares them.
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
