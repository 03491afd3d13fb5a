// bench_cold <directory> [payload MiB = 512] [rounds = 5]: compares spill writes and cold reads of the RocksDB store with raw
// O_DIRECT files in the same directory, interleaved; one JSON line per block size. Ratios are of the best rounds.
//
// Raw writing: one thread, one file, pwrite of a block at a time, fsync. Raw reading: four threads, blocks in a scattered
// order. The store is used as by KvTiers: puts of 32 MiB with four in flight, gets of 32 MiB in the same scattered order.
#if defined(SEER_HAVE_ROCKSDB)
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <condition_variable>
#include <nlohmann/json.hpp>
#include <thread>

#include "protocols/hash.h"
#include "storage/rocksdb_store.h"

using namespace seer;

namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
double cpu_s() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}
int64_t disk_written_bytes() {  // by this process, as the kernel counts it
  std::ifstream in("/proc/self/io");
  std::string name;
  int64_t value = 0;
  while (in >> name >> value)
    if (name == "write_bytes:") return value;
  return 0;
}

struct Memory {  // page-aligned, as O_DIRECT needs
  explicit Memory(size_t size) : bytes(static_cast<std::byte*>(std::aligned_alloc(4096, size)), size) {}
  ~Memory() { std::free(bytes.data()); }
  std::span<std::byte> bytes;
};

struct Rates {
  double write_gb_s = 0, read_gb_s = 0;
};

class Bench {
 public:
  Bench(std::string dir, size_t block_bytes, size_t payload_bytes)
      : dir_(std::move(dir)),
        block_bytes_(block_bytes),
        blocks_(payload_bytes / block_bytes),
        source_(blocks_ * block_bytes),
        target_(blocks_ * block_bytes) {
    for (size_t i = 0; i + 8 <= source_.bytes.size(); i += 8) {
      const uint64_t word = mix64(i);
      std::memcpy(&source_.bytes[i], &word, 8);
    }
    std::memset(target_.bytes.data(), 1, target_.bytes.size());
    for (size_t i = 0; i < blocks_; ++i) crcs_.push_back(crc32c(block(source_, i)));
    auto store = open_rocksdb_store({.dir = dir_ + "/store", .capacity_bytes = int64_t{1} << 40});
    if (!store.ok()) {
      std::fprintf(stderr, "%s\n", store.error().detail.c_str());
      std::exit(1);
    }
    store_ = std::move(*store);
  }

  Rates raw() {
    const std::string path = dir_ + "/raw.dat";
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    if (fd < 0) std::perror(path.c_str()), std::exit(1);
    const auto offset = [&](size_t i) { return static_cast<off_t>(i * block_bytes_); };
    const auto check = [](ssize_t n) {
      if (n <= 0) std::perror("raw"), std::exit(1);
    };
    Rates rates;
    double start = now_s();
    for (size_t i = 0; i < blocks_; ++i) check(::pwrite(fd, block(source_, i).data(), block_bytes_, offset(i)));
    ::fsync(fd);
    rates.write_gb_s = gb() / (now_s() - start);
    start = now_s();
    std::atomic<size_t> next{0};
    std::vector<std::thread> readers;
    for (int t = 0; t < 4; ++t)
      readers.emplace_back([&] {
        for (size_t n; (n = next++) < blocks_;)
          check(::pread(fd, block(target_, n).data(), block_bytes_, offset(scattered(n))));
      });
    for (auto& r : readers) r.join();
    rates.read_gb_s = gb() / (now_s() - start);
    ::close(fd);
    ::unlink(path.c_str());
    return rates;
  }

