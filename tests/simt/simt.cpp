// Threads of a block as fibers, barriers and warp collectives. See simt.h; memory and findings are in simt_checks.cpp.
// Built without -fsanitize=thread.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "simt/simt_machine.h"

namespace simt {

// --- switching stacks ---
#if defined(__x86_64__)
extern "C" void simt_switch(void** save, void* load);
asm(R"(
.text
.globl simt_switch
.type simt_switch, @function
simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
static void prepare(Context& c, char* stack, void (*entry)()) {
  auto* top = reinterpret_cast<void**>(stack + kStackBytes);
  *--top = nullptr;  // where the entry would return to, and alignment
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  c.sp = top;
}
void switch_to(Context& from, Context& to) { simt_switch(&from.sp, to.sp); }
#else
static void prepare(Context& c, char* stack, void (*entry)()) {
  getcontext(&c.u);
  c.u.uc_stack.ss_sp = stack;
  c.u.uc_stack.ss_size = kStackBytes;
  makecontext(&c.u, entry, 0);
}
void switch_to(Context& from, Context& to) { swapcontext(&from.u, &to.u); }
#endif

namespace {

// --- threads ---
Lane* pick() {
  Machine& m = machine();
  uint32_t with[kThreadsMax / 32];
  size_t n = 0;
  const size_t own = current->thread / 32u;
  switch (m.options.order) {
    case Order::kForward:
      for (size_t i = 0; i < m.warp_count; ++i) {  // this warp as long as it can, then the next
        const size_t w = own + i < m.warp_count ? own + i : own + i - m.warp_count;
        if (m.warps[w].ready) return &m.lanes[w * 32 + static_cast<size_t>(__builtin_ctz(m.warps[w].ready))];
      }
      return nullptr;
    case Order::kReverse:
      for (size_t w = m.warp_count; w-- > 0;)
        if (m.warps[w].ready) return &m.lanes[w * 32 + 31 - static_cast<size_t>(__builtin_clz(m.warps[w].ready))];
      return nullptr;
    case Order::kRandom:
      for (size_t w = 0; w < m.warp_count; ++w)
        if (m.warps[w].ready) with[n++] = static_cast<uint32_t>(w);
      if (!n) return nullptr;
      const size_t w = with[m.next_random() % n];
      uint32_t ready = m.warps[w].ready;
      for (auto skip = m.next_random() % static_cast<uint64_t>(__builtin_popcount(ready)); skip; --skip) ready &= ready - 1;
      return &m.lanes[w * 32 + static_cast<size_t>(__builtin_ctz(ready))];
  }
  return nullptr;
}
void release_barrier() {
  Machine& m = machine();
  if (!m.at_barrier || m.at_barrier < m.live) return;
  void* place = nullptr;
  for (size_t t = 0; t < m.threads; ++t) {
    Lane& lane = m.lanes[t];
    if (lane.wait != Wait::kBarrier) continue;
    if (place && !is_same_place(lane.barrier_place, place))
      report("divergence", lane.barrier_place, "threads wait at different __syncthreads");
    place = lane.barrier_place;
    lane.wait = Wait::kNone;
    m.warps[t / 32].ready |= 1u << t % 32;
  }
  m.at_barrier = 0;
  ++m.epoch;
}
void run_other() {  // the calling lane is not ready
  Machine& m = machine();
  Lane* from = current;
  Lane* to = pick();
  if (!to) {
    release_barrier();
    to = pick();
  }
  if (!to) {
    if (m.live > 0) {
      void* place = from->barrier_place;
      for (size_t t = 0; t < m.threads; ++t)
        if (m.lanes[t].wait == Wait::kBarrier) place = m.lanes[t].barrier_place;
      report("divergence", place, "threads wait for others that will never come");
      m.abandoned = true;
    }
    current = nullptr;
    switch_to(from->context, m.main);
    return;
  }
  if (to == from) return;
  current = to;
  switch_to(from->context, to->context);
}
void lane_main() {
  Machine& m = machine();
  m.body(m.args);
  Lane* lane = current;
  if (!lane->pending_mma.empty()) report("in_flight", reinterpret_cast<void*>(&lane_main), "a thread ends with open wgmma");
  if (!lane->pending.empty()) report("in_flight", reinterpret_cast<void*>(&lane_main), "a thread ends with open cp.async");
  Warp& warp = m.warps[lane->thread / 32];
  warp.ready &= ~(1u << lane->thread % 32);
  warp.live &= ~(1u << lane->thread % 32);
  lane->wait = Wait::kDone;
  --m.live;
  release_barrier();
  run_other();
  std::abort();
}

float bf16(uint32_t pair, int half) {
  const uint32_t bits = half ? pair & 0xffff0000 : pair << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
float multiply_add(const float a[16], const float b[16], float c) {
  if (machine().options.mma == Mma::kChain) {  // products of bf16 are exact in float: this is an fma chain
    for (int k = 0; k < 16; ++k) c += a[k] * b[k];
    return c;
  }
  double sum = 0;  // all at once, then cut towards zero
  for (int k = 15; k >= 0; --k) sum += static_cast<double>(a[k] * b[k]);
  sum += static_cast<double>(c);
  const float f = static_cast<float>(sum);
  return std::fabs(static_cast<double>(f)) > std::fabs(sum) ? std::nextafterf(f, 0.0f) : f;
}
void multiply(Warp& w) {
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4 * 2;
    uint32_t r[6];
    std::memcpy(r, &w.in[lane][0], 24);
    float d[4];
    std::memcpy(d, &w.in[lane][3], 16);
    for (int i = 0; i < 2; ++i) {
      a[g][t + i] = bf16(r[0], i);
      a[g + 8][t + i] = bf16(r[1], i);
      a[g][t + 8 + i] = bf16(r[2], i);
      a[g + 8][t + 8 + i] = bf16(r[3], i);
      b[t + i][g] = bf16(r[4], i);
      b[t + 8 + i][g] = bf16(r[5], i);
      c[g][t + i] = d[i];
      c[g + 8][t + i] = d[2 + i];
    }
  }
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 8; ++n) {
      float column[16];
      for (int k = 0; k < 16; ++k) column[k] = b[k][n];
      c[m][n] = multiply_add(a[m], column, c[m][n]);
    }
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4 * 2;
    const float d[4] = {c[g][t], c[g][t + 1], c[g + 8][t], c[g + 8][t + 1]};
    std::memcpy(w.out[lane], d, 16);
  }
}
void load_matrices(Warp& w, bool transposed) {
  for (int lane = 0; lane < 32; ++lane) {
    uint16_t e[8];
    for (int j = 0; j < 4; ++j)
      for (int i = 0; i < 2; ++i) {
        const int row = transposed ? lane % 4 * 2 + i : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + i;
        std::memcpy(&e[j * 2 + i], reinterpret_cast<const char*>(w.in[j * 8 + row][0]) + column * 2, 2);
      }
    std::memcpy(w.out[lane], e, 16);
  }
}
void complete(Warp& w, uint32_t mask) {
  const int first = __builtin_ctz(mask);
  switch (w.kind[first]) {
    case Collective::kSync: ++w.epoch; break;
    case Collective::kShuffle:
      for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest), from = static_cast<int>(w.in[lane][1]);
        if (!(mask >> from & 1)) report("divergence", current->barrier_place, "shuffle from a lane outside of the mask");
        w.out[lane][0] = w.in[from][0];
      }
      break;
    case Collective::kBallot: {
      uint64_t votes = 0;
      for (uint32_t rest = mask; rest; rest &= rest - 1) votes |= w.in[__builtin_ctz(rest)][0] << __builtin_ctz(rest);
      for (uint32_t rest = mask; rest; rest &= rest - 1) w.out[__builtin_ctz(rest)][0] = votes;
      break;
    }
    case Collective::kMatrix: load_matrices(w, false); break;
    case Collective::kMatrixTransposed: load_matrices(w, true); break;
    case Collective::kMma: multiply(w); break;
  }
}
void collective(Collective kind, uint32_t mask, void* pc) {  // the lane's inputs are in place
  Machine& m = machine();
  const size_t at = current->thread / 32u;
  Warp& w = m.warps[at];
  const uint32_t bit = 1u << current->thread % 32;
  const auto full = static_cast<uint32_t>((uint64_t{1} << std::min<size_t>(32, m.threads - at * 32)) - 1);
  mask &= full;
  current->barrier_place = pc;
  if (!(mask & bit) || (mask & ~w.live)) {
    report("divergence", pc, "the mask has lanes that ended, or lacks the caller");
    abandon();
  }
  w.kind[current->thread % 32] = kind;
  w.masks[current->thread % 32] = mask;
  w.arrived |= bit;
  if ((w.arrived & mask) != mask) {
    current->wait = Wait::kWarp;
    w.ready &= ~bit;
    run_other();
    return;
  }
  for (uint32_t rest = mask; rest; rest &= rest - 1)
    if (const int lane = __builtin_ctz(rest); w.kind[lane] != kind || w.masks[lane] != mask) {
      report("divergence", pc, "lanes of a warp are at different collectives");
      abandon();
    }
  complete(w, mask);
  w.arrived &= ~mask;
  w.ready |= mask;
  for (uint32_t rest = mask; rest; rest &= rest - 1)
    m.lanes[at * 32 + static_cast<size_t>(__builtin_ctz(rest))].wait = Wait::kNone;
}
Warp& own_warp() { return machine().warps[current->thread / 32]; }
int own_lane() { return current->thread % 32; }

