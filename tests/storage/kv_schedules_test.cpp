// Random schedules of a KV node: owners, writers, readers, the cold store and the weights act in any allowed order, and the
// real KvTiers is compared after each step with a slow, obvious model. Most races need few blocks, so a schedule is short, its
// node small, and there are many of them.
//
// A failure names its schedule. SEER_KV_SEED=S runs that one alone and prints its steps; SEER_KV_SCHEDULES=N runs 0 to N-1.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "protocols/hash.h"
#include "protocols/number_from_environment.h"
#include "protocols/text.h"
#include "storage/kv_model.h"
#include "storage/kv_tiers.h"
#include "storage/loose_cold_store.h"

using namespace seer;

namespace {

constexpr int64_t kBlockBytes = 64;
constexpr uint64_t kOwners = 4;        // owners 2k and 2k+1 share their first blocks, the prompt
constexpr uint32_t kPromptBlocks = 2;
constexpr uint32_t kChainBlocks = 4;   // of an owner at most
constexpr uint32_t kBlockTokens = 16;

/// A promise was broken; what() says which.
struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};
template <class... Ts>
void promise(bool kept, const Ts&... what) {
  if (!kept) [[unlikely]] throw Broken(cat(what...));
}

/// What the engine would have computed: a function of the key alone.
std::array<std::byte, kBlockBytes> content(const BlockKey& key) {
  std::array<uint64_t, kBlockBytes / 8> words;
  for (size_t i = 0; i < words.size(); ++i) words[i] = hash_pair(key.prefix.hi ^ (key.version.value << 32), key.prefix.lo + i);
  return std::bit_cast<std::array<std::byte, kBlockBytes>>(words);
}

/// What all schedules together came across: a race that never happens proves nothing.
struct Coverage {
  std::map<std::string, int64_t> counts;
  void add(const KvTiersStats& s) {
    for (const auto& [name, count] : std::initializer_list<std::pair<const char*, int64_t>>{
             {"sealed", s.sealed}, {"aborted", s.aborted}, {"stale completions", s.stale_completions},
             {"told later", s.later_blocks}, {"refused", s.refused_blocks}, {"spilled", s.spilled_bytes},
             {"promoted", s.promoted_bytes}, {"dropped", s.dropped_blocks}, {"corrupt", s.corrupt_blocks},
             {"cold errors", s.cold_errors}, {"moved", s.moved_blocks}, {"cold full", s.cold_full}, {"opens cut", s.open_cut}})
      counts[name] += count;
  }
};

class Schedule {
 public:
  Schedule(uint64_t seed, bool prints_steps, Coverage& coverage)
      : dice_(seed), prints_steps_(prints_steps), coverage_(coverage), slots_(2 + static_cast<uint32_t>(dice_.below(5))) {
    arena_ = *HostArena::create({.dram_bytes = slots_ * kBlockBytes, .block_bytes = kBlockBytes});
    users_.resize(slots_);
    std::unique_ptr<LooseColdStore> cold;
    if (!dice_.one_in(5)) {
      cold = std::make_unique<LooseColdStore>(
          LooseColdStoreConfig{.capacity_blocks = 1 + static_cast<int64_t>(dice_.below(12)),
                               .queue_max = 1 + dice_.below(4),
                               .fault_percent = dice_.one_in(3) ? 15u : 0u},
          dice_,
          LooseColdStore::Watch{.begins = [this](const ColdBlock& b, bool is_get) { cold_begins(b, is_get); },
                                .ends = [this](const ColdBlock& b, bool is_get) { cold_ends(b, is_get); },
                                .found_corrupt = [this](const ColdBlock& b) { found_corrupt(b); }});
      store_ = cold.get();
    }
    const KvTiersConfig config{.spill_batch_bytes = static_cast<int64_t>(1 + dice_.below(3)) * kBlockBytes,
                               .spill_batches_max = 1 + static_cast<int32_t>(dice_.below(2)),
                               .reads_max = 1 + static_cast<int32_t>(dice_.below(3)),
                               .free_share = dice_.one_in(2) ? 0.0 : 0.3,
                               .reads_ahead = dice_.one_in(2),
                               .cold_retry_reserves = 1 + static_cast<int32_t>(dice_.below(8)),
                               .opens_max = 1 + static_cast<int32_t>(dice_.below(4))};
    KvTiersHooks hooks{.post = [this](auto fn) { mailbox_.push_back(std::move(fn)); },
                       .room = [this] { waits_for_room_ = false; },
                       .lost = [this](const BlockKey& key) { lost(key); }};
    if (dice_.one_in(2)) {
      hooks.find_away_room = [this](int64_t blocks) {
        promise(!room_asked_, "room elsewhere is asked for twice");
        promise(blocks > 0, "room elsewhere is asked for ", blocks, " blocks");
        room_asked_ = true;
      };
      hooks.move_away = [this](const LeavingBlocks& leaving) { begin_move(leaving); };
    }
    tiers_ = std::make_unique<KvTiers>(config, arena_, std::move(cold), std::move(hooks));
    tiers_->bump_version({1});
    // Not all acts in every schedule: where nobody releases, say, the node fills up.
    for (const Act act : kActs) {
      const uint64_t weight = dice_.below(4);
      for (uint64_t i = 0; i < weight; ++i) acts_.push_back(act);
    }
    for (const Act act : {&Schedule::reserve, &Schedule::end_write, &Schedule::go_on, &Schedule::go_on}) acts_.push_back(act);
  }

