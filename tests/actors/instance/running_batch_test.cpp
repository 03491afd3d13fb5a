#include "actors/instance/running_batch.h"

#include <doctest/doctest.h>

#include "actors/instance/instance_bench.h"

using namespace seer;

namespace {

/// A batch whose sequences take their gains as in the actor.
struct BatchBench : InstanceBench {
  explicit BatchBench(int32_t device_blocks = 16, StepPlannerConfig planner = {}, int32_t step_depth = 1,
                      SequenceDrafts* drafts = nullptr, size_t queue_max = 64)
      : InstanceBench(device_blocks, queue_max),
        batch(planner, step_depth, info, devices, sequences, engine, *slots->step_run(), drafts,
              [this](Sequence& s, int64_t more, std::span<const SampledToken> sampled, std::span<const KeptList>, size_t passed) {
                s.kv_tokens += more;
                s.append(sampled, passed);
                kv.name_filled_blocks(s);
                gains.push_back(s.chunk);
              }) {}

  Sequence& run(uint64_t chunk, int64_t tokens, int64_t prompt_tokens) {
    Sequence& s = add(chunk, tokens, prompt_tokens, false);
    s.request.group = GroupId{static_cast<uint32_t>(chunk)};
    batch.add(s);
    return s;
  }
  /// Plans, orders and takes one step.
  void step() {
    batch.plan();
    batch.order(8, false);
    REQUIRE(batch.is_ordered());
    std::vector<EngineResult> results = engine.take_results();
    REQUIRE(results.size() == 1);
    engine.result_handled();
    gains.clear();
    batch.take(std::get<StepResult>(results[0]));
  }

  /// Does as the actor with a depth of 2, when the results of all open orders come together.
  void steps_ahead() {
    if (!batch.is_ordered()) {
      batch.plan();
      batch.order(8, false);
    }
    batch.order_ahead();
    gains.clear();
    for (EngineResult& result : engine.take_results()) {
      engine.result_handled();
      batch.take(std::get<StepResult>(result));
    }
  }

  std::vector<ChunkId> gains;
  RunningBatch batch;
};

}  // namespace

TEST_CASE("running batch: a prompt is prefilled in pieces, then its sequence goes on in a slot without being planned") {
  BatchBench b(16, {.prefill_tokens_max = 4});
  Sequence& s = b.run(1, 7, 7);
  b.step();
  CHECK(s.kv_tokens == 4);
  CHECK(s.log.size() == 7);
  CHECK(s.slot == kNoBatchSlot);
  b.step();
  CHECK(s.kv_tokens == 7);
  CHECK(s.log.output() == std::vector<int32_t>{RowEngine::token(7)});
  for (int i = 0; i < 5; ++i) b.step();
  CHECK(s.slot != kNoBatchSlot);
  CHECK(b.batch.first_running() == nullptr);  // nobody was planned
  CHECK(b.batch.running_count() == 1);
  CHECK(s.kv_tokens == 12);
  CHECK(s.log.output_tokens() == 6);
  CHECK(s.table.size() == 3);  // blocks came as they were needed
  CHECK(b.rows->steps.back().at(0).blocks == s.table);
  CHECK(b.rows->steps.back().at(0).tokens == std::vector<int32_t>{RowEngine::token(11)});
}

TEST_CASE("running batch: sequences that decode gain before those that prefill, each as they came") {
  BatchBench b;
  b.run(5, 1, 1);
  b.run(3, 1, 1);
  b.step();
  b.run(1, 9, 9);
  b.step();
  CHECK(b.gains == std::vector<ChunkId>{ChunkId{5}, ChunkId{3}, ChunkId{1}});
}

TEST_CASE("running batch: a sequence with its own stop tokens is checked after each step") {
  BatchBench b;
  Sequence& s = b.run(1, 1, 1);
  auto sampling = std::make_shared<SamplingParams>(*s.sampling);
  sampling->stop_token_ids = {12345};
  s.sampling = sampling;
  b.step();
  b.step();
  CHECK(s.slot == kNoBatchSlot);
  CHECK(s.log.output_tokens() == 2);
}

