// TokenMail: tokens of requests on their way from the gateway's thread to the server's. Those that come for one response while the
// server's thread is busy are joined, so that it has fewer events to write the further it is behind. Used by Front. Thread-safe.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "actors/gateway_actor.h"

namespace seer {

class TokenMail {
 public:
  struct Letter {
    Ticket ticket;
    uint32_t sample = 0;
    CommittedTokens part;
    WeightVersion version;  // of the weights that made them
  };
  /// True: nothing waited, so somebody must take() it.
  bool put(Letter letter) {
    const std::lock_guard lock(mutex_);
    const bool is_first = letters_.empty();
    const auto [last, is_new] = last_.try_emplace({letter.ticket, letter.sample}, letters_.size());
    if (!is_new && goes_on(letters_[last->second], letter)) {
      append(letter.part, letters_[last->second].part);
      return false;
    }
    last->second = letters_.size();
    letters_.push_back(std::move(letter));
    return is_first;
  }
  /// All that was put, each response's in order.
  std::vector<Letter> take() {
    const std::lock_guard lock(mutex_);
    last_.clear();
    return std::exchange(letters_, {});
  }

 private:
  static bool goes_on(const Letter& before, const Letter& next) {
    return next.version == before.version && next.part.first_index == before.part.first_index + std::ssize(before.part.tokens);
  }
  static void append(const CommittedTokens& part, CommittedTokens& to) {
    to.tokens.insert(to.tokens.end(), part.tokens.begin(), part.tokens.end());
    to.logprobs.insert(to.logprobs.end(), part.logprobs.begin(), part.logprobs.end());
    to.kept_ids.append(part.kept_ids);
  }

  std::mutex mutex_;  // guards all
  std::vector<Letter> letters_;
  std::map<std::pair<Ticket, uint32_t>, size_t> last_;  // the last letter of each response
};

}  // namespace seer
