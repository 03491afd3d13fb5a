// Handover: how other threads (a cold store, a transport, the links to servers) give work to the actor that asked for theirs. Each
// function that is put sends the actor a WorkReady, and it calls what it then takes. Shared, because those threads may finish after the
// actor has ended.
#pragma once
#include <functional>
#include <memory>
#include <utility>

#include "protocols/actors.h"
#include "protocols/workers.h"

namespace seer {

using Handover = Outbox<std::function<void()>>;

template <class State>
std::shared_ptr<Handover> make_handover(rt::self_ptr<State> self) {
  return std::make_shared<Handover>(rt::waker<State>(self, [](const typename State::handle& me) { rt::post(me, WorkReady{}); }));
}

/// A callback for other threads: it hands f and its arguments over.
template <class... Args, class F>
std::function<void(Args...)> later(const std::shared_ptr<Handover>& to, F f) {
  return [to, f = std::move(f)](Args... args) {
    to->put([f, ... held = std::move(args)]() mutable { f(std::move(held)...); });
  };
}

}  // namespace seer
