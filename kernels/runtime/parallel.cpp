// The worker pool. A caller publishes its job in one of a few static places, takes part in it, and waits for
// the last worker. Each thread begins in a range of chunks of its own, so that successive loops over the same
// data meet the same caches. Workers spin a few microseconds for the next job, then block on a futex:
// spinning longer collapses on shared cores.
#include "kernels/runtime/parallel.h"

#include "kernels/per_thread.h"
#include "kernels/runtime/interrupt.h"
#include "kernels/runtime/pause.h"
#include "kernels/runtime/services.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <exception>
#include <new>

namespace warptape::kernels::cpu {
namespace {

constexpr int kPlaces = 32;  // jobs of different callers at one time; a caller that finds none runs alone
constexpr int kMaxThreads = 1024;
constexpr int kMaxRanges = 16;       // of a job; more threads share them
constexpr int64_t kSpinNs = 100000;  // a halted virtual processor takes about half of it to wake
constexpr int64_t kPollNs = 50'000'000;

struct OfThread {
  bool inside = false;                        // of a parallel region
  int* threads = nullptr;                     // that a rank has bound
  int uninterrupted = 0;                      // scopes; a thread of the pool is in one for good
  const std::atomic<bool>* failed = nullptr;  // of the job that a thread of the pool helps with
  int64_t interrupt_due = 0;
  void* scratch = nullptr;
  size_t scratch_size = 0;
  ~OfThread() { std::free(scratch); }
};
PerThread<OfThread> of_thread;

struct Abandoned {};  // ends a worker's chunk of a job that has failed; nobody sees it

// Without a timeout if `ns` is 0.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, int64_t ns = 0) {
  const timespec timeout{ns / 1000000000, ns % 1000000000};
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, ns ? &timeout : nullptr, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word, int count) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// Spins until done() or the time is over; returns done().
template <class F>
bool spin_until(F&& done) {
  int64_t deadline = now_ns() + kSpinNs;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      spin_pause();
    }
  } while (now_ns() < deadline);
  return done();
}

// Chunks that one thread takes first, in rising order: memory that a thread reads in one stream arrives
// faster than the same memory in pieces, by a third on an AMD Zen 5.
struct alignas(64) Range {
  std::atomic<int64_t> next;
  int64_t end;

  // The chunk that is the caller's, or -1 where none is left.
  int64_t claim() {
    if (next.load(std::memory_order_relaxed) >= end) return -1;
    const int64_t chunk = next.fetch_add(1);
    return chunk < end ? chunk : -1;
  }
};

struct Job {
  int64_t n, grain;
  void (*body)(void*, int64_t, int64_t);
  void* context;
  int count;  // of ranges
  std::atomic<bool> failed{false};
  std::exception_ptr error{};
  Range ranges[kMaxRanges];

  Job(int64_t n, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context, int64_t threads)
      : n(n), grain(grain), body(body), context(context), count(int(std::min<int64_t>(threads, kMaxRanges))) {
    const int64_t chunks = (n + grain - 1) / grain, each = chunks / count, more = chunks % count;
    for (int64_t i = 0, begin = 0; i < count; ++i) {
      ranges[i].next.store(begin, std::memory_order_relaxed);
      ranges[i].end = begin += each + (i < more);
    }
  }

  void fail() {
    if (!failed.exchange(true)) error = std::current_exception();
    for (int i = 0; i < count; ++i) ranges[i].next.store(ranges[i].end);
  }
  void run(int64_t chunk) {
    int64_t begin = chunk * grain;
    try {
      body(context, begin, begin + grain < n ? begin + grain : n);
    } catch (...) {
      fail();
    }
  }
  // An interruption ends the job as an exception of the body does.
  void poll() {
    try {
      poll_interrupt();
    } catch (...) {
      fail();
    }
  }
  // All chunks from the first range on, as far as no other thread takes them.
  void run_caller() {
    for (int i = 0; i < count; ++i)
      for (int64_t chunk; (chunk = ranges[i].claim()) >= 0; poll()) run(chunk);
  }
  // The same, from a range that is not the caller's.
  void run_worker(int worker) {
    const int first = count > 1 ? 1 + worker % (count - 1) : 0;
    of_thread->failed = &failed;
    for (int i = 0; i < count; ++i)
      for (int64_t chunk; (chunk = ranges[(first + i) % count].claim()) >= 0;) run(chunk);
    of_thread->failed = nullptr;
  }
};

