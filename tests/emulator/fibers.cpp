// Runs the blocks of a grid: each block's threads are fibers, which change only where they wait.
//
// A fiber runs threads that have not started one after the other, so a thread that never waits costs no
// change of stack. One that waits at a barrier or for its warp keeps its fiber, and the block goes on with
// another. Blocks of a cluster take turns: one goes on until all of its threads wait (clusters.h).
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <numeric>
#include <string>
#include <vector>

#include "asynchronous.h"
#include "clusters.h"
#include "internal.h"
#include "races.h"
#include "traffic.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

#if !defined(__x86_64__)
#error "the emulator's fibers are written for x86-64"
#endif
// Saves what a called function must keep on the stack, leaves the stack's top in *from and continues on `to`.
extern "C" void emulator_switch(void** from, void* to);
asm(R"(
.text
.p2align 4
.hidden emulator_switch
.globl emulator_switch
.type emulator_switch, @function
emulator_switch:
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
.size emulator_switch, .-emulator_switch
)");

// Borders of the static shared memory where the program is linked with shared.ld.
extern char emulator_shared_begin[] __attribute__((weak, visibility("hidden")));
extern char emulator_shared_end[] __attribute__((weak, visibility("hidden")));

namespace emulator {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr int kWarp = 32;
constexpr const char* kBarrierNames[] = {"__syncthreads", "__syncthreads_or", "__syncthreads_and",
                                         "__syncthreads_count"};
constexpr const char* kCollectiveNames[] = {
    "__syncwarp",        "__shfl_sync",       "__shfl_up_sync",
    "__shfl_down_sync",  "__shfl_xor_sync",   "__ballot_sync",
    "__any_sync",        "__all_sync",        "__match_any_sync",
    "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync",
    "__reduce_min_sync", "__reduce_max_sync", "__reduce_and_sync",
    "__reduce_or_sync",  "__reduce_xor_sync", "an instruction of a warp"};

struct Fiber {
  void* top = nullptr;  // of its stack, while it does not run
  char* stack = nullptr;
};
enum class State : uint8_t { New, Running, AtBarrier, InWarp, Polling, Exited };
struct Thread {
  State state = State::New;
  Fiber* fiber = nullptr;
  Collective kind{};
  unsigned mask = 0;
  int source = 0;
  uint64_t value = 0, result = 0;
  void (*run)(void* const*) = nullptr;  // of call_warp
  bool (*ready)(void*) = nullptr;       // of wait_until
  void* wanted = nullptr;
};

struct Block {
  std::string name;
  uint64_t number = 0;  // in the grid
  uint3 index{};
  const Work* body = nullptr;
  std::vector<Thread> threads;
  std::vector<uint3> places;       // thread -> threadIdx
  std::vector<unsigned> sequence;  // the order in which threads start and are released
  std::deque<unsigned> ready;
  unsigned next = 0;  // in `sequence`: the first that has not started
  unsigned current = 0, live = 0, waiting = 0, positive = 0;
  Barrier barrier{};
  int barrier_result = 0;
  void* scheduler = nullptr;
  char* shared = nullptr;
  bool running = false;
  Order order{};
  uint64_t salt = 0;
} g;
std::vector<Fiber*> g_idle;
std::vector<Block> g_suspended;  // of a cluster, those that do not run, by rank

thread_local bool t_runs_kernel = false;  // of the host's threads, the one that runs it

std::string where(unsigned thread) {
  char text[160];
  uint3 t = g.places[thread];
  snprintf(text, sizeof text, "block (%u,%u,%u), thread (%u,%u,%u)", blockIdx.x, blockIdx.y, blockIdx.z, t.x,
           t.y, t.z);
  return text;
}

void enter(unsigned thread) {
  g.current = thread;
  threadIdx = g.places[thread];
  g.threads[thread].state = State::Running;
}

void park() {
  Thread& self = g.threads[g.current];
  races_leave();
  emulator_switch(&self.fiber->top, g.scheduler);
}

void release_barrier() {
  bool all = g.positive == g.waiting;
  switch (g.barrier) {
    case Barrier::Plain:
      g.barrier_result = 0;
      break;
    case Barrier::Or:
      g.barrier_result = g.positive != 0;
      break;
    case Barrier::And:
      g.barrier_result = all;
      break;
    case Barrier::Count:
      g.barrier_result = static_cast<int>(g.positive);
      break;
  }
  g.waiting = g.positive = 0;
  races_pass_barrier();
  for (unsigned t : g.sequence)
    if (g.threads[t].state == State::AtBarrier) g.ready.push_back(t);
}

void leave(unsigned thread) {
  g.threads[thread].state = State::Exited;
  leave_cluster();
  unsigned first = thread / kWarp * kWarp, last = std::min<unsigned>(first + kWarp, g.threads.size());
  for (unsigned t = first; t < last; ++t) {
    const Thread& other = g.threads[t];
    if (other.state == State::InWarp && other.mask >> (thread - first) & 1)
      die("%s waits in %s(0x%08x) for lane %u, which has exited", where(t).c_str(),
          kCollectiveNames[static_cast<int>(other.kind)], other.mask, thread - first);
  }
  if (--g.live && g.waiting == g.live) release_barrier();
}

[[noreturn]] void fiber_main(Fiber* self) {
  for (;;) {
    while (g.ready.empty() && g.next < g.threads.size()) {
      enter(g.sequence[g.next++]);
      g.threads[g.current].fiber = self;
      (*g.body)();
      leave(g.current);
    }
    g_idle.push_back(self);
    emulator_switch(&self->top, g.scheduler);
  }
}

Fiber* g_starting = nullptr;
void fiber_entry() { fiber_main(g_starting); }

Fiber* take_fiber() {
  if (!g_idle.empty()) {
    Fiber* fiber = g_idle.back();
    g_idle.pop_back();
    return fiber;
  }
  size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* stack = mmap(nullptr, kStackBytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack == MAP_FAILED) die("no memory for a fiber's stack");
  mprotect(stack, page, PROT_NONE);
  void** top = reinterpret_cast<void**>(static_cast<char*>(stack) + page + kStackBytes);
  *--top = nullptr;  // keeps the alignment that a called function expects, and ends a backtrace
  *--top = reinterpret_cast<void*>(&fiber_entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  return new Fiber{top, static_cast<char*>(stack)};  // kept for the life of the process
}

[[noreturn]] void die_stuck() {
  std::string list;
  for (unsigned t = 0, shown = 0; t < g.threads.size() && shown < 4; ++t) {
    const Thread& thread = g.threads[t];
    if (thread.state == State::AtBarrier)
      list += "\n  " + where(t) + " waits in " + kBarrierNames[static_cast<int>(g.barrier)];
    else if (thread.state == State::InWarp)
      list += "\n  " + where(t) + " waits in " + kCollectiveNames[static_cast<int>(thread.kind)];
    else if (thread.state == State::Polling)
      list += "\n  " + where(t) + " waits for a barrier in shared memory";
    else
      continue;
    ++shown;
  }
  die("%u threads wait forever, among them%s", g.live, list.c_str());
}

// Whether a thread that waits for memory can go on.
bool poll() {
  bool any = false;
  for (unsigned t : g.sequence) {
    Thread& thread = g.threads[t];
    if (thread.state != State::Polling) continue;
    g.current = t;
    if (!thread.ready(thread.wanted)) continue;
    thread.state = State::Running;
    g.ready.push_back(t);
    any = true;
  }
  return any;
}

void start_block(uint64_t number) {
  g.number = number;
  g.index = blockIdx = {static_cast<unsigned>(number % gridDim.x),
                        static_cast<unsigned>(number / gridDim.x % gridDim.y),
                        static_cast<unsigned>(number / gridDim.x / gridDim.y)};
  races_begin_block(number);
  begin_block(static_cast<unsigned>(g.threads.size()));
  std::fill(g.threads.begin(), g.threads.end(), Thread{});
  g.next = g.waiting = g.positive = 0;
  g.live = static_cast<unsigned>(g.threads.size());
}

// Goes on until the block is done or all of its threads wait for another block; whether any went on.
bool advance() {
  bool any = false;
  while (g.live) {
    Fiber* fiber;
    if (!g.ready.empty()) {
      unsigned thread = g.ready.front();
      g.ready.pop_front();
      enter(thread);
      fiber = g.threads[thread].fiber;
    } else if (g.next < g.threads.size()) {
      fiber = g_starting = take_fiber();
    } else if (poll()) {
      continue;
    } else {
      return any;
    }
    any = true;
    emulator_switch(&g.scheduler, fiber->top);
  }
  if (any) end_block();
  return any;
}

// Block `rank` of the cluster becomes the one that runs.
void resume(unsigned rank) {
  const unsigned from = cluster_rank();
  if (rank == from) return;
  traffic_end_block();
  std::swap(g, g_suspended[from]);
  std::swap(g, g_suspended[rank]);
  exchange_block(from, rank);
  exchange_memory(rank);
  blockIdx = g.index;
  races_resume_block(g.number);
}

void run_cluster(uint64_t number, unsigned size, size_t shared_bytes) {
  g_suspended.assign(size > 1 ? size : 0, g);
  begin_cluster(size, static_cast<unsigned>(g.threads.size()), {g.shared, shared_bytes});
  for (unsigned rank = 0; rank < size; ++rank) {
    resume(rank);
    memset(g.shared, 0xFF, shared_bytes);
    start_block(number * size + rank);
  }
  for (unsigned waits = 0; waits < size;) {
    bool any = false;
    waits = size;  // the last block that has not ended
    for (unsigned rank = 0; rank < size; ++rank) {
      resume(rank);
      any |= advance();
      if (g.live) waits = rank;
    }
    if (any || waits == size) continue;
    resume(waits);
    die_stuck();
  }
  traffic_end_block();
}

// Dynamic shared memory ends at a page that cannot be touched.
constexpr size_t kWindow = 256 << 10;
char* shared_memory(size_t bytes) { return shared_window() + kWindow - (bytes + 15) / 16 * 16; }

// Says which thread it was before whoever else cares (a debugger, Python's faulthandler) sees the signal.
struct sigaction g_previous_action;
void on_fault(int, siginfo_t* info, void*) {
  if (g.running)
    fprintf(stderr, "emulated CUDA: kernel '%s', %s: bad access at %p\n", g.name.c_str(),
            where(g.current).c_str(), info->si_addr);
  sigaction(SIGSEGV, &g_previous_action, nullptr);
}
void report_faults() {
  static bool done = false;
  if (done) return;
  done = true;
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &g_previous_action);
}
// A fiber that overflows its stack cannot run a handler on it. The stack belongs to a thread of the host.
void ensure_signal_stack() {
  thread_local bool done = false;
  if (done) return;
  done = true;
  stack_t old = {};
  if (sigaltstack(nullptr, &old) || !(old.ss_flags & SS_DISABLE)) return;
  stack_t stack = {};
  stack.ss_size = 64 << 10;
  stack.ss_sp = malloc(stack.ss_size);  // lives as long as its thread may be interrupted
  sigaltstack(&stack, nullptr);
}

void set_sequence() {
  g.sequence.resize(g.threads.size());
  if (g.order == Order::Shuffled) g.salt = random_bits();
  for (unsigned i = 0; i < g.sequence.size(); ++i)
    g.sequence[i] = static_cast<unsigned>(ith(g.order, i, g.sequence.size(), g.salt));
}

uint64_t complete(Collective kind, const Thread* warp, unsigned mask, int lane) {
  const Thread& self = warp[lane];
  if (kind == Collective::Instruction) return 0;
  if (kind <= Collective::ShuffleXor) {
    if (kind == Collective::Sync) return 0;
    if (self.source < 0 || self.source >= kWarp || !(mask >> self.source & 1))
      die("%s reads lane %d, which the mask 0x%08x does not name", kCollectiveNames[static_cast<int>(kind)],
          self.source, mask);
    return warp[self.source].value;
  }
  uint64_t result = kind == Collective::MatchAny ? 0 : ~uint64_t(0);
  bool first = true;
  for (int i = 0; i < kWarp; ++i) {
    if (!(mask >> i & 1)) continue;
    uint64_t v = warp[i].value;
    uint32_t old = static_cast<uint32_t>(result), now = static_cast<uint32_t>(v);
    int32_t old_signed = static_cast<int32_t>(old), now_signed = static_cast<int32_t>(now);
    switch (kind) {
      case Collective::Ballot:
      case Collective::Any:
      case Collective::All:
        result = (first ? 0 : result) | v << i;
        break;
      case Collective::MatchAny:
        result |= uint64_t(v == self.value) << i;
        break;
      case Collective::ReduceAdd:
        result = first ? now : old + now;
        break;
      case Collective::ReduceMin:
        result = first ? now : std::min(old, now);
        break;
      case Collective::ReduceMax:
        result = first ? now : std::max(old, now);
        break;
      case Collective::ReduceMinSigned:
        result = first || now_signed < old_signed ? now : old;
        break;
      case Collective::ReduceMaxSigned:
        result = first || now_signed > old_signed ? now : old;
        break;
      case Collective::ReduceAnd:
        result = first ? now : old & now;
        break;
      case Collective::ReduceOr:
        result = first ? now : old | now;
        break;
      default:
        result = first ? now : old ^ now;
        break;
    }
    first = false;
  }
  return result;
}

// A lane may wait with others only in the same call and under the same mask.
void check_warp(const Thread* warp, int lane, int lanes) {
  const Thread& self = warp[lane];
  const char* name = kCollectiveNames[static_cast<int>(self.kind)];
  if (!(self.mask >> lane & 1)) die("%s(0x%08x) is called by lane %d, not named", name, self.mask, lane);
  for (int i = 0; i < kWarp; ++i) {
    bool named = self.mask >> i & 1;
    if (named && (i >= lanes || warp[i].state == State::Exited))
      die("%s(0x%08x) names lane %d, which %s", name, self.mask, i,
          i >= lanes ? "the block does not have" : "has exited");
    if (i >= lanes || i == lane || warp[i].state != State::InWarp) continue;
    const Thread& other = warp[i];
    if ((named || other.mask >> lane & 1) &&
        (other.kind != self.kind || other.mask != self.mask || other.run != self.run))
      die("lane %d is in %s(0x%08x) while lane %d waits in %s(0x%08x)", lane, name, self.mask, i,
          kCollectiveNames[static_cast<int>(other.kind)], other.mask);
  }
}

}  // namespace

