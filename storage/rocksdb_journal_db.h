// What the journals of rollouts and of `seer serve` have in common: a RocksDB database for records under keys whose numbers are in order.
// Thread-safe.
#pragma once
#include <rocksdb/db.h>

#include <memory>
#include <string>

#include "protocols/chunk.h"
#include "protocols/result.h"
#include "storage/record_bytes.h"

namespace seer {

/// `dir` is the journal's folder, for the message. Codes: those of rocksdb_error().
Error journal_error(const rocksdb::Status& status, const std::string& dir);
/// The error where what the journal is about cannot be read.
Error of_another_build(const std::string& dir);
/// The layout of all records. It goes up with every change of one.
inline constexpr uint64_t kJournalFormat = 2;
/// Opens the database in `path`, or makes it. Errors: those of journal_error(); of_another_build() if it has records of another format.
Result<std::unique_ptr<rocksdb::DB>> open_journal_db(const std::string& path, const std::string& dir);
/// Makes what was written safe from a crash of the machine. Thread-safe, also beside writes. Errors: kIo. Does not use the database: after
/// a failed write RocksDB 7.8 ends the process when its log is to be synced.
Status sync_journal_db(const rocksdb::DB& db, const std::string& dir);

/// 'r', 7 -> "r\0\0\0\7"
template <class... Numbers>
std::string journal_key(char kind, Numbers... numbers) {
  std::string key(1, kind);
  (append_big_endian(key, numbers), ...);
  return key;
}

/// Calls take(record) for each whose key begins so, in order. Errors: those of journal_error() and read_record().
template <class Record, class Take>
Status each_record(rocksdb::DB& db, const std::string& dir, const std::string& begin, Take take) {
  const std::unique_ptr<rocksdb::Iterator> at(db.NewIterator({}));
  for (at->Seek(begin); at->Valid() && at->key().starts_with(begin); at->Next()) {
    SEER_ASSIGN_OR_RETURN(Record record, read_record<Record>(at->value().ToStringView()));
    take(std::move(record));
  }
  if (!at->status().ok()) return journal_error(at->status(), dir);
  return {};
}

/// Appends a part to what a request has so far, whose parts come by first_index. What does not fit after a gap is left out. A request
/// that goes on in another process computes the last token before it again.
void join_committed(const CommittedTokens& part, CommittedTokens& all);

}  // namespace seer
