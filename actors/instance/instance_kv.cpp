// The part of instance_actor that finds the KV of a chunk's prefix, on the device or in the pool, and offers the pool what
// the device computes.
#include <algorithm>
#include <utility>

#include "actors/instance/instance_actor.h"

namespace seer {

// ---- from device and pool --------------------------------------------------------------------------------------------

/// Of the first blocks of all but the last token that it came with. REQUIRES: none of these was fed yet.
std::span<const BlockRef> InstanceActor::names_of(Sequence& s, int64_t blocks) const {
  const int64_t tokens = std::min(blocks * info.block_tokens, s.log.size() - 1);
  const auto count = static_cast<size_t>(blocks_needed(tokens, 0, info.block_tokens));
  if (s.names.size() < count) extend_names(s, s.names, tokens);
  return std::span(s.names).first(count);
}

/// `chain`: of the first whole blocks of the sequence; it becomes that of its first `tokens`.
void InstanceActor::extend_names(const Sequence& s, std::vector<BlockRef>& chain, int64_t tokens) const {
  extend_chain(chain, s.spec.version, info.layout_hash, s.log, tokens, info.block_tokens);
}

/// Takes what the device has of the prefix behind s.table, and asks the pool for the rest. The last token is always fed
/// anew: its row gives the next token.
void InstanceActor::find_kv(ChunkId id, Sequence& s) {
  constexpr int64_t kNamedTogether = 2;  // without a pool, names behind the first block that is not here are not wanted
  const int64_t all = blocks_needed(s.log.size() - 1, 0, info.block_tokens);
  while (std::ssize(s.table) < all) {
    const int64_t first = std::ssize(s.table);
    const int64_t end = has_pool(s) ? all : std::min(all, first + kNamedTogether);
    const auto names = names_of(s, end).subspan(static_cast<size_t>(first));
    const int32_t here = devices.retain_run(names, s.table);
    for (const BlockRef& block : names.first(static_cast<size_t>(here))) {
      s.kv_tokens += block.tokens;
      if (block.tokens == info.block_tokens) s.chain.push_back(block);
    }
    if (here < std::ssize(names)) break;
  }
  s.done.cached_tokens = s.kv_tokens;
  if (!has_pool(s) || std::ssize(s.table) == all) return run(s);
  std::vector<BlockRef> wanted(s.names.begin() + std::ssize(s.table), s.names.end());
  s.phase = Phase::kOpening;
  KvOpening opening;
  opening.op = next_op++;
  opening.owner = owner_of(s.spec.request);
  opening.blocks = wanted;
  opening.first_index = static_cast<uint32_t>(s.table.size());
  opening.prompt_blocks = static_cast<uint32_t>(prompt_blocks(s));
  openings.emplace(opening.op, std::pair{id, std::move(wanted)});
  rt::tell(self, parts.kv_node, OpenBlocks{std::move(opening), handle{self}});
}

/// Found blocks come to the device at once if there is room for all of them beside those that run. Otherwise the chunk
/// waits its turn and asks again: a lease that waited for device blocks could keep those from parking that would free them.
void InstanceActor::on_opened(const KvOpened& opened) {
  auto node = openings.extract(opened.op);
  const ChunkId id = node.empty() ? kNoChunk : node.mapped().first;
  Sequence* s = find(id);
  const bool first = arrivals.empty() || arrivals.front().chunk == id;
  const auto blocks = static_cast<int32_t>(opened.blocks.size());
  if (s != nullptr && blocks > 0 && first && fits_beside_running(blocks)) {
    import(id, *s, opened, std::move(node.mapped().second));
  } else {
    if (opened.lease != 0) rt::tell(self, parts.kv_node, KvClose{opened.lease, {}});
    if (s != nullptr && blocks > 0) {
      if (!arrivals.empty() && arrivals.front().chunk == id)
        arrivals.front() = {id, blocks, false};
      else
        arrivals.push_back({id, blocks, false});
      return pump();
    }
    if (s != nullptr) run(*s);  // nothing found: what is missing is prefilled
  }
  if (!arrivals.empty() && arrivals.front().chunk == id) arrivals.pop_front();
  pump();
}

void InstanceActor::import(ChunkId id, Sequence& s, const KvOpened& opened, std::vector<BlockRef> wanted) {
  wanted.resize(opened.blocks.size());
  std::vector<DeviceBlockId> blocks;
  const Status taken = devices.allocate(static_cast<int32_t>(wanted.size()), blocks);
  SEER_CHECK(taken.ok(), taken.error());
  CopyBatch copy{.id = next_op++, .direction = CopyBatch::Direction::kImport, .blocks = {}};
  for (size_t i = 0; i < blocks.size(); ++i)
    copy.blocks.push_back({blocks[i], parts.arena->span(opened.blocks[i].slot), opened.blocks[i].crc32c});
  s.table.insert(s.table.end(), blocks.begin(), blocks.end());
  s.phase = Phase::kImporting;
  imports.emplace(copy.id, OpenImport{id, opened, std::move(wanted)});
  submit(std::move(copy));
}

void InstanceActor::on_import(const CopyResult& result) {
  auto node = imports.extract(result.id);
  const OpenImport& import = node.mapped();
  const size_t count = import.blocks.size();
  size_t good = 0;
  while (good < count && result.crc32c[good] == import.opened.blocks[good].crc32c) ++good;
  KvClose close{import.opened.lease, {}};
  for (size_t i = good; i < count; ++i)
    if (result.crc32c[i] != import.opened.blocks[i].crc32c) close.corrupt.push_back(import.blocks[i].key);
  report.corrupt_blocks += static_cast<int64_t>(close.corrupt.size());
  report.imported_blocks += static_cast<int64_t>(good);
  rt::tell(self, parts.kv_node, std::move(close));
  Sequence* s = find(import.chunk);
  if (s == nullptr) return;
  const size_t first = s->table.size() - count;
  for (size_t i = 0; i < good; ++i) {
    s->kv_tokens += import.blocks[i].tokens;
    s->done.cached_tokens += import.blocks[i].tokens;
    if (import.blocks[i].tokens < info.block_tokens) continue;  // the tail: it will be written on, so it gets no name
    devices.name(s->table[first + i], import.blocks[i]);
    if (s->pooled_blocks == s->chain.size()) ++s->pooled_blocks;
    s->chain.push_back(import.blocks[i]);
  }
  devices.release(std::span(s->table).subspan(first + good));
  s->table.resize(first + good);
  run(*s);
}

// ---- to the pool -----------------------------------------------------------------------------------------------------

/// Not of draft tokens that stood behind the end of the response: they are not in its log.
void InstanceActor::name_filled_blocks(Sequence& s) {
  const auto first = s.chain.size();
  const auto full = static_cast<size_t>(std::min(s.kv_tokens, s.log.size()) / info.block_tokens);
  while (s.chain.size() < std::min(full, s.names.size()) && s.names[s.chain.size()].tokens == info.block_tokens)
    s.chain.push_back(s.names[s.chain.size()]);
  if (s.chain.size() < full) {
    s.names = std::vector<BlockRef>();
    extend_names(s, s.chain, static_cast<int64_t>(full) * info.block_tokens);
  }
  for (size_t i = first; i < full; ++i) devices.name(s.table[i], s.chain[i]);
}

/// Behind the step: blocks that became full go to the pool while the chunk runs on, the prompt's at once (its group may
/// start elsewhere), the others a few at a time, as tokens are reported. Without room there they stay here, and are
/// offered again when the chunk parks.
void InstanceActor::offer_filled_blocks(ChunkId id, Sequence& s) {
  if (!has_pool(s)) return;
  const bool prompt_done = s.offered_blocks < prompt_blocks(s) && s.chain.size() >= prompt_blocks(s);
  if (!prompt_done && s.chain.size() - s.offered_blocks < static_cast<size_t>(config.offer_blocks)) return;
  reserve_from(id, s, s.chain, s.offered_blocks, false);
  s.offered_blocks = s.chain.size();
}

/// Asks the pool for room for blocks[from...]: whole blocks of the prompt belong to the group, the rest to the request, of
/// which those that the pool is known to keep are passed over; not all, as the question also says if the request runs.
/// Returns how many answers will come.
int32_t InstanceActor::reserve_from(ChunkId id, const Sequence& s, const std::vector<BlockRef>& blocks, size_t from,
                                    bool parking) {
  const size_t prompt_end = std::min(prompt_blocks(s), blocks.size());
  const size_t own_first = std::max({from, prompt_end, std::min(s.pooled_blocks, blocks.size() - 1)});
  auto ask = [&](size_t first, size_t last, KvOwner owner, size_t owner_first) {
    if (first >= last) return 0;
    reserve(id,
            {.op = 0,
             .owner = owner,
             .blocks = {blocks.begin() + static_cast<ptrdiff_t>(first), blocks.begin() + static_cast<ptrdiff_t>(last)},
             .first_index = static_cast<uint32_t>(first - owner_first),
             .prompt = owner == owner_of(s.spec.request.group),
             .park = parking,
             .next_use = s.spec.yield_rank},
            first);
    return 1;
  };
  const int32_t asked = ask(from, prompt_end, owner_of(s.spec.request.group), 0);
  return asked + ask(own_first, blocks.size(), owner_of(s.spec.request), prompt_end);
}

void InstanceActor::reserve(ChunkId id, KvReservation ask, size_t first_block) {
  ask.op = next_op++;
  rt::tell(self, parts.kv_node, ReserveBlocks{ask, handle{self}});
  const uint64_t op = ask.op;
  reserves.emplace(op, OpenReserve{id, std::move(ask), first_block});
}

void InstanceActor::on_reserved(const KvReserved& reserved) {
  auto node = reserves.extract(reserved.op);
  OpenReserve open = node.empty() ? OpenReserve{} : std::move(node.mapped());
  Sequence* s = find(open.chunk);
  CopyBatch copy{.id = next_op++, .direction = CopyBatch::Direction::kExport, .blocks = {}};
  std::vector<uint64_t> tokens;
  size_t answered = 0;  // blocks before the first one that has to be asked for again
  for (; answered < reserved.grants.size() && reserved.grants[answered].state != GrantState::kLater; ++answered) {
    const KvGrant& grant = reserved.grants[answered];
    if (s != nullptr && grant.state != GrantState::kRefused && s->pooled_blocks == open.first_block + answered &&
        s->pooled_blocks < s->chain.size())
      ++s->pooled_blocks;
    if (grant.state != GrantState::kWrite) continue;
    tokens.push_back(grant.token);
    if (s != nullptr) copy.blocks.push_back({s->table[open.first_block + answered], parts.arena->span(grant.slot), 0});
  }
  if (s == nullptr) {  // finished or dropped meanwhile: its device blocks may be someone else's by now
    if (!tokens.empty()) rt::tell(self, parts.kv_node, KvAbort{std::move(tokens)});
    return;
  }
  const bool parking = open.ask.park;
  if (parking && answered < reserved.grants.size()) {
    KvReservation rest = open.ask;
    rest.blocks.erase(rest.blocks.begin(), rest.blocks.begin() + static_cast<ptrdiff_t>(answered));
    rest.first_index += static_cast<uint32_t>(answered);
    ++s->parking_ops;
    reserve(open.chunk, std::move(rest), open.first_block + answered);
  }
  if (!tokens.empty()) {
    exports.emplace(copy.id, OpenExport{open.chunk, std::move(tokens), parking});
    submit(std::move(copy));
  } else if (parking) {
    settle_blocks();
    parking_progressed(open.chunk);
    pump();
  }
}

void InstanceActor::on_export(const CopyResult& result) {
  auto node = exports.extract(result.id);
  const OpenExport& open = node.mapped();
  KvSeal seal;
  for (size_t i = 0; i < open.tokens.size(); ++i) seal.blocks.push_back({open.tokens[i], result.crc32c[i]});
  report.exported_blocks += static_cast<int64_t>(open.tokens.size());
  rt::tell(self, parts.kv_node, std::move(seal));
  if (open.parking && find(open.chunk) != nullptr) parking_progressed(open.chunk);
}

}  // namespace seer
