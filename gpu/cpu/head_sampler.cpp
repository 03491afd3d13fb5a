#include "gpu/cpu/head_sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "gpu/cpu/row_softmax.h"
#include "gpu/sampler.h"
#include "protocols/check.h"

namespace seer {
namespace {

constexpr int32_t kPartPanels = kPartIds / kPanelRows;
constexpr int32_t kSmallParts = 8;  // with at most this many parts, keeping all logits costs less than computing a part again

// State of one row while its parts are computed.
struct RowState {
  std::optional<PartedRow> parted;  // none: all logits are kept
  int32_t whole = -1;               // then: row of its logits
  float target_logit = 0;
};

}  // namespace

HeadSampler::HeadSampler(int32_t vocab, Linear& linear, ThreadPool& pool)
    : linear_(linear), pool_(pool), part_logits_(pool.threads()), whole_logits_(vocab) {
  for (AlignedArray<float>& logits : part_logits_) logits = AlignedArray<float>(kRowsMax * kPartIds);
}

void HeadSampler::run(const PackedMatrix& head, Activations& normed, std::span<const HeadRow> rows, std::span<SampledToken> tokens,
                      std::span<KeptList> kept) {
  const auto count = static_cast<int32_t>(rows.size());
  SEER_CHECK(count <= kRowsMax && tokens.size() == rows.size(), count, tokens.size());
  const int32_t vocab = head.rows(), parts = (vocab + kPartIds - 1) / kPartIds;
  std::vector<RowState> states(rows.size());
  int32_t whole = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (parts > kSmallParts && (rows[i].target >= 0 || (PartedRow::suffices(*rows[i].sampling) && rows[i].banned.empty())))
      states[i].parted.emplace(vocab, *rows[i].sampling);
    else
      states[i].whole = whole++;
  }
  whole_logits_.reserve_rows(whole);

  const auto ids_of = [&](int32_t part) { return std::min<int32_t>(kPartIds, vocab - part * kPartIds); };
  const auto panels_end = [&](int32_t part) { return std::min(head.panels(), (part + 1) * kPartPanels); };
  linear_.prepare(head, normed, count);
  // A small vocabulary has fewer parts than there are threads: then the rows are split too.
  const int32_t wanted_tasks = pool_.threads() == 1 ? 1 : 4 * pool_.threads();
  const int32_t row_ranges = std::clamp((wanted_tasks + parts - 1) / parts, 1, count);
  pool_.run(parts * row_ranges, [&](int32_t task, int32_t thread) {
    const int32_t part = task / row_ranges, range = task % row_ranges, ids = ids_of(part);
    const int32_t begin = count * range / row_ranges, end = count * (range + 1) / row_ranges;
    float* logits = part_logits_[thread].data();
    linear_.multiply_here(head, normed, begin, end - begin, part * kPartPanels, panels_end(part), logits, kPartIds);
    for (int32_t i = begin; i < end; ++i, logits += kPartIds) {
      RowState& state = states[i];
      const int32_t target = rows[i].target - part * kPartIds;  // within the part
      if (target >= 0 && target < ids) state.target_logit = logits[target];
      if (state.parted)
        state.parted->add(part, {logits, static_cast<size_t>(ids)});
      else
        std::memcpy(whole_logits_.row(state.whole) + part * kPartIds, logits, static_cast<size_t>(ids) * sizeof(float));
    }
  });

  pool_.run(count, [&](int32_t i, int32_t thread) {
    const HeadRow& row = rows[i];
    const RowState& state = states[i];
    if (state.parted && !state.parted->finite()) {
      tokens[i] = {kNotFinite, 0};
      return;
    }
    if (state.parted && row.target >= 0) {
      tokens[i] = {row.target, state.parted->logprob(state.target_logit)};
      return;
    }
    RowSample drawn;
    if (state.parted) {
      const PartedRow::Choice choice = state.parted->choose(row.seed, row.position);
      const auto part = static_cast<int32_t>(choice.part);
      float* logits = part_logits_[thread].data();
      linear_.multiply_here(head, normed, i, 1, part * kPartPanels, panels_end(part), logits, kPartIds);
      drawn = state.parted->pick(choice, {logits, static_cast<size_t>(ids_of(part))});
    } else {
      const std::span<float> logits(whole_logits_.row(state.whole), static_cast<size_t>(vocab));
      if (row.target >= 0) {
        const float logprob = token_logprob(logits, row.target, *row.sampling);
        drawn = std::isnan(logprob) ? RowSample{kNotFinite, 0} : RowSample{row.target, logprob};
      } else {
        drawn = sample_row(logits, *row.sampling, row.seed, row.position, row.penalty_tokens, row.banned);
      }
    }
    tokens[i] = {drawn.token, drawn.logprob};
    if (!kept.empty()) kept[i] = std::move(drawn.kept);
  });
}

}  // namespace seer
