// Random runs of a gateway, by seed: requests of all kinds, new weights, pauses, aborts and crashes at any moment, before simulated
// machines with little memory. Each response is given once, is right, and is made by weights that its request allows; nothing is left
// in the gateway or on the machines.
//
// A failure names its seed. SEER_GATEWAY_FIRST_SEED=<seed> and SEER_GATEWAY_SEEDS=<count> run other seeds than the usual ones; one alone
// prints its log.
#include <iostream>
#include <random>

#include "protocols/number_from_environment.h"
#include "sim/sim_controller.h"

using namespace seer;

namespace {

constexpr uint64_t kSeeds = 400;
constexpr int kActs = 40;
constexpr int64_t kGapUsMax = 25'000;  // about what four steps take

enum class Machines { kOfProcess, kOfCluster };

/// How often each thing happened, of all seeds.
struct Happened {
  int64_t whole = 0, aborted = 0, stale = 0, cancelled = 0, restarts = 0, updates = 0, crashes = 0, machine_crashes = 0, drains = 0, controllers = 0,
          deaths = 0, rollouts = 0;
};

class Storm {
 public:
  Storm(uint64_t seed, Machines machines, const EventLog& log, Happened& all)
      : all_(all),
        rng_(seed * 0x9e3779b97f4a7c15ull),
        tokens_to_(seed % 2 == 0 ? TokensTo::kClient : TokensTo::kJournal),
        config_(config()),
        bench_(cluster(seed, machines, log), config_, choose()) {
    if (machines == Machines::kOfCluster) controller_.emplace(bench_, [this] { return from(0, kGapUsMax); });
  }

