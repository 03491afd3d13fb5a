// Measures the load that a draft server can take, and how late a token of one instance is known to the others. One server
// process, and client processes that talk to it over TCP on the loopback. A client simulates an instance: every sync_us it has
// made its share of the tokens, spread over its requests, and syncs as an instance does (DraftSync). It keeps logs but builds no
// trees, because real instances have a machine each. The 16 requests of a group run on 16 clients, so every token goes to 15
// others.
//
// A token's value is the time at which it was made, so that its receiver knows how late it is. Its lag is counted from then
// (evenly spread over the time between two syncs) until another client has it in its log. Figures, after a warm-up:
//   appended_tokens_per_s     that were new to the server
//   fetched_tokens_per_s      that it sent
//   lag_ms_p50, p99, max      over all tokens and the clients that got them
//   server_cpu_share          CPU time of the server's process / wall time (1: a whole core)
// Prints one JSON line per rate. Usage: bench_draft_server [--rates 1000000,...] [--clients 64] [--processes 4]
// [--groups 64] [--seconds 10]
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <ctime>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <vector>

#include "actors/draft_server_actor.h"
#include "actors/instance/draft_sync.h"
#include "actors/policy/draft/stream_log.h"
#include "cli/cluster_net.h"

namespace {

using namespace seer;

constexpr uint32_t kSamples = 16;
constexpr int64_t kTtlUs = 600'000'000;
constexpr int64_t kTokenUs = 10;        // a token counts time in such steps: they last for 5.9 hours
constexpr int64_t kWarmUpS = 3;
constexpr size_t kLagMsMax = 10'000;

struct Options {
  std::vector<double> rates{250'000, 500'000, 1'000'000, 2'000'000};
  uint32_t clients = 64;
  uint32_t processes = 4;
  uint32_t groups = 64;
  int64_t seconds = 10;
};

int64_t monotonic_us() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000 + t.tv_nsec / 1000;
}
int32_t token_at(int64_t us) { return static_cast<int32_t>(us / kTokenUs & 0x7fffffff); }
int64_t age_us(int32_t token, int64_t now_us) {
  return static_cast<int64_t>((static_cast<uint32_t>(now_us / kTokenUs) - static_cast<uint32_t>(token)) & 0x7fffffff) * kTokenUs;
}

/// Lags in whole milliseconds; the last is all above.
struct Lags {
  std::array<int64_t, kLagMsMax + 1> counts{};
  void add(int64_t us) { ++counts[std::min<size_t>(static_cast<size_t>(us / 1000), kLagMsMax)]; }
  double share_ms(double share) const {
    int64_t all = 0, sum = 0;
    for (int64_t c : counts) all += c;
    for (size_t ms = 0; ms <= kLagMsMax; ++ms)
      if ((sum += counts[ms]) >= share * static_cast<double>(all)) return static_cast<double>(ms + 1);
    return kLagMsMax;
  }
};

/// Logs of the groups that run on one client, without trees.
class LogDrafter final : public Drafter {
 public:
  LogDrafter(const Options& options, uint32_t client, Lags& lags) : lags_(lags) {
    for (uint32_t g = 0; g < options.groups; ++g)
      for (uint32_t s = 0; s < kSamples; ++s)
        if ((g * kSamples + s) % options.clients == client) requests_.push_back({GroupId{g}, s});
    for (const RequestId r : requests_) {
      Group& group = groups_.emplace_back();
      group.id = r.group;
      while (group.log.stream_count() < kSamples) group.log.add_stream();
      group.mine = r.sample;
    }
  }
  size_t request_count() const { return requests_.size(); }
  std::vector<GroupId> group_ids() const {
    std::vector<GroupId> ids;
    for (const RequestId r : requests_) ids.push_back(r.group);
    return ids;
  }
  bool runs_group_once() const {
    for (size_t i = 1; i < requests_.size(); ++i)
      if (requests_[i].group == requests_[i - 1].group) return false;
    return true;
  }

  /// So many more tokens of each request, made evenly between the two times.
  void write(int64_t tokens, int64_t from_us, int64_t to_us) {
    std::vector<int32_t> text;
    for (int64_t i = 1; i <= tokens; ++i) text.push_back(token_at(from_us + (to_us - from_us) * i / tokens));
    for (Group& group : groups_) group.log.append(group.mine, group.log.end(group.mine), text);
  }
  void count_lags_from(int64_t us) { counted_from_us_ = us; }

