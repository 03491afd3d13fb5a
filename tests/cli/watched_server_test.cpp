#include "cli/watched_server.h"

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>

using namespace seer;

namespace {

/// Gives what it is told, and notes what it is asked.
struct ScriptedServer final : EngineServer {
  const std::string& name() const override { return name_; }
  void run(ServedAsk ask, std::function<void(ServedPart)> part_in) override { asked = std::move(ask), part = std::move(part_in); }
  void end(const std::string& rid) override { ended = rid; }
  void look(std::function<void(Result<ServerState>)> then) override { then(ServerState{.engine = "scripted"}); }
  void update_weights(std::string folder, std::string label, std::function<void(Status)> then) override {
    updated = folder + " " + label;
    then({});
  }
  void pass(std::vector<HttpAsk> asks, std::function<void(Status)> then) override {
    passed = asks[0].target;
    then({});
  }
  std::string name_ = "http://s:1", ended, updated, passed;
  ServedAsk asked;
  std::function<void(ServedPart)> part;
};

}  // namespace

TEST_CASE("watched server: everything passes through it, and its log learns from the parts") {
  const auto server = std::make_shared<ScriptedServer>();
  const auto log = std::make_shared<StepLog>();
  const auto watched = watch_server(server, log);
  CHECK(watched->name() == "http://s:1");
  std::vector<int32_t> tokens;
  watched->run({.rid = "r.", .tokens = {1, 2, 3}, .prompt_tokens = 3, .max_new_tokens = 200, .sampling = {}, .seed = 1},
               [&](const ServedPart& part) { tokens.insert(tokens.end(), part.output.ids.begin(), part.output.ids.end()); });
  CHECK(server->asked.rid == "r.");
  CHECK(server->asked.tokens.size() == 3);
  server->part({.output = {{4}}});
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  server->part({.output = {std::vector<int32_t>(64, 5)}});
  CHECK(tokens.size() == 65);
  const auto points = log->learned().points();
  REQUIRE(points.size() == 1);
  CHECK(points[0].shape.rows == 1);
  CHECK(points[0].measured_us >= 2000.0 / 64);
  server->part({.output = {{6}}, .end = ServedEnd::kStop});
  server->part({.output = {std::vector<int32_t>(1000, 7)}});  // late: not learned from
  CHECK(log->learned().points()[0].measured_us >= 2000.0 / 66);
  watched->end("r.");
  CHECK(server->ended == "r.");
  watched->update_weights("/w", "2", [](const Status&) {});
  CHECK(server->updated == "/w 2");
  watched->pass({{"POST", "/x"}}, [](const Status&) {});
  CHECK(server->passed == "/x");
  std::string engine;
  watched->look([&](const Result<ServerState>& state) { engine = state->engine; });
  CHECK(engine == "scripted");
}
