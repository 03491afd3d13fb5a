#if defined(SEER_HAVE_UCX)
#include "storage/ucx_transport.h"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "protocols/kv.h"
#include "protocols/number_from_environment.h"
#include "protocols/tcp_sockets.h"
#include "storage/arena_pair.h"
#include "storage/ucx_gets.h"
#include "storage/ucx_processes.h"
#include "storage/ucx_raw_peer.h"
#include "storage/ucx_wire.h"

using namespace seer;

namespace {

/// Where this process listens, as in /proc/net/tcp: "0100007F:1F90".
std::set<std::string> listening() {
  std::set<std::string> addresses;
  for (const TcpSocket& socket : tcp_sockets(::getpid()))
    if (socket.state == TCP_LISTEN) addresses.insert(socket.local);
  return addresses;
}

}  // namespace

TEST_CASE(kOtherProcess * doctest::skip()) { run_other_process(); }

TEST_CASE("ucx transport: the transport of gets is that of the lane which UCX names for them") {
  const std::string lanes = "#\n#                 lane[0]:  0:tcp/lo.0 md[0]                -> md[0]/tcp/sysdev[255] am am_bw#0 wireup\n#\n";
  CHECK(ucx_get_transport(lanes) == "tcp");
  CHECK(ucx_get_transport(lanes +
                          "#                 lane[1]:  2:rc_mlx5/mlx5_0:1.0 md[1]      -> md[1]/ib/sysdev[0] rma_bw#0\n#\n"
                          "#                  put[1]: 0..<short>..128..<bcopy>..(inf)\n"
                          "#                  get[1]: 0..<bcopy>..16384..<zcopy>..(inf)\n") == "rc_mlx5");
  CHECK(ucx_get_transport("").empty());
  CHECK(ucx_get_transport("# get[1]: 0").empty());
}

TEST_CASE("ucx transport: a fetch brings the bytes of another process, in messages, over shared memory and by get") {
  for (const Owner& owner : kWays) {
    CAPTURE(owner.shares);
    CAPTURE(owner.gets);
    OtherProcess other(owner);
    Fetcher f(owner);
    CHECK(f.transport->open_peer(kNode, kEpoch, other.address).ok());
    const FetchResult result = f.fetch(other.slots);
    CHECK_FALSE(result.still_writing);
    REQUIRE(result.statuses.size() == 4);
    for (uint32_t i = 0; i < 4; ++i) {
      CHECK_MESSAGE(result.statuses[i].ok(), result.statuses[i].error());
      CHECK(f.has_pattern(i, pattern(i)));
    }
    CHECK(f.transport->peer_info(kNode) == (owner.shares ? "shared memory: same host"
                                            : owner.gets ? "network (get over tcp): its slab is not shared"
                                                         : "network (tcp): its slab is not shared; gets are off"));
    CHECK(f.transport->fetch({}, kLongUs, f.kept[0]->events()).ok());
  }
}

TEST_CASE("ucx transport: stale generations and epochs, bad slots and sizes, and wrong bytes are told apart, block by block") {
  // The network sends small and large blocks in different ways.
  for (const Owner& owner : {Owner{.block_bytes = 4096}, Owner{}, Owner{.shares = true, .block_bytes = 4096},
                             Owner{.block_bytes = 4096, .gets = true}, Owner{.gets = true}}) {
    CAPTURE(owner.shares);
    CAPTURE(owner.gets);
    CAPTURE(owner.block_bytes);
    OtherProcess other(owner);
    Fetcher f(owner);
    CHECK(f.transport->open_peer(kNode, kEpoch, other.address).ok());
    RemoteSlot slot = other.slots[0], crc = other.slots[1];
    slot.slot = 1000;
    crc.crc32c ^= 1;
    other.tell("free 2");
    other.tell("spoil 3");
    const FetchResult result = f.fetch({slot, crc, other.slots[2], other.slots[3]});
    CHECK(result.statuses[0].error().code == Code::kInvalidArgument);
    CHECK(result.statuses[0].error().detail ==
          cat("transport: slot 1000 of 4, ", owner.block_bytes, " bytes of ", owner.block_bytes));
    CHECK(result.statuses[1].error().code == Code::kCorrupt);
    CHECK(result.statuses[2].error().code == Code::kStale);
    CHECK(result.statuses[2].error().detail == "transport: slot 2 of node 1 was reused");
    CHECK(result.statuses[3].error().code == Code::kCorrupt);
    CHECK(f.has_pattern(2, std::byte{0}));  // refused: nothing came
    Seen half;
    CHECK(f.transport->fetch({{other.slots[0], f.target(0).first(2048)}}, kLongUs, half.events()).ok());
    CHECK(half.done_promise.get_future().get().statuses[0].error().code == Code::kInvalidArgument);
    RemoteSlot epoch = other.slots[0];
    epoch.epoch = kEpoch + 1;
    CHECK(f.fetch({epoch}).statuses[0].error().code == Code::kStale);
    CHECK(f.fetch({other.slots[0]}).statuses[0].ok());
    other.tell("withdraw");
    CHECK(f.fetch({other.slots[0]}).statuses[0].error().code == Code::kUnavailable);
  }
}

