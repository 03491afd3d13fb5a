#include "actors/kv_node_actor.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace seer {
namespace {

constexpr int64_t kColdSilentUs = 10'000'000;   // if no cold read, write or lease ends for that long, who waits does without
constexpr int64_t kParkedMaxUs = 60'000'000;  // after that, KV that waits for room is given up and computed again
/// Kinds of a Tick.
enum TickKind : uint32_t { kLookAtParked, kPullIsSilent, kNoRoomFound, kLookAtWaiting };

}  // namespace

KvNodeActor::KvNodeActor(rt::self_ptr<KvNodeActor> self_in, KvNodeConfig config_in, KvNodeParts parts_in)
    : self(self_in),
      config(std::move(config_in)),
      parts(std::move(parts_in)),
      handover(make_handover<KvNodeActor>(self)),
      tiers(make_tiers()),
      address(parts.transport ? parts.transport->publish(config.node, parts.epoch, parts.arena) : ""),
      owners(self, {config.node, {}, parts.epoch, address, config.identity}, *tiers, std::move(parts.directory)),
      fetches(self, {parts.arena, parts.transport, handover, parts.log, parts.is_connected, config.node, config.fetch_timeout_us}, *tiers),
      guests(self,
             {.me = {{}, config.node, parts.epoch, address},
              .slots = parts.arena->slot_count(),
              .is_kv_only = config.is_kv_only,
              .own_share = config.own_share,
              .free_share = config.tiers.free_share,
              .tick = kNoRoomFound},
             *tiers, owners, fetches),
      pulls(self, {config.node, config.fetch_tokens_min, kPullIsSilent}, *tiers, owners, fetches,
            [this](const OpenBlocks& ask) { open_here(ask); }) {
  rt::on_down(self, [this](const rt::down& message) { on_down(message); });
  guests.report_room(true);
}

KvNodeActor::~KvNodeActor() {
  if (parts.transport) parts.transport->withdraw(config.node, parts.epoch);
}

std::unique_ptr<KvTiers> KvNodeActor::make_tiers() {
  KvTiersHooks hooks{.post = [h = handover](std::function<void()> f) { h->put(std::move(f)); },
                     .room = [this] { on_room(); },
                     .lost = {},
                     .cold_failed = [this](const Error& error) { on_cold_failure(error); }};
  if (parts.transport) {
    hooks.find_away_room = [this](int64_t blocks) { guests.find_room(blocks); };
    hooks.move_away = [this](const LeavingBlocks& leaving) { guests.move_away(leaving); };
  }
  return std::make_unique<KvTiers>(config.tiers, parts.arena, parts.open_cold ? parts.open_cold() : nullptr, std::move(hooks));
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
        guests.report_room();
      },
      [this](const KvClose& close) { on_close(close); },
      [this](const KvRelease& release) { on_release(release); },
      [this](const KvBump& bump) {
        if (bump.version > tiers->version()) tiers->bump_version(bump.version);  // ignore a late one
        guests.report_room();
      },
      [this](const WorkReady&) {
        for (auto& work : handover->take()) work();
        guests.report_room();
      },
      [this](const KvHolders& holders) { pulls.on_holders(holders); },
      [this](const TakeBlocks& take) { guests.on_take(take); },
      [this](const KvRoomFound& found) { guests.on_room_found(found); },
      [](const KvReserved&) {},  // a node never reserves room on another node
      [this](const KvOpened& lent) { pulls.on_lent(lent); },
      [this](const KvRefused& refused) { rt::quit(self, refused.why); },
      [this](const DirectoryUp& up) { on_directory_up(up); },
      [this](const Tick& tick) { on_tick(tick); },
      [this](const GetReport&) { return report(); },
  };
}

// ---- writing --------------------------------------------------------------------------------------------------------

void KvNodeActor::on_reserve(const ReserveBlocks& ask) {
  guests.look_again();
  owners.keep(ask.what.owner);
  if (ask.what.park)
    tiers->unpin(ask.what.owner, ask.what.next_use);
  else
    tiers->pin(ask.what.owner);
  const bool may_wait = ask.what.park && parked.size() < config.parked_max;
  if (!try_reserve(ask, may_wait)) {
    parked.push_back({ask, rt::now_us(self)});
    rt::tell_after(self, kParkedMaxUs, handle{self}, Tick{kLookAtParked});
    watch_waiting();
  }
  guests.report_room();
}

/// Answers a reservation. False: not answered, because nothing can be granted yet and it `may_wait`.
bool KvNodeActor::try_reserve(const ReserveBlocks& ask, bool may_wait) {
  const KvReservation& what = ask.what;
  const std::vector<Reservation> answers =
      tiers->reserve(what.owner, what.blocks, {.first_index = what.first_index, .prompt = what.prompt});
  KvReserved reserved{what.op, {}};
  bool granted = false, later = false;
  for (const Reservation& a : answers) {
    reserved.grants.push_back({a.state, a.slot, a.token.value});
    granted |= a.state == GrantState::kWrite;
    later |= a.state == GrantState::kLater;
  }
  const uint64_t writer = client(ask.reply_to).number;
  for (const Reservation& a : answers)
    if (a.state == GrantState::kWrite) writes.emplace_hint(writes.end(), a.token.value, writer);
  if (later && !granted && may_wait) return false;
  if (!may_wait)
    for (KvGrant& grant : reserved.grants)
      if (grant.state == GrantState::kLater) grant.state = GrantState::kRefused;
  rt::tell(self, ask.reply_to, std::move(reserved));
  return true;
}

void KvNodeActor::on_room() {
  pulls.on_room();
  for (size_t left = parked.size(); left > 0; --left)
    if (!answer_parked(true)) return;  // the oldest goes first, so the others wait too
}

