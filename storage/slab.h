// Slab: one piece of memory for KV blocks, and everybody who has to know where it lies. HostArena cuts it into slots.
//
// Who allocates it depends on the machine: the system (map_slab), a network library whose peers on the same host can then
// map it too (UCX), or a GPU driver. Who else must know it registers it: CUDA pins it, so that copies to and from a GPU run
// beside the kernels; a network card gets its keys. One allocates, any number register, in this order:
//
//   make_slab(bytes, {.allocate = ucx.slab_allocator(), .registrars = {pin_for_cuda}})
//
// Invariant: what is registered exists, and what is freed is not registered: registrations end in reverse order, before
// the memory goes.
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

/// Memory of zeros. REQUIRES: bytes > 0.
using SlabAllocator = std::function<Result<Slab>(int64_t bytes)>;
/// Tells a device or a network of this memory; the registration lasts as long as what is returned.
using SlabRegistrar = std::function<Result<std::shared_ptr<void>>(std::span<std::byte> bytes)>;

/// Memory of this process that takes room only where it is touched. kIo: the system refuses it.
Result<Slab> map_slab(int64_t bytes);

/// How the slabs of a machine are made.
struct SlabMaker {
  SlabAllocator allocate = map_slab;
  std::vector<SlabRegistrar> registrars = {};
};
/// The first error of the allocator or of a registrar; then nothing stays allocated or registered.
Result<Slab> make_slab(int64_t bytes, const SlabMaker& maker);

}  // namespace seer
