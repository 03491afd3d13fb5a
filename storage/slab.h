// Slab: one piece of memory for KV blocks, with its registrations at devices and networks. HostArena cuts it into slots.
//
// Who allocates it depends on the machine: the system (map_slab), a network library whose peers on the same host can then
// map it too (UCX), or a GPU driver. Others register it: CUDA pins it, so that copies to and from a GPU overlap with
// kernels; a network card gets its keys. One allocates, then any number register:
//
//   make_slab(bytes, {.allocate = ucx.slab_allocator(), .registrars = {cuda::pin_host_memory}})
//
// Invariant: registered memory is never freed: registrations end in reverse order, before the memory is freed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "protocols/result.h"

namespace seer {

class Slab {
 public:
  using Free = std::function<void(std::span<std::byte>)>;
  /// `free` gives the memory back. It is called once, when the slab ends.
  Slab(std::span<std::byte> bytes, Free free) : bytes_(bytes), free_(std::move(free)) {}
  Slab(Slab&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})),
        free_(std::exchange(other.free_, nullptr)),
        registrations_(std::move(other.registrations_)) {}
  Slab& operator=(Slab&&) = delete;
  ~Slab();

  std::span<std::byte> bytes() const { return bytes_; }
  /// Keeps a registration of this memory, which ends when the pointer does.
  void keep(std::shared_ptr<void> registration) { registrations_.push_back(std::move(registration)); }

 private:
  std::span<std::byte> bytes_;
  Free free_;
  std::vector<std::shared_ptr<void>> registrations_;
};

/// Allocates zeroed memory. REQUIRES: bytes > 0.
using SlabAllocator = std::function<Result<Slab>(int64_t bytes)>;
/// Registers this memory with a device or a network, for as long as the returned pointer lives.
using SlabRegistrar = std::function<Result<std::shared_ptr<void>>(std::span<std::byte> bytes)>;

/// Memory of this process, backed by pages only where it is touched. kIo: the system refuses it.
Result<Slab> map_slab(int64_t bytes);

/// How the slabs of a machine are made.
struct SlabMaker {
  SlabAllocator allocate = map_slab;
  std::vector<SlabRegistrar> registrars = {};
};
/// Returns the first error of the allocator or of a registrar; nothing stays allocated or registered then.
Result<Slab> make_slab(int64_t bytes, const SlabMaker& maker);

}  // namespace seer
