// The real RocksDB, on the disk of the build folder. Left out with the store if RocksDB is not installed.
#if defined(SEER_HAVE_ROCKSDB)
#include "storage/rocksdb_store.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

#include "protocols/hash.h"
#include "storage/kv_tiers.h"

using namespace seer;
namespace fs = std::filesystem;

#if defined(__SANITIZE_THREAD__)
// The system's RocksDB is not instrumented: ThreadSanitizer sees what it frees but not the atomic counts that make this
// safe (Version::Unref, Arena::~Arena). Races of our own are still seen: our threads meet outside of the library.
extern "C" const char* __tsan_default_suppressions() { return "race:librocksdb.so\n"; }
#endif

namespace {

/// A directory of its own for each test, removed at the end.
struct TempDir {
  TempDir() {
    std::string name = (fs::temp_directory_path() / "seer_cold_XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~TempDir() { fs::remove_all(path); }
  std::string path;
};

/// As the newest file of options of a database says.
int64_t column_families(const std::string& database) {
  std::string newest;
  for (const auto& entry : fs::directory_iterator(database))
    if (const std::string name = entry.path().filename(); name.starts_with("OPTIONS-")) newest = std::max(newest, name);
  std::ifstream options(database + "/" + newest);
  int64_t found = 0;
  for (std::string line; std::getline(options, line);) found += line.starts_with("[CFOptions ") ? 1 : 0;
  return found;
}

/// While it lives, this process can add to no file.
struct NoFileGrows {
  NoFileGrows() {
    ::signal(SIGXFSZ, SIG_IGN);
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    rlimit none = before;
    none.rlim_cur = 1;
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &none) == 0);
  }
  ~NoFileGrows() { ::setrlimit(RLIMIT_FSIZE, &before); }
  rlimit before{};
};

BlockKey key(uint64_t n, uint64_t version = 1) { return {{version}, 9, {mix64(n), n}}; }

/// By all threads of this process, from files.
int64_t bytes_read_here() {
  std::ifstream io("/proc/self/io");
  std::string name;
  int64_t bytes = 0;
  io >> name >> bytes;
  REQUIRE(name == "rchar:");
  return bytes;
}

struct Payload {
  BlockKey key;
  std::vector<std::byte> bytes;
};
Payload make_block(uint64_t n, size_t size, uint64_t version = 1) {
  Payload block{key(n, version), std::vector<std::byte>(size)};
  for (size_t i = 0; i + 8 <= size; i += 8) {
    const uint64_t word = mix64(n * 1'000'003 + i + version);
    std::memcpy(&block.bytes[i], &word, 8);
  }
  return block;
}
std::vector<Payload> make_blocks(uint64_t first, size_t count, size_t size, uint64_t version = 1) {
  std::vector<Payload> blocks;
  for (size_t i = 0; i < count; ++i) blocks.push_back(make_block(first + i, size, version));
  return blocks;
}

std::vector<Status> put(ColdStore& store, std::vector<Payload>& blocks) {
  std::vector<ColdBlock> cold;
  for (Payload& b : blocks) cold.push_back({b.key, b.bytes, crc32c(b.bytes)});
  std::promise<std::vector<Status>> promise;
  const Status accepted =
      store.put(cold, [&](std::vector<Status> s, std::vector<ColdBlock>) { promise.set_value(std::move(s)); });
  REQUIRE(accepted.ok());
  return promise.get_future().get();
}
std::vector<Status> get(ColdStore& store, std::vector<Payload>& blocks) {
  std::vector<ColdBlock> cold;
  for (Payload& b : blocks) cold.push_back({b.key, b.bytes, 0});
  std::promise<std::vector<Status>> promise;
  std::vector<uint32_t> crcs;
  const Status accepted = store.get(cold, [&](std::vector<Status> s, std::vector<ColdBlock> read) {
    for (const ColdBlock& b : read) crcs.push_back(b.crc32c);
    promise.set_value(std::move(s));
  });
  REQUIRE(accepted.ok());
  auto statuses = promise.get_future().get();
  for (size_t i = 0; i < blocks.size(); ++i)
    if (statuses[i].ok()) CHECK(crcs[i] == crc32c(blocks[i].bytes));
  return statuses;
}
size_t count_ok(const std::vector<Status>& statuses) {
  return static_cast<size_t>(std::count_if(statuses.begin(), statuses.end(), [](const Status& s) { return s.ok(); }));
}
/// Reads the blocks into other memory and compares.
size_t count_same(ColdStore& store, const std::vector<Payload>& blocks) {
  std::vector<Payload> read;
  for (const Payload& b : blocks) read.push_back({b.key, std::vector<std::byte>(b.bytes.size())});
  const auto statuses = get(store, read);
  size_t same = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!statuses[i].ok()) continue;
    REQUIRE(read[i].bytes == blocks[i].bytes);
    ++same;
  }
  return same;
}
int64_t disk_bytes(const std::string& dir) {
  int64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(dir)) {
    struct stat st{};
    if (::stat(entry.path().c_str(), &st) == 0 && S_ISREG(st.st_mode)) bytes += st.st_blocks * 512;
  }
  return bytes;
}
std::unique_ptr<ColdStore> open_store(const std::string& dir, int64_t capacity_bytes = 1 << 30) {
  auto store = open_rocksdb_store({.dir = dir, .capacity_bytes = capacity_bytes});
  REQUIRE_MESSAGE(store.ok(), (store.ok() ? "" : store.error().detail));
  return std::move(*store);
}
template <class F>
bool eventually(F&& condition) {  // what the store does behind an answer: deleting files
  for (int i = 0; i < 30'000; ++i) {  // 5 minutes of a disk that others keep busy
    if (condition()) return true;
    usleep(10'000);
  }
  return false;
}

}  // namespace

