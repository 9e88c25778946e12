// Products of groups of rows with a matrix each, as a mixture of experts has them. One kernel, also for both
// gradients: that of the matrices is a product whose groups lie along k.
#include "kernels/linalg/grouped_mm.h"

#include "op/op.h"
#include "ops/kernel_inputs.h"
#include "ops/linalg/matmul.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::GroupedMmFn> grouped_slot{"grouped_mm"};
constexpr const char* kOp = "grouped_mm";

using GroupedMm =
    Op<Tensor(const Tensor&, const Tensor&, const OptTensor&, const OptTensor&, std::optional<DType>)>;
extern const GroupedMm grouped_mm;

// m, n and k of one group, and how many groups there are.
struct Sizes {
  int64_t groups, m, n, k;
};

Sizes check_sizes(const Tensor& a, const Tensor& b, const OptTensor& offs) {
  const bool fits = (a.ndim() == 2 || a.ndim() == 3) && (b.ndim() == 2 || b.ndim() == 3);
  WT_CHECK(fits, ShapeError, kOp,
           ": expected matrices [m, k] or [groups, m, k], and [k, n] or [groups, k, n], got ", a.sizes(),
           " and ", b.sizes());
  const bool both = a.ndim() == 3 && b.ndim() == 3;
  WT_CHECK(both == !offs, ValueError, kOp,
           both ? ": two batches of matrices have no offsets" : ": needs offs, where each group ends");
  const int64_t k = b.sizes()[size_t(b.ndim()) - 2], n = b.sizes().back();
  WT_CHECK(a.sizes().back() == k, ShapeError, kOp, ": contraction dims of ", a.sizes(), " and ", b.sizes(),
           " differ; mat_a's last must be mat_b's last but one");
  const int64_t groups = a.ndim() == 3 ? a.sizes()[0] : b.ndim() == 3 ? b.sizes()[0] : offs->numel();
  WT_CHECK(!both || b.sizes()[0] == groups, ShapeError, kOp,
           ": expected as many matrices in both batches, got ", a.sizes(), " and ", b.sizes());
  WT_CHECK(!offs || (offs->ndim() == 1 && offs->numel() == groups), ShapeError, kOp, ": expected offs [",
           groups, "], an end for each group, got ", offs ? offs->sizes() : Shape{});
  return {groups, a.sizes()[size_t(a.ndim()) - 2], n, k};
}

void check_types(const Tensor& a, const Tensor& b, const OptTensor& offs, const OptTensor& bias,
                 std::optional<DType> out_dtype) {
  WT_CHECK(is_floating(a.dtype()) && a.dtype() == b.dtype(), DtypeError, kOp,
           ": expected matrices of one floating dtype, got ", a.dtype(), " and ", b.dtype(),
           "; convert one with .to(dtype)");
  check_same_device(kOp, a, b, "mat_b");
  if (offs) {
    WT_CHECK(offs->dtype() == DType::Int32 || offs->dtype() == DType::Int64, DtypeError, kOp,
             ": expected offs of int32 or int64, got ", offs->dtype());
    check_same_device(kOp, a, *offs, "offs");
  }
  WT_CHECK(!bias, NotImplementedError, kOp,
           ": has no bias, as in PyTorch; add the groups' own rows after it");
  WT_CHECK(!out_dtype || *out_dtype == a.dtype(), NotImplementedError, kOp,
           ": the result has mat_a's dtype, ", a.dtype(), ", got out_dtype ", *out_dtype,
           "; convert it with .to(dtype)");
}

// The last two dims exchanged, dense: [.., k, n] of which each matrix lies as [n, k].
bool lies_transposed(const Tensor& b) {
  const Shape &sizes = b.sizes(), &strides = b.strides();
  const int64_t k = sizes[1], n = sizes[2];
  return strides[1] == 1 && strides[2] == k && (sizes[0] == 1 || strides[0] == n * k);
}

