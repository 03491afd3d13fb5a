#include "actors/kv_guests.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

namespace seer {
namespace {

constexpr int64_t kAskTimeoutUs = 2'000'000;  // after that, a silent directory has found no room
constexpr int64_t kFullUs = 1'000'000;        // a node without room is not asked for some again before that
constexpr int64_t kUnreachedUs = 60'000'000;  // likewise one that cannot be reached: each question makes the directory promise its room

}  // namespace

KvGuests::KvGuests(rt::self_of<KvNodeHandle> self, KvGuestsConfig config, KvTiers& tiers, KvOwners& owners, KvFetches& fetches)
    : self_(self), config_(std::move(config)), tiers_(tiers), owners_(owners), fetches_(fetches) {}

// ---- blocks that leave -------------------------------------------------------------------------------------------------

void KvGuests::find_room(int64_t blocks) {
  const int64_t now = rt::now_us(self_);
  std::erase_if(avoided_until_us_, [&](const auto& full) { return now >= full.second; });
  FindRoom find{.asking = config_.me.node, .blocks = blocks, .has_cold = tiers_.cold_writable(), .except = {}, .reply_to = KvNodeHandle{self_}};
  for (const auto& [node, until_us] : avoided_until_us_) find.except.push_back(node);
  question_ = ++last_question_;
  if (!owners_.has_directory()) return rt::tell(self_, KvNodeHandle{self_}, Tick{config_.tick, question_});
  owners_.tell_directory(std::move(find));
  rt::tell_after(self_, kAskTimeoutUs, KvNodeHandle{self_}, Tick{config_.tick, question_});
}

void KvGuests::on_room_found(const KvRoomFound& found) {
  if (question_ == 0) return;  // too late
  question_ = 0;
  if (found.blocks > 0 && !fetches_.is_connected(found.taker)) {
    avoided_until_us_[found.node] = rt::now_us(self_) + kUnreachedUs;
    return find_room(found.blocks);  // of the others
  }
  if (found.blocks > 0) {
    taker_ = {found.node, found.taker};
    if (std::ranges::find(takers_, found.taker) == takers_.end()) {
      rt::monitor(self_, found.taker);
      takers_.push_back(found.taker);
    }
  } else {
    no_room_us_ = rt::now_us(self_);
  }
  tiers_.away_room(found.blocks);
}

void KvGuests::on_silence(uint64_t question) {
  if (question == question_) on_room_found({});
}

void KvGuests::directory_down() {
  if (question_ != 0) on_room_found({});
}

void KvGuests::look_again() {
  if (!no_room_us_ || rt::now_us(self_) - *no_room_us_ < kFullUs) return;
  no_room_us_.reset();
  tiers_.look_for_away_room();
}

void KvGuests::move_away(const LeavingBlocks& leaving) {
  KvMove move{.lease = leaving.lease.value, .owner = leaving.owner, .blocks = {}, .slots = {}, .first_index = leaving.first_index,
              .prompt = leaving.prompt, .next_use = leaving.next_use, .has_cold = tiers_.cold_writable()};
  for (const OpenBlock& b : leaving.blocks) {
    move.blocks.push_back({b.key, b.tokens});
    move.slots.push_back({b.slot, b.generation, b.crc32c});
  }
  moves_.emplace(move.lease, Move{taker_, move.blocks.size()});
  KvLender me = config_.me;
  me.handle = KvNodeHandle{self_};
  rt::tell(self_, taker_.handle, TakeBlocks{std::move(move), std::move(me)});
}

void KvGuests::end_lease(const KvClose& close) {
  const auto move = moves_.extract(close.lease);
  if (!move.empty() && close.taken.size() < move.mapped().blocks) {
    avoided_until_us_[move.mapped().to.node] = rt::now_us(self_) + kFullUs;
    tiers_.look_for_away_room();
  }
  (void)tiers_.close({close.lease}, close.taken);
  report_room();
}

void KvGuests::taker_down(const rt::down& message) {
  if (std::erase_if(takers_, [&](const KvTaker& known) { return rt::is_source(message, known); }) == 0) return;
  std::vector<uint64_t> unanswered;
  for (const auto& [lease, move] : moves_)
    if (rt::is_source(message, move.to.handle)) unanswered.push_back(lease);
  tiers_.look_for_away_room();
  for (const uint64_t lease : unanswered) end_lease({lease, {}});
}

// ---- blocks that come --------------------------------------------------------------------------------------------------

void KvGuests::on_take(const TakeBlocks& take) {
  const KvMove& move = take.what;
  const KvRoom now = room();
  const auto room_blocks = static_cast<size_t>(!fetches_.is_connected(take.from.handle) ? 0 : move.has_cold ? now.blocks : now.last_blocks);
  const size_t count = move.slots.size() == move.blocks.size() ? std::min(room_blocks, move.blocks.size()) : 0;
  KvClose answer{move.lease, {}};
  std::vector<KvFetches::Copy> copies;
  if (count > 0) {
    fetches_.watch(take.from);
    owners_.keep(move.owner, true);
    if (owners_.is_guest(move.owner)) tiers_.set_urgency(move.owner, {.pinned = false, .next_use = move.next_use, .guest = true});
    const auto rooms = tiers_.reserve(move.owner, std::span(move.blocks).first(count), {.first_index = move.first_index, .prompt = move.prompt});
    for (size_t i = 0; i < count; ++i) {
      const BlockKey& key = move.blocks[i].key;
      if (rooms[i].state == GrantState::kHere) answer.taken.push_back(key);
      if (rooms[i].state == GrantState::kWrite) copies.push_back({key, move.slots[i], rooms[i].slot, rooms[i].token});
    }
  }
  const auto on_taken = [this](const std::vector<BlockKey>& here, KvClose& close) {
    close.taken.insert(close.taken.end(), here.begin(), here.end());
    taken_blocks_ += std::ssize(close.taken);
    report_room(true);  // before the answer, which may let the other node ask the directory again
  };
  fetches_.start(take.from, copies, std::move(answer), {.ending = on_taken});
}

/// What this node takes from others now.
KvRoom KvGuests::room() const {
  if (!fetches_.can_fetch()) return {.node = config_.me.node};
  const int64_t free = tiers_.free_for_writers();
  const bool spills = config_.is_kv_only && tiers_.cold_writable();
  const double share = !config_.is_kv_only ? config_.own_share : spills ? config_.free_share : 0;
  const int64_t blocks = std::max<int64_t>(0, free - static_cast<int64_t>(std::ceil(share * static_cast<double>(config_.slots))));
  return {config_.me.node, blocks, spills ? std::max<int64_t>(0, free) : blocks, config_.is_kv_only};
}

void KvGuests::report_room(bool always) {
  if (!fetches_.can_fetch()) return;
  const KvRoom now = room();
  const int64_t step = std::max<int64_t>(1, config_.slots / 16);
  if (!always && std::abs(now.last_blocks - told_room_.last_blocks) < step) return;
  told_room_ = now;
  owners_.tell_directory(now);
}

}  // namespace seer
