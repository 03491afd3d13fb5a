#include "storage/rocksdb_store.h"

#include <rocksdb/cache.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "protocols/cpu_time.h"
#include "protocols/workers.h"
#include "storage/cold_directory.h"
#include "storage/rocksdb_silent_logger.h"
#include "storage/rocksdb_status.h"

// Layout of data/ in the cold directory:
//
//   db/                       the RocksDB database
//     column family "v<version>"
//       key   (16 B)          file number (8 B, big endian) | block number in the file, from 1 (8 B, big endian)
//       value (block_bytes)   the block; empty for the numbers 0 and kLastInFile
//   incoming/<number>.sst     a put being written, before it is moved into db/
//
// The place of a block is known only in memory (`places_`), because the tier does not outlive its process.
// Because keys are numbered by file, files never overlap: each is ingested straight into the last level, nothing is ever
// compacted, a lookup touches one file, and a file without live blocks is deleted whole. Ingesting reads the first and the last
// record of a file, so these are small ones.
namespace seer {
namespace {

using rocksdb::Slice;
using RocksStatus = rocksdb::Status;

constexpr size_t kKeyBytes = 16;
constexpr int kOpenFilesMin = 64;
/// Each file costs later puts and deletions in its column family about 1.5 us.
constexpr size_t kFamilyFilesMax = 1024;
constexpr uint64_t kLastInFile = ~uint64_t{0};
using FileKey = std::array<char, kKeyBytes>;

FileKey file_key(uint64_t file, uint64_t block) {
  FileKey key;
  for (int i = 0; i < 8; ++i) {
    key[i] = static_cast<char>(file >> (56 - 8 * i));
    key[8 + i] = static_cast<char>(block >> (56 - 8 * i));
  }
  return key;
}
Slice slice(const FileKey& key) { return {key.data(), key.size()}; }
Slice slice(std::span<const std::byte> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

Error to_error(const RocksStatus& status, const char* what) { return rocksdb_error(status, cat("cold tier: ", what)); }

Error dropped(WeightVersion version) { return fail(Code::kStale, "cold tier: version ", version, " was dropped"); }

// Files that stay open, without lookups of metadata on disk. The process needs open files for other things.
int open_files_max() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kOpenFilesMin;
  return static_cast<int>(std::clamp<rlim_t>(limit.rlim_cur / 2, kOpenFilesMin, 1 << 20));
}

rocksdb::Options make_options(bool direct_io) {
  rocksdb::Options o;
  o.create_if_missing = true;
  o.compression = rocksdb::kNoCompression;  // KV caches do not compress
  o.use_direct_reads = direct_io;
  o.use_direct_io_for_flush_and_compaction = direct_io;
  o.max_open_files = open_files_max();
  o.max_background_jobs = 2;
  o.disable_auto_compactions = true;
  o.write_buffer_size = 64 << 10;  // not used: everything is ingested
  o.avoid_flush_during_shutdown = true;
  o.manifest_preallocation_size = 64 << 10;  // the default takes 4 MiB of the disk at once
  o.max_manifest_file_size = 128 << 20;      // then a new one begins, without what is gone; a million files of 32 MiB fit
  o.fail_if_options_file_error = false;      // that file is not read again, and what was to be written in it has happened
  o.info_log = std::make_shared<SilentLogger>();
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.block_size = 1;  // each record gets a block of the file of its own
  // Caches nothing, but hands blocks out by reference. Without a cache, or if a read does not fill it, Get() copies each value once more.
  table.block_cache = rocksdb::NewLRUCache(0);
  o.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return o;
}

class RocksdbStore final : public ColdStore {
 public:
  RocksdbStore(const RocksdbStoreConfig& config, std::unique_ptr<ColdDirectory> directory,
               std::unique_ptr<rocksdb::DB> db, rocksdb::Options options);
  ~RocksdbStore() override;

  Status put(std::vector<ColdBlock> blocks, Done done) override;
  Status get(std::vector<ColdBlock> blocks, Done done) override;
  void erase(std::vector<BlockKey> keys) override;
  void drop_versions_below(WeightVersion keep) override;
  ColdStoreStats stats() const override;

