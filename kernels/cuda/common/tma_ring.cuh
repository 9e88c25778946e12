// Buffers that a producer fills by TMA and consumers empty, in turn.
#pragma once

#include "kernels/cuda/common/ptx.cuh"

namespace warptape::kernels::cuda {

// Of each buffer: its bytes are there; its consumers are done with it.
template <int Stages>
struct Ring {
  uint64_t full[Stages], empty[Stages];

  // By one thread. `consumers` arrive at each `empty`.
  WT_DEVICE void init(int consumers) {
    for (int s = 0; s < Stages; ++s) {
      init_barrier(&full[s], 1);
      init_barrier(&empty[s], consumers);
    }
  }
};

// The parity of a barrier's phase changes with each round.
template <int Stages>
struct Turn {
  int stage = 0;
  uint32_t parity = 0;
  WT_DEVICE void next() {
    if (++stage == Stages) stage = 0, parity ^= 1;
  }
};

}  // namespace warptape::kernels::cuda