TEST_CASE("ucx transport: each of many small blocks gets its own bytes or its own error, whatever is asked for beside it") {
  for (Owner owner : kWays) {
    CAPTURE(owner.shares);
    CAPTURE(owner.gets);
    owner.block_bytes = 4096;
    OtherProcess other(owner);
    Fetcher f(owner);
    CHECK(f.transport->open_peer(kNode, kEpoch, other.address).ok());
    other.tell("free 2");
    constexpr uint32_t kSeed = 5;
    CAPTURE(kSeed);
    std::mt19937 random(kSeed);
    // More than a request can name. Of slot 2 nothing comes, and of slot 3 nothing where half a block is asked for.
    constexpr size_t kBlocks = 5 * kWireSlotsMax + 3;
    std::vector<std::byte> bytes(kBlocks * owner.block_bytes);
    std::vector<Fetch> fetches;
    for (size_t i = 0; i < kBlocks; ++i) {
      const RemoteSlot& from = other.slots[random() % 4];
      const auto to = std::span(bytes).subspan(i * f.block_bytes, f.block_bytes);
      fetches.push_back({from, from.slot == 3 && random() % 2 == 0 ? to.first(2048) : to});
    }
    Seen seen;
    CHECK(f.transport->fetch(fetches, kLongUs, seen.events()).ok());
    const FetchResult result = seen.done_promise.get_future().get();
    REQUIRE(result.statuses.size() == kBlocks);
    for (size_t i = 0; i < kBlocks; ++i) {
      CAPTURE(i);
      const Fetch& fetch = fetches[i];
      const bool is_half = fetch.to.size() < f.block_bytes, comes = fetch.from.slot != 2 && !is_half;
      CHECK(result.statuses[i].ok() == comes);
      if (!comes) CHECK(result.statuses[i].error().code == (is_half ? Code::kInvalidArgument : Code::kStale));
      const std::byte expected = comes ? pattern(fetch.from.slot) : std::byte{0};
      CHECK(std::ranges::all_of(fetch.to, [&](std::byte b) { return b == expected; }));
    }
  }
}

TEST_CASE("ucx transport: on the loopback device alone it can be fetched from, and listens nowhere else") {
  const Owner owner{.gets = true};
  Fetcher here(owner, {.network_devices = "lo", .shares_memory = false}), there(owner, {.network_devices = "lo", .shares_memory = false});
  const std::set<std::string> addresses = listening();
  CHECK_FALSE(addresses.empty());
  for (const std::string& address : addresses) CHECK_MESSAGE(address.starts_with("0100007F:"), address);
  const auto arena = *HostArena::create({.dram_bytes = owner.block_bytes, .block_bytes = owner.block_bytes},
                                        {.allocate = there.transport->slab_allocator()});
  const uint32_t slot = *arena->take();
  std::ranges::fill(arena->span(slot), std::byte{9});
  CHECK(here.transport->open_peer(kNode, kEpoch, there.transport->publish(kNode, kEpoch, arena)).ok());
  CHECK(here.fetch({{kNode, kEpoch, slot, arena->generation(slot), crc32c(arena->span(slot))}}).statuses[0].ok());
  CHECK(here.has_pattern(0, std::byte{9}));
  CHECK_FALSE(UcxTransport::create({.network_devices = "none0"}).ok());
}

