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

// ---- room ---------------------------------------------------------------------------------------------------------

int64_t KvTiers::free_for_writers() const {
  return int64_t{arena_->free_count()} - static_cast<int64_t>(promote_queue_.size());
}

int64_t KvTiers::free_soon() const { return int64_t{arena_->free_count()} + spilling_slots_ + leaving_slots_; }

bool KvTiers::room_is_under_way() const {
  const auto& counts = index_.counts();
  const auto in = [&](BlockState s) { return counts.by_state[static_cast<int>(s)]; };
  if (spills_in_flight_ > 0 || reads_in_flight_ > 0 || is_away_pending() || in(BlockState::kQuarantined) > 0) return true;
  // What is being written or read now can leave afterwards.
  return (cold_writable() || away_ != AwayRoom::kNone) && (in(BlockState::kWriting) > 0 || counts.leased > 0);
}

bool KvTiers::others_give_room() const {
  return (cold_writable() || away_ != AwayRoom::kNone) && !leases_.empty();
}

void KvTiers::end_opens() {
  reads_hang_ = reads_in_flight_ > 0;
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

void KvTiers::advance() {
  promote_queued();
  serve_opens();
  if (wanted_slots_ > 0)
    spill(static_cast<int64_t>(promote_queue_.size()) + wanted_slots_, SpillClass::kSharedRunning);
  spill(kept_free(), SpillClass::kParked);
  read_ahead();
  flush_erases();
  if (wanted_slots_ > 0 && (slot_freed_ || !room_is_under_way())) {
    wanted_slots_ = 0;
    if (hooks_.room)
      hooks_.post([weak = std::weak_ptr(self_)] {
        if (const auto self = weak.lock()) (*self)->hooks_.room();
      });
  }
}

// Opens wait for slots only while cold I/O is in flight, or blocks leave. When neither is so, the newest waiting open gives up its
// tail: then the rest of it is in DRAM, or a slot comes free. So an open larger than DRAM still gets the prefix that fits, and two
// half-served opens never wait for each other.
void KvTiers::serve_opens() {
  while (!promote_queue_.empty() && arena_->free_count() == 0) {
    const OwnerId owner = opens_.at(promote_queue_.begin()->second->waiting.front()).owner;
    make_room(static_cast<int64_t>(promote_queue_.size()), owner, {.pinned = true, .next_use = 0});
    promote_queued();
    if (promote_queue_.empty() || spills_in_flight_ > 0 || reads_in_flight_ > 0 || is_away_pending() || others_give_room() || arena_->free_count() > 0) return;
    cut_last_open();
  }
}

void KvTiers::cut_last_open() {
  const OpenId id = promote_queue_.rbegin()->second->waiting.back();
  const OpenOp& op = opens_.at(id);
  size_t length = op.blocks.size();
  auto queued = std::count_if(op.blocks.begin(), op.blocks.end(), [](const Block* b) { return b->promote_ticket != 0; });
  bool gives_up_slot = false;
  while (queued > 0 && !gives_up_slot) {
    const Block& last = *op.blocks[--length];
    gives_up_slot = readable_in_dram(last.state);
    if (last.promote_ticket != 0) --queued;
  }
  cut_open(id, length);
}

void KvTiers::make_room(int64_t slots, OwnerId for_owner, const Urgency& for_urgency) {
  spill(slots, SpillClass::kSharedRunning);
  while (free_soon() < slots && !cold_writable() && away_ != AwayRoom::kAsked)
    if (!drop_next_chain(for_owner, for_urgency)) break;
}

void KvTiers::spill(int64_t slots, SpillClass up_to, std::optional<uint64_t> used_after) {
  if (free_soon() >= slots) return;
  const int64_t batch_blocks = std::max<int64_t>(1, config_.spill_batch_bytes / arena_->block_bytes());
  // Parked blocks fill up the batch, because large writes are faster: at most a sixteenth of the slots, or a small arena
  // would be emptied.
  const int64_t filled = std::max(slots, free_soon() + std::min<int64_t>(batch_blocks, arena_->slot_count() / 16));
  std::vector<Block*> batch;
  while (free_soon() < filled) {
    const SpillClass last = free_soon() < slots ? up_to : SpillClass::kParked;
    const auto may_leave = [&](const std::optional<SpillCandidate>& block) {
      return block && block->spill_class <= last && (!used_after || block->next_use > *used_after);
    };
    const auto next = index_.spill_order().first();
    if (!may_leave(next)) break;
    Block& block = *index_.find(next->key);
    if (block.has_cold_copy) {
      index_.apply(block, BlockEvent::kSpill);
      index_.apply(block, BlockEvent::kSpilled);
      free_slot(block);
      continue;
    }
    if (const auto movable = next_to_move(); may_leave(movable)) {
      if (away_ == AwayRoom::kNotAsked) {
        away_ = AwayRoom::kAsked;
        hooks_.find_away_room(filled - free_soon());
      }
      if (away_ == AwayRoom::kAsked) break;
      move_away(*movable, filled - free_soon());
      continue;
    }
    if (!cold_writable() || spills_in_flight_ >= config_.spill_batches_max) break;
    index_.apply(block, BlockEvent::kSpill);
    block.in_cold_io = true;
    ++spilling_slots_;
    batch.push_back(&block);
    if (static_cast<int64_t>(batch.size()) == batch_blocks && !submit_spill(std::exchange(batch, {}))) return;
  }
  if (!batch.empty()) submit_spill(batch);
}

/// The block that leaves next for another machine, if that may have room.
std::optional<SpillCandidate> KvTiers::next_to_move() const {
  if (away_ == AwayRoom::kNone) return std::nullopt;
  auto next = index_.spill_order().first_at_home();
  if (!next) return std::nullopt;
  // The other machine would know a block of several owners as that of one; one with a cold copy needs not be moved.
  const Block& block = *index_.find(next->key);
  if (block.owners.size() > 1 || block.has_cold_copy) return std::nullopt;
  return next;
}

/// Sends away a block and those before it in its chain. REQUIRES: away_ is kFound; blocks_max > 0.
void KvTiers::move_away(const SpillCandidate& tail, int64_t blocks_max) {
  constexpr int64_t kMessageBlocksMax = 4096;  // 0.3 MB
  const int64_t count_max = std::min({blocks_max, away_blocks_, kMessageBlocksMax,
                                      std::max<int64_t>(1, config_.spill_batch_bytes / arena_->block_bytes())});
  const Block& last = *index_.find(tail.key);
  std::vector<Block*> blocks;
  for (Block* block : index_.held_from(tail.owner, 0)) {
    if (block->index > last.index) continue;
    const bool leaves = block->state == BlockState::kSealed && block->leases == 0 && block->owners.size() == 1 &&
                        block->prompt == last.prompt && !block->has_cold_copy && block->index + blocks.size() == last.index;
    if (!leaves || std::ssize(blocks) == count_max) break;
    blocks.push_back(block);
  }
  std::ranges::reverse(blocks);
  const auto count = std::ssize(blocks);
  LeavingBlocks leaving{.lease = {++last_lease_}, .owner = tail.owner, .first_index = blocks.front()->index,
                        .prompt = last.prompt, .next_use = tail.next_use, .blocks = {}};
  for (Block* block : blocks) {
    leaving.blocks.push_back({block->key, block->slot, arena_->generation(block->slot), block->crc32c, block->tokens});
    index_.add_lease(*block);
  }
  leases_.emplace(leaving.lease, std::move(blocks));
  leaving_.emplace(leaving.lease, count);
  leaving_slots_ += count;
  away_blocks_ -= count;
  if (away_blocks_ == 0) away_ = AwayRoom::kNotAsked;
  hooks_.move_away(leaving);
}

void KvTiers::away_room(int64_t blocks) {
  if (away_ != AwayRoom::kAsked) return;  // a late answer
  away_ = blocks > 0 ? AwayRoom::kFound : AwayRoom::kNone;
  away_blocks_ = blocks;
  advance();
}

void KvTiers::look_for_away_room() {
  if (away_ == AwayRoom::kAsked || !hooks_.find_away_room) return;
  away_ = AwayRoom::kNotAsked;
  away_blocks_ = 0;
  advance();
}

bool KvTiers::submit_spill(const std::vector<Block*>& batch) {
  flush_erases();  // an earlier copy of the same block must be gone before this one is written
  std::vector<ColdBlock> blocks;
  std::vector<uint32_t> slots;
  for (const Block* b : batch) {
    blocks.push_back({b->key, arena_->span(b->slot), b->crc32c});
    slots.push_back(b->slot);
  }
  ++spills_in_flight_;
  const Status accepted = cold_->put(
      std::move(blocks), [post = hooks_.post, weak = std::weak_ptr(self_), slots](std::vector<Status> statuses,
                                                                                  std::vector<ColdBlock>) {
        post([weak, slots, statuses = std::move(statuses)] {
          if (const auto self = weak.lock()) (*self)->on_spilled(slots, statuses);
        });
      });
  if (accepted.ok()) return true;
  // The store's queue is full. If operations of ours are open there, we try again when one ends; else the tier counts as full.
  --spills_in_flight_;
  if (spills_in_flight_ == 0 && reads_in_flight_ == 0) cold_full_ = true;
  for (Block* b : batch) {
    b->in_cold_io = false;
    --spilling_slots_;
    index_.apply(*b, BlockEvent::kSpillKept);
  }
  return false;
}

void KvTiers::on_spilled(const std::vector<uint32_t>& slots, const std::vector<Status>& statuses) {
  SEER_CHECK(slots.size() == statuses.size(), slots.size(), statuses.size());
  --spills_in_flight_;
  ++progress_;
  bool full = false;
  for (size_t i = 0; i < slots.size(); ++i) {
    Block& block = *index_.in_slot(slots[i]);
    block.in_cold_io = false;
    --spilling_slots_;
    const Status& status = statuses[i];
    if (status.ok()) {
      stats_.spilled_bytes += arena_->block_bytes();
      if (block.key.version >= version_) index_.set_cold_copy(block, true);
    }
    if (block.state == BlockState::kQuarantined) {
      drain(block);
    } else if (status.ok() && block.leases == 0) {
      index_.apply(block, BlockEvent::kSpilled);
      free_slot(block);
    } else if (status.ok()) {
      index_.apply(block, BlockEvent::kSpillKept);
    } else if (status.error().code == Code::kCorrupt) {
      ++stats_.corrupt_blocks;
      lose(block);
    } else {
      index_.apply(block, BlockEvent::kSpillKept);
      ++(status.error().code == Code::kFull ? stats_.cold_full : stats_.cold_errors);
      if (!full && hooks_.cold_failed) hooks_.cold_failed(status.error());
      full = true;
    }
  }
  if (full) {
    cold_full_ = true;
    drop_cold_duplicates();
  }
  advance();
}

void KvTiers::drop_cold_duplicates() {
  const auto& by_state = index_.counts().by_state;
  const int64_t only_there = by_state[static_cast<int>(BlockState::kSpilled)] + by_state[static_cast<int>(BlockState::kPromoting)];
  if (index_.counts().cold == only_there) return;  // a full cold tier comes here again and again
  index_.for_each_owned([&](OwnerId, Block& block) {
    if (readable_in_dram(block.state)) forget_cold_copy(block);
  });
}

bool KvTiers::drop_next_chain(OwnerId for_owner, const Urgency& for_urgency) {
  const auto next = index_.spill_order().first_not_of(for_owner);
  if (!next || next->spill_class != SpillClass::kParked) return false;
  if (!for_urgency.pinned && next->next_use <= for_urgency.next_use) return false;
  // The blocks after it in its chain are useless without it, those in the cold tier too.
  for (Block* block : index_.held_from(next->owner, index_.find(next->key)->index)) {
    if (block->owners.size() > 1) continue;
    ++stats_.dropped_blocks;
    if (hooks_.lost) hooks_.lost(block->key);
    index_.release(next->owner, *block);
    discard(*block);
  }
  return true;
}

void KvTiers::promote_queued() {
  const int64_t batch_blocks = std::max<int64_t>(1, config_.spill_batch_bytes / arena_->block_bytes());
  while (!promote_queue_.empty() && arena_->free_count() > 0 && reads_in_flight_ < config_.reads_max) {
    const auto count = std::min<int64_t>(batch_blocks, arena_->free_count());
    std::vector<Block*> batch;
    for (const auto& [ticket, block] : promote_queue_) {
      if (std::ssize(batch) == count) break;
      batch.push_back(block);
    }
    if (submit_read(batch)) continue;
    // The store's queue is full: try again when one of our operations ends; if none is open, cut an open.
    if (spills_in_flight_ > 0 || reads_in_flight_ > 0) return;
    cut_last_open();
  }
}

/// Reads back a part of what the parked owner with the nearest next use lacks, if nobody waits for a read. Blocks that are used later
/// make room for it. One batch at a time: an open that comes meanwhile waits for no more.
void KvTiers::read_ahead() {
  // While the cold tier is full, blocks are dropped for lack of room, so slots are not taken for what is safe there.
  if (!config_.reads_ahead || ahead_failed_ || index_.cold_order().size() == 0 || !cold_writable()) return;
  if (!promote_queue_.empty() || reads_in_flight_ > 0 || wanted_slots_ > 0) return;
  const auto next = index_.cold_order().last_parked();
  if (!next) return;
  const int64_t batch_blocks = std::clamp<int64_t>(arena_->slot_count() / 16, 1, std::max<int64_t>(1, config_.spill_batch_bytes / arena_->block_bytes()));
  spill(kept_free() + batch_blocks, SpillClass::kParked, next->next_use);
  const int64_t room = std::min(batch_blocks, arena_->free_count() - kept_free());
  if (room <= 0) return;
  std::vector<Block*> missing = index_.held_from(next->owner, 0);
  std::ranges::reverse(missing);
  std::erase_if(missing, [](const Block* block) { return block->state != BlockState::kSpilled || block->leases > 0; });
  if (std::ssize(missing) > room) missing.resize(static_cast<size_t>(room));
  if (!missing.empty() && submit_read(missing)) stats_.ahead_blocks += std::ssize(missing);
}

/// False: the store takes no more now. REQUIRES: all are SPILLED, and have a free slot each.
bool KvTiers::submit_read(const std::vector<Block*>& batch) {
  std::vector<ColdBlock> blocks;
  std::vector<uint32_t> slots;
  for (const Block* block : batch) {
    slots.push_back(*arena_->take());
    blocks.push_back({block->key, arena_->span(slots.back()), 0});
  }
  const Status accepted = cold_->get(
      std::move(blocks), [post = hooks_.post, weak = std::weak_ptr(self_), slots](std::vector<Status> statuses, std::vector<ColdBlock> read) {
        std::vector<uint32_t> crcs;
        for (const ColdBlock& b : read) crcs.push_back(b.crc32c);
        post([weak, slots, statuses = std::move(statuses), crcs = std::move(crcs)] {
          if (const auto self = weak.lock()) (*self)->on_promoted(slots, statuses, crcs);
        });
      });
  if (!accepted.ok()) {
    for (const uint32_t slot : slots) arena_->free(slot);
    return false;
  }
  ++reads_in_flight_;
  for (size_t i = 0; i < batch.size(); ++i) {
    leave_promote_queue(*batch[i]);
    index_.set_slot(*batch[i], slots[i]);
    index_.apply(*batch[i], BlockEvent::kPromote);
    batch[i]->in_cold_io = true;
  }
  note_peak();
  return true;
}

void KvTiers::on_promoted(const std::vector<uint32_t>& slots, const std::vector<Status>& statuses,
                          const std::vector<uint32_t>& crcs) {
  SEER_CHECK(slots.size() == statuses.size(), slots.size(), statuses.size());
  SEER_CHECK(slots.size() == crcs.size(), slots.size(), crcs.size());
  --reads_in_flight_;
  ++progress_;
  reads_hang_ = false;
  bool failed = false;
  for (size_t i = 0; i < slots.size(); ++i) {
    Block& block = *index_.in_slot(slots[i]);
    block.in_cold_io = false;
    if (block.state == BlockState::kQuarantined) {
      drain(block);
    } else if (statuses[i].ok() && crcs[i] == block.crc32c) {
      stats_.promoted_bytes += arena_->block_bytes();
      index_.apply(block, BlockEvent::kPromoted);
      ahead_failed_ &= block.waiting.empty();
      for (const OpenId id : std::exchange(block.waiting, {}))
        if (--opens_.at(id).missing == 0) finish_open(id);
    } else {
      const bool corrupt = statuses[i].ok() || statuses[i].error().code == Code::kCorrupt;
      if (!corrupt && !std::exchange(failed, true) && hooks_.cold_failed) hooks_.cold_failed(statuses[i].error());
      ahead_failed_ |= !corrupt;
      ++(corrupt ? stats_.corrupt_blocks : stats_.cold_errors);
      lose(block);
    }
  }
  advance();
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