 private:
  // A column family is destroyed when the last operation on it ends.
  using Family = std::shared_ptr<rocksdb::ColumnFamilyHandle>;
  struct File {
    Family family;
    WeightVersion version;
    int64_t bytes = 0;
    int64_t live_blocks = 0;
  };
  struct Place {
    uint64_t file = 0, block = 0;
    int64_t bytes = 0;
  };
  // A get, shared by the threads that read parts of it; the one that ends last answers.
  struct Read {
    std::vector<ColdBlock> blocks;
    std::vector<Status> statuses;
    Done done;
    size_t count = 0;  // of blocks: the thread that answers moves `blocks` away while others may still look
    std::atomic<size_t> next{0}, ended{0};
  };
  using Task = std::function<void()>;
  // What frees bytes on disk. One that fails is run again before the next put.
  struct Deletion {
    std::function<RocksStatus()> run;
    int64_t bytes = 0;
  };
  // Of a version. Each takes kFamilyFilesMax files, one family after the other, and is dropped when the last of these is gone.
  struct Families {
    std::map<Family, size_t> files;  // that exist or are being written
    Family last;                     // takes new ones; null: none does yet
    size_t given_to_last = 0;
  };

  void run(Task& task);
  void run_put(std::vector<ColdBlock>& blocks, const Done& done);
  void run_get(Read& read);
  Status get_one(ColdBlock& block);
  Status write_file(uint64_t file, const Family& family, const std::vector<ColdBlock>& blocks,
                    const std::vector<size_t>& chosen);
  std::vector<size_t> choose_blocks(const std::vector<ColdBlock>& blocks, std::vector<Status>& statuses);
  Result<Family> family_of(WeightVersion version);
  bool leave(WeightVersion version, const Family& family);  // REQUIRES: mutex_ held
  void drop_family(Family family, int64_t bytes);
  Status open_operation();
  void close_operation();
  void forget(const Place& place);  // REQUIRES: mutex_ held
  void run_deletion(Deletion& deletion);
  void retry_deletions();

  const RocksdbStoreConfig config_;
  const std::unique_ptr<ColdDirectory> directory_;  // emptied after the database is closed
  const rocksdb::Options options_;
  const std::unique_ptr<rocksdb::DB> db_;
  std::atomic<bool> needs_resume_{false};  // a write failed: the database may refuse writes until Resume()

