// What the emulation knows of memory: shadow cells for races and unwritten reads, counts, findings. See simt.h.
// Built without -fsanitize=thread, whose hooks are at the end; link with -no-pie, for the places in findings.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "simt/simt_machine.h"

extern "C" char __executable_start, end;

namespace simt {

Lane* current = nullptr;
const std::string* given_place = nullptr;

static std::set<void*> given_places;
static std::string find_place(void* pc) {
  char command[256], line[512] = "";
  std::snprintf(command, sizeof command, "addr2line -i -s -e /proc/%d/exe 0x%zx", static_cast<int>(getpid()),
                reinterpret_cast<uintptr_t>(pc) - 1);
  std::string place;
  if (FILE* f = popen(command, "r")) {  // the innermost place that is not in the wrappers
    while (std::fgets(line, sizeof line, f)) {
      const std::string text(line, std::strcspn(line, " \n"));
      if (place.empty() || place.starts_with("gpu.h") || place.starts_with("simt.h")) place = text;
    }
    pclose(f);
  }
  return place;
}

static const std::string& place_of(void* pc) {
  if (given_places.contains(pc)) return *static_cast<const std::string*>(pc);
  static std::map<void*, std::string> places;
  const auto [it, is_new] = places.try_emplace(pc);
  if (is_new) it->second = find_place(pc);
  return it->second;
}
bool is_same_place(void* a, void* b) { return a == b || place_of(a) == place_of(b); }

void abandon() {
  Machine& m = machine();
  m.abandoned = true;
  Lane* lane = current;
  current = nullptr;
  switch_to(lane->context, m.main);
  std::abort();
}
void report(const char* kind, void* pc, const std::string& what) {
  Machine& m = machine();
  if (!m.found.insert({kind, pc}).second) return;
  if (pc == given_place) given_places.insert(pc);
  std::string text = place_of(pc) + ": " + what;
  if (current)
    text += ", block " + std::to_string(m.block_number) + " thread " + std::to_string(current->thread);
  m.findings.push_back({kind, text});
  if (m.findings.size() >= 100) abandon();
}

// --- races ---
static bool ordered_in_block(const Stamp& a, const Stamp& now) {
  if (a.epoch != now.epoch || a.thread == now.thread) return true;
  return a.thread / 32 == now.thread / 32 && a.warp_epoch != now.warp_epoch;
}
void touch(Region& region, const void* p, int bytes, bool write, bool atomic, void* pc) {
  const Machine& m = machine();
  const uint16_t thread = current->thread;
  const Stamp now{.epoch = m.epoch, .thread = thread, .warp_epoch = m.warps[thread / 32].epoch};
  const auto where = [&] { return std::string(region.shared ? "shared memory" : "global memory"); };
  region.for_cells(p, static_cast<size_t>(bytes), [&](Cell& cell) {
    if (cell.in_flight) [[unlikely]] report("in_flight", pc, where() + " of a cp.async that was not waited for");
    if (!write && !cell.written) [[unlikely]] report("init", pc, where() + " that was never written");
    if (cell.write.epoch >= m.launch_begin && !(atomic && cell.atomic)) {
      const bool other_block = cell.write.epoch < m.block_begin;
      if (other_block || !ordered_in_block(cell.write, now)) [[unlikely]]
        report("race", pc, (write ? "write of " : "read of ") + where() + " written by " +
                               (other_block ? "another block" : "thread " + std::to_string(cell.write.thread)));
    }
    const bool read_before = cell.read.epoch >= m.launch_begin, read_here = cell.read.epoch == now.epoch;
    const bool read_by_warp = cell.read.thread / 32 == thread / 32;  // the last time
    if (write && read_before) {
      const bool other_block = cell.readers == kOfGrid || cell.read.epoch < m.block_begin;
      const bool here = read_here && (cell.readers == kOfBlock ||
                                      (cell.readers == kOfWarp && (!read_by_warp || cell.read.warp_epoch == now.warp_epoch)) ||
                                      !ordered_in_block(cell.read, now));
      if (other_block || here) [[unlikely]] report("race", pc, "write of " + where() + " read by " + (other_block ? "another block" : "another thread"));
    }
    if (write) {
      cell.write = now;
      cell.written = true;
      cell.atomic = atomic;
      return;
    }
    if (!read_before) {
      cell.readers = kOne;
    } else if (cell.readers != kOfGrid) {
      if (cell.read.epoch < m.block_begin) {
        cell.readers = kOfGrid;
      } else if (!read_here) {
        cell.readers = kOne;
      } else if (!read_by_warp) {
        cell.readers = kOfBlock;
      } else if (cell.readers != kOfBlock) {
        if (cell.read.warp_epoch != now.warp_epoch) cell.readers = kOne;
        else if (cell.read.thread != thread) cell.readers = kOfWarp;
      }
    }
    cell.read = now;
  });
}

// --- counts ---
static int wavefronts(const Group& g, int from, int to) {  // of the lanes [from, to): the fullest bank's distinct words
  std::set<uintptr_t> words;
  for (int i = from; i < to; ++i)
    for (uintptr_t w = g.lane[i].first / 4; w * 4 < g.lane[i].first + static_cast<uintptr_t>(g.lane[i].second); ++w)
      words.insert(w);
  int per_bank[32] = {}, most = 0;
  for (uintptr_t w : words) most = std::max(most, ++per_bank[w % 32]);
  return most;
}
static void close_group(Site& site, Group& g) {
  SiteCount& t = site.total;
  ++t.requests;
  int bytes = 0, widest = 1;
  for (const auto& [address, size] : g.lane) {
    bytes += size;
    widest = std::max(widest, size);
  }
  t.bytes += static_cast<uint64_t>(bytes);
  if (t.shared) {
    const int lanes = widest >= 16 ? 8 : widest == 8 ? 16 : 32;
    for (int i = 0; i < 32; i += lanes) {
      const int n = wavefronts(g, i, i + lanes);
      t.units += static_cast<uint64_t>(n);
      t.units_min += n > 0;
    }
  } else {
    std::set<uintptr_t> sectors, words;
    for (const auto& [address, size] : g.lane)
      for (uintptr_t b = address; b < address + static_cast<uintptr_t>(size); ++b) {
        sectors.insert(b / 32);
        words.insert(b);
      }
    t.units += sectors.size();
    t.units_min += (words.size() + 31) / 32;
  }
}
void count(const void* p, int bytes, bool write, bool shared, void* pc) {
  Machine& m = machine();
  Site& site = m.sites[{pc, write}];
  if (given_place) given_places.insert(pc);
  if (site.times.size() != m.threads) {
    site.times.assign(m.threads, 0);
    site.open.assign(m.warp_count, {});
    site.total.shared = shared;
    site.total.write = write;
  }
  const uint32_t time = site.times[current->thread]++;
  auto& open = site.open[current->thread / 32];
  Group& g = open[time];
  g.lane[current->thread % 32] = {reinterpret_cast<uintptr_t>(p), bytes};
  if (++g.count == 32) {
    close_group(site, g);
    open.erase(time);
  }
}
void close_counts() {
  for (auto& [key, site] : machine().sites) {
    for (auto& open : site.open) {
      for (auto& [time, g] : open) close_group(site, g);
      open.clear();
    }
    site.times.clear();
  }
}

// --- every access ---
// Address space that no buffer has on either side of each, so that what a kernel does beyond one never falls into another.
constexpr size_t kGuardBytes = size_t{64} << 20;
void on_access(const void* p, int bytes, bool write, bool atomic, void* pc) {
  Lane* lane = current;
  Machine& m = machine();
  if (!lane || !m.checked) return;
  const auto* at = static_cast<const char*>(p);
  if (at >= lane->stack && at < lane->stack + kStackBytes) return;
  Region* region = nullptr;
  if (m.shared.holds(p)) {
    region = &m.shared;
  } else if (Region*& recent = m.recent[reinterpret_cast<uintptr_t>(p) / kGuardBytes % std::size(m.recent)]; recent && recent->holds(p)) {
    region = recent;
  } else if (!write && ((at >= &__executable_start && at < &end) || (at >= m.args && at < m.args + m.args_bytes))) {
    return;  // constants and parameters
  } else {
    auto it = m.regions.upper_bound(const_cast<char*>(at));
    if (it != m.regions.begin() && std::prev(it)->second->holds(p)) recent = region = std::prev(it)->second.get();
  }
  if (!region || at + bytes > region->begin + region->bytes) {
    char text[96];
    std::snprintf(text, sizeof text, "%s of %d bytes outside of device memory", write ? "write" : "read", bytes);
    report("bounds", pc, text);
    abandon();
  }
  if (bytes <= 16 && reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(bytes) != 0) {
    report("alignment", pc, "address is no multiple of " + std::to_string(bytes));
    abandon();
  }
  touch(*region, p, bytes, write, atomic, pc);
  if (m.options.count) count(p, bytes, write, region->shared, pc);
}

Options& options() { return machine().options; }
std::vector<Finding> take_findings() {
  machine().found.clear();
  return std::exchange(machine().findings, {});
}
std::vector<SiteCount> take_counts() {
  std::map<std::pair<std::string, bool>, SiteCount> by_place;
  for (auto& [key, site] : machine().sites) {
    const std::string place = place_of(key.first);
    SiteCount& sum = by_place[{place, site.total.write}];
    sum.place = place;
    sum.shared = site.total.shared;
    sum.write = site.total.write;
    sum.requests += site.total.requests;
    sum.bytes += site.total.bytes;
    sum.units += site.total.units;
    sum.units_min += site.total.units_min;
  }
  machine().sites.clear();
  std::vector<SiteCount> all;
  for (auto& [key, sum] : by_place) all.push_back(sum);
  return all;
}

// Of a buffer in whole pages and both its guards.
static size_t mapped_bytes(size_t bytes) { return (bytes + 4095) / 4096 * 4096 + 2 * kGuardBytes; }

void* device_alloc(size_t bytes) {
  void* mapped = mmap(nullptr, mapped_bytes(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  char* begin = static_cast<char*>(mapped) + kGuardBytes;
  if (mapped == MAP_FAILED || mprotect(begin, mapped_bytes(bytes) - 2 * kGuardBytes, PROT_READ | PROT_WRITE) != 0) {
    std::perror("simt: no memory for a device buffer");
    std::abort();
  }
  auto region = std::make_unique<Region>();
  region->begin = begin;
  region->bytes = bytes;
  if (machine().checked) region->make_rows();
  std::memset(begin, 0xa5, bytes);
  machine().regions[begin] = std::move(region);
  return begin;
}
void device_free(void* p) {
  Machine& m = machine();
  std::ranges::fill(m.recent, nullptr);
  const auto at = m.regions.find(static_cast<char*>(p));
  munmap(static_cast<char*>(p) - kGuardBytes, mapped_bytes(at->second->bytes));
  m.regions.erase(at);
}
// The region that holds device memory. REQUIRES: one does.
static Region& region_of(const void* p) {
  auto it = machine().regions.upper_bound(const_cast<char*>(static_cast<const char*>(p)));
  return *std::prev(it)->second;
}
static void mark_written(void* to, size_t bytes) {
  Region& region = region_of(to);
  if (!region.rows.empty() && bytes > 0) region.for_cells(to, bytes, [](Cell& c) { c.written = true; });
}
void copy_to_device(void* to, const void* from, size_t bytes) {
  mark_written(to, bytes);
  std::memcpy(to, from, bytes);
}
void fill_device(void* to, int byte, size_t bytes) {
  mark_written(to, bytes);
  std::memset(to, byte, bytes);
}
void copy_from_device(void* to, const void* from, size_t bytes) {
  Machine& m = machine();
  Region& region = region_of(from);
  bool written = true;
  if (!region.rows.empty() && bytes > 0) region.for_cells(from, bytes, [&](const Cell& c) { written &= c.written; });
  if (!written) m.findings.push_back({"init", "a copy to the host reads what was never written"});
  std::memcpy(to, from, bytes);
}

void check_all_accesses() { machine().checked = true; }

}  // namespace simt

// What -fsanitize=thread calls.
extern "C" {
#define SIMT_HOOK(n)                                                                                    \
  void __tsan_read##n(void* p) { simt::on_access(p, n, false, false, __builtin_return_address(0)); }    \
  void __tsan_write##n(void* p) { simt::on_access(p, n, true, false, __builtin_return_address(0)); }    \
  void __tsan_unaligned_read##n(void* p) { simt::on_access(p, n, false, false, __builtin_return_address(0)); } \
  void __tsan_unaligned_write##n(void* p) { simt::on_access(p, n, true, false, __builtin_return_address(0)); }
SIMT_HOOK(1) SIMT_HOOK(2) SIMT_HOOK(4) SIMT_HOOK(8) SIMT_HOOK(16)
void __tsan_read_range(void* p, unsigned long n) {
  simt::on_access(p, static_cast<int>(n), false, false, __builtin_return_address(0));
}
void __tsan_write_range(void* p, unsigned long n) {
  simt::on_access(p, static_cast<int>(n), true, false, __builtin_return_address(0));
}
void __tsan_init() { simt::machine().checked = true; }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