  void draft(const DraftText&, const DraftLimits&, Draft& draft) override { draft.clear(); }
  void take_updates(const IsMine& is_mine, int64_t tokens_max, std::vector<CstTokens>& parts) override {
    for (Group& group : groups_) {
      if (!is_mine(group.id) || group.sent >= group.log.end(group.mine) || tokens_max <= 0) continue;
      parts.push_back({group.id, group.mine, group.sent, group.log.tokens(group.mine, group.sent, tokens_max)});
      group.sent += std::ssize(parts.back().tokens);
      tokens_max -= std::ssize(parts.back().tokens);
    }
  }
  std::optional<CstCursor> cursor(GroupId id) override {
    CstCursor cursor{id, {}};
    for (uint32_t s = 0; s < kSamples; ++s) cursor.ends.push_back({s, find(id).log.end(s)});
    return cursor;
  }
  void fetched(const CstFetched& answer) override {
    const int64_t now = monotonic_us();
    for (const CstTokens& part : answer.parts) {
      const int64_t news = find(part.group).log.append(part.sample, part.position, part.tokens);
      if (now < counted_from_us_) continue;
      for (int64_t i = std::ssize(part.tokens) - news; i < std::ssize(part.tokens); ++i)
        lags_.add(age_us(part.tokens[static_cast<size_t>(i)], now));
    }
    for (const CstCursor& wanted : answer.wanted)
      for (const CstEnd& end : wanted.ends)
        if (Group& group = find(wanted.group); end.sample == group.mine) group.sent = std::min(group.sent, end.end);
  }

 private:
  struct Group {
    GroupId id;
    StreamLog log;
    int64_t sent = 0;  // of the request that runs here
    uint32_t mine = 0;
  };
  Group& find(GroupId id) {
    return *std::ranges::find_if(groups_, [&](const Group& group) { return group.id == id; });
  }

  std::vector<RequestId> requests_;  // one of each of groups_
  std::vector<Group> groups_;
  Lags& lags_;
  int64_t counted_from_us_ = 0;
};

struct ClientActor {
  using handle = rt::iface<rt::oneway<Tick>, rt::oneway<CstFetched>>;
  static constexpr const char* kActorName = "bench_client";
  ClientActor(rt::self_ptr<ClientActor> self_in, std::shared_ptr<LogDrafter> drafter_in, DraftServerHandle server, double rate_in)
      : self(self_in), drafter(std::move(drafter_in)), sync({}, drafter), rate(rate_in) {
    sync.set_servers({{{NodeId{0}, server}}});
    sync.chunk_came();
  }
  handle::behavior_type make_behavior() {
    last_us = monotonic_us();
    rt::tell_after(self, DraftSyncConfig{}.sync_us, handle{self}, Tick{});
    return {[this](const Tick&) { on_tick(); },
            [this](const CstFetched& answer) { sync.fetched(answer, handle{self}, rt::now_us(self)); }};
  }
  void on_tick() {
    const int64_t now = monotonic_us();
    owed += rate * static_cast<double>(now - last_us) / 1e6 / static_cast<double>(drafter->request_count());
    const auto tokens = static_cast<int64_t>(owed);
    owed -= static_cast<double>(tokens);
    drafter->write(tokens, last_us, now);
    last_us = now;
    sync.sync(drafter->group_ids(), handle{self}, rt::now_us(self));
    rt::tell_after(self, DraftSyncConfig{}.sync_us, handle{self}, Tick{});
  }
  rt::self_ptr<ClientActor> self;
  std::shared_ptr<LogDrafter> drafter;
  DraftSync sync;
  double rate;  // tokens/s of this client
  double owed = 0;
  int64_t last_us = 0;
};

/// Clients process, process + processes, ...: runs for the time, and writes its lags to the pipe.
int run_clients(const Options& options, uint32_t process, double rate, uint16_t port, int out) {
  const auto net = *ClusterNet::create({});
  rt::system& system = net->system();
  const auto server = net->dial<DraftServerHandle>("127.0.0.1", port);
  if (!server.ok()) {
    std::cerr << server.error().detail << "\n";
    return 1;
  }
  auto lags = std::make_unique<Lags>();
  std::vector<ClientActor::handle> clients;
  const int64_t counted_from_us = monotonic_us() + kWarmUpS * 1'000'000;
  for (uint32_t c = process; c < options.clients; c += options.processes) {
    auto drafter = std::make_shared<LogDrafter>(options, c, *lags);
    if (!drafter->runs_group_once()) return 2;
    drafter->count_lags_from(counted_from_us);
    clients.push_back(rt::spawn<ClientActor>(system, drafter, *server, rate / options.clients));
  }
  std::this_thread::sleep_for(std::chrono::seconds(kWarmUpS + options.seconds));
  const char* bytes = reinterpret_cast<const char*>(lags->counts.data());  // while clients still run: a few tokens more
  for (size_t at = 0; at < sizeof(lags->counts);) {
    const ssize_t n = ::write(out, bytes + at, sizeof(lags->counts) - at);
    if (n <= 0) return 1;
    at += static_cast<size_t>(n);
  }
  ::_exit(0);  // the connection is the server's to close
}

double process_cpu_s() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