TEST_CASE("running batch: short of blocks, the sequences with the largest yield rank give way, also out of their slots") {
  BatchBench b(4);
  Sequence& first = b.run(1, 6, 6);
  Sequence& second = b.run(2, 6, 6);
  for (int i = 0; i < 2; ++i) b.step();
  CHECK(b.devices.counts().available() == 0);
  b.step();  // both fill their second block
  b.batch.plan();
  REQUIRE(b.batch.blocks_short());
  const std::vector<Sequence*> victims = b.batch.pick_victims();
  REQUIRE(victims.size() == 1);
  CHECK(victims[0] == &second);
  b.batch.take_out(victims);
  CHECK(second.slot == kNoBatchSlot);
  b.batch.remove(second);
  b.devices.release(second.table);
  b.sequences.remove(ChunkId{2});
  b.step();
  CHECK(b.gains == std::vector<ChunkId>{ChunkId{1}});
  CHECK(first.table.size() == 3);
}

TEST_CASE("running batch: when a group starts together, the first computes the prompt and the others then share it") {
  BatchBench b;
  Sequence& first = b.run(1, 9, 9);
  Sequence& second = b.run(2, 9, 9);
  second.request.group = first.request.group;
  b.step();
  CHECK(b.gains == std::vector<ChunkId>{ChunkId{1}});
  CHECK(second.table.empty());
  b.step();
  CHECK(second.done.cached_tokens == 8);
  CHECK(second.table[0] == first.table[0]);
  CHECK(second.table[1] == first.table[1]);
}

TEST_CASE("running batch: gains of dropped sequences are ignored, and their slots are free again") {
  BatchBench b;
  b.run(1, 3, 3);
  b.step();
  b.batch.plan();
  b.batch.order(8, false);
  const std::unique_ptr<Sequence> dropped = b.sequences.remove(ChunkId{1});
  b.batch.drop(*dropped);
  b.devices.release(dropped->table);
  std::vector<EngineResult> results = b.engine.take_results();
  b.engine.result_handled();
  b.gains.clear();
  b.batch.take(std::get<StepResult>(results.at(0)));
  CHECK(b.gains.empty());
  Sequence& next = b.run(2, 3, 3);
  b.step();
  b.step();
  CHECK(next.log.output_tokens() == 2);
  CHECK(next.slot == 0);
}

TEST_CASE("running batch: with a depth of 2 a step that repeats the last one is ordered before that one ends") {
  BatchBench b(16, {.prefill_tokens_max = 4}, 2);
  Sequence& s = b.run(1, 7, 7);
  b.steps_ahead();
  b.steps_ahead();
  CHECK(b.rows->steps.size() == 2);  // pieces of the prompt, one by one
  b.steps_ahead();
  CHECK(b.rows->steps.size() == 3);  // it joined to decode
  b.steps_ahead();
  CHECK(b.rows->steps.size() == 5);
  CHECK(s.log.output() == std::vector<int32_t>{RowEngine::token(7), RowEngine::token(8), RowEngine::token(9), RowEngine::token(10)});
  CHECK(b.rows->steps.back().at(0).fed_by == 0);
  b.steps_ahead();
  b.steps_ahead();
  CHECK(b.rows->steps.back().at(0).blocks == s.table);  // also those that it came to need between the two
  CHECK(s.table.size() == 4);
}

TEST_CASE("running batch: where a drafter gives no drafts, steps are ordered ahead until a choice is due") {
  struct NoDrafter final : Drafter {
    void draft(const DraftText&, const DraftLimits&, Draft&) override { FAIL("no draft is wanted"); }
    void learn(const DraftText&) override {}
    void running(std::span<const GroupId>) override {}
  };
  SequenceDrafts drafts({.drafter = std::make_shared<NoDrafter>(),
                         .budget = {.scouts = 0},
                         .step_ns = [](const StepShape& shape) { return 1e6 * static_cast<double>(shape.rows); }});
  BatchBench b(16, {}, 2, &drafts);
  Sequence& s = b.run(1, 6, 6);
  b.steps_ahead();  // prefill
  b.steps_ahead();  // it joined to decode
  b.steps_ahead();
  CHECK(b.rows->steps.size() == 4);
  CHECK(s.log.output_tokens() == 4);
  drafts.renew_choice();
  b.steps_ahead();
  CHECK(b.rows->steps.size() == 5);  // it left its slot for the choice, and joined again
  b.steps_ahead();
  CHECK(b.rows->steps.size() == 7);
}

