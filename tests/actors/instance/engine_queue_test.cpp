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
  RowEngine engine(16, 1);
  EngineQueue queue(engine);
  queue.submit(CopyBatch{.id = 1, .blocks = {}});
  queue.submit(StepBatch{.id = 2, .sequences = {}, .steps = 8});
  queue.shorten_waiting_steps();
  queue.take_results();
  queue.result_handled();
  queue.feed();
  CHECK(engine.steps_asked == std::vector<int32_t>{1});
  CHECK(queue.open_count() == 1);
}
