// How KvTiers makes room in DRAM: by writes to the cold tier, by blocks that move to other machines, by chains that are dropped. And how
// what is on disk comes back.
#include <algorithm>
#include <utility>

#include "storage/kv_tiers.h"

namespace seer {

int64_t KvTiers::free_for_writers() const {
  return int64_t{arena_->free_count()} - static_cast<int64_t>(promote_queue_.size());
}

int64_t KvTiers::free_soon() const { return int64_t{arena_->free_count()} + (writes_hang_ ? 0 : spilling_slots_) + leaving_slots_; }

int64_t KvTiers::batch_blocks() const { return std::max<int64_t>(1, config_.spill_batch_bytes / arena_->block_bytes()); }

bool KvTiers::cold_io_is_under_way() const {
  return (spills_in_flight_ > 0 && !writes_hang_) || (reads_in_flight_ > 0 && !reads_hang_);
}

bool KvTiers::room_is_under_way() const {
  const auto& counts = index_.counts();
  const auto in = [&](BlockState s) { return counts.by_state[static_cast<int>(s)]; };
  if (cold_io_is_under_way() || is_away_pending() || in(BlockState::kQuarantined) > 0) return true;
  // What is being written or read now can leave afterwards.
  return (cold_writable() || away_ != AwayRoom::kNone) && (in(BlockState::kWriting) > 0 || counts.leased > 0);
}

bool KvTiers::others_give_room() const {
  return (cold_writable() || away_ != AwayRoom::kNone) && !leases_.empty();
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
    if (promote_queue_.empty() || cold_io_is_under_way() || is_away_pending() || others_give_room() || arena_->free_count() > 0) return;
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

// The next block gives up its slot to its cold copy, if it has one. Otherwise a block moves to another machine, while one has or
// may have room, else the next block is written to the cold tier.
void KvTiers::spill(int64_t slots, SpillClass up_to, std::optional<uint64_t> used_after) {
  if (free_soon() >= slots) return;
  // Parked blocks fill up the batch, because large writes are faster: at most a sixteenth of the slots, or a small arena
  // would be emptied.
  const int64_t filled = std::max(slots, free_soon() + std::min<int64_t>(batch_blocks(), arena_->slot_count() / 16));
  const auto may_leave = [&](const std::optional<SpillCandidate>& block) {
    const SpillClass last = free_soon() < slots ? up_to : SpillClass::kParked;
    return block && block->spill_class <= last && (!used_after || block->next_use > *used_after);
  };
  std::vector<Block*> batch;  // to write
  bool goes_on = true;
  while (goes_on && free_soon() < filled) {
    const auto next = index_.spill_order().first();
    if (!may_leave(next)) break;
    Block& block = *index_.find(next->key);
    if (block.has_cold_copy)
      leave_to_cold_copy(block);
    else if (const auto movable = next_to_move(); may_leave(movable))
      goes_on = move_or_ask(*movable, filled - free_soon());
    else
      goes_on = add_to_spill(block, batch);
  }
  if (!batch.empty()) submit_spill(batch);
}

void KvTiers::leave_to_cold_copy(Block& block) {
  index_.apply(block, BlockEvent::kSpill);
  index_.apply(block, BlockEvent::kSpilled);
  free_slot(block);
}

/// Sends away a block and those before it in its chain. False: it is not known yet where to; the answer calls advance().
bool KvTiers::move_or_ask(const SpillCandidate& tail, int64_t blocks_max) {
  if (away_ == AwayRoom::kNotAsked) {
    away_ = AwayRoom::kAsked;
    hooks_.find_away_room(blocks_max);
  }
  if (away_ == AwayRoom::kAsked) return false;
  move_away(tail, blocks_max);
  return true;
}

/// Adds a block to the next write to the cold tier, and submits one that is full. False: the cold tier takes no more now.
bool KvTiers::add_to_spill(Block& block, std::vector<Block*>& batch) {
  if (!cold_writable() || spills_in_flight_ >= config_.spill_batches_max) return false;
  index_.apply(block, BlockEvent::kSpill);
  block.in_cold_io = true;
  ++spilling_slots_;
  batch.push_back(&block);
  return std::ssize(batch) < batch_blocks() || submit_spill(std::exchange(batch, {}));
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
  const int64_t count_max = std::min({blocks_max, away_blocks_, kMessageBlocksMax, batch_blocks()});
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
  writes_hang_ = false;
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
  while (!promote_queue_.empty() && arena_->free_count() > 0 && reads_in_flight_ < config_.reads_max) {
    const auto count = std::min<int64_t>(batch_blocks(), arena_->free_count());
    std::vector<Block*> batch;
    for (const auto& [ticket, block] : promote_queue_) {
      if (std::ssize(batch) == count) break;
      batch.push_back(block);
    }
    if (submit_read(batch)) continue;
    // The store's queue is full: try again when one of our operations ends; if none is open, cut an open.
    if (cold_io_is_under_way()) return;
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
  const int64_t blocks_max = std::clamp<int64_t>(arena_->slot_count() / 16, 1, batch_blocks());
  spill(kept_free() + blocks_max, SpillClass::kParked, next->next_use);
  const int64_t room = std::min(blocks_max, arena_->free_count() - kept_free());
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

}  // namespace seer