/// Answers the oldest parked reservation, as try_reserve() does.
bool KvNodeActor::answer_parked(bool may_wait) {
  owners.keep(parked.front().ask.what.owner);  // which may have been released meanwhile
  if (!try_reserve(parked.front().ask, may_wait)) return false;
  parked.pop_front();
  return true;
}

/// An instance whose chunks all wait here computes nothing, so no wait may last.
void KvNodeActor::refuse_parked() {
  while (!parked.empty() && rt::now_us(self) - parked.front().since_us >= kParkedMaxUs) (void)answer_parked(false);
}

// ---- reading --------------------------------------------------------------------------------------------------------

void KvNodeActor::on_open(const OpenBlocks& ask) {
  const KvOpening& what = ask.what;
  if (what.lend && !fetches.is_connected(ask.reply_to))
    return rt::tell(self, ask.reply_to, KvOpened{.op = what.op, .node = config.node, .epoch = parts.epoch});
  client(ask.reply_to);
  if (what.lend) return open_here(ask);
  // Not an owner of nothing: the directory does not know of it, so its release would not come here.
  if (owners.has(what.owner)) tiers->pin(what.owner);
  pulls.open(ask);
}

void KvNodeActor::open_here(const OpenBlocks& ask) {
  const Client* const asker = find_client(ask.reply_to);
  tiers->open(ask.what.owner, keys_of(ask.what.blocks),
              [this, op = ask.what.op, reply_to = ask.reply_to, number = asker != nullptr ? asker->number : 0](OpenResult result) {
                const Client* to = find_client(reply_to);
                if (to == nullptr || to->number != number) return (void)tiers->close(result.lease);  // it was down meanwhile
                if (result.lease.value != 0) leases.emplace(result.lease.value, to->number);
                KvOpened opened{.op = op, .lease = result.lease.value, .node = config.node, .epoch = parts.epoch};
                for (const OpenBlock& b : result.blocks) opened.blocks.push_back({b.slot, b.generation, b.crc32c});
                opened_blocks += static_cast<int64_t>(result.blocks.size());
                rt::tell(self, reply_to, std::move(opened));
              });
  watch_waiting();
}

void KvNodeActor::on_close(const KvClose& close) {
  leases.erase(close.lease);
  for (const BlockKey& key : close.corrupt) tiers->report_corrupt(key);
  guests.end_lease(close);
}

void KvNodeActor::watch_waiting() {
  if (watches_waiting || (!tiers->has_waiting_opens() && parked.empty())) return;
  watches_waiting = true;
  seen_progress = tiers->progress();
  rt::tell_after(self, kColdSilentUs, handle{self}, Tick{kLookAtWaiting});
}

/// A disk that hangs answers nothing, so no opening or reservation may wait for it.
void KvNodeActor::look_at_waiting() {
  watches_waiting = false;
  if (tiers->progress() == seen_progress) tiers->note_silence();
  watch_waiting();
}

// ---- owners, peers, the directory -----------------------------------------------------------------------------------

void KvNodeActor::on_release(const KvRelease& release) {
  tiers->release(release.owner);
  if (owners.forget(release.owner) && release.copied) owners.tell_directory(KvLetGo{config.node, release.owner});
  guests.report_room();
}

void KvNodeActor::on_down(const rt::down& message) {
  if (owners.directory_down(message)) {
    pulls.directory_down();
    guests.directory_down();
  }
  on_client_down(message);
  if (fetches.lender_down(message)) pulls.lender_down(message);
  guests.taker_down(message);
}

void KvNodeActor::on_directory_up(const DirectoryUp& up) {
  owners.directory_up(up.directory);
  guests.report_room(true);
  owners.tell_all();
  pulls.directory_up();
}

void KvNodeActor::on_tick(const Tick& tick) {
  switch (tick.kind) {
    case kLookAtParked: return refuse_parked();
    case kPullIsSilent: return pulls.on_silence(tick.of);
    case kNoRoomFound: return guests.on_silence(tick.of);
    case kLookAtWaiting: return look_at_waiting();
  }
}

// ---- clients --------------------------------------------------------------------------------------------------------

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
  std::erase_if(parked, [&](const Parked& waits) { return waits.ask.reply_to == gone.handle; });
  const auto is_gone = [&](const auto& entry) { return entry.second == gone.number; };
  for (const auto& [token, writer] : writes)
    if (writer == gone.number) (void)tiers->abort({token});
  for (const auto& [lease, reader] : leases)
    if (reader == gone.number) (void)tiers->close({lease});
  std::erase_if(writes, is_gone);
  std::erase_if(leases, is_gone);
}

// ---- reports --------------------------------------------------------------------------------------------------------

/// Logs the 1st, 2nd, 4th, 8th, ... failure, because a broken disk fails every time.
void KvNodeActor::on_cold_failure(const Error& error) {
  if (!std::has_single_bit(++cold_failures)) return;
  parts.log.warn(rt::now_us(self), "cold_store_failure", {{"node", config.node}, {"failures", cold_failures}, {"error", error}});
}

KvNodeReport KvNodeActor::report() const {
  const KvTiersStats s = tiers->stats();
  const ColdStoreStats cold = tiers->cold_stats();
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
          .fetched_bytes = pulls.fetched_blocks() * parts.arena->block_bytes(),
          .moved_bytes = s.moved_blocks * parts.arena->block_bytes(),
          .guest_bytes = guests.taken_blocks() * parts.arena->block_bytes(),
          .fetch_failures = fetches.failures(),
          .kept_requests = owners.request_count(),
          .peers = fetches.lender_texts(),
          .cold_cpu_us = cold.cpu_us,
          .cold_failures = s.cold_errors + s.cold_full};
}

}  // namespace seer
