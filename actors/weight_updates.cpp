#include "actors/weight_updates.h"

#include <algorithm>
#include <utility>

namespace seer {
namespace {

constexpr size_t kLateMax = 16;

/// Takes the checksum that a machine has found, if it is the first. False: it has found other weights, so it is not used with this version.
bool has_same(const WeightsUpdated& answer, NewWeights& what) {
  if (what.weights == 0) what.weights = answer.weights;
  return answer.weights == what.weights;
}

}  // namespace

Status WeightUpdates::may_begin(const NewWeights& what) const {
  if (update_) return fail(Code::kUnavailable, "an update to weight version ", update_->what.version, " is under way");
  if (what.version <= version_)
    return fail(Code::kInvalidArgument, "weight version ", what.version, ": expected one above ", version_, ", which runs");
  return {};
}

void WeightUpdates::begin(NewWeights what, std::string name, const std::vector<NodeId>& asked) {
  if (asked.empty()) return end(fail(Code::kUnavailable, "there is no machine"));
  const std::set<NodeId> nodes(asked.begin(), asked.end());
  update_ = {.what = std::move(what), .name = std::move(name), .waiting = nodes, .asked = nodes};
}

std::optional<int64_t> WeightUpdates::start_time(int64_t now_us) {
  if (!update_ || update_->until_us) return {};
  return update_->until_us = now_us + update_us_max_;
}

void WeightUpdates::end_in_time(int64_t now_us) {
  if (!update_ || !update_->until_us || now_us < *update_->until_us) return;
  update_->error = cat("node ", *update_->waiting.begin(), " has not changed its weights within ", update_us_max_ / 1'000'000, " s");
  update_->silent.merge(update_->waiting);
  update_->waiting.clear();
  settle();
}

void WeightUpdates::note(const WeightsUpdated& answer) {
  if (is_late(answer)) return note_late(answer);
  // One that was lost meanwhile may be back.
  if (update_->waiting.erase(answer.node) == 0 && update_->silent.erase(answer.node) == 0) return;
  if (answer.weights == 0 && answer.error.empty()) update_->asked.erase(answer.node);
  if (!answer.error.empty()) update_->error = answer.error;
  if (answer.weights != 0 && has_same(answer, update_->what))
    update_->changed.push_back(answer.node);
  else if (answer.weights != 0)
    update_->error = cat("node ", answer.node, " found other weights in ", update_->what.folder, " than the machines before it");
  settle();
}

void WeightUpdates::lose(NodeId node) {
  for (auto& [number, of] : late_) {
    of.unchanged.erase(node);
    std::erase(of.changed, node);
  }
  use_late();
  if (!update_) return;
  std::erase(update_->changed, node);  // if it comes back, then with the weights that it starts with
  if (update_->waiting.erase(node) == 0) return;
  update_->error = cat("node ", node, " was lost while it changed its weights");
  update_->silent.insert(node);
  update_->asked.erase(node);
  settle();
}

void WeightUpdates::follow(const ClusterWeights& now) {
  if (now.what.version <= version_) return;
  elsewhere_ = now;
  if (!update_) follow_elsewhere();
}

std::optional<WeightUpdates::Step> WeightUpdates::take() {
  if (steps_.empty()) return {};
  Step first = std::move(steps_.front());
  steps_.erase(steps_.begin());
  return first;
}

/// Ends the update once all have answered. If some machine has the new weights, nothing starts with the old ones.
void WeightUpdates::settle() {
  if (!update_->waiting.empty()) return;
  Update over = *std::exchange(update_, {});
  if (over.what.version <= version_)
    over.error = cat("weight version ", version_, " of an earlier update came to run meanwhile");
  else if (!over.changed.empty())
    run({{over.what, std::move(over.changed)}, over.name, Cause::kUpdate});
  else  // a machine that said no, or nothing, may have them all the same
    late_[over.what.version] = {.what = over.what, .name = over.name, .unchanged = std::move(over.asked)};
  if (late_.size() > kLateMax) late_.erase(late_.begin());
  end(over.error.empty() ? Status{} : fail(Code::kUnavailable, over.error));
  follow_elsewhere();
}

void WeightUpdates::note_late(const WeightsUpdated& answer) {
  const auto at = late_.find(answer.version);
  if (at == late_.end() || answer.weights == 0) return;
  at->second.unchanged.erase(answer.node);
  if (has_same(answer, at->second.what)) at->second.changed.push_back(answer.node);
  use_late();
}

/// Once all machines have them: no request can run with the old ones any more.
void WeightUpdates::use_late() {
  const auto at = std::ranges::find_if(late_, [](const auto& l) { return l.second.unchanged.empty() && !l.second.changed.empty(); });
  if (at == late_.end()) return;
  run({{at->second.what, at->second.changed}, at->second.name, Cause::kLate});
}

void WeightUpdates::follow_elsewhere() {
  const std::optional<ClusterWeights> now = std::exchange(elsewhere_, {});
  if (now && now->what.version > version_) run({*now, {}, Cause::kElsewhere});
}

void WeightUpdates::end(Status status) { steps_.push_back(Ended{version_, std::move(status)}); }

void WeightUpdates::run(Run run) {
  version_ = run.now.what.version;
  weights_ = run.now.what.weights;
  late_.erase(late_.begin(), late_.upper_bound(version_));
  steps_.push_back(std::move(run));
}

}  // namespace seer
