#include <rocksdb/write_batch.h>

#include <map>
#include <utility>

#include "protocols/hash.h"
#include "storage/directory_lock.h"
#include "storage/record_bytes.h"
#include "storage/rocksdb_journal_db.h"
#include "storage/rollout_journal.h"

// Layout of the directory:
//
//   seer-rollout-journal.lock    locked while a process uses the directory
//   db/                          the RocksDB database. Numbers in keys are big-endian, so that they sort:
//     "format"                   of the records (rocksdb_journal_db.h)
//     "work"                     JournalWork
//     "r" number                 Response, by the order in which they were finished
//     "t" group sample first     CommittedTokens from token `first` on; none once the response is there
//
// When a write returns, its record in the write-ahead log is with the operating system.
namespace seer {
namespace {

constexpr DirectoryKind kDirectoryKind = {.name = "rollout journal", .lock_file = "seer-rollout-journal.lock", .data = "db"};
constexpr const char* kWorkKey = "work";

/// Sorts before the keys of all tokens of the request.
std::string tokens_key(RequestId id) { return journal_key('t', id.group.index, id.sample); }

/// kInvalidArgument: which part of the work differs.
Status check_work(const std::string& dir, const JournalWork& found, const JournalWork& expected) {
  const auto differs = [&](const auto&... what) {
    return fail(Code::kInvalidArgument, "journal ", dir, " is of another rollout: ", what..., "; remove the folder to begin anew");
  };
  if (found.model != expected.model) return differs("its model is \"", found.model, "\", and this one's \"", expected.model, "\"");
  if (found.version != expected.version) return differs("its weight version is ", found.version, ", and this one's ", expected.version);
  if (found.weights != expected.weights) return differs("its weights, or how they are computed with, differ");
  if (found.endings != expected.endings) return differs("its end of responses is \"", found.endings, "\", and this one's \"", expected.endings, "\"");
  if (found.tokenizer != expected.tokenizer) return differs("its tokenizer differs");
  if (found.groups.size() != expected.groups.size())
    return differs("it has ", found.groups.size(), " prompts, and this one ", expected.groups.size());
  for (size_t i = 0; i < found.groups.size(); ++i)
    if (found.groups[i] != expected.groups[i]) return differs("prompt ", i, " has another text, seed, sampling or number of responses");
  return {};
}

class RocksdbRolloutJournal final : public RolloutJournal {
 public:
  RocksdbRolloutJournal(std::string dir, DirectoryLock lock, std::unique_ptr<rocksdb::DB> db)
      : dir_(std::move(dir)), lock_(std::move(lock)), db_(std::move(db)) {}

  Status begin(const JournalWork& work, bool may_resume);
  Result<JournalContents> read() const override;
  Status commit(const RolloutCommits& commits) override;
  Status finish(const Response& response) override;
  Status sync() override { return sync_journal_db(*db_, dir_); }
  Status clear() override;

 private:
  Status ended(const rocksdb::Status& status) const { return status.ok() ? Status{} : Status{journal_error(status, dir_)}; }
  Status write(rocksdb::WriteBatch& batch) { return ended(db_->Write({}, &batch)); }

  const std::string dir_;
  const DirectoryLock lock_;  // released after the database is closed
  const std::unique_ptr<rocksdb::DB> db_;
  uint64_t last_response_ = 0;
};

Status RocksdbRolloutJournal::begin(const JournalWork& work, bool may_resume) {
  std::string bytes;
  const rocksdb::Status found = db_->Get({}, kWorkKey, &bytes);
  if (found.IsNotFound()) return ended(db_->Put({}, kWorkKey, record_bytes(work)));
  if (!found.ok()) return ended(found);
  const Result<JournalWork> read_work = read_record<JournalWork>(bytes);
  if (!read_work.ok()) return of_another_build(dir_);
  const JournalWork& there = *read_work;
  if (!may_resume)
    return fail(Code::kInvalidArgument, "journal ", dir_, " has an unfinished rollout: --resume continues it; remove the folder to begin anew");
  SEER_RETURN_IF_ERROR(check_work(dir_, there, work));
  SEER_ASSIGN_OR_RETURN(const JournalContents contents, read());
  last_response_ = contents.responses.size();
  return {};
}

Result<JournalContents> RocksdbRolloutJournal::read() const {
  JournalContents contents;
  std::map<RequestId, CommittedTokens> by_request;
  SEER_RETURN_IF_ERROR(each_record<Response>(*db_, dir_, "r", [&](Response response) { contents.responses.push_back(std::move(response)); }));
  SEER_RETURN_IF_ERROR(each_record<CommittedTokens>(*db_, dir_, "t", [&](const CommittedTokens& part) {
    join_committed(part, by_request.try_emplace(part.request, CommittedTokens{.request = part.request}).first->second);
  }));
  for (const Response& response : contents.responses)
    if (response.finish != FinishReason::kError) by_request.erase(response.request);  // one that failed may have been begun again since
  for (auto& [request, all] : by_request) contents.parts.push_back(std::move(all));
  return contents;
}

Status RocksdbRolloutJournal::commit(const RolloutCommits& commits) {
  rocksdb::WriteBatch batch;
  for (CommittedTokens part : commits.parts) {
    part.request.group.rollout = {};
    std::string key = tokens_key(part.request);
    append_big_endian(key, static_cast<uint64_t>(part.first_index));
    (void)batch.Put(key, record_bytes(part));
  }
  return write(batch);
}

Status RocksdbRolloutJournal::finish(const Response& response) {
  Response kept = response;
  kept.request.group.rollout = {};
  rocksdb::WriteBatch batch;
  (void)batch.Put(journal_key('r', ++last_response_), record_bytes(kept));
  const std::string tokens = tokens_key(kept.request);
  (void)batch.DeleteRange(tokens, tokens + std::string(sizeof(uint64_t) + 1, '\xff'));
  return write(batch);
}

Status RocksdbRolloutJournal::clear() {
  rocksdb::WriteBatch batch;
  (void)batch.DeleteRange("", "\xff");
  SEER_RETURN_IF_ERROR(write(batch));
  return sync();
}

}  // namespace

uint64_t hash_group(const GroupSpec& group) {
  GroupSpec work = group;
  work.id = {};
  work.known_tokens.clear();
  work.generated_tokens.clear();
  work.priority = 0;
  return hash_text(record_bytes(work));
}

Result<std::unique_ptr<RolloutJournal>> RolloutJournal::open(const std::string& dir, const JournalWork& work, bool may_resume) {
  SEER_ASSIGN_OR_RETURN(DirectoryLock lock, DirectoryLock::take(dir, kDirectoryKind));
  SEER_ASSIGN_OR_RETURN(auto db, open_journal_db(dir + "/" + kDirectoryKind.data, dir));
  auto journal = std::make_unique<RocksdbRolloutJournal>(dir, std::move(lock), std::move(db));
  SEER_RETURN_IF_ERROR(journal->begin(work, may_resume));
  return std::unique_ptr<RolloutJournal>(std::move(journal));
}

}  // namespace seer
