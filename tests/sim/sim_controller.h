// SimController: a cluster's controller and its machines, before a gateway whose cluster has `joins_cluster`. Machines enter, leave
// and crash; the gateway hears of it. That is what `seer node` and `seer serve --cluster` do over TCP.
#pragma once
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "actors/cluster_actor.h"
#include "actors/gateway_bench.h"

namespace seer {

class SimController {
 public:
  /// All machines enter. REQUIRES: the bench outlives it.
  explicit SimController(GatewayBench& bench) : bench_(bench), controller_(world().spawn<ClusterActor>(kFirstNumber, bench.cluster.options.log)) {
    bench_.run_for(1);  // it starts
    bench_.cluster.fleet.use_directory(rt::look<ClusterActor>(controller_).directory);
    bench_.next_rollout = [id = kFirstNumber]() mutable { return RolloutId{static_cast<uint32_t>(++id)}; };
    bench_.weights_are = [this](const ClusterWeights& weights) { rt::post(controller_, weights); };
    bench_.changed_late = [this](const WeightsUpdated& answer) { rt::post(controller_, answer); };
    bench_.before_rollout = [this](RolloutConfig& config) {
      config.machines_may_join = true;
      if (instances_up() > 0) config.instances_expected = instances_up();
    };
    bench_.rollout_started = [this](RolloutId id, const RolloutHandle& rollout) { rt::post(controller_, RolloutStarted{id, rollout}); };
    rt::post(controller_, WatchCluster{world().spawn<Watch>(this)});
    for (uint32_t n = 0; n < bench_.cluster.options.nodes; ++n) enter(n);
  }

  /// The machine is in the cluster, as far as the gateway knows.
  bool is_up(uint32_t n) const { return bench_.cluster.is_up(n); }
  /// The machine is gone at once, and enters again after down_us. REQUIRES: it is up.
  void crash(uint32_t n, int64_t down_us) {
    down_us_[n] = down_us;
    rt::kill(bench_.cluster.node(n));
  }
  /// It leaves, and enters again down_us after it has.
  void drain(uint32_t n, int64_t timeout_us, int64_t down_us) {
    down_us_[n] = down_us;
    rt::post(controller_, DrainMachine{NodeId{n}, timeout_us});
  }

  static constexpr uint64_t kFirstNumber = 1000;  // the first rollout has the next one

 private:
  static constexpr int64_t kAgainUs = 1'000;

  struct Watch {
    using handle = ClusterSink;
    static constexpr const char* kActorName = "cluster_watch";
    Watch(rt::self_ptr<Watch>, SimController* of_in) : of(of_in) {}
    handle::behavior_type make_behavior() {
      return {[this](const NodeJoined& node) { (void)of->bench_.cluster.fleet.add_node(node.at.node, node.handle); },
              [this](const PartLost& lost) { of->left(lost); },
              [this](const ClusterWeights& weights) { of->bench_.tell([weights](GatewayActor& gateway) { gateway.follow_weights(weights); }); }};
    }
    SimController* of;
  };

  SimWorld& world() { return bench_.cluster.world; }
  size_t instances_up() const {
    size_t up = 0;
    for (uint32_t n = 0; n < bench_.cluster.options.nodes; ++n) up += is_up(n) ? bench_.cluster.config_of(NodeId{n}).instances.size() : 0;
    return up;
  }
  void left(const PartLost& lost) {
    bench_.cluster.fleet.lose_node(lost);
    bench_.tell([node = lost.node, in_order = lost.reason.empty()](GatewayActor& gateway) { gateway.lose_node(node, in_order); });
  }

  /// A machine loads its model, whose weights are those of the beginning, and asks to enter until it may.
  void enter(uint32_t n) {
    const NodeConfig config = bench_.cluster.config_of(NodeId{n});
    auto made = std::make_shared<NodeMachinery>(*make_machinery(config, *bench_.cluster.makers));
    ask(n, std::move(made));
  }
  void ask(uint32_t n, std::shared_ptr<NodeMachinery> made) {
    const EnterCluster question{.node = NodeId{n}, .identity = instance_identity(made->instances.begin()->second.engine->info(), 0)};
    // The unused argument is for CAF 0.17: see rt::spawn().
    world().system.spawn([this, n, made, question](caf::event_based_actor* self, char) {
      rt::ask(self, controller_, rt::kControlTimeoutUs, question).then([this, n, made](const ClusterEntered& entered) {
        if (entered.error.empty()) return start(n, entered, made);
        world().after(kAgainUs, [this, n, made] { ask(n, made); });
      });
    }, char{});
  }
  void start(uint32_t n, const ClusterEntered& entered, const std::shared_ptr<NodeMachinery>& made) {
    SimCluster& cluster = bench_.cluster;
    NodeConfig config = cluster.config_of(NodeId{n});
    config.epoch = entered.epoch;
    const auto instances = static_cast<uint32_t>(config.instances.size());
    const FleetLinks links = cluster.fleet_links();
    const NodeHandle node = start_node(world().system, config, cluster.makers, std::move(*made),
                                       links.to_directory ? links.to_directory(entered.directory) : entered.directory);
    rt::post(controller_, NodeReady{{NodeId{n}, "", 0}, node, instances});
    world().when_over(node, [this, n] {
      world().after(down_us_[n], [this, n] { enter(n); });
    });
  }

  GatewayBench& bench_;
  ClusterHandle controller_;
  std::map<uint32_t, int64_t> down_us_;
};

}  // namespace seer