// a [m, k] by b [groups, k, n] with ends among m, or by b [k, n] with ends among k.
Tensor run(const Tensor& a, const Tensor& b, const Tensor& offs, const Sizes& s) {
  constexpr int64_t kMost = int64_t(1) << 31;
  WT_CHECK(s.m < kMost && s.n < kMost && s.k < kMost, ShapeError, kOp, ": sizes must be below 2^31, got ",
           a.sizes(), " and ", b.sizes());
  kernels::GroupedMmPlan p{};
  p.dtype = a.dtype(), p.along_k = b.ndim() == 2;
  p.groups = s.groups, p.m = s.m, p.n = s.n, p.k = s.k;
  const Tensor out = empty(p.along_k ? Shape{s.groups, s.m, s.n} : Shape{s.m, s.n}, options_of(a));
  if (out.is_meta() || out.numel() == 0) return out;
  if (s.k == 0 || s.groups == 0) {
    raw_fill(out, 0);
    return out;
  }
  const Tensor ends = raw_contiguous(raw_cast(offs, DType::Int32));
  p.b_transposed = !p.along_k && !b.is_contiguous() && lies_transposed(b);
  const Tensor left =
      raw_contiguous(p.along_k ? alias(a, {s.k, s.m}, {a.strides()[1], a.strides()[0]}, a.offset()) : a);
  const Tensor right = p.b_transposed ? b : raw_contiguous(b);
  p.ends = static_cast<const int32_t*>(ends.planned_data());
  p.a = left.planned_data(), p.b = right.planned_data(), p.c = out.data();
  const Launch launch(out.device());
  grouped_slot(launch, p);
  launch.check_index(kOp, 0);
  return out;
}

Tensor transposed(const Tensor& x) { return transpose(x, -2, -1); }

void grouped_backward(Node& n, Gradients& g) {
  const Tensor a = n.saved(0), b = n.saved(1), offs = n.saved(2);
  if (g.wants(0)) g.set(0, grouped_mm(g[0], transposed(b), offs, {}, {}));
  if (g.wants(1)) g.set(1, grouped_mm(transposed(a), g[0], offs, {}, {}));
}
constexpr NodeType kGroupedMm{"GroupedMmBackward0", grouped_backward};

Tensor grouped_mm_impl(const Tensor& a, const Tensor& b, const OptTensor& offs, const OptTensor& bias,
                       std::optional<DType> out_dtype) {
  check_types(a, b, offs, bias, out_dtype);
  const Sizes sizes = check_sizes(a, b, offs);
  if (!offs) return bmm(a, b);
  if (a.ndim() == 3)  // ends among the columns: those of the product's transpose are rows
    return contiguous(transposed(grouped_mm(transposed(b), transposed(a), offs, {}, {})));
  Tensor out = run(a, b, *offs, sizes);
  if (needs_grad(a, b)) {
    Ref<Node> n = record(kGroupedMm, a, b);
    n->save(requires_grad(b) ? a : Tensor()), n->save(requires_grad(a) ? b : Tensor()), n->save(*offs);
    set_history(out, n);
  }
  return out;
}

const GroupedMm grouped_mm{
    kOp,
    grouped_mm_impl,
    kNN | kLower,
    {"mat_a",
     "mat_b",
     {"offs", none, kKeywordOnly},
     {"bias", none, kKeywordOnly},
     {"out_dtype", none, kKeywordOnly}},
    "Products of groups of rows: rows offs[g - 1] to offs[g] - 1 of mat_a [m, k] times mat_b[g], of [groups, "
    "k, "
    "n] -> [m, n]; rows after the last end are 0. With mat_b [k, n] the groups lie along k -> [groups, m, "
    "n], "
    "with mat_a [groups, m, k] among mat_b's columns -> [m, n]. Two batches without offs are bmm. On CUDA "
    "offs is read by the kernels alone: a bad one raises at the next synchronisation."};

}  // namespace
}  // namespace warptape::ops
