#include "cli/run_journal.h"

#include <utility>

namespace seer {
namespace {

constexpr int64_t kSyncUs = 1'000'000;

}  // namespace

Result<RunJournal> RunJournal::open(const RolloutOptions& options, [[maybe_unused]] const std::vector<GroupSpec>& groups,
                                    [[maybe_unused]] const ClusterIdentity& identity) {
  if (options.journal.empty()) return RunJournal{};
#ifdef SEER_HAVE_ROCKSDB
  JournalWork work{.model = identity.model,
                   .weights = identity.weights,
                   .version = identity.version,
                   .endings = identity.endings,
                   .tokenizer = identity.tokenizer,
                   .groups = {}};
  for (const GroupSpec& group : groups) work.groups.push_back(hash_group(group));
  RunJournal journal;
  SEER_ASSIGN_OR_RETURN(journal.journal_, RolloutJournal::open(options.journal, work, options.resume));
  SEER_ASSIGN_OR_RETURN(journal.had_, journal.journal_->read());
  // What failed is tried again: machines may have been mended, and a request's own error comes again.
  std::erase_if(journal.had_.responses, [](const Response& r) { return r.finish == FinishReason::kError; });
  return journal;
#else
  return fail(Code::kUnavailable, "--journal ", options.journal,
              " needs RocksDB, but this build was made without it: apt-get install librocksdb-dev, and build again");
#endif
}

std::vector<ResumedRequest> RunJournal::take_resumed(RolloutId id) {
  std::vector<ResumedRequest> resumed;
  JournalContents had = std::exchange(had_, {});
  for (Response& r : had.responses) {
    resumed.push_back({.request = r.request, .is_over = true});
    if (r.finish != FinishReason::kAborted) resumed.back().output.ids = std::move(r.output.ids);
  }
  for (CommittedTokens& part : had.parts) resumed.push_back({part.request, std::move(part.output)});
  for (ResumedRequest& request : resumed) request.request.group.rollout = id;
  return resumed;
}

int64_t RunJournal::begun_tokens() const {
  int64_t tokens = 0;
  for (const CommittedTokens& part : had_.parts) tokens += std::ssize(part.output.ids);
  return tokens;
}

Status RunJournal::sync_when_due(int64_t now_us) {
  if (!is_on() || now_us - synced_us_ < kSyncUs) return {};
  synced_us_ = now_us;
  return journal_->sync();
}

}  // namespace seer
