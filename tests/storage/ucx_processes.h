// The processes of the tests of UCX. The owner of the blocks is another process: the tests' program, run again with a test case that is
// skipped otherwise. It exchanges lines with the tests over two pipes. Fetcher is the tests' own side.
#pragma once
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "protocols/kv.h"
#include "storage/arena_pair.h"
#include "storage/ucx_transport.h"

namespace seer {

inline constexpr int64_t kLongUs = 3'600'000'000;
inline constexpr NodeId kNode{1};
inline constexpr uint64_t kEpoch = 5;
inline constexpr char kPipesVariable[] = "SEER_TEST_PIPES";
inline constexpr char kOtherProcess[] = "ucx transport: (the other process of these tests)";

struct Owner {
  bool shares = false;
  int64_t block_bytes = 1 << 20;
  bool gets = false;  // UCX emulates them over TCP
  UcxTransportConfig config() const { return {.shares_memory = shares, .get_transports = gets ? "tcp" : ""}; }
};
inline constexpr Owner kWays[] = {{}, {.shares = true}, {.gets = true}};

/// The process that owns the blocks: four, all of them taken.
class OtherProcess {
 public:
  explicit OtherProcess(const Owner& owner) {
    int to[2], from[2];
    REQUIRE(pipe2(to, O_CLOEXEC) == 0);
    REQUIRE(pipe2(from, O_CLOEXEC) == 0);
    const std::string pipes = cat(to[0], " ", from[1]);
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      for (const int fd : {to[0], from[1]}) fcntl(fd, F_SETFD, 0);
      setenv(kPipesVariable, pipes.c_str(), 1);
      const std::string filter = cat("--test-case=", kOtherProcess);
      execl("/proc/self/exe", "other", filter.c_str(), "--no-skip", "--minimal", nullptr);
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    out_ = fdopen(to[1], "w");
    in_ = fdopen(from[0], "r");
    std::istringstream first(tell(cat(owner.shares, " ", owner.block_bytes, " ", owner.gets)));
    first >> address;
    for (uint32_t slot = 0; slot < 4; ++slot) {
      RemoteSlot s{kNode, kEpoch, slot};
      first >> s.generation >> s.crc32c;
      slots.push_back(s);
    }
  }
  ~OtherProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    fclose(out_);
    fclose(in_);
  }
  void say(const std::string& line) {
    std::fprintf(out_, "%s\n", line.c_str());
    std::fflush(out_);
  }
  /// Returns its answer.
  std::string tell(const std::string& line) {
    say(line);
    char* text = nullptr;
    size_t size = 0;
    REQUIRE_MESSAGE(getline(&text, &size, in_) > 0, "the other process ended");
    std::string answer(text);
    std::free(text);
    return answer;
  }
  void signal(int number) {
    kill(pid_, number);
    if (number == SIGSTOP) waitpid(pid_, nullptr, WUNTRACED);
  }

  std::string address;
  std::vector<RemoteSlot> slots;

 private:
  pid_t pid_ = -1;
  FILE *out_ = nullptr, *in_ = nullptr;
};

inline std::byte pattern(uint32_t slot) { return std::byte(0x50 + slot); }

/// What became of a fetch. Not movable: the transport's thread writes to it.
struct Seen {
  std::promise<FetchResult> done_promise;
  std::promise<void> quiet_promise;
  std::atomic<int> done = 0, quiet = 0;
  FetchEvents events() {
    return {[this](FetchResult r) {
              if (++done == 1) done_promise.set_value(std::move(r));
            },
            [this] {
              if (++quiet == 1) quiet_promise.set_value();
            }};
  }
};

struct Fetcher {
  explicit Fetcher(const Owner& owner, UcxTransportConfig config = {}) : block_bytes(static_cast<size_t>(owner.block_bytes)) {
    config.get_transports = owner.config().get_transports;
    transport = *UcxTransport::create(config);
    bytes.resize(4 * block_bytes);
  }
  std::span<std::byte> target(size_t i) { return std::span(bytes).subspan(i * block_bytes, block_bytes); }
  Status start(Seen& seen, const std::vector<RemoteSlot>& slots, int64_t timeout_us = kLongUs) {
    std::vector<Fetch> fetches;
    for (size_t i = 0; i < slots.size(); ++i) fetches.push_back({slots[i], target(i)});
    return transport->fetch(fetches, timeout_us, seen.events());
  }
  FetchResult fetch(const std::vector<RemoteSlot>& slots, int64_t timeout_us = kLongUs) {
    auto seen = std::make_shared<Seen>();
    CHECK(start(*seen, slots, timeout_us).ok());
    FetchResult result = seen->done_promise.get_future().get();
    if (result.still_writing) seen->quiet_promise.get_future().wait();
    kept.push_back(seen);
    return result;
  }
  bool has_pattern(size_t i, std::byte value) {
    return std::ranges::all_of(target(i), [&](std::byte b) { return b == value; });
  }

