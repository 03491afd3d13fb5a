#include "actors/kv_fetches.h"

#include <algorithm>
#include <utility>

namespace seer {

KvFetches::KvFetches(rt::self_of<KvNodeHandle> self, KvFetchesParts parts, KvTiers& tiers)
    : self_(self), parts_(std::move(parts)), tiers_(tiers) {}

void KvFetches::watch(const KvLender& lender) {
  if (std::ranges::find(watched_, lender.handle, &KvLender::handle) != watched_.end()) return;
  rt::monitor(self_, lender.handle);
  watched_.push_back(lender);
}

const KvLender* KvFetches::find(NodeId node, uint64_t epoch) const {
  const auto it = std::ranges::find_if(watched_, [&](const KvLender& known) { return known.node == node && known.epoch == epoch; });
  return it == watched_.end() ? nullptr : &*it;
}

bool KvFetches::lender_down(const rt::down& message) {
  if (std::erase_if(watched_, [&](const KvLender& lender) { return rt::is_source(message, lender.handle); }) == 0) return false;
  const auto gone = std::ranges::find_if(peers_, [&](const auto& peer) { return rt::is_source(message, peer.second.handle); });
  if (gone != peers_.end()) {
    parts_.transport->close_peer(gone->first, gone->second.epoch);
    peers_.erase(gone);
  }
  return true;
}

/// True: blocks can be fetched from it. Opens it every time, which is cheap: the transport may have lost it meanwhile.
bool KvFetches::open_lender(const KvLender& lender) {
  if (!parts_.transport->open_peer(lender.node, lender.epoch, lender.address).ok()) return false;
  KvLender& known = peers_[lender.node];
  if (known.handle != lender.handle)
    parts_.log.info(rt::now_us(self_), "kv_peer_opened",
                    {{"node", parts_.node}, {"peer", lender.node}, {"transport", parts_.transport->peer_info(lender.node)}});
  known = lender;
  return true;
}

void KvFetches::start(const KvLender& from, const std::vector<Copy>& copies, KvClose close, Events events) {
  const uint64_t fetch = next_++;
  running_.emplace(fetch, Running{from.handle, copies, std::move(close), std::move(events)});
  if (copies.empty()) return on_done(fetch, {});
  std::vector<Fetch> fetches;
  for (const Copy& copy : copies)
    fetches.push_back({{from.node, from.epoch, copy.from.slot, copy.from.generation, copy.from.crc32c}, parts_.arena->span(copy.slot)});
  Status started = fail(Code::kUnavailable, "node ", from.node, " cannot be opened");
  // The transport may still write after this actor has ended, so its callbacks keep the arena alive.
  if (open_lender(from))
    started = parts_.transport->fetch(
        std::move(fetches), parts_.timeout_us,
        {.done = [this, fetch, h = parts_.handover, arena = parts_.arena](FetchResult result) {
           h->put([this, fetch, result = std::move(result)] { on_done(fetch, result); });
         },
         .quiet = [this, fetch, h = parts_.handover, arena = parts_.arena] { h->put([this, fetch] { on_quiet(fetch); }); }});
  if (!started.ok()) on_done(fetch, {std::vector<Status>(copies.size(), started)});
}

void KvFetches::on_done(uint64_t fetch, const FetchResult& result) {
  auto entry = running_.extract(fetch);
  Running& ended = entry.mapped();
  std::vector<BlockKey> here;
  const std::vector<Copy> copies = std::exchange(ended.copies, {});
  for (size_t i = 0; i < copies.size(); ++i) {
    const Copy& copy = copies[i];
    if (result.statuses[i].ok()) {
      if (tiers_.seal(copy.token, copy.from.crc32c).ok()) here.push_back(copy.key);
      continue;
    }
    if (result.statuses[i].error().code == Code::kCorrupt) ended.close.corrupt.push_back(copy.key);
    ++failures_;
    if (result.still_writing) {
      tiers_.quarantine(copy.token);
      ended.copies.push_back(copy);
    } else {
      (void)tiers_.abort(copy.token);
    }
  }
  const Events events = std::move(ended.events);
  if (events.ending) events.ending(here, ended.close);
  if (result.still_writing)
    running_.insert(std::move(entry));
  else
    rt::tell(self_, ended.lender, std::move(ended.close));
  if (events.ended) events.ended(here.size());
}

/// The transport no longer touches the slots of a late fetch.
void KvFetches::on_quiet(uint64_t fetch) {
  auto entry = running_.extract(fetch);
  Running& late = entry.mapped();
  for (const Copy& copy : late.copies) (void)tiers_.abort(copy.token);
  rt::tell(self_, late.lender, std::move(late.close));
}

std::vector<std::string> KvFetches::lender_texts() const {
  std::vector<std::string> texts;
  for (const auto& [node, lender] : peers_) texts.push_back(cat("node ", node, ": ", parts_.transport->peer_info(node)));
  return texts;
}

}  // namespace seer