  std::mutex families_mutex_;  // taken before mutex_; held while a family is created on disk
  mutable std::mutex mutex_;   // guards all below; never held during I/O
  std::map<WeightVersion, Families> families_;
  uint64_t last_family_ = 0;
  std::vector<Deletion> undone_;  // failed
  std::unordered_map<BlockKey, Place> places_;
  std::map<uint64_t, File> files_;
  WeightVersion keep_;
  uint64_t last_file_ = 0;
  int64_t file_bytes_ = 0;    // of files that exist or are being written: bounded by capacity_bytes
  int64_t used_bytes_ = 0;    // of blocks that can be read
  int64_t written_bytes_ = 0, read_bytes_ = 0, cpu_us_ = 0;
  size_t open_operations_ = 0;
  Workers<Task> workers_;  // last: joined before anything they use is destroyed. Writes and deletions are background work
};

RocksdbStore::RocksdbStore(const RocksdbStoreConfig& config, std::unique_ptr<ColdDirectory> directory,
                           std::unique_ptr<rocksdb::DB> db, rocksdb::Options options)
    : config_(config),
      directory_(std::move(directory)),
      options_(std::move(options)),
      db_(std::move(db)),
      workers_({.threads = config_.threads, .background_max = config_.writers_max}, [this](Task& task) { run(task); }) {}

// Queued operations still run, so that each one is answered.
RocksdbStore::~RocksdbStore() { workers_.finish(); }

// ---- the queue ----------------------------------------------------------------------------------------------------

void RocksdbStore::run(Task& task) {
  const int64_t before_us = thread_cpu_ns() / 1000;
  task();
  task = nullptr;
  const int64_t after_us = thread_cpu_ns() / 1000;
  std::lock_guard lock(mutex_);
  cpu_us_ += after_us - before_us;
}

Status RocksdbStore::open_operation() {
  std::lock_guard lock(mutex_);
  if (open_operations_ >= config_.queue_max)
    return fail(Code::kFull, "cold tier: ", open_operations_, " operations are open");
  ++open_operations_;
  return {};
}

void RocksdbStore::close_operation() {
  std::lock_guard lock(mutex_);
  --open_operations_;
}

// ---- put ----------------------------------------------------------------------------------------------------------

Status RocksdbStore::put(std::vector<ColdBlock> blocks, Done done) {
  SEER_RETURN_IF_ERROR(open_operation());
  workers_.put_background([this, blocks = std::move(blocks), done = std::move(done)]() mutable { run_put(blocks, done); });
  return {};
}

void RocksdbStore::run_put(std::vector<ColdBlock>& blocks, const Done& done) {
  retry_deletions();
  std::vector<Status> statuses(blocks.size());
  const std::vector<size_t> chosen = choose_blocks(blocks, statuses);
  if (!chosen.empty()) {
    int64_t bytes = 0;
    for (const size_t i : chosen) bytes += static_cast<int64_t>(blocks[i].bytes.size());
    const WeightVersion version = blocks[chosen.front()].key.version;
    uint64_t file = 0;
    {
      std::lock_guard lock(mutex_);
      file = ++last_file_;
    }
    auto family = family_of(version);
    Status written = family.ok() ? write_file(file, *family, blocks, chosen) : Status(family.error());

    std::lock_guard lock(mutex_);
    if (written.ok() && version < keep_) written = dropped(version);
    if (written.ok()) {
      files_[file] = {*family, version, bytes, static_cast<int64_t>(chosen.size())};
      for (size_t n = 0; n < chosen.size(); ++n) {
        const auto [it, added] = places_.try_emplace(blocks[chosen[n]].key);
        if (!added) forget(it->second);
        it->second = {file, n + 1, static_cast<int64_t>(blocks[chosen[n]].bytes.size())};
      }
      used_bytes_ += bytes;
      written_bytes_ += bytes;
    } else {
      file_bytes_ -= bytes;
      if (family.ok() && leave(version, *family)) drop_family(*family, 0);
      for (const size_t i : chosen) statuses[i] = written;
    }
  }
  close_operation();
  done(std::move(statuses), std::move(blocks));
}

// The blocks that are intact, of the put's version, and fit; the others get their status.
std::vector<size_t> RocksdbStore::choose_blocks(const std::vector<ColdBlock>& blocks, std::vector<Status>& statuses) {
  std::vector<size_t> chosen;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const ColdBlock& b = blocks[i];
    const auto size = static_cast<int64_t>(b.bytes.size());
    if (b.key.version != blocks.front().key.version) {
      statuses[i] = fail(Code::kInvalidArgument, "cold tier: block ", b.key, " in a put of another weight version");
    } else if (crc32c(b.bytes) != b.crc32c) {
      statuses[i] = fail(Code::kCorrupt, "cold tier: block ", b.key, " does not match its checksum before it is written");
    } else {
      std::lock_guard lock(mutex_);
      if (b.key.version < keep_) {
        statuses[i] = dropped(b.key.version);
      } else if (file_bytes_ + size > config_.capacity_bytes) {
        statuses[i] = fail(Code::kFull, "cold tier: ", file_bytes_, " of ", config_.capacity_bytes, " bytes are in use");
      } else {
        file_bytes_ += size;
        chosen.push_back(i);
      }
    }
  }
  return chosen;
}

Status RocksdbStore::write_file(uint64_t file, const Family& family, const std::vector<ColdBlock>& blocks,
                                const std::vector<size_t>& chosen) {
  if (needs_resume_.exchange(false)) {
    if (const RocksStatus s = db_->Resume(); !s.ok()) {
      needs_resume_ = true;
      return to_error(s, "resuming after a failed write");
    }
  }
  const std::string path = cat(directory_->data(), "/incoming/", file, ".sst");
  rocksdb::EnvOptions env_options;
  env_options.use_direct_writes = options_.use_direct_io_for_flush_and_compaction;
  // Each file gets new memory for its buffer: the page faults of 8 MiB cost more than larger writes save.
  env_options.writable_file_max_buffer_size = 1 << 20;
  rocksdb::SstFileWriter writer(env_options, options_, family.get());
  RocksStatus s = writer.Open(path);
  const Slice empty;
  if (s.ok()) s = writer.Put(slice(file_key(file, 0)), empty);
  for (size_t n = 0; n < chosen.size() && s.ok(); ++n)
    s = writer.Put(slice(file_key(file, n + 1)), slice(blocks[chosen[n]].bytes));
  if (s.ok()) s = writer.Put(slice(file_key(file, kLastInFile)), empty);
  if (s.ok()) s = writer.Finish();
  if (s.ok()) {
    rocksdb::IngestExternalFileOptions ingest;
    ingest.move_files = true;
    ingest.write_global_seqno = false;  // would write into the file a second time
    s = db_->IngestExternalFile(family.get(), {path}, ingest);
    if (!s.ok()) needs_resume_ = true;
  }
  ::unlink(path.c_str());  // the database has its own link; after an error nothing else needs it
  return s.ok() ? Status{} : Status(to_error(s, "writing blocks"));
}

Result<RocksdbStore::Family> RocksdbStore::family_of(WeightVersion version) {
  std::lock_guard creating(families_mutex_);
  {
    std::lock_guard lock(mutex_);
    if (version < keep_) return dropped(version);
    Families& of = families_[version];
    if (of.last && of.given_to_last < kFamilyFilesMax) {
      ++of.given_to_last;
      ++of.files[of.last];
      return of.last;
    }
  }
  rocksdb::ColumnFamilyHandle* handle = nullptr;
  if (const RocksStatus s = db_->CreateColumnFamily(options_, cat("v", version, ".", ++last_family_), &handle); !s.ok()) {
    needs_resume_ = true;
    return to_error(s, "creating a column family");
  }
  Family family(handle, [db = db_.get()](rocksdb::ColumnFamilyHandle* h) { (void)db->DestroyColumnFamilyHandle(h); });
  {
    std::lock_guard lock(mutex_);
    if (version >= keep_) {
      Families& of = families_[version];
      const Family before = std::exchange(of.last, family);
      if (const auto full = of.files.find(before); full != of.files.end() && full->second == 0) {
        of.files.erase(full);
        drop_family(before, 0);
      }
      of.files[family] = of.given_to_last = 1;
      return family;
    }
  }
  (void)db_->DropColumnFamily(handle);  // the version was dropped before this family was known
  return dropped(version);
}

// A file of this family is gone, or was not written. True: it was the last one, and the family is to be dropped.
bool RocksdbStore::leave(WeightVersion version, const Family& family) {
  const auto of = families_.find(version);
  if (of == families_.end()) return false;  // the version was dropped
  const auto at = of->second.files.find(family);
  if (--at->second > 0 || family == of->second.last) return false;
  of->second.files.erase(at);
  return true;
}

// Its files are deleted when the last operation on them ends.
void RocksdbStore::drop_family(Family family, int64_t bytes) {
  workers_.put_background([this, family = std::move(family), bytes] {
    Deletion deletion{[this, family] { return db_->DropColumnFamily(family.get()); }, bytes};
    run_deletion(deletion);
  });
}

// ---- get ----------------------------------------------------------------------------------------------------------

Status RocksdbStore::get(std::vector<ColdBlock> blocks, Done done) {
  SEER_RETURN_IF_ERROR(open_operation());
  auto read = std::make_shared<Read>();
  read->blocks = std::move(blocks);
  read->count = read->blocks.size();
  read->statuses.resize(read->count);
  read->done = std::move(done);
  const size_t readers = std::clamp<size_t>(read->count, 1, static_cast<size_t>(config_.threads));
  for (size_t i = 0; i < readers; ++i) workers_.put([this, read] { run_get(*read); });
  return {};
}

void RocksdbStore::run_get(Read& read) {
  const size_t count = read.count;
  size_t mine = 0;
  for (size_t i; (i = read.next.fetch_add(1)) < count; ++mine) read.statuses[i] = get_one(read.blocks[i]);
  // An empty get is answered by its only reader. Otherwise exactly one reader brings `ended` to `count`.
  if (count > 0 && (mine == 0 || read.ended.fetch_add(mine) + mine < count)) return;
  close_operation();
  read.done(std::move(read.statuses), std::move(read.blocks));
}

Status RocksdbStore::get_one(ColdBlock& block) {
  Place place;
  Family family;
  {
    std::lock_guard lock(mutex_);
    const auto it = places_.find(block.key);
    if (it == places_.end()) return fail(Code::kNotFound, "cold tier: no block ", block.key);
    place = it->second;
    family = files_.at(place.file).family;
  }
  rocksdb::ReadOptions options;
  options.verify_checksums = true;
  rocksdb::PinnableSlice value;
  const FileKey key = file_key(place.file, place.block);
  if (const RocksStatus s = db_->Get(options, family.get(), slice(key), &value); !s.ok())
    return to_error(s, "reading a block");
  if (value.size() != block.bytes.size())
    return fail(Code::kInvalidArgument, "cold tier: block ", block.key, " has ", value.size(), " bytes, not ",
                block.bytes.size());
  block.crc32c = copy_and_crc32c(block.bytes, reinterpret_cast<const std::byte*>(value.data()));
  std::lock_guard lock(mutex_);
  read_bytes_ += static_cast<int64_t>(value.size());
  return {};
}

// ---- erase and drop -----------------------------------------------------------------------------------------------

void RocksdbStore::erase(std::vector<BlockKey> keys) {
  std::lock_guard lock(mutex_);
  for (const BlockKey& key : keys) {
    const auto it = places_.find(key);
    if (it == places_.end()) continue;
    forget(it->second);
    places_.erase(it);
  }
}

void RocksdbStore::forget(const Place& place) {
  const auto it = files_.find(place.file);
  File& file = it->second;
  used_bytes_ -= place.bytes;
  if (--file.live_blocks > 0) return;
  const File gone = std::move(file);
  files_.erase(it);
  if (leave(gone.version, gone.family)) return drop_family(gone.family, gone.bytes);
  workers_.put_background([this, number = place.file, family = gone.family, bytes = gone.bytes] {
    Deletion deletion{[this, number, family] {
                        const FileKey first = file_key(number, 0), last = file_key(number, kLastInFile);
                        const Slice from = slice(first), to = slice(last);
                        const RocksStatus s = rocksdb::DeleteFilesInRange(db_.get(), family.get(), &from, &to);
                        return s.IsColumnFamilyDropped() ? RocksStatus::OK() : s;  // its files go with it
                      },
                      bytes};
    run_deletion(deletion);
  });
}

void RocksdbStore::drop_versions_below(WeightVersion keep) {
  std::lock_guard lock(mutex_);
  keep_ = std::max(keep_, keep);
  std::erase_if(places_, [this](const auto& entry) {
    if (entry.first.version >= keep_) return false;
    used_bytes_ -= entry.second.bytes;
    return true;
  });
  std::map<Family, int64_t> dropped_bytes;
  while (!families_.empty() && families_.begin()->first < keep_) {
    for (const auto& [family, files] : families_.begin()->second.files) dropped_bytes[family] = 0;
    families_.erase(families_.begin());
  }
  std::erase_if(files_, [&](const auto& entry) {
    if (entry.second.version >= keep_) return false;
    dropped_bytes[entry.second.family] += entry.second.bytes;
    return true;
  });
  for (const auto& [family, bytes] : dropped_bytes) drop_family(family, bytes);
}

void RocksdbStore::run_deletion(Deletion& deletion) {
  const RocksStatus s = deletion.run();
  if (!s.ok()) needs_resume_ = true;
  std::lock_guard lock(mutex_);
  if (s.ok())
    file_bytes_ -= deletion.bytes;
  else
    undone_.push_back(std::move(deletion));
}

void RocksdbStore::retry_deletions() {
  std::vector<Deletion> again;
  {
    std::lock_guard lock(mutex_);
    again.swap(undone_);
  }
  if (again.empty()) return;
  if (needs_resume_.exchange(false) && !db_->Resume().ok()) needs_resume_ = true;
  for (Deletion& deletion : again) run_deletion(deletion);
}

ColdStoreStats RocksdbStore::stats() const {
  std::lock_guard lock(mutex_);
  return {.used_bytes = used_bytes_,
          .capacity_bytes = config_.capacity_bytes,
          .written_bytes = written_bytes_,
          .read_bytes = read_bytes_,
          .cpu_us = cpu_us_};
}

}  // namespace

