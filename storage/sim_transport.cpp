#include "storage/sim_transport.h"

#include <algorithm>
#include <utility>

namespace seer {

SimTransport::SimTransport(SimTransportConfig config, Schedule schedule)
    : config_(std::move(config)), schedule_(std::move(schedule)) {}

SimTransport::~SimTransport() {
  while (!open_.empty()) give_up(open_.begin()->first, fail(Code::kCancelled, "the transport was closed"));
}

Status SimTransport::fetch(std::vector<Fetch> fetches, int64_t timeout_us, FetchEvents events) {
  if (open_.size() >= config_.queue_max) return fail(Code::kFull, "transport: ", open_.size(), " fetches are open");
  int64_t bytes = 0;
  for (const Fetch& f : fetches) bytes += static_cast<int64_t>(f.to.size());
  const int64_t late_us = config_.late_us ? config_.late_us() : 0;
  const int64_t sent_us = fetches.empty() ? 0 : wire_us(fetches.front().from.node, fetches.front().to, bytes);
  const int64_t us = config_.latency_us + sent_us + late_us;
  const int64_t block_us = fetches.empty() ? 0 : alone_us(static_cast<int64_t>(fetches.front().to.size()));
  const int64_t silent_us = config_.latency_us + block_us + late_us;  // before its last block; before that, others come
  const uint64_t id = ++last_id_;
  open_.emplace(id, Operation{std::move(fetches), std::move(events)});
  const auto after = [&](int64_t delay_us, auto then) {
    schedule_(delay_us, [this, then, alive = std::weak_ptr<bool>(alive_)] {
      if (!alive.expired()) then();
    });
  };
  after(us, [this, id] { arrive(id); });
  if (silent_us > timeout_us) after(us - silent_us + timeout_us, [this, id, timeout_us] { expire(id, timeout_us); });
  return {};
}

int64_t SimTransport::wire_us(NodeId from, std::span<const std::byte> to, int64_t bytes) {
  if (!config_.now_us) return alone_us(bytes);
  const int64_t now_us = config_.now_us();
  const auto passed_us = [&](int64_t& until_us) { return until_us = std::max(until_us, now_us) + alone_us(bytes); };
  int64_t end_us = passed_us(sends_until_us_[from]);
  if (const auto node = arenas_.node_of(to)) end_us = std::max(end_us, passed_us(receives_until_us_[*node]));
  return end_us - now_us;
}

void SimTransport::arrive(uint64_t id) {
  auto node = open_.extract(id);
  if (node.empty()) return;  // given up
  Operation& operation = node.mapped();
  FetchResult result;
  for (const Fetch& f : operation.fetches) {
    const std::optional<Code> fault = config_.fault ? config_.fault(f.from) : std::nullopt;
    result.statuses.push_back(fault ? Status(fail(*fault, "transport: simulated fault")) : arenas_.copy(f));
  }
  if (operation.late)
    operation.events.quiet();
  else
    operation.events.done(std::move(result));
}

void SimTransport::expire(uint64_t id, int64_t timeout_us) {
  const auto it = open_.find(id);
  if (it == open_.end()) return;
  Operation& operation = it->second;
  operation.late = true;
  FetchResult result{.statuses = {}, .still_writing = true};
  for (const Fetch& f : operation.fetches) result.statuses.push_back(late_fetch(f.from.node, timeout_us));
  operation.events.done(std::move(result));
}

void SimTransport::give_up(uint64_t id, const Error& why) {
  auto node = open_.extract(id);
  Operation& operation = node.mapped();
  if (operation.late)
    operation.events.quiet();
  else
    operation.events.done({std::vector<Status>(operation.fetches.size(), why)});
}

void SimTransport::close_peer(NodeId node, uint64_t epoch) {
  if (!arenas_.close_peer(node, epoch)) return;
  std::vector<uint64_t> gone;
  for (const auto& [id, operation] : open_)
    if (!operation.fetches.empty() && operation.fetches.front().from.node == node) gone.push_back(id);
  for (const uint64_t id : gone) give_up(id, fail(Code::kUnavailable, "transport: node ", node, " was closed"));
}

}  // namespace seer
