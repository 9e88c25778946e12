// Losses element by element. A sum is taken while the values are in registers, in vectors within a tile
// and in double beyond it.
#include "kernels/nn/regression.h"

#include "kernels/cpu/fused/chain_handlers.h"
#include "kernels/cpu/vector/rows.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

template <class Op, class T>
struct SumLoop {
  using V = Vec<T>;
  static constexpr int kLanes = V::kLanes, N = Op::kInputs;

  // A LoopFn as sum_elementwise wants it. A scalar is spread over a vector, which is read again and again.
  static void run(int64_t n, void* out, const void* const* in, unsigned scalar_mask) {
    alignas(64) char spread[N][kVecBytes];
    const T* p[N];
    int64_t moves[N];  // all bits where the input moves on, none for scalars
    for (int k = 0; k < N; ++k) {
      p[k] = static_cast<const T*>(in[k]);
      moves[k] = -1;
      if (!(scalar_mask >> k & 1)) continue;
      V(*p[k]).store(spread[k]);
      p[k] = reinterpret_cast<const T*>(spread[k]);
      moves[k] = 0;
    }
    *static_cast<double*>(out) += double(sum_vectors<T>(n, [&](int64_t i, auto lanes) {
      V x[N];
      for (int k = 0; k < N; ++k) x[k] = load(p[k] + (i & moves[k]), lanes);
      return keep<T>(Loop<Op, T>::apply(x, Mask<T>{}, Index<N>{}), lanes);
    }));
  }
};

template <class Op>
void sum_loss(const LaunchContext& ctx, const View& loss, const ElementwisePlan& plan, Reduction reduction) {
  static constexpr Loops kLoops = {
      &SumLoop<Op, float>::run, &SumLoop<Op, double>::run, nullptr, Op::kInputs, false, false, false};
  const double sum = sum_elementwise(ctx, plan, kLoops);
  store_as(loss, 0, reduction == Reduction::Mean ? sum / double(plan.numel) : sum);
}

#define WT_SUM_LOSS(slot, Op) WT_KERNEL(slot##_sum, sum_loss<Op>)

#define WT_OP(slot, Formula, ...) WT_ELEMENTWISE(slot, Formula)
#include "kernels/elementwise/ops/loss.h"
#include "kernels/elementwise/ops/loss_backward.h"
#undef WT_OP
#define WT_OP(slot, Formula, ...) WT_SUM_LOSS(slot, Formula)
#include "kernels/elementwise/ops/loss.h"
#undef WT_OP

}  // namespace

const StepFormulas* find_loss(const char* slot) {
#define WT_OP(slot_name, F, ...) WT_IF_SLOT(slot_name, F)
#include "kernels/elementwise/ops/loss.h"
#include "kernels/elementwise/ops/loss_backward.h"
#undef WT_OP
  return nullptr;
}

}  // namespace warptape::kernels::WARPTAPE_ISA
