// A chain that runs part by part, within a kernel that has just made what it reads.
#pragma once

#include "kernels/fused/chain.h"

namespace warptape::kernels::WARPTAPE_ISA {

struct ChainProgram;

class ChainParts {
 public:
  // Both as long as this.
  ChainParts(const LaunchContext& ctx, const ChainPlan& plan);
  ~ChainParts();
  ChainParts(const ChainParts&) = delete;
  ChainParts& operator=(const ChainParts&) = delete;
  // Elements [begin, end) in the order of the plan's dims, on the calling thread. Uses its scratch memory.
  void run(int64_t begin, int64_t end) const;
  // All, on all threads.
  void run_all() const;

 private:
  const LaunchContext& ctx_;
  const ChainPlan& plan_;
  ChainProgram* program_;
};

// f(the chain, null where there is none).
template <class F>
WT_INLINE void with_chain(const LaunchContext& ctx, const ChainPlan* plan, F&& f) {
  if (!plan) return f(static_cast<const ChainParts*>(nullptr));
  const ChainParts parts(ctx, *plan);
  f(&parts);
}

}  // namespace warptape::kernels::WARPTAPE_ISA