struct Pipe {
  int ends[2] = {-1, -1};
};

/// Forks the clients of one rate. They wait for the port before they make any thread.
int measure(const Options& options, double rate) {
  Pipe port_pipe;
  std::vector<Pipe> results(options.processes);
  std::vector<pid_t> children;
  if (::pipe(port_pipe.ends) != 0) return 1;
  for (uint32_t p = 0; p < options.processes; ++p) {
    if (::pipe(results[p].ends) != 0) return 1;
    const pid_t child = ::fork();
    if (child == 0) {
      uint16_t port = 0;
      if (::read(port_pipe.ends[0], &port, sizeof(port)) != sizeof(port)) ::_exit(1);
      ::_exit(run_clients(options, p, rate, port, results[p].ends[1]));
    }
    children.push_back(child);
    ::close(results[p].ends[1]);
  }

  const auto net = *ClusterNet::create({});
  rt::system& system = net->system();
  auto server = rt::spawn<DraftServerActor>(system, DraftServerConfig{.node = NodeId{0}});
  std::vector<GroupId> groups;
  for (uint32_t g = 0; g < options.groups; ++g) groups.push_back(GroupId{g});
  rt::post(server, RegisterGroups{groups, kTtlUs});
  const auto port = net->listen(server, "127.0.0.1", 0);
  if (!port.ok()) {
    std::cerr << port.error().detail << "\n";
    return 1;
  }
  for (uint32_t p = 0; p < options.processes; ++p)
    if (::write(port_pipe.ends[1], &*port, sizeof(uint16_t)) != sizeof(uint16_t)) return 1;

  rt::Inbox<RolloutEvents> inbox(system);
  const auto report = [&] { return inbox.ask<DraftServerReport>(server, GetReport{}); };
  std::this_thread::sleep_for(std::chrono::seconds(kWarmUpS));
  const DraftServerReport before = report();
  const int64_t before_us = monotonic_us();
  const double before_cpu_s = process_cpu_s();
  std::this_thread::sleep_for(std::chrono::seconds(options.seconds));
  const DraftServerReport after = report();
  const double wall_s = static_cast<double>(monotonic_us() - before_us) / 1e6;
  const double cpu_s = process_cpu_s() - before_cpu_s;

  Lags lags;
  int failed = 0;
  for (uint32_t p = 0; p < options.processes; ++p) {
    Lags part;
    char* bytes = reinterpret_cast<char*>(part.counts.data());
    size_t at = 0;
    for (ssize_t n = 1; at < sizeof(part.counts) && n > 0; at += static_cast<size_t>(std::max<ssize_t>(n, 0)))
      n = ::read(results[p].ends[0], bytes + at, sizeof(part.counts) - at);
    for (size_t ms = 0; ms <= kLagMsMax; ++ms) lags.counts[ms] += part.counts[ms];
    ::close(results[p].ends[0]);
    int status = 0;
    ::waitpid(children[p], &status, 0);
    failed += at < sizeof(part.counts) || status != 0;
  }
  if (failed > 0) {
    std::cerr << failed << " of " << options.processes << " client processes failed\n";
    return 1;
  }
  std::cout << nlohmann::json{{"bench", "draft_server"},
                              {"asked_tokens_per_s", rate},
                              {"appended_tokens_per_s", static_cast<double>(after.appended_tokens - before.appended_tokens) / wall_s},
                              {"fetched_tokens_per_s", static_cast<double>(after.fetched_tokens - before.fetched_tokens) / wall_s},
                              {"fetches_per_s", static_cast<double>(after.fetches - before.fetches) / wall_s},
                              {"lag_ms_p50", lags.share_ms(0.5)},
                              {"lag_ms_p99", lags.share_ms(0.99)},
                              {"lag_ms_max", lags.share_ms(1)},
                              {"server_cpu_share", cpu_s / wall_s},
                              {"server_bytes", after.bytes},
                              {"clients", options.clients},
                              {"processes", options.processes},
                              {"groups", options.groups}}
                   .dump()
            << std::endl;
  rt::stop(server);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"draft server: rates and lags"};
  app.add_option("--rates", options.rates, "tokens/s of all clients together, one line each")->delimiter(',');
  app.add_option("--clients", options.clients)->check(CLI::Range(16, 4096));
  app.add_option("--processes", options.processes)->check(CLI::Range(1, 64));
  app.add_option("--groups", options.groups)->check(CLI::Range(1, 100'000));
  app.add_option("--seconds", options.seconds)->check(CLI::Range(1, 3600));
  CLI11_PARSE(app, argc, argv);
  for (const double rate : options.rates) {
    // One process for each rate: the actor system, once started, cannot be forked.
    const pid_t child = ::fork();
    if (child == 0) return measure(options, rate);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status != 0) return 1;
  }
  return 0;
}
