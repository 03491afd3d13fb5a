#include "storage/rocksdb_journal_db.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "protocols/unique_fd.h"
#include "storage/rocksdb_silent_logger.h"
#include "storage/rocksdb_status.h"

namespace seer {
namespace {

constexpr size_t kWriteBufferBytes = 32 << 20;
constexpr const char* kFormatKey = "format";

/// A database without records gets the format.
Status check_format(rocksdb::DB& db, const std::string& dir) {
  const auto ended = [&](const rocksdb::Status& status) { return status.ok() ? Status{} : Status{journal_error(status, dir)}; };
  std::string bytes;
  const rocksdb::Status found = db.Get({}, kFormatKey, &bytes);
  if (found.ok()) return bytes == journal_key('f', kJournalFormat) ? Status{} : Status{of_another_build(dir)};
  if (!found.IsNotFound()) return ended(found);
  const std::unique_ptr<rocksdb::Iterator> all(db.NewIterator({}));
  all->SeekToFirst();
  if (!all->status().ok()) return ended(all->status());
  if (all->Valid()) return of_another_build(dir);
  return ended(db.Put({}, kFormatKey, journal_key('f', kJournalFormat)));
}

}  // namespace

Error journal_error(const rocksdb::Status& status, const std::string& dir) { return rocksdb_error(status, cat("journal ", dir)); }

Error of_another_build(const std::string& dir) {
  return fail(Code::kInvalidArgument, "journal ", dir, " was written by another build of Seer: remove the folder to begin anew");
}

Result<std::unique_ptr<rocksdb::DB>> open_journal_db(const std::string& path, const std::string& dir) {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.write_buffer_size = kWriteBufferBytes;
  options.info_log = std::make_shared<SilentLogger>();
  rocksdb::DB* db = nullptr;
  if (const rocksdb::Status opened = rocksdb::DB::Open(options, path, &db); !opened.ok()) return journal_error(opened, dir);
  std::unique_ptr<rocksdb::DB> journal(db);
  SEER_RETURN_IF_ERROR(check_format(*journal, dir));
  return journal;
}

Status sync_journal_db(const rocksdb::DB& db, const std::string& dir) {
  const auto sync = [&](const std::filesystem::path& path) -> Status {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.get() < 0 && errno == ENOENT) return {};  // RocksDB needs it no longer
    if (file.get() >= 0 && ::fsync(file.get()) == 0) return {};
    return fail(Code::kIo, "journal ", dir, ": syncing ", path.filename().string(), ": ", std::strerror(errno));
  };
  std::error_code error;
  for (std::filesystem::directory_iterator at(db.GetName(), error), end; !error && at != end; at.increment(error))
    if (at->path().extension() == ".log") SEER_RETURN_IF_ERROR(sync(at->path()));
  if (error) return fail(Code::kIo, "journal ", dir, ": ", error.message());
  return sync(db.GetName());
}

void join_committed(const CommittedTokens& part, CommittedTokens& all) {
  if (part.first_index < 0 || part.first_index > std::ssize(all.output.ids)) return;
  all.output.cut(static_cast<size_t>(part.first_index));
  all.output.append(part.output);
}

}  // namespace seer