  void run() {
    const uint64_t steps = 15 + dice_.below(50);
    for (; step_ < steps; ++step_) {
      (this->*acts_[dice_.below(acts_.size())])();
      check();
    }
    if (dice_.one_in(8))
      die();
    else
      finish();
  }
  uint64_t step() const { return step_; }

 private:
  using Act = void (Schedule::*)();
  static const std::array<Act, 15> kActs;

  struct Write {
    Reservation grant;
    BlockRef ref;
  };
  struct Asked {  // an open that was not answered yet
    std::vector<BlockKey> keys;
    size_t readable = 0;  // at most this many can come
    size_t at_once = 0;   // at least this many do, unless the weights change
    WeightVersion version;
    bool is_old = false;  // the weights had changed before
  };
  struct Users {  // of a slot
    bool writer = false;
    int readers = 0, cold_reads = 0, cold_writes = 0;  // cold_writes: a get of the cold store fills the slot
  };

  // ---- acts ---------------------------------------------------------------------------------------------------------------

  void reserve() {
    const OwnerId owner = any_owner();
    std::vector<BlockRef> chain = chain_of(owner, some_version());
    uint32_t first = static_cast<uint32_t>(dice_.below(chain.size()));
    chain.erase(chain.begin(), chain.begin() + first);
    if (dice_.one_in(30)) ++first;                   // a wrong place
    if (dice_.one_in(30)) chain.back().tokens += 1;  // a wrong length
    const bool had_room = arena_->free_count() > 0 && asked_.empty();
    std::vector<bool> in_use;
    for (const BlockRef& ref : chain) in_use.push_back(may_be_in_use(ref.key));
    const auto answers = tiers_->reserve(owner, chain, {.first_index = first, .prompt = dice_.one_in(5)});
    promise(answers.size() == chain.size(), "reserve answered ", answers.size(), " of ", chain.size(), " blocks");
    if (prints_steps_) print(cat("reserve owner=", owner.value, " first=", first, " blocks=", chain.size()), answers);

    bool stopped = false;
    for (size_t i = 0; i < chain.size(); ++i) {
      const BlockKey& key = chain[i].key;
      const KvModel::Held* held = model_.find(key);  // an earlier block of the chain may have replaced it
      const uint32_t index = first + static_cast<uint32_t>(i);
      switch (answers[i].state) {
        case GrantState::kWrite:
          promise(!stopped, "block ", key, " was granted after one that was not");
          promise(held == nullptr || lost_.contains(key), "block ", key, " is here and was granted again");
          begin_write(answers[i], chain[i]);
          lost_.erase(key);
          model_.forget(key);
          model_.retain(owner, chain[i], index);
          break;
        case GrantState::kHere:
          promise(held != nullptr, "block ", key, " is said to be here and is not");
          promise(held->index == index && held->tokens == chain[i].tokens, "block ", key, " differs from the one asked for");
          model_.retain(owner, chain[i], index);
          break;
        case GrantState::kLater:
          waits_for_room_ = true;
          [[fallthrough]];
        case GrantState::kRefused:
          promise(stopped || !had_room || i > 0 || held != nullptr || in_use[i] || key.version < tiers_->version(),
                  "block ", key, " got no slot, but one is free");
          promise(held == nullptr || lost_.contains(key) || held->index != index || held->tokens != chain[i].tokens,
                  "block ", key, " is here and was not given to its owner");
          stopped = true;
      }
    }
    settle();
  }