TEST_CASE("rocksdb store: blocks come back bit by bit, in every size, over many puts") {
  TempDir dir;
  auto store = open_store(dir.path);
  std::vector<Payload> all;
  uint64_t n = 0;
  for (const size_t size : {64, 4096, 5000, 65536, 1 << 20}) {
    for (int batch = 0; batch < 3; ++batch) {
      auto blocks = make_blocks(n, 5, size);
      n += 5;
      CHECK(count_ok(put(*store, blocks)) == 5);
      for (auto& b : blocks) all.push_back(std::move(b));
    }
  }
  CHECK(count_same(*store, all) == all.size());
  int64_t bytes = 0;
  for (const auto& b : all) bytes += static_cast<int64_t>(b.bytes.size());
  CHECK(store->stats().used_bytes == bytes);
  CHECK(store->stats().written_bytes == bytes);
  CHECK(store->stats().read_bytes == bytes);
  CHECK(store->stats().cpu_us > 0);
}

TEST_CASE("rocksdb store: nothing that was put is read back before somebody asks for it") {
  TempDir dir;
  auto store = open_store(dir.path);
  auto blocks = make_blocks(0, 5, 1 << 20);
  const int64_t before = bytes_read_here();
  REQUIRE(count_ok(put(*store, blocks)) == 5);
  CHECK(bytes_read_here() - before < 1 << 20);  // the end of the file, which describes it
  CHECK(count_same(*store, blocks) == 5);
  CHECK(bytes_read_here() - before > 5 << 20);
}

TEST_CASE("rocksdb store: unknown and erased blocks are not found, and a wrong size is refused") {
  TempDir dir;
  auto store = open_store(dir.path);
  auto blocks = make_blocks(0, 3, 4096);
  CHECK(count_ok(put(*store, blocks)) == 3);
  store->erase({blocks[1].key, key(77)});
  auto wrong = make_blocks(0, 3, 4096);
  wrong[0].bytes.resize(100);
  const auto statuses = get(*store, wrong);
  CHECK(statuses[0].error().code == Code::kInvalidArgument);
  CHECK(statuses[1].error().code == Code::kNotFound);
  CHECK(statuses[2].ok());
  CHECK(store->stats().used_bytes == 2 * 4096);
  auto again = make_blocks(1, 1, 4096);
  CHECK(count_ok(put(*store, again)) == 1);
  CHECK(count_same(*store, blocks) == 3);
}

