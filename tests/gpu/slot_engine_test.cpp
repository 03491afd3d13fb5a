#include "gpu/slot_engine.h"

#include <doctest/doctest.h>

#include "gpu/row_engine.h"

using namespace seer;

namespace {

struct Bench {
  std::shared_ptr<RowEngine> rows = std::make_shared<RowEngine>();
  std::shared_ptr<Engine> engine = with_slots(rows);
  StepRun& slots = *engine->step_run();

  StepResult order() {
    engine->submit(StepOrder{});
    return std::get<StepResult>(engine->take_results().at(0));
  }
  std::vector<int32_t> gained(int32_t slot, std::vector<int32_t>* accepted = nullptr) {
    GainedTokens gained;
    slots.take(slot, 1, gained);
    if (accepted != nullptr) *accepted = gained.rows;
    std::vector<int32_t> tokens;
    for (const SampledToken& s : gained.sampled) tokens.push_back(s.token);
    return tokens;
  }
};

SequenceStep rows(int64_t start, std::vector<int32_t> tokens, int32_t sample_rows, std::vector<DeviceBlockId> blocks) {
  return {.start = start, .tokens = std::move(tokens), .blocks = std::move(blocks), .sample_rows = sample_rows,
          .sampling = std::make_shared<const SamplingParams>()};
}

/// The row after tokens 5 and 6, which a repetition penalty looks at.
SequenceStep penalized_row() {
  SequenceStep step = rows(2, {7}, 1, {0, 1});
  SamplingParams sampling;
  sampling.repetition_penalty = 1.5f;
  step.sampling = std::make_shared<const SamplingParams>(sampling);
  step.history = {5, 6};
  return step;
}

constexpr auto token = RowEngine::token;
using Tokens = std::vector<int32_t>;

}  // namespace

TEST_CASE("slot engine: a sequence feeds the token sampled last, asks for blocks when needed, and ends at its limit") {
  Bench b;
  b.slots.join(2, rows(2, {7}, 1, {5}), StepsLimit{.gain_max = 2, .covered = 4});
  CHECK(b.order().ended.empty());
  CHECK(b.gained(2) == Tokens{token(3)});
  CHECK(b.slots.take_block_needs(1).empty());
  CHECK(b.order().ended.empty());
  CHECK(b.slots.take_block_needs(0).empty());  // not for the step that ran
  CHECK(b.slots.take_block_needs(1) == Tokens{2});
  CHECK(b.slots.take_block_needs(1).empty());  // told once
  b.slots.grant(2, 8);
  CHECK(b.gained(2) == Tokens{token(4)});
  CHECK(b.order().ended == Tokens{2});
  CHECK(b.gained(2) == Tokens{token(5)});
  REQUIRE(b.rows->steps.size() == 3);
  const SequenceStep& last = b.rows->steps[2].at(0);
  CHECK(last.start == 4);
  CHECK(last.tokens == Tokens{token(4)});
  CHECK(last.blocks == Tokens{5, 8});
  b.slots.leave(2);
  b.slots.join(2, rows(0, {1}, 1, {0}), std::nullopt);  // the slot is free again
  CHECK(b.order().ended == Tokens{2});
}

TEST_CASE("slot engine: a sequence ends after an EOS token unless it ignores them, and after a row without a token") {
  Bench b;
  b.rows->special = {{4, RowEngine::kEos}, {21, kNotFinite}};
  const StepsLimit far{.gain_max = 100, .covered = 32};
  const std::vector<DeviceBlockId> blocks{0, 1, 2, 3, 4, 5, 6, 7};
  SequenceStep ignores = rows(3, {7}, 1, blocks);
  SamplingParams sampling;
  sampling.ignore_eos = true;
  ignores.sampling = std::make_shared<const SamplingParams>(sampling);
  b.slots.join(0, rows(3, {7}, 1, blocks), far);
  b.slots.join(1, ignores, far);
  b.slots.join(2, rows(20, {7}, 1, blocks), far);
  CHECK(b.order().ended == Tokens{0, 2});
  CHECK(b.gained(0) == Tokens{RowEngine::kEos});
  CHECK(b.gained(2) == Tokens{kNotFinite});
}

TEST_CASE("slot engine: a verify gains the tokens of its accepted rows, of a path or of a tree, and is done") {
  Bench b;
  std::vector<int32_t> accepted;
  b.slots.join(0, rows(3, {7, token(4), 1}, 3, {0, 1}), std::nullopt);
  SequenceStep tree = rows(3, {7, 1, token(4), token(5)}, 4, {2, 3});
  tree.parents = {-1, 0, 0, 2};
  b.slots.join(1, tree, std::nullopt);
  CHECK(b.order().ended == Tokens{0, 1});
  CHECK(b.gained(0, &accepted) == Tokens{token(4), token(5)});
  CHECK(accepted == Tokens{0, 1});
  CHECK(b.gained(1, &accepted) == Tokens{token(4), token(5), token(6)});
  CHECK(accepted == Tokens{0, 2, 3});
}

