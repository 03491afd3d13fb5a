// RecentSet: the last values that were put into it, `max` at most. Single owner, not thread-safe.
#pragma once
#include <algorithm>
#include <cstddef>
#include <deque>
#include <set>

namespace seer {

template <class T>
class RecentSet {
 public:
  explicit RecentSet(size_t max) : max_(max) {}

  /// What is in it already keeps its place.
  void insert(const T& value) {
    if (!values_.insert(value).second) return;
    order_.push_back(value);
    if (values_.size() <= max_) return;
    values_.erase(order_.front());
    order_.pop_front();
  }
  /// Goes through all of them.
  void erase(const T& value) {
    if (values_.erase(value) > 0) order_.erase(std::ranges::find(order_, value));
  }
  bool contains(const T& value) const { return values_.contains(value); }
  size_t size() const { return values_.size(); }

 private:
  const size_t max_;
  std::set<T> values_;
  std::deque<T> order_;  // the same, oldest first
};

}  // namespace seer
