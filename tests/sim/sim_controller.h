// SimController: a cluster's controller and its machines, before a gateway whose cluster has `joins_cluster`. Machines enter, leave
// and crash, and the controller is started anew; the gateway hears of it. That is what `seer node` and `seer serve --cluster` do over
// TCP.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "actors/cluster_actor.h"
#include "actors/gateway_bench.h"

namespace seer {

class SimController {
 public:
  /// All machines enter. `delay_us`: until somebody notices that there is another controller. REQUIRES: the bench outlives it.
  explicit SimController(GatewayBench& bench, std::function<int64_t()> delay_us = [] { return int64_t{0}; })
      : bench_(bench), delay_us_(std::move(delay_us)), watch_(world().spawn<Watch>(this)), other_sink_(world().spawn<Answers>(this)) {
    bench_.next_rollout = [id = kFirstNumber]() mutable { return RolloutId{static_cast<uint32_t>(++id)}; };
    bench_.weights_are = [this](const ClusterWeights& weights) {
      weights_ = weights.what;
      tell_controller(weights);
    };
    bench_.changed_late = [this](const WeightsUpdated& answer) { tell_controller(answer); };
    bench_.before_rollout = [this](RolloutConfig& config) {
      config.machines_may_join = true;
      if (instances_up() > 0) config.instances_expected = instances_up();
    };
    bench_.rollout_started = [this](RolloutId id, const RolloutHandle& rollout) {
      rollouts_.insert(id);
      tell_controller(RolloutStarted{id, rollout});
    };
    start_controller();
    for (uint32_t n = 0; n < bench_.cluster.options.nodes; ++n) load(n);
  }

  /// The machine is gone at once, and enters again after down_us. REQUIRES: the gateway knows it.
  void crash(uint32_t n, int64_t down_us) {
    down_us_[n] = down_us;
    rt::kill(bench_.cluster.node(n));
  }
  /// It leaves, and enters again down_us after it has.
  void drain(uint32_t n, int64_t timeout_us, int64_t down_us) {
    down_us_[n] = down_us;
    tell_controller(DrainMachine{NodeId{n}, timeout_us});
  }
  /// The controller's process is gone, and another one is started after down_us. Machines and gateway enter again.
  void restart(int64_t down_us) {
    if (!controller_) return;
    rt::kill(std::exchange(controller_, {}));
    world().after(down_us, [this] {
      start_controller();
      for (const auto& [n, machine] : machines_) later([this, n = n] { enter_again(n); });
    });
  }
  /// Asks which weights the machines have, until some have any.
  void ask_weights(std::function<void(WeightVersion, uint64_t weights)> then) {
    const auto again = [this, then] { world().after(kAgainUs, [this, then] { ask_weights(then); }); };
    if (!controller_) return again();
    world().ask<RolloutEntered>(controller_, EnterRollout{},
                        [=](const RolloutEntered& entered) { entered.error.empty() ? then(entered.version, entered.weights) : again(); }, again);
  }
  /// Another server updates all machines that the gateway knows.
  void update_elsewhere(WeightVersion version) {
    if (other_.is_under_way() || !other_.may_begin({version}).ok()) return;
    const NewWeights what{version, "weights"};
    other_.begin(what, {}, fleet().update_weights(what, other_sink_));
    (void)other_.start_time(world().now_us());
    tell_other([] {});
    world().after(kOtherUs, [this] { tell_other([this] { other_.end_in_time(world().now_us()); }); });
  }

 private:
  static constexpr uint64_t kFirstNumber = 1000;  // the first rollout has the next one
  static constexpr int64_t kAgainUs = 1'000;      // between two questions
  static constexpr int64_t kOtherUs = 1'000'000;  // that the other server waits for machines

  /// Of the other server.
  struct Answers {
    using handle = WeightsSink;
    static constexpr const char* kActorName = "weights_answers";
    Answers(rt::self_ptr<Answers>, SimController* of_in) : of(of_in) {}
    handle::behavior_type make_behavior() {
      return {[this](const WeightsUpdated& answer) { of->tell_other([&] { of->other_.note(answer); }); }};
    }
    SimController* of;
  };
  template <class F>
  void tell_other(F f) {
    f();
    while (const auto step = other_.take())
      if (const auto* run = std::get_if<WeightUpdates::Run>(&*step)) {
        other_weights_ = run->now;
        tell_controller(other_weights_);
      }
  }

  struct Machine {
    NodeReady ready;
    ClusterIdentity identity;  // that it started with
    uint64_t epoch = 0;
  };

  struct Watch {
    using handle = ClusterSink;
    static constexpr const char* kActorName = "cluster_watch";
    Watch(rt::self_ptr<Watch>, SimController* of_in) : of(of_in) {}
    handle::behavior_type make_behavior() {
      return {[this](const NodeJoined& node) { of->joined(node); },
              [](const PartLost&) {},  // the gateway's process sees it itself
              [this](const ClusterWeights& weights) { of->bench_.tell([weights](GatewayActor& gateway) { gateway.follow_weights(weights); }); }};
    }
    SimController* of;
  };

  SimWorld& world() { return bench_.cluster.world; }
  Fleet& fleet() { return bench_.cluster.fleet; }
  void later(std::function<void()> then) { world().after(delay_us_(), std::move(then)); }
  /// Lost while there is none.
  template <class Message>
  void tell_controller(Message message) {
    if (controller_) rt::post(controller_, std::move(message));
  }