TEST_CASE("rocksdb store: a put whose blocks are all erased gives its disk space back") {
  TempDir dir;
  auto store = open_store(dir.path, 17 << 20);
  for (int round = 0; round < 6; ++round) {  // without reclaiming, the third round would not fit
    auto blocks = make_blocks(static_cast<uint64_t>(round) * 100, 8, 1 << 20);
    CHECK(count_ok(put(*store, blocks)) == 8);
    CHECK(disk_bytes(dir.path) < 10 << 20);
    std::vector<BlockKey> keys;
    for (const auto& b : blocks) keys.push_back(b.key);
    store->erase(keys);
    CHECK(store->stats().used_bytes == 0);
    CHECK(eventually([&] { return disk_bytes(dir.path) < 1 << 20; }));
  }
}

TEST_CASE("rocksdb store: dropping a version frees its space at once and leaves the others") {
  TempDir dir;
  auto store = open_store(dir.path);
  auto old_blocks = make_blocks(0, 32, 1 << 20, 1);
  auto new_blocks = make_blocks(0, 2, 1 << 20, 2);
  CHECK(count_ok(put(*store, old_blocks)) == 32);
  CHECK(count_ok(put(*store, new_blocks)) == 2);
  CHECK(disk_bytes(dir.path) > 34 << 20);
  store->drop_versions_below({2});
  CHECK(store->stats().used_bytes == 2 << 20);
  CHECK(eventually([&] { return disk_bytes(dir.path) < 3 << 20; }));
  CHECK(count_same(*store, old_blocks) == 0);
  CHECK(count_same(*store, new_blocks) == 2);
  for (const Status& s : put(*store, old_blocks)) CHECK(s.error().code == Code::kStale);
}

TEST_CASE("rocksdb store: a column family takes a bounded number of files, whose number each later put pays for, and goes with them") {
  TempDir dir;
  auto store = open_store(dir.path);
  for (uint64_t n = 0; n < 1100; ++n) {
    auto block = make_blocks(n, 1, 512);
    REQUIRE(count_ok(put(*store, block)) == 1);
  }
  CHECK(column_families(dir.path + "/data/db") == 1 + 2);  // RocksDB has one of its own
  auto all = make_blocks(0, 1100, 512);
  CHECK(count_same(*store, all) == all.size());
  std::vector<BlockKey> old;
  for (uint64_t n = 0; n < 1050; ++n) old.push_back(key(n));
  store->erase(old);
  CHECK(eventually([&] { return column_families(dir.path + "/data/db") == 1 + 1; }));
  auto left = make_blocks(1050, 50, 512);
  CHECK(count_same(*store, left) == left.size());
  store->drop_versions_below({2});
  CHECK(eventually([&] { return disk_bytes(dir.path) < 1 << 20; }));
}

TEST_CASE("rocksdb store: bytes that could not be deleted count until they are") {
  for (const bool drops_version : {false, true}) {
    CAPTURE(drops_version);
    TempDir dir;
    auto store = open_store(dir.path, 8 << 20);
    std::vector<BlockKey> keys;
    for (uint64_t n = 0; n < 56; n += 2) {
      auto blocks = make_blocks(n, 2, 128 << 10);
      REQUIRE(count_ok(put(*store, blocks)) == 2);
      for (const Payload& block : blocks) keys.push_back(block.key);
    }
    {
      const NoFileGrows no_file_grows;  // as if the disk were full: RocksDB cannot note that the files are gone
      drops_version ? store->drop_versions_below({2}) : store->erase(keys);
      std::promise<void>().get_future().wait_for(std::chrono::milliseconds(300));  // the store tries, which is not seen from outside
    }
    size_t stored = 0;
    for (uint64_t n = 1000; n < 1100; n += 2) {
      auto blocks = make_blocks(n, 2, 128 << 10, 2);
      stored += count_ok(put(*store, blocks));
      CHECK(disk_bytes(dir.path) < 10 << 20);
    }
    CHECK(stored >= 56);
  }
}

