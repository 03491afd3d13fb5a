#include "actors/draft_server_actor.h"

#include <utility>

namespace seer {

DraftServerActor::DraftServerActor(rt::self_ptr<DraftServerActor> self_in, DraftServerConfig config_in)
    : self(self_in), config(config_in), logs(config_in.logs) {
  SEER_CHECK(config.logs.past_tokens_max <= config.answer_tokens_max, config.logs.past_tokens_max);  // fits in an answer
  report.node = config.node;
}

DraftServerActor::handle::behavior_type DraftServerActor::make_behavior() {
  rt::tell_after(self, config.expire_us, handle{self}, Tick{});
  return {
      [this](const RegisterGroups& these) {
        logs.register_groups(these.groups, these.ttl_us, rt::now_us(self));
      },
      [this](RegisterPast& past) { logs.set_past(std::move(past.past)); },
      [this](const DropGroup& over) { logs.drop(over.group); },
      [this](const UpdateCst& update) { on_update(update); },
      [this](const FetchCst& fetch) { on_fetch(fetch); },
      [this](const GetReport&) { return make_report(); },
      [this](const Tick&) { on_tick(); },
  };
}

void DraftServerActor::on_update(const UpdateCst& update) {
  const int64_t now = rt::now_us(self);
  for (const CstTokens& part : update.parts) report.appended_tokens += logs.append(part, now);
}

void DraftServerActor::on_fetch(const FetchCst& fetch) {
  CstFetched answer{.server = config.node, .parts = {}, .wanted = {}};
  const int64_t now = rt::now_us(self);
  int64_t tokens = 0;
  for (const CstCursor& cursor : fetch.groups)
    tokens += logs.fetch(cursor, config.answer_tokens_max - tokens, now, answer);
  ++report.fetches;
  report.fetched_tokens += tokens;
  rt::tell(self, fetch.reply_to, std::move(answer));
}

void DraftServerActor::on_tick() {
  report.expired_groups += logs.expire(rt::now_us(self));
  rt::tell_after(self, config.expire_us, handle{self}, Tick{});
}

DraftServerReport DraftServerActor::make_report() const {
  DraftServerReport now = report;
  now.groups = static_cast<int64_t>(logs.group_count());
  now.tokens = logs.token_count();
  now.bytes = logs.bytes();
  now.crowded_groups = logs.crowded_groups();
  return now;
}

}  // namespace seer
