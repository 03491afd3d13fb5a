// WeightUpdates: which weights a gateway's requests run with, as updates are ordered and machines answer them. Decides; the gateway
// does what take() gives it after each call. Single owner, not thread-safe.
//
// An update ends once each machine that was asked has answered, was lost, or had its time. If some have changed, requests run with the
// new weights from then on, and machines that failed get no work. Machines may also change after their update was given up, and do
// not go back: once all that were asked have, their weights are used. What another process orders meanwhile is followed after it.
//
// Invariants: versions only grow; requests run with weights that machines have; each update that began ends once.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "protocols/actors.h"
#include "protocols/result.h"

namespace seer {

class WeightUpdates {
 public:
  enum class Cause : uint8_t {
    kUpdate,     // requests that run go on as its order says
    kLate,       // machines changed after their update had ended: nothing goes on with the weights before
    kElsewhere,  // another process changed them: the same
  };
  /// Requests run with these weights from now on.
  struct Run {
    ClusterWeights now;
    std::string name;  // that their order gave to them; empty: none
    Cause cause = Cause::kUpdate;
  };
  /// The update is over.
  struct Ended {
    WeightVersion runs;
    Status status;
  };
  using Step = std::variant<Run, Ended>;

  /// update_us_max: from start_time() on; machines that have not answered by then have failed. weights: checksum; 0: not known
  WeightUpdates(WeightVersion version, uint64_t weights, int64_t update_us_max)
      : version_(version), weights_(weights), update_us_max_(update_us_max) {}

  WeightVersion version() const { return version_; }
  uint64_t weights() const { return weights_; }
  bool is_under_way() const { return update_.has_value(); }

  /// Errors: kUnavailable (one is under way), kInvalidArgument (its version is too low).
  Status may_begin(const NewWeights& what) const;
  /// These machines will answer. REQUIRES: it may begin.
  void begin(NewWeights what, std::string name, const std::vector<NodeId>& asked);
  /// Machines can change, since no request needs the weights before. Returns when their time will be up; none: it was running, or no
  /// update is under way.
  std::optional<int64_t> start_time(int64_t now_us);
  /// Gives machines up whose time is over.
  void end_in_time(int64_t now_us);

  void note(const WeightsUpdated& answer);
  /// Whether it answers an update that has ended.
  bool is_late(const WeightsUpdated& answer) const { return !update_ || answer.version != update_->what.version; }
  /// The machine will not answer any more, unless it comes back.
  void lose(NodeId node);
  /// The machines have these weights, whoever changed them.
  void follow(const ClusterWeights& now);

  /// What is to be done next. Call it until there is nothing.
  std::optional<Step> take();

 private:
  struct Update {
    NewWeights what;
    std::string name;
    std::set<NodeId> waiting;     // for these
    std::set<NodeId> asked;       // those that have instances and were not lost
    std::vector<NodeId> changed = {};
    std::set<NodeId> silent = {};  // not waited for any longer
    std::string error = {};       // of some node
    std::optional<int64_t> until_us = {};
  };
  /// An update that changed no machine as far as they answered before its end.
  struct Late {
    NewWeights what;
    std::string name;
    std::set<NodeId> unchanged;
    std::vector<NodeId> changed = {};
  };

  void settle();
  void note_late(const WeightsUpdated& answer);
  void use_late();
  void follow_elsewhere();
  void run(Run run);
  void end(Status status);

  WeightVersion version_;
  uint64_t weights_;
  const int64_t update_us_max_;
  std::optional<Update> update_;
  std::optional<ClusterWeights> elsewhere_;  // what came from others during the update
  std::map<WeightVersion, Late> late_;       // the last ones, above version_
  std::vector<Step> steps_;                  // not taken yet
};

}  // namespace seer
