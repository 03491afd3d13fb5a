#include "actors/instance/kv_moves.h"

#include <algorithm>

#include "gpu/step_planner.h"
#include "protocols/check.h"

namespace seer {

std::span<const BlockRef> names_of(Sequence& s, int64_t blocks, const EngineInfo& info) {
  const int64_t tokens = std::min(blocks * info.block_tokens, s.log.size() - 1);
  const auto count = static_cast<size_t>(blocks_needed(tokens, 0, info.block_tokens));
  if (s.names.size() < count) extend_names(s, s.names, tokens, info);
  return std::span(s.names).first(count);
}

void extend_names(const Sequence& s, std::vector<BlockRef>& chain, int64_t tokens, const EngineInfo& info) {
  extend_chain(chain, s.version, info.kv_hash, s.log, tokens, info.block_tokens);
}

KvMoves::KvMoves(KvMovesConfig config, const EngineInfo& info, DeviceBlocks& devices, const SequenceTable& sequences,
                 EngineQueue& engine, std::shared_ptr<HostArena> arena, Tell tell)
    : config_(config),
      info_(info),
      devices_(devices),
      sequences_(sequences),
      engine_(engine),
      arena_(std::move(arena)),
      tell_(std::move(tell)) {}

// ---- from device and pool --------------------------------------------------------------------------------------------

bool KvMoves::find(Sequence& s) {
  constexpr int64_t kNamedTogether = 2;  // naming costs hashing; without a pool, names after the first miss are not needed
  const int64_t all = blocks_needed(s.log.size() - 1, 0, info_.block_tokens);
  while (std::ssize(s.table) < all) {
    const int64_t first = std::ssize(s.table);
    const int64_t end = s.has_pool ? all : std::min(all, first + kNamedTogether);
    const auto names = names_of(s, end, info_).subspan(static_cast<size_t>(first));
    const int32_t here = devices_.retain_run(names, s.table);
    for (const BlockRef& block : names.first(static_cast<size_t>(here))) {
      s.kv_tokens += block.tokens;
      if (block.tokens == info_.block_tokens) s.chain.push_back(block);
    }
    if (here < std::ssize(names)) break;
  }
  s.done.cached_tokens = s.kv_tokens;
  if (!s.has_pool || std::ssize(s.table) == all) return true;
  std::vector<BlockRef> wanted(s.names.begin() + std::ssize(s.table), s.names.end());
  s.phase = ChunkPhase::kOpening;
  KvOpening opening;
  opening.op = next_op_++;
  opening.owner = owner_of(s.request);
  opening.blocks = wanted;
  opening.first_index = static_cast<uint32_t>(s.table.size());
  opening.prompt_blocks = static_cast<uint32_t>(prompt_blocks(s, info_.block_tokens));
  openings_.emplace(opening.op, Opening{s.chunk, std::move(wanted)});
  tell_(std::move(opening));
  return false;
}

Sequence* KvMoves::opened(const KvOpened& opened, int64_t running) {
  auto node = openings_.extract(opened.op);
  const ChunkId id = node.empty() ? kNoChunk : node.mapped().chunk;
  Sequence* const s = sequences_.find(id);
  const bool is_front = !arrivals_.empty() && arrivals_.front().chunk == id;
  const bool first = arrivals_.empty() || is_front;
  const auto blocks = static_cast<int32_t>(opened.blocks.size());
  const bool imports = s != nullptr && blocks > 0 && first && fits_beside_running(blocks, running);
  if (imports)
    import(*s, opened, std::move(node.mapped().wanted));
  else if (opened.lease != 0)
    tell_(KvClose{opened.lease, {}});
  if (s != nullptr && blocks > 0 && !imports) {
    const Arrival waits{id, blocks, false};
    if (is_front)
      arrivals_.front() = waits;
    else
      arrivals_.push_back(waits);
    return nullptr;
  }
  if (is_front) arrivals_.pop_front();
  return imports ? nullptr : s;  // the pool has nothing of it: prefill the rest
}

void KvMoves::import(Sequence& s, const KvOpened& opened, std::vector<BlockRef> wanted) {
  wanted.resize(opened.blocks.size());
  std::vector<DeviceBlockId> blocks;
  const Status taken = devices_.allocate(static_cast<int32_t>(wanted.size()), blocks);
  SEER_CHECK(taken.ok(), taken.error());
  CopyBatch copy{.id = next_op_++, .direction = CopyBatch::Direction::kImport, .blocks = {}};
  for (size_t i = 0; i < blocks.size(); ++i)
    copy.blocks.push_back({blocks[i], arena_->span(opened.blocks[i].slot), opened.blocks[i].crc32c});
  s.table.insert(s.table.end(), blocks.begin(), blocks.end());
  s.phase = ChunkPhase::kImporting;
  imports_.emplace(copy.id, Import{s.chunk, opened, std::move(wanted)});
  engine_.submit(std::move(copy));
}

Sequence* KvMoves::imported(const CopyResult& result) {
  auto node = imports_.extract(result.id);
  const Import& import = node.mapped();
  const size_t count = import.blocks.size();
  size_t good = 0;
  while (good < count && result.crc32c[good] == import.opened.blocks[good].crc32c) ++good;
  KvClose close{import.opened.lease, {}};
  for (size_t i = good; i < count; ++i)
    if (result.crc32c[i] != import.opened.blocks[i].crc32c) close.corrupt.push_back(import.blocks[i].key);
  figures_.corrupt_blocks += static_cast<int64_t>(close.corrupt.size());
  figures_.imported_blocks += static_cast<int64_t>(good);
  tell_(std::move(close));
  Sequence* const s = sequences_.find(import.chunk);
  if (s == nullptr) return nullptr;
  const size_t first = s->table.size() - count;
  for (size_t i = 0; i < good; ++i) {
    s->kv_tokens += import.blocks[i].tokens;
    s->done.cached_tokens += import.blocks[i].tokens;
    if (import.blocks[i].tokens < info_.block_tokens) continue;  // the partial tail will be written on, so it gets no name
    devices_.name(s->table[first + i], import.blocks[i]);
    if (s->pooled_blocks == s->chain.size()) ++s->pooled_blocks;
    s->chain.push_back(import.blocks[i]);
  }
  devices_.release(std::span(s->table).subspan(first + good));
  s->table.resize(first + good);
  return s;
}

// ---- arrivals --------------------------------------------------------------------------------------------------------

int32_t KvMoves::blocks_of(const Sequence& s) const { return static_cast<int32_t>(s.log.size() / info_.block_tokens) + 1; }

void KvMoves::add_arrival(Sequence& s) {
  s.phase = ChunkPhase::kOpening;
  arrivals_.push_back({s.chunk, blocks_of(s), false});
}

bool KvMoves::is_behind_arrivals(const Sequence& s, int64_t running) const {
  if (arrivals_.empty()) return false;
  const Arrival& first = arrivals_.front();
  return !first.asked || !fits_beside_running(first.blocks + blocks_of(s), running);
}

bool KvMoves::fits_beside_running(int32_t blocks, int64_t running) const {
  return blocks + running * config_.headroom_tokens / info_.block_tokens <= devices_.counts().available();
}

bool KvMoves::first_arrival_fits(int64_t running) const {
  return !arrivals_.empty() && !arrivals_.front().asked && fits_beside_running(arrivals_.front().blocks, running);
}

std::vector<Sequence*> KvMoves::admit(int64_t running) {
  std::vector<Sequence*> ready;
  while (first_arrival_fits(running)) {
    arrivals_.front().asked = true;
    Sequence& s = sequences_.at(arrivals_.front().chunk);
    if (!find(s)) break;  // the pool is asked; the others wait for its answer
    arrivals_.pop_front();
    ready.push_back(&s);
  }
  return ready;
}

Sequence* KvMoves::release_last_arrival() {
  const auto last = std::find_if(arrivals_.rbegin(), arrivals_.rend(),
                                 [&](const Arrival& a) { return !sequences_.at(a.chunk).table.empty(); });
  if (last == arrivals_.rend()) return nullptr;
  Sequence& s = sequences_.at(last->chunk);
  arrivals_.erase(std::next(last).base());
  return &s;
}

Sequence& KvMoves::take_first_arrival() {
  Sequence& s = sequences_.at(arrivals_.front().chunk);
  arrivals_.pop_front();
  return s;
}

// ---- to the pool -----------------------------------------------------------------------------------------------------

void KvMoves::name_filled_blocks(Sequence& s) {
  const auto first = s.chain.size();
  const auto full = static_cast<size_t>(std::min(s.kv_tokens, s.log.size()) / info_.block_tokens);
  while (s.chain.size() < std::min(full, s.names.size()) && s.names[s.chain.size()].tokens == info_.block_tokens)
    s.chain.push_back(s.names[s.chain.size()]);
  if (s.chain.size() < full) {
    s.names = std::vector<BlockRef>();
    extend_names(s, s.chain, static_cast<int64_t>(full) * info_.block_tokens, info_);
  }
  for (size_t i = first; i < full; ++i) devices_.name(s.table[i], s.chain[i]);
}

void KvMoves::offer_filled_blocks(Sequence& s) {
  if (!s.has_pool) return;
  const size_t prompt = prompt_blocks(s, info_.block_tokens);
  const bool prompt_done = s.offered_blocks < prompt && s.chain.size() >= prompt;
  if (!prompt_done && s.chain.size() - s.offered_blocks < static_cast<size_t>(config_.offer_blocks)) return;
  reserve_from(s, s.chain, s.offered_blocks, false);
  s.offered_blocks = s.chain.size();
}

bool KvMoves::park(Sequence& s) {
  s.phase = ChunkPhase::kParking;
  std::vector<BlockRef> blocks = s.chain;
  const size_t full = s.chain.size();
  extend_names(s, blocks, s.kv_tokens, info_);
  if (blocks.size() > full) devices_.name(s.table[full], blocks.back());
  s.parking_ops = reserve_from(s, blocks, 0, true);
  return s.parking_ops > 0;
}

/// Asks the pool for room for blocks[from...]. Whole blocks of the prompt belong to the group, the rest to the request. Skips
/// blocks that the pool is known to keep, but asks for at least one of the request: the question also says whether the request
/// runs. Returns how many answers will come.
int32_t KvMoves::reserve_from(const Sequence& s, const std::vector<BlockRef>& blocks, size_t from, bool parking) {
  const size_t prompt_end = std::min(prompt_blocks(s, info_.block_tokens), blocks.size());
  const size_t own_first = std::max({from, prompt_end, std::min(s.pooled_blocks, blocks.size() - 1)});
  auto ask = [&](size_t first, size_t last, KvOwner owner, size_t owner_first) {
    if (first >= last) return 0;
    reserve(s.chunk,
            {.op = 0,
             .owner = owner,
             .blocks = {blocks.begin() + static_cast<ptrdiff_t>(first), blocks.begin() + static_cast<ptrdiff_t>(last)},
             .first_index = static_cast<uint32_t>(first - owner_first),
             .prompt = owner == owner_of(s.request.group),
             .park = parking,
             .next_use = s.yield_rank},
            first);
    return 1;
  };
  const int32_t asked = ask(from, prompt_end, owner_of(s.request.group), 0);
  return asked + ask(own_first, blocks.size(), owner_of(s.request), prompt_end);
}

void KvMoves::reserve(ChunkId id, KvReservation ask, size_t first_block) {
  ask.op = next_op_++;
  tell_(ask);
  const uint64_t op = ask.op;
  reserves_.emplace(op, Reservation{id, std::move(ask), first_block});
}

Sequence* KvMoves::reserved(const KvReserved& reserved) {
  auto node = reserves_.extract(reserved.op);
  Reservation open = node.empty() ? Reservation{} : std::move(node.mapped());
  Sequence* const s = sequences_.find(open.chunk);
  CopyBatch copy{.id = next_op_++, .direction = CopyBatch::Direction::kExport, .blocks = {}};
  std::vector<uint64_t> tokens;
  size_t answered = 0;  // blocks before the first that must be asked for again
  for (; answered < reserved.grants.size() && reserved.grants[answered].state != GrantState::kLater; ++answered) {
    const KvGrant& grant = reserved.grants[answered];
    if (s != nullptr && grant.state != GrantState::kRefused && s->pooled_blocks == open.first_block + answered &&
        s->pooled_blocks < s->chain.size())
      ++s->pooled_blocks;
    if (grant.state != GrantState::kWrite) continue;
    tokens.push_back(grant.token);
    if (s != nullptr) copy.blocks.push_back({s->table[open.first_block + answered], arena_->span(grant.slot), 0});
  }
  if (s == nullptr) {  // finished or dropped meanwhile: another sequence may have its device blocks by now
    if (!tokens.empty()) tell_(KvAbort{std::move(tokens)});
    return nullptr;
  }
  const bool parking = open.ask.park;
  if (parking && answered < reserved.grants.size()) {
    KvReservation rest = open.ask;
    rest.blocks.erase(rest.blocks.begin(), rest.blocks.begin() + static_cast<ptrdiff_t>(answered));
    rest.first_index += static_cast<uint32_t>(answered);
    ++s->parking_ops;
    reserve(open.chunk, std::move(rest), open.first_block + answered);
  }
  if (tokens.empty()) return parking ? s : nullptr;
  exports_.emplace(copy.id, Export{open.chunk, std::move(tokens), parking});
  engine_.submit(std::move(copy));
  return nullptr;
}

Sequence* KvMoves::exported(const CopyResult& result) {
  auto node = exports_.extract(result.id);
  const Export& open = node.mapped();
  KvSeal seal;
  for (size_t i = 0; i < open.tokens.size(); ++i) seal.blocks.push_back({open.tokens[i], result.crc32c[i]});
  figures_.exported_blocks += static_cast<int64_t>(open.tokens.size());
  tell_(std::move(seal));
  return open.parking ? sequences_.find(open.chunk) : nullptr;
}

void KvMoves::forget_response(const Sequence& s) {
  for (size_t i = prompt_blocks(s, info_.block_tokens); i < s.chain.size(); ++i) devices_.drop_name(s.chain[i].key);
}

void KvMoves::drop(ChunkId chunk) {
  std::erase_if(arrivals_, [&](const Arrival& arrival) { return arrival.chunk == chunk; });
  std::erase_if(openings_, [&](const auto& entry) { return entry.second.chunk == chunk; });
  std::erase_if(reserves_, [&](const auto& entry) { return entry.second.chunk == chunk; });
}

}  // namespace seer
