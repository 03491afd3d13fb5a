// AlignedArray: a fixed-size array of plain values, zeroed, aligned to 64 bytes. Large ones are mapped, so that pages
// are taken when first written, and ask for huge pages. Move-only owner.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "protocols/check.h"

namespace seer {

template <class T>
class AlignedArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedArray() = default;
  explicit AlignedArray(size_t size) { SEER_CHECK(allocate(size), size); }
  /// An empty array if the system lacks the memory.
  static AlignedArray try_make(size_t size) {
    AlignedArray array;
    array.allocate(size);
    return array;
  }
  ~AlignedArray() {
    if (mapped_bytes_ > 0)
      ::munmap(data_, mapped_bytes_);
    else
      std::free(data_);
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
  static constexpr size_t kHugePage = size_t{2} << 20;

  bool allocate(size_t size) {
    if (size == 0) return true;
    if (size > (size_t{1} << 46) / sizeof(T)) return false;
    size_t bytes = (size * sizeof(T) + 63) / 64 * 64;
    if (bytes < kHugePage) {
      data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
      if (data_) std::memset(data_, 0, bytes);
    } else {
      void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (mapped != MAP_FAILED) {
        ::madvise(mapped, bytes, MADV_HUGEPAGE);
        data_ = static_cast<T*>(mapped);
        mapped_bytes_ = bytes;
      }
    }
    size_ = data_ ? size : 0;
    return data_ != nullptr;
  }
  void swap(AlignedArray& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
  }

  T* data_ = nullptr;
  size_t size_ = 0;
  size_t mapped_bytes_ = 0;  // 0: from the heap
};

}  // namespace seer
