// Linear layers of frozen graphs, whose weights are packed once.
#include "ops/linalg/linear_prepacked.h"

#include "ops/linalg/matmul_plan.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::MatmulPackFn> pack_slot{"matmul_pack"};

// Below that few columns a product reads the weight where it is.
constexpr int64_t kFewestOutputs = kernels::kFewRows + 1;

// The product x weight^T, whose second matrix is packed; nothing where no kernel reads it packed.
std::optional<kernels::MatmulPlan> packing_plan(const Tensor& w) {
  if (w.ndim() != 2 || !w.device().is_host() || !is_floating(w.dtype()) || w.is_meta()) return {};
  if (w.sizes()[0] < kFewestOutputs || !w.sizes()[1]) return {};
  kernels::MatmulPlan p{};
  p.dtype = w.dtype();
  p.batch[0] = p.batch[1] = 1;
  p.n = w.sizes()[0], p.k = w.sizes()[1];
  p.b = {w.planned_data(), w.strides()[1], w.strides()[0], {0, 0}};
  return p;
}

int64_t packed_bytes(const Tensor& w) {
  const std::optional<kernels::MatmulPlan> p = packing_plan(w);
  return p ? pack_slot(Launch(w.device()), *p, nullptr) : 0;
}

Tensor linear_prepacked_impl(const Tensor& x, const Tensor& w, const OptTensor& bias,
                             const OptTensor& packed) {
  if (!packed) return linear(x, w, bias);
  const bool fits = packed->dtype() == DType::UInt8 && packed->is_contiguous() && packed->offset() == 0 &&
                    packed->device().is_host() && packed->numel() && packed->numel() == packed_bytes(w);
  WT_CHECK(fits, ShapeError, "_linear_prepacked: packed, of shape ", packed->sizes(),
           ", is not what the weight of shape ", w.sizes(), " was packed to");
  const bool plain = !thread_state().dispatch && !needs_grad(x, w, bias) && x.device().is_host() &&
                     !x.is_meta() && x.dtype() == w.dtype();
  return plain ? linear_with(x, w, bias, packed->data()) : linear(x, w, bias);
}

}  // namespace

Tensor pack_linear_weight(const Tensor& w) {
  const int64_t bytes = packed_bytes(w);
  if (!bytes) return {};
  const kernels::MatmulPlan p = *packing_plan(w);
  Tensor out = empty(Shape{bytes}, {DType::UInt8, w.device()});
  pack_slot(Launch(w.device()), p, out.data());
  return out;
}

decltype(linear_prepacked) linear_prepacked{
    "_linear_prepacked",
    linear_prepacked_impl,
    kPrivate | kChecked,
    {"input", "weight", {"bias", none}, {"packed", none}},
    "linear(input, weight, bias); `packed`: the weight as the kernel reads it."};

}  // namespace warptape::ops
