// bench_kv [rounds = 5] [payload MiB = 256] [transports]: fetches of KV blocks from another process on this machine, over shared
// memory and over TCP; one JSON line per way and block size. With transports, as in UCX_TLS, also by get over these: "rc", or
// "tcp", where UCX emulates gets. Beside each, in the same rounds: memcpy of as many blocks in the same
// scattered order, and for TCP `ucx_perftest -E sleep -t ucp_get` where ucx-utils is installed. Ratios are of the best rounds.
//
// A round fetches the payload in calls of 16 MiB or one block, two of them open; then up to 100 blocks one after the other,
// for latencies and for the comparison with ucx_perftest, which in this mode has one get open at a time. CPU seconds are of
// both processes. The first round, in which each page of the other process is mapped, has figures of its own.
#if defined(SEER_HAVE_UCX)
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <future>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "protocols/cpu_time.h"
#include "protocols/kv.h"
#include "storage/ucx_transport.h"

using namespace seer;

namespace {

constexpr NodeId kNode{1};
constexpr int64_t kTimeoutUs = 60'000'000;

/// How blocks are to arrive.
struct Way {
  const char* name;
  bool shares;
  std::string gets;  // transports
  UcxTransportConfig config() const { return {.shares_memory = shares, .get_transports = gets}; }
};

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
double cpu_s(clockid_t clock) { return static_cast<double>(cpu_ns(clock)) * 1e-9; }
double best(const std::vector<double>& v) { return v.empty() ? 0 : *std::ranges::max_element(v); }
double at_quantile(std::vector<double> v, double q) {
  std::ranges::sort(v);
  return v[static_cast<size_t>(q * static_cast<double>(v.size() - 1))];
}

/// The process that owns the blocks, until its input ends.
int run_owner(const Way& way, int64_t block_bytes, int64_t payload, int out) {
  auto transport = *UcxTransport::create(way.config());
  auto arena = *HostArena::create({.dram_bytes = payload, .block_bytes = block_bytes}, {.allocate = transport->slab_allocator()});
  std::ostringstream text;
  text << transport->publish(kNode, 1, arena);
  for (uint32_t i = 0; i < arena->slot_count(); ++i) {
    std::ranges::fill(arena->span(*arena->take()), std::byte(i));
    text << " " << arena->generation(i) << " " << crc32c(arena->span(i));
  }
  text << "\n";
  const std::string line = text.str();
  if (write(out, line.data(), line.size()) != std::ssize(line)) return 1;
  char end;
  while (read(STDIN_FILENO, &end, 1) > 0) {
  }
  return 0;
}

struct OwnerProcess {
  OwnerProcess(const Way& way, int64_t block_bytes, int64_t payload) {
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) std::abort();
    const std::string arguments[] = {cat(way.shares), way.gets, cat(block_bytes), cat(payload), cat(from[1])};
    pid = fork();
    if (pid == 0) {
      dup2(to[0], STDIN_FILENO);
      fcntl(from[1], F_SETFD, 0);
      execl("/proc/self/exe", "bench_kv", "owner", arguments[0].c_str(), arguments[1].c_str(), arguments[2].c_str(),
            arguments[3].c_str(), arguments[4].c_str(), nullptr);
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    out = to[1];
    FILE* const in = fdopen(from[0], "r");
    char* text = nullptr;
    size_t size = 0;
    if (getline(&text, &size, in) <= 0) std::abort();
    std::istringstream line(text);
    line >> address;
    RemoteSlot slot{kNode, 1};
    for (; line >> slot.generation >> slot.crc32c; ++slot.slot) slots.push_back(slot);
    std::free(text);
    fclose(in);
    clock_getcpuclockid(pid, &clock);
  }
  ~OwnerProcess() {
    close(out);
    waitpid(pid, nullptr, 0);
  }
  pid_t pid = -1;
  int out = -1;
  clockid_t clock{};
  std::string address;
  std::vector<RemoteSlot> slots;
};

class Bench {
 public:
  Bench(const Way& way, int64_t block_bytes, int64_t payload)
      : way_(way), block_bytes_(static_cast<size_t>(block_bytes)), owner_(way, block_bytes, payload),
        source_(*map_slab(payload)), target_(*map_slab(payload)) {
    std::ranges::fill(source_.bytes(), std::byte{1});
    std::ranges::fill(target_.bytes(), std::byte{2});
    transport_ = *UcxTransport::create(way.config());
    const Status opened = transport_->open_peer(kNode, 1, owner_.address);
    SEER_CHECK(opened.ok(), opened.error());
  }

