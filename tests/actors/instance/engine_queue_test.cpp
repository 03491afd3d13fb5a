#include "actors/instance/engine_queue.h"

#include <doctest/doctest.h>

#include "gpu/row_engine.h"

using namespace seer;

TEST_CASE("engine queue: work that the engine has no room for waits, and goes there in order") {
  RowEngine engine(16, 2);
  EngineQueue queue(engine);
  for (uint64_t id = 1; id <= 5; ++id) queue.submit(CopyBatch{.id = id, .blocks = {}});
  CHECK(engine.copies.size() == 2);
  CHECK(queue.open_count() == 5);
  size_t results = queue.take_results().size();
  for (size_t i = 0; i < results; ++i) queue.result_handled();
  queue.feed();
  CHECK(engine.copies.size() == 4);
  for (results = queue.take_results().size(); results > 0; --results) queue.result_handled();
  queue.feed();
  REQUIRE(engine.copies.size() == 5);
  for (uint64_t i = 0; i < 5; ++i) CHECK(engine.copies[i].id == i + 1);
}

TEST_CASE("engine queue: steps that wait can be cut to one") {
  struct Orders final : Engine {
    Orders() { info_.queue_max = 1; }
    const EngineInfo& info() const override { return info_; }
    void set_notify(std::function<void()>) override {}
    void submit(EngineWork work) override { came.push_back(std::move(work)); }
    std::vector<EngineResult> take_results() override { return {}; }
    EngineInfo info_;
    std::vector<EngineWork> came;
  } engine;
  EngineQueue queue(engine);
  queue.submit(CopyBatch{.id = 1, .blocks = {}});
  queue.submit(StepOrder{.id = 2, .steps = 8});
  queue.shorten_waiting_steps();
  queue.result_handled();
  queue.feed();
  REQUIRE(engine.came.size() == 2);
  CHECK(std::get<StepOrder>(engine.came[1]).steps == 1);
  CHECK(queue.open_count() == 1);
}
