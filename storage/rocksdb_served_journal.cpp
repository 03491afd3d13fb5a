#include <rocksdb/write_batch.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "storage/directory_lock.h"
#include "storage/record_bytes.h"
#include "storage/rocksdb_journal_db.h"
#include "storage/served_journal.h"

// Layout of the directory:
//
//   seer-served-journal.lock           held while a process has it
//   db/                                the RocksDB database. Numbers in keys are big-endian, so that they are in order:
//     "format"                         of the records (rocksdb_journal_db.h)
//     "mark"                           ServedModelMark
//     "h" rollout                      ServedHead
//     "g" rollout group                ServedGroup
//     "r" rollout seq                  ServedResponse
//     "t" version rollout group sample first
//                                      CommittedTokens of these weights from token `first` on; none once the response is there
//
// The write-ahead log is with the operating system when a write returns.
namespace seer {
namespace {

constexpr DirectoryKind kDirectoryKind = {.name = "journal of seer serve", .lock_file = "seer-served-journal.lock", .data = "db"};
constexpr const char* kMarkKey = "mark";

/// After all keys that go on from this one.
std::string end_of(const std::string& key) { return key + std::string(32, '\xff'); }

class RocksdbServedJournal final : public ServedJournal {
 public:
  RocksdbServedJournal(std::string dir, DirectoryLock lock, std::unique_ptr<rocksdb::DB> db)
      : dir_(std::move(dir)), lock_(std::move(lock)), db_(std::move(db)) {}

  Status begin(const ServedModelMark& mark);
  Result<ServedContents> read() const override;
  Status set_mark(const ServedModelMark& mark) override;
  Status put(const ServedHead& head) override { return put(journal_key('h', head.number), record_bytes(head)); }
  Status add(const ServedHead& head, uint32_t first, const std::vector<ServedGroup>& groups) override;
  Status commit(uint64_t rollout, const CommittedTokens& part, WeightVersion version) override;
  Status finish(uint64_t rollout, const std::vector<ServedResponse>& responses) override;
  Status acknowledge(const ServedHead& head, const std::vector<ServedResponse>& responses) override;
  Status forget(uint64_t rollout) override;
  Status reopen() override;
  Status sync() override;

 private:
  Status ended(const rocksdb::Status& status) const { return status.ok() ? Status{} : Status{journal_error(status, dir_)}; }
  Error closed() const { return fail(Code::kIo, "journal ", dir_, " is closed, since it could not be opened again"); }
  Status write(rocksdb::WriteBatch& batch) { return db_ == nullptr ? Status{closed()} : ended(db_->Write({}, &batch)); }
  Status put(const std::string& key, const std::string& record) {
    rocksdb::WriteBatch batch;
    (void)batch.Put(key, record);
    return write(batch);
  }
  static void drop(rocksdb::WriteBatch& batch, const std::string& key) { (void)batch.DeleteRange(key, end_of(key)); }
  template <class Record, class Take>
  Status each(const std::string& begin, Take take) const { return each_record<Record>(*db_, dir_, begin, std::move(take)); }