TEST_CASE("rocksdb store: blocks beyond capacity_bytes are answered with full, those before stay readable") {
  TempDir dir;
  auto store = open_store(dir.path, 5 * 4096);
  auto blocks = make_blocks(0, 8, 4096);
  const auto statuses = put(*store, blocks);
  for (size_t i = 0; i < 8; ++i) {
    CHECK(statuses[i].ok() == (i < 5));
    if (i >= 5) CHECK(statuses[i].error().code == Code::kFull);
  }
  CHECK(count_same(*store, blocks) == 5);
}

TEST_CASE("rocksdb store: bytes that changed before they are written are not stored") {
  TempDir dir;
  auto store = open_store(dir.path);
  auto block = make_block(1, 4096);
  std::promise<Code> code;
  CHECK(store
            ->put({{block.key, block.bytes, crc32c(block.bytes) + 1}},
                  [&](std::vector<Status> s, std::vector<ColdBlock>) { code.set_value(s[0].error().code); })
            .ok());
  CHECK(code.get_future().get() == Code::kCorrupt);
  CHECK(store->stats().used_bytes == 0);
}

TEST_CASE("rocksdb store: one flipped bit on disk is detected") {
  TempDir dir;
  auto store = open_store(dir.path);
  auto blocks = make_blocks(0, 8, 1 << 20);
  CHECK(count_ok(put(*store, blocks)) == 8);
  for (const auto& entry : fs::recursive_directory_iterator(dir.path)) {
    if (entry.path().extension() != ".sst") continue;
    const int fd = ::open(entry.path().c_str(), O_RDWR);
    char byte = 0;
    const off_t at = (3 << 20) + 5000;
    REQUIRE(::pread(fd, &byte, 1, at) == 1);
    byte = static_cast<char>(byte ^ 1);
    REQUIRE(::pwrite(fd, &byte, 1, at) == 1);
    ::fsync(fd);
    ::close(fd);
  }
  auto read = make_blocks(0, 8, 1 << 20);
  int corrupt = 0;
  for (const Status& s : get(*store, read)) corrupt += !s.ok() && s.error().code == Code::kCorrupt ? 1 : 0;
  CHECK(corrupt == 1);
  CHECK(count_same(*store, blocks) == 7);
}

TEST_CASE("rocksdb store: starts empty after a crash, and takes its directory only when nobody has it") {
  TempDir dir;
  const std::string crashed = dir.path + "/crashed", used = dir.path + "/used";
  {
    auto store = open_store(used);
    auto blocks = make_blocks(0, 2, 4096);
    CHECK(count_ok(put(*store, blocks)) == 2);
    fs::copy(used, crashed, fs::copy_options::recursive);  // what is on disk when the process is killed
  }
  CHECK(fs::is_empty(used));
  auto store = open_store(crashed);
  CHECK(store->stats().used_bytes == 0);
  auto blocks = make_blocks(0, 2, 4096);
  CHECK(count_same(*store, blocks) == 0);
  CHECK(count_ok(put(*store, blocks)) == 2);
  const auto second = open_rocksdb_store({.dir = crashed, .capacity_bytes = 1 << 30});
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().code == Code::kUnavailable);
  CHECK(second.error().detail.find(crashed) != std::string::npos);
  store.reset();
  CHECK(fs::is_empty(crashed));
}

