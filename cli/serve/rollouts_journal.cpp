#include "cli/serve/rollouts_journal.h"

#include <algorithm>

namespace seer {
namespace {

constexpr int64_t kRetryUs = 10'000'000;

}  // namespace

template <class Write>
const Status& RolloutsJournal::write(Write write) {
  if (journal_ != nullptr && failed_.ok()) failed_ = write(*journal_);
  return failed_;
}

Result<ServedContents> RolloutsJournal::read() {
  if (journal_ == nullptr) return ServedContents{};
  SEER_ASSIGN_OR_RETURN(ServedContents contents, journal_->read());
  for (const ServedContents::Rollout& rollout : contents.rollouts)
    written_[rollout.head.number] = {rollout.responses.empty() ? 0 : rollout.responses.back().seq, rollout.head.acknowledged};
  return contents;
}

Status RolloutsJournal::create(const ServedHead& head, const std::vector<ServedGroup>& groups) {
  const Status created = add(head, 0, groups);
  if (!created.ok()) to_forget_.push_back(head.number);
  return created;
}

Status RolloutsJournal::add(const ServedHead& head, uint32_t first, const std::vector<ServedGroup>& groups) {
  return write([&](ServedJournal& journal) { return journal.add(head, first, groups); });
}

void RolloutsJournal::put(const ServedHead& head) {
  write([&](ServedJournal& journal) { return journal.put(head); });
}

void RolloutsJournal::commit(uint64_t rollout, const CommittedTokens& part, WeightVersion version) {
  const std::pair response(rollout, part.request);
  if (part.first_index == 0) gaps_.erase(response);
  if (gaps_.contains(response)) return;
  if (!write([&](ServedJournal& journal) { return journal.commit(rollout, part, version); }).ok()) gaps_.insert(response);
}

void RolloutsJournal::finish(uint64_t rollout, const std::vector<ServedResponse>& responses) {
  for (const ServedResponse& response : responses) gaps_.erase({rollout, {GroupId{response.group}, response.sample}});
  if (write([&](ServedJournal& journal) { return journal.finish(rollout, responses); }).ok())
    written_[rollout].given = responses.back().seq;
}

void RolloutsJournal::acknowledge(const ServedHead& head, const std::vector<ServedResponse>& responses) {
  if (write([&](ServedJournal& journal) { return journal.acknowledge(head, responses); }).ok())
    written_[head.number].acknowledged = head.acknowledged;
}

void RolloutsJournal::forget(uint64_t rollout) {
  written_.erase(rollout);
  std::erase_if(gaps_, [&](const auto& response) { return response.first == rollout; });
  if (!write([&](ServedJournal& journal) { return journal.forget(rollout); }).ok()) to_forget_.push_back(rollout);
}

void RolloutsJournal::set_mark(const ServedModelMark& mark) {
  mark_ = mark;
  write([&](ServedJournal& journal) { return journal.set_mark(mark); });
}

// ---- after a write that failed -------------------------------------------------------------------------------------------------

bool RolloutsJournal::must_retry(int64_t now_us) {
  if (failed_.ok() || now_us < retry_us_) return false;
  retry_us_ = now_us + kRetryUs;
  return true;
}

const Status& RolloutsJournal::catch_up(const std::vector<Current>& rollouts) {
  if (!failed_.ok()) failed_ = write_missing(rollouts);
  return failed_;
}

Status RolloutsJournal::write_missing(const std::vector<Current>& rollouts) {
  SEER_RETURN_IF_ERROR(journal_->reopen());
  if (mark_) SEER_RETURN_IF_ERROR(journal_->set_mark(*mark_));
  for (const uint64_t number : to_forget_) SEER_RETURN_IF_ERROR(journal_->forget(number));
  to_forget_.clear();
  for (const Current& rollout : rollouts) SEER_RETURN_IF_ERROR(write_missing(rollout));
  return {};
}

/// Responses come in order, and no head acknowledges one before it is there: the process may die after each write.
Status RolloutsJournal::write_missing(const Current& rollout) {
  const ServedHead& head = rollout.head;
  Written& written = written_[head.number];
  const auto given_after = [&](uint64_t seq) { return rollout.given.begin() + static_cast<ptrdiff_t>(seq); };
  if (written.acknowledged < head.acknowledged) {
    SEER_RETURN_IF_ERROR(journal_->acknowledge(head, {given_after(written.acknowledged), given_after(head.acknowledged)}));
    written.acknowledged = head.acknowledged;
    written.given = std::max(written.given, head.acknowledged);
  }
  std::vector<ServedResponse> missing(given_after(written.given), rollout.given.end());
  for (ServedResponse& response : missing) response.line = *rollout.lines[response.seq - head.acknowledged - 1];
  if (!missing.empty()) SEER_RETURN_IF_ERROR(journal_->finish(head.number, missing));
  written.given = rollout.given.size();
  return journal_->add(head, rollout.groups, {});
}

}  // namespace seer
