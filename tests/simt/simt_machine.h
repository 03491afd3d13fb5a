// The state of the emulated machine, shared by simt.cpp (threads and collectives) and simt_checks.cpp (memory, findings, counts).
#pragma once
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
// The last write and the last reads of two bytes. An epoch is the time between two barriers of a block; epochs of all
// blocks are numbered on. A warp epoch is the time between two __syncwarp of a warp within it.
struct Stamp {
  uint32_t epoch = 0, block = 0;
  uint16_t thread = 0, warp_epoch = 0;
};
enum Readers : uint8_t { kOne, kOfWarp, kOfBlock, kOfGrid };
struct Cell {
  Stamp write, read;
  uint32_t launch_write = 0, launch_read = 0;
  uint16_t in_flight = 0;  // thread + 1 whose cp.async is under way
  bool written = false, atomic = false;
  Readers readers = kOne;
};
struct Region {
  char* begin = nullptr;
  size_t bytes = 0;
  bool shared = false;
  std::vector<Cell> cells;
  bool holds(const void* p) const { return p >= begin && p < begin + bytes; }
  Cell* cell(const void* p) { return &cells[static_cast<size_t>(static_cast<const char*>(p) - begin) / kGranule]; }
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
  Region* last_region = nullptr;
  std::map<std::pair<void*, bool>, Site> sites;  // by place; of a cp.async also what it writes

  Dim3 grid, block, block_at;
  uint32_t block_number = 0, launch = 0, epoch = 1;
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
Machine& machine();

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
