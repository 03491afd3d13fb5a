#include "storage/kv_tiers.h"

#include <algorithm>
#include <set>
#include <utility>

namespace seer {

KvTiers::KvTiers(const KvTiersConfig& config, std::shared_ptr<HostArena> arena, std::unique_ptr<ColdStore> cold,
                 KvTiersHooks hooks)
    : config_(config),
      hooks_(std::move(hooks)),
      arena_(std::move(arena)),
      self_(std::make_shared<KvTiers*>(this)),
      cold_(std::move(cold)) {
  SEER_CHECK(arena_ != nullptr);
  SEER_CHECK(arena_->taken_count() == 0, arena_->taken_count());
  SEER_CHECK(hooks_.post != nullptr);
  SEER_CHECK(config_.spill_batches_max > 0, config_.spill_batches_max);
  SEER_CHECK(config_.reads_max > 0, config_.reads_max);
  if (!hooks_.find_away_room) away_ = AwayRoom::kNone;
}

KvTiers::~KvTiers() = default;

// ---- writing ------------------------------------------------------------------------------------------------------

std::vector<Reservation> KvTiers::reserve(OwnerId owner, std::span<const BlockRef> chain,
                                          const ReserveOptions& options) {
  const auto is_absent = [&](const BlockRef& ref) { return ref.key.version >= version_ && index_.find(ref.key) == nullptr; };
  // Counted only if there may be too little room; usually there is enough for all.
  const int64_t absent = std::ssize(chain) > free_for_writers() ? std::ranges::count_if(chain, is_absent) : 0;
  if (absent > free_for_writers()) {
    // Counted per reserve, not per ended spill: a full disk must not be written to in a loop.
    if (cold_full_ && ++asked_while_full_ >= config_.cold_retry_reserves) {
      asked_while_full_ = 0;
      cold_full_ = false;
    }
    make_room(absent + static_cast<int64_t>(promote_queue_.size()), owner, index_.urgency(owner));
  }

  std::vector<Reservation> answers(chain.size());
  GrantState stopped_by = GrantState::kWrite;  // granting goes on
  int64_t later = 0;
  for (size_t i = 0; i < chain.size(); ++i) {
    const BlockRef& ref = chain[i];
    const auto index = options.first_index + static_cast<uint32_t>(i);
    Block* const block = index_.find(ref.key);
    GrantState state = stopped_by;
    if (ref.key.version < version_) {
      state = GrantState::kRefused;
    } else if (block != nullptr && block->state == BlockState::kQuarantined) {
      state = GrantState::kLater;
    } else if (block != nullptr) {
      state = block->index == index && block->tokens == ref.tokens ? GrantState::kHere : GrantState::kRefused;
    } else if (state == GrantState::kWrite && free_for_writers() <= 0) {
      state = room_is_under_way() ? GrantState::kLater : GrantState::kRefused;
    }

    answers[i].state = state;
    if (state == GrantState::kHere) {
      if (Block* orphan = index_.retain(owner, *block)) discard(*orphan);
    } else if (state == GrantState::kWrite) {
      answers[i] = grant(owner, ref, index, options.prompt);
    } else {
      stopped_by = state;
      later += state == GrantState::kLater ? 1 : 0;
      stats_.refused_blocks += state == GrantState::kRefused ? 1 : 0;
    }
  }
  if (later > 0) {
    stats_.later_blocks += later;
    wanted_slots_ = std::max(wanted_slots_, later);
    slot_freed_ = false;
  }
  advance();
  return answers;
}

Reservation KvTiers::grant(OwnerId owner, const BlockRef& ref, uint32_t index, bool prompt) {
  const auto slot = arena_->take();
  SEER_CHECK(slot.has_value());
  Block& block = index_.add(ref, index, prompt);
  index_.set_slot(block, *slot);
  index_.apply(block, BlockEvent::kGrant);
  block.token = {++last_token_};
  block.writing = true;
  writes_.emplace(block.token, &block);
  if (Block* orphan = index_.retain(owner, block)) discard(*orphan);
  ++stats_.reserved;
  note_peak();
  return {GrantState::kWrite, *slot, arena_->generation(*slot), block.token};
}

Status KvTiers::seal(WriteToken token, uint32_t crc32c) {
  Block* const block = end_write(token);
  if (block == nullptr) return fail(Code::kStale, "seal: write token ", token, " has ended");
  if (block->state == BlockState::kQuarantined) {
    const Error error = fail(Code::kStale, "seal: block ", block->key, " was given up while it was written");
    ++stats_.stale_completions;
    drain(*block);
    advance();
    return error;
  }
  block->crc32c = crc32c;
  index_.apply(*block, BlockEvent::kSeal);
  ++stats_.sealed;
  advance();
  return {};
}

Status KvTiers::abort(WriteToken token) {
  Block* const block = end_write(token);
  if (block == nullptr) return fail(Code::kStale, "abort: write token ", token, " has ended");
  ++stats_.aborted;
  if (block->state == BlockState::kQuarantined) {
    drain(*block);
  } else {
    release_from_all(*block);
    discard(*block);
  }
  advance();
  return {};
}

void KvTiers::quarantine(WriteToken token) {
  const auto it = writes_.find(token);
  if (it == writes_.end() || it->second->state == BlockState::kQuarantined) return;
  release_from_all(*it->second);
  discard(*it->second);
  advance();
}

Block* KvTiers::end_write(WriteToken token) {
  const auto it = writes_.find(token);
  if (it == writes_.end()) {
    ++stats_.stale_completions;
    return nullptr;
  }
  Block* const block = it->second;
  writes_.erase(it);
  block->writing = false;
  return block;
}

// ---- reading ------------------------------------------------------------------------------------------------------

void KvTiers::open(OwnerId owner, std::span<const BlockKey> keys, std::function<void(OpenResult)> done) {
  const OpenId id{++last_open_};
  OpenOp& op = opens_[id];
  op.owner = owner;
  op.done = std::move(done);
  if (!keys.empty() && keys.front().version < version_) return fail_open(id);

  const bool may_wait = static_cast<int32_t>(opens_.size()) <= config_.opens_max && !reads_hang_;
  for (const BlockKey& key : keys) {
    Block* const block = key.version == keys.front().version ? index_.find(key) : nullptr;
    if (block == nullptr) break;
    const bool cold = block->state == BlockState::kSpilled || block->state == BlockState::kPromoting;
    if (!readable_in_dram(block->state) && !(cold && may_wait)) break;
    index_.add_lease(*block);
    op.blocks.push_back(block);
    if (!cold) continue;
    ++stats_.open_cold_blocks;
    ++op.missing;
    block->waiting.push_back(id);
    if (block->state == BlockState::kSpilled && block->promote_ticket == 0) {
      block->promote_ticket = ++last_promote_;
      promote_queue_.emplace(block->promote_ticket, block);
    }
  }
  if (op.missing == 0) return finish_open(id);
  advance();
}

void KvTiers::finish_open(OpenId id) {
  auto node = opens_.extract(id);
  OpenOp& op = node.mapped();
  OpenResult result;
  for (const Block* b : op.blocks)
    result.blocks.push_back({b->key, b->slot, arena_->generation(b->slot), b->crc32c, b->tokens});
  if (!op.blocks.empty()) {
    result.lease = {++last_lease_};
    leases_.emplace(result.lease, std::move(op.blocks));
  }
  deliver(std::move(op.done), std::move(result));
}

void KvTiers::fail_open(OpenId id) {
  auto node = opens_.extract(id);
  SEER_CHECK(node.mapped().blocks.empty(), id);
  OpenResult result;
  result.status = fail(Code::kStale, "open: the weights are at version ", version_, " now");
  deliver(std::move(node.mapped().done), std::move(result));
}

void KvTiers::deliver(std::function<void(OpenResult)> done, OpenResult result) {
  hooks_.post([weak = std::weak_ptr(self_), done = std::move(done), result = std::move(result)]() mutable {
    if (!weak.expired()) done(std::move(result));
  });
}

void KvTiers::shorten_open(OpenId id, size_t length) {
  OpenOp& op = opens_.at(id);
  while (op.blocks.size() > length) {
    Block& block = *op.blocks.back();
    op.blocks.pop_back();
    if (const auto at = std::find(block.waiting.begin(), block.waiting.end(), id); at != block.waiting.end()) {
      block.waiting.erase(at);
      --op.missing;
      if (block.waiting.empty()) leave_promote_queue(block);
    }
    index_.drop_lease(block);
    drain(block);
  }
}

void KvTiers::cut_open(OpenId id, size_t length) {
  ++stats_.open_cut;
  shorten_open(id, length);
  if (opens_.at(id).missing == 0) finish_open(id);
}

void KvTiers::cut_opens_at(Block& block) {
  while (!block.waiting.empty()) {
    const OpenId id = block.waiting.front();
    const auto& blocks = opens_.at(id).blocks;
    cut_open(id, static_cast<size_t>(std::find(blocks.begin(), blocks.end(), &block) - blocks.begin()));
  }
}

void KvTiers::note_silence() {
  reads_hang_ = reads_in_flight_ > 0;
  writes_hang_ = spills_in_flight_ > 0;
  std::vector<OpenId> waiting;
  for (const auto& [id, op] : opens_) waiting.push_back(id);
  for (const OpenId id : waiting) {
    if (!opens_.contains(id)) continue;
    const auto& blocks = opens_.at(id).blocks;
    const auto there = std::ranges::find_if(blocks, [](const Block* b) { return !readable_in_dram(b->state); });
    cut_open(id, static_cast<size_t>(there - blocks.begin()));
  }
  advance();
}

void KvTiers::leave_promote_queue(Block& block) {
  if (block.promote_ticket == 0) return;
  promote_queue_.erase(block.promote_ticket);
  block.promote_ticket = 0;
}

Status KvTiers::close(LeaseId lease, std::span<const BlockKey> taken) {
  auto node = leases_.extract(lease);
  if (node.empty()) return fail(Code::kStale, "close: lease ", lease, " is not open");
  const auto leaving = leaving_.extract(lease);
  if (!leaving.empty()) leaving_slots_ -= leaving.mapped();
  ++progress_;
  const std::set<BlockKey> gone = leaving.empty() ? std::set<BlockKey>() : std::set<BlockKey>(taken.begin(), taken.end());
  for (Block* block : node.mapped()) {
    index_.drop_lease(*block);
    const bool is_unwanted = block->state == BlockState::kSealed && block->leases == 0 && block->owners.size() == 1;
    if (!is_unwanted || !gone.contains(block->key)) {
      drain(*block);
      continue;
    }
    ++stats_.moved_blocks;
    release_from_all(*block);
    discard(*block);
  }
  advance();
  return {};
}

void KvTiers::report_corrupt(const BlockKey& key) {
  Block* const block = index_.find(key);
  if (block == nullptr || !readable_in_dram(block->state)) return;
  ++stats_.corrupt_blocks;
  lose(*block);
  advance();
}

ProbeResult KvTiers::probe(std::span<const BlockKey> keys) const {
  ProbeResult found;
  for (const BlockKey& key : keys) {
    const Block* const block = key.version >= version_ ? index_.find(key) : nullptr;
    if (block == nullptr) break;
    if (readable_in_dram(block->state))
      ++found.dram_blocks;
    else if (block->state == BlockState::kSpilled || block->state == BlockState::kPromoting)
      ++found.cold_blocks;
    else
      break;
  }
  return found;
}

// ---- owning -------------------------------------------------------------------------------------------------------

void KvTiers::release(OwnerId owner) {
  for (Block* orphan : index_.release_all(owner)) discard(*orphan);
  advance();
}

void KvTiers::set_urgency(OwnerId owner, Urgency urgency) {
  index_.set_urgency(owner, urgency);
  advance();
}

void KvTiers::bump_version(WeightVersion v) {
  SEER_CHECK(v >= version_, v, version_);
  if (v == version_) return;
  version_ = v;
  std::vector<OpenId> outdated;
  for (const auto& [id, op] : opens_)
    if (op.blocks.front()->key.version < v) outdated.push_back(id);
  for (const OpenId id : outdated) {
    shorten_open(id, 0);
    fail_open(id);
  }
  std::vector<std::pair<OwnerId, Block*>> held;
  index_.for_each_owned([&](OwnerId owner, Block& block) {
    if (block.key.version < v) held.emplace_back(owner, &block);
  });
  // The cold store drops the version whole: nothing is erased block by block.
  index_.for_each_unordered([&](Block& block) {
    if (block.key.version < v) index_.set_cold_copy(block, false);
  });
  for (const auto& [owner, block] : held)
    if (index_.release(owner, *block)) discard(*block);
  index_.forget_idle_owners();
  if (cold_ != nullptr) {
    flush_erases();
    cold_->drop_versions_below(v);
    cold_full_ = false;
  }
  advance();
}

void KvTiers::release_from_all(Block& block) {
  while (!block.owners.empty()) index_.release(block.owners.back(), block);
}

void KvTiers::discard(Block& block) {
  SEER_CHECK(block.owners.empty(), block.key);
  cut_opens_at(block);
  if (block.state == BlockState::kWriting) index_.apply(block, BlockEvent::kAbort);
  index_.apply(block, BlockEvent::kDiscard);
  drain(block);
}

void KvTiers::drain(Block& block) {
  if (block.state != BlockState::kQuarantined || block.has_outstanding_operation()) return;
  if (block.slot != kNoSlot) free_slot(block);
  forget_cold_copy(block);
  index_.apply(block, BlockEvent::kDrained);
  index_.remove(block);
}

void KvTiers::free_slot(Block& block) {
  const uint32_t slot = block.slot;
  index_.set_slot(block, kNoSlot);
  arena_->free(slot);
  slot_freed_ = true;
}

void KvTiers::forget_cold_copy(Block& block) {
  if (!block.has_cold_copy) return;
  index_.set_cold_copy(block, false);
  erased_.push_back(block.key);
  cold_full_ = false;
}

void KvTiers::flush_erases() {
  if (!erased_.empty()) cold_->erase(std::exchange(erased_, {}));
}

void KvTiers::lose(Block& block) {
  if (hooks_.lost) hooks_.lost(block.key);
  index_.apply(block, BlockEvent::kLose);
  release_from_all(block);
  discard(block);
}

// ---- looking ------------------------------------------------------------------------------------------------------

void KvTiers::note_peak() {
  stats_.dram_peak_bytes = std::max(stats_.dram_peak_bytes, arena_->taken_count() * arena_->slot_bytes());
}

KvTiersStats KvTiers::stats() const {
  KvTiersStats s = stats_;
  const auto& counts = index_.counts();
  s.dram_capacity_bytes = arena_->slot_count() * arena_->slot_bytes();
  s.dram_used_bytes = arena_->taken_count() * arena_->slot_bytes();
  s.dram_quarantined_bytes = counts.by_state[static_cast<int>(BlockState::kQuarantined)] * arena_->slot_bytes();
  s.cold_used_bytes = counts.cold * arena_->block_bytes();
  return s;
}

bool KvTiers::is_drained() const {
  return index_.block_count() == 0 && arena_->taken_count() == 0 && leases_.empty() && opens_.empty() &&
         spills_in_flight_ == 0 && reads_in_flight_ == 0;
}

void KvTiers::check_invariants() {
  using S = BlockState;
  int64_t slots = 0, leases = 0, writing = 0, may_leave = 0, spilling = 0, queued = 0, cold = 0, only_cold = 0;
  index_.for_each_unordered([&](Block& b) {
    const bool in_dram = b.state == S::kWriting || readable_in_dram(b.state) || b.state == S::kPromoting;
    if (b.slot != kNoSlot) {
      ++slots;
      SEER_CHECK(index_.in_slot(b.slot) == &b, b.key, b.slot);
      SEER_CHECK(arena_->is_taken(b.slot), b.key, b.slot);
    }
    if (b.state == S::kQuarantined) {
      SEER_CHECK(b.owners.empty(), b.key);
      SEER_CHECK(b.has_outstanding_operation(), b.key);
    } else {
      SEER_CHECK(in_dram || b.state == S::kSpilled, b.key, b.state);
      SEER_CHECK(in_dram == (b.slot != kNoSlot), b.key, b.state);
      SEER_CHECK(!b.owners.empty(), b.key, b.state);
      SEER_CHECK(b.key.version >= version_, b.key, version_);
      SEER_CHECK(b.writing == (b.state == S::kWriting), b.key, b.state);
      SEER_CHECK(b.in_cold_io == (b.state == S::kSpilling || b.state == S::kPromoting), b.key, b.state);
    }
    if (b.state == S::kSpilled || b.state == S::kPromoting) SEER_CHECK(b.has_cold_copy, b.key, b.state);
    SEER_CHECK((b.promote_ticket != 0) == (b.state == S::kSpilled && !b.waiting.empty()), b.key, b.state);
    leases += b.leases;
    writing += b.writing ? 1 : 0;
    cold += b.has_cold_copy ? 1 : 0;
    queued += b.promote_ticket != 0 ? 1 : 0;
    spilling += b.in_cold_io && !b.has_cold_copy && b.key.version >= version_ ? 1 : 0;
    may_leave += b.state == S::kSealed && b.leases == 0 ? 1 : 0;
    only_cold += b.state == S::kSpilled && b.leases == 0 ? 1 : 0;
  });
  for (const auto& [id, blocks] : leases_) leases -= static_cast<int64_t>(blocks.size());
  for (const auto& [id, op] : opens_) leases -= static_cast<int64_t>(op.blocks.size());
  SEER_CHECK(leases == 0, leases);
  int64_t leaving = 0;
  for (const auto& [id, count] : leaving_) {
    SEER_CHECK(leases_.contains(id), id);
    leaving += count;
  }
  SEER_CHECK(leaving == leaving_slots_, leaving, leaving_slots_);
  SEER_CHECK((away_ == AwayRoom::kFound) == (away_blocks_ > 0), away_blocks_);
  SEER_CHECK(slots == arena_->taken_count(), slots, arena_->taken_count());
  SEER_CHECK(writing == static_cast<int64_t>(writes_.size()), writing, writes_.size());
  SEER_CHECK(may_leave == index_.spill_order().size(), may_leave, index_.spill_order().size());
  SEER_CHECK(only_cold == index_.cold_order().size(), only_cold, index_.cold_order().size());
  SEER_CHECK(queued == static_cast<int64_t>(promote_queue_.size()), queued, promote_queue_.size());
  SEER_CHECK(cold == index_.counts().cold, cold, index_.counts().cold);
  SEER_CHECK(spilling <= spilling_slots_, spilling, spilling_slots_);
  SEER_CHECK((spills_in_flight_ == 0) == (spilling_slots_ == 0), spills_in_flight_, spilling_slots_);
}

}  // namespace seer
