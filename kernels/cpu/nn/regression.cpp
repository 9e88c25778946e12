// Losses element by element. A sum is taken while the values are in registers, in vectors within a stretch
// and in double beyond it.
#include "kernels/nn/regression.h"

#include "kernels/cpu/fused/chain.h"
#include "kernels/cpu/vector/rows.h"
#include "kernels/elementwise/elementwise_ops.h"

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

WT_LOSS_OPS(WT_ELEMENTWISE)
WT_LOSS_OPS(WT_SUM_LOSS)
WT_LOSS_BACKWARD_OPS(WT_ELEMENTWISE)

}  // namespace

const StepFormulas* find_loss(const char* slot) {
  WT_LOSS_OPS(WT_IF_SLOT)
  WT_LOSS_BACKWARD_OPS(WT_IF_SLOT)
  return nullptr;
}

}  // namespace warptape::kernels::WARPTAPE_ISA
