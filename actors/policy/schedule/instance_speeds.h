// InstanceSpeeds: how long each instance takes per token of a request, learned while a rollout runs. Used by ChunkLedger. Pure; time is
// passed in. Single owner, not thread-safe.
//
// What counts is what a request sees, so an instance that runs many at a time is slower here. Old times count less: whenever
// kSpeedWindowTokens more tokens have come, what came before counts half. An instance that gets no requests, for example since it was slow
// once, is unknown again after kSpeedForgottenUs.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "protocols/ids.h"

namespace seer {

inline constexpr int64_t kSpeedTokensLeast = 32;     // before these, an instance's speed is not known
inline constexpr int64_t kSpeedWindowTokens = 1024;
inline constexpr int64_t kSpeedForgottenUs = 30'000'000;

class InstanceSpeeds {
 public:
  /// A request there got `tokens` more in us microseconds.
  void add(InstanceId instance, int64_t tokens, int64_t us, int64_t now_us);
  /// Forgets instances of which nothing was added for kSpeedForgottenUs, and returns them. Looks once a second.
  std::vector<InstanceId> forget_old(int64_t now_us);
  void remove(InstanceId instance) { seen_.erase(instance); }
  /// Microseconds per token; 0: not known.
  double token_us(InstanceId instance) const;

 private:
  struct Seen {
    double tokens = 0, us = 0;
    int64_t until_halved = kSpeedWindowTokens;
    int64_t added_us = 0;
  };
  std::map<InstanceId, Seen> seen_;
  int64_t looked_us_ = 0;
};

}  // namespace seer
