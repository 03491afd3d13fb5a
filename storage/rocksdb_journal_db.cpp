#include "storage/rocksdb_journal_db.h"

#include <algorithm>
#include <memory>

#include "storage/rocksdb_silent_logger.h"

namespace seer {
namespace {

constexpr size_t kWriteBufferBytes = 32 << 20;

}  // namespace

Error journal_error(const rocksdb::Status& status, const std::string& dir) {
  const Code code = status.IsNoSpace() ? Code::kFull : status.IsCorruption() ? Code::kCorrupt : Code::kIo;
  return fail(code, "journal ", dir, ": ", status.ToString());
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

void append_part(const CommittedTokens& part, CommittedTokens& all) {
  if (part.first_index > std::ssize(all.tokens)) return;
  all.tokens.resize(static_cast<size_t>(part.first_index));
  all.logprobs.resize(std::min(all.logprobs.size(), all.tokens.size()));
  all.tokens.insert(all.tokens.end(), part.tokens.begin(), part.tokens.end());
  all.logprobs.insert(all.logprobs.end(), part.logprobs.begin(), part.logprobs.end());
  all.kept_ids.cut(all.tokens.size() - part.tokens.size());
  all.kept_ids.append(part.kept_ids);
}

}  // namespace seer
