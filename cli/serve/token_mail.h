// TokenMail: tokens of requests on their way from the gateway's thread to the server's. Those that come for one response while the
// server's thread is busy are joined, so that it has fewer events to write the further it is behind. Used by Front. Thread-safe.
#pragma once
#include <cstdint>
#include <deque>
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
  /// True: it begins a bag, so somebody must take() once more.
  bool put(Letter letter) {
    const std::lock_guard lock(mutex_);
    const bool begins = std::exchange(is_closed_, false) || bags_.empty();
    if (begins) {
      bags_.emplace_back();
      last_.clear();
    }
    std::vector<Letter>& letters = bags_.back();
    const auto [last, is_new] = last_.try_emplace({letter.ticket, letter.sample}, letters.size());
    if (!is_new && goes_on(letters[last->second], letter)) {
      letters[last->second].part.output.append(letter.part.output);
      return begins;
    }
    last->second = letters.size();
    letters.push_back(std::move(letter));
    return begins;
  }
  /// What is put from now on goes into another bag: it must not overtake what its owner is told now.
  void close_bag() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  /// The first bag, each response's tokens in order. REQUIRES: called once for each that put() began.
  std::vector<Letter> take() {
    const std::lock_guard lock(mutex_);
    std::vector<Letter> letters = std::move(bags_.front());
    bags_.pop_front();
    return letters;
  }

 private:
  static bool goes_on(const Letter& before, const Letter& next) {
    return next.version == before.version && next.part.first_index == before.part.first_index + std::ssize(before.part.output.ids);
  }

  std::mutex mutex_;  // guards all
  std::deque<std::vector<Letter>> bags_;
  std::map<std::pair<Ticket, uint32_t>, size_t> last_;  // in the last bag: the last letter of each response
  bool is_closed_ = false;                              // the last bag
};

}  // namespace seer
