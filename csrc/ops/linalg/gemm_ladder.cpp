// The GEMM ladder's steps as an op of their own, to be compared and measured; see
// kernels/linalg/gemm_ladder.h.
#include "kernels/linalg/gemm_ladder.h"

#include "ops/compose.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::GemmStepFn> step_slot{"gemm_step"};
constexpr const char* kOp = "_gemm_step";

void check_dtypes(const kernels::GemmStep& s, const Tensor& a, const Tensor& b, const OptTensor& bias) {
  const DType dtype = a.dtype();
  const bool takes =
      s.tensor_cores ? dtype == DType::BFloat16 || dtype == DType::Float16 : dtype == DType::Float32;
  WT_CHECK(takes && b.dtype() == dtype && (!bias || bias->dtype() == dtype), DtypeError, kOp, ": step '",
           s.name, "' takes operands of one dtype, ", s.tensor_cores ? "bfloat16 or float16" : "float32",
           ", got ", a.dtype(), " and ", b.dtype(), "; convert them with .to(dtype) or take another step");
}

void check_sizes(const kernels::GemmStep& s, const Tensor& a, const Tensor& b, const OptTensor& bias) {
  WT_CHECK(a.ndim() == 2 && b.ndim() == 2 && a.sizes()[1] == b.sizes()[0], ShapeError, kOp,
           ": expected [m, k] and [k, n], got ", a.sizes(), " and ", b.sizes());
  const int64_t m = a.sizes()[0], k = a.sizes()[1], n = b.sizes()[1];
  constexpr int64_t kMost = int64_t(1) << 30;
  WT_CHECK(k > 0 && m < kMost && n < kMost && k < kMost, ShapeError, kOp,
           ": expected k of at least 1 and sizes below 2^30, got ", a.sizes(), " and ", b.sizes());
  WT_CHECK(n % s.multiple_n == 0 && k % s.multiple_k == 0, ShapeError, kOp, ": step '", s.name,
           "' copies rows by 16 bytes, so n must be a multiple of ", s.multiple_n, " and k of ", s.multiple_k,
           ", got n ", n, " and k ", k, "; pad the operands or take another step");
  WT_CHECK(!bias || (bias->ndim() == 1 && bias->sizes()[0] == n), ShapeError, kOp, ": expected bias [", n,
           "], got ", bias ? bias->sizes() : Shape{});
}

// Contiguous, and at an address that 16-byte accesses take: a copy where it is not.
Tensor aligned(const Tensor& x) {
  const Tensor dense = raw_contiguous(x);
  if (reinterpret_cast<uintptr_t>(dense.planned_data()) % 16 == 0) return dense;
  const Tensor copy = empty(x.sizes(), options_of(x));
  raw_copy(copy, dense);
  return copy;
}

Tensor gemm_step_impl(const Tensor& a, const Tensor& b, int64_t step, const OptTensor& bias, bool gelu) {
  WT_CHECK(step >= 0 && step < kernels::kGemmStepCount, ValueError, kOp, ": expected a step of 0 to ",
           kernels::kGemmStepCount - 1, ", got ", step);
  const kernels::GemmStep& s = kernels::kGemmSteps[step];
  WT_CHECK(!needs_grad(a, b, bias), NotImplementedError, kOp,
           ": has no gradient, but an argument requires one; call it under no_grad(), or use matmul");
  WT_CHECK(s.epilogue || (!bias && !gelu), ValueError, kOp, ": step '", s.name,
           "' has no epilogue; add the bias and apply GELU after it");
  check_dtypes(s, a, b, bias);
  check_same_device(kOp, a, b, "b");
  if (bias) check_same_device(kOp, a, *bias, "bias");
  WT_CHECK(a.device().type != DeviceType::CPU, DeviceError, kOp,
           ": the steps are CUDA kernels, got tensors on the CPU; move them with .to('cuda') or use matmul");
  check_sizes(s, a, b, bias);
  const Tensor out = empty(Shape{a.sizes()[0], b.sizes()[1]}, options_of(a));
  if (out.numel() == 0 || out.is_meta()) return out;
  const Tensor left = aligned(a), right = aligned(b), row = bias ? aligned(*bias) : Tensor();
  step_slot(Launch(out.device()),
            kernels::GemmStepPlan{static_cast<kernels::GemmStepId>(step), a.dtype(), a.sizes()[0],
                                  b.sizes()[1], a.sizes()[1], left.planned_data(), right.planned_data(),
                                  row.defined() ? row.planned_data() : nullptr, gelu, out.data()});
  return out;
}

const Op<Tensor(const Tensor&, const Tensor&, int64_t, const OptTensor&, bool)> gemm_step{
    kOp,
    gemm_step_impl,
    kPrivate,
    {"a", "b", "step", {"bias", none}, {"gelu", false}},
    "a [m, k] times b [k, n] by one step of warptape.cuda.gemm_ladder, for CUDA tensors and without a "
    "gradient."};

}  // namespace
}  // namespace warptape::ops
