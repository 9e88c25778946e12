#include "clusters.h"

#include <algorithm>
#include <vector>

#include "internal.h"
#include "races.h"

extern char emulator_shared_begin[] __attribute__((weak, visibility("hidden")));
extern char emulator_shared_end[] __attribute__((weak, visibility("hidden")));

namespace emulator {
namespace {

struct Aside {
  std::vector<char> bytes[2];  // of each part of shared memory
};
struct Cluster {
  unsigned rank = 0;
  Bytes parts[2]{};  // dynamic and static shared memory
  std::vector<Aside> aside;
  std::vector<unsigned> threads;   // of each block, that have not ended
  unsigned live = 0, waiting = 0;  // of all
  uint64_t phase = 0;              // of cluster_sync()
} g;

bool is_over(void* phase) {
  if (g.waiting == g.live) {
    g.waiting = 0, ++g.phase;
    races_pass_barrier();
  }
  return g.phase != *static_cast<const uint64_t*>(phase);
}

}  // namespace

void begin_cluster(unsigned size, unsigned threads_of_block, Bytes dynamic_shared) {
  g.rank = g.waiting = 0;
  g.live = size * threads_of_block;
  g.threads.assign(size, threads_of_block);
  g.parts[0] = dynamic_shared;
  g.parts[1] = {emulator_shared_begin, static_cast<size_t>(emulator_shared_end - emulator_shared_begin)};
  g.aside.clear();
  if (size == 1) return;
  g.aside.resize(size);
  for (Aside& one : g.aside)
    for (int i = 0; i < 2; ++i) one.bytes[i].assign(g.parts[i].count, '\xFF');
}

void exchange_memory(unsigned rank) {
  for (int i = 0; i < 2; ++i) {
    const Bytes& part = g.parts[i];
    std::copy_n(part.at, part.count, g.aside[g.rank].bytes[i].begin());
    std::copy_n(g.aside[rank].bytes[i].begin(), part.count, part.at);
  }
  g.rank = rank;
}

void leave_cluster() { --g.live, --g.threads[g.rank]; }
unsigned cluster_rank() { return g.rank; }
void cluster_sync() {
  uint64_t phase = g.phase;
  ++g.waiting;
  wait_until(is_over, &phase);
}

char* in_block(unsigned rank, const void* p) {
  auto* at = static_cast<char*>(const_cast<void*>(p));
  if (rank == g.rank) return at;
  if (rank >= g.threads.size()) die("block %u of a cluster of %zu", rank, g.threads.size());
  if (!g.threads[rank]) die("block %u of the cluster has ended, and its shared memory with it", rank);
  for (int i = 0; i < 2; ++i)
    if (at >= g.parts[i].at && at < g.parts[i].at + g.parts[i].count)
      return g.aside[rank].bytes[i].data() + (at - g.parts[i].at);
  die("%p is not shared memory that a block of the cluster has, too", p);
}

}  // namespace emulator