  size_t block_bytes;
  std::vector<std::byte> bytes;
  std::vector<std::shared_ptr<Seen>> kept;
  std::unique_ptr<UcxTransport> transport;  // last: its thread writes to the rest
};

/// What the other process does; of the test case kOtherProcess, which the tests' program has to have.
inline void run_other_process() {
  const char* const pipes = std::getenv(kPipesVariable);
  if (pipes == nullptr) return;
  int in_fd = -1, out_fd = -1;
  std::istringstream(pipes) >> in_fd >> out_fd;
  FILE *in = fdopen(in_fd, "r"), *out = fdopen(out_fd, "w");
  char* text = nullptr;
  size_t size = 0;
  if (getline(&text, &size, in) <= 0) return;
  Owner owner;
  std::istringstream(text) >> owner.shares >> owner.block_bytes >> owner.gets;
  auto transport = *UcxTransport::create(owner.config());
  auto arena = *HostArena::create({.dram_bytes = 4 * owner.block_bytes, .block_bytes = owner.block_bytes},
                                  {.allocate = transport->slab_allocator()});
  std::ostringstream first;
  first << transport->publish(kNode, kEpoch, arena);
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t slot = *arena->take();
    std::ranges::fill(arena->span(slot), pattern(slot));
    first << " " << arena->generation(slot) << " " << crc32c(arena->span(slot));
  }
  std::fprintf(out, "%s\n", first.str().c_str());
  std::fflush(out);
  while (getline(&text, &size, in) > 0) {
    std::istringstream line(text);
    std::string command;
    uint32_t slot = 0;
    line >> command >> slot;
    if (command == "free") arena->free(slot);
    if (command == "spoil") arena->span(slot).back() ^= std::byte{1};
    if (command == "withdraw") transport->withdraw(kNode, kEpoch);
    if (command == "meet") {  // several transports, the first of which can be fetched from; at the next line all of them fetch
      std::string address;
      RemoteSlot from{{2}, kEpoch, slot};
      line >> address >> from.generation >> from.crc32c;
      std::vector<std::unique_ptr<UcxTransport>> transports(8);
      for (auto& t : transports) {
        t = *UcxTransport::create(owner.config());
        (void)t->open_peer(from.node, kEpoch, address);
      }
      std::fprintf(out, "%s\n", transports[0]->publish(kNode, kEpoch, arena).c_str());
      std::fflush(out);
      if (getline(&text, &size, in) <= 0) return;
      for (auto& t : transports) (void)t->fetch({{from, arena->span(0)}}, kLongUs, {[](auto) {}, {}});
      pause();
    }
    if (command == "fetch") {  // forever, of the blocks of the tests' process
      std::string address;
      RemoteSlot from{{2}, kEpoch, slot};
      line >> address >> from.generation >> from.crc32c;
      (void)transport->open_peer(from.node, kEpoch, address);
      for (bool first_time = true;; first_time = false) {
        std::promise<void> came;
        (void)transport->fetch({{from, arena->span(0)}}, kLongUs, {[&](auto) { came.set_value(); }, {}});
        came.get_future().wait();
        if (first_time) std::fprintf(out, "ok\n"), std::fflush(out);
      }
    }
    std::fprintf(out, "ok\n");
    std::fflush(out);
  }
}

/// The functions of UCX 1.13 in which it ends a process whose emulated get's other side is dead, as its backtraces name them.
inline constexpr const char* kEmulatedGetsEnd[] = {"uct_tcp_ep_pending_purge", "ucp_get_req_handler"};

/// Runs a skipped test case in a process of its own. For kills of processes that get: Seer uses gets where both hosts have RDMA. Over
/// TCP UCX 1.13 emulates them and ends the process that lives by a fatal error of its own in one run of 20 to 50 (kEmulatedGetsEnd);
/// then it runs again.
inline void run_apart(const std::string& test_case) {
  const std::string command = cat("'", std::filesystem::read_symlink("/proc/self/exe").string(), "' '--test-case=", test_case,
                                  "' --no-skip 2>&1");
  std::string said;
  for (int run = 0; run < 5; ++run) {
    FILE* const pipe = popen(command.c_str(), "r");
    REQUIRE(pipe != nullptr);
    said.clear();
    for (std::array<char, 4096> part; const size_t size = std::fread(part.data(), 1, part.size(), pipe);) said.append(part.data(), size);
    const bool passed = pclose(pipe) == 0;
    if (passed || std::ranges::none_of(kEmulatedGetsEnd, [&](const char* in) { return said.find(in) != said.npos; })) break;
  }
  CHECK_MESSAGE(said.find(" 1 passed | 0 failed") != std::string::npos, said);
}

}  // namespace seer
