// RolloutsJournal: what ServedRollouts writes to its ServedJournal, and what the journal lacks after a write that failed. From then on
// nothing is written until catch_up(), so that the journal has all that came before, and nothing else.
// Used by ServedRollouts only. Single owner, not thread-safe, but for sync().
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "protocols/result.h"
#include "storage/served_journal.h"

namespace seer {

class RolloutsJournal {
 public:
  /// `journal`: null: there is none. Then nothing is written, and nothing fails.
  explicit RolloutsJournal(std::unique_ptr<ServedJournal> journal) : journal_(std::move(journal)) {}
  bool is_there() const { return journal_ != nullptr; }
  /// Once, before all else.
  Result<ServedContents> read();

  // ---- writes. They return, or leave in failed(), why the journal cannot be written ----
  /// A new rollout with its first groups.
  Status create(const ServedHead& head, const std::vector<ServedGroup>& groups);
  /// More groups of a rollout; the first of them has this index.
  Status add(const ServedHead& head, uint32_t first, const std::vector<ServedGroup>& groups);
  void put(const ServedHead& head);
  /// Tokens after some that the journal lacks are left out, or they would be joined to others.
  void commit(uint64_t rollout, const CommittedTokens& part, WeightVersion version);
  /// Responses that are given together.
  void finish(uint64_t rollout, const std::vector<ServedResponse>& responses);
  /// `responses`: those that head.acknowledged acknowledges now.
  void acknowledge(const ServedHead& head, const std::vector<ServedResponse>& responses);
  void forget(uint64_t rollout);
  void set_mark(const ServedModelMark& mark);

  // ---- after a write that failed ----
  const Status& failed() const { return failed_; }
  /// True every now and then while failed(): catch_up() is to be tried.
  bool must_retry(int64_t now_us);
  /// A rollout as it is now.
  struct Current {
    const ServedHead& head;
    uint32_t groups;
    const std::deque<ServedResponse>& given;                       // from the first on, without lines
    const std::deque<std::shared_ptr<const std::string>>& lines;  // of those that are not acknowledged
  };
  /// Writes what came since, but for tokens. REQUIRES: these are all rollouts.
  const Status& catch_up(const std::vector<Current>& rollouts);

  /// Makes what was written safe from a crash of the machine. Thread-safe.
  Status sync() { return journal_ == nullptr ? Status{} : journal_->sync(); }

 private:
  struct Written {
    uint64_t given = 0, acknowledged = 0;  // up to these responses
  };
  template <class Write>
  const Status& write(Write write);
  Status write_missing(const std::vector<Current>& rollouts);
  Status write_missing(const Current& rollout);

  const std::unique_ptr<ServedJournal> journal_;
  Status failed_;
  int64_t retry_us_ = 0;                           // when must_retry() is true again
  std::map<uint64_t, Written> written_;            // by rollout
  std::optional<ServedModelMark> mark_;            // the last one
  std::set<std::pair<uint64_t, RequestId>> gaps_;  // responses of which the journal lacks some tokens, so that it gets no later ones
  std::vector<uint64_t> to_forget_;                // rollouts that the journal may have and that are not there
};

}  // namespace seer