  /// Of the payload, in one round.
  struct Rate {
    double gb_s, cpu_s_per_gb;
  };
  void first_round() { first_ = fetch_all(); }

  void round() {
    const Rate copy = measure([&] {
      for (size_t i = 0; i < count(); ++i) std::memcpy(place(i).data(), source_.bytes().data() + scattered(i) * block_bytes_, block_bytes_);
    });
    copy_gb_s_.push_back(copy.gb_s);
    copy_cpu_.push_back(copy.cpu_s_per_gb);
    const Rate fetch = fetch_all();
    fetch_gb_s_.push_back(fetch.gb_s);
    fetch_cpu_.push_back(fetch.cpu_s_per_gb);
    const size_t singles = std::min<size_t>(100, count());
    const double singles_begin = now_s();
    for (size_t i = 0; i < singles; ++i) {
      const double begin = now_s();
      check(start(i, 1).get());
      latency_us_.push_back((now_s() - begin) * 1e6);
    }
    single_gb_s_.push_back(static_cast<double>(singles * block_bytes_) * 1e-9 / (now_s() - singles_begin));
    if (!way_.shares) perftest();
  }

  nlohmann::ordered_json report(int rounds) const {
    nlohmann::ordered_json line;
    line["bench"] = "kv";
    line["way"] = way_.name;
    line["peer_info"] = transport_->peer_info(kNode);
    line["block_kib"] = block_bytes_ >> 10;
    line["payload_mib"] = target_.bytes().size() >> 20;
    line["rounds"] = rounds;
    line["fetch_gb_s"] = rates(fetch_gb_s_);
    line["memcpy_gb_s"] = rates(copy_gb_s_);
    line["memcpy_ratio"] = best(fetch_gb_s_) / best(copy_gb_s_);
    line["one_open_gb_s"] = rates(single_gb_s_);
    if (!perftest_gb_s_.empty()) {
      line["perftest_gb_s"] = rates(perftest_gb_s_);
      line["perftest_ratio_one_open"] = best(single_gb_s_) / best(perftest_gb_s_);
    } else if (!way_.shares) {
      line["perftest"] = "not measured: ucx_perftest gave no figure (apt-get install ucx-utils)";
    }
    line["latency_us"] = {{"p50", at_quantile(latency_us_, 0.5)}, {"p99", at_quantile(latency_us_, 0.99)}};
    line["fetch_cpu_s_per_gb"] = at_quantile(fetch_cpu_, 0.5);
    line["memcpy_cpu_s_per_gb"] = at_quantile(copy_cpu_, 0.5);
    line["cpu_ratio"] = at_quantile(fetch_cpu_, 0.5) / at_quantile(copy_cpu_, 0.5);
    line["first_round"] = {{"fetch_gb_s", first_.gb_s}, {"fetch_cpu_s_per_gb", first_.cpu_s_per_gb}};
    return line;
  }

