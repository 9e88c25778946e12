// Note [Races]
// Kernels are compiled with -fsanitize=thread, which makes the compiler call __tsan_read4() and its like at
// each access of memory; the functions are here instead of in its library. For each word that was touched the
// last write and two last reads by different threads are kept. An access is a race with one of these if one
// of the two writes, the bytes overlap and
//   - another thread of the block did it, and no __syncthreads() of the block came between (for threads of
//     one warp: no collective of the warp either);
//   - another block did it, in memory that blocks share, unless both are atomic, or both blocks did something
//     atomic between (as the last block of a reduction does, which counts those that are done).
// Two writes of the same value are none: whoever comes last, the memory holds it. Whether they are is seen
// when the second one is done: at the thread's next access, where it waits or leaves its function. Threads
// run in some order that the barriers allow, so what is found does not depend on luck; only what one run
// never executes is not found. Words are kept in a table of limited size, the later one wins: of very large
// launches some races are missed. Volatile accesses are left out: they are how kernels report a fault.
// WARPTAPE_EMULATOR_RACES=0 switches it off.
#include "races.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "internal.h"
#include "traffic.h"

namespace emulator {
namespace {

struct Access {
  uint32_t launch = 0, block = 0, thread = 0, barrier = 0, warp_pass = 0;
  uint64_t atomics = 0;  // of all blocks, before it
  uint8_t bytes = 0;     // of the word: a bit each
  bool atomic = false;
};
struct Cell {
  uintptr_t word = 0;
  Access writes[4], reads[2];  // a write of each byte
};

// A write beside another's: a race unless it leaves the word as it was.
struct Doubt {
  Access before, now;
  uintptr_t word;
  uint32_t held;
};

constexpr size_t kCells = size_t{1} << 18;
struct Races {
  std::vector<Cell> cells{kCells};
  uint32_t launch = 0, block = 0, barrier = 0;
  std::vector<uint32_t> warp_passes;
  uint64_t atomics = 0;
  std::unordered_map<uint32_t, uint64_t> last_atomic;  // by block
  std::vector<Doubt> doubts;
};
Races& races() {
  static auto& all = *new Races;
  return all;
}
thread_local bool t_in_kernel = false;

bool is_on() {
  static const bool on = [] {
    const char* text = getenv("WARPTAPE_EMULATOR_RACES");
    return !text || strcmp(text, "0") != 0;
  }();
  return on;
}

bool ordered(const Races& r, const Access& a, const Access& b, bool shared) {
  if (a.launch != b.launch || !(a.bytes & b.bytes)) return true;
  if (a.block != b.block) {
    if (shared || (a.atomic && b.atomic)) return true;
    const auto left = r.last_atomic.find(a.block), came = r.last_atomic.find(b.block);
    return left != r.last_atomic.end() && came != r.last_atomic.end() && left->second > a.atomics &&
           came->second > left->second;
  }
  if (a.thread == b.thread || a.barrier != b.barrier || (a.atomic && b.atomic)) return true;
  return a.thread / 32 == b.thread / 32 && a.warp_pass != b.warp_pass;
}

[[noreturn]] void report(const Access& before, const Access& now, bool wrote, bool writes, uintptr_t at) {
  const char* missing = before.block != now.block ? "nothing orders blocks" : "no barrier came between";
  die("race: %s %p, which %s of block %u %s; %s", writes ? "writes" : "reads", reinterpret_cast<void*>(at),
      thread_name(before.thread).c_str(), before.block, wrote ? "wrote" : "read", missing);
}

uint32_t bytes_at(uintptr_t word) {
  uint32_t held;
  memcpy(&held, reinterpret_cast<const void*>(word), sizeof held);
  return held;
}

void settle(Races& r) {
  for (const Doubt& d : r.doubts)
    for (unsigned i = 0; i < 4; ++i)
      if ((d.before.bytes & d.now.bytes) >> i & 1 && ((d.held ^ bytes_at(d.word)) >> 8 * i & 255))
        report(d.before, d.now, true, true, d.word);
  r.doubts.clear();
}

void touch(Races& r, uintptr_t word, Access now, bool write, bool shared) {
  Cell& cell = r.cells[(word >> 2) * 0x9E3779B97F4A7C15u >> 46];
  if (cell.word != word) cell = Cell{word, {}, {}};
  for (const Access& before : cell.writes)
    if (!ordered(r, before, now, shared)) {
      if (!write) report(before, now, true, false, word);
      r.doubts.push_back({before, now, word, bytes_at(word)});
    }
  if (!write) {
    Access& oldest = cell.reads[0].thread == now.thread && cell.reads[0].block == now.block ? cell.reads[0]
                                                                                            : cell.reads[1];
    if (&oldest == &cell.reads[1] && cell.reads[0].launch != now.launch)
      cell.reads[0] = now;
    else if (oldest.launch == now.launch && oldest.thread == now.thread && oldest.barrier == now.barrier &&
             oldest.block == now.block && oldest.warp_pass == now.warp_pass)
      oldest.bytes |= now.bytes;
    else
      oldest = now;
    return;
  }
  for (const Access& read : cell.reads)
    if (!ordered(r, read, now, shared)) report(read, now, false, true, word);
  for (unsigned i = 0; i < 4; ++i)
    if (now.bytes >> i & 1) cell.writes[i] = now;
}

void access(const void* p, size_t bytes, bool write, bool atomic) {
  const auto first = reinterpret_cast<uintptr_t>(p);
  if (is_own_stack(p)) return;
  Races& r = races();
  settle(r);
  const unsigned thread = thread_of_block();
  const bool shared = is_shared_memory(p);
  Access now{r.launch, r.block, thread, r.barrier, r.warp_passes[thread / 32], r.atomics, 0, atomic};
  for (uintptr_t word = first & ~uintptr_t{3}; word < first + bytes; word += 4) {
    now.bytes = 0;
    for (unsigned i = 0; i < 4; ++i)
      if (word + i >= first && word + i < first + bytes) now.bytes |= static_cast<uint8_t>(1 << i);
    touch(r, word, now, write, shared);
  }
}

}  // namespace

void races_begin_launch() {
  t_in_kernel = is_on();
  if (!t_in_kernel) return;
  Races& r = races();
  ++r.launch;
  r.atomics = 0;
  r.last_atomic.clear();
}
void races_end_launch() { t_in_kernel = false; }
void races_leave() {
  if (t_in_kernel) settle(races());
}
void races_begin_block(uint64_t block) {
  if (!t_in_kernel) return;
  Races& r = races();
  r.block = static_cast<uint32_t>(block);
  ++r.barrier;
  r.warp_passes.assign(1024 / 32, 0);
}
void races_resume_block(uint64_t block) {
  if (t_in_kernel) races().block = static_cast<uint32_t>(block);
}
void races_pass_barrier() {
  if (t_in_kernel) ++races().barrier;
}
void races_pass_warp(unsigned warp) {
  if (t_in_kernel) ++races().warp_passes[warp];
}
void races_access(const void* p, size_t bytes, bool write) {
  if (t_in_kernel && p) access(p, bytes, write, false);
}
void races_atomic(const void* p, size_t bytes) {
  traffic_access(__builtin_return_address(0), p, bytes, true);
  if (!t_in_kernel) return;
  Races& r = races();
  r.last_atomic[r.block] = ++r.atomics;
  access(p, bytes, true, true);
}

}  // namespace emulator

