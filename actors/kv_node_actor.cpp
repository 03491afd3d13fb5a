#include "actors/kv_node_actor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace seer {
namespace {

std::vector<BlockKey> keys_of(const std::vector<BlockRef>& blocks) {
  std::vector<BlockKey> keys;
  keys.reserve(blocks.size());
  for (const BlockRef& block : blocks) keys.push_back(block.key);
  return keys;
}

constexpr int64_t kAskTimeoutUs = 2'000'000;    // after that, a silent directory is given up
constexpr int64_t kLendTimeoutUs = 10'000'000;  // after that, a lender; it may have to read from its disk
constexpr int64_t kColdSilentUs = 10'000'000;   // if no cold read, write or lease ends for that long, who waits does without
constexpr int64_t kFullUs = 1'000'000;  // a node without room is not asked for some again before that
constexpr int64_t kUnreachedUs = 60'000'000;  // likewise one that cannot be reached: each question makes the directory promise its room
constexpr int64_t kParkedMaxUs = 60'000'000;  // after that, KV that waits for room is given up and computed again
/// Kinds of a Tick.
enum TickKind : uint32_t { kLookAtParked, kPullIsSilent, kNoRoomFound, kLookAtWaiting };

}  // namespace

KvNodeActor::KvNodeActor(rt::self_ptr<KvNodeActor> self_in, KvNodeConfig config_in, KvNodeParts parts_in)
    : self(self_in), config(std::move(config_in)), parts(std::move(parts_in)) {
  handover = make_handover<KvNodeActor>(self);
  KvTiersHooks hooks{.post = [h = handover](std::function<void()> f) { h->put(std::move(f)); },
                     .room = [this] { on_room(); },
                     .lost = {},
                     .cold_failed = [this](const Error& error) { on_cold_failure(error); }};
  if (parts.transport) {
    hooks.find_away_room = [this](int64_t blocks) { find_room(blocks); };
    hooks.move_away = [this](const LeavingBlocks& leaving) { move_away(leaving); };
  }
  tiers = std::make_unique<KvTiers>(config.tiers, parts.arena, parts.open_cold ? parts.open_cold() : nullptr, std::move(hooks));
  rt::on_down(self, [this](const rt::down& message) {
    on_directory_down(message);
    on_client_down(message);
    on_peer_down(message);
    on_taker_down(message);
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
        report_room();
      },
      [this](const KvClose& close) { on_close(close); },
      [this](const KvRelease& release) {
        tiers->release(release.owner);
        const bool was_kept = kept.erase(release.owner) > 0;
        if (was_kept && release.copied) rt::tell(self, parts.directory, KvLetGo{config.node, release.owner});
        report_room();
      },
      [this](const KvBump& bump) {
        if (bump.version > tiers->version()) tiers->bump_version(bump.version);  // ignore a late one
        report_room();
      },
      [this](const WorkReady&) {
        for (auto& work : handover->take()) work();
        report_room();
      },
      [this](const KvHolders& holders) { on_holders(holders); },
      [this](const TakeBlocks& take) { on_take(take); },
      [this](const KvRoomFound& found) { on_room_found(found); },
      [](const KvReserved&) {},  // a node never reserves room on another node
      [this](const KvOpened& lent) { on_lent(lent); },
      [this](const KvRefused& refused) { rt::quit(self, refused.why); },
      [this](const DirectoryUp& up) { on_directory_up(up); },
      [this](const Tick& tick) { on_tick(tick); },
      [this](const GetReport&) { return report(); },
  };
}

