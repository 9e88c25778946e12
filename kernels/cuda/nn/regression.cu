// Losses element by element. Their sums: a few elements are added up in the compute type, the rest in double;
// a fixed number of blocks leaves a part each, which a last one adds in order.
#include "kernels/nn/regression.h"

#include "kernels/cuda/common/groups.cuh"
#include "kernels/cuda/elementwise/elementwise.cuh"
#include "kernels/cuda/reduce/reducers.cuh"

namespace warptape::kernels::cuda {
namespace {

inline constexpr int64_t kSumBlocks = 1056;

struct AddDoubles {
  WT_DEVICE double operator()(double a, double b) const { return a + b; }
};

template <class F, class C>
__global__ void __launch_bounds__(kThreads)
    sum_loss_kernel(const __grid_constant__ GeneralArgs<C, F::kInputs> a, double* parts) {
  constexpr int N = F::kInputs, U = kGeneralLoads<C>;
  __shared__ double shared[kThreads / kWarp];
  double sum = 0;
  for (int64_t first = int64_t(blockIdx.x) * (kThreads * U) + threadIdx.x; first < a.n;
       first += int64_t(gridDim.x) * (kThreads * U)) {
    const int count = int(min(int64_t(U), (a.n - first + kThreads - 1) / kThreads));
    Offsets<N + 1> places[U];
    C x[N][U];
    load_elements(a, first, count, places, x);
    C few = 0;
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (u >= count) break;
      C values[N];
#pragma unroll
      for (int k = 0; k < N; ++k) values[k] = x[k][u];
      few += apply<F, C>(values, false);
    }
    sum += double(few);
  }
  sum = group_join(sum, kThreads, 0.0, AddDoubles{}, shared);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    finish_loss_kernel(Output loss, const double* parts, int64_t count, double divisor) {
  __shared__ double shared[kThreads / kWarp];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += parts[i];
  sum = group_join(sum, kThreads, 0.0, AddDoubles{}, shared);
  if (threadIdx.x == 0) loss.put(sum / divisor, 0);
}

template <class F, class C>
void sum_parts(const LaunchContext& ctx, const char* name, const ElementwisePlan& given, double* parts,
               int64_t blocks) {
  for_inner_dims(given, kIndexDims, [&](const ElementwisePlan& plan) {
    const auto a = general_args<C, F::kInputs>(plan);
    launch(ctx, name, sum_loss_kernel<F, C>, dim3(unsigned(blocks)), dim3(kThreads), 0, a, parts);
    parts += blocks;
  });
}

template <class F>
void sum_loss(const LaunchContext& ctx, const char* name, const View& loss, const ElementwisePlan& plan,
              Reduction reduction) {
  int64_t slices = 1;  // launches, of plans with too many dims
  for (int d = 0; d + kIndexDims < plan.ndim; ++d) slices *= plan.sizes[d];
  const int64_t blocks =
      slices == 0 ? 0
                  : min(kSumBlocks, ceil_div(plan.numel / slices, int64_t(kThreads) * kGeneralLoads<float>));
  double* parts = static_cast<double*>(ctx.scratch(size_t(slices * blocks + 1) * sizeof(double)));
  if (plan.numel > 0) {
    if (plan.compute == DType::Float64)
      sum_parts<F, double>(ctx, name, plan, parts, blocks);
    else
      sum_parts<F, float>(ctx, name, plan, parts, blocks);
  }
  launch(ctx, name, finish_loss_kernel, dim3(1), dim3(kThreads), 0, Output{loss.data, loss.dtype}, parts,
         slices * blocks, reduction == Reduction::Mean ? double(plan.numel) : 1.0);
}

#define WT_SUM_LOSS(slot, Formula)                                                            \
  void slot##_sum_op(const LaunchContext& ctx, const View& loss, const ElementwisePlan& plan, \
                     Reduction reduction) {                                                   \
    sum_loss<Formula>(ctx, #slot, loss, plan, reduction);                                     \
  }                                                                                           \
  WT_KERNEL(slot##_sum, slot##_sum_op)

#define WT_OP(slot, Formula, ...) WT_ELEMENTWISE(slot, Formula)
#include "kernels/elementwise/ops/loss.h"
#include "kernels/elementwise/ops/loss_backward.h"
#undef WT_OP
#define WT_OP(slot, Formula, ...) WT_SUM_LOSS(slot, Formula)
#include "kernels/elementwise/ops/loss.h"
#undef WT_OP

}  // namespace
}  // namespace warptape::kernels::cuda
