// HugePages, PageArena: memory of the system in huge pages. A core that streams weights or KV from small pages waits for
// their addresses. Measured on two cores of an AMD EPYC (Zen 4), which read matrices of 1 MiB one after the other: 26 to 28
// GB/s from small pages, 31 to 33 from huge ones.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "protocols/check.h"

namespace seer {

/// A mapping of zeroed memory that begins at a huge page; small pages where the system has no huge ones. Pages are taken
/// when first written. Owner.
class HugePages {
 public:
  static constexpr size_t kPageBytes = size_t{2} << 20;

  /// Null if the system lacks the memory.
  static std::shared_ptr<HugePages> try_map(size_t bytes) {
    const size_t mapped_bytes = bytes + kPageBytes;  // what is too much around it takes no memory
    void* mapped = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    std::shared_ptr<HugePages> pages(new HugePages(mapped, mapped_bytes));
    ::madvise(pages->data(), bytes, MADV_HUGEPAGE);
    return pages;
  }
  ~HugePages() { ::munmap(mapped_, mapped_bytes_); }
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;

  std::byte* data() const {
    const auto address = reinterpret_cast<uintptr_t>(mapped_);
    return static_cast<std::byte*>(mapped_) + (kPageBytes - address % kPageBytes) % kPageBytes;
  }

 private:
  HugePages(void* mapped, size_t mapped_bytes) : mapped_(mapped), mapped_bytes_(mapped_bytes) {}

  void* const mapped_;
  const size_t mapped_bytes_;
};

/// Gives arrays that are made and freed together, such as the weights of a model, one after the other from the same huge
/// pages, so that small ones have them too. Not thread-safe.
class PageArena {
 public:
  struct Piece {
    std::shared_ptr<HugePages> pages;  // keeps it
    std::byte* data;
  };
  /// `bytes` of zeros, aligned to 64. Aborts if the system lacks the memory.
  Piece take(size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    if (!pages_ || bytes > bytes_ - taken_) {
      bytes_ = std::max(kMappingBytes, (bytes + HugePages::kPageBytes - 1) / HugePages::kPageBytes * HugePages::kPageBytes);
      pages_ = HugePages::try_map(bytes_);
      SEER_CHECK(pages_, bytes_);
      taken_ = 0;
    }
    taken_ += bytes;
    return {pages_, pages_->data() + taken_ - bytes};
  }

 private:
  static constexpr size_t kMappingBytes = size_t{32} << 20;

  std::shared_ptr<HugePages> pages_;
  size_t bytes_ = 0, taken_ = 0;  // of pages_
};

}  // namespace seer