  Rates store(uint64_t round) {
    const auto key = [&](size_t i) { return BlockKey{{round}, 1, {mix64(i), i}}; };
    const size_t batch = std::max<size_t>(1, (32 << 20) / block_bytes_);
    Rates rates;
    int64_t written = disk_written_bytes();
    double cpu = cpu_s(), start = now_s();
    for (size_t at = 0; at < blocks_; at += batch) {
      std::vector<ColdBlock> part;
      for (size_t i = at; i < std::min(at + batch, blocks_); ++i) part.push_back({key(i), block(source_, i), crcs_[i]});
      wait_for_fewer_than(4);
      ++open_;
      submitted(store_->put(part, [this](auto statuses, auto) { ended(statuses); }));
    }
    wait_for_fewer_than(1);
    rates.write_gb_s = gb() / (now_s() - start);
    write_cpu_s_gb = std::min(write_cpu_s_gb, (cpu_s() - cpu) / gb());
    write_amplification =
        static_cast<double>(disk_written_bytes() - written) / static_cast<double>(blocks_ * block_bytes_);

    cpu = cpu_s(), start = now_s();
    for (size_t at = 0; at < blocks_; at += batch) {
      std::vector<ColdBlock> part;
      for (size_t n = at; n < std::min(at + batch, blocks_); ++n) part.push_back({key(scattered(n)), block(target_, n), 0});
      wait_for_fewer_than(4);
      ++open_;
      submitted(store_->get(part, [this](auto statuses, auto) { ended(statuses); }));
    }
    wait_for_fewer_than(1);
    rates.read_gb_s = gb() / (now_s() - start);
    read_cpu_s_gb = std::min(read_cpu_s_gb, (cpu_s() - cpu) / gb());
    for (size_t n = 0; n < blocks_; ++n)
      if (std::memcmp(block(target_, n).data(), block(source_, scattered(n)).data(), block_bytes_) != 0)
        std::fprintf(stderr, "wrong bytes\n"), std::exit(1);

    // Dropping the version: the answer to an operation behind it says that its files are gone.
    start = now_s();
    store_->drop_versions_below({round + 1});
    std::error_code ignored;
    const auto exists = [&] {
      int64_t bytes = 0;
      for (const auto& e : std::filesystem::recursive_directory_iterator(dir_ + "/store", ignored))
        if (e.is_regular_file(ignored)) bytes += static_cast<int64_t>(e.file_size(ignored));
      return bytes > (1 << 20);
    };
    while (exists()) std::this_thread::yield();
    drop_s_per_2_gb = std::min(drop_s_per_2_gb, (now_s() - start) * 2.0 / gb());
    return rates;
  }

  double write_cpu_s_gb = 1e9, read_cpu_s_gb = 1e9, write_amplification = 0, drop_s_per_2_gb = 1e9;

 private:
  std::span<std::byte> block(Memory& m, size_t i) { return m.bytes.subspan(i * block_bytes_, block_bytes_); }
  size_t scattered(size_t n) const { return n * 7919 % blocks_; }  // 7919 is prime: a permutation
  double gb() const { return static_cast<double>(blocks_ * block_bytes_) / 1e9; }
  void wait_for_fewer_than(int n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_ < n; });
  }
  void submitted(const Status& s) {
    if (!s.ok()) std::fprintf(stderr, "%s\n", s.error().detail.c_str()), std::exit(1);
  }
  void ended(const std::vector<Status>& statuses) {
    for (const Status& s : statuses) submitted(s);
    std::lock_guard lock(mutex_);
    --open_;
    changed_.notify_one();
  }

  const std::string dir_;
  const size_t block_bytes_, blocks_;
  Memory source_, target_;
  std::vector<uint32_t> crcs_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> open_{0};
  std::unique_ptr<ColdStore> store_;  // last: its threads use all of the above
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_cold <directory> [payload MiB] [rounds]\n");
    return 2;
  }
  const std::string dir = argv[1];
  const size_t payload = (argc > 2 ? std::stoul(argv[2]) : 512) << 20;
  const int rounds = argc > 3 ? std::stoi(argv[3]) : 5;
  for (const size_t block_bytes : {size_t{64} << 10, size_t{1} << 20, size_t{8} << 20}) {
    Bench bench(dir, block_bytes, payload);
    std::vector<double> raw_write, raw_read, write, read;
    for (int round = 0; round < rounds; ++round) {
      const Rates raw = bench.raw();
      const Rates store = bench.store(static_cast<uint64_t>(round) + 1);
      raw_write.push_back(raw.write_gb_s), raw_read.push_back(raw.read_gb_s);
      write.push_back(store.write_gb_s), read.push_back(store.read_gb_s);
    }
    const auto best = [](const std::vector<double>& v) { return *std::max_element(v.begin(), v.end()); };
    nlohmann::ordered_json line;
    line["bench"] = "cold";
    line["block_kib"] = block_bytes >> 10;
    line["payload_mib"] = payload >> 20;
    line["rounds"] = rounds;
    line["write_ratio"] = best(write) / best(raw_write);
    line["read_ratio"] = best(read) / best(raw_read);
    line["write_gb_s"] = {{"best", best(write)}, {"median", median(write)}};
    line["raw_write_gb_s"] = {{"best", best(raw_write)}, {"median", median(raw_write)}};
    line["read_gb_s"] = {{"best", best(read)}, {"median", median(read)}};
    line["raw_read_gb_s"] = {{"best", best(raw_read)}, {"median", median(raw_read)}};
    line["write_cpu_s_per_gb"] = bench.write_cpu_s_gb;
    line["read_cpu_s_per_gb"] = bench.read_cpu_s_gb;
    line["write_amplification"] = bench.write_amplification;
    line["drop_s_per_2_gb"] = bench.drop_s_per_2_gb;
    std::cout << line.dump() << std::endl;
  }
}
#else
#include <cstdio>
int main() {
  std::fprintf(stderr, "bench_cold: built without RocksDB\n");
  return 1;
}
#endif