void KvNodeActor::on_reserve(const ReserveBlocks& ask) {
  if (no_room_us && rt::now_us(self) - *no_room_us >= kFullUs) {
    no_room_us.reset();
    tiers->look_for_away_room();
  }
  keep(ask.what.owner);
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
  report_room();
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

/// Logs the 1st, 2nd, 4th, 8th, ... failure, because a broken disk fails every time.
void KvNodeActor::on_cold_failure(const Error& error) {
  if (!std::has_single_bit(++cold_failures)) return;
  parts.log.warn(rt::now_us(self), "cold_store_failure", {{"node", config.node}, {"failures", cold_failures}, {"error", error}});
}

void KvNodeActor::on_room() {
  for (const uint64_t op : pulls_that_wait(Pull::Waits::kForRoom)) {
    fetch_lent(op, true);
    // Later ones wait for their turn, or their limit.
    if (const auto pull = pulls.find(op); pull != pulls.end() && pull->second.waits == Pull::Waits::kForRoom) break;
  }
  for (size_t left = parked.size(); left > 0; --left)
    if (!answer_parked(true)) return;  // the oldest goes first, so the others wait too
}

/// Answers the oldest parked reservation, as try_reserve() does.
bool KvNodeActor::answer_parked(bool may_wait) {
  keep(parked.front().ask.what.owner);  // which may have been released meanwhile
  if (!try_reserve(parked.front().ask, may_wait)) return false;
  parked.pop_front();
  return true;
}

/// An instance whose chunks all wait here computes nothing, so no wait may last.
void KvNodeActor::refuse_parked() {
  while (!parked.empty() && rt::now_us(self) - parked.front().since_us >= kParkedMaxUs) (void)answer_parked(false);
}

void KvNodeActor::on_open(const OpenBlocks& ask) {
  const KvOpening& what = ask.what;
  if (what.lend && !is_connected(ask.reply_to))
    return rt::tell(self, ask.reply_to, KvOpened{.op = what.op, .node = config.node, .epoch = parts.epoch});
  client(ask.reply_to);
  if (what.lend) return open_here(ask);
  // Not an owner of nothing: the directory does not know of it, so its release would not come here.
  if (kept.contains(what.owner)) tiers->pin(what.owner);
  const size_t here_blocks = blocks_here(what);
  const bool pulls_rest = is_worth_fetching(what, here_blocks);
  own_blocks(what, here_blocks, !pulls_rest);
  if (!pulls_rest) return open_here(ask);
  const uint64_t op = next_op++;
  pulls.emplace(op, Pull{.ask = ask, .here = here_blocks});
  find_holders(op);
}

size_t KvNodeActor::blocks_here(const KvOpening& what) const {
  const ProbeResult here = tiers->probe(keys_of(what.blocks));
  return here.dram_blocks + here.cold_blocks;
}

bool KvNodeActor::is_worth_fetching(const KvOpening& what, size_t here) const {
  if (!parts.transport || here == what.blocks.size()) return false;
  const bool is_prompt = what.first_index + what.blocks.size() <= what.prompt_blocks + 1;  // the last block may be a part of one
  if (!is_prompt) return true;
  int64_t missing_tokens = 0;
  for (size_t i = here; i < what.blocks.size(); ++i) missing_tokens += what.blocks[i].tokens;
  return missing_tokens >= config.fetch_tokens_min;
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

/// Makes the request an owner of the first `here` blocks, which it finds here and will not write again. Another request may have
/// written them (responses that begin alike have equal blocks), and its release would free them. `keeps`: as in reserve_part().
void KvNodeActor::own_blocks(const KvOpening& what, size_t here, bool keeps) {
  const size_t prompt_end = std::min(here, prompt_blocks_of(what));
  if (prompt_end > 0) reserve_part(what, 0, prompt_end, keeps);
  if (prompt_end < here) reserve_part(what, prompt_end, here, keeps);
}

/// How many of the blocks belong to the group's prompt; those come first.
size_t KvNodeActor::prompt_blocks_of(const KvOpening& what) {
  return std::clamp<size_t>(what.prompt_blocks, what.first_index, what.first_index + what.blocks.size()) - what.first_index;
}

/// Reserves room for blocks [first, end). Without `keeps` nobody hears that this node has blocks of the request: others may drop
/// theirs then. REQUIRES: all are the group's prompt, or none is.
std::vector<Reservation> KvNodeActor::reserve_part(const KvOpening& what, size_t first, size_t end, bool keeps) {
  const bool prompt = first < prompt_blocks_of(what);
  const KvOwner owner = prompt ? group_of(what.owner) : what.owner;
  if (prompt || keeps) keep(owner);
  if (!prompt) tiers->pin(owner);
  const size_t place = what.first_index + first - (prompt ? 0 : what.prompt_blocks);
  return tiers->reserve(owner, std::span(what.blocks).subspan(first, end - first),
                        {.first_index = static_cast<uint32_t>(place), .prompt = prompt});
}

// ---- blocks of other nodes ---------------------------------------------------------------------------------------------

std::vector<uint64_t> KvNodeActor::pulls_that_wait(Pull::Waits waits) const {
  std::vector<uint64_t> waiting;
  for (const auto& [op, pull] : pulls)
    if (pull.waits == waits) waiting.push_back(op);
  return waiting;
}

void KvNodeActor::find_holders(uint64_t op) {
  if (directory_gone) return end_pull(op);
  Pull& pull = pulls.at(op);
  rt::tell(self, parts.directory, FindHolders{op, config.node, pull.ask.what.owner, handle{self}});
  wait_for_answer(op, kAskTimeoutUs);
}

/// Ends the pull in on_silence() if nothing answers until then.
void KvNodeActor::wait_for_answer(uint64_t op, int64_t timeout_us) {
  pulls.at(op).until_us = rt::now_us(self) + timeout_us;
  rt::tell_after(self, timeout_us, handle{self}, Tick{kPullIsSilent, op});
}

void KvNodeActor::on_holders(const KvHolders& holders) {
  auto it = pulls.find(holders.op);
  if (it == pulls.end() || it->second.waits != Pull::Waits::kForDirectory) return;
  std::vector<KvLender>& sources = it->second.sources;
  sources.assign(holders.sources.rbegin(), holders.sources.rend());
  std::erase_if(sources, [&](const KvLender& source) { return !is_connected(source.handle); });
  ask_next_source(holders.op);
}

void KvNodeActor::ask_next_source(uint64_t op) {
  Pull& pull = pulls.at(op);
  if (pull.sources.empty()) return end_pull(op);
  pull.lender = pull.sources.back();
  pull.sources.pop_back();
  pull.waits = Pull::Waits::kForLender;
  KvOpening wanted = pull.ask.what;
  wanted.op = op;
  wanted.lend = true;
  wanted.blocks.erase(wanted.blocks.begin(), wanted.blocks.begin() + static_cast<ptrdiff_t>(pull.here));
  const KvSource lender = pull.lender.handle;
  rt::tell(self, lender, OpenBlocks{std::move(wanted), handle{self}});
  watch_lender(pull.lender);
  wait_for_answer(op, kLendTimeoutUs);
}

/// Its death is heard of from now on, also if it is gone already.
void KvNodeActor::watch_lender(const KvLender& lender) {
  if (std::ranges::find(lenders, lender.handle, &KvLender::handle) != lenders.end()) return;
  rt::monitor(self, lender.handle);
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
  if (std::erase_if(lenders, [&](const KvLender& lender) { return rt::is_source(message, lender.handle); }) == 0) return;
  const auto gone = std::ranges::find_if(peers, [&](const auto& peer) { return rt::is_source(message, peer.second.handle); });
  if (gone != peers.end()) {
    parts.transport->close_peer(gone->first, gone->second.epoch);
    peers.erase(gone);
  }
  // The transport ends running fetches from it. Others go to the next source.
  std::vector<uint64_t> unfetched;
  for (auto& [op, pull] : pulls) {
    if (pull.waits != Pull::Waits::kForLender && pull.waits != Pull::Waits::kForRoom) continue;
    if (!rt::is_source(message, pull.lender.handle)) continue;
    pull.lent = {};
    unfetched.push_back(op);
  }
  for (const uint64_t op : unfetched) ask_next_source(op);
}

void KvNodeActor::on_lent(const KvOpened& lent) {
  auto it = pulls.find(lent.op);
  const bool is_asked = it != pulls.end() && it->second.waits == Pull::Waits::kForLender && lent.node == it->second.lender.node &&
                        lent.epoch == it->second.lender.epoch;
  if (!is_asked) {  // from a lender that was given up
    const auto from = std::ranges::find_if(lenders, [&](const KvLender& known) { return known.node == lent.node && known.epoch == lent.epoch; });
    if (lent.lease != 0 && from != lenders.end()) rt::tell(self, from->handle, KvClose{lent.lease, {}});
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

/// Fetches what was lent, as far as there is room here. If there is none, the pull waits for it, if it may and room is being made.
void KvNodeActor::fetch_lent(uint64_t op, bool may_wait) {
  Pull& pull = pulls.at(op);
  const KvOpened& lent = pull.lent;
  const KvOpening& what = pull.ask.what;
  bool is_room_coming = false;
  std::vector<Fetch> fetches;
  // Reserves room here for the lent blocks [first, end) of the opening. False: no room is left.
  const auto take = [&](size_t first, size_t end) {
    if (first >= end) return true;
    const std::vector<Reservation> rooms = reserve_part(what, first, end, false);
    for (size_t i = first; i < end; ++i) {
      const Reservation& room = rooms[i - first];
      if (room.state == GrantState::kHere) continue;
      is_room_coming = room.state == GrantState::kLater;
      if (room.state != GrantState::kWrite) return false;
      const KvOpenedBlock& from = lent.blocks[i - pull.here];
      fetches.push_back({{lent.node, lent.epoch, from.slot, from.generation, from.crc32c}, parts.arena->span(room.slot)});
      pull.written.push_back({room.token.value, from.crc32c});
      pull.keys.push_back(what.blocks[i].key);
    }
    return true;
  };
  const size_t end = pull.here + lent.blocks.size();
  const size_t prompt_end = std::clamp(prompt_blocks_of(what), pull.here, end);
  if (take(pull.here, prompt_end)) take(prompt_end, end);
  if (may_wait && fetches.empty() && is_room_coming) {
    const Pull::Waits before = std::exchange(pull.waits, Pull::Waits::kForRoom);
    if (before != Pull::Waits::kForRoom) wait_for_answer(op, kAskTimeoutUs);
    return;
  }
  pull.waits = Pull::Waits::kForBytes;
  start_fetch(pull.lender, std::move(fetches),
              [this, op](uint64_t fetch, const FetchResult& result) { on_fetched(op, fetch, result); });
}

/// Fetches blocks. `done` is called once, with the number of the fetch: soon, or at once if nothing could be started.
void KvNodeActor::start_fetch(const KvLender& from, std::vector<Fetch> fetches, std::function<void(uint64_t, const FetchResult&)> done) {
  const size_t count = fetches.size();
  const uint64_t fetch = next_fetch++;
  if (count == 0) return done(fetch, {});
  Status started = fail(Code::kUnavailable, "node ", from.node, " cannot be opened");
  // The transport may still write after this actor has ended, so its callbacks keep the arena alive.
  if (open_lender(from))
    started = parts.transport->fetch(
        std::move(fetches), config.fetch_timeout_us,
        {.done = [done, fetch, h = handover, arena = parts.arena](FetchResult result) {
           h->put([done, fetch, result = std::move(result)] { done(fetch, result); });
         },
         .quiet = [this, fetch, h = handover, arena = parts.arena] { h->put([this, fetch] { on_quiet(fetch); }); }});
  if (!started.ok()) done(fetch, {std::vector<Status>(count, started)});
}

/// Seals the blocks that came, and notes which ones are corrupt at the lender. The slots of those that did not come are free again, or
/// in `end.written` as long as bytes may still arrive in them. Returns which blocks are here now.
std::vector<BlockKey> KvNodeActor::end_writes(const std::vector<KvWritten>& written, const std::vector<BlockKey>& keys,
                                              const FetchResult& result, LateFetch& end) {
  std::vector<BlockKey> here;
  for (size_t i = 0; i < result.statuses.size(); ++i) {
    const KvWritten& block = written[i];
    if (result.statuses[i].ok()) {
      if (tiers->seal({block.token}, block.crc32c).ok()) here.push_back(keys[i]);
      continue;
    }
    if (result.statuses[i].error().code == Code::kCorrupt) end.close.corrupt.push_back(keys[i]);
    ++fetch_failures;
    if (result.still_writing) {
      tiers->quarantine({block.token});
      end.written.push_back(block);
    } else {
      (void)tiers->abort({block.token});
    }
  }
  return here;
}

void KvNodeActor::on_fetched(uint64_t op, uint64_t fetch, const FetchResult& result) {
  Pull& pull = pulls.at(op);
  pull.lent_end = pull.here + pull.lent.blocks.size();
  LateFetch end{{}, pull.lender.handle, {std::exchange(pull.lent, {}).lease, {}}};
  fetched_blocks += std::ranges::count_if(result.statuses, &Status::ok);
  end_writes(std::exchange(pull.written, {}), std::exchange(pull.keys, {}), result, end);
  end_fetch(fetch, std::move(end), result.still_writing);
  std::vector<uint64_t> waiting = pulls_that_wait(Pull::Waits::kForPull);
  std::erase_if(waiting, [&](uint64_t waits) { return pulls.at(waits).other != op; });
  go_on(op);
  for (const uint64_t waits : waiting) go_on(waits);
}

/// 0: none does. One that waits for another has no blocks under way, so none waits for itself.
uint64_t KvNodeActor::pull_that_fetches(const BlockKey& key) const {
  for (const auto& [op, pull] : pulls)
    if (std::ranges::find(pull.keys, key) != pull.keys.end()) return op;
  return 0;
}

/// What was lent has come, or failed. If all of it is here, the lender may drop its copy of the request's own blocks. It, or another
/// node, may have blocks that are still missing.
void KvNodeActor::go_on(uint64_t op) {
  Pull& pull = pulls.at(op);
  const size_t here = blocks_here(pull.ask.what);
  pull.other = here < pull.lent_end ? pull_that_fetches(pull.ask.what.blocks[here].key) : 0;
  if (pull.other != 0) {
    pull.waits = Pull::Waits::kForPull;
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
  end_pull(op);
}

/// Gives the lease back, now or when the transport no longer touches the slots of the fetch.
void KvNodeActor::end_fetch(uint64_t fetch, LateFetch end, bool still_writing) {
  if (still_writing)
    late_fetches.emplace(fetch, std::move(end));
  else
    rt::tell(self, end.lender, std::move(end.close));
}

/// The transport no longer touches the slots of a late fetch, so they are freed.
void KvNodeActor::on_quiet(uint64_t fetch) {
  const LateFetch late = std::move(late_fetches.extract(fetch).mapped());
  for (const KvWritten& block : late.written) (void)tiers->abort({block.token});
  rt::tell(self, late.lender, late.close);
}

void KvNodeActor::on_tick(const Tick& tick) {
  switch (tick.kind) {
    case kLookAtParked: return refuse_parked();
    case kPullIsSilent: return on_silence(tick.of);
    case kLookAtWaiting: return look_at_waiting();
    case kNoRoomFound:
      if (tick.of == room_question) on_room_found({});
  }
}

/// A lender or the directory did not answer in time, or no room came.
void KvNodeActor::on_silence(uint64_t op) {
  auto it = pulls.find(op);
  if (it == pulls.end() || rt::now_us(self) < it->second.until_us) return;  // it has another question now
  const Pull& pull = it->second;
  switch (pull.waits) {
    case Pull::Waits::kForDirectory: return end_pull(op);
    case Pull::Waits::kForLender: return ask_next_source(op);
    case Pull::Waits::kForRoom: return fetch_lent(op, false);
    case Pull::Waits::kForBytes:
    case Pull::Waits::kForPull: return;  // a fetch has a limit of its own
  }
}

/// Answers the opening with the blocks that are here now.
void KvNodeActor::end_pull(uint64_t op) {
  const Pull pull = std::move(pulls.extract(op).mapped());
  const KvOwner owner = pull.ask.what.owner;
  own_blocks(pull.ask.what, blocks_here(pull.ask.what), true);
  if (!kept.contains(owner)) tiers->release(owner);  // of room for what did not come
  for (const KvLender& lender : pull.emptied) rt::tell(self, lender.handle, KvRelease{.owner = owner, .copied = true});
  open_here(pull.ask);
}

void KvNodeActor::on_close(const KvClose& close) {
  leases.erase(close.lease);
  for (const BlockKey& key : close.corrupt) tiers->report_corrupt(key);
  const auto move = moves.extract(close.lease);
  if (!move.empty() && close.taken.size() < move.mapped().blocks) {
    full_until_us[move.mapped().to.node] = rt::now_us(self) + kFullUs;
    tiers->look_for_away_room();
  }
  (void)tiers->close({close.lease}, close.taken);
  report_room();
}

// ---- blocks that move for lack of room ---------------------------------------------------------------------------------

void KvNodeActor::find_room(int64_t blocks) {
  const int64_t now = rt::now_us(self);
  std::erase_if(full_until_us, [&](const auto& full) { return now >= full.second; });
  FindRoom find{.asking = config.node, .blocks = blocks, .has_cold = tiers->cold_writable(), .except = {}, .reply_to = handle{self}};
  for (const auto& [node, until_us] : full_until_us) find.except.push_back(node);
  room_question = next_op++;
  if (directory_gone) return rt::tell(self, handle{self}, Tick{kNoRoomFound, room_question});
  rt::tell(self, parts.directory, std::move(find));
  rt::tell_after(self, kAskTimeoutUs, handle{self}, Tick{kNoRoomFound, room_question});
}

void KvNodeActor::on_room_found(const KvRoomFound& found) {
  if (room_question == 0) return;  // too late
  room_question = 0;
  if (found.blocks > 0 && !is_connected(found.taker)) {
    full_until_us[found.node] = rt::now_us(self) + kUnreachedUs;
    return find_room(found.blocks);  // of the others
  }
  if (found.blocks > 0) {
    taker = {found.node, found.taker};
    if (std::ranges::find(takers, found.taker) == takers.end()) {
      rt::monitor(self, found.taker);
      takers.push_back(found.taker);
    }
  } else {
    no_room_us = rt::now_us(self);
  }
  tiers->away_room(found.blocks);
}

void KvNodeActor::move_away(const LeavingBlocks& leaving) {
  KvMove move{.lease = leaving.lease.value, .owner = leaving.owner, .blocks = {}, .slots = {}, .first_index = leaving.first_index,
              .prompt = leaving.prompt, .next_use = leaving.next_use, .has_cold = tiers->cold_writable()};
  for (const OpenBlock& b : leaving.blocks) {
    move.blocks.push_back({b.key, b.tokens});
    move.slots.push_back({b.slot, b.generation, b.crc32c});
  }
  moves.emplace(move.lease, Move{taker, move.blocks.size()});
  rt::tell(self, taker.handle, TakeBlocks{std::move(move), {handle{self}, config.node, parts.epoch, address}});
}

void KvNodeActor::on_taker_down(const rt::down& message) {
  if (std::erase_if(takers, [&](const KvTaker& known) { return rt::is_source(message, known); }) == 0) return;
  std::vector<uint64_t> unanswered;
  for (const auto& [lease, move] : moves)
    if (rt::is_source(message, move.to.handle)) unanswered.push_back(lease);
  tiers->look_for_away_room();
  for (const uint64_t lease : unanswered) on_close({lease, {}});
}

/// Takes as many blocks as there is room for. No block of this node leaves for them.
void KvNodeActor::on_take(const TakeBlocks& take) {
  const KvMove& move = take.what;
  Taking taking{.from = take.from, .close = {move.lease, {}}, .written = {}, .keys = {}};
  const KvRoom now = room();
  const auto room_blocks = static_cast<size_t>(!is_connected(take.from.handle) ? 0 : move.has_cold ? now.blocks : now.last_blocks);
  const size_t count = move.slots.size() == move.blocks.size() ? std::min(room_blocks, move.blocks.size()) : 0;
  std::vector<Fetch> fetches;
  if (count > 0) {
    watch_lender(take.from);
    keep(move.owner, true);
    if (kept.at(move.owner)) tiers->set_urgency(move.owner, {.pinned = false, .next_use = move.next_use, .guest = true});
    const auto rooms = tiers->reserve(move.owner, std::span(move.blocks).first(count), {.first_index = move.first_index, .prompt = move.prompt});
    for (size_t i = 0; i < count; ++i) {
      const BlockKey& key = move.blocks[i].key;
      if (rooms[i].state == GrantState::kHere) taking.close.taken.push_back(key);
      if (rooms[i].state != GrantState::kWrite) continue;
      const KvOpenedBlock& from = move.slots[i];
      fetches.push_back({{take.from.node, take.from.epoch, from.slot, from.generation, from.crc32c}, parts.arena->span(rooms[i].slot)});
      taking.written.push_back({rooms[i].token.value, from.crc32c});
      taking.keys.push_back(key);
    }
  }
  start_fetch(take.from, std::move(fetches),
              [this, taking = std::move(taking)](uint64_t fetch, const FetchResult& result) { on_taken(fetch, taking, result); });
}

void KvNodeActor::on_taken(uint64_t fetch, const Taking& taking, const FetchResult& result) {
  LateFetch end{{}, taking.from.handle, taking.close};
  const std::vector<BlockKey> here = end_writes(taking.written, taking.keys, result, end);
  end.close.taken.insert(end.close.taken.end(), here.begin(), here.end());
  guest_blocks += std::ssize(end.close.taken);
  report_room(true);  // before the answer, which may let the other node ask the directory again
  end_fetch(fetch, std::move(end), result.still_writing);
}

/// What this node takes from others now.
KvRoom KvNodeActor::room() const {
  if (!parts.transport) return {.node = config.node};
  const int64_t free = tiers->free_for_writers();
  const bool spills = config.is_kv_only && tiers->cold_writable();
  const double share = !config.is_kv_only ? config.own_share : spills ? config.tiers.free_share : 0;
  const int64_t blocks = std::max<int64_t>(0, free - static_cast<int64_t>(std::ceil(share * parts.arena->slot_count())));
  return {config.node, blocks, spills ? std::max<int64_t>(0, free) : blocks, config.is_kv_only};
}

/// Tells the directory, if the room has changed much or `always`.
void KvNodeActor::report_room(bool always) {
  if (!parts.transport) return;
  const KvRoom now = room();
  const int64_t step = std::max<int64_t>(1, parts.arena->slot_count() / 16);
  if (!always && std::abs(now.last_blocks - told_room.last_blocks) < step) return;
  told_room = now;
  rt::tell(self, parts.directory, now);
}

// ---- clients -----------------------------------------------------------------------------------------------------------

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

/// Until another one is up it answers nothing: then nobody has blocks or room.
void KvNodeActor::on_directory_down(const rt::down& message) {
  if (!rt::is_source(message, parts.directory)) return;
  directory_gone = true;
  for (const uint64_t op : pulls_that_wait(Pull::Waits::kForDirectory)) end_pull(op);
  if (room_question != 0) on_room_found({});
}

void KvNodeActor::announce() {
  rt::monitor(self, parts.directory);
  directory_gone = false;
  rt::tell(self, parts.directory, KvNodeUp{config.node, handle{self}, parts.epoch, address, config.identity});
  report_room(true);
}

void KvNodeActor::on_directory_up(const DirectoryUp& up) {
  parts.directory = up.directory;
  announce();
  for (const auto& [owner, is_guest] : std::map<KvOwner, bool>(kept.begin(), kept.end()))  // sorted: the same run sends the same messages
    rt::tell(self, parts.directory, KvHolds{config.node, owner, is_guest});
  for (const uint64_t op : pulls_that_wait(Pull::Waits::kForDirectory)) find_holders(op);  // the old one died before it answered
}

/// Reports the owner to the directory, once, and again when a guest runs here. From then on the directory sends its release here.
void KvNodeActor::keep(KvOwner owner, bool guest) {
  const auto [known, is_new] = kept.try_emplace(owner, guest);
  const bool comes_home = !is_new && known->second && !guest;
  if (!is_new && !comes_home) return;
  if (comes_home) tiers->set_urgency(owner, {});
  known->second = guest;
  rt::tell(self, parts.directory, KvHolds{config.node, owner, guest});
}

KvNodeReport KvNodeActor::report() const {
  const KvTiersStats s = tiers->stats();
  const ColdStoreStats cold = tiers->cold_stats();
  const auto is_of_request = [](const auto& keeps) { return keeps.first != group_of(keeps.first); };
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
          .moved_bytes = s.moved_blocks * parts.arena->block_bytes(),
          .guest_bytes = guest_blocks * parts.arena->block_bytes(),
          .fetch_failures = fetch_failures,
          .kept_requests = std::ranges::count_if(kept, is_of_request),
          .peers = std::move(from),
          .cold_cpu_us = cold.cpu_us,
          .cold_failures = s.cold_errors + s.cold_full};
}

}  // namespace seer