void land(const Pending& copy) {
  Machine& m = machine();
  std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.valid));
  std::memset(copy.to + copy.valid, 0, static_cast<size_t>(copy.bytes - copy.valid));
  if (!m.checked) return;
  const Stamp now{.epoch = m.epoch, .thread = current->thread, .warp_epoch = m.warps[current->thread / 32].epoch};
  m.shared.for_cells(copy.to, static_cast<size_t>(copy.bytes), [&](Cell& c) {
    c.in_flight = false;
    c.write = now;
    c.written = true;
    c.atomic = false;
  });
}

void run_block() {
  Machine& m = machine();
  m.live = m.threads;
  m.at_barrier = 0;
  m.block_begin = ++m.epoch;
  std::memset(m.shared_memory, 0xa5, m.shared.bytes);  // what was there before is not to be relied on
  for (CellRow& row : m.shared.rows) row.cells[0] = {}, row.is_uniform = true;
  for (size_t w = 0; w < m.warp_count; ++w) {
    Warp& warp = m.warps[w];
    warp.live = warp.ready = static_cast<uint32_t>((uint64_t{1} << std::min<size_t>(32, m.threads - w * 32)) - 1);
    warp.arrived = 0;
    warp.epoch = 1;
  }
  for (size_t t = 0; t < m.threads; ++t) {
    Lane& lane = m.lanes[t];
    const auto n = static_cast<unsigned>(t);
    lane.index = {n % m.block.x, n / m.block.x % m.block.y, n / m.block.x / m.block.y};
    lane.thread = static_cast<uint16_t>(t);
    lane.wait = Wait::kNone;
    lane.stack = m.stacks + t * kStackBytes;
    lane.pending.clear();
    lane.pending_mma.clear();
    lane.mma_group = 0;
    lane.shown = false;
    lane.group = 0;
    prepare(lane.context, lane.stack, lane_main);
  }
  current = &m.lanes[0];
  Lane* first = pick();
  current = first;
  switch_to(m.main, first->context);
  current = nullptr;
  if (m.options.count) close_counts();
}

}  // namespace