  void run() {
    bench_.run_for(1'000);
    for (int i = 0; i < kActs; ++i) {
      act();
      bench_.run_for(from(0, kGapUsMax));
    }
    lost_ = late_ = failed_ = 0;
    bench_.tell([](GatewayActor& gateway) { gateway.go_on(); });
    bench_.cluster.world.run_until(600'000'000, [this] { return bench_.handle != nullptr; });
    bench_.finish();
    check();
    bench_.tell([](GatewayActor& gateway) { CHECK(gateway.flush().ok()); });  // ends the last rollout
    bench_.run_for(ClusterActor::kReturnUs + 60'000'000);  // what a new controller does not know of is kept so long
    const Status drained = bench_.cluster.drained();
    CHECK_MESSAGE(drained.ok(), drained.error().detail);
  }

  std::string gateway_log() const { return bench_.lines.str(); }

 private:
  struct Asked {
    uint32_t responses = 0;
    GatewayRequest request;
    WeightVersion version;  // that ran when it came
    bool is_cancelled = false;
    int64_t came = 0;       // in the order of acts
  };

  SimClusterOptions cluster(uint64_t seed, Machines machines, const EventLog& log) {
    SimClusterOptions o;
    o.seed = seed;
    o.log = log;
    o.joins_cluster = machines == Machines::kOfCluster;
    const auto policies = chunk_policy_names([](const SchedulingPolicy& policy) { return !policy.needs_lengths; });
    o.scheduler.policy = policies[rng_() % policies.size()];
    o.scheduler.chunk_tokens = chance(20) ? 0 : from(1, 50);
    o.instances = static_cast<uint32_t>(from(1, 3));
    o.nodes = chance(50) ? 1 : static_cast<uint32_t>(from(1, o.instances));
    o.groups = 8;
    o.length_max = 60;
    o.rows_max = static_cast<int32_t>(from(2, 12));
    o.device_blocks = static_cast<int32_t>(from(20, 60));
    o.dram_blocks = chance(20) ? 0 : from(20, 300);
    o.draft_tokens_max = chance(50) ? from(1, 5) : 0;
    o.draft_from_group = true;  // the other drafts know the requests of the cluster's own rollout alone
    o.alike_share = 0.9;
    o.remake_us = chance(50) ? from(1, 50'000) : 0;
    o.cold_blocks = chance(50) ? from(20, 300) : 0;
    o.has_links = o.joins_cluster;
    lost_ = chance(50) ? from(0, 30) : 0;
    late_ = chance(50) ? from(0, 300) : 0;
    o.link_faults.is_lost = [this] { return happens(lost_); };
    o.link_faults.late_us = [this] { return happens(late_) ? from(1, kGapUsMax) : 0; };
    failed_ = o.joins_cluster && chance(30) ? from(0, 300) : 0;  // a process whose machine gives up ends
    o.weights_fault = [this] { return happens(failed_) ? Status(fail(Code::kIo, "they cannot be read")) : Status(); };
    o.transfer_fault = [this] { return happens(lost_) ? std::optional(Code::kUnavailable) : std::nullopt; };
    return o;
  }
  GatewayConfig config() {
    return {.rollout = {.chunk_silence_us = 2'000'000},
            .group_wait_us = 20'000,
            .rollout_responses = static_cast<size_t>(from(2, 40)),
            .choose_responses = 8};
  }
  GatewayBench::ChooseSchedule choose() {
    if (chance(70)) return {};
    return [this](std::vector<GroupSpec>, std::function<void(GatewaySchedule)> then) {
      bench_.cluster.world.after(from(1, 20'000), [then = std::move(then)] {
        then({.scheduler = {.policy = "seer", .chunk_tokens = 20}, .why = "so"});
      });
    };
  }

  void act() {
    ++acts_;
    switch (from(0, 19)) {
      case 0: case 1: return update();
      case 2: return pause();
      case 3: case 4: return bench_.tell([](GatewayActor& gateway) { gateway.go_on(); });
      case 5: return abort();
      case 6: return cancel();
      case 7: return crash();
      case 8: return bench_.tell([](GatewayActor& gateway) { (void)gateway.flush(); });
      default: return ask();
    }
  }

  void ask() {
    GatewayRequest request;
    request.rid = chance(50) ? "a" : "ab";
    request.tokens_to = chance(50) ? tokens_to_ : TokensTo::kNobody;
    request.priority = static_cast<int32_t>(from(0, 1));
    if (chance(30)) request.version = WeightVersion{static_cast<uint64_t>(from(1, static_cast<int64_t>(versions_)))};
    if (chance(30)) request.group = "named", request.group_size = static_cast<uint32_t>(from(1, 6));
    const auto first = static_cast<uint32_t>(from(0, 3)), end = static_cast<uint32_t>(from(first + 1, 4));
    const Ticket ticket = bench_.ask(static_cast<uint32_t>(from(0, 7)), first, end, request);
    const WeightVersion version = bench_.handle ? bench_.state().weights.version() : WeightVersion{1};
    asked_[ticket] = {.responses = end - first, .request = request, .version = version, .came = acts_};
  }
  void update() {
    const WeightVersion next{++versions_};
    if (controller_ && chance(10)) {
      has_elsewhere_ = true;
      return controller_->update_elsewhere(next);
    }
    ++orders_;
    const InFlight how = in_flight();
    bench_.tell([this, next, how](GatewayActor& gateway) {
      const auto done = [this](const Status& status) { ++answered_, all_.updates += status.ok() ? 1 : 0; };
      gateway.update_weights({.what = {next, "weights"}, .in_flight = how, .done = done});
    });
  }
  /// A trainer whose update failed tries again until it is done.
  void insist(WeightVersion next) {
    ++orders_;
    bench_.tell([this, next](GatewayActor& gateway) {
      gateway.update_weights({.what = {next, "weights"}, .in_flight = InFlight::kFinish, .done = [this, next](const Status& status) {
        ++answered_, all_.updates += status.ok() ? 1 : 0;
        if (status.ok() || next <= bench_.state().weights.version()) return;
        bench_.cluster.world.after(kGapUsMax, [this, next] { insist(next); });
      }});
    });
  }
  void pause() {
    const InFlight how = in_flight();
    bench_.tell([this, how](GatewayActor& gateway) { gateway.pause(how, [this] { ++idle_; }); });
    ++pauses_;
  }
  void abort() {
    aborts_ = restarts_ = acts_;
    const std::string rid = chance(30) ? "" : chance(50) ? "a" : "ab";
    bench_.tell([rid](GatewayActor& gateway) { gateway.abort(rid); });
  }
  void cancel() {
    if (asked_.empty()) return;
    const auto at = std::next(asked_.begin(), from(0, std::ssize(asked_) - 1));
    at->second.is_cancelled = true;
    bench_.tell([ticket = at->first](GatewayActor& gateway) { gateway.cancel(ticket); });
  }
  void crash() {
    const auto instance = static_cast<uint32_t>(from(0, bench_.cluster.options.instances - 1));
    const uint32_t node = instance % bench_.cluster.options.nodes;
    if (!bench_.cluster.is_up(node)) return;
    if (controller_ && chance(60)) return lose_machine(node);
    if (bench_.cluster.options.dram_blocks > 0 && chance(30))
      rt::kill(bench_.cluster.kv_node(node));
    else
      rt::kill(bench_.cluster.instance(instance));
    ++all_.crashes;
  }
  void lose_machine(uint32_t node) {
    const int64_t down_us = from(1, 4 * kGapUsMax);
    if (chance(20) && bench_.handle) return die();
    if (chance(20)) {
      controller_->restart(down_us);
      ++all_.controllers;
    } else if (chance(50)) {
      controller_->crash(node, down_us);
      ++all_.machine_crashes;
    } else {
      controller_->drain(node, from(1, 8 * kGapUsMax), down_us);
      ++all_.drains;
    }
  }

  /// The server's process dies. Another one asks for what its journal had, and goes on from the tokens there; other clients are gone.
  void die() {
    bench_.kill();
    bench_.run_for(0);
    ++all_.deaths;
    answered_ = orders_;  // nobody waits for those any more
    idle_ = pauses_;
    controller_->ask_weights([this](WeightVersion version, uint64_t weights) {
      GatewayConfig again = config_;
      again.version = version;
      again.weights = weights;
      bench_.start(again);
      insist(WeightVersion{++versions_});  // machines may have weights of which nobody else knows where they come from
    });
    const std::map<Ticket, Asked> before = asked_;
    for (const auto& [ticket, asked] : before) {
      asked_.at(ticket).is_cancelled = true;
      if (asked.is_cancelled || asked.request.tokens_to != TokensTo::kJournal) continue;
      for (uint32_t sample = 0; sample < asked.responses; ++sample)
        if (!bench_.responses[ticket].contains(sample)) ask_again(ticket, asked, sample);
    }
  }
  void ask_again(Ticket ticket, const Asked& asked, uint32_t sample) {
    GatewayRequest request = asked.request;
    const WeightVersion version = bench_.told_versions[{ticket, sample}];
    BegunResponse begun{{}, version};
    if (const size_t told = tokens_told(ticket, asked, sample); told > 0) {
      begun.output = bench_.right_of(ticket, sample, version);
      begun.output.cut(told);
    }
    request.begun = {begun};
    const GatewayBench::Asked& what = bench_.asked.at(ticket);
    const Ticket again = bench_.ask(what.group, what.first + sample, what.first + sample + 1, request);
    asked_[again] = {.responses = 1, .request = std::move(request), .version = asked.version, .came = acts_};
  }
  /// How many tokens of the response its journal has, with those of the servers before.
  size_t tokens_told(Ticket ticket, const Asked& asked, uint32_t sample) {
    const auto first = bench_.first_told.find({ticket, sample});
    if (first != bench_.first_told.end()) return static_cast<size_t>(first->second) + bench_.streamed[{ticket, sample}].size();
    return asked.request.begun.empty() ? 0 : asked.request.begun[sample].output.size();
  }

  void check() {
    for (const auto& [ticket, asked] : asked_) {
      CAPTURE(ticket);
      const auto& given = bench_.responses[ticket];
      CHECK((given.size() == asked.responses || asked.is_cancelled));
      all_.cancelled += asked.responses - static_cast<int64_t>(given.size());
      for (const auto& [sample, response] : given) check(ticket, asked, sample, response);
    }
    const GatewayActor& state = bench_.state();
    CHECK(state.open.empty());
    CHECK(state.waiting.empty());
    CHECK(state.running.empty());
    CHECK(state.pieces_open == 0);
    CHECK(answered_ == orders_);
    CHECK(idle_ == pauses_);
    if (tokens_to_ == TokensTo::kClient) CHECK(bench_.restarts == 0);
    all_.restarts += bench_.restarts;
    all_.rollouts += bench_.rollouts;
  }
  void check(Ticket ticket, const Asked& asked, uint32_t sample, const Response& response) {
    CAPTURE(sample);
    if (response.finish == FinishReason::kError) {
      ++all_.stale;
      CHECK(response.output.empty());
      // A client that heard tokens of weights that no machine has any more cannot have the others.
      if (controller_ && asked.request.tokens_to == TokensTo::kClient && response.error.starts_with("no instance is left")) return;
      CHECK_MESSAGE(response.error.starts_with("it is for weight version "), response.error);
      CHECK(asked.request.version.has_value());
      return;
    }
    CHECK(response.version >= asked.version);
    if (!response.output.empty()) CHECK(response.version == asked.request.version.value_or(response.version));
    const OutputTokens right = bench_.right_of(ticket, sample, response.version);
    const auto size = response.output.ids.size();
    REQUIRE(size <= right.ids.size());
    CHECK(std::equal(response.output.ids.begin(), response.output.ids.end(), right.ids.begin()));
    CHECK(std::equal(response.output.logprobs.begin(), response.output.logprobs.end(), right.logprobs.begin()));
    if (response.finish == FinishReason::kAborted) {
      ++all_.aborted;
      const bool may_restart = asked.request.tokens_to == TokensTo::kClient;
      const bool changed_unasked = has_elsewhere_ || bench_.logged("weights_late") > 0;
      CHECK(((may_restart && changed_unasked) || (may_restart ? restarts_ : aborts_) >= asked.came));
    } else {
      ++all_.whole;
      CHECK(size == right.ids.size());
    }
    if (asked.request.tokens_to == TokensTo::kNobody || asked.is_cancelled) return;
    // A journal may have heard tokens of a request that was to start anew, or from what another server had, and was aborted before it did.
    const size_t begun = asked.request.begun.empty() ? 0 : asked.request.begun[sample].output.size();
    if (asked.request.tokens_to == TokensTo::kJournal && response.finish == FinishReason::kAborted && size <= begun) return;
    std::vector<int32_t> told = bench_.streamed[{ticket, sample}];
    const size_t before = std::min(tokens_told(ticket, asked, sample) - told.size(), size);
    told.insert(told.begin(), right.ids.begin(), right.ids.begin() + static_cast<std::ptrdiff_t>(before));  // by a server that died
    CAPTURE(before);
    CAPTURE(told.size());
    CAPTURE(size);
    CHECK(told == response.output.ids);
  }

  InFlight in_flight() {
    const auto how = static_cast<InFlight>(from(0, 2));
    if (how == InFlight::kAbort) aborts_ = acts_;
    if (how != InFlight::kFinish) restarts_ = acts_;
    return how;
  }
  bool happens(int64_t permille) { return from(0, 999) < permille; }
  bool chance(uint64_t percent) { return rng_() % 100 < percent; }
  int64_t from(int64_t least, int64_t most) { return least + static_cast<int64_t>(rng_() % static_cast<uint64_t>(most - least + 1)); }

  Happened& all_;
  std::mt19937_64 rng_;
  int64_t lost_ = 0, late_ = 0, failed_ = 0;  // of 1000 messages between machines; of 1000 updates of an engine
  const TokensTo tokens_to_;
  const GatewayConfig config_;
  GatewayBench bench_;
  std::optional<SimController> controller_;
  std::map<Ticket, Asked> asked_;
  uint64_t versions_ = 1, orders_ = 0, answered_ = 0;
  bool has_elsewhere_ = false;  // weights that another process ordered
  int64_t pauses_ = 0, idle_ = 0;
  int64_t acts_ = 0, aborts_ = -1, restarts_ = -1;  // the last act that may abort, and that may abort who heard its tokens
};

/// Returns what happened in all, if as many seeds ran as usual.
std::optional<Happened> run_storms(Machines machines, const std::string& test) {
  const uint64_t first = number_from_environment("SEER_GATEWAY_FIRST_SEED").value_or(1);
  const uint64_t count = number_from_environment("SEER_GATEWAY_SEEDS").value_or(kSeeds);
  Happened all;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    INFO("again: SEER_GATEWAY_FIRST_SEED=", seed, " SEER_GATEWAY_SEEDS=1 build/release/bin/seer_sim_tests -tc='", test, "'");
    Storm storm(seed, machines, count == 1 ? EventLog::to(std::cout, LogLevel::kInfo, LogClock::kVirtual) : EventLog{}, all);
    storm.run();
    if (count == 1) std::cout << "Of the gateway:\n" << storm.gateway_log();
  }
  MESSAGE(count, " seeds: ", all.whole, " whole responses, ", all.aborted, " aborted, ", all.stale, " of other weights, ", all.cancelled,
          " cancelled, ", all.restarts, " told anew, ", all.updates, " updates, ", all.crashes, " crashes, ", all.machine_crashes,
          " of machines, ", all.drains, " drained machines, ", all.controllers, " new controllers, ", all.deaths, " new servers, ", all.rollouts, " rollouts");
  if (count < kSeeds) return std::nullopt;
  for (const int64_t kind : {all.whole, all.aborted, all.stale, all.cancelled, all.restarts, all.updates, all.crashes}) CHECK(kind > 0);
  return all;
}

}  // namespace

TEST_CASE("gateway: whatever comes when, each response is given once, is right, and has weights that its request allows") {
  run_storms(Machines::kOfProcess, "gateway: whatever*");
}

TEST_CASE("cluster: so it is while machines enter it, leave it and crash") {
  const std::optional<Happened> all = run_storms(Machines::kOfCluster, "cluster: so*");
  if (!all) return;
  CHECK(all->machine_crashes > 0);
  CHECK(all->drains > 0);
  CHECK(all->controllers > 0);
  CHECK(all->deaths > 0);
}
