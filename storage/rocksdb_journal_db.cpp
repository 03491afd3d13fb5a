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
  return std::unique_ptr<rocksdb::DB>(db);
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
