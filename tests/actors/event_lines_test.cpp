// The log lines that actors write, with the times of the virtual clock.
#include <doctest/doctest.h>

#include <bit>
#include <sstream>

#include "actors/cluster_checks.h"

using namespace seer;

namespace {

/// The lines of a run, and the cluster that writes them.
struct Watched {
  explicit Watched(SimClusterOptions o, LogLevel level = LogLevel::kInfo) : cluster(with_log(std::move(o), level)) {}
  SimClusterOptions with_log(SimClusterOptions o, LogLevel level) {
    o.log = EventLog::to(out, level, LogClock::kVirtual);
    return o;
  }
  std::vector<std::string> lines() const {
    std::vector<std::string> all;
    std::istringstream in(out.str());
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  }
  /// Without the times.
  std::vector<std::string> events() const {
    std::vector<std::string> all = lines();
    for (std::string& line : all) line.erase(0, line.find(' ') + 1);
    return all;
  }
  /// Lines with this event, from the `from`-th on; -1: none.
  int64_t find(const std::string& event, int64_t from = 0) const {
    const std::vector<std::string> all = events();
    for (int64_t i = from; i < std::ssize(all); ++i)
      if (all[static_cast<size_t>(i)].starts_with(event)) return i;
    return -1;
  }

  std::ostringstream out;
  SimCluster cluster;
};

}  // namespace

TEST_CASE("event lines: a killed instance is lost, started again and up, at the times of the virtual clock") {
  Watched run({});
  run.cluster.start();
  run.cluster.world.run_until(20'000);
  REQUIRE_FALSE(run.cluster.over());
  run.cluster.kill_instance(InstanceId{1});
  run.cluster.finish();
  check_exact(run.cluster);
  CAPTURE(run.out.str());
  const int64_t started = run.find("info rollout_started rollout=0 policy=seer requests=24 groups=6 instances=2 weight_version=");
  CHECK(run.find("info node_up node=0 instances=2") == 0);
  CHECK(run.find("info instance_up rollout=0 instance=0 node=0 kv_blocks=64") > 0);
  CHECK(run.find("info instance_up rollout=0 instance=1 node=0 kv_blocks=64") > 0);
  REQUIRE(started > 0);
  const int64_t lost = run.find("warn instance_lost rollout=0 instance=1 chunks=");
  const int64_t again = run.find("warn instance_restarted instance=1 node=0 restarts=1");
  REQUIRE(lost > started);
  REQUIRE(again > started);
  CHECK(run.lines()[static_cast<size_t>(lost)].starts_with("0.020000 "));
  CHECK(run.lines()[static_cast<size_t>(lost)].ends_with(" instances_left=1"));
  CHECK(run.lines()[static_cast<size_t>(again)].starts_with("0.020000 "));
  CHECK(run.find("info instance_up rollout=0 instance=1 ", started) > again);
  CHECK(run.find("info rollout_ended rollout=0 complete=true finished=24 requests=24 failed=0 ") == std::ssize(run.lines()) - 1);
}

TEST_CASE("event lines: a node that gives up says so, and a rollout without instances why it ended") {
  SimClusterOptions o;
  o.restarts_max = 0;
  Watched run(o);
  run.cluster.start();
  run.cluster.world.run_until(20'000);
  run.cluster.kill_instance(InstanceId{1});
  run.cluster.run_for(0);
  run.cluster.kill_instance(InstanceId{0});
  run.cluster.finish();
  CAPTURE(run.out.str());
  CHECK(run.find("warn part_lost rollout=0 node=0 reason=\"instance 1 on node 0 died after 0 restarts\"") > 0);
  CHECK(run.find("error node_gave_up node=0 restarts=2") > 0);
  CHECK(run.find("info rollout_ended rollout=0 complete=false ") > 0);
  CHECK(run.out.str().find("error=\"node 0 gave up when instance 0 died after 0 restarts\"") != std::string::npos);
}

TEST_CASE("event lines: a KV node that dies is started again with its instances") {
  SimClusterOptions o;
  o.device_blocks = 60;
  Watched run(o);
  run.cluster.start();
  run.cluster.world.run_until(20'000);
  run.cluster.kill_kv_node();
  run.cluster.finish();
  check_exact(run.cluster);
  CAPTURE(run.out.str());
  const int64_t pool = run.find("warn kv_node_restarted node=0 restarts=1");
  REQUIRE(pool > 0);
  CHECK(run.find("warn instance_restarted instance=0 node=0 restarts=1", pool) > pool);
  CHECK(run.find("warn instance_restarted instance=1 node=0 restarts=1", pool) > pool);
}

TEST_CASE("event lines: a cold store that always fails gets a line at 1, 2, 4, ... failures") {
  SimClusterOptions o;
  o.scheduler = {.policy = "las", .chunk_tokens = 9, .reserve_share = 0.1};
  o.device_blocks = 60;
  o.dram_blocks = 60;
  o.cold_blocks = 4096;
  o.cold_faults.put = [](const BlockKey&) { return std::optional<Code>(Code::kIo); };
  Watched run(o, LogLevel::kWarn);
  run.cluster.run();
  check_exact(run.cluster);
  CAPTURE(run.out.str());
  const uint64_t failures = run.cluster.kv_node_state().cold_failures;
  REQUIRE(failures >= 2);
  CHECK(std::ssize(run.lines()) == std::bit_width(failures));
  CHECK(run.find("warn cold_store_failure node=0 failures=1 error=") == 0);
  CHECK(run.find("warn cold_store_failure node=0 failures=2 error=") == 1);
}

TEST_CASE("event lines: a run without faults has none at warn, and the same seed gives the same lines") {
  SimClusterOptions o;
  o.seed = 3;
  Watched quiet(o, LogLevel::kWarn);
  quiet.cluster.run();
  CHECK(quiet.out.str() == "");
  const auto lines_of = [&] {
    Watched run(o, LogLevel::kDebug);
    run.cluster.run();
    return run.lines();
  };
  CHECK(lines_of() == lines_of());
}