  // ---- the gateway's process ------------------------------------------------------------------------------------------------
  void start_controller() {
    controller_ = world().spawn<ClusterActor>(kFirstNumber + static_cast<uint64_t>(world().now_us()) / 1000, bench_.cluster.options.log);
    later([this, controller = controller_] { follow(controller); });
    later([this, controller = controller_] { rt::post(controller, ClusterWeights{other_weights_.what, {}}); });
  }
  /// It asks which directory there is, says what it has, and watches.
  void follow(const ClusterHandle& controller) {
    world().ask<RolloutEntered>(controller, EnterRollout{}, [this, controller](const RolloutEntered& entered) {
      fleet().use_directory(entered.directory);
      std::erase_if(rollouts_, [this](RolloutId id) { return fleet().rollout(id) == nullptr; });
      for (const RolloutId id : rollouts_) {
        rt::post(controller, EnterRollout{.id = id, .identity = {}});
        rt::post(controller, RolloutStarted{id, fleet().rollout(id)});
      }
      if (weights_.version != WeightVersion{}) rt::post(controller, ClusterWeights{weights_, {}});
      rt::post(controller, WatchCluster{watch_});
    });
  }
  void joined(const NodeJoined& node) {
    const NodeHandle known = fleet().node(node.at.node);
    if (known == node.handle) return;
    if (known) lose(lost_machine(node.at.node, node.instances, {known.address(), caf::exit_reason::kill}));
    (void)fleet().add_node(node.at.node, node.handle);
    world().when_over(node.handle, [this, node](const rt::down& message) {
      if (fleet().node(node.at.node) == node.handle) lose(lost_machine(node.at.node, node.instances, message));
    });
  }
  void lose(const PartLost& lost) {
    fleet().lose_node(lost);
    tell_other([&] { other_.lose(lost.node); });
    bench_.tell([node = lost.node, in_order = lost.reason.empty()](GatewayActor& gateway) { gateway.lose_node(node, in_order); });
  }
  size_t instances_up() {
    size_t up = 0;
    for (const auto& [id, node] : fleet().nodes()) up += bench_.cluster.config_of(id).instances.size();
    return up;
  }

  // ---- machines ---------------------------------------------------------------------------------------------------------------
  /// It loads its model, whose weights are those of the beginning, and asks to enter until it may.
  void load(uint32_t n) {
    const NodeConfig config = bench_.cluster.config_of(NodeId{n});
    enter(n, std::make_shared<NodeMachinery>(*make_machinery(config, *bench_.cluster.makers)));
  }
  void enter(uint32_t n, const std::shared_ptr<NodeMachinery>& made) {
    const ClusterIdentity identity = instance_identity(made->instances.begin()->second.engine->info(), 0);
    const auto again = [this, n, made] { world().after(kAgainUs, [this, n, made] { enter(n, made); }); };
    if (!controller_) return again();
    world().ask<ClusterEntered>(controller_, EnterCluster{.node = NodeId{n}, .identity = identity},
                        [=, this](const ClusterEntered& entered) {
                          if (!entered.error.empty()) return again();
                          start(n, entered, identity, made);
                        },
                        again);
  }
  void start(uint32_t n, const ClusterEntered& entered, const ClusterIdentity& identity, const std::shared_ptr<NodeMachinery>& made) {
    NodeConfig config = bench_.cluster.config_of(NodeId{n});
    config.epoch = entered.epoch;
    const NodeHandle node =
        start_node(world().system, config, bench_.cluster.makers, std::move(*made), way_to(entered.directory), bench_.cluster.options.log);
    machines_[n] = {{{NodeId{n}, "", 0}, node, static_cast<uint32_t>(config.instances.size())}, identity, entered.epoch};
    tell_controller(machines_[n].ready);
    world().when_over(node, [this, n](const rt::down&) {
      machines_.erase(n);
      world().after(down_us_[n], [this, n] { load(n); });
    });
  }
  void enter_again(uint32_t n) {
    const auto at = machines_.find(n);
    if (at == machines_.end()) return;
    const auto tell = [this, machine = at->second](const ClusterIdentity& now) {
      const NodeId node = machine.ready.at.node;
      world().ask<ClusterEntered>(controller_, EnterCluster{.node = node, .identity = now, .epoch = machine.epoch},
                          [this, machine](const ClusterEntered& entered) {
                            if (!entered.error.empty()) return rt::kill(machine.ready.handle);  // its process ends
                            rt::post(machine.ready.handle, DirectoryUp{way_to(entered.directory)});
                            tell_controller(machine.ready);
                          });
    };
    world().ask<NodeReport>(at->second.ready.handle, GetReport{}, [=, identity = at->second.identity](const NodeReport& report) {
      tell(report.identity.model.empty() ? identity : report.identity);
    });
  }
  KvDirectoryHandle way_to(const KvDirectoryHandle& directory) {
    const FleetLinks links = bench_.cluster.fleet_links();
    return links.to_directory ? links.to_directory(directory) : directory;
  }

  GatewayBench& bench_;
  const std::function<int64_t()> delay_us_;
  const ClusterSink watch_;
  const WeightsSink other_sink_;
  ClusterWeights other_weights_;
  WeightUpdates other_{WeightVersion{1}, 0, kOtherUs};  // of the other server, which follows nobody
  ClusterHandle controller_;          // null: there is none now
  std::set<RolloutId> rollouts_;      // that the gateway started
  NewWeights weights_;                // the last that the gateway said
  std::map<uint32_t, Machine> machines_;
  std::map<uint32_t, int64_t> down_us_;
};

}  // namespace seer