TEST_CASE("ucx transport: ten thousand connections to its port that say nothing, or garbage, do no harm") {
  constexpr uint32_t kSeed = 2;
  CAPTURE(kSeed);
  std::mt19937 random(kSeed);
  const Owner owner{.block_bytes = 4096};
  Fetcher f(owner, {.network_devices = "lo", .shares_memory = false});
  const std::set<std::string> addresses = listening();
  REQUIRE(addresses.size() == 1);
  const auto open_files = [] { return std::ranges::distance(std::filesystem::directory_iterator("/proc/self/fd")); };
  const auto before = open_files();
  sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(std::stoul(addresses.begin()->substr(9), nullptr, 16)))};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string bytes;
  for (int i = 0; i < 10'000; ++i) {
    bytes.assign(i % 5 == 0 ? 0 : random() % 200, '\0');
    if (i % 5 > 1)
      for (char& c : bytes) c = static_cast<char>(random());
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
    (void)send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    close(fd);
  }
  OtherProcess other(owner);
  CHECK(f.transport->open_peer(kNode, kEpoch, other.address).ok());
  CHECK(f.fetch({other.slots[1]}).statuses[0].ok());
  f.transport->close_peer(kNode, kEpoch);
  while (open_files() > before + 10) std::this_thread::yield();
}

