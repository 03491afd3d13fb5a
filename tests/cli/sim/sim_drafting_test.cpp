#include "cli/sim/sim_drafting.h"

#include <doctest/doctest.h>

#include "cli/scratch.h"

using namespace seer;

namespace {

Workload workload_of(const std::string& name) {
  Result<Workload> workload = load_workload(name);
  REQUIRE_MESSAGE(workload.ok(), workload.error().detail);
  return *std::move(workload);
}

SimDrafting drafting_of(const std::string& policy, DrafterKind drafter, const Workload& workload) {
  SimulateOptions options;
  options.drafter = drafter;
  Result<std::optional<SimDrafting>> drafting = sim_drafting(sim_policy(policy), options, workload);
  REQUIRE_MESSAGE(drafting.ok(), drafting.error().detail);
  REQUIRE(drafting->has_value());
  return **std::move(drafting);
}

/// 64 sequences of 8000 tokens that decode.
StepShape decode() {
  StepShape shape;
  for (int i = 0; i < 64; ++i) shape.add(8000, 1, 1);
  return shape;
}

}  // namespace

TEST_CASE("sim drafting: policies with a pool draft from the group, the others as is usual for the model") {
  for (const auto& [name, tokens, accepted] : {std::tuple{"moonlight", 16, 1.67}, {"qwen2-vl-72b", 3, 2.19}, {"kimi-k2", 1, 1.74}}) {
    CAPTURE(std::string(name));
    const Workload workload = workload_of(name);
    const SimDrafting usual = drafting_of("verl+sd", DrafterKind::kAuto, workload);
    CHECK(!usual.grouped);
    CHECK(usual.budget.rows_max[0] == tokens);
    for (const double references : {0.0, 7.0}) CHECK(usual.acceptance.mean_accepted(references, tokens) == doctest::Approx(accepted));
    const SimDrafting group = drafting_of("seer+sd", DrafterKind::kAuto, workload);
    CHECK(group.grouped);
    CHECK(group.budget.rows_max[0] == 8);
    CHECK(!group.pass_ns);
    CHECK(group.acceptance.mean_accepted(0, 8) < workload.drafting.group_accepted);
    CHECK(group.acceptance.mean_accepted(static_cast<double>(workload.group_size - 1), 8) > workload.drafting.group_accepted);
    CHECK(drafting_of("verl+sd", DrafterKind::kGroup, workload).grouped);
  }
}

TEST_CASE("sim drafting: a draft model takes longer per token than one more layer, and less than the model") {
  Workload qwen = workload_of("qwen2-vl-72b");
  qwen.drafting.mtp_accepted = 1.7;
  const double model = static_cast<double>(drafting_of("verl+sd", DrafterKind::kModel, qwen).pass_ns(decode()));
  const double mtp = static_cast<double>(drafting_of("verl+sd", DrafterKind::kMtp, qwen).pass_ns(decode()));
  const double step = static_cast<double>(HardwareModel::create(*qwen.hardware)->step_ns(decode()));
  CHECK(mtp > 0);
  CHECK(mtp < model / 2);
  CHECK(model < step);
  CHECK(model > step / 10);
}

TEST_CASE("sim drafting: a drafter that nothing is known about is refused in one sentence") {
  const auto refused = [](DrafterKind drafter, const Workload& workload, const std::string& profile = "") {
    SimulateOptions options;
    options.workload = "w.toml";
    options.drafter = drafter;
    options.profile = profile;
    const auto drafting = sim_drafting(sim_policy("verl+sd"), options, workload);
    REQUIRE(!drafting.ok());
    return drafting.error().detail;
  };
  const Workload moonlight = workload_of("moonlight");
  CHECK(refused(DrafterKind::kModel, moonlight) ==
        "--drafter model: w.toml does not say how much of such drafts is accepted: expected draft-model and model-accepted in it");
  CHECK(refused(DrafterKind::kMtp, moonlight) ==
        "--drafter mtp: w.toml does not say how much of such drafts is accepted: expected mtp-accepted in it");
  CHECK(refused(DrafterKind::kMtp, workload_of("kimi-k2"), "p.json") ==
        "--drafter mtp does not go with --profile, which has no steps of a drafter: expected own or group");
  CHECK(refused(DrafterKind::kMtp, Workload{}) == "--drafter mtp: w.toml names no GPU and model");
}
