#include "actors/kv_node_actor.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

namespace seer {
namespace {

GrantState grant_state(Reservation::Kind kind) {
  switch (kind) {
    case Reservation::Kind::kGranted: return GrantState::kWrite;
    case Reservation::Kind::kHere: return GrantState::kHere;
    case Reservation::Kind::kLater: return GrantState::kLater;
    case Reservation::Kind::kRefused: return GrantState::kRefused;
  }
  return GrantState::kRefused;
}

std::vector<BlockKey> keys_of(const std::vector<BlockRef>& blocks) {
  std::vector<BlockKey> keys;
  keys.reserve(blocks.size());
  for (const BlockRef& block : blocks) keys.push_back(block.key);
  return keys;
}

constexpr int64_t kLendTimeoutUs = 2'000'000;  // after that, a silent directory or lender is given up
constexpr size_t kAbandonedMax = 1024;

}  // namespace

KvNodeActor::KvNodeActor(rt::self_ptr<KvNodeActor> self_in, KvNodeConfig config_in, KvNodeParts parts_in)
    : self(self_in), config(std::move(config_in)), parts(std::move(parts_in)) {
  handover = std::make_shared<Handover>(rt::waker<KvNodeActor>(self, [](const handle& me) { rt::post(me, WorkReady{}); }));
  tiers = std::make_unique<KvTiers>(
      config.tiers, parts.arena, parts.open_cold ? parts.open_cold() : nullptr,
      KvTiersHooks{.post = [h = handover](std::function<void()> f) { h->put(std::move(f)); },
                   .room = [this] { on_room(); },
                   .lost = {},
                   .cold_failed = [this](const Error& error) { on_cold_failure(error); }});
  rt::on_down(self, [this](const rt::down& message) {
    on_client_down(message);
    on_peer_down(message);
  });
  if (parts.transport) address = parts.transport->publish(config.node, parts.epoch, parts.arena);
  announce();
}

KvNodeActor::~KvNodeActor() {
  if (parts.transport) parts.transport->withdraw(config.node, parts.epoch);
}

KvNodeActor::handle::behavior_type KvNodeActor::make_behavior() {
  return {
      [this](const ReserveBlocks& ask) { on_reserve(ask); },
      [this](const OpenBlocks& ask) { on_open(ask); },
      [this](const KvSeal& seal) {
        for (const KvWritten& written : seal.blocks) {
          writes.erase(written.token);
          (void)tiers->seal({written.token}, written.crc32c);  // stale: counted
        }
      },
      [this](const KvAbort& abort) {
        for (uint64_t token : abort.tokens) {
          writes.erase(token);
          (void)tiers->abort({token});
        }
      },
      [this](const KvClose& close) { on_close(close); },
      [this](const KvRelease& release) {
        tiers->release(release.owner);
        kept.erase(release.owner);
      },
      [this](const KvBump& bump) {
        if (bump.version > tiers->version()) tiers->bump_version(bump.version);  // ignore a late one
      },
      [this](const WorkReady&) {
        for (auto& work : handover->take()) work();
      },
      [this](const KvHolders& holders) { on_holders(holders); },
      [](const KvReserved&) {},  // a node never reserves room on another node
      [this](const KvOpened& lent) { on_lent(lent); },
      [this](const KvRefused& refused) { rt::quit(self, refused.why); },
      [this](const DirectoryUp& up) { on_directory_up(up); },
      [this](const Tick& tick) { on_silence(tick.what); },
      [this](const GetReport&) { return report(); },
  };
}

void KvNodeActor::on_reserve(const ReserveBlocks& ask) {
  keep(ask.what.owner);
  if (ask.what.park)
    tiers->unpin(ask.what.owner, ask.what.next_use);
  else
    tiers->pin(ask.what.owner);
  const bool may_wait = ask.what.park && parked.size() < config.parked_max;
  if (!try_reserve(ask, may_wait)) parked.push_back(ask);
}

/// Answers a reservation. False: not answered, because nothing can be granted yet and it `may_wait`.
bool KvNodeActor::try_reserve(const ReserveBlocks& ask, bool may_wait) {
  const KvReservation& what = ask.what;
  const std::vector<Reservation> answers =
      tiers->reserve(what.owner, what.blocks, {.first_index = what.first_index, .prompt = what.prompt});
  KvReserved reserved{what.op, {}};
  bool granted = false, later = false;
  for (const Reservation& a : answers) {
    reserved.grants.push_back({grant_state(a.kind), a.slot, a.token.value});
    granted |= a.kind == Reservation::Kind::kGranted;
    later |= a.kind == Reservation::Kind::kLater;
  }
  const uint64_t writer = client(ask.reply_to).number;
  for (const Reservation& a : answers)
    if (a.kind == Reservation::Kind::kGranted) writes.emplace_hint(writes.end(), a.token.value, writer);
  if (later && !granted && may_wait) return false;
  if (!may_wait)
    for (KvGrant& grant : reserved.grants)
      if (grant.state == GrantState::kLater) grant.state = GrantState::kRefused;
  rt::tell(self, ask.reply_to, std::move(reserved));
  return true;
}

/// Logs the 1st, 2nd, 4th, 8th, ... failure, because a broken disk fails every time.
void KvNodeActor::on_cold_failure(const Error& error) {
  if (!std::has_single_bit(++cold_failures)) return;
  parts.log.warn(rt::now_us(self), "cold_store_failure", {{"node", config.node}, {"failures", cold_failures}, {"error", error}});
}

void KvNodeActor::on_room() {
  for (size_t left = parked.size(); left > 0; --left) {
    if (!try_reserve(parked.front(), true)) return;  // the oldest goes first, so the others wait too
    parked.pop_front();
  }
}

void KvNodeActor::on_open(const OpenBlocks& ask) {
  const KvOpening& what = ask.what;
  client(ask.reply_to);
  if (what.lend) return open_here(ask);
  // Not an owner of nothing: the directory does not know of it, so its release would not come here.
  if (kept.contains(what.owner)) tiers->pin(what.owner);
  const size_t here_blocks = blocks_here(what);
  own_blocks(what, here_blocks);
  if (!parts.transport || here_blocks == what.blocks.size()) return open_here(ask);
  const uint64_t op = next_op++;
  pulls.emplace(op, Pull{.ask = ask, .here = here_blocks});
  find_holders(op);
  rt::tell_after(self, kLendTimeoutUs, handle{self}, Tick{op});  // see on_silence()
}

size_t KvNodeActor::blocks_here(const KvOpening& what) const {
  const ProbeResult here = tiers->probe(keys_of(what.blocks));
  return here.dram_blocks + here.cold_blocks;
}

void KvNodeActor::open_here(const OpenBlocks& ask) {
  tiers->open(ask.what.owner, keys_of(ask.what.blocks),
              [this, op = ask.what.op, reply_to = ask.reply_to](OpenResult result) {
                const Client* to = find_client(reply_to);
                if (to == nullptr) return (void)tiers->close(result.lease);  // the client died meanwhile
                if (result.lease.value != 0) leases.emplace(result.lease.value, to->number);
                KvOpened opened{.op = op, .lease = result.lease.value, .node = config.node, .epoch = parts.epoch};
                for (const OpenBlock& b : result.blocks) opened.blocks.push_back({b.slot, b.generation, b.crc32c});
                opened_blocks += static_cast<int64_t>(result.blocks.size());
                rt::tell(self, reply_to, std::move(opened));
              });
}

/// Makes the request an owner of the first `here` blocks, which it finds here and will not write again. Another request may have
/// written them (responses that begin alike have equal blocks), and its release would free them.
void KvNodeActor::own_blocks(const KvOpening& what, size_t here) {
  const size_t prompt_end = std::min(here, prompt_blocks_of(what));
  if (prompt_end > 0) reserve_part(what, 0, prompt_end);
  if (prompt_end < here) reserve_part(what, prompt_end, here);
}

/// How many of the blocks belong to the group's prompt; those come first.
size_t KvNodeActor::prompt_blocks_of(const KvOpening& what) {
  return std::clamp<size_t>(what.prompt_blocks, what.first_index, what.first_index + what.blocks.size()) - what.first_index;
}

/// Reserves room for blocks [first, end). REQUIRES: all are the group's prompt, or none is.
std::vector<Reservation> KvNodeActor::reserve_part(const KvOpening& what, size_t first, size_t end) {
  const bool prompt = first < prompt_blocks_of(what);
  const KvOwner owner = prompt ? group_of(what.owner) : what.owner;
  keep(owner);
  if (!prompt) tiers->pin(owner);
  const size_t place = what.first_index + first - (prompt ? 0 : what.prompt_blocks);
  return tiers->reserve(owner, std::span(what.blocks).subspan(first, end - first),
                        {.first_index = static_cast<uint32_t>(place), .prompt = prompt});
}

// ---- blocks of other nodes ---------------------------------------------------------------------------------------------

void KvNodeActor::find_holders(uint64_t op) {
  rt::tell(self, parts.directory, FindHolders{op, config.node, pulls.at(op).ask.what.owner, handle{self}});
}

void KvNodeActor::on_holders(const KvHolders& holders) {
  auto it = pulls.find(holders.op);
  if (it == pulls.end() || it->second.lender.handle) return;
  it->second.sources.assign(holders.sources.rbegin(), holders.sources.rend());
  ask_next_source(holders.op);
}

void KvNodeActor::ask_next_source(uint64_t op) {
  Pull& pull = pulls.at(op);
  if (pull.sources.empty()) return end_pull(op);
  pull.lender = pull.sources.back();
  pull.sources.pop_back();
  KvOpening wanted = pull.ask.what;
  wanted.op = op;
  wanted.lend = true;
  wanted.blocks.erase(wanted.blocks.begin(), wanted.blocks.begin() + static_cast<ptrdiff_t>(pull.here));
  const KvSource lender = pull.lender.handle;
  rt::tell(self, lender, OpenBlocks{std::move(wanted), handle{self}});
  if (std::ranges::find(lenders, lender) != lenders.end()) return;
  rt::monitor(self, lender);  // tells us also if it is gone already
  lenders.push_back(lender);
}

/// True: blocks can be fetched from the lender. Opens it every time, which is cheap: the transport may have lost it meanwhile.
bool KvNodeActor::open_lender(const KvLender& lender) {
  if (!parts.transport->open_peer(lender.node, lender.epoch, lender.address).ok()) return false;
  KvLender& known = peers[lender.node];
  if (known.handle != lender.handle)
    parts.log.info(rt::now_us(self), "kv_peer_opened",
                   {{"node", config.node}, {"peer", lender.node}, {"transport", parts.transport->peer_info(lender.node)}});
  known = lender;
  return true;
}

void KvNodeActor::on_peer_down(const rt::down& message) {
  if (std::erase_if(lenders, [&](const KvSource& lender) { return rt::is_source(message, lender); }) == 0) return;
  const auto gone = std::ranges::find_if(peers, [&](const auto& peer) { return rt::is_source(message, peer.second.handle); });
  if (gone != peers.end()) {
    parts.transport->close_peer(gone->first, gone->second.epoch);
    peers.erase(gone);
  }
  // The transport ends running fetches from it. Unanswered questions go to the next source.
  std::vector<uint64_t> unanswered;
  for (const auto& [op, pull] : pulls)
    if (pull.lease == 0 && rt::is_source(message, pull.lender.handle)) unanswered.push_back(op);
  for (const uint64_t op : unanswered) ask_next_source(op);
}

void KvNodeActor::on_lent(const KvOpened& lent) {
  auto it = pulls.find(lent.op);
  if (it == pulls.end()) {
    if (auto late = abandoned.extract(lent.op); !late.empty() && lent.lease != 0)
      rt::tell(self, late.mapped(), KvClose{lent.lease, {}});
    return;
  }
  Pull& pull = it->second;
  if (lent.node != pull.lender.node || lent.epoch != pull.lender.epoch) return;  // from a lender that was given up
  if (lent.blocks.empty()) return ask_next_source(lent.op);
  pull.lease = lent.lease;
  pull.lent_blocks = lent.blocks.size();
  const KvOpening& what = pull.ask.what;
  std::vector<Fetch> fetches;
  // Reserves room here for the lent blocks [first, end) of the opening. False: no room is left.
  const auto take = [&](size_t first, size_t end) {
    if (first >= end) return true;
    const std::vector<Reservation> rooms = reserve_part(what, first, end);
    for (size_t i = first; i < end; ++i) {
      const Reservation& room = rooms[i - first];
      if (room.kind == Reservation::Kind::kHere) continue;
      if (room.kind != Reservation::Kind::kGranted) return false;
      const KvOpenedBlock& from = lent.blocks[i - pull.here];
      fetches.push_back({{lent.node, lent.epoch, from.slot, from.generation, from.crc32c}, parts.arena->span(room.slot)});
      pull.written.push_back({room.token.value, from.crc32c});
    }
    return true;
  };
  const size_t end = pull.here + lent.blocks.size();
  const size_t prompt_end = std::clamp(prompt_blocks_of(what), pull.here, end);
  if (take(pull.here, prompt_end)) take(prompt_end, end);
  const size_t count = fetches.size();
  const uint64_t op = lent.op, fetch = next_fetch++;
  if (count == 0) return on_fetched(op, fetch, {});
  Status started = fail(Code::kUnavailable, "node ", lent.node, " cannot be opened");
  // The transport may still write after this actor has ended, so its callbacks keep the arena alive.
  if (open_lender(pull.lender))
    started = parts.transport->fetch(
        std::move(fetches), config.fetch_timeout_us,
        {.done = [this, op, fetch, h = handover, arena = parts.arena](FetchResult result) {
           h->put([this, op, fetch, result = std::move(result)] { on_fetched(op, fetch, result); });
         },
         .quiet = [this, fetch, h = handover, arena = parts.arena] { h->put([this, fetch] { on_quiet(fetch); }); }});
  if (!started.ok()) on_fetched(op, fetch, {std::vector<Status>(count, started)});
}

/// A fetch has ended. If all lent blocks are here, the lender may drop its copy of the request's own blocks. Another node may
/// have blocks that are still missing.
void KvNodeActor::on_fetched(uint64_t op, uint64_t fetch, const FetchResult& result) {
  Pull& pull = pulls.at(op);
  LateFetch late{{}, pull.lender.handle, std::exchange(pull.lease, 0)};
  for (size_t i = 0; i < result.statuses.size(); ++i) {
    const KvWritten& block = pull.written[i];
    const bool came = result.statuses[i].ok();
    ++(came ? fetched_blocks : fetch_failures);
    if (came) {
      (void)tiers->seal({block.token}, block.crc32c);
    } else if (result.still_writing) {
      tiers->quarantine({block.token});
      late.written.push_back(block);
    } else {
      (void)tiers->abort({block.token});
    }
  }
  pull.written.clear();
  if (result.still_writing)
    late_fetches.emplace(fetch, std::move(late));
  else
    rt::tell(self, late.lender, KvClose{late.lease, {}});
  const size_t here = blocks_here(pull.ask.what);
  if (here >= pull.here + pull.lent_blocks) rt::tell(self, pull.lender.handle, KvRelease{pull.ask.what.owner});
  pull.here = here;
  if (pull.here < pull.ask.what.blocks.size()) return ask_next_source(op);
  end_pull(op);
}

/// The transport no longer touches the slots of a late fetch, so they are freed.
void KvNodeActor::on_quiet(uint64_t fetch) {
  const LateFetch late = std::move(late_fetches.extract(fetch).mapped());
  for (const KvWritten& block : late.written) (void)tiers->abort({block.token});
  rt::tell(self, late.lender, KvClose{late.lease, {}});
}

/// A lender did not answer in time.
void KvNodeActor::on_silence(uint64_t op) {
  auto it = pulls.find(op);
  if (it == pulls.end()) return;
  if (it->second.lease != 0) return rt::tell_after(self, kLendTimeoutUs, handle{self}, Tick{op});  // it answered; the next one may not
  if (it->second.lender.handle) abandoned.emplace(op, it->second.lender.handle);
  if (abandoned.size() > kAbandonedMax) abandoned.erase(abandoned.begin());
  end_pull(op);
}

/// Answers the opening with the blocks that are here now.
void KvNodeActor::end_pull(uint64_t op) {
  const Pull pull = std::move(pulls.extract(op).mapped());
  own_blocks(pull.ask.what, blocks_here(pull.ask.what));
  open_here(pull.ask);
}

void KvNodeActor::on_close(const KvClose& close) {
  leases.erase(close.lease);
  for (const BlockKey& key : close.corrupt) tiers->report_corrupt(key);
  (void)tiers->close({close.lease});
}

const KvNodeActor::Client* KvNodeActor::find_client(const KvClient& peer) const {
  auto it = std::find_if(clients.begin(), clients.end(), [&](const Client& c) { return c.handle == peer; });
  return it == clients.end() ? nullptr : &*it;
}

/// Adds and monitors the peer at its first question.
const KvNodeActor::Client& KvNodeActor::client(const KvClient& peer) {
  if (const Client* known = find_client(peer)) return *known;
  rt::monitor(self, peer);
  return clients.emplace_back(Client{peer, ++last_client});
}

void KvNodeActor::on_client_down(const rt::down& message) {
  auto it = std::find_if(clients.begin(), clients.end(), [&](const Client& c) { return rt::is_source(message, c.handle); });
  if (it == clients.end()) return;
  const Client gone = std::move(*it);
  clients.erase(it);
  std::erase_if(parked, [&](const ReserveBlocks& ask) { return ask.reply_to == gone.handle; });
  const auto is_gone = [&](const auto& entry) { return entry.second == gone.number; };
  for (const auto& [token, writer] : writes)
    if (writer == gone.number) (void)tiers->abort({token});
  for (const auto& [lease, reader] : leases)
    if (reader == gone.number) (void)tiers->close({lease});
  std::erase_if(writes, is_gone);
  std::erase_if(leases, is_gone);
}

void KvNodeActor::announce() {
  rt::tell(self, parts.directory, KvNodeUp{config.node, handle{self}, parts.epoch, address, config.identity});
}

void KvNodeActor::on_directory_up(const DirectoryUp& up) {
  parts.directory = up.directory;
  announce();
  for (const KvOwner owner : std::set<KvOwner>(kept.begin(), kept.end()))  // sorted, so that the same run sends the same messages
    rt::tell(self, parts.directory, KvHolds{config.node, owner});
  for (const auto& [op, pull] : pulls)
    if (!pull.lender.handle) find_holders(op);  // the old directory died before it answered
}

/// Reports the owner to the directory, once. From then on the directory sends its release here.
void KvNodeActor::keep(KvOwner owner) {
  if (kept.insert(owner).second) rt::tell(self, parts.directory, KvHolds{config.node, owner});
}

KvNodeReport KvNodeActor::report() const {
  const KvTiersStats s = tiers->stats();
  const ColdStoreStats cold = tiers->cold_stats();
  const auto is_of_request = [](KvOwner owner) { return owner != group_of(owner); };
  std::vector<std::string> from;
  for (const auto& [node, lender] : peers) from.push_back(cat("node ", node, ": ", parts.transport->peer_info(node)));
  return {.node = config.node,
          .dram_capacity_bytes = s.dram_capacity_bytes,
          .dram_used_bytes = s.dram_used_bytes,
          .dram_peak_bytes = s.dram_peak_bytes,
          .cold_capacity_bytes = cold.capacity_bytes,
          .cold_used_bytes = s.cold_used_bytes,
          .spilled_bytes = s.spilled_bytes,
          .promoted_bytes = s.promoted_bytes,
          .dropped_blocks = s.dropped_blocks,
          .corrupt_blocks = s.corrupt_blocks,
          .refused_blocks = s.refused_blocks,
          .sealed_blocks = s.sealed,
          .opened_blocks = opened_blocks,
          .fetched_bytes = fetched_blocks * parts.arena->block_bytes(),
          .fetch_failures = fetch_failures,
          .kept_requests = std::ranges::count_if(kept, is_of_request),
          .peers = std::move(from),
          .cold_cpu_us = cold.cpu_us,
          .cold_failures = s.cold_errors + s.cold_full};
}

}  // namespace seer