void die(const char* format, ...) {
  char text[2048];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (g.running)
    fprintf(stderr, "emulated CUDA: kernel '%s', %s: %s\n", g.name.c_str(), where(g.current).c_str(), text);
  else
    fprintf(stderr, "emulated CUDA: %s\n", text);
  abort();
}

int lane() { return static_cast<int>(g.current % kWarp); }
bool runs_kernel() { return t_runs_kernel; }
unsigned thread_of_block() { return g.current; }
std::string thread_name(unsigned thread) {
  const uint3 t = g.places[thread];
  return "thread (" + std::to_string(t.x) + "," + std::to_string(t.y) + "," + std::to_string(t.z) + ")";
}
bool is_own_stack(const void* p) {
  const char* stack = g.threads[g.current].fiber->stack;
  return p >= stack && p < stack + kStackBytes + 4096;
}
bool is_shared_memory(const void* p) {
  const auto at = static_cast<const char*>(p);
  return (at >= emulator_shared_begin && at < emulator_shared_end) ||
         (at >= shared_window() && at < shared_window() + kWindow);
}

char* shared_window() {
  static char* const window = [] {
    void* p = mmap(nullptr, kWindow + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) die("no memory for shared memory");
    mprotect(static_cast<char*>(p) + kWindow, 4096, PROT_NONE);
    return static_cast<char*>(p);
  }();
  return window;
}

