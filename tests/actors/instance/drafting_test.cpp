#include "actors/instance/drafting.h"

#include <doctest/doctest.h>

#include <numeric>

#include "actors/instance/instance_bench.h"

using namespace seer;

namespace {

constexpr int32_t kDraftMax = 4;

/// Drafts as many tokens as allowed.
class EagerDrafter final : public Drafter {
 public:
  void draft(const DraftText&, const DraftLimits& limits, Draft& draft) override {
    draft.tokens.assign(static_cast<size_t>(limits.max_tokens), 5);
    draft.parents.resize(draft.tokens.size());
    std::iota(draft.parents.begin(), draft.parents.end(), 0);
  }
  void learn(const DraftText& text) override { learned.push_back(text.request); }
  void running(std::span<const GroupId> groups) override { groups_running.assign(groups.begin(), groups.end()); }
  std::vector<RequestId> learned;
  std::vector<GroupId> groups_running;
};

struct DraftBench : InstanceBench {
  std::shared_ptr<EagerDrafter> drafter = std::make_shared<EagerDrafter>();
  // Rows cost next to nothing, so that the budget drafts as much as allowed.
  SequenceDrafts drafts{Drafting{.drafter = drafter,
                                 .budget = {.rows_max = {kDraftMax, 0}, .draft_ns = 0},
                                 .step_ns = [](const StepShape& shape) { return 1e6 + static_cast<double>(shape.rows); }}};
  std::vector<Sequence*> running;
  std::vector<RunningSequence> rows_of;

  Sequence& run(uint64_t chunk, int64_t tokens) {
    Sequence& s = add(chunk, tokens, 3, false);
    s.kv_tokens = tokens - 1;
    running.push_back(&s);
    rows_of.push_back({.known_tokens = tokens, .kv_tokens = tokens - 1});
    return s;
  }
  void propose() { drafts.propose(running, rows_of, sequences); }
};

}  // namespace

TEST_CASE("drafts: only decoding sequences get one, never longer than their limit allows") {
  DraftBench b;
  Sequence& decodes = b.run(1, 6);
  Sequence& ends_soon = b.run(2, 6);
  ends_soon.end_tokens = 6 + 3;  // of the three tokens left, the last is sampled after the draft
  Sequence& prefills = b.run(3, 6);
  prefills.kv_tokens = 2;
  b.propose();
  CHECK(decodes.draft.tokens.size() == kDraftMax);
  CHECK(decodes.draft_allowed == kDraftMax);
  CHECK(ends_soon.draft.tokens.size() == 2);
  CHECK(prefills.draft.tokens.empty());
  CHECK(b.rows_of[0].draft_tokens == kDraftMax);
  CHECK(b.rows_of[2].draft_tokens == 0);
}

TEST_CASE("drafts: a choice holds until it is renewed, and is delayed while nobody decodes") {
  DraftBench b;
  b.propose();
  CHECK(b.drafts.choice_is_due());
  b.run(1, 6);
  b.propose();
  CHECK(!b.drafts.choice_is_due());
  b.drafts.renew_choice();
  CHECK(b.drafts.choice_is_due());
}

TEST_CASE("drafts: none are made while the engine waits longer for them than they save") {
  // Five rows take little longer than one, so drafts pay, but for the wait of nine steps.
  int64_t clock_ns = 0;
  auto drafter = std::make_shared<EagerDrafter>();
  SequenceDrafts drafts({.drafter = drafter,
                         .budget = {.rows_max = {kDraftMax, 0}, .scouts = 0},
                         .step_ns = [](const StepShape& shape) { return 1e5 + static_cast<double>(shape.rows); },
                         .clock_ns = [&clock_ns] { return clock_ns; }});
  DraftBench b;
  Sequence& s = b.run(1, 6);
  drafts.propose(b.running, b.rows_of, b.sequences);
  CHECK(s.draft.tokens.size() == kDraftMax);
  int64_t now_us = 0;
  for (int i = 0; i < 2000; ++i) drafts.step_came(now_us += 1000, 100);
  for (int i = 0; i < 10; ++i) drafts.step_came(now_us += 1'000'000, 100);  // these had no work
  drafts.renew_choice();
  s.draft.clear();
  drafts.propose(b.running, b.rows_of, b.sequences);
  CHECK(s.draft.tokens.empty());
}

TEST_CASE("drafts: while none are wanted, trials learn from the tokens that come whether drafts would be accepted") {
  for (const auto& [right, tokens_at_once] : {std::pair{false, kDraftMax}, {true, kDraftMax}, {true, 1}}) {
    CAPTURE(right);
    CAPTURE(tokens_at_once);
    int64_t clock_ns = 0;
    auto drafter = std::make_shared<EagerDrafter>();
    // A row costs half of a step, so a draft pays only if it is likely enough, which the budget does not expect.
    SequenceDrafts drafts({.drafter = drafter,
                           .budget = {.rows_max = {kDraftMax, 0}, .draft_ns = 0, .prior_accept = 0.1, .scouts = 0},
                           .step_ns = [](const StepShape& shape) { return 1e5 * static_cast<double>(1 + shape.rows); },
                           .clock_ns = [&clock_ns] { return ++clock_ns; }});
    DraftBench b;
    Sequence& s = b.run(1, 6);
    s.end_tokens = 100'000;
    int choices = 0;
    for (; choices < 1000 && s.draft.tokens.empty(); ++choices) {
      drafts.renew_choice();
      drafts.propose(b.running, b.rows_of, b.sequences);
      for (int i = 0; i < tokens_at_once; ++i) s.log.append(std::vector<int32_t>{right ? 5 : 6});  // drafts are of 5
      s.kv_tokens = s.log.size() - 1;
    }
    CHECK((choices < 1000) == right);
    CHECK(drafts.figures_at(1).all() == DraftCounts{});  // none was verified
  }
}

TEST_CASE("drafts: each verify is counted once, for the probe of its group and for others apart") {
  DraftBench b;
  Sequence& other = b.run(1, 6);
  Sequence& probe = b.run(2, 6);
  probe.request.sample = 0;
  b.propose();
  b.drafts.count(other, std::vector<int32_t>{0, 1, 2});
  b.drafts.count_paths(probe, std::vector<int32_t>{1, 5});
  const DraftFigures figures = b.drafts.figures_at(1'000'000);
  CHECK(figures.other_paths == DraftCounts{1, kDraftMax, 2});
  CHECK(figures.probe_paths == DraftCounts{2, 2 * kDraftMax, 4});
  DraftCounts in_history;
  for (const DraftCounts& slice : b.drafts.figures_at(2'000'000).history.slices) in_history += slice;
  CHECK(in_history == figures.all());
}

TEST_CASE("drafts: the drafter learns all texts, and which groups run") {
  DraftBench b;
  b.run(1, 6);
  b.run(2, 6).request.group = GroupId{7};
  b.drafts.learn(b.sequences);
  CHECK(b.drafter->learned.size() == 2);
  CHECK(b.drafter->groups_running == std::vector<GroupId>{GroupId{0}, GroupId{7}});
}
