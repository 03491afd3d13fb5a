#include "actors/policy/schedule/policy_choice.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "protocols/check.h"

namespace seer {
namespace {

// A running request has generated about a quarter of its limit. Responses average a fifth to two fifths of their limit, and a
// running one has about half of its tokens; long ones run longer. The three built-in workloads and the shipped prompts give 0.15
// to 0.25.
constexpr int64_t kLimitOverGenerated = 4;

/// Sequences that run at a time if `share` of each chunk is promised at its start. Averaged over the chunk, half of the promise
/// is not used yet; but a request in its first chunk holds its prompt and all of the promise.
int64_t sequences_at_once(const InstanceWork& work, int64_t context_tokens, double chunk_tokens, double share) {
  const double promise = share * chunk_tokens;
  const double each = std::max(static_cast<double>(context_tokens) + promise / 2, static_cast<double>(work.prompt_tokens) + promise);
  const auto fit = static_cast<int64_t>(static_cast<double>(work.kv_tokens) / each);
  return std::max<int64_t>(1, std::min({fit, work.rows_max, work.requests}));
}

}  // namespace

TypicalBatches typical_batches(const InstanceWork& work, const ChunkSchedulerConfig& config) {
  SEER_CHECK(work.kv_tokens >= 1, work.kv_tokens);
  SEER_CHECK(work.rows_max >= 1, work.rows_max);
  SEER_CHECK(work.requests >= 1, work.requests);
  SEER_CHECK(work.prompt_tokens >= 1, work.prompt_tokens);
  SEER_CHECK(work.limit_tokens >= 1, work.limit_tokens);
  const int64_t generated = work.limit_tokens / kLimitOverGenerated;
  const int64_t left = work.limit_tokens - generated;
  const auto chunk = static_cast<double>(config.chunk_tokens > 0 ? std::min(config.chunk_tokens, left) : left);
  TypicalBatches batches{.context_tokens = work.prompt_tokens + generated};
  const auto at_once = [&](const char* policy) {
    ChunkSchedulerConfig other = config;
    other.policy = policy;
    return sequences_at_once(work, batches.context_tokens, chunk, reserve_of(other));
  };
  batches.held_sequences = at_once(kSeerPolicy);
  batches.full_sequences = at_once(kSeerPlusPolicy);
  return batches;
}

std::vector<int64_t> batch_sizes(const TypicalBatches& batches) {
  std::vector<int64_t> sizes{batches.held_sequences, batches.full_sequences};
  for (int64_t size = kCapMin; size < batches.full_sequences; size *= 2) sizes.push_back(size);
  std::ranges::sort(sizes);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

StepShape decode_shape(int64_t sequences, int64_t context_tokens) {
  StepShape shape;
  for (int64_t i = 0; i < sequences; ++i) shape.add(context_tokens, 1, 1);
  return shape;
}

PolicyChoice choose_policy(const TypicalBatches& batches, const std::function<double(const StepShape&)>& step_us) {
  PolicyChoice choice{.batches = batches};
  std::map<int64_t, double> token_us;  // by size of the batch
  for (const int64_t size : batch_sizes(batches)) {
    const double us = step_us(decode_shape(size, batches.context_tokens)) / static_cast<double>(size);
    if (!(us > 0) || !std::isfinite(us)) return choice;
    token_us[size] = us;
  }
  choice.saving = 1 - token_us[batches.full_sequences] / token_us[batches.held_sequences];
  if (choice.saving > kSeerPlusSavingMin) choice.policy = kSeerPlusPolicy;

  token_us.erase(token_us.upper_bound(batches.of(choice.policy)), token_us.end());
  const auto us = [](const auto& entry) { return entry.second; };
  const double enough_us = (1 + kCapSlack) * us(*std::ranges::min_element(token_us, {}, us));
  const auto fullest = std::find_if(token_us.rbegin(), token_us.rend(), [&](const auto& e) { return us(e) <= enough_us; });
  if (fullest->first <= batches.held_sequences) choice.policy = kSeerPolicy;  // it can run as many, with the shorter tail
  const int64_t own = batches.of(choice.policy);
  if (fullest->first == own) return choice;
  choice.rows_max = fullest->first;
  choice.cap_saving = 1 - us(*fullest) / token_us[own];
  return choice;
}

}  // namespace seer