  void begin_write(const Reservation& grant, const BlockRef& ref) {
    promise(ref.key.version >= tiers_->version(), "block ", ref.key, " of old weights was granted");
    promise(tokens_.insert(grant.token).second, "token ", grant.token, " was given twice");
    promise(grant.generation == arena_->generation(grant.slot), "slot ", grant.slot, " has another generation");
    Users& users = users_.at(grant.slot);
    promise(!users.writer && users.readers == 0 && users.cold_reads == 0 && users.cold_writes == 0, "slot ", grant.slot,
            " was granted for ", ref.key, " while somebody uses it");
    users.writer = true;
    writes_.push_back({grant, ref});
  }

  /// A writer fills its slot bit by bit, also after its block was given up.
  void scribble() {
    if (writes_.empty()) return;
    const Write& write = writes_[dice_.below(writes_.size())];
    std::ranges::fill(arena_->span(write.grant.slot).first(kBlockBytes / 2), std::byte{0xaa});
  }

  void end_write() {
    if (writes_.empty()) return;
    const size_t at = dice_.below(writes_.size());
    const Write write = writes_[at];
    writes_.erase(writes_.begin() + static_cast<std::ptrdiff_t>(at));
    promise(arena_->generation(write.grant.slot) == write.grant.generation, "slot ", write.grant.slot, " was freed while written");
    const KvModel::Held* held = model_.find(write.ref.key);
    const bool is_wanted = held != nullptr && !held->sealed;
    if (!is_wanted) ++coverage_.counts["writes that ended after their block was given up"];
    users_.at(write.grant.slot).writer = false;
    old_tokens_.push_back(write.grant.token);
    if (dice_.one_in(5)) {
      print("abort ", write.ref.key, " slot=", write.grant.slot);
      promise(tiers_->abort(write.grant.token).ok(), "the abort of token ", write.grant.token, " was refused");
      model_.forget(write.ref.key);
    } else {
      print("seal ", write.ref.key, " slot=", write.grant.slot);
      const auto bytes = content(write.ref.key);
      std::ranges::copy(bytes, arena_->span(write.grant.slot).begin());
      sealing_ = write.ref.key;
      const Status sealed = tiers_->seal(write.grant.token, crc32c(bytes));
      sealing_.reset();
      promise(sealed.ok() == is_wanted, "the seal of ", write.ref.key, sealed.ok() ? " was" : " was not", " accepted");
      promise(sealed.ok() || sealed.error().code == Code::kStale, "a late seal was not told that it is stale");
      if (is_wanted) model_.seal(write.ref.key);
    }
    settle();
  }

  /// The writer's machine is gone or its transfer failed: its bytes may still arrive.
  void quarantine() {
    if (writes_.empty()) return;
    const Write& write = writes_[dice_.below(writes_.size())];
    print("quarantine ", write.ref.key, " slot=", write.grant.slot);
    tiers_->quarantine(write.grant.token);
    // Its key may belong to nobody by now, but to no other writer: the slot is still taken.
    model_.forget(write.ref.key);
    settle();
  }

  /// A completion that comes a second time, or for a write that never was.
  void repeat_completion() {
    WriteToken token{1'000'000};
    if (!old_tokens_.empty()) token = old_tokens_[dice_.below(old_tokens_.size())];
    print("completes token ", token, " again");
    const int which = static_cast<int>(dice_.below(3));
    if (which == 0) promise(!tiers_->seal(token, 12345).ok(), "a second seal of token ", token, " was accepted");
    if (which == 1) promise(!tiers_->abort(token).ok(), "a second abort of token ", token, " was accepted");
    if (which == 2) tiers_->quarantine(token);
    if (!old_leases_.empty())
      promise(!tiers_->close(old_leases_[dice_.below(old_leases_.size())]).ok(), "a second close of a lease was accepted");
    settle();
  }

  void open() {
    const OwnerId owner = any_owner();
    const WeightVersion version = some_version();
    std::vector<BlockKey> keys;
    for (const BlockRef& ref : chain_of(owner, version)) keys.push_back(ref.key);
    size_t at_once = 0;
    while (at_once < keys.size() && tiers_->probe(std::span(keys).first(at_once + 1)).dram_blocks == at_once + 1) ++at_once;
    const uint64_t id = ++opens_;
    asked_[id] = {keys, model_.readable_prefix(keys), at_once, version, version < tiers_->version()};
    print("open ", id, " owner=", owner.value, " ", keys.front(), " blocks=", keys.size());
    tiers_->open(owner, keys, [this, id](OpenResult result) { opened(id, std::move(result)); });
    promise(asked_.contains(id), "open was answered from inside");
    settle();
  }

