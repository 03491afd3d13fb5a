// BodyRoom: bounds the memory of request bodies that are being read, of all connections together. Bodies that find no room wait for it,
// in their order. Used by http_server. Not thread-safe.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

namespace seer {

class BodyRoom {
 public:
  explicit BodyRoom(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  /// Calls `read` once there is room for a body of so many bytes: now or in a later call of leave(). It returns false if the body is no
  /// longer wanted. Else leave() has to follow. A body larger than all room is read alone.
  void enter(uint64_t bytes, std::function<bool()> read) {
    waiting_.push_back({bytes, std::move(read)});
    let_in();
  }
  /// The body no longer takes memory.
  void leave(uint64_t bytes) {
    used_ -= taken_by(bytes);
    let_in();
  }
  uint64_t used() const { return used_; }

 private:
  struct Waiting {
    uint64_t bytes = 0;
    std::function<bool()> read;
  };
  uint64_t taken_by(uint64_t bytes) const { return std::min(bytes, bytes_max_); }

  void let_in() {
    while (!waiting_.empty() && used_ + taken_by(waiting_.front().bytes) <= bytes_max_) {
      const Waiting next = std::move(waiting_.front());
      waiting_.pop_front();
      used_ += taken_by(next.bytes);  // before the call, which may lead to leave()
      if (!next.read()) used_ -= taken_by(next.bytes);
    }
  }

  const uint64_t bytes_max_;
  uint64_t used_ = 0;
  std::deque<Waiting> waiting_;  // at most one for each connection, and those that closed since
};

}  // namespace seer