// A place outlives its jobs, so a worker may look into it at any time: it first counts itself in `users`,
// then reads `job`; the caller first clears `job`, then waits for `users` to be zero.
struct alignas(64) Place {
  std::atomic<bool> taken{false};
  std::atomic<Job*> job{nullptr};
  std::atomic<int> limit{0};  // workers wanted
  std::atomic<uint32_t> users{0};
  std::atomic<bool> caller_blocked{false};
};

class Pool {
 public:
  void run(Job& job, int workers);

 private:
  void grow(int workers);
  void serve(int worker);
  bool help(Place& place, int worker);
  static void* worker_main(void* pool);
  void part_from_caller();

  alignas(64) std::atomic<uint32_t> epoch_{0};  // counts published jobs; idle workers wait for it to change
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<int> workers_{0};
  std::atomic<int> started_{0};  // of them
  std::atomic<bool> growing_{false};
  std::atomic<int> high_place_{0};  // places beyond were never used
  std::atomic<int> avoided_{-1};    // the processor that workers keep off
  Place places_[kPlaces];
  pthread_t threads_[kMaxThreads];
};

// Linux takes a halted virtual processor for a preempted one, and so wakes a worker on the processor of its
// caller, where the two take turns for milliseconds. A worker is never of use there.
void Pool::part_from_caller() {
  int here = sched_getcpu();
  if (here < 0 || avoided_.exchange(here) == here) return;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed) || CPU_COUNT(&allowed) < 2) return;
  CPU_CLR(here, &allowed);
  for (int i = 0, n = workers_.load(); i < n; ++i)
    pthread_setaffinity_np(threads_[i], sizeof allowed, &allowed);
}

void Pool::run(Job& job, int workers) {
  if (workers_.load(std::memory_order_relaxed) < workers) grow(workers);
  Place* place = nullptr;
  for (int i = 0; i < kPlaces && !place; ++i) {
    if (places_[i].taken.load(std::memory_order_relaxed) || places_[i].taken.exchange(true)) continue;
    place = &places_[i];
    for (int high = high_place_.load(); high <= i && !high_place_.compare_exchange_weak(high, i + 1);) {
    }
  }
  if (!place) return job.run_caller();
  place->limit.store(workers, std::memory_order_relaxed);
  place->job.store(&job);
  epoch_.fetch_add(1);
  if (sleepers_.load() > 0) {
    part_from_caller();
    futex_wake(epoch_, workers);
  }
  job.run_caller();

  place->job.store(nullptr);
  auto idle = [&] { return place->users.load() == 0; };
  if (!idle() && !spin_until(idle)) {
    place->caller_blocked.store(true);
    for (uint32_t users; (users = place->users.load()) != 0;) {
      futex_wait(place->users, users, kPollNs);
      job.poll();
    }
    place->caller_blocked.store(false);
  }
  place->taken.store(false);
}