TEST_CASE("rocksdb store: refuses a directory with files of others, and one it cannot make, naming the path") {
  TempDir dir;
  std::ofstream(dir.path + "/thesis.tex") << "mine";
  const auto foreign = open_rocksdb_store({.dir = dir.path, .capacity_bytes = 1 << 30});
  REQUIRE_FALSE(foreign.ok());
  CHECK(foreign.error().detail.find("thesis.tex") != std::string::npos);
  CHECK(fs::exists(dir.path + "/thesis.tex"));
  const auto nowhere = open_rocksdb_store({.dir = "/proc/seer_cold", .capacity_bytes = 1 << 30});
  REQUIRE_FALSE(nowhere.ok());
  CHECK(nowhere.error().detail.find("/proc/seer_cold") != std::string::npos);
}

TEST_CASE("rocksdb store: beyond queue_max operations are refused, and every accepted one is answered") {
  TempDir dir;
  auto opened = open_rocksdb_store({.dir = dir.path, .capacity_bytes = 1 << 30, .queue_max = 4});
  REQUIRE(opened.ok());
  auto block = make_block(1, 1 << 20);
  std::atomic<int> answered{0};
  int accepted = 0, refused = 0;
  for (int i = 0; i < 200; ++i) {
    const Status s = (*opened)->put({{key(static_cast<uint64_t>(i)), block.bytes, crc32c(block.bytes)}},
                                    [&](std::vector<Status>, std::vector<ColdBlock>) { ++answered; });
    ++(s.ok() ? accepted : refused);
    if (!s.ok()) CHECK(s.error().code == Code::kFull);
  }
  CHECK(refused > 0);
  opened->reset();  // answers what is queued
  CHECK(answered == accepted);
}