void run_grid(Dim3 grid, Dim3 block, size_t shared_bytes, const void* args, size_t args_bytes,
              void (*body)(const void*)) {
  Machine& m = machine();
  if (volume(block) > kThreadsMax || shared_bytes > m.options.shared_bytes_max) {
    m.findings.push_back({"limit", "too many threads, or too much shared memory in a block"});
    return;
  }
  if (!m.stacks) {
    m.stacks = static_cast<char*>(mmap(nullptr, kStackBytes * kThreadsMax, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    m.shared_memory = static_cast<char*>(std::aligned_alloc(1024, 256 << 10));
  }
  m.shared.begin = m.shared_memory;
  m.shared.bytes = shared_bytes;
  m.shared.shared = true;
  if (m.checked) m.shared.make_rows();
  m.grid = grid;
  m.block = block;
  m.threads = volume(block);
  m.warp_count = (m.threads + 31) / 32;
  m.body = body;
  m.args = static_cast<const char*>(args);
  m.args_bytes = args_bytes;
  m.abandoned = false;
  m.random = m.options.seed * 0x9e3779b97f4a7c15 + 1;
  m.launch_begin = m.epoch + 1;
  const size_t blocks = volume(grid);
  for (size_t i = 0; i < blocks && !m.abandoned; ++i) {
    const size_t n = m.options.order == Order::kReverse ? blocks - 1 - i : i;
    m.block_number = static_cast<uint32_t>(n);
    m.block_at = {static_cast<unsigned>(n % grid.x), static_cast<unsigned>(n / grid.x % grid.y),
                  static_cast<unsigned>(n / grid.x / grid.y)};
    run_block();
  }
}

Dim3 thread_idx() { return current->index; }
Dim3 block_idx() { return machine().block_at; }
Dim3 block_dim() { return machine().block; }
Dim3 grid_dim() { return machine().grid; }
unsigned char* dynamic_shared() { return reinterpret_cast<unsigned char*>(machine().shared_memory); }
void barrier() {
  Machine& m = machine();
  current->wait = Wait::kBarrier;
  current->barrier_place = SIMT_PLACE;
  m.warps[current->thread / 32].ready &= ~(1u << current->thread % 32);
  ++m.at_barrier;
  if (m.at_barrier == m.live) release_barrier();
  run_other();
}
void sync_warp(uint32_t mask) { collective(Collective::kSync, mask, SIMT_PLACE); }
uint64_t shuffle(uint32_t mask, uint64_t value, int source_lane) {
  Warp& w = own_warp();
  w.in[own_lane()][0] = value;
  w.in[own_lane()][1] = static_cast<uint64_t>(source_lane);
  collective(Collective::kShuffle, mask, SIMT_PLACE);
  return w.out[own_lane()][0];
}
uint32_t ballot(uint32_t mask, bool predicate) {
  own_warp().in[own_lane()][0] = predicate;
  collective(Collective::kBallot, mask, SIMT_PLACE);
  return static_cast<uint32_t>(own_warp().out[own_lane()][0]);
}
void load_matrix(const void* row, uint32_t out[4], bool transposed) {
  on_access(row, 16, false, false, SIMT_PLACE);
  own_warp().in[own_lane()][0] = reinterpret_cast<uint64_t>(row);
  collective(transposed ? Collective::kMatrixTransposed : Collective::kMatrix, ~0u, SIMT_PLACE);
  std::memcpy(out, own_warp().out[own_lane()], 16);
}
void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
  uint64_t* in = own_warp().in[own_lane()];
  std::memcpy(in, a, 16);
  std::memcpy(in + 2, b, 8);
  std::memcpy(in + 3, d, 16);
  collective(Collective::kMma, ~0u, SIMT_PLACE);
  std::memcpy(d, own_warp().out[own_lane()], 16);
}
void async_copy(void* to, const void* from, int bytes, int valid) {
  Machine& m = machine();
  void* pc = SIMT_PLACE;
  if (valid) on_access(from, valid, false, false, pc);
  if (!m.shared.holds(to) || !m.shared.holds(static_cast<char*>(to) + bytes - 1)) {
    report("bounds", pc, "cp.async to memory that is not the block's");
    abandon();
  }
  if (m.checked) touch(m.shared, to, bytes, true, false, pc);
  if (m.options.count && m.checked) count(to, bytes, true, true, pc);
  if (m.checked) m.shared.for_cells(to, static_cast<size_t>(bytes), [](Cell& c) { c.in_flight = true; });
  current->pending.push_back({static_cast<char*>(to), static_cast<const char*>(from), bytes, valid, current->group});
}
void async_commit() { ++current->group; }
void async_wait(int open) {
  current->shown = false;
  auto& pending = current->pending;
  size_t done = 0;
  for (; done < pending.size() && pending[done].group + static_cast<uint32_t>(open) < current->group; ++done)
    land(pending[done]);
  pending.erase(pending.begin(), pending.begin() + static_cast<ptrdiff_t>(done));
}
// wgmma may read when it begins and until it is waited for: both are checked, and the later one counts.
static void read_swizzled(const void* row, float out[16], void* pc) {
  for (int half = 0; half < 2; ++half) {
    auto at = reinterpret_cast<uintptr_t>(row) + static_cast<uintptr_t>(half) * 16;
    at ^= (at >> 7 & 7) << 4;
    const void* piece = reinterpret_cast<const void*>(at);  // NOLINT
    on_access(piece, 16, false, false, pc);
    uint32_t pairs[4];
    std::memcpy(pairs, piece, 16);
    for (int i = 0; i < 8; ++i) out[half * 8 + i] = bf16(pairs[i / 2], i % 2);
  }
}
static void group_multiply(const PendingMma& p, float (*d)[4]) {
  const int warp = current->thread % 128 / 32, lane = own_lane();
  float a[2][16], b[16];
  for (int half = 0; half < 2; ++half) read_swizzled(p.a + (warp * 16 + half * 8 + lane / 4) * 128, a[half], p.place);
  for (int column = 0; column < p.columns / 4; ++column) {
    const int j = column / 2, e = column % 2;
    read_swizzled(p.w + (j * 8 + lane % 4 * 2 + e) * 128, b, p.place);
    for (int half = 0; half < 2; ++half) d[j][half * 2 + e] = multiply_add(a[half], b, d[j][half * 2 + e]);
  }
}
void group_mma_show() { current->shown = true; }
void group_mma_begin() { current->mma_begun = true; }
void group_mma(float (*d)[4], const void* a, const void* w, int columns) {
  const PendingMma mma{d, static_cast<const char*>(a), static_cast<const char*>(w), columns, current->mma_group, SIMT_PLACE};
  if (!current->shown) report("in_flight", mma.place, "wgmma reads what no fence has shown to it");
  if (!current->mma_begun) report("in_flight", mma.place, "wgmma without wgmma.fence since the last wait");
  float scratch[32][4] = {};
  group_multiply(mma, scratch);
  current->pending_mma.push_back(mma);
}
void group_mma_commit() { ++current->mma_group; }
int group_mma_wait(int open) {
  current->mma_begun = false;
  auto& pending = current->pending_mma;
  size_t done = 0;
  for (; done < pending.size() && pending[done].group + static_cast<uint32_t>(open) < current->mma_group; ++done)
    group_multiply(pending[done], pending[done].d);
  pending.erase(pending.begin(), pending.begin() + static_cast<ptrdiff_t>(done));
  return static_cast<int>(pending.size());
}
void access(const void* p, int bytes, bool write) { on_access(p, bytes, write, false, SIMT_PLACE); }
void load_bytes(void* to, const void* from, int bytes) {
  on_access(from, bytes, false, false, SIMT_PLACE);
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
void store_bytes(void* to, const void* from, int bytes) {
  on_access(to, bytes, true, false, SIMT_PLACE);
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
uint64_t atomic_add(void* p, uint64_t value, int bytes) {
  on_access(p, bytes, true, true, SIMT_PLACE);
  uint64_t old = 0;
  std::memcpy(&old, p, static_cast<size_t>(bytes));
  const uint64_t sum = old + value;
  std::memcpy(p, &sum, static_cast<size_t>(bytes));
  return old;
}
uint64_t atomic_or(void* p, uint64_t value, int bytes) {
  on_access(p, bytes, true, true, SIMT_PLACE);
  uint64_t old = 0;
  std::memcpy(&old, p, static_cast<size_t>(bytes));
  const uint64_t both = old | value;
  std::memcpy(p, &both, static_cast<size_t>(bytes));
  return old;
}

void set_place(const std::string* place) { given_place = place; }
void refuse(const std::string& why) {
  report("limit", SIMT_PLACE, why);
  abandon();
}
}  // namespace simt
