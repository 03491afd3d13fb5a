#include "storage/slab.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace seer {

Slab::~Slab() {
  while (!registrations_.empty()) registrations_.pop_back();
  if (free_) free_(bytes_);
}

Result<Slab> map_slab(int64_t bytes) {
  SEER_CHECK(bytes > 0, bytes);
  void* const memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return fail(Code::kIo, "cannot map ", bytes, " bytes: ", std::strerror(errno));
  return Slab({static_cast<std::byte*>(memory), static_cast<size_t>(bytes)},
              [](std::span<std::byte> mapped) { munmap(mapped.data(), mapped.size()); });
}

Result<Slab> make_slab(int64_t bytes, const SlabMaker& maker) {
  SEER_ASSIGN_OR_RETURN(Slab slab, maker.allocate(bytes));
  SEER_CHECK(std::ssize(slab.bytes()) >= bytes, slab.bytes().size(), bytes);
  // Only a hint: fewer TLB misses when whole blocks are copied. Before pages are there, which a registration may take.
  (void)madvise(slab.bytes().data(), slab.bytes().size(), MADV_HUGEPAGE);
  for (const SlabRegistrar& registrar : maker.registrars) {
    SEER_ASSIGN_OR_RETURN(std::shared_ptr<void> registration, registrar(slab.bytes()));
    slab.keep(std::move(registration));
  }
  return slab;
}

}  // namespace seer
