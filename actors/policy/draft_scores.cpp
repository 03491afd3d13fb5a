#include "actors/policy/draft_scores.h"

#include <algorithm>
#include <cmath>

namespace seer {
namespace {

constexpr float kWeightRate = 0.01f;
constexpr float kPastBias = -1;  // what earlier iterations said is taken for less likely until it proves as good
constexpr float kSeenMax = 250;  // a cell adapts as fast as if it had been seen at most so often

float to_logit(float probability) {
  const float p = std::clamp(probability, 0.005f, 0.995f);
  return std::log(p / (1 - p));
}

}  // namespace

DraftScores::DraftScores() : logits_(kTables * kTableCells), learned_(kTables * kTableCells) {
  for (size_t set = 0; set < weights_.size(); ++set)
    weights_[set] = {0.4f, 0.15f, 0.15f, 0.15f, 0.3f, 0.2f, set < kPresentSets ? 0 : kPastBias};
  for (uint32_t table = 0; table < kTables; ++table)
    for (uint32_t cell = 0; cell < kNoCell; ++cell) {
      const auto share = static_cast<float>(cell % 16);
      const float by_share = share == 0 ? 0.02f : (share - 0.5f) / 15 * 0.8f + 0.02f;
      const float probability = table == kContexts ? 0.3f : by_share;
      learned_[table * kTableCells + cell] = {probability, 2};
      logits_[table * kTableCells + cell] = to_logit(probability);
    }
}

float DraftScores::probability(float logit) { return 1 / (1 + std::exp(-logit)); }

void DraftScores::learn(const Evidence& evidence, bool accepted) {
  const float outcome = accepted ? 1 : 0;
  const float error = outcome - evidence.probability;
  auto& weights = weights_[evidence.weight_set];
  weights[kTables] += kWeightRate * error * kConstantInput;
  for (uint32_t i = 0; i < kTables; ++i) {
    if (evidence.cells[i] == kNoCell) continue;
    const uint32_t at = i * kTableCells + evidence.cells[i];
    weights[i] += kWeightRate * error * logits_[at];
    Learned& learned = learned_[at];
    learned.probability += (outcome - learned.probability) / (learned.seen + 1.5f);
    learned.seen = std::min(learned.seen + 1, kSeenMax);
    logits_[at] = to_logit(learned.probability);
  }
}

}  // namespace seer
