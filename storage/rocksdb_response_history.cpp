#include "storage/rocksdb_response_history.h"

#include <rocksdb/cache.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "protocols/workers.h"
#include "storage/directory_lock.h"
#include "storage/response_history_record.h"
#include "storage/rocksdb_silent_logger.h"
#include "storage/rocksdb_status.h"

// Layout of the directory:
//
//   seer-response-history.lock    locked while a process uses the directory
//   db/                           the RocksDB database
//     column family "default"     response key -> response record
//     column family "prompts"     prompt key -> prompt record: the list of its responses
//
// A put is one write batch over both families, so they agree whenever the process dies. The write-ahead log is not
// synced: losing the machine may lose the last puts, which only costs drafts.
namespace seer {
namespace {

using RocksStatus = rocksdb::Status;

constexpr DirectoryKind kDirectoryKind = {
    .name = "response history directory", .lock_file = "seer-response-history.lock", .data = "db"};
constexpr const char* kPromptsFamily = "prompts";
constexpr uint32_t kRecordBlockBytes = 64 << 10;  // compressed as one; smaller blocks take a tenth more space
constexpr size_t kWriteBufferBytes = 16 << 20;
constexpr size_t kResponsesMax = 4096, kResponseTokensMax = 1 << 28;  // so that index and record size fit their fields
constexpr size_t kCacheBytes = 8 << 20;  // responses of a prompt share blocks: each is read once per get

Error to_error(const RocksStatus& status, const char* what) { return rocksdb_error(status, cat("response history: ", what)); }

rocksdb::Options make_options() {
  rocksdb::Options o;
  o.create_if_missing = true;
  o.create_missing_column_families = true;
  o.write_buffer_size = kWriteBufferBytes;
  o.max_total_wal_size = 2 * kWriteBufferBytes;
  o.info_log = std::make_shared<SilentLogger>();
  o.max_open_files = 256;
  const auto has = rocksdb::GetSupportedCompressions();
  o.compression = rocksdb::kNoCompression;
  for (const auto compression : {rocksdb::kLZ4Compression, rocksdb::kZSTD})
    if (std::find(has.begin(), has.end(), compression) != has.end()) o.compression = compression;
  rocksdb::BlockBasedTableOptions table;
  table.block_size = kRecordBlockBytes;
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.block_cache = rocksdb::NewLRUCache(kCacheBytes);
  o.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return o;
}

/// Closes the families before the database.
struct Database {
  std::unique_ptr<rocksdb::DB> db;
  std::vector<rocksdb::ColumnFamilyHandle*> families;
  Database() = default;
  Database(Database&& other) noexcept : db(std::move(other.db)), families(std::exchange(other.families, {})) {}
  ~Database() {
    for (auto* family : families) (void)db->DestroyColumnFamilyHandle(family);
  }
  rocksdb::ColumnFamilyHandle* responses() const { return families[0]; }
  rocksdb::ColumnFamilyHandle* prompts() const { return families[1]; }
};

class RocksdbResponseHistory final : public ResponseHistory {
 public:
  RocksdbResponseHistory(const RocksdbResponseHistoryConfig& config, DirectoryLock lock, Database database)
      : config_(config), lock_(std::move(lock)), database_(std::move(database)) {}
  ~RocksdbResponseHistory() override;
  /// Reads the prompts on disk and starts the thread.
  Status start();

  Status put(PrefixHash prompt, uint64_t iteration, std::vector<std::vector<int32_t>> responses,
             PutDone done) override;
  Status get(PrefixHash prompt, int64_t tokens_max, GetDone done) override;
  ResponseHistoryStats stats() const override;

 private:
  using Task = std::function<void()>;
  struct Prompt {
    uint64_t put_number = 0;
    int64_t bytes = 0;
  };

  Status add_task(Task task);
  void run(Task& task);
  Status run_put(PrefixHash prompt, uint64_t iteration, const std::vector<std::vector<int32_t>>& responses);
  Result<std::vector<PastResponse>> run_get(PrefixHash prompt, int64_t tokens_max);
  Result<PromptRecord> read_prompt(PrefixHash prompt);
  void remove(PrefixHash prompt, rocksdb::WriteBatch& batch) const;
  Status write(rocksdb::WriteBatch& batch);
  std::vector<PrefixHash> oldest_beyond(int64_t used_bytes, const PrefixHash* but) const;
  void learn(PrefixHash prompt, const PromptRecord& record);
  void forget(PrefixHash prompt);
  void count(int64_t ResponseHistoryStats::*what, int64_t by = 1);
  rocksdb::DB& db() const { return *database_.db; }