  void opened(uint64_t id, OpenResult result) {
    promise(!died_, "open ", id, " was answered by a node that is gone");
    const auto node = asked_.extract(id);
    promise(!node.empty(), "open ", id, " was answered twice");
    const Asked& asked = node.mapped();
    print("opened ", id, " blocks=", result.blocks.size(), result.status.ok() ? "" : " stale");
    if (!result.status.ok()) {
      promise(asked.version < tiers_->version(), "open ", id, " is stale with the weights of today");
      promise(result.blocks.empty(), "a stale open has blocks");
      ++coverage_.counts["stale opens"];
      return;
    }
    promise(!asked.is_old, "open ", id, " of old weights is not stale");
    promise(result.blocks.size() <= asked.readable, "open ", id, " found ", result.blocks.size(), " blocks of ", asked.readable);
    promise(result.blocks.size() >= asked.at_once, "open ", id, " found ", result.blocks.size(), " of ", asked.at_once, " in DRAM");
    promise((result.lease.value == 0) == result.blocks.empty(), "open ", id, " has a lease of nothing, or none");
    for (size_t i = 0; i < result.blocks.size(); ++i) {
      const OpenBlock& block = result.blocks[i];
      promise(block.key == asked.keys[i], "open ", id, " got ", block.key, " for ", asked.keys[i]);
      ++users_.at(block.slot).readers;
      check_bytes(block);
    }
    if (!result.blocks.empty()) reads_.push_back(std::move(result));
  }

  void check_bytes(const OpenBlock& block) {
    const auto bytes = content(block.key);
    const auto slot = arena_->span(block.slot);
    promise(arena_->generation(block.slot) == block.generation, "slot ", block.slot, " was freed while read");
    promise(!users_.at(block.slot).writer && users_.at(block.slot).cold_writes == 0, "slot ", block.slot, " is read and written");
    promise(block.crc32c == crc32c(bytes), "block ", block.key, " has another block's checksum");
    promise(std::ranges::equal(slot, bytes) || flipped_.contains({block.slot, block.generation}), "slot ", block.slot,
            " does not have the bytes of ", block.key);
  }

  void end_read() {
    if (reads_.empty()) return;
    const size_t at = dice_.below(reads_.size());
    const OpenResult result = std::move(reads_[at]);
    reads_.erase(reads_.begin() + static_cast<std::ptrdiff_t>(at));
    for (const OpenBlock& block : result.blocks) {
      check_bytes(block);
      if (crc32c(arena_->span(block.slot)) == block.crc32c) continue;
      print("reports corrupt ", block.key);
      tiers_->report_corrupt(block.key);
      settle();
    }
    print("close ", result.blocks.front().key, " blocks=", result.blocks.size());
    for (const OpenBlock& block : result.blocks) --users_.at(block.slot).readers;
    promise(tiers_->close(result.lease).ok(), "the close of lease ", result.lease, " was refused");
    old_leases_.push_back(result.lease);
    settle();
  }

  /// A bit of a sealed block flips in DRAM.
  void flip() {
    if (reads_.empty() || !dice_.one_in(4)) return;
    const OpenBlock& block = reads_[dice_.below(reads_.size())].blocks.front();
    print("flips a bit of ", block.key);
    arena_->span(block.slot)[dice_.below(kBlockBytes)] ^= std::byte{4};
    flipped_.insert({block.slot, block.generation});
  }

  void release() {
    const OwnerId owner = any_owner();
    print("release owner=", owner.value);
    tiers_->release(owner);
    note_deaths([&](const BlockKey&, const KvModel::Held& held) { return held.owners == std::set{owner}; });
    model_.release(owner);
    guests_.erase(owner);
    settle();
  }

  void set_urgency() {
    const OwnerId owner = any_owner();
    const bool guest = dice_.one_in(4);
    guests_.erase(owner);
    if (guest) guests_.insert(owner);
    tiers_->set_urgency(owner, {.pinned = dice_.one_in(3), .next_use = dice_.below(4), .guest = guest});
    settle();
  }

  // ---- another machine ------------------------------------------------------------------------------------------------------

