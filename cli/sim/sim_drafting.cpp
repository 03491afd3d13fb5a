#include "cli/sim/sim_drafting.h"

#include <algorithm>
#include <utility>

#include "protocols/check.h"

namespace seer {
namespace {

constexpr int64_t kModelTokensMax = 3, kMtpTokens = 1;  // as in the paper's baselines

DrafterKind kind_of(const SimPolicy& policy, const SimulateOptions& options, const Workload& workload) {
  if (options.drafter != DrafterKind::kAuto) return options.drafter;
  if (!policy.whole_groups) return DrafterKind::kGroup;
  const auto usual = std::ranges::find(kDrafterNames, workload.drafting.usual);
  SEER_CHECK(usual != kDrafterNames.end(), workload.drafting.usual);
  return static_cast<DrafterKind>(usual - kDrafterNames.begin());
}

constexpr int64_t kOwnDraftTokens = 16;  // what own-accepted of a workload is about; shorter drafts gain less

/// Acceptance of drafts made from texts. The published mean over a rollout is taken to be that at half of the other responses of
/// the group, because a draft finds between none and all of them.
Result<DraftAcceptance> text_acceptance(bool grouped, const SimulateOptions& options, const Workload& workload) {
  if (!options.draft_acceptance.empty()) return DraftAcceptance::read(options.draft_acceptance, options.drafting);
  const WorkloadDrafting& known = workload.drafting;
  if (!grouped && known.own_accepted > 0)
    return DraftAcceptance::constant(known.own_accepted, kOwnDraftTokens);
  SEER_ASSIGN_OR_RETURN(DraftAcceptance table, DraftAcceptance::published(options.drafting));
  if (!grouped || known.group_accepted == 0) return table;
  return table.scaled(known.group_accepted, static_cast<double>(workload.group_size - 1) / 2);
}

/// Time of one pass of a draft model, or of the model's own head for the next but one token.
Result<std::function<int64_t(const StepShape&)>> pass_ns(HardwareSetup setup, DrafterKind kind, const ModelSpec& model) {
  if (kind == DrafterKind::kMtp) {
    setup.model.layers = 1;
    setup.model.first_dense_layers = 0;
    setup.costs.step_us = 0;  // it is part of the step
  } else {
    setup.model = model;
    setup.ep = 1;
    while (setup.model.heads % setup.tp != 0) --setup.tp;
    while (setup.gpu.gpus_per_node % setup.tp != 0 || setup.model.heads % setup.tp != 0) --setup.tp;
    setup.gpus_per_instance = setup.tp * setup.dp;
  }
  SEER_ASSIGN_OR_RETURN(HardwareModel pass, HardwareModel::create(std::move(setup)));
  return std::function<int64_t(const StepShape&)>(HardwareStepTimes(std::move(pass)));
}

Result<std::optional<SimDrafting>> by_passes(DrafterKind kind, const SimulateOptions& options, const Workload& workload) {
  const bool is_model = kind == DrafterKind::kModel;
  const WorkloadDrafting& known = workload.drafting;
  const std::string flag = cat("--drafter ", is_model ? "model" : "mtp");
  if (!options.profile.empty())
    return fail(Code::kInvalidArgument, flag, " does not go with --profile, which has no steps of a drafter: expected own or group");
  if (!workload.hardware) return fail(Code::kInvalidArgument, flag, ": ", options.workload, " names no GPU and model");
  const double accepted = is_model ? known.model_accepted : known.mtp_accepted;
  if (accepted == 0 || (is_model && !known.model))
    return fail(Code::kInvalidArgument, flag, ": ", options.workload, " does not say how much of such drafts is accepted: expected ",
                is_model ? "draft-model and model-accepted" : "mtp-accepted", " in it");
  const int64_t tokens = is_model ? kModelTokensMax : kMtpTokens;
  SimDrafting drafting{DraftAcceptance::constant(accepted, tokens), false,
                       {.rule = options.draft_rule, .rows_max = {std::min(tokens, options.draft_tokens_max), 0}, .draft_ns = 0}};
  SEER_ASSIGN_OR_RETURN(drafting.pass_ns, pass_ns(*workload.hardware, kind, is_model ? *known.model : ModelSpec{}));
  return std::optional(std::move(drafting));
}

}  // namespace

Result<std::optional<SimDrafting>> sim_drafting(const SimPolicy& policy, const SimulateOptions& options, const Workload& workload) {
  if (!policy.drafts) return std::optional<SimDrafting>{};
  const DrafterKind kind = kind_of(policy, options, workload);
  if (kind == DrafterKind::kModel || kind == DrafterKind::kMtp) return by_passes(kind, options, workload);
  const bool grouped = kind == DrafterKind::kGroup;
  const int64_t tokens_max = grouped ? options.draft_tokens_max : 2 * options.draft_tokens_max;
  SEER_ASSIGN_OR_RETURN(DraftAcceptance acceptance, text_acceptance(grouped, options, workload));
  return std::optional<SimDrafting>({std::move(acceptance), grouped, {.rule = options.draft_rule, .rows_max = {tokens_max, 0}}});
}

}  // namespace seer
