// RolloutSim: one rollout iteration on simulated engines, decided by a real ChunkScheduler. Event-exact: the step time
// of an instance is affine in the tokens its rows attend to, so a run of steps in which nothing starts or ends is
// summed in closed form. Between such events a row gains a token per step; when the KV is full, the row with the
// largest yield_rank gives way, as in gpu/step_planner.h.
//
// Simplified: no drafting; KV is counted in tokens, not in blocks; a row waits for KV pulled from the pool while the
// others go on; prefill stops the instance. The scheduler hears how far the rows of an instance are at each of its
// events, and every kReportSteps steps in between.
#pragma once
#include <ctime>
#include <map>
#include <queue>
#include <tuple>

#include "actors/policy/chunk_scheduler.h"
#include "actors/policy/length_estimator.h"
#include "protocols/check.h"
#include "rollout_model.h"

namespace seer::bench {

struct RolloutFigures {
  double total_s = 0;
  double tail_s = 0;  // from the time when 90 % of the requests were done
  double kv_use = 0;  // share of the fleet's KV held, over time
  double yields = 0, preemptions = 0, migrations = 0;
  double decisions = 0;    // placements
  double scheduler_s = 0;  // CPU time in the scheduler, reports of progress included
};

class RolloutSim {
 public:
  RolloutSim(const Workload& workload, const std::vector<int64_t>& lengths, const ChunkSchedulerConfig& config)
      : w_(workload),
        cost_(workload),
        capacity_(cost_.capacity_tokens() / kBlockTokens * kBlockTokens),
        lengths_(lengths),
        scheduler_(std::move(make_chunk_scheduler(config)).value()),
        instances_(static_cast<size_t>(workload.instances)),
        requests_(lengths.size()),
        prefilled_(lengths.size() / static_cast<size_t>(workload.group_size)) {
    for (uint32_t id = 0; id < instances_.size(); ++id)
      SEER_CHECK(scheduler_
                     ->add_instance({.id = {id},
                                     .node = {id},
                                     .kv_blocks = capacity_ / kBlockTokens,
                                     .block_tokens = kBlockTokens,
                                     .rows_max = w_.rows_max})
                     .ok());
    for (uint32_t id = 0; id < prefilled_.size(); ++id) add_group({id});
  }

  RolloutFigures run() {
    place_all();
    std::vector<double> finished_s;
    while (finished_s.size() < lengths_.size()) {
      SEER_CHECK(!events_.empty(), finished_s.size());
      const auto [time_s, index, version] = events_.top();
      events_.pop();
      Instance& instance = instances_[index];
      if (version != instance.version) continue;
      now_s_ = std::max(now_s_, time_s);
      step(instance, instance.steps_left);
      end_rows(instance, finished_s);
      give_way(instance);
      instance.steps_unreported = kReportSteps;
      report_progress();
      place_all();
      for (uint32_t i = 0; i < instances_.size(); ++i)
        if (instances_[i].changed) plan(i);
    }
    const RequestTotals& totals = scheduler_->requests().totals();
    std::sort(finished_s.begin(), finished_s.end());
    figures_.total_s = finished_s.back();
    figures_.tail_s = finished_s.back() - finished_s[(finished_s.size() * 9 + 9) / 10 - 1];
    figures_.kv_use /= static_cast<double>(capacity_) * w_.instances * figures_.total_s;
    figures_.yields = static_cast<double>(totals.yields);
    figures_.preemptions = static_cast<double>(totals.preemptions);
    figures_.migrations = static_cast<double>(totals.migrations);
    figures_.decisions = static_cast<double>(totals.chunks);
    return figures_;
  }

 private:
  static constexpr uint32_t kBlockTokens = 16;
  static constexpr int64_t kReportSteps = 64;
  static constexpr double kFirstStepS = 1e-2;  // taken for the step time of an instance that has no rows yet

  struct Request {
    int64_t generated = 0;
    uint32_t last_instance = 0;
    bool kv_dropped = true;
  };
  struct Row {
    RequestId id;
    size_t request;
    int64_t stop_at;  // generated tokens at which the chunk is full or the response complete
    int64_t wait_steps;
    uint64_t yield_rank, start;
  };
  struct Instance {
    double time_s = 0;
    std::vector<Row> rows;
    std::map<GroupId, int> groups;  // rows of each
    int64_t context_tokens = 0;     // attended to by the rows
    int64_t held_tokens = 0;        // of KV: a prompt counts once
    StepCost cost;
    int64_t steps_left = 0;  // until its next event
    int64_t steps_unreported = 0;
    int version = 0;
    bool changed = false;
  };
  using Event = std::tuple<double, uint32_t, int>;  // time_s, instance, its version