  void answer_room() {
    if (!room_asked_) {
      if (dice_.one_in(4)) tiers_->look_for_away_room();
      return settle();
    }
    room_asked_ = false;
    away_blocks_ = static_cast<int64_t>(dice_.below(4));
    print("room elsewhere for ", away_blocks_);
    tiers_->away_room(away_blocks_);
    settle();
  }

  void begin_move(const LeavingBlocks& leaving) {
    print("owner=", leaving.owner.value, " leaves from ", leaving.first_index, " blocks=", leaving.blocks.size());
    promise(!leaving.blocks.empty(), "no blocks leave");
    promise(std::ssize(leaving.blocks) <= away_blocks_, leaving.blocks.size(), " blocks leave for ", away_blocks_, " places");
    away_blocks_ -= std::ssize(leaving.blocks);
    promise(!guests_.contains(leaving.owner), "a guest leaves");
    for (size_t i = 0; i < leaving.blocks.size(); ++i) {
      const OpenBlock& block = leaving.blocks[i];
      const KvModel::Held* held = model_.find(block.key);
      promise(held != nullptr && held->index == leaving.first_index + i, "block ", block.key, " leaves and is not there");
      promise(held->sealed || sealing_ == block.key, "block ", block.key, " leaves and is not sealed");
      promise(held->owners.contains(leaving.owner), "block ", block.key, " of others leaves");
      check_bytes(block);
      ++users_.at(block.slot).readers;
    }
    moves_.push_back(leaving);
  }

  /// The other machine has taken some of the blocks.
  void end_move() {
    if (moves_.empty()) return;
    const size_t at = dice_.below(moves_.size());
    const LeavingBlocks leaving = std::move(moves_[at]);
    moves_.erase(moves_.begin() + static_cast<std::ptrdiff_t>(at));
    std::vector<BlockKey> taken;
    for (const OpenBlock& block : leaving.blocks) {
      check_bytes(block);
      --users_.at(block.slot).readers;
      if (!dice_.one_in(4)) taken.push_back(block.key);
    }
    if (dice_.one_in(20)) taken.push_back(block(999, 0, tiers_->version(), kBlockTokens).key);  // one that never left
    print("the other machine took ", taken.size(), " of ", leaving.blocks.size());
    promise(tiers_->close(leaving.lease, taken).ok(), "the close of lease ", leaving.lease, " was refused");
    old_leases_.push_back(leaving.lease);
    for (const BlockKey& key : taken) {
      const KvModel::Held* held = model_.find(key);
      if (held == nullptr || !held->sealed || lost_.contains(key)) continue;
      const ProbeResult found = tiers_->probe(std::span(&key, 1));
      if (found.dram_blocks + found.cold_blocks > 0) {
        promise(held->owners.size() > 1 || may_be_in_use(key), "block ", key, " was taken and is still here");
        ++coverage_.counts["taken, but wanted by now"];
        continue;
      }
      promise(held->owners.size() == 1, "block ", key, " of several owners was given up");
      promise(!is_read(key), "block ", key, " was given up while it is read");
      model_.forget(key);
    }
    settle();
  }

  void bump_version() {
    if (!dice_.one_in(3)) return;
    const WeightVersion next{tiers_->version().value + 1};
    print("bump_version ", next);
    tiers_->bump_version(next);
    note_deaths([&](const BlockKey& key, const KvModel::Held&) { return key.version < next; });
    model_.forget_below(next);
    const auto holds = [&](OwnerId owner) {
      return std::ranges::any_of(model_.blocks(), [&](const auto& entry) { return entry.second.owners.contains(owner); });
    };
    std::erase_if(guests_, [&](OwnerId owner) { return !holds(owner); });  // owners without blocks are forgotten
    settle();
  }

  /// One posted function, or a piece of work of the cold store.
  void go_on() { (void)one_step(dice_.one_in(2)); }

  bool one_step(bool mailbox_first) {
    const auto posted = [&] {
      if (mailbox_.empty()) return false;
      print("runs what was posted");
      auto fn = std::move(mailbox_.front());
      mailbox_.pop_front();
      fn();
      settle();
      return true;
    };
    const auto stored = [&] { return store_ != nullptr && store_->step(); };
    return mailbox_first ? posted() || stored() : stored() || posted();
  }

  // ---- the cold store ------------------------------------------------------------------------------------------------------

