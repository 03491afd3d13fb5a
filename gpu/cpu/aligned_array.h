// AlignedArray: a fixed-size array of plain values, zeroed, aligned to 64 bytes. Large ones, and those from an arena, lie in
// huge pages. Move-only owner.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "gpu/cpu/huge_pages.h"
#include "protocols/check.h"

namespace seer {

template <class T>
class AlignedArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedArray() = default;
  /// Aborts if the system lacks the memory.
  explicit AlignedArray(size_t size, PageArena* arena = nullptr) {
    if (!arena) {
      SEER_CHECK(allocate(size), size);
      return;
    }
    PageArena::Piece piece = arena->take(size * sizeof(T));
    pages_ = std::move(piece.pages);
    data_ = reinterpret_cast<T*>(piece.data);
    size_ = size;
  }
  /// An empty array if the system lacks the memory.
  static AlignedArray try_make(size_t size) {
    AlignedArray array;
    array.allocate(size);
    return array;
  }
  ~AlignedArray() {
    if (!pages_) std::free(data_);
  }
  AlignedArray(AlignedArray&& other) noexcept { swap(other); }
  AlignedArray& operator=(AlignedArray&& other) noexcept {
    swap(other);
    return *this;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  bool allocate(size_t size) {
    if (size == 0) return true;
    if (size > (size_t{1} << 46) / sizeof(T)) return false;
    const size_t bytes = (size * sizeof(T) + 63) / 64 * 64;
    if (bytes < HugePages::kPageBytes) {
      data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
      if (data_) std::memset(data_, 0, bytes);
    } else {
      pages_ = HugePages::try_map(bytes);
      if (pages_) data_ = reinterpret_cast<T*>(pages_->data());
    }
    size_ = data_ ? size : 0;
    return data_ != nullptr;
  }
  void swap(AlignedArray& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(pages_, other.pages_);
  }

  T* data_ = nullptr;
  size_t size_ = 0;
  std::shared_ptr<HugePages> pages_;  // null: from the heap
};

}  // namespace seer