  template <class Call>
  auto timed(Call call) {
    const double start_s = cpu_s();
    auto result = call();
    figures_.scheduler_s += cpu_s() - start_s;
    return result;
  }
  static double cpu_s() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }
  int64_t now_us() const { return static_cast<int64_t>(now_s_ * 1e6); }

  void add_group(GroupId id) {
    GroupSpec spec;
    spec.id = id;
    spec.prompt_ids.assign(static_cast<size_t>(w_.prompt_tokens), 1);
    spec.samples = static_cast<uint32_t>(w_.group_size);
    spec.sampling.max_tokens = w_.limit_tokens;
    const auto first = lengths_.begin() + static_cast<ptrdiff_t>(id.value) * w_.group_size;
    spec.known_tokens.assign(first, first + w_.group_size);
    estimates_.add_group(id, w_.limit_tokens);
    SEER_CHECK(scheduler_->add_group(spec, 0).ok());
  }

  static double steps_s(const Instance& k, int64_t steps) {
    const auto n = static_cast<double>(steps), rows = static_cast<double>(k.rows.size());
    return n * k.cost.fixed_s + k.cost.token_s * (n * static_cast<double>(k.context_tokens) + rows * n * (n - 1) / 2);
  }

  /// To the first step boundary at or after `time_s`.
  void advance(Instance& k, double time_s) {
    if (k.rows.empty()) k.time_s = std::max(k.time_s, time_s);
    if (k.rows.empty() || time_s <= k.time_s || k.steps_left == 0) return;
    int64_t low = 0, high = k.steps_left;  // the fewest steps that reach it, or all
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (k.time_s + steps_s(k, middle) >= time_s - 1e-9)
        high = middle;
      else
        low = middle + 1;
    }
    step(k, low);
  }

  void step(Instance& k, int64_t steps) {
    const double spent_s = steps_s(k, steps);
    figures_.kv_use += spent_s * (static_cast<double>(k.held_tokens) +
                                  0.5 * static_cast<double>(steps) * static_cast<double>(k.rows.size()));
    k.time_s += spent_s;
    k.steps_left -= steps;
    k.steps_unreported += steps;
    for (Row& row : k.rows) {
      const int64_t waited = std::min(row.wait_steps, steps);
      row.wait_steps -= waited;
      requests_[row.request].generated += steps - waited;
      k.context_tokens += steps - waited;
      k.held_tokens += steps - waited;
    }
  }

  /// Cost and next event of an instance whose rows changed.
  void plan(uint32_t index) {
    Instance& k = instances_[index];
    k.changed = false;
    ++k.version;
    if (k.rows.empty()) return;
    const auto rows = static_cast<int64_t>(k.rows.size());
    k.cost = cost_.step(static_cast<double>(rows));
    k.steps_left = std::max<int64_t>(1, (capacity_ - k.held_tokens) / rows);
    for (const Row& row : k.rows)
      k.steps_left = std::min(k.steps_left, row.stop_at - requests_[row.request].generated + row.wait_steps);
    events_.push({k.time_s + steps_s(k, k.steps_left), index, k.version});
  }

  void remove_row(Instance& k, const Row& row) {
    k.changed = true;
    const int64_t generated = requests_[row.request].generated;
    k.context_tokens -= w_.prompt_tokens + generated;
    k.held_tokens -= generated;
    if (--k.groups[row.id.group] > 0) return;
    k.groups.erase(row.id.group);
    k.held_tokens -= w_.prompt_tokens;
  }

  void tell_end(const Row& row, ChunkEnd end) {
    const int64_t generated = requests_[row.request].generated;
    timed([&] {
      scheduler_->chunk_ended(row.id, generated, end, now_us());
      if (end == ChunkEnd::kFinished && estimates_.observe(row.id.group, generated))
        scheduler_->estimate_changed(row.id.group, estimates_.estimate(row.id.group));
      return 0;
    });
  }

  void end_rows(Instance& k, std::vector<double>& finished_s) {
    std::vector<Row> ended, stay;
    for (const Row& row : k.rows) (requests_[row.request].generated < row.stop_at ? stay : ended).push_back(row);
    k.rows = std::move(stay);
    k.changed = true;
    for (const Row& row : ended) {
      remove_row(k, row);
      const bool finished = row.stop_at == lengths_[row.request];
      if (finished) finished_s.push_back(k.time_s);
      tell_end(row, finished ? ChunkEnd::kFinished : ChunkEnd::kChunkFull);
    }
  }

  void give_way(Instance& k) {
    while (k.rows.size() > 1 && k.held_tokens + static_cast<int64_t>(k.rows.size()) > capacity_) {
      const auto first = std::max_element(k.rows.begin(), k.rows.end(), [](const Row& a, const Row& b) {
        return std::tie(a.yield_rank, a.start) < std::tie(b.yield_rank, b.start);
      });
      const Row row = *first;
      k.rows.erase(first);
      remove_row(k, row);
      const bool keeps = keeps_kv_;
      requests_[row.request].kv_dropped = !keeps;
      tell_end(row, keeps ? ChunkEnd::kYielded : ChunkEnd::kPreempted);
    }
  }

  void report_progress() {
    for (Instance& k : instances_) {
      advance(k, now_s_);
      if (k.steps_unreported < kReportSteps) continue;
      k.steps_unreported = 0;
      timed([&] {
        for (const Row& row : k.rows) scheduler_->progressed(row.id, requests_[row.request].generated);
        return 0;
      });
    }
  }

  void place_all() {
    while (auto placement = timed([&] { return scheduler_->next(now_us()); })) start(*placement);
    for (uint32_t i = 0; now_s_ == 0 && i < instances_.size(); ++i) plan(i);
  }

  // The prompt is prefilled once for the whole group where KV can be pulled, else once per instance and time.
  void start(const Placement& placement) {
    keeps_kv_ = placement.keep_kv;
    const RequestId id = placement.request;
    const size_t index = static_cast<size_t>(id.group.value) * static_cast<size_t>(w_.group_size) + id.sample;
    Request& request = requests_[index];
    Instance& k = instances_[placement.instance.value];
    advance(k, now_s_);
    int64_t prefill = 0, pull = 0;
    const bool has_prompt = k.groups.contains(id.group);
    if (request.kv_dropped) {
      const bool pull_prompt = !has_prompt && keeps_kv_ && prefilled_[id.group.value];
      prefill = request.generated + (has_prompt || pull_prompt ? 0 : w_.prompt_tokens);
      pull = pull_prompt ? w_.prompt_tokens : 0;
    } else if (request.last_instance != placement.instance.value) {
      pull = request.generated + (has_prompt ? 0 : w_.prompt_tokens);
    }
    prefilled_[id.group.value] = true;
    k.time_s += cost_.prefill_s(prefill);
    const double step_s = k.rows.empty() || k.version == 0 ? kFirstStepS : steps_s(k, 1);
    k.rows.push_back({.id = id,
                      .request = index,
                      .stop_at = std::min(lengths_[index], request.generated + placement.max_new_tokens),
                      .wait_steps = static_cast<int64_t>(std::ceil(cost_.pull_s(pull) / step_s)),
                      .yield_rank = placement.yield_rank,
                      .start = ++starts_});
    k.context_tokens += w_.prompt_tokens + request.generated;
    k.held_tokens += request.generated + (k.groups[id.group]++ == 0 ? w_.prompt_tokens : 0);
    k.changed = true;
    request.last_instance = placement.instance.value;
    request.kv_dropped = false;
  }

  const Workload w_;
  const CostModel cost_;
  const int64_t capacity_;  // KV of an instance, tokens
  const std::vector<int64_t> lengths_;
  std::unique_ptr<ChunkScheduler> scheduler_;
  LengthEstimator estimates_;
  std::vector<Instance> instances_;
  std::vector<Request> requests_;
  std::vector<bool> prefilled_;  // by group: its prompt's KV is somewhere
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
  double now_s_ = 0;
  uint64_t starts_ = 0;
  bool keeps_kv_ = true;  // of the policy: the same in all placements
  RolloutFigures figures_;
};

}  // namespace seer::bench