  Users& users_of(const ColdBlock& block) {
    return users_.at(static_cast<size_t>((block.bytes.data() - arena_->span(0).data()) / kBlockBytes));
  }
  void cold_begins(const ColdBlock& block, bool is_get) {
    Users& users = users_of(block);
    promise(!users.writer && users.cold_writes == 0, "the cold store got the slot of ", block.key, " while it is written");
    promise(!is_get || (users.readers == 0 && users.cold_reads == 0), "the cold store fills the slot of ", block.key,
            " while it is read");
    ++(is_get ? users.cold_writes : users.cold_reads);
  }
  void cold_ends(const ColdBlock& block, bool is_get) { --(is_get ? users_of(block).cold_writes : users_of(block).cold_reads); }
  void found_corrupt(const ColdBlock& block) {
    const auto slot = static_cast<uint32_t>((block.bytes.data() - arena_->span(0).data()) / kBlockBytes);
    promise(flipped_.contains({slot, arena_->generation(slot)}), "block ", block.key, " changed while it was spilled");
  }

  // ---- what must hold -------------------------------------------------------------------------------------------------------

  /// Blocks that are gone with this call. They leave the model when the call has been dealt with.
  void lost(const BlockKey& key) {
    promise(model_.find(key) != nullptr, "block ", key, " was lost, but nobody had it");
    promise(lost_.insert(key).second, "block ", key, " was lost twice");
    print("lost ", key);
  }
  void settle() {
    for (const BlockKey& key : lost_) model_.forget(key);
    lost_.clear();
  }

  template <class Dies>
  void note_deaths(const Dies& dies) {
    for (const auto& [key, held] : model_.blocks()) {
      if (!dies(key, held)) continue;
      if (!held.sealed) ++coverage_.counts["died while written"];
      if (store_ != nullptr && store_->is_busy_with(key)) ++coverage_.counts["died while spilled or promoted"];
      if (is_read(key)) ++coverage_.counts["died while read"];
    }
  }
  bool is_read(const BlockKey& key) const {
    return std::ranges::any_of(reads_, [&](const OpenResult& read) {
      return std::ranges::any_of(read.blocks, [&](const OpenBlock& b) { return b.key == key; });
    });
  }
  /// Keys that a writer or a reader is at.
  std::set<BlockKey> keys_used() const {
    std::set<BlockKey> keys;
    for (const Write& write : writes_) keys.insert(write.ref.key);
    for (const OpenResult& read : reads_)
      for (const OpenBlock& block : read.blocks) keys.insert(block.key);
    for (const LeavingBlocks& leaving : moves_)
      for (const OpenBlock& block : leaving.blocks) keys.insert(block.key);
    return keys;
  }
  /// The same, or an open on its way may get it, the cold store is at it, or its completion may be posted.
  bool may_be_in_use(const BlockKey& key) const {
    const auto asks = [&](const auto& open) { return std::ranges::find(open.second.keys, key) != open.second.keys.end(); };
    return !mailbox_.empty() || keys_used().contains(key) || std::ranges::any_of(asked_, asks) ||
           (store_ != nullptr && store_->is_busy_with(key));
  }

  void check() {
    tiers_->check_invariants();
    const KvTiersStats stats = tiers_->stats();
    const WeightVersion version = tiers_->version();
    // Memory: what is taken belongs to a block that is held, or that died in use.
    int64_t dead_used = 0, written = 0;
    for (const BlockKey& key : keys_used()) dead_used += model_.find(key) == nullptr ? 1 : 0;
    for (const auto& [key, held] : model_.blocks()) written += held.sealed ? 0 : 1;
    const int64_t quarantined = stats.dram_quarantined_bytes / kBlockBytes, taken = stats.dram_used_bytes / kBlockBytes;
    promise(taken <= slots_, taken, " slots are taken of ", slots_);
    promise(quarantined >= dead_used, quarantined, " blocks are in quarantine, ", dead_used, " died in use");
    promise(taken >= written + quarantined, taken, " slots for ", written, " writers and ", quarantined, " in quarantine");
    promise(taken <= std::ssize(model_.blocks()) + quarantined, taken, " slots for ", model_.blocks().size(), " held blocks");
    if (mailbox_.empty() && asked_.empty() && (store_ == nullptr || store_->open_count() == 0))
      promise(quarantined == dead_used, quarantined, " blocks are in quarantine, but only ", dead_used, " are in use");
    for (uint32_t slot = 0; slot < slots_; ++slot) {
      const Users& users = users_[slot];
      const bool in_use = users.writer || users.readers > 0 || users.cold_reads > 0 || users.cold_writes > 0;
      promise(!in_use || arena_->is_taken(slot), "slot ", slot, " is free and in use");
    }
    // Content: a reader would find exactly what is held, and nothing of other weights.
    std::vector<BlockKey> keys;
    for (const BlockRef& ref : whole_chain(dice_.below(kOwners), version)) keys.push_back(ref.key);
    const ProbeResult found = tiers_->probe(keys);
    promise(found.dram_blocks + found.cold_blocks == model_.readable_prefix(keys), found.dram_blocks, " + ", found.cold_blocks,
            " blocks are found of ", model_.readable_prefix(keys), " that are held, from ", keys.front());
    if (mailbox_.empty() && moves_.empty() && !room_asked_ && (store_ == nullptr || store_->is_idle())) check_idle(stats);
  }

