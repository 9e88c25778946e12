// How kernels report a bad index.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels::cpu {

// Several threads may find bad indices: the first one is kept.
WT_INLINE void report_index(const LaunchContext& ctx, int64_t index, int64_t bound) {
  if (__atomic_exchange_n(&ctx.fault->set, true, __ATOMIC_RELAXED)) return;
  ctx.fault->index = index;
  ctx.fault->bound = bound;
}

}  // namespace warptape::kernels::cpu