TEST_CASE("rocksdb store: puts, gets, erases and drops from several threads") {
  TempDir dir;
  auto store = open_store(dir.path);
  std::vector<std::thread> clients;
  std::atomic<int> wrong{0};
  for (uint64_t c = 0; c < 3; ++c)
    clients.emplace_back([&, c] {
      for (uint64_t round = 0; round < 20; ++round) {
        auto blocks = make_blocks(c * 10'000 + round * 10, 6, 8192, 1 + round / 10);
        const auto ask = [&](auto&& call) {
          std::promise<void> answered;
          std::vector<ColdBlock> cold;
          for (Payload& b : blocks) cold.push_back({b.key, b.bytes, crc32c(b.bytes)});
          if (call(cold, [&](std::vector<Status>, std::vector<ColdBlock>) { answered.set_value(); }).ok())
            answered.get_future().wait();
        };
        ask([&](auto& cold, auto done) { return store->put(cold, done); });
        const auto expected = blocks;
        ask([&](auto& cold, auto done) { return store->get(cold, done); });
        for (size_t i = 0; i < blocks.size(); ++i) wrong += blocks[i].bytes == expected[i].bytes ? 0 : 1;
        store->erase({blocks[0].key, blocks[1].key});
        if (round == 12 && c == 0) store->drop_versions_below({2});
      }
    });
  for (auto& t : clients) t.join();
  CHECK(wrong == 0);
}

TEST_CASE("rocksdb store: chains far larger than DRAM go through KvTiers to disk and come back") {
  constexpr size_t kBytes = 16 << 10;
  constexpr uint32_t kBlocks = 24;
  TempDir dir;
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> mailbox;
  const auto post = [&](std::function<void()> fn) {
    std::lock_guard lock(mutex);
    mailbox.push_back(std::move(fn));
    wake.notify_one();
  };
  const auto run_one = [&] {
    std::unique_lock lock(mutex);
    wake.wait(lock, [&] { return !mailbox.empty(); });
    auto fn = std::move(mailbox.front());
    mailbox.pop_front();
    lock.unlock();
    fn();
  };
  auto arena = *HostArena::create({.dram_bytes = 40 * kBytes, .block_bytes = kBytes});
  KvTiers tiers({.spill_batch_bytes = 8 * kBytes}, arena, open_store(dir.path), {.post = post});
  const auto chain_of = [](uint64_t owner) {
    std::vector<BlockRef> chain;
    for (uint32_t i = 0; i < kBlocks; ++i) chain.push_back({key(owner * 100 + i), 16});
    return chain;
  };
  for (uint64_t owner = 0; owner < 8; ++owner) {
    const auto chain = chain_of(owner);
    for (uint32_t i = 0; i < kBlocks; ++i) {
      Reservation r;
      while ((r = tiers.reserve({owner}, {&chain[i], 1}, {.first_index = i})[0]).state == GrantState::kLater)
        run_one();
      REQUIRE(r.state == GrantState::kWrite);
      const Payload block = make_block(owner * 100 + i, kBytes);
      std::copy(block.bytes.begin(), block.bytes.end(), arena->span(r.slot).begin());
      REQUIRE(tiers.seal(r.token, crc32c(block.bytes)).ok());
    }
    tiers.unpin({owner}, owner);
  }
  for (uint64_t owner = 0; owner < 8; ++owner) {
    std::vector<BlockKey> keys;
    for (const BlockRef& ref : chain_of(owner)) keys.push_back(ref.key);
    std::optional<OpenResult> result;
    tiers.open({owner}, keys, [&](OpenResult r) { result = std::move(r); });
    while (!result) run_one();
    REQUIRE(result->blocks.size() == kBlocks);
    for (uint32_t i = 0; i < kBlocks; ++i) {
      const auto slot = arena->span(result->blocks[i].slot);
      const Payload block = make_block(owner * 100 + i, kBytes);
      REQUIRE(std::equal(slot.begin(), slot.end(), block.bytes.begin()));
    }
    CHECK(tiers.close(result->lease).ok());
    tiers.check_invariants();
  }
  for (uint64_t owner = 0; owner < 8; ++owner) tiers.release({owner});
  while (!tiers.is_drained()) run_one();
  CHECK(tiers.stats().spilled_bytes > 0);
  CHECK(tiers.stats().corrupt_blocks == 0);
}

TEST_CASE("rocksdb store: a full disk refuses puts, keeps what is stored, and works again when space is freed") {
  TempDir dir;
  if (::mount("tmpfs", dir.path.c_str(), "tmpfs", 0, "size=24m") != 0) {
    MESSAGE("skipped: mounting a small tmpfs needs root");
    return;
  }
  {
    std::ofstream(dir.path + "/filler") << std::string(4 << 20, 'x');  // someone else's file, next to the tier
    auto store = open_store(dir.path + "/cold");
    std::vector<Payload> stored;
    uint64_t n = 0;
    bool full = false;
    while (!full && n < 100) {
      auto blocks = make_blocks(n, 2, 1 << 20);
      n += 2;
      for (const Status& s : put(*store, blocks)) {
        full = full || !s.ok();
        if (!s.ok()) CHECK(s.error().code == Code::kFull);
      }
      if (!full)
        for (auto& b : blocks) stored.push_back(std::move(b));
    }
    REQUIRE(full);
    CHECK(stored.size() >= 12);
    CHECK(count_same(*store, stored) == stored.size());
    auto more = make_blocks(1000, 2, 1 << 20);
    CHECK(count_ok(put(*store, more)) == 0);
    fs::remove(dir.path + "/filler");  // others make room
    CHECK(eventually([&] { return count_ok(put(*store, more)) == 2; }));
    CHECK(count_same(*store, more) == 2);
    for (full = false; !full; n += 2) {
      auto blocks = make_blocks(n, 2, 1 << 20);
      full = count_ok(put(*store, blocks)) < 2;
    }
    store->erase({stored[0].key, stored[1].key, stored[2].key, stored[3].key});  // we make room
    auto last = make_blocks(2000, 2, 1 << 20);
    CHECK(eventually([&] { return count_ok(put(*store, last)) == 2; }));
    CHECK(count_same(*store, last) == 2);
    stored.erase(stored.begin(), stored.begin() + 4);
    CHECK(count_same(*store, stored) == stored.size());
  }
  CHECK(::umount(dir.path.c_str()) == 0);
}
#endif