void wait_until(bool (*ready)(void*), void* state) {
  Thread& self = g.threads[g.current];
  self.ready = ready;
  self.wanted = state;
  self.state = State::Polling;
  park();
}

int wait_block(Barrier kind, bool predicate) {
  if (g.waiting && g.barrier != kind)
    die("%s is called while other threads wait in %s", kBarrierNames[static_cast<int>(kind)],
        kBarrierNames[static_cast<int>(g.barrier)]);
  g.barrier = kind;
  g.positive += predicate;
  g.threads[g.current].state = State::AtBarrier;
  if (++g.waiting == g.live) release_barrier();
  park();
  return g.barrier_result;
}

uint64_t wait_warp(Collective kind, unsigned mask, uint64_t value, int source) {
  unsigned first = g.current / kWarp * kWarp;
  int lane = static_cast<int>(g.current - first);
  int lanes = std::min<int>(kWarp, static_cast<int>(g.threads.size() - first));
  Thread* warp = g.threads.data() + first;
  Thread& self = warp[lane];
  self.kind = kind;
  self.mask = mask;
  self.value = value;
  self.source = source;
  check_warp(warp, lane, lanes);
  self.state = State::InWarp;
  bool all = true;
  for (int i = 0; i < lanes; ++i) all &= !(mask >> i & 1) || warp[i].state == State::InWarp;
  if (all) {
    if (kind == Collective::Instruction) {
      void* given[kWarp];
      for (int i = 0; i < kWarp; ++i) given[i] = reinterpret_cast<void*>(warp[i].value);
      self.run(given);
    }
    races_pass_warp(first / kWarp);
    for (int i = 0; i < lanes; ++i)
      if (mask >> i & 1) warp[i].result = complete(kind, warp, mask, i);
    for (int i = 0; i < lanes; ++i) {  // the last to come waits its turn like the others
      auto l = static_cast<unsigned>(ith(g.order, i, lanes, g.salt));
      if (!(mask >> l & 1)) continue;
      warp[l].state = State::Running;
      g.ready.push_back(first + l);
    }
  }
  park();
  return self.result;
}

