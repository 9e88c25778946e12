// Clusters of blocks. Shared memory lies at one address for all blocks, so those of a cluster take turns: the
// memory of the others is kept aside, and changes places with what lies there when one of them goes on.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator {

struct Bytes {
  char* at;
  size_t count;
};
void begin_cluster(unsigned size, unsigned threads_of_block, Bytes dynamic_shared);
// The memory of block `rank` comes to where kernels find it.
void exchange_memory(unsigned rank);
// A thread has ended: the cluster's barrier waits for it no longer.
void leave_cluster();

// ---- what kernels ask for ----
unsigned cluster_rank();
void cluster_sync();
// Where `p` of shared memory lies in block `rank` while it does not run.
char* in_block(unsigned rank, const void* p);

}  // namespace emulator
