// The state of the emulated machine, shared by simt.cpp (threads and collectives) and simt_checks.cpp (memory, findings, counts).
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "simt/simt.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace simt {

constexpr size_t kGranule = 2;  // bytes that share a shadow cell: the smallest access of our kernels (bf16)
constexpr size_t kStackBytes = 256 << 10;  // an interpreted kernel has its registers there
constexpr size_t kThreadsMax = 1024;

struct Context {  // of a fiber that does not run
#if defined(__x86_64__)
  void* sp = nullptr;
#else
  ucontext_t u;
#endif
};
void switch_to(Context& from, Context& to);

// --- memory and its shadow ---
// The last write and the last reads of two bytes. An epoch is the time between two barriers of a block; those of all blocks and launches
// are numbered on, from 1, so an epoch tells its block and launch. A warp epoch is the time between two __syncwarp of a warp within it.
struct Stamp {
  uint32_t epoch = 0;
  uint16_t thread = 0, warp_epoch = 0;
  bool operator==(const Stamp&) const = default;
};
enum Readers : uint8_t { kOne, kOfWarp, kOfBlock, kOfGrid };
struct Cell {
  Stamp write, read;
  bool in_flight = false;  // a cp.async is under way
  bool written = false, atomic = false;
  Readers readers = kOne;
  bool operator==(const Cell&) const = default;
};
// Those of 16 bytes from a multiple of that, the largest access, which most are: one cell for all while they are equal.
struct CellRow {
  static constexpr size_t kCells = 16 / kGranule;
  Cell cells[kCells];
  bool is_uniform = true;  // all are as the first
};
struct Region {
  char* begin = nullptr;  // a multiple of 16
  size_t bytes = 0;
  bool shared = false;
  std::vector<CellRow> rows;  // none: without checks
  bool holds(const void* p) const { return p >= begin && p < begin + bytes; }
  void make_rows() { rows.resize((bytes + 15) / 16); }
  /// Calls for each cell, or once for those of a row that are equal, before and after.
  template <class Fn>
  void for_cells(const void* p, size_t p_bytes, Fn&& fn) {
    const size_t first = static_cast<size_t>(static_cast<const char*>(p) - begin);
    for (size_t at = first / kGranule, end = (first + p_bytes - 1) / kGranule + 1; at < end;) {
      CellRow& row = rows[at / CellRow::kCells];
      Cell* const from = row.cells + at % CellRow::kCells;
      Cell* const to = std::min(row.cells + CellRow::kCells, from + (end - at));
      const bool is_whole = to - from == CellRow::kCells;
      if (is_whole && row.is_uniform) {
        fn(row.cells[0]);
      } else {
        if (row.is_uniform) std::fill(row.cells + 1, row.cells + CellRow::kCells, row.cells[0]);
        std::for_each(from, to, fn);
        row.is_uniform = is_whole && std::all_of(from + 1, to, [&](const Cell& c) { return c == *from; });
      }
      at += static_cast<size_t>(to - from);
    }
  }
};

enum class Wait : uint8_t { kNone, kBarrier, kWarp, kDone };
struct Pending {
  char* to;
  const char* from;
  int bytes, valid;
  uint32_t group;
};
struct PendingMma {
  float (*d)[4];
  const char *a, *w;
  int columns;
  uint32_t group;
  void* place;
};
struct Lane {
  Context context;
  char* stack = nullptr;
  Dim3 index;
  uint16_t thread = 0;
  Wait wait = Wait::kNone;
  void* barrier_place = nullptr;
  std::vector<Pending> pending;
  uint32_t group = 0;  // that the next cp.async belongs to
  std::vector<PendingMma> pending_mma;
  uint32_t mma_group = 0;
  bool shown = false;      // to wgmma: what this thread waited for
  bool mma_begun = false;  // since this thread last waited for wgmma
};
enum class Collective : uint8_t { kSync, kShuffle, kBallot, kMatrix, kMatrixTransposed, kMma };
struct Warp {
  uint32_t ready = 0, live = 0;
  uint32_t arrived = 0;                     // lanes waiting in a collective
  uint32_t masks[32] = {};
  Collective kind[32] = {};
  uint64_t in[32][8] = {}, out[32][2] = {};
  uint16_t epoch = 1;
};
struct Group {  // what the lanes of a warp asked for together; bytes 0: nothing
  std::pair<uintptr_t, int> lane[32] = {};
  int count = 0;
};
struct Site {
  SiteCount total;
  std::vector<uint32_t> times;                             // per thread
  std::vector<std::unordered_map<uint32_t, Group>> open;  // per warp: by which time
};

struct Machine {
  Options options;
  std::vector<Finding> findings;
  std::set<std::pair<std::string, void*>> found;
  std::map<char*, std::unique_ptr<Region>> regions;
  Region* recent[64] = {};  // those last touched, by address
  std::map<std::pair<void*, bool>, Site> sites;  // by place; of a cp.async also what it writes

  Dim3 grid, block, block_at;
  uint32_t block_number = 0, epoch = 1;
  uint32_t launch_begin = 1, block_begin = 1;  // their first epochs
  size_t threads = 0, live = 0, at_barrier = 0;
  bool abandoned = false, checked = false;
  Lane lanes[kThreadsMax];
  Warp warps[kThreadsMax / 32];
  size_t warp_count = 0;
  char* stacks = nullptr;
  char* shared_memory = nullptr;
  Region shared;
  Context main;
  void (*body)(const void*) = nullptr;
  const char* args = nullptr;
  size_t args_bytes = 0;
  uint64_t random = 1;

  uint64_t next_random() {
    random ^= random << 13;
    random ^= random >> 7;
    return random ^= random << 17;
  }
};
inline Machine& machine() {
  static Machine m;
  return m;
}

extern Lane* current;  // the thread of a block that runs; null: none
extern const std::string* given_place;
// The caller's line, or what an interpreter said that it is.
#define SIMT_PLACE (given_place ? const_cast<void*>(static_cast<const void*>(given_place)) : __builtin_return_address(0))

/// Whether two places in the program are one in its source: the compiler may duplicate a call.
bool is_same_place(void* a, void* b);
/// Notes a finding, once per kind and place.
void report(const char* kind, void* pc, const std::string& what);
/// Ends the launch at once. REQUIRES: called by a thread of a block.
[[noreturn]] void abandon();
/// What a thread does to memory: bounds, races and so on, and counts. Nothing without checks.
void on_access(const void* p, int bytes, bool write, bool atomic, void* pc);
/// The parts of that for cp.async.
void touch(Region& region, const void* p, int bytes, bool write, bool atomic, void* pc);
void count(const void* p, int bytes, bool write, bool shared, void* pc);
/// Ends the counts of a block.
void close_counts();

}  // namespace simt