void call_warp(void (*run)(void* const*), void* mine) {
  g.threads[g.current].run = run;
  wait_warp(Collective::Instruction, ~0u, reinterpret_cast<uint64_t>(mine));
}

void run_grid(const char* name, dim3 grid, dim3 block, size_t shared_bytes, unsigned cluster,
              const Work& body) {
  if (g.running) die("a kernel was started from within one");
  report_faults();
  ensure_signal_stack();
  g.name = name;
  g.body = &body;
  g.ready.clear();
  gridDim = grid;
  blockDim = block;
  unsigned n = block.x * block.y * block.z;
  g.threads.assign(n, Thread{});
  g.places.resize(n);
  for (unsigned i = 0; i < n; ++i) g.places[i] = {i % block.x, i / block.x % block.y, i / block.x / block.y};
  g.shared = shared_memory(shared_bytes);
  if (emulator_shared_begin)
    memset(emulator_shared_begin, 0xFF, static_cast<size_t>(emulator_shared_end - emulator_shared_begin));
  g.running = t_runs_kernel = true;
  races_begin_launch();
  traffic_begin_launch();
  g.order = order();
  uint64_t clusters = uint64_t(grid.x) * grid.y * grid.z / cluster, salt = random_bits();
  set_sequence();
  for (uint64_t i = 0; i < clusters; ++i) {
    if (g.order == Order::Shuffled && i % 16 == 15) set_sequence();
    run_cluster(ith(g.order, i, clusters, salt), cluster, shared_bytes);
  }
  races_end_launch();
  traffic_end_launch(name);
  g.running = t_runs_kernel = false;
}