  const std::string dir_;
  const DirectoryLock lock_;  // given back after the database is closed
  std::mutex opening_;        // held while db_ changes, and by sync(), which comes from another thread
  std::unique_ptr<rocksdb::DB> db_;  // null: it could not be opened again
  /// The key of the tokens that a rollout has under this version.
  static std::string tokens_key(WeightVersion version, uint64_t rollout) { return journal_key('t', version.value, rollout); }
  std::map<std::pair<uint64_t, RequestId>, int64_t> next_index_;  // of the tokens that were committed, by rollout and response
  bool has_same_weights_ = false;  // when it was opened, the mark was the same
  WeightVersion version_;  // of the mark
  WeightVersion newest_;   // of tokens that were committed, or the mark's
};

Status RocksdbServedJournal::begin(const ServedModelMark& mark) {
  std::string bytes;
  const rocksdb::Status found = db_->Get({}, kMarkKey, &bytes);
  if (!found.ok() && !found.IsNotFound()) return ended(found);
  rocksdb::WriteBatch batch;
  if (found.ok()) {
    const Result<ServedModelMark> read = read_record<ServedModelMark>(bytes);
    if (!read.ok()) return of_another_build(dir_);
    const ServedModelMark& there = *read;
    if (there.model != mark.model)
      return fail(Code::kInvalidArgument, "journal ", dir_, " is of model \"", there.model, "\", and this is \"", mark.model,
                  "\": remove the folder to begin anew");
    has_same_weights_ = there == mark && mark.weights != 0;
    if (there != mark) drop(batch, "t");
  }
  const std::string after = journal_key('t', mark.version.value + 1);
  (void)batch.DeleteRange(after, end_of("t"));  // committed with weights that were never marked
  SEER_RETURN_IF_ERROR(write(batch));
  return set_mark(mark);
}

Status RocksdbServedJournal::set_mark(const ServedModelMark& mark) {
  version_ = mark.version;
  newest_ = std::max(newest_, version_);
  rocksdb::WriteBatch batch;
  (void)batch.Put(kMarkKey, record_bytes(mark));
  (void)batch.DeleteRange("t", journal_key('t', version_.value));
  return write(batch);
}

Result<ServedContents> RocksdbServedJournal::read() const {
  if (db_ == nullptr) return closed();
  ServedContents contents{.has_same_weights = has_same_weights_};
  SEER_RETURN_IF_ERROR(each<ServedHead>("h", [&](ServedHead head) { contents.rollouts.push_back({.head = std::move(head)}); }));
  for (ServedContents::Rollout& rollout : contents.rollouts) {
    const uint64_t number = rollout.head.number;
    SEER_RETURN_IF_ERROR(
        each<ServedGroup>(journal_key('g', number), [&](ServedGroup group) { rollout.groups.push_back(std::move(group)); }));
    SEER_RETURN_IF_ERROR(each<ServedResponse>(
        journal_key('r', number), [&](ServedResponse response) { rollout.responses.push_back(std::move(response)); }));
    std::map<RequestId, CommittedTokens> begun;
    SEER_RETURN_IF_ERROR(each<CommittedTokens>(tokens_key(version_, number), [&](const CommittedTokens& part) {
      join_committed(part, begun.try_emplace(part.request, CommittedTokens{.request = part.request}).first->second);
    }));
    for (auto& [request, all] : begun) rollout.begun.push_back(std::move(all));
  }
  return contents;
}

Status RocksdbServedJournal::add(const ServedHead& head, uint32_t first, const std::vector<ServedGroup>& groups) {
  rocksdb::WriteBatch batch;
  (void)batch.Put(journal_key('h', head.number), record_bytes(head));
  (void)batch.DeleteRange(journal_key('g', head.number, first), end_of(journal_key('g', head.number)));
  for (const ServedGroup& group : groups) (void)batch.Put(journal_key('g', head.number, first++), record_bytes(group));
  return write(batch);
}

Status RocksdbServedJournal::commit(uint64_t rollout, const CommittedTokens& part, WeightVersion version) {
  if (version < version_) return {};
  newest_ = std::max(newest_, version);
  const std::string all = journal_key('t', version.value, rollout, part.request.group.index, part.request.sample);
  std::string key = all;
  append_big_endian(key, static_cast<uint64_t>(part.first_index));
  const auto [next, is_first] = next_index_.try_emplace({rollout, part.request}, 0);
  rocksdb::WriteBatch batch;
  if (is_first || next->second != part.first_index) (void)batch.DeleteRange(key, end_of(all));  // it goes on from here, without what it had
  (void)batch.Put(key, record_bytes(part));
  next->second = part.first_index + std::ssize(part.output.ids);
  return write(batch);
}

Status RocksdbServedJournal::finish(uint64_t rollout, const std::vector<ServedResponse>& responses) {
  rocksdb::WriteBatch batch;
  for (const ServedResponse& response : responses) {
    next_index_.erase({rollout, {GroupId{response.group}, response.sample}});
    (void)batch.Put(journal_key('r', rollout, response.seq), record_bytes(response));
    drop(batch, journal_key('t', response.version.value, rollout, response.group, response.sample));
  }
  return write(batch);
}

Status RocksdbServedJournal::acknowledge(const ServedHead& head, const std::vector<ServedResponse>& responses) {
  rocksdb::WriteBatch batch;
  (void)batch.Put(journal_key('h', head.number), record_bytes(head));
  for (ServedResponse response : responses) {
    response.line.clear();
    (void)batch.Put(journal_key('r', head.number, response.seq), record_bytes(response));
  }
  return write(batch);
}

Status RocksdbServedJournal::forget(uint64_t rollout) {
  next_index_.erase(next_index_.lower_bound({rollout, {}}), next_index_.lower_bound({rollout + 1, {}}));
  rocksdb::WriteBatch batch;
  (void)batch.Delete(journal_key('h', rollout));
  for (const char kind : {'g', 'r'}) drop(batch, journal_key(kind, rollout));
  for (const WeightVersion version : {version_, newest_}) drop(batch, tokens_key(version, rollout));
  return write(batch);
}

/// RocksDB 7.8 takes no writes after one that failed, even where the disk has room again.
Status RocksdbServedJournal::reopen() {
  const std::lock_guard lock(opening_);
  db_ = nullptr;  // RocksDB does not open a folder twice
  SEER_ASSIGN_OR_RETURN(db_, open_journal_db(dir_ + "/" + kDirectoryKind.data, dir_));
  return {};
}

Status RocksdbServedJournal::sync() {
  const std::lock_guard lock(opening_);
  return db_ == nullptr ? Status{closed()} : sync_journal_db(*db_, dir_);
}

}  // namespace

Result<std::unique_ptr<ServedJournal>> ServedJournal::open(const std::string& dir, const ServedModelMark& mark) {
  SEER_ASSIGN_OR_RETURN(DirectoryLock lock, DirectoryLock::take(dir, kDirectoryKind));
  SEER_ASSIGN_OR_RETURN(auto db, open_journal_db(dir + "/" + kDirectoryKind.data, dir));
  auto journal = std::make_unique<RocksdbServedJournal>(dir, std::move(lock), std::move(db));
  SEER_RETURN_IF_ERROR(journal->begin(mark));
  return std::unique_ptr<ServedJournal>(std::move(journal));
}

}  // namespace seer
