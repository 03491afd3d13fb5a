// InstanceSpeeds: how long each instance takes per token of a request, learned while a rollout runs. Used by ChunkLedger. Pure; time is
// passed in. Single owner, not thread-safe.
//
// What counts is what a request sees, so an instance that runs many at a time is slower here. Old times count less: whenever
// kSpeedWindowTokens more tokens have come, what came before counts half.
#pragma once
#include <cstdint>
#include <map>

#include "protocols/ids.h"

namespace seer {

inline constexpr int64_t kSpeedTokensLeast = 32;     // before these, an instance's speed is not known
inline constexpr int64_t kSpeedWindowTokens = 1024;

class InstanceSpeeds {
 public:
  /// A request there got `tokens` more in us microseconds.
  void add(InstanceId instance, int64_t tokens, int64_t us);
  void remove(InstanceId instance) { seen_.erase(instance); }
  /// Microseconds per token; 0: not known.
  double token_us(InstanceId instance) const;

 private:
  struct Seen {
    double tokens = 0, us = 0;
    int64_t until_halved = kSpeedWindowTokens;
  };
  std::map<InstanceId, Seen> seen_;
};

}  // namespace seer
