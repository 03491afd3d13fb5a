#include "actors/policy/draft/draft_scores.h"

#include <algorithm>
#include <cmath>

namespace seer {
namespace {

constexpr float kWeightRate = 0.01f;
constexpr float kPastBias = -1;  // text of earlier iterations counts as less likely until it proves as good
constexpr float kSeenMax = 250;  // a cell never adapts more slowly than after being seen this often

float to_logit(float probability) {
  const float p = std::clamp(probability, 0.005f, 0.995f);
  return std::log(p / (1 - p));
}

// Before anything is learned, a probability is the share of the counts, less some for tokens not seen yet, as in prediction by
// partial matching: each context counts this many more occurrences, with unseen tokens. By class of the context's length.
constexpr std::array<float, 10> kUnseen = {1.2f, 1, 0.65f, 0.5f, 0.33f, 0.2f, 0.15f, 0.12f, 0.08f, 0.07f};
constexpr std::array<float, 8> kTotals = {1, 2, 3.5f, 6.5f, 12, 40, 160, 400};  // by class
constexpr float kAgeTotal = 2;  // for the cells of ages, which do not have the total
constexpr float kSourceAgrees = 0.75f, kSourceDiffers = 0.3f;

float prior(uint32_t table, uint32_t cell) {
  const uint32_t share_class = cell % 16;
  if (table == DraftScores::kContexts) return share_class & 4 ? kSourceDiffers : kSourceAgrees;  // see source_cell()
  if (share_class == 0) return 0.02f;
  const float share = share_class == 15 ? 1 : (static_cast<float>(share_class) - 0.5f) / 14;
  const float total = table < DraftScores::kContexts ? kTotals[cell / 16 % kTotals.size()] : kAgeTotal;
  return share * total / (total + kUnseen[cell / 128]);
}

}  // namespace

DraftScores::DraftScores() : logits_(kTables * kTableCells), learned_(kTables * kTableCells) {
  for (size_t set = 0; set < weights_.size(); ++set)
    weights_[set] = {0.4f, 0.15f, 0.15f, 0.15f, 0.3f, 0.2f, set < kPresentSets ? 0 : kPastBias};
  for (uint32_t table = 0; table < kTables; ++table)
    for (uint32_t cell = 0; cell < kNoCell; ++cell) {
      const float probability = prior(table, cell);
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