TEST_CASE("running batch: no step is ordered ahead if a sequence is known to end in the last one, nor after one has joined") {
  BatchBench b(16, {}, 2);
  Sequence& s = b.run(1, 3, 3);
  s.end_tokens = 8;
  b.steps_ahead();  // prefill
  b.steps_ahead();  // token 5
  b.steps_ahead();  // 6 and 7
  CHECK(s.log.size() == 7);
  b.batch.plan();
  b.batch.order(8, false);
  b.batch.order_ahead();
  CHECK(b.rows->steps.size() == 5);
  b.steps_ahead();
  CHECK(s.log.size() == 8);

  Sequence& other = b.run(2, 3, 3);
  other.end_tokens = 1000;
  b.batch.remove(s);
  b.devices.release(s.table);
  b.sequences.remove(ChunkId{1});
  for (int i = 0; i < 2; ++i) b.steps_ahead();
  b.batch.plan();
  b.batch.order(8, false);
  b.batch.note_change();
  const size_t before = b.rows->steps.size();
  b.batch.order_ahead();
  CHECK(b.rows->steps.size() == before);
}

TEST_CASE("running batch: a sequence that ends while its next step is ordered leaves its slot, and that step gives it nothing") {
  BatchBench b(16, {}, 2);
  b.rows->special = {{8, RowEngine::kEos}};
  Sequence& ends = b.run(1, 6, 6);
  Sequence& stays = b.run(2, 2, 2);
  b.steps_ahead();  // prefill: tokens 6 and 2
  b.steps_ahead();  // 7 and 3
  b.batch.plan();
  b.batch.order(8, false);
  b.batch.order_ahead();
  REQUIRE(b.rows->steps.size() == 4);  // the third of them is its last one
  std::vector<EngineResult> results = b.engine.take_results();
  REQUIRE(results.size() == 2);
  b.batch.take(std::get<StepResult>(results[0]));
  CHECK(ends.slot == kNoBatchSlot);  // here without an end of the response, so that it goes on by itself
  CHECK(ends.log.size() == 9);
  b.batch.order_ahead();
  CHECK(b.rows->steps.size() == 4);  // somebody left
  CHECK(stays.log.size() == 6);  // the results came together
  b.gains.clear();
  b.batch.take(std::get<StepResult>(results[1]));
  CHECK(b.gains.empty());
  CHECK(ends.log.size() == 9);
  CHECK(stays.log.size() == 6);
}

TEST_CASE("running batch: while an order waits for room in the engine's queue, none is ordered ahead") {
  BatchBench b(16, {}, 2, nullptr, 2);
  Sequence& s = b.run(1, 6, 6);
  b.steps_ahead();  // prefill
  b.steps_ahead();  // it joined to decode
  REQUIRE(s.kv_tokens == 7);
  for (int i = 0; i < 2; ++i) b.engine.submit(CopyBatch{});
  b.batch.plan();
  b.batch.order(8, false);  // fills its second block
  b.batch.order_ahead();
  CHECK(b.rows->steps.size() == 2);
  for (int i = 0; i < 2; ++i) b.engine.result_handled();
  b.engine.feed();
  b.batch.order_ahead();
  REQUIRE(b.rows->steps.size() == 4);
  CHECK(b.rows->steps.back().at(0).start == 8);
  CHECK(b.rows->steps.back().at(0).blocks.size() == 3);
}

TEST_CASE("running batch: a sequence whose last two results come together ends once") {
  BatchBench b(16, {}, 2);
  b.run(1, 3, 3).end_tokens = 7;
  for (int i = 0; i < 3; ++i) b.steps_ahead();
  CHECK(b.rows->steps.size() == 4);  // the last two at once
  CHECK(b.sequences.at(ChunkId{1}).log.size() == 7);
  CHECK(b.gains == std::vector<ChunkId>{ChunkId{1}});
}

TEST_CASE("running batch: when blocks are short no step is ordered ahead, and sequences give way as usual") {
  BatchBench b(4, {}, 2);
  b.run(1, 6, 6);
  b.run(2, 6, 6);
  for (int i = 0; i < 2; ++i) b.steps_ahead();
  CHECK(b.devices.counts().available() == 0);
  CHECK(b.sequences.at(ChunkId{1}).log.size() == 8);
  b.batch.plan();
  b.batch.order(8, false);  // both fill their second block
  b.batch.order_ahead();
  CHECK(b.rows->steps.size() == 3);
  b.steps_ahead();
  b.batch.plan();
  CHECK(b.batch.blocks_short());
  CHECK(b.batch.pick_victims().size() == 1);
}
