// BodyRoom: bounds the memory of request bodies that are being read, of all connections together. Bodies for which there is no room
// wait in order of arrival. Used by http_server. Not thread-safe.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

namespace seer {

class BodyRoom {
 public:
  explicit BodyRoom(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  /// Calls `read` as soon as there is room for the body: before it returns, or in a later call of leave(). Returns the body's number,
  /// which is never 0. A body larger than bytes_max is read alone. REQUIRES: `read` does not call leave().
  uint64_t enter(uint64_t bytes, std::function<void()> read) {
    waiting_.emplace(++last_, Waiting{std::min(bytes, bytes_max_), std::move(read)});
    let_in();
    return last_;
  }
  bool waits(uint64_t number) const { return waiting_.contains(number); }
  /// The body needs no room any more, whether it waits or is read. Ignored if it has left before.
  void leave(uint64_t number) {
    waiting_.erase(number);
    if (const auto body = reading_.extract(number); !body.empty()) used_ -= body.mapped();
    let_in();
  }
  uint64_t used() const { return used_; }

 private:
  struct Waiting {
    uint64_t bytes = 0;
    std::function<void()> read;
  };

  void let_in() {
    while (!waiting_.empty() && used_ + waiting_.begin()->second.bytes <= bytes_max_) {
      const auto next = waiting_.extract(waiting_.begin());
      used_ += next.mapped().bytes;
      reading_.emplace(next.key(), next.mapped().bytes);
      next.mapped().read();
    }
  }

  const uint64_t bytes_max_;
  uint64_t used_ = 0, last_ = 0;
  std::map<uint64_t, Waiting> waiting_;   // by number
  std::map<uint64_t, uint64_t> reading_;  // bytes by number
};

}  // namespace seer