TEST_CASE("slot engine: pieces of a prompt gain a token only at their sampled end, and come after rows that decode") {
  Bench b;
  b.slots.join(0, rows(0, {1, 2, 3}, 0, {0}), std::nullopt);
  b.slots.join(1, rows(0, {1, 2, 3}, 1, {1}), std::nullopt);
  b.slots.join(2, rows(3, {7}, 1, {2, 3}), StepsLimit{.gain_max = 9, .covered = 8});
  CHECK(b.order().ended == Tokens{0, 1});
  CHECK(b.rows->steps[0].at(0).tokens == Tokens{7});
  CHECK(b.gained(0).empty());
  CHECK(b.gained(1) == Tokens{token(3)});
}

TEST_CASE("slot engine: with a repetition penalty each step has the tokens before it") {
  Bench b;
  b.slots.join(0, penalized_row(), StepsLimit{.gain_max = 9, .covered = 8});
  b.order();
  b.order();
  b.order();
  CHECK(b.rows->steps[2].at(0).history == Tokens{5, 6, 7, token(3)});
  CHECK(b.rows->steps[2].at(0).tokens == Tokens{token(4)});
}

TEST_CASE("slot engine: a step that is queued ahead feeds the token that the step before it samples, with all earlier ones as history") {
  Bench b;
  b.slots.join(1, penalized_row(), StepsLimit{.gain_max = 9, .covered = 8});
  Tokens fed;
  for (int pair = 0; pair < 3; ++pair) {
    b.engine->submit(StepOrder{});
    for (const int32_t slot : b.slots.take_block_needs(1)) b.slots.grant(slot, 2);
    b.engine->submit(StepOrder{});
    for (const int32_t slot : b.slots.take_block_needs(1)) b.slots.grant(slot, 2);
    CHECK(b.engine->take_results().size() == 2);
    CHECK(b.gained(1) == Tokens{token(3 + 2 * pair), token(4 + 2 * pair)});
  }
  for (const auto& done : b.rows->steps) fed.push_back(done.at(0).tokens[0]);
  CHECK(fed == Tokens{7, token(3), token(4), token(5), token(6), token(7)});
  const SequenceStep& last = b.rows->steps.back().at(0);
  CHECK(last.fed_by == 0);
  CHECK(last.history == Tokens{5, 6, 7, token(3), token(4), token(5), token(6)});
}

TEST_CASE("slot engine: a sequence that a token ended gains nothing from the step that was queued by then") {
  Bench b;
  b.rows->special = {{4, RowEngine::kEos}};
  const std::vector<DeviceBlockId> blocks{0, 1, 2, 3};
  b.slots.join(0, rows(3, {7}, 1, blocks), StepsLimit{.gain_max = 9, .covered = 16});
  b.slots.join(1, rows(8, {7}, 1, blocks), StepsLimit{.gain_max = 9, .covered = 16});
  b.engine->submit(StepOrder{});
  b.engine->submit(StepOrder{});
  std::vector<EngineResult> results = b.engine->take_results();
  REQUIRE(results.size() == 2);
  CHECK(std::get<StepResult>(results[0]).ended == Tokens{0});
  CHECK(std::get<StepResult>(results[1]).ended.empty());
  CHECK(b.gained(0) == Tokens{RowEngine::kEos});
  CHECK(b.gained(1) == Tokens{token(9), token(10)});
  b.slots.leave(0);
  CHECK(b.order().ended.empty());
  CHECK(b.rows->steps.back().size() == 1);
}

TEST_CASE("slot engine: a sequence that leaves while a step is queued gains nothing from it, and nothing is ordered beyond a limit") {
  Bench b;
  const std::vector<DeviceBlockId> blocks{0, 1, 2, 3};
  b.slots.join(0, rows(3, {7}, 1, blocks), StepsLimit{.gain_max = 0, .covered = 16});
  b.slots.join(1, rows(3, {7}, 1, blocks), StepsLimit{.gain_max = 9, .covered = 16});
  b.engine->submit(StepOrder{});
  b.engine->submit(StepOrder{});
  CHECK(b.rows->steps[0].size() == 2);
  CHECK(b.rows->steps[1].size() == 1);
  b.slots.leave(1);
  std::vector<EngineResult> results = b.engine->take_results();
  CHECK(std::get<StepResult>(results[0]).ended == Tokens{0});
  CHECK(std::get<StepResult>(results[1]).ended.empty());
  CHECK(b.gained(0) == Tokens{token(4)});
}

TEST_CASE("slot engine: copies pass through, and an engine with its own slots is not changed") {
  Bench b;
  CHECK(with_slots(b.engine) == b.engine);
  b.engine->submit(CopyBatch{.id = 3, .direction = CopyBatch::Direction::kImport, .blocks = {}});
  CHECK(std::get<CopyResult>(b.engine->take_results().at(0)).id == 3);
}