Result<std::unique_ptr<ColdStore>> open_rocksdb_store(const RocksdbStoreConfig& config) {
  if (config.threads < 2 || config.writers_max < 1 || config.writers_max >= config.threads)
    return fail(Code::kInvalidArgument, "cold tier: writers_max = ", config.writers_max, " must be at least 1 and below ",
                "threads = ", config.threads);
  SEER_ASSIGN_OR_RETURN(auto directory, ColdDirectory::take(config.dir));
  const bool direct_io = directory->supports_direct_io();
  if (!direct_io && config.log)
    config.log(cat("cold_direct_io_off dir=", config.dir, " reason=\"the file system does not support O_DIRECT\""));
  const rocksdb::Options options = make_options(direct_io);
  rocksdb::DB* db = nullptr;
  const RocksStatus s = rocksdb::DB::Open(options, directory->data() + "/db", &db);
  if (!s.ok()) return fail(Code::kIo, "cannot open the cold tier in ", config.dir, ": ", s.ToString());
  std::unique_ptr<rocksdb::DB> owned(db);
  if (const auto made = rocksdb::Env::Default()->CreateDir(directory->data() + "/incoming"); !made.ok())
    return fail(Code::kIo, "cannot write to the cold tier in ", config.dir, ": ", made.ToString());
  return std::unique_ptr<ColdStore>(
      std::make_unique<RocksdbStore>(config, std::move(directory), std::move(owned), options));
}

}  // namespace seer