  const RocksdbResponseHistoryConfig config_;
  const DirectoryLock lock_;  // released after the database is closed
  const Database database_;

  // Used by the thread only (and by start(), before it exists).
  std::map<PrefixHash, Prompt> prompts_;
  std::map<uint64_t, PrefixHash> by_put_;  // put number of each prompt, the oldest first
  int64_t used_bytes_ = 0;
  uint64_t last_put_ = 0;
  bool needs_resume_ = false;  // a write failed: the database may refuse writes until Resume()

  mutable std::mutex mutex_;  // guards all below; never held during I/O
  size_t open_operations_ = 0;
  ResponseHistoryStats stats_;
  std::optional<Workers<Task>> thread_;  // set by start(). Last: joined before anything it uses is destroyed
};

/// Bytes that a response takes, its entry in the prompt's record included.
int64_t stored_bytes(const PromptRecord::Response& response) { return int64_t{response.bytes} + kKeptBytes; }

// ---- the queue ----------------------------------------------------------------------------------------------------

// Queued operations still run, so that each one is answered.
RocksdbResponseHistory::~RocksdbResponseHistory() {
  if (thread_) thread_->finish();
}

Status RocksdbResponseHistory::add_task(Task task) {
  {
    std::lock_guard lock(mutex_);
    if (open_operations_ >= config_.queue_max) {
      ++stats_.refused;
      return fail(Code::kFull, "response history: ", open_operations_, " operations are open");
    }
    ++open_operations_;
  }
  thread_->put(std::move(task));
  return {};
}

void RocksdbResponseHistory::run(Task& task) {
  task();
  task = nullptr;
  std::lock_guard lock(mutex_);
  --open_operations_;
}

Status RocksdbResponseHistory::put(PrefixHash prompt, uint64_t iteration, std::vector<std::vector<int32_t>> responses,
                                   PutDone done) {
  if (responses.size() > config_.responses_max) responses.resize(config_.responses_max);
  for (auto& tokens : responses)
    if (tokens.size() > config_.response_tokens_max) tokens.resize(config_.response_tokens_max);
  return add_task([this, prompt, iteration, responses = std::move(responses), done = std::move(done)] {
    Status status = run_put(prompt, iteration, responses);
    if (!status.ok()) count(&ResponseHistoryStats::failed_puts);
    if (done) done(std::move(status));
  });
}

Status RocksdbResponseHistory::get(PrefixHash prompt, int64_t tokens_max, GetDone done) {
  return add_task([this, prompt, tokens_max, done = std::move(done)] { done(run_get(prompt, tokens_max)); });
}

ResponseHistoryStats RocksdbResponseHistory::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void RocksdbResponseHistory::count(int64_t ResponseHistoryStats::*what, int64_t by) {
  std::lock_guard lock(mutex_);
  stats_.*what += by;
}

// ---- put ----------------------------------------------------------------------------------------------------------

Status RocksdbResponseHistory::run_put(PrefixHash prompt, uint64_t iteration,
                                       const std::vector<std::vector<int32_t>>& responses) {
  rocksdb::WriteBatch batch;
  PromptRecord before;
  if (prompts_.contains(prompt)) {
    if (auto found = read_prompt(prompt); found.ok())
      before = *std::move(found);
    else
      remove(prompt, batch);  // its old responses are no longer listed anywhere
  }
  std::vector<PromptRecord::Response> newest_first;
  for (const auto& response : before.responses)
    if (response.iteration > iteration) newest_first.push_back(response);
  for (size_t i = 0; i < responses.size(); ++i) newest_first.push_back({iteration, static_cast<uint16_t>(i), 0});
  for (const auto& response : before.responses)
    if (response.iteration < iteration) newest_first.push_back(response);

  // Keep the newest that fit.
  PromptRecord now = {.put_number = last_put_ + 1, .responses = {}};
  int64_t bytes = 0, tokens = 0;
  for (auto response : newest_first) {
    if (now.responses.size() == config_.responses_max) break;
    std::string key, record;
    if (response.iteration == iteration) {
      key = to_bytes(ResponseKey{prompt, iteration, response.index});
      record = encode_response(key, responses[response.index]);
      response.bytes = static_cast<uint32_t>(record.size());
    }
    if (bytes + stored_bytes(response) > config_.bytes_max) break;
    bytes += stored_bytes(response);
    now.responses.push_back(response);
    if (response.iteration != iteration) continue;
    batch.Put(database_.responses(), key, record);
    tokens += static_cast<int64_t>(responses[response.index].size());
  }

  const auto is_kept = [&](const PromptRecord::Response& a) {
    return std::any_of(now.responses.begin(), now.responses.end(),
                       [&](const auto& b) { return a.iteration == b.iteration && a.index == b.index; });
  };
  for (const auto& response : before.responses)
    if (!is_kept(response))
      batch.Delete(database_.responses(), to_bytes(ResponseKey{prompt, response.iteration, response.index}));
  if (now.responses.empty())
    batch.Delete(database_.prompts(), to_bytes(prompt));
  else
    batch.Put(database_.prompts(), to_bytes(prompt), encode_prompt(prompt, now));
  const auto known = prompts_.find(prompt);
  const std::vector<PrefixHash> surplus =
      oldest_beyond(used_bytes_ - (known == prompts_.end() ? 0 : known->second.bytes) + bytes, &prompt);
  for (const PrefixHash oldest : surplus) remove(oldest, batch);
  SEER_RETURN_IF_ERROR(write(batch));

  for (const PrefixHash oldest : surplus) forget(oldest);
  last_put_ = now.put_number;
  forget(prompt);
  if (!now.responses.empty()) learn(prompt, now);
  std::lock_guard lock(mutex_);
  stats_.prompts = static_cast<int64_t>(prompts_.size());
  stats_.used_bytes = used_bytes_;
  stats_.put_tokens += tokens;
  stats_.dropped_prompts += static_cast<int64_t>(surplus.size());
  return {};
}

/// The oldest prompts, to be dropped so that used_bytes falls to bytes_max.
std::vector<PrefixHash> RocksdbResponseHistory::oldest_beyond(int64_t used_bytes, const PrefixHash* but) const {
  std::vector<PrefixHash> surplus;
  for (const auto& [put_number, prompt] : by_put_) {
    if (used_bytes <= config_.bytes_max) break;
    if (but != nullptr && prompt == *but) continue;
    used_bytes -= prompts_.at(prompt).bytes;
    surplus.push_back(prompt);
  }
  return surplus;
}

/// Deletes all keys of a prompt, whether its record lists them or not.
void RocksdbResponseHistory::remove(PrefixHash prompt, rocksdb::WriteBatch& batch) const {
  const std::string first = to_bytes(prompt);
  const std::string behind = first + std::string(sizeof(uint64_t) + sizeof(uint16_t) + 1, '\xff');
  batch.Delete(database_.prompts(), first);
  batch.DeleteRange(database_.responses(), first, behind);
}

Status RocksdbResponseHistory::write(rocksdb::WriteBatch& batch) {
  if (needs_resume_) {
    if (const RocksStatus s = db().Resume(); !s.ok()) return to_error(s, "resuming after a failed write");
    needs_resume_ = false;
  }
  if (const RocksStatus s = db().Write(rocksdb::WriteOptions(), &batch); !s.ok()) {
    needs_resume_ = true;
    return to_error(s, "writing");
  }
  return {};
}

void RocksdbResponseHistory::learn(PrefixHash prompt, const PromptRecord& record) {
  int64_t bytes = 0;
  for (const auto& response : record.responses) bytes += stored_bytes(response);
  prompts_[prompt] = {record.put_number, bytes};
  by_put_[record.put_number] = prompt;
  used_bytes_ += bytes;
}

void RocksdbResponseHistory::forget(PrefixHash prompt) {
  const auto known = prompts_.find(prompt);
  if (known == prompts_.end()) return;
  used_bytes_ -= known->second.bytes;
  by_put_.erase(known->second.put_number);
  prompts_.erase(known);
}

// ---- get ----------------------------------------------------------------------------------------------------------

Result<std::vector<PastResponse>> RocksdbResponseHistory::run_get(PrefixHash prompt, int64_t tokens_max) {
  std::vector<PastResponse> found;
  if (!prompts_.contains(prompt)) return found;
  Result<PromptRecord> record = read_prompt(prompt);
  if (!record.ok()) return found;  // counted; the next put of the prompt writes a new one
  int64_t left = tokens_max, skipped = 0;
  for (const PromptRecord::Response& response : record->responses) {
    if (left <= 0) break;
    const std::string key = to_bytes(ResponseKey{prompt, response.iteration, response.index});
    rocksdb::PinnableSlice bytes;
    const RocksStatus s = db().Get(rocksdb::ReadOptions(), database_.responses(), key, &bytes);
    auto tokens = s.ok() ? decode_response(key, bytes.ToStringView(), config_.vocab_tokens)
                         : Result<std::vector<int32_t>>(to_error(s, "reading"));
    if (!tokens.ok()) {
      ++skipped;
      continue;
    }
    if (static_cast<int64_t>(tokens->size()) > left) tokens->resize(static_cast<size_t>(left));
    left -= static_cast<int64_t>(tokens->size());
    found.push_back({response.iteration, *std::move(tokens)});
  }
  std::lock_guard lock(mutex_);
  stats_.skipped_records += skipped;
  stats_.got_tokens += tokens_max - left;
  return found;
}

Result<PromptRecord> RocksdbResponseHistory::read_prompt(PrefixHash prompt) {
  rocksdb::PinnableSlice bytes;
  const RocksStatus s = db().Get(rocksdb::ReadOptions(), database_.prompts(), to_bytes(prompt), &bytes);
  auto record = s.ok() ? decode_prompt(prompt, bytes.ToStringView()) : Result<PromptRecord>(to_error(s, "reading"));
  if (!record.ok()) count(&ResponseHistoryStats::skipped_records);
  return record;
}

// ---- open ---------------------------------------------------------------------------------------------------------

Status RocksdbResponseHistory::start() {
  rocksdb::WriteBatch batch;
  {
    const std::unique_ptr<rocksdb::Iterator> at(db().NewIterator(rocksdb::ReadOptions(), database_.prompts()));
    for (at->SeekToFirst(); at->Valid(); at->Next()) {
      const auto prompt = decode_prompt_key(at->key().ToStringView());
      const auto record = prompt.ok() ? decode_prompt(*prompt, at->value().ToStringView())
                                      : Result<PromptRecord>(prompt.error());
      if (record.ok()) {
        learn(*prompt, *record);
        last_put_ = std::max(last_put_, record->put_number);
        continue;
      }
      ++stats_.skipped_records;
      batch.Delete(database_.prompts(), at->key());
      if (prompt.ok()) remove(*prompt, batch);
    }
    if (!at->status().ok()) return to_error(at->status(), "reading the prompts");
  }
  const std::vector<PrefixHash> surplus = oldest_beyond(used_bytes_, nullptr);
  for (const PrefixHash oldest : surplus) {
    remove(oldest, batch);
    forget(oldest);
  }
  if (batch.Count() > 0) SEER_RETURN_IF_ERROR(write(batch));
  stats_.prompts = static_cast<int64_t>(prompts_.size());
  stats_.used_bytes = used_bytes_;
  stats_.dropped_prompts = static_cast<int64_t>(surplus.size());
  thread_.emplace(WorkersConfig{}, [this](Task& task) { run(task); });
  return {};
}

}  // namespace

Result<std::unique_ptr<ResponseHistory>> open_rocksdb_response_history(const RocksdbResponseHistoryConfig& config) {
  SEER_CHECK(config.bytes_max > 0, config.bytes_max);
  SEER_CHECK(config.responses_max > 0 && config.responses_max <= kResponsesMax, config.responses_max);
  SEER_CHECK(config.response_tokens_max > 0 && config.response_tokens_max <= kResponseTokensMax,
             config.response_tokens_max);
  SEER_ASSIGN_OR_RETURN(DirectoryLock lock, DirectoryLock::take(config.dir, kDirectoryKind));
  const auto unreadable = [&](const std::string& why) {
    return fail(Code::kIo, "cannot open the response history in ", config.dir, " (", why,
                "); remove the directory to begin a new one");
  };
  const rocksdb::Options options = make_options();
  Database database;
  rocksdb::DB* db = nullptr;
  const RocksStatus s = rocksdb::DB::Open(options, config.dir + "/" + kDirectoryKind.data,
                                          {{rocksdb::kDefaultColumnFamilyName, options}, {kPromptsFamily, options}},
                                          &database.families, &db);
  if (!s.ok()) return unreadable(s.ToString());
  database.db.reset(db);
  auto history = std::make_unique<RocksdbResponseHistory>(config, std::move(lock), std::move(database));
  if (const Status started = history->start(); !started.ok()) return unreadable(started.error().detail);
  return std::unique_ptr<ResponseHistory>(std::move(history));
}

}  // namespace seer
