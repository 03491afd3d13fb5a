// RunJournal: the journal of a run of `seer rollout` (--journal): what an earlier process left in it, and what this one adds.
// Without --journal every call does nothing. Used by rollout_run. Single owner.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "actors/rollout_actor.h"
#include "cli/config.h"
#include "storage/rollout_journal.h"

namespace seer {

class RunJournal {
 public:
  /// Errors: those of RolloutJournal::open(); kUnavailable if this build has no RocksDB.
  static Result<RunJournal> open(const RolloutOptions& options, const std::vector<GroupSpec>& groups, const ClusterIdentity& identity);

  bool is_on() const { return journal_ != nullptr; }
  /// Responses that were given before, in their order.
  const std::vector<Response>& answered() const { return had_.responses; }
  /// The requests from which the rollout of this id continues. Call it once.
  std::vector<ResumedRequest> take_resumed(RolloutId id);
  /// Unfinished requests that had tokens, and those tokens, until take_resumed().
  size_t begun() const { return had_.parts.size(); }
  int64_t begun_tokens() const;

  Status commit(const RolloutCommits& commits) { return is_on() ? journal_->commit(commits) : Status{}; }
  Status finish(const Response& response) { return is_on() ? journal_->finish(response) : Status{}; }
  /// Makes the journal safe from a crash of the machine, at most once a second.
  Status sync_when_due(int64_t now_us);
  /// Empties the journal. REQUIRES: the responses are safe elsewhere.
  Status clear() { return is_on() ? journal_->clear() : Status{}; }

 private:
  std::unique_ptr<RolloutJournal> journal_;
  JournalContents had_;
  int64_t synced_us_ = 0;
};

}  // namespace seer