TEST_CASE("ucx transport: who reaches a transport without the tag of its address gets nothing") {
  for (const Owner& owner : kWays) {
    CAPTURE(owner.shares);
    CAPTURE(owner.gets);
    OtherProcess other(owner);
    Fetcher f(owner);
    UcxAddress address = *read_ucx_address(other.address);
    ++address.tag[1];
    CHECK(f.transport->open_peer(kNode, kEpoch, write_ucx_address(address)).ok());
    const FetchResult result = f.fetch({other.slots[0]}, 200'000);
    CHECK(result.statuses[0].error().detail == "transport: node 1 sent nothing within 200000 us");
    CHECK(f.has_pattern(0, std::byte{0}));
  }
}

TEST_CASE("ucx transport: no two transports have one tag") {
  const auto tag_of = [](const UcxTransportConfig& config) {
    const auto transport = *UcxTransport::create(config);
    return read_ucx_address(transport->publish(kNode, kEpoch, *HostArena::create({.dram_bytes = 4096, .block_bytes = 4096})))->tag;
  };
  CHECK(tag_of({}) != tag_of({}));
}

TEST_CASE("ucx transport: an address that was cut, changed or meant for another node is refused") {
  const Owner owner{.block_bytes = 4096, .gets = true};
  Fetcher f(owner);
  auto arena = *HostArena::create({.dram_bytes = 4096, .block_bytes = 4096}, {.allocate = f.transport->slab_allocator()});
  const std::string address = f.transport->publish(kNode, kEpoch, arena);
  for (size_t size = 0; size < address.size(); ++size)
    CHECK(f.transport->open_peer(kNode, kEpoch, address.substr(0, size)).error().code == Code::kInvalidArgument);
  for (size_t at = 0; at < address.size(); ++at) {
    std::string changed = address;
    changed[at] = changed[at] == '0' ? '1' : '0';
    CHECK(f.transport->open_peer(kNode, kEpoch, changed).error().code == Code::kInvalidArgument);
  }
  CHECK(f.transport->open_peer({2}, kEpoch, address).error().code == Code::kInvalidArgument);
  CHECK(f.transport->open_peer(kNode, kEpoch + 1, address).error().code == Code::kStale);
  CHECK(f.transport->open_peer(kNode, kEpoch, "local:1").error().detail.starts_with("transport: the address \"local:1\" is not"));
  CHECK(f.transport->peer_info(kNode).empty());
}

TEST_CASE("ucx transport: when the other process is killed the fetch fails, and others can still be fetched from") {
  for (const Owner& owner : kWays) {
    CAPTURE(owner.shares);
    CAPTURE(owner.gets);
    OtherProcess other(owner), second(owner);
    Fetcher f(owner);
    CHECK(f.transport->open_peer(kNode, kEpoch, other.address).ok());
    CHECK(f.fetch({other.slots[0]}).statuses[0].ok());
    other.signal(SIGKILL);
    // No deadline that could pass: the broken connection ends it.
    CHECK(f.fetch({other.slots[1], other.slots[2]}).statuses[1].error().code == Code::kUnavailable);
    CHECK(f.fetch({other.slots[1]}).statuses[0].error().code == Code::kUnavailable);
    f.transport->close_peer(kNode, kEpoch);
    CHECK(f.transport->open_peer(kNode, kEpoch, second.address).ok());
    CHECK(f.fetch(second.slots).statuses[3].ok());
    CHECK(f.has_pattern(3, pattern(3)));
  }
}

TEST_CASE("ucx transport: when the other process is stopped the fetch is late, and it works again when that goes on") {
  for (const Owner& owner : kWays) {
    CAPTURE(owner.shares);
    CAPTURE(owner.gets);
    OtherProcess other(owner);
    Fetcher f(owner, {.silent_us = 20'000});
    CHECK(f.transport->open_peer(kNode, kEpoch, other.address).ok());
    CHECK(f.fetch({other.slots[0]}).statuses[0].ok());
    other.signal(SIGSTOP);
    Seen patient;  // has time, and gets its block over another connection than that which the late fetches end
    CHECK(f.transport->fetch({{other.slots[3], f.target(3)}}, kLongUs, patient.events()).ok());
    for (int i = 0; i < 5; ++i) {  // also while connecting
      const FetchResult result = f.fetch({other.slots[1], other.slots[2]}, 30'000);
      for (const Status& status : result.statuses)
        CHECK(status.error().detail == "transport: node 1 sent nothing within 30000 us");
    }
    other.signal(SIGCONT);
    CHECK(f.fetch({other.slots[1]}).statuses[0].ok());
    CHECK(f.has_pattern(0, pattern(1)));
    CHECK(patient.done_promise.get_future().get().statuses[0].ok());
    CHECK(f.has_pattern(3, pattern(3)));
    for (const auto& seen : f.kept) CHECK(seen->done == 1);
  }
}

TEST_CASE("ucx transport: a fetch that waits behind others is not late while these come") {
  const Owner owner{.block_bytes = 64 << 20};
  OtherProcess other(owner);
  Fetcher f(owner);
  CHECK(f.transport->open_peer(kNode, kEpoch, other.address).ok());
  /// Does `count` fetches with ample time, then a last one with this limit. Returns the microseconds of all, and whether the last was in time.
  const auto fetch_many = [&](size_t count, int64_t last_timeout_us) -> std::pair<int64_t, bool> {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<Seen> seen(count + 1);
    for (size_t i = 0; i <= count; ++i) REQUIRE(f.start(seen[i], other.slots, i < count ? kLongUs : last_timeout_us).ok());
    bool is_last_ok = false;
    for (size_t i = 0; i <= count; ++i) {
      const FetchResult result = seen[i].done_promise.get_future().get();
      is_last_ok = std::ranges::all_of(result.statuses, [](const Status& status) { return status.ok(); });
      if (i < count) REQUIRE(is_last_ok);
    }
    const auto took = std::chrono::steady_clock::now() - begin;
    return {std::chrono::duration_cast<std::chrono::microseconds>(took).count(), is_last_ok};
  };
  size_t count = 8;
  int64_t took_us = fetch_many(count, kLongUs).first;
  for (; took_us < 2'000'000; took_us = fetch_many(count, kLongUs).first) {
    count *= 2;
    REQUIRE(count < 1 << 20);
  }
  // They take twice the timeout. If the other process stalls for all of that, the last one is late: then again.
  bool was_in_time = false;
  for (int tries = 0; tries < 10 && !was_in_time; ++tries) {
    const auto [us, is_ok] = fetch_many(count, took_us / 2);
    was_in_time = is_ok && us > took_us / 2;
  }
  CHECK(was_in_time);
  for (uint32_t i = 0; i < 4; ++i) CHECK(f.has_pattern(i, pattern(i)));
}

TEST_CASE("ucx transport: a fetch whose answers are lost is late, though those of others from the same node come, and these are not") {
  const Owner owner{.block_bytes = 4096};
  // It answers two blocks, refuses two more, and says nothing to the rest of what it is asked for at once.
  Fetcher lender(owner, {.shares_memory = false, .serve_blocks_max = 2}), f(owner, {.silent_us = 50'000});
  const auto arena = *HostArena::create({.dram_bytes = owner.block_bytes, .block_bytes = owner.block_bytes});
  const uint32_t slot = *arena->take();
  std::ranges::fill(arena->span(slot), std::byte{9});
  const RemoteSlot from{kNode, kEpoch, slot, arena->generation(slot), crc32c(arena->span(slot))};
  CHECK(f.transport->open_peer(kNode, kEpoch, lender.transport->publish(kNode, kEpoch, arena)).ok());
  std::vector<std::byte> bytes(8 * f.block_bytes);
  std::vector<Fetch> fetches;
  for (size_t i = 0; i < 8; ++i) fetches.push_back({from, std::span(bytes).subspan(i * f.block_bytes, f.block_bytes)});
  Seen lossy;
  CHECK(f.transport->fetch(fetches, 2'000'000, lossy.events()).ok());
  auto done = lossy.done_promise.get_future();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  bool is_over = false;
  while (!is_over && std::chrono::steady_clock::now() < until) {
    CHECK(f.fetch({from}).statuses[0].ok());
    is_over = done.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  REQUIRE(is_over);
  const FetchResult result = done.get();
  for (size_t i = 0; i < 8; ++i) {
    CAPTURE(i);
    if (i < 2)
      CHECK(result.statuses[i].ok());
    else if (i < 4)
      CHECK(result.statuses[i].error().code == Code::kFull);
    else
      CHECK(result.statuses[i].error().detail == "transport: node 1 sent nothing within 2000000 us");
  }
  for (int i = 0; i < 20; ++i) CHECK(f.fetch({from}).statuses[0].ok());
}

/// Starts to fetch slot 1 and sends the owner a signal after the first byte came. Empty: the whole block had come by then.
std::optional<FetchResult> cut_off(Fetcher& f, Seen& seen, OtherProcess& other, int number, int64_t timeout_us) {
  std::ranges::fill(f.target(0), std::byte{0});
  CHECK(f.start(seen, {other.slots[1]}, timeout_us).ok());
  auto done = seen.done_promise.get_future();
  while (std::atomic_ref(f.bytes[0]).load() == std::byte{0} && done.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
    std::this_thread::yield();
  other.signal(number);
  FetchResult result = done.get();
  if (result.statuses[0].ok()) return std::nullopt;
  CHECK(result.statuses[0].error().code == Code::kUnavailable);
  if (result.still_writing) seen.quiet_promise.get_future().wait();
  std::ranges::fill(f.target(0), std::byte{0xee});
  return result;
}

TEST_CASE("ucx transport: a fetch that is late in the middle of a block writes no more, and others go on") {
  for (const bool gets : {false, true}) {
    CAPTURE(gets);
    const Owner owner{.block_bytes = 64 << 20, .gets = gets};
    OtherProcess other(owner);
    Fetcher f(owner, {.silent_us = 20'000});
    CHECK(f.transport->open_peer(kNode, kEpoch, other.address).ok());
    std::optional<FetchResult> late;
    for (int attempt = 0; attempt < 50 && !late; ++attempt) {
      Seen seen, patient;
      CHECK(f.transport->fetch({{other.slots[3], f.target(3)}}, kLongUs, patient.events()).ok());
      late = cut_off(f, seen, other, SIGSTOP, 1'000'000);
      other.signal(SIGCONT);
      CHECK(patient.done_promise.get_future().get().statuses[0].ok());
      CHECK(f.has_pattern(3, pattern(3)));
      if (late) {
        CHECK(late->still_writing == gets);
        // The rest of the late block is sent before this one.
        Seen next;
        CHECK(f.transport->fetch({{other.slots[2], f.target(1)}}, kLongUs, next.events()).ok());
        CHECK(next.done_promise.get_future().get().statuses[0].ok());
        CHECK(f.has_pattern(0, std::byte{0xee}));
        CHECK(f.has_pattern(1, pattern(2)));
      }
      CHECK(seen.done == 1);
      CHECK(seen.quiet == (late && gets ? 1 : 0));
    }
    CHECK(late);
  }
}

TEST_CASE("ucx transport: when the owner is killed in the middle of a block the fetch ends at once and writes no more") {
  for (const bool gets : {false, true}) {
    CAPTURE(gets);
    const Owner owner{.block_bytes = 64 << 20, .gets = gets};
    Fetcher f(owner);
    bool was_cut_off = false;
    for (int attempt = 0; attempt < 20 && !was_cut_off; ++attempt) {
      OtherProcess other(owner);
      CHECK(f.transport->open_peer(kNode, kEpoch, other.address).ok());
      Seen seen;
      was_cut_off = cut_off(f, seen, other, SIGKILL, kLongUs).has_value();
      f.transport->close_peer(kNode, kEpoch);
      CHECK(seen.done == 1);
    }
    CHECK(was_cut_off);
    OtherProcess second(owner);
    CHECK(f.transport->open_peer(kNode, kEpoch, second.address).ok());
    Seen next;
    CHECK(f.transport->fetch({{second.slots[2], f.target(1)}}, kLongUs, next.events()).ok());
    CHECK(next.done_promise.get_future().get().statuses[0].ok());
    CHECK(f.has_pattern(0, std::byte{0xee}));
    CHECK(f.has_pattern(1, pattern(2)));
  }
}

TEST_CASE("ucx transport: a get that is open when the peer is closed, or at the end, is answered and becomes quiet") {
  const Owner owner{.block_bytes = 64 << 20, .gets = true};
  for (const bool ends : {false, true}) {
    CAPTURE(ends);
    bool was_open = false;  // else both blocks had come when the owner stopped
    for (int attempt = 0; attempt < 20 && !was_open; ++attempt) {
      OtherProcess other(owner);
      Fetcher f(owner);
      CHECK(f.transport->open_peer(kNode, kEpoch, other.address).ok());
      CHECK(f.fetch({other.slots[0]}).statuses[0].ok());
      std::ranges::fill(f.target(0), std::byte{0});
      Seen seen;
      CHECK(f.start(seen, {other.slots[1], other.slots[2]}).ok());
      while (std::atomic_ref(f.bytes[0]).load() == std::byte{0}) std::this_thread::yield();
      other.signal(SIGSTOP);
      if (ends)
        f.transport.reset();
      else
        f.transport->close_peer(kNode, kEpoch);
      const FetchResult result = seen.done_promise.get_future().get();
      if (result.still_writing) seen.quiet_promise.get_future().wait();
      CHECK(seen.done == 1);
      CHECK(seen.quiet == (result.still_writing ? 1 : 0));
      was_open = !result.statuses[1].ok();
      if (was_open) CHECK(result.statuses[1].error().code == (ends ? Code::kCancelled : Code::kUnavailable));
    }
    CHECK(was_open);
  }
}

TEST_CASE("ucx transport: blocks that cannot be got come in messages") {
  const Owner owner{.gets = true};
  OtherProcess other(owner);
  Fetcher f(owner);
  UcxAddress address = *read_ucx_address(other.address);
  {
    OtherProcess dead(owner);
    address.get_worker = read_ucx_address(dead.address)->get_worker;
  }
  CHECK(f.transport->open_peer(kNode, kEpoch, write_ucx_address(address)).ok());
  const FetchResult result = f.fetch(other.slots);
  for (uint32_t i = 0; i < 4; ++i) {
    CHECK_MESSAGE(result.statuses[i].ok(), result.statuses[i].error());
    CHECK(f.has_pattern(i, pattern(i)));
  }
  CHECK_MESSAGE(f.transport->peer_info(kNode).starts_with("network (tcp): a get failed: "), f.transport->peer_info(kNode));
}

TEST_CASE("ucx transport: closing a peer ends its fetches, and opening it again lets it be fetched from") {
  const Owner owner;
  OtherProcess other(owner);
  Fetcher f(owner);
  CHECK(f.transport->open_peer(kNode, kEpoch, other.address).ok());
  CHECK(f.fetch({other.slots[0]}).statuses[0].ok());
  other.signal(SIGSTOP);
  Seen seen;
  CHECK(f.start(seen, {other.slots[1]}).ok());
  f.transport->close_peer(kNode, kEpoch + 1);  // another epoch
  CHECK_FALSE(f.transport->peer_info(kNode).empty());
  CHECK(seen.done == 0);
  f.transport->close_peer(kNode, kEpoch);
  const FetchResult result = seen.done_promise.get_future().get();
  CHECK(result.statuses[0].error().detail == "transport: node 1 was closed");
  CHECK_FALSE(result.still_writing);
  CHECK(f.fetch({other.slots[1]}).statuses[0].error().detail == "transport: node 1 is not open");
  other.signal(SIGCONT);
  CHECK(f.transport->open_peer(kNode, kEpoch, other.address).ok());
  CHECK(f.transport->open_peer(kNode, kEpoch, other.address).ok());  // changes nothing
  CHECK(f.fetch({other.slots[1]}).statuses[0].ok());
  CHECK(seen.quiet == 0);
}

TEST_CASE("ucx transport: the open fetches are bounded, and every accepted one is answered once, also at the end") {
  const Owner owner{.block_bytes = 4096};
  OtherProcess other(owner);
  Fetcher f(owner, {.queue_max = 3});
  CHECK(f.transport->open_peer(kNode, kEpoch, other.address).ok());
  other.signal(SIGSTOP);
  std::vector<Seen> seen(5);
  for (size_t i = 0; i < seen.size(); ++i) {
    const Status started = f.start(seen[i], {other.slots[0]});
    CHECK(started.ok() == (i < 3));
    if (!started.ok()) CHECK(started.error().code == Code::kFull);
  }
  f.transport.reset();
  for (size_t i = 0; i < seen.size(); ++i) CHECK(seen[i].done == (i < 3 ? 1 : 0));
  CHECK(seen[2].done_promise.get_future().get().statuses[0].error().code == Code::kCancelled);
}

TEST_CASE("ucx transport: more processes can fetch in turn than it keeps connections to") {
  const Owner owner{.block_bytes = 4096};
  Fetcher lender(owner, {.shares_memory = false, .askers_max = 1});
  const auto arena = *HostArena::create({.dram_bytes = owner.block_bytes, .block_bytes = owner.block_bytes});
  const uint32_t slot = *arena->take();
  std::ranges::fill(arena->span(slot), std::byte{9});
  const RemoteSlot from{kNode, kEpoch, slot, arena->generation(slot), crc32c(arena->span(slot))};
  const std::string address = lender.transport->publish(kNode, kEpoch, arena);
  Fetcher first(owner), second(owner);
  for (Fetcher* f : {&first, &second}) CHECK(f->transport->open_peer(kNode, kEpoch, address).ok());
  for (int i = 0; i < 5; ++i)
    for (Fetcher* f : {&first, &second}) CHECK(f->fetch({from}).statuses[0].ok());
}

TEST_CASE("ucx transport: a slab is zero, may outlive its transport, and can be fetched from by the same process") {
  for (const Owner& owner : kWays) {
    CAPTURE(owner.shares);
    CAPTURE(owner.gets);
    std::shared_ptr<HostArena> arena;
    {
      Fetcher f(owner, owner.config());
      arena = *HostArena::create({.dram_bytes = 4 * owner.block_bytes, .block_bytes = owner.block_bytes},
                                 {.allocate = f.transport->slab_allocator()});
      const uint32_t slot = *arena->take();
      CHECK(std::ranges::all_of(arena->span(slot), [](std::byte b) { return b == std::byte{0}; }));
      std::ranges::fill(arena->span(slot), std::byte{7});
      CHECK(f.transport->open_peer(kNode, kEpoch, f.transport->publish(kNode, kEpoch, arena)).ok());
      CHECK(f.fetch({{kNode, kEpoch, slot, arena->generation(slot), crc32c(arena->span(slot))}}).statuses[0].ok());
      CHECK(f.has_pattern(0, std::byte{7}));
    }
    CHECK(arena->span(0)[0] == std::byte{7});
  }
}

TEST_CASE("ucx transport: garbage and almost right requests and answers are dropped or refused, and harm nobody") {
  constexpr uint32_t kSeed = 1;
  CAPTURE(kSeed);
  std::mt19937 random(kSeed);
  const Owner owner{.block_bytes = 4096};
  OtherProcess other(owner);
  Fetcher f(owner);
  CHECK(f.transport->open_peer(kNode, kEpoch, other.address).ok());
  const auto noise = [&](size_t size) {
    std::string bytes(size, 0);
    for (char& c : bytes) c = static_cast<char>(random());
    return bytes;
  };
  const auto bytes_of = [](const auto& thing) { return std::string(reinterpret_cast<const char*>(&thing), sizeof thing); };
  std::vector<std::string> headers;
  for (size_t size = 0; size < 200; ++size) headers.push_back(noise(size));
  const auto arena = *HostArena::create({.dram_bytes = 4096, .block_bytes = 4096});
  Fetcher third(owner);  // gets the answers that there are
  const std::string asker = read_ucx_address(third.transport->publish(kNode, kEpoch, arena))->worker;
  // One slot that there is, as many as a request may name, one more, half of one, and slots that there are not.
  std::string many;
  for (size_t i = 0; i <= kWireSlotsMax; ++i) many += bytes_of(WireSlot{.generation = 1, .slot = static_cast<uint32_t>(i % 8)});
  const std::string_view all = many;
  std::vector<std::string> data = {"", noise(100), noise(20'000), asker, asker + noise(10 * sizeof(WireSlot)), asker + many};
  for (const size_t size : {sizeof(WireSlot), kWireSlotsMax * sizeof(WireSlot), sizeof(WireSlot) / 2}) data.push_back(asker + std::string(all.substr(0, size)));
  for (int i = 0; i < 300; ++i) {  // right but for one field, or all right and not asked for
    WireRequest request{.tag = read_ucx_address(other.address)->tag, .id = random(), .epoch = kEpoch, .block_bytes = 4096, .node = kNode.value,
                        .want = random() % 2 == 0 ? WireWant::kBytes : WireWant::kGrant, .asker_bytes = static_cast<uint32_t>(asker.size()),
                        .data_crc = crc32c(std::as_bytes(std::span(data[random() % data.size()])))};
    auto* const bytes = reinterpret_cast<unsigned char*>(&request);
    if (i % 3 != 0) bytes[random() % sizeof request] ^= static_cast<unsigned char>(1 + random() % 255);
    headers.push_back(bytes_of(request));
    headers.push_back(headers.back().substr(0, sizeof(WireReply)));
  }
  for (const unsigned id : {1u, 2u, 3u})
    for (const std::string& what : data) CHECK(send_raw_ucx(other.address, id, headers, what).ok());
  CHECK(other.tell("nothing") == "ok\n");
  CHECK(f.fetch(other.slots).statuses[3].ok());
  CHECK(f.has_pattern(3, pattern(3)));
}

namespace {

void kill_while_connecting(bool gets) {
  const uint32_t seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto kills = static_cast<int>(number_from_environment("SEER_TEST_KILLS").value_or(25));
  const Owner owner{.block_bytes = 4096, .gets = gets};
  Fetcher f(owner, owner.config());
  auto arena = *HostArena::create({.dram_bytes = owner.block_bytes, .block_bytes = owner.block_bytes},
                                  {.allocate = f.transport->slab_allocator()});
  const uint32_t slot = *arena->take();
  std::ranges::fill(arena->span(slot), std::byte{9});
  const uint32_t crc = crc32c(arena->span(slot));
  const std::string place = cat(slot, " ", f.transport->publish({2}, kEpoch, arena), " ", arena->generation(slot), " ", crc);
  for (int i = 0; i < kills; ++i) {
    OtherProcess killed(owner);
    std::string address = killed.tell(cat("meet ", place));
    address.pop_back();  // end of the line
    CHECK(f.transport->open_peer(kNode, kEpoch, address).ok());
    const bool fetches = i % 2 == 0;
    auto seen = std::make_shared<Seen>();
    killed.say("go");
    if (fetches) CHECK(f.start(*seen, {killed.slots[0]}).ok());
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    killed.signal(SIGKILL);
    if (fetches) seen->done_promise.get_future().wait();  // fetched, or an error
    f.transport->close_peer(kNode, kEpoch);
    f.kept.push_back(seen);
  }
  OtherProcess other(owner);
  CHECK(f.transport->open_peer(kNode, kEpoch, other.address).ok());
  CHECK(f.fetch({other.slots[1]}).statuses[0].ok());
  CHECK(f.has_pattern(0, pattern(1)));
  CHECK(other.tell(cat("fetch ", place)) == "ok\n");
}

void kill_readers(bool gets) {
  const Owner owner{.block_bytes = 16 << 20, .gets = gets};
  Fetcher f(owner, owner.config());
  auto arena = *HostArena::create({.dram_bytes = owner.block_bytes, .block_bytes = owner.block_bytes},
                                  {.allocate = f.transport->slab_allocator()});
  const uint32_t slot = *arena->take();
  std::ranges::fill(arena->span(slot), std::byte{9});
  const RemoteSlot from{{2}, kEpoch, slot, arena->generation(slot), crc32c(arena->span(slot))};
  const std::string address = f.transport->publish({2}, kEpoch, arena);
  for (int i = 0; i < 3; ++i) {
    OtherProcess other(owner);
    CHECK(other.tell(cat("fetch ", slot, " ", address, " ", from.generation, " ", from.crc32c)) == "ok\n");
    other.signal(i == 0 ? SIGSTOP : SIGKILL);
  }
  CHECK(f.transport->open_peer({2}, kEpoch, address).ok());
  CHECK(f.fetch({from}).statuses[0].ok());
  CHECK(f.has_pattern(0, std::byte{9}));
  // Answers to the dead hold the arena no longer: UCX has let go of them.
  f.transport->withdraw({2}, kEpoch);
  while (arena.use_count() > 1) std::this_thread::yield();
}

}  // namespace

/// In UCX 1.13 one in five such kills aborted the process that lives, where UCX answers over the connection that a request came by.
TEST_CASE("ucx transport: processes that are killed while they and others connect to each other leave the others as they were") {
  kill_while_connecting(false);
}
TEST_CASE("ucx transport: processes that are killed while they fetch leave the owner as it was") { kill_readers(false); }

constexpr const char* kConnectingByGets = "ucx transport: (in a process of its own) killed while they connect for gets";
TEST_CASE(kConnectingByGets * doctest::skip()) { kill_while_connecting(true); }
constexpr const char* kReadersByGets = "ucx transport: (in a process of its own) killed while they get";
TEST_CASE(kReadersByGets * doctest::skip()) { kill_readers(true); }
TEST_CASE("ucx transport: so do processes that are killed while they connect for gets, and while they get") {
  run_apart(kConnectingByGets);
  run_apart(kReadersByGets);
}
#endif