  /// No work is under way: nobody may be waiting for it.
  void check_idle(const KvTiersStats& stats) {
    promise(asked_.empty() || !reads_.empty(), asked_.size(), " opens wait for nothing");
    if (store_ != nullptr)
      promise(stats.cold_used_bytes == static_cast<int64_t>(store_->block_count()) * kBlockBytes, "the cold store has ",
              store_->block_count(), " blocks, the tiers count ", stats.cold_used_bytes, " bytes");
  }

  void run_all() {
    for (int steps = 0; one_step(dice_.one_in(2)); ++steps) {
      check();
      promise(steps < 10'000, "work without end");
    }
  }

  /// Until no block is read or leaves, and nobody asks for room elsewhere. An end of one may let another begin.
  void end_reads_and_moves() {
    run_all();
    while (!reads_.empty() || !moves_.empty() || room_asked_) {
      while (!reads_.empty()) end_read();
      if (room_asked_) answer_room();
      end_move();
      run_all();
    }
  }

  /// Everybody ends and lets go: nothing is left.
  void finish() {
    while (!writes_.empty()) end_write();
    end_reads_and_moves();
    promise(!waits_for_room_, "who was told later is not told of room");
    for (uint64_t owner = 0; owner < kOwners; ++owner) tiers_->release({owner});
    model_ = {};
    end_reads_and_moves();  // a release frees room, so blocks of owners that were not released yet may have begun to leave
    promise(tiers_->is_drained(), "something is left");
    promise(arena_->taken_count() == 0, arena_->taken_count(), " slots are left");
    promise(store_ == nullptr || store_->block_count() == 0, "the cold store keeps blocks");
    coverage_.add(tiers_->stats());
  }

  /// The node goes with all that is under way. What was posted comes after it.
  void die() {
    coverage_.add(tiers_->stats());
    print("dies");
    tiers_.reset();
    store_ = nullptr;
    died_ = true;
    while (one_step(true)) {
    }
    ++coverage_.counts["died with work under way"];
  }

  // ---- what the schedule is made of ------------------------------------------------------------------------------------------

  OwnerId any_owner() { return {dice_.below(kOwners)}; }
  /// Mostly today's; also the one before, and one that the node has not heard of yet.
  WeightVersion some_version() {
    const uint64_t today = tiers_->version().value;
    const uint64_t version = dice_.one_in(12) ? today + dice_.below(3) - 1 : today;
    return {std::max<uint64_t>(version, 1)};
  }
  static BlockRef block(uint64_t tag, uint32_t index, WeightVersion version, uint32_t tokens) {
    // Equal prefixes in all versions: only the version tells their blocks apart.
    return {{version, 3, {hash_pair(tag, index), tag * 100 + index}}, tokens};
  }
  static std::vector<BlockRef> whole_chain(uint64_t owner, WeightVersion version) {
    std::vector<BlockRef> chain;
    for (uint32_t i = 0; i < kChainBlocks; ++i)
      chain.push_back(block(i < kPromptBlocks ? 1000 + owner / 2 : owner, i, version, kBlockTokens));
    return chain;
  }
  /// The first blocks of the owner's chain, sometimes with a partial one at the end.
  std::vector<BlockRef> chain_of(OwnerId owner, WeightVersion version) {
    auto chain = whole_chain(owner.value, version);
    chain.resize(1 + dice_.below(kChainBlocks));
    if (chain.size() > 1 && dice_.one_in(4))
      chain.back() = block(500 + owner.value, static_cast<uint32_t>(chain.size()) - 1, version, 5);
    return chain;
  }

  template <class... Ts>
  void print(const Ts&... what) const {
    if (prints_steps_) std::printf("%4d %s\n", static_cast<int>(step_), cat(what...).c_str());
  }
  void print(const std::string& what, const std::vector<Reservation>& answers) const {
    std::string line = what;
    for (const Reservation& answer : answers)
      line += answer.state == GrantState::kWrite ? cat(" slot ", answer.slot)
                                            : std::array{"", " here", " later", " refused"}[static_cast<size_t>(answer.state)];
    print(line);
  }

  Dice dice_;
  const bool prints_steps_;
  Coverage& coverage_;
  const uint32_t slots_;
  uint64_t step_ = 0;
  std::vector<Act> acts_;
  KvModel model_;
  std::vector<Write> writes_;          // not ended
  std::vector<OpenResult> reads_;      // not closed
  std::map<uint64_t, Asked> asked_;
  std::vector<Users> users_;           // by slot
  std::set<BlockKey> lost_;            // by the call under way
  std::set<WriteToken> tokens_;
  std::vector<WriteToken> old_tokens_;
  std::vector<LeaseId> old_leases_;
  std::vector<LeavingBlocks> moves_;   // not ended
  std::set<OwnerId> guests_;
  bool room_asked_ = false;
  std::optional<BlockKey> sealing_;    // by the call under way
  int64_t away_blocks_ = 0;            // how many more may leave
  std::set<std::pair<uint32_t, uint64_t>> flipped_;  // slot and generation
  uint64_t opens_ = 0;
  bool waits_for_room_ = false, died_ = false;
  std::deque<std::function<void()>> mailbox_;
  std::shared_ptr<HostArena> arena_;
  LooseColdStore* store_ = nullptr;
  std::unique_ptr<KvTiers> tiers_;
};

const std::array<Schedule::Act, 15> Schedule::kActs{
    &Schedule::reserve,  &Schedule::scribble, &Schedule::end_write, &Schedule::quarantine,   &Schedule::repeat_completion,
    &Schedule::open,     &Schedule::open,     &Schedule::end_read,  &Schedule::flip,         &Schedule::release,
    &Schedule::set_urgency, &Schedule::bump_version, &Schedule::go_on, &Schedule::end_move, &Schedule::answer_room};

/// While it lives, a check of the source that fails (it aborts) names the schedule too.
class NamedAbort {
 public:
  NamedAbort() : before_(std::signal(SIGABRT, on_abort)) {}
  ~NamedAbort() { std::signal(SIGABRT, before_); }
  void set_seed(uint64_t seed) {
    const std::string text = cat("SEER_KV_SEED=", seed, " prints the steps\n");
    text_[text.copy(text_, sizeof(text_) - 1)] = 0;
  }

