#include "actors/kv_pulls.h"

#include <algorithm>
#include <utility>

namespace seer {
namespace {

constexpr int64_t kAskTimeoutUs = 2'000'000;    // after that, a silent directory is given up, and room that does not come
constexpr int64_t kLendTimeoutUs = 10'000'000;  // after that, a lender; it may have to read from its disk

}  // namespace

KvPulls::KvPulls(rt::self_of<KvNodeHandle> self, KvPullsConfig config, KvTiers& tiers, KvOwners& owners, KvFetches& fetches,
                 std::function<void(const OpenBlocks&)> answer)
    : self_(self), config_(config), tiers_(tiers), owners_(owners), fetches_(fetches), answer_(std::move(answer)) {}

void KvPulls::open(const OpenBlocks& ask) {
  const size_t here = blocks_here(ask.what);
  const bool pulls_rest = is_worth_it(ask.what, here);
  owners_.own(ask.what, here, !pulls_rest);
  if (!pulls_rest) return answer_(ask);
  const uint64_t op = next_op_++;
  pulls_.emplace(op, Pull{.ask = ask, .here = here});
  find_holders(op);
}

size_t KvPulls::blocks_here(const KvOpening& what) const {
  const ProbeResult here = tiers_.probe(keys_of(what.blocks));
  return here.dram_blocks + here.cold_blocks;
}

bool KvPulls::is_worth_it(const KvOpening& what, size_t here) const {
  if (!fetches_.can_fetch() || here == what.blocks.size()) return false;
  const bool is_prompt = what.first_index + what.blocks.size() <= what.prompt_blocks + 1;  // the last block may be a part of one
  if (!is_prompt) return true;
  int64_t missing_tokens = 0;
  for (size_t i = here; i < what.blocks.size(); ++i) missing_tokens += what.blocks[i].tokens;
  return missing_tokens >= config_.fetch_tokens_min;
}

std::vector<uint64_t> KvPulls::that_wait(Waits waits) const {
  std::vector<uint64_t> waiting;
  for (const auto& [op, pull] : pulls_)
    if (pull.waits == waits) waiting.push_back(op);
  return waiting;
}

std::map<uint64_t, KvPulls::Waits> KvPulls::waits() const {
  std::map<uint64_t, Waits> all;
  for (const auto& [op, pull] : pulls_) all.emplace(op, pull.waits);
  return all;
}

// ---- the directory -----------------------------------------------------------------------------------------------------

void KvPulls::find_holders(uint64_t op) {
  if (!owners_.has_directory()) return end(op);
  owners_.tell_directory(FindHolders{op, config_.node, pulls_.at(op).ask.what.owner, KvNodeHandle{self_}});
  wait_for_answer(op, kAskTimeoutUs);
}

/// on_silence() goes on without an answer if none has come until then.
void KvPulls::wait_for_answer(uint64_t op, int64_t timeout_us) {
  pulls_.at(op).until_us = rt::now_us(self_) + timeout_us;
  rt::tell_after(self_, timeout_us, KvNodeHandle{self_}, Tick{config_.tick, op});
}

void KvPulls::on_holders(const KvHolders& holders) {
  auto it = pulls_.find(holders.op);
  if (it == pulls_.end() || it->second.waits != Waits::kForDirectory) return;
  std::vector<KvLender>& sources = it->second.sources;
  sources.assign(holders.sources.rbegin(), holders.sources.rend());
  std::erase_if(sources, [&](const KvLender& source) { return !fetches_.is_connected(source.handle); });
  ask_next_source(holders.op);
}

void KvPulls::directory_down() {
  for (const uint64_t op : that_wait(Waits::kForDirectory)) end(op);
}

void KvPulls::directory_up() {
  for (const uint64_t op : that_wait(Waits::kForDirectory)) find_holders(op);  // the old one died before it answered
}

// ---- lenders -----------------------------------------------------------------------------------------------------------

void KvPulls::ask_next_source(uint64_t op) {
  Pull& pull = pulls_.at(op);
  if (pull.sources.empty()) return end(op);
  pull.lender = pull.sources.back();
  pull.sources.pop_back();
  pull.waits = Waits::kForLender;
  KvOpening wanted = pull.ask.what;
  wanted.op = op;
  wanted.lend = true;
  wanted.blocks.erase(wanted.blocks.begin(), wanted.blocks.begin() + static_cast<ptrdiff_t>(pull.here));
  rt::tell(self_, pull.lender.handle, OpenBlocks{std::move(wanted), KvNodeHandle{self_}});
  fetches_.watch(pull.lender);
  wait_for_answer(op, kLendTimeoutUs);
}

void KvPulls::on_lent(const KvOpened& lent) {
  auto it = pulls_.find(lent.op);
  const bool is_asked = it != pulls_.end() && it->second.waits == Waits::kForLender && lent.node == it->second.lender.node &&
                        lent.epoch == it->second.lender.epoch;
  if (!is_asked) {  // from a lender that was given up
    const KvLender* const from = fetches_.find(lent.node, lent.epoch);
    if (lent.lease != 0 && from != nullptr) rt::tell(self_, from->handle, KvClose{lent.lease, {}});
    return;
  }
  Pull& pull = it->second;
  if (lent.blocks.empty()) {
    pull.passed.push_back(pull.lender);
    return ask_next_source(lent.op);
  }
  pull.lent = lent;
  fetch_lent(lent.op, true);
}

/// Pulls whose blocks are under way hear of it by their fetch.
void KvPulls::lender_down(const rt::down& message) {
  std::vector<uint64_t> unfetched;
  for (auto& [op, pull] : pulls_) {
    if (pull.waits != Waits::kForLender && pull.waits != Waits::kForRoom) continue;
    if (!rt::is_source(message, pull.lender.handle)) continue;
    pull.lent = {};
    unfetched.push_back(op);
  }
  for (const uint64_t op : unfetched) ask_next_source(op);
}

void KvPulls::on_silence(uint64_t op) {
  auto it = pulls_.find(op);
  if (it == pulls_.end() || rt::now_us(self_) < it->second.until_us) return;  // it has another question now
  switch (it->second.waits) {
    case Waits::kForDirectory: return end(op);
    case Waits::kForLender: return ask_next_source(op);
    case Waits::kForRoom: return fetch_lent(op, false);
    case Waits::kForBytes:
    case Waits::kForPull: return;  // a fetch has a limit of its own
  }
}

// ---- bytes -------------------------------------------------------------------------------------------------------------

/// Fetches what was lent, as far as there is room here. If there is none, the pull waits for it, if it may and room is being made.
void KvPulls::fetch_lent(uint64_t op, bool may_wait) {
  Pull& pull = pulls_.at(op);
  const KvOpening& what = pull.ask.what;
  bool is_room_coming = false;
  std::vector<KvFetches::Copy> copies;
  // Reserves room here for the lent blocks [first, last) of the opening. False: no room is left.
  const auto take = [&](size_t first, size_t last) {
    if (first >= last) return true;
    const std::vector<Reservation> rooms = owners_.reserve(what, first, last, false);
    for (size_t i = first; i < last; ++i) {
      const Reservation& room = rooms[i - first];
      if (room.state == GrantState::kHere) continue;
      is_room_coming = room.state == GrantState::kLater;
      if (room.state != GrantState::kWrite) return false;
      copies.push_back({what.blocks[i].key, pull.lent.blocks[i - pull.here], room.slot, room.token});
    }
    return true;
  };
  const size_t lent_end = pull.here + pull.lent.blocks.size();
  const size_t prompt_end = std::clamp(prompt_blocks_of(what), pull.here, lent_end);
  if (take(pull.here, prompt_end)) take(prompt_end, lent_end);
  if (may_wait && copies.empty() && is_room_coming) {
    const Waits before = std::exchange(pull.waits, Waits::kForRoom);
    if (before != Waits::kForRoom) wait_for_answer(op, kAskTimeoutUs);
    return;
  }
  pull.waits = Waits::kForBytes;
  pull.lent_end = lent_end;
  for (const KvFetches::Copy& copy : copies) pull.fetching.push_back(copy.key);
  fetches_.start(pull.lender, copies, {std::exchange(pull.lent, {}).lease, {}},
                 {.ended = [this, op](size_t here) { on_fetched(op, here); }});
}

void KvPulls::on_room() {
  for (const uint64_t op : that_wait(Waits::kForRoom)) {
    fetch_lent(op, true);
    // Later ones wait for their turn, or their limit.
    if (const auto pull = pulls_.find(op); pull != pulls_.end() && pull->second.waits == Waits::kForRoom) break;
  }
}

void KvPulls::on_fetched(uint64_t op, size_t blocks) {
  fetched_blocks_ += static_cast<int64_t>(blocks);
  pulls_.at(op).fetching.clear();
  std::vector<uint64_t> waiting = that_wait(Waits::kForPull);
  std::erase_if(waiting, [&](uint64_t waits) { return pulls_.at(waits).other != op; });
  go_on(op);
  for (const uint64_t waits : waiting) go_on(waits);
}

/// 0: none does. One that waits for another has no blocks under way, so none waits for itself.
uint64_t KvPulls::pull_that_fetches(const BlockKey& key) const {
  for (const auto& [op, pull] : pulls_)
    if (std::ranges::find(pull.fetching, key) != pull.fetching.end()) return op;
  return 0;
}

/// What was lent has come, or failed. If all of it is here, the lender may drop its copy of the request's own blocks. It, or another
/// node, may have blocks that are still missing.
void KvPulls::go_on(uint64_t op) {
  Pull& pull = pulls_.at(op);
  const size_t here = blocks_here(pull.ask.what);
  pull.other = here < pull.lent_end ? pull_that_fetches(pull.ask.what.blocks[here].key) : 0;
  if (pull.other != 0) {
    pull.waits = Waits::kForPull;
    return;
  }
  std::erase_if(pull.emptied, [&](const KvLender& lender) { return lender.handle == pull.lender.handle; });
  if (here >= pull.lent_end) pull.emptied.push_back(pull.lender);
  if (here > pull.here) {
    pull.sources.insert(pull.sources.begin(), pull.passed.begin(), pull.passed.end());
    pull.passed.clear();
    pull.sources.push_back(pull.lender);  // there was no room for the rest here, or for more there
  }
  pull.here = here;
  if (pull.here < pull.ask.what.blocks.size()) return ask_next_source(op);
  end(op);
}

/// Answers the opening with the blocks that are here now.
void KvPulls::end(uint64_t op) {
  const Pull pull = std::move(pulls_.extract(op).mapped());
  const KvOwner owner = pull.ask.what.owner;
  owners_.own(pull.ask.what, blocks_here(pull.ask.what), true);
  if (!owners_.has(owner)) tiers_.release(owner);  // of room for what did not come
  for (const KvLender& lender : pull.emptied) rt::tell(self_, lender.handle, KvRelease{.owner = owner, .copied = true});
  answer_(pull.ask);
}

}  // namespace seer