Order order() {
  const char* text = getenv("WARPTAPE_EMULATOR_ORDER");
  if (!text || !*text || !strcmp(text, "forward")) return Order::Forward;
  if (!strcmp(text, "reverse")) return Order::Reverse;
  if (!strcmp(text, "shuffled")) return Order::Shuffled;
  die("WARPTAPE_EMULATOR_ORDER is '%s', not forward, reverse or shuffled", text);
}

uint64_t random_bits() {  // a Weyl sequence through a mixer
  static uint64_t state = [] {
    const char* seed = getenv("WARPTAPE_EMULATOR_SEED");
    return seed ? strtoull(seed, nullptr, 10) : 1;
  }();
  uint64_t x = state += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 32) * 0xd6e8feb86659fd93;
  return x ^ x >> 32;
}

uint64_t ith(Order o, uint64_t i, uint64_t n, uint64_t salt) {
  if (o == Order::Forward) return i;
  if (o == Order::Reverse) return n - 1 - i;
  uint64_t step = salt % n | 1;  // an affine permutation of n
  while (std::gcd(step, n) != 1) step += 2;
  return static_cast<uint64_t>((static_cast<unsigned __int128>(step) * i + (salt >> 32)) % n);
}

}  // namespace emulator

void* emulated_dynamic_shared() { return emulator::g.shared; }