 private:
  size_t count() const { return owner_.slots.size(); }
  size_t scattered(size_t i) const { return i * 7919 % count(); }
  std::span<std::byte> place(size_t i) const { return target_.bytes().subspan(i * block_bytes_, block_bytes_); }
  static nlohmann::ordered_json rates(const std::vector<double>& gb_s) {
    return {{"best", best(gb_s)}, {"median", at_quantile(gb_s, 0.5)}};
  }
  Rate fetch_all() {
    return measure([&] {
      const size_t batch = std::max<size_t>(1, (16 << 20) / block_bytes_);
      std::deque<std::future<FetchResult>> open;
      for (size_t i = 0; i < count(); i += batch) {
        open.push_back(start(i, std::min(batch, count() - i)));
        if (open.size() > 2) check(open.front().get()), open.pop_front();
      }
      for (auto& f : open) check(f.get());
    });
  }
  std::future<FetchResult> start(size_t first, size_t blocks) {
    std::vector<Fetch> fetches;
    for (size_t i = first; i < first + blocks; ++i) fetches.push_back({owner_.slots[scattered(i)], place(i)});
    auto promise = std::make_shared<std::promise<FetchResult>>();
    const Status started = transport_->fetch(std::move(fetches), kTimeoutUs, {[promise](FetchResult r) { promise->set_value(std::move(r)); }, [] {}});
    SEER_CHECK(started.ok(), started.error());
    return promise->get_future();
  }
  static void check(const FetchResult& result) {
    for (const Status& status : result.statuses) SEER_CHECK(status.ok(), status.error());
  }
  /// `f` moves the payload. CPU time is that of both processes.
  template <class F>
  Rate measure(F f) {
    const auto spent = [&] { return cpu_s(CLOCK_PROCESS_CPUTIME_ID) + cpu_s(owner_.clock); };
    const double before = spent(), begin = now_s();
    f();
    const double seconds = now_s() - begin;
    const double gb = static_cast<double>(count() * block_bytes_) * 1e-9;
    return {gb / seconds, (spent() - before) / gb};
  }
  void perftest() {
    const int port = 20'000 + getpid() % 10'000;
    const std::string server = cat("UCX_TLS=tcp timeout 10 ucx_perftest -p ", port, " -E sleep >/dev/null 2>&1 & sleep 0.3; ");
    const std::string client = cat("UCX_TLS=tcp timeout 10 ucx_perftest 127.0.0.1 -p ", port, " -E sleep -t ucp_get -f -s ",
                                   block_bytes_, " -n ", 2 * count(), " 2>/dev/null | grep -E '^ +[0-9]' | tail -1; wait");
    FILE* const out = popen((server + client).c_str(), "r");
    double iterations, median, mean, overall, mib_s;
    if (out != nullptr && std::fscanf(out, "%lf %lf %lf %lf %lf", &iterations, &median, &mean, &overall, &mib_s) == 5)
      perftest_gb_s_.push_back(mib_s * (1 << 20) * 1e-9);
    if (out != nullptr) pclose(out);
  }

  std::vector<double> copy_gb_s_, copy_cpu_, fetch_gb_s_, fetch_cpu_, single_gb_s_, perftest_gb_s_, latency_us_;  // by round
  Rate first_{};
  const Way way_;
  const size_t block_bytes_;
  OwnerProcess owner_;
  Slab source_, target_;
  std::unique_ptr<UcxTransport> transport_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 7 && std::strcmp(argv[1], "owner") == 0)
    return run_owner({"owner", std::atoi(argv[2]) != 0, argv[3]}, std::atoll(argv[4]), std::atoll(argv[5]), std::atoi(argv[6]));
  if (argc > 1 && std::atoi(argv[1]) == 0) {
    std::fprintf(stderr, "usage: bench_kv [rounds = 5] [payload MiB = 256] [transports for gets]\n");
    return 2;
  }
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  const int64_t payload = (argc > 2 ? std::max(16, std::atoi(argv[2])) : 256) * (int64_t{1} << 20);
  std::vector<Way> ways = {{"shared_memory", true, ""}, {"tcp", false, ""}};
  if (argc > 3) ways.push_back({"get", false, argv[3]});
  for (const Way& way : ways)
    for (const int64_t block_bytes : {64 << 10, 1 << 20, 8 << 20}) {
      Bench bench(way, block_bytes, payload);
      bench.first_round();
      for (int i = 0; i < rounds; ++i) bench.round();
      std::cout << bench.report(rounds).dump() << std::endl;
    }
}
#else
#include <cstdio>
int main() {
  std::fprintf(stderr, "bench_kv: built without UCX\n");
  return 1;
}
#endif
