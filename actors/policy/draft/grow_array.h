// GrowArray: a flat array of trivially copyable values that grows at its end. A large one is its own mapping, which grows by
// moving its pages instead of copying them. So the old and the new array are never resident together, memory after the last
// value is not resident, and appending has no long pauses. Memory goes back to the system at once, or in steps through a
// PageBin. Used by the draft tree, which keeps a group in a handful of these. Single owner, not thread-safe.
//
// PageBin: mappings of arrays that nobody needs any more. Returning pages to the system takes time for each page, so the bin
// returns a bounded number at a time. Pages that it still holds are resident and count as memory in use.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "protocols/check.h"

namespace seer {

class PageBin {
 public:
  static constexpr size_t kPageBytes = 4096;

  PageBin() = default;
  PageBin(const PageBin&) = delete;
  PageBin& operator=(const PageBin&) = delete;
  ~PageBin() { release(bytes_); }

  /// Takes a mapping. REQUIRES: `bytes` is a whole number of pages.
  void put(void* data, size_t bytes) {
    if (bytes == 0) return;
    mappings_.push_back({static_cast<char*>(data), bytes});
    bytes_ += bytes;
  }
  void put_all(PageBin& other) {
    for (const Mapping& mapping : std::exchange(other.mappings_, {})) put(mapping.data, mapping.bytes);
    other.bytes_ = 0;
  }
  /// Returns pages to the system: at most bytes_max of them, rounded up to a page.
  void release(size_t bytes_max) {
    size_t left = (bytes_max + kPageBytes - 1) / kPageBytes * kPageBytes;
    while (left > 0 && !mappings_.empty()) {
      Mapping& last = mappings_.back();
      const size_t part = left < last.bytes ? left : last.bytes;
      last.bytes -= part;
      munmap(last.data + last.bytes, part);
      if (last.bytes == 0) mappings_.pop_back();
      bytes_ -= part;
      left -= part;
    }
  }
  size_t bytes() const { return bytes_; }

 private:
  struct Mapping {
    char* data;
    size_t bytes;
  };
  std::vector<Mapping> mappings_;
  size_t bytes_ = 0;  // of all mappings
};

template <class T>
class GrowArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  GrowArray() = default;
  GrowArray(GrowArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  GrowArray& operator=(GrowArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~GrowArray() { release(); }

  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }  // in use
  /// Empties the array. Its pages go to the bin; memory too small for a mapping is freed here.
  void give_up(PageBin& bin) {
    if (const size_t mapped = mapped_bytes(capacity_); mapped > 0) {
      const size_t resident = (bytes() + PageBin::kPageBytes - 1) / PageBin::kPageBytes * PageBin::kPageBytes;
      char* const data = static_cast<char*>(static_cast<void*>(data_));
      if (resident < mapped) munmap(data + resident, mapped - resident);
      bin.put(data, resident);
    } else {
      std::free(static_cast<void*>(data_));
    }
    data_ = nullptr;
    size_ = capacity_ = 0;
  }

  void push_back(T value) {
    if (size_ == capacity_) [[unlikely]]
      grow(size_ + 1);
    data_[size_++] = value;
  }
  /// Adds `count` values at the end; returns the index of the first.
  size_t add(size_t count, T value) {
    if (size_ + count > capacity_) [[unlikely]]
      grow(size_ + count);
    const size_t first = size_;
    for (; size_ < first + count; ++size_) data_[size_] = value;
    return first;
  }

 private:
  static constexpr size_t kMappedBytesMin = 256 << 10;
  static size_t mapped_bytes(size_t capacity) {  // 0: on the heap
    const size_t bytes = capacity * sizeof(T);
    return bytes < kMappedBytesMin ? 0 : (bytes + PageBin::kPageBytes - 1) / PageBin::kPageBytes * PageBin::kPageBytes;
  }

  void grow(size_t size_min) {
    const size_t capacity = size_min + size_min / 2 + 8;
    const size_t old_bytes = mapped_bytes(capacity_), new_bytes = mapped_bytes(capacity);
    void* grown = nullptr;
    if (new_bytes == 0) {
      grown = std::realloc(static_cast<void*>(data_), capacity * sizeof(T));
    } else if (old_bytes > 0) {
      grown = mremap(static_cast<void*>(data_), old_bytes, new_bytes, MREMAP_MAYMOVE);
    } else {
      grown = mmap(nullptr, new_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (grown != MAP_FAILED && size_ > 0) std::memcpy(grown, static_cast<void*>(data_), bytes());
      std::free(static_cast<void*>(data_));
    }
    SEER_CHECK(grown != nullptr, capacity, sizeof(T));
    SEER_CHECK(grown != MAP_FAILED, capacity, sizeof(T));
    data_ = static_cast<T*>(grown);
    capacity_ = capacity;
  }
  void release() {
    if (const size_t bytes = mapped_bytes(capacity_); bytes > 0)
      munmap(static_cast<void*>(data_), bytes);
    else
      std::free(static_cast<void*>(data_));
  }

  T* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace seer