 private:
  static void on_abort(int signal) {
    (void)!::write(STDERR_FILENO, text_, std::strlen(text_));
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  inline static char text_[64] = "";
  void (*before_)(int);
};

}  // namespace

TEST_CASE("kv schedules: no random schedule of owners, writers, readers, faults and weights breaks the protocol") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr uint64_t kSchedules = 20'000;  // ten times slower
#else
  constexpr uint64_t kSchedules = 200'000;
#endif
  const auto alone = number_from_environment("SEER_KV_SEED");
  const uint64_t first = alone.value_or(0);
  const uint64_t end = alone ? first + 1 : number_from_environment("SEER_KV_SCHEDULES").value_or(kSchedules);
  Coverage coverage;
  NamedAbort named_abort;
  for (uint64_t seed = first; seed < end; ++seed) {
    named_abort.set_seed(seed);
    Schedule schedule(seed, alone.has_value(), coverage);
    try {
      schedule.run();
    } catch (const Broken& broken) {
      FAIL("step ", schedule.step(), ": ", std::string(broken.what()), " (SEER_KV_SEED=", seed, " prints the steps)");
    }
  }
  if (end - first < 10'000) return;
  for (const std::string race :
       {"sealed", "aborted", "stale completions", "told later", "refused", "spilled", "promoted", "dropped", "corrupt",
        "cold errors", "cold full", "opens cut", "stale opens", "died while written", "died while spilled or promoted",
        "died while read", "died with work under way", "moved", "taken, but wanted by now", "writes that ended after their block was given up"}) {
    CAPTURE(race);
    CHECK(coverage.counts[race] > static_cast<int64_t>(end - first) / 10'000);
  }
}
