#include "actors/kv_owners.h"

#include <algorithm>
#include <map>
#include <span>

namespace seer {

KvOwners::KvOwners(rt::self_of<KvNodeHandle> self, KvNodeUp me, KvTiers& tiers, KvDirectoryHandle directory)
    : self_(self), me_(std::move(me)), tiers_(tiers), directory_(std::move(directory)) {
  announce();
}

void KvOwners::announce() {
  rt::monitor(self_, directory_);
  KvNodeUp up = me_;
  up.handle = KvNodeHandle{self_};
  tell_directory(std::move(up));
}

void KvOwners::directory_up(KvDirectoryHandle directory) {
  directory_ = std::move(directory);
  directory_gone_ = false;
  announce();
}

void KvOwners::tell_all() {
  for (const auto& [owner, is_guest] : std::map<KvOwner, bool>(kept_.begin(), kept_.end()))  // sorted: the same run sends the same messages
    tell_directory(KvHolds{me_.node, owner, is_guest});
}

bool KvOwners::directory_down(const rt::down& message) {
  if (!rt::is_source(message, directory_)) return false;
  directory_gone_ = true;
  return true;
}

void KvOwners::keep(KvOwner owner, bool guest) {
  const auto [known, is_new] = kept_.try_emplace(owner, guest);
  const bool comes_home = !is_new && known->second && !guest;
  if (!is_new && !comes_home) return;
  if (comes_home) tiers_.set_urgency(owner, {});
  known->second = guest;
  tell_directory(KvHolds{me_.node, owner, guest});
}

int64_t KvOwners::request_count() const {
  return std::ranges::count_if(kept_, [](const auto& kept) { return kept.first != group_of(kept.first); });
}

void KvOwners::own(const KvOpening& what, size_t here, bool keeps) {
  const size_t prompt_end = std::min(here, prompt_blocks_of(what));
  if (prompt_end > 0) reserve(what, 0, prompt_end, keeps);
  if (prompt_end < here) reserve(what, prompt_end, here, keeps);
}

std::vector<Reservation> KvOwners::reserve(const KvOpening& what, size_t first, size_t end, bool keeps) {
  const bool prompt = first < prompt_blocks_of(what);
  const KvOwner owner = prompt ? group_of(what.owner) : what.owner;
  if (prompt || keeps) keep(owner);
  if (!prompt) tiers_.pin(owner);
  const size_t place = what.first_index + first - (prompt ? 0 : what.prompt_blocks);
  return tiers_.reserve(owner, std::span(what.blocks).subspan(first, end - first),
                        {.first_index = static_cast<uint32_t>(place), .prompt = prompt});
}

size_t prompt_blocks_of(const KvOpening& what) {
  return std::clamp<size_t>(what.prompt_blocks, what.first_index, what.first_index + what.blocks.size()) - what.first_index;
}

}  // namespace seer
