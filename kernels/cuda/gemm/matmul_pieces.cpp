// Products with an epilogue, taken apart: the slot "matmul", then kernels of other families.
#include "kernels/cuda/libraries/plain.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/reduce/reduce.h"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

Slot<MatmulFn> product_slot{"matmul"};
Slot<ReduceFn> sum_slot{"sum"};
Slot<ElementwiseFn> gelu_slot{"gelu_tanh"}, gelu_backward_slot{"gelu_tanh_backward"};

// out [rows] = sums of x [rows, cols], any strides.
void sum_rows(const LaunchContext& ctx, DType dtype, void* out, void* x, int64_t rows, int64_t cols,
              int64_t row_stride, int64_t col_stride) {
  const int64_t sizes[2] = {rows, cols}, strides[2] = {row_stride, col_stride};
  const int64_t kept[2] = {rows, 1}, dense[2] = {1, 1};
  sum_slot(ctx, View{out, kept, dense, 2, dtype}, View{x, sizes, strides, 2, dtype});
}

// Over operands that are all as C is: rows of n, `stride` apart.
template <size_t N>
ElementwisePlan over_product(const MatmulPlan& p, void* const (&operands)[N]) {
  ElementwisePlan plan{};
  const auto bytes = static_cast<int64_t>(itemsize(p.dtype));
  const bool dense = p.c.row_stride == p.n || p.m == 1;
  plan.ndim = dense ? 1 : 2;
  plan.count = N;
  plan.numel = p.m * p.n;
  plan.compute = p.dtype == DType::Float64 ? DType::Float64 : DType::Float32;
  plan.sizes[0] = dense ? plan.numel : p.m;
  plan.sizes[1] = p.n;
  for (size_t i = 0; i < N; ++i) {
    Operand& o = plan.operands[i];
    o.data = static_cast<char*>(operands[i]);
    o.dtype = p.dtype;
    o.strides[0] = dense ? bytes : p.c.row_stride * bytes;
    o.strides[1] = bytes;
  }
  return plan;
}

}  // namespace

void row_sums_plain(const LaunchContext& ctx, const MatmulPlan& plan, void* sums) {
  if (plan.n > 0) product_slot(ctx, plan);
  if (plan.m > 0)
    sum_rows(ctx, plan.dtype, sums, plan.a.data, plan.m, plan.k, plan.a.row_stride, plan.a.col_stride);
}

void gelu_plain(const LaunchContext& ctx, const MatmulPlan& plan, void* before) {
  if (plan.m == 0 || plan.n == 0) return;
  MatmulPlan product = plan;
  product.c.data = before;
  product_slot(ctx, product);
  gelu_slot(ctx, over_product<2>(plan, {plan.c.data, before}));
}

void gelu_backward_plain(const LaunchContext& ctx, const MatmulPlan& plan, const void* before, void* sums) {
  if (plan.n == 0) return;
  if (plan.m > 0) {
    product_slot(ctx, plan);
    // In place: each element is read before it is written.
    gelu_backward_slot(ctx, over_product<3>(plan, {plan.c.data, plan.c.data, const_cast<void*>(before)}));
  }
  if (sums) sum_rows(ctx, plan.dtype, sums, plan.c.data, plan.n, plan.m, 1, plan.c.row_stride);
}

}  // namespace warptape::kernels::cuda
