#include "actors/policy/schedule/chunk_scheduler.h"

#include "actors/policy/schedule/divided_scheduler.h"
#include "actors/policy/schedule/seer_plus_scheduler.h"
#include "actors/policy/schedule/serve_order.h"
#include "actors/policy/schedule/streamrl_oracle_scheduler.h"
#include "actors/policy/schedule/verl_scheduler.h"

namespace seer {
namespace {

Status check_config(const ChunkSchedulerConfig& config) {
  if (config.chunk_tokens < 0)
    return fail(Code::kInvalidArgument, "chunk_tokens=", config.chunk_tokens, " is negative");
  if (!(config.reserve_share <= 1))
    return fail(Code::kInvalidArgument, "reserve_share=", config.reserve_share, " is more than 1");
  if (config.starve_us < 0) return fail(Code::kInvalidArgument, "starve_us=", config.starve_us, " is negative");
  if (!(config.unexplained_before >= 0 && config.unexplained_before <= 1))
    return fail(Code::kInvalidArgument, "unexplained_before=", config.unexplained_before, " is not in [0, 1]");
  if (config.inflight_spread_max < 0)
    return fail(Code::kInvalidArgument, "inflight_spread_max=", config.inflight_spread_max, " is negative");
  if (config.misses_max < 1) return fail(Code::kInvalidArgument, "misses_max=", config.misses_max, " is less than 1");
  return {};
}

}  // namespace

std::vector<std::string> chunk_policy_names() {
  std::vector<std::string> names;
  for (ChunkPolicy policy : kChunkPolicies) names.push_back(to_string(policy));
  return names;
}

Result<std::unique_ptr<ChunkScheduler>> make_chunk_scheduler(const ChunkSchedulerConfig& given) {
  SEER_RETURN_IF_ERROR(check_config(given));
  const auto policy = parse_chunk_policy(given.policy);
  if (!policy) {
    std::string known;
    for (const std::string& name : chunk_policy_names()) known += " " + name;
    return fail(Code::kInvalidArgument, "unknown scheduling policy \"", given.policy, "\"; known:", known);
  }
  ChunkSchedulerConfig config = given;
  if (config.reserve_share < 0) config.reserve_share = *policy == ChunkPolicy::kSeerPlus ? kSeerPlusReserveShare : 1.0;
  if (*policy == ChunkPolicy::kSeerPlus)
    return std::unique_ptr<ChunkScheduler>(std::make_unique<SeerPlusScheduler>(config));
  if (*policy == ChunkPolicy::kVerl) return std::unique_ptr<ChunkScheduler>(std::make_unique<VerlScheduler>(config));
  if (*policy == ChunkPolicy::kStreamrlOracle)
    return std::unique_ptr<ChunkScheduler>(std::make_unique<StreamrlOracleScheduler>(config));
  return std::unique_ptr<ChunkScheduler>(std::make_unique<DividedScheduler>(*policy, config));
}

}  // namespace seer
