#include "cli/serve/served_machines.h"

#include <doctest/doctest.h>

#include <chrono>
#include <optional>
#include <thread>

#include "gpu/tiny_model.h"

using namespace seer;

namespace {

constexpr int64_t kPatienceUs = 60'000'000;

/// Machines of this process, with a tiny model.
struct Served {
  explicit Served(int64_t nodes) {
    write_tiny_model(folder.path(), tiny_config("llama"), "BF16", 1);
    options.model = folder.path();
    options.nodes = options.instances = nodes;
    options.threads_per_instance = 1;
    options.kv_bytes = 1 << 20;
    options.scheduler.policy = "seer+";
    auto made = load_model_of(options);
    REQUIRE_MESSAGE(made.ok(), made.error().detail);
    loaded = *std::move(made);
    auto opened = ServedMachines::open(options, loaded, door, {}, stop);
    REQUIRE_MESSAGE(opened.ok(), opened.error().detail);
    machines = *std::move(opened);
  }
  /// False: not in time.
  template <class Condition>
  static bool until(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(kPatienceUs);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  const TestFolder folder;
  ServeOptions options;
  LoadedModel loaded;
  std::shared_ptr<GatewayDoor> door = std::make_shared<GatewayDoor>();
  std::atomic<bool> stop = false;
  std::unique_ptr<ServedMachines> machines;
};

}  // namespace

TEST_CASE("served machines: those of a process can be used until the last one has ended, which says why") {
  Served served(2);
  const std::map<NodeId, NodeHandle> nodes = served.machines->gateway_fleet().nodes();
  REQUIRE(nodes.size() == 2);
  CHECK(served.machines->follow().ok());
  rt::kill(nodes.at(NodeId{1}));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(served.machines->follow().ok());
  rt::kill(nodes.at(NodeId{0}));
  Status now;
  CHECK(Served::until([&] { return !(now = served.machines->follow()).ok(); }));
  CHECK(now.error().detail == "node 0 is gone");
  CHECK(served.machines->follow().error().detail == "node 0 is gone");
}

TEST_CASE("served machines: after an update nothing holds the weights before") {
  Served served(1);
  const std::weak_ptr<const Model> first = served.loaded.model();
  rt::Inbox<WeightsSink> inbox(served.machines->system());
  const TestFolder next;
  write_tiny_model(next.path(), tiny_config("llama"), "BF16", 2);
  served.machines->gateway_fleet().update_weights({.version = WeightVersion{2}, .folder = next.path()}, inbox.handle());
  std::optional<WeightsUpdated> updated;
  inbox.receive(kPatienceUs, [&](const WeightsUpdated& answer) { updated = answer; });
  REQUIRE(updated);
  CHECK_MESSAGE(updated->error.empty(), updated->error);
  CHECK(Served::until([&] { return first.expired(); }));
  CHECK(served.loaded.loader->current().version == WeightVersion{2});
}