// ---- what the compiler calls ----
namespace {
void seen(const void* pc, const void* p, size_t bytes, bool write) {
  emulator::races_access(p, bytes, write);
  emulator::traffic_access(pc, p, bytes, write);
}
void aligned(const void* pc, const void* p, size_t bytes, bool write) {
  if (emulator::t_in_kernel && reinterpret_cast<uintptr_t>(p) % bytes)
    emulator::die("%s %zu bytes at %p, which is not aligned to them", write ? "writes" : "reads", bytes, p);
  seen(pc, p, bytes, write);
}
void seen_range(const void* pc, const void* p, size_t bytes, bool write) {
  emulator::races_access(p, bytes, write);
  for (size_t i = 0; i < bytes; i += 16)
    emulator::traffic_access(static_cast<const char*>(pc) + i, static_cast<const char*>(p) + i,
                             std::min<size_t>(16, bytes - i), write);
}
}  // namespace

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() { emulator::races_leave(); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
#define EMULATOR_CALLER __builtin_return_address(0)
#define EMULATOR_TSAN(N)                                                         \
  void __tsan_read##N(void* p) { aligned(EMULATOR_CALLER, p, N, false); }        \
  void __tsan_write##N(void* p) { aligned(EMULATOR_CALLER, p, N, true); }        \
  void __tsan_unaligned_read##N(void* p) { seen(EMULATOR_CALLER, p, N, false); } \
  void __tsan_unaligned_write##N(void* p) { seen(EMULATOR_CALLER, p, N, true); } \
  void __tsan_volatile_read##N(void*) {}                                         \
  void __tsan_volatile_write##N(void*) {}                                        \
  void __tsan_unaligned_volatile_read##N(void*) {}                               \
  void __tsan_unaligned_volatile_write##N(void*) {}
EMULATOR_TSAN(1)
EMULATOR_TSAN(2)
EMULATOR_TSAN(4)
EMULATOR_TSAN(8)
EMULATOR_TSAN(16)
#undef EMULATOR_TSAN
// Atomics of the host's code, the guards of static variables in functions among them; kernels' own do not
// come here.
#define EMULATOR_TSAN_ATOMIC(N, T)                                                                     \
  T __tsan_atomic##N##_load(const volatile T* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); } \
  void __tsan_atomic##N##_store(volatile T* p, T value, int) { __atomic_store_n(p, value, __ATOMIC_SEQ_CST); }
EMULATOR_TSAN_ATOMIC(8, uint8_t)
EMULATOR_TSAN_ATOMIC(32, uint32_t)
EMULATOR_TSAN_ATOMIC(64, uint64_t)
#undef EMULATOR_TSAN_ATOMIC
void __tsan_read_range(void* p, size_t n) { seen_range(EMULATOR_CALLER, p, n, false); }
void __tsan_write_range(void* p, size_t n) { seen_range(EMULATOR_CALLER, p, n, true); }
}