void Pool::grow(int workers) {
  if (growing_.exchange(true)) return;  // another caller is at it; its workers serve all
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals belong to the program's own threads
  while (workers_.load() < workers) {
    pthread_t& thread = threads_[workers_.load()];
    if (pthread_create(&thread, nullptr, worker_main, this)) break;  // fewer workers are slower, not wrong
    pthread_detach(thread);  // workers never end, so the handle stays good
    workers_.fetch_add(1);
    avoided_.store(-1);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  growing_.store(false);
}

void* Pool::worker_main(void* pool) {
  of_thread->inside = true;
  ++of_thread->uninterrupted;
  Pool* own = static_cast<Pool*>(pool);
  own->serve(own->started_.fetch_add(1));
  return nullptr;
}

bool Pool::help(Place& place, int worker) {
  if (!place.job.load(std::memory_order_relaxed)) return false;
  bool wanted = int(place.users.fetch_add(1)) < place.limit.load();
  Job* job = wanted ? place.job.load() : nullptr;
  if (job) job->run_worker(worker);
  if (place.users.fetch_sub(1) == 1 && place.caller_blocked.load()) futex_wake(place.users, 1);
  return job != nullptr;
}

void Pool::serve(int worker) {
  for (;;) {
    uint32_t epoch = epoch_.load();
    bool helped = false;
    for (int i = 0, high = high_place_.load(); i < high; ++i) helped |= help(places_[i], worker);
    if (helped) continue;
    auto published = [&] { return epoch_.load(std::memory_order_relaxed) != epoch; };
    if (spin_until(published)) continue;
    sleepers_.fetch_add(1);
    futex_wait(epoch_, epoch);  // returns at once if a job came in between
    sleepers_.fetch_sub(1);
  }
}

// Never freed: workers may outlive static destructors. A forked child has no workers; it forgets the parent's
// pool.
std::atomic<Pool*> g_pool{nullptr};

Pool& pool() {
  if (Pool* p = g_pool.load(std::memory_order_acquire)) return *p;
  Pool* fresh = new Pool;
  Pool* expected = nullptr;
  if (!g_pool.compare_exchange_strong(expected, fresh)) {
    delete fresh;
    return *expected;
  }
  static std::atomic<bool> hooked{false};
  if (!hooked.exchange(true)) pthread_atfork(nullptr, nullptr, [] { g_pool.store(nullptr); });
  return *fresh;
}

int default_threads() {
  for (const char* name : {"WARPTAPE_NUM_THREADS", "OMP_NUM_THREADS"}) {
    const char* text = std::getenv(name);
    long n = text ? std::strtol(text, nullptr, 10) : 0;
    if (n > 0) return int(n < kMaxThreads ? n : kMaxThreads);
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? int(n) : 1;
}

int& process_threads() {
  static int n = default_threads();
  return n;
}

}  // namespace

void poll_interrupt() {
  OfThread& t = *of_thread;
  if (t.failed && t.failed->load(std::memory_order_relaxed)) throw Abandoned{};
  Services* above = services();
  if (!above || t.uninterrupted > 0) return;
  int64_t now = now_ns();
  if (now < t.interrupt_due) return;
  t.interrupt_due = now + kPollNs;
  above->check_interrupt();
}

Uninterrupted::Uninterrupted() { ++of_thread->uninterrupted; }
Uninterrupted::~Uninterrupted() { --of_thread->uninterrupted; }

int num_threads() {
  const int* bound = of_thread->threads;
  return bound && *bound > 0 ? *bound : process_threads();
}

void set_num_threads(int n) {
  n = n < 1 ? 1 : n > kMaxThreads ? kMaxThreads : n;
  int* bound = of_thread->threads;
  (bound ? *bound : process_threads()) = n;
}

void bind_num_threads(int* count) { of_thread->threads = count; }

void* thread_scratch(size_t bytes) {
  OfThread& t = *of_thread;
  if (bytes > t.scratch_size) {
    std::free(t.scratch);
    t.scratch_size = (bytes + 65535) & ~size_t{65535};
    t.scratch = std::aligned_alloc(64, t.scratch_size);
    if (!t.scratch) {
      t.scratch_size = 0;
      throw std::bad_alloc();
    }
  }
  return t.scratch;
}

bool in_parallel_region() { return of_thread->inside; }

void parallel_chunks(int64_t n, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context) {
  if (n <= 0) return;
  if (grain < 1) grain = 1;
  const int64_t chunks = (n + grain - 1) / grain;
  OfThread& t = *of_thread;
  const bool nested = t.inside;
  const int64_t workers = nested ? 0 : std::min<int64_t>(num_threads(), chunks) - 1;
  Job job(n, grain, body, context, workers + 1);
  t.inside = true;
  if (workers < 1)
    job.run_caller();
  else
    pool().run(job, int(workers));
  t.inside = nested;
  if (job.failed.load()) std::rethrow_exception(job.error);
}

}  // namespace warptape::kernels::cpu
