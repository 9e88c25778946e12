// Reading and writing where a mask is set.
#include "ops/index/masked.h"
#include "op/forms.h"

#include "kernels/index/index.h"
#include "ops/elementwise/elementwise.h"
#include "ops/index/index.h"
#include "ops/kernel_inputs.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::MaskedSelectFn> masked_select_slot{"masked_select"};
kernels::Slot<kernels::MaskedScatterFn> masked_scatter_slot{"masked_scatter"};
ElementwiseSlot where_slot{"where"};

void check_mask(const char* op, const Tensor& x, const Tensor& mask) {
  check_same_device(op, x, mask, "mask");
  WT_CHECK(mask.dtype() == DType::Bool, DtypeError, op,
           ": expected BoolTensor for mask, for it only supports boolean masks, got ", mask.dtype());
}

void masked_select_backward(Node& n, Gradients& g) {
  Tensor mask = n.saved(0);
  g.set(0, masked_scatter(zeros(mask.sizes(), options_of(g[0])), mask, g[0]));
}
constexpr NodeType kMaskedSelect{"MaskedSelectBackward0", masked_select_backward};

Tensor masked_select_impl(const Tensor& x, const Tensor& mask) {
  check_mask("masked_select", x, mask);
  WT_CHECK(!x.device().is_meta(), DeviceError, "masked_select: a meta tensor has no data");
  Shape sizes = broadcast_shapes(x.sizes(), mask.sizes(), "masked_select");
  Tensor source = expand(x, sizes), m = expand_view(mask, sizes);
  int64_t count = nonzero(m).sizes()[0];
  Tensor out = empty(Shape{count}, options_of(x));
  if (count) {
    Launch launch(x.device());
    masked_select_slot(launch, out.view(), source.view(), m.view());
  }
  if (needs_grad(source)) {
    Ref<Node> n = record(kMaskedSelect, source);
    n->save(m);
    set_history(out, n);
  }
  return out;
}

void masked_scatter_backward(Node& n, Gradients& g) {
  Tensor mask = n.saved(0);
  if (g.wants(0)) g.set(0, masked_fill(g[0], mask, 0));
  if (!g.wants(1)) return;
  const Shape& sizes = n.edges[1].node->outputs[n.edges[1].index].sizes;
  Tensor part = masked_select(g[0], mask);
  int64_t total = numel_of(sizes);
  Region r{Shape{total}, Shape{1}, part.sizes(), Shape{1}, 0};
  g.set(1, reshape(tape_replace_region(Tensor(), part, r), sizes));
}
constexpr NodeType kMaskedScatter{"MaskedScatterBackward0", masked_scatter_backward};

Tensor masked_scatter_inplace(const Tensor& self, const Tensor& mask, const Tensor& source) {
  check_mask("masked_scatter_", self, mask);
  check_same_device("masked_scatter_", self, source, "source");
  WT_CHECK(self.dtype() == source.dtype(), DtypeError,
           "masked_scatter_: expected self and source to have same dtypes but got ", self.dtype(), " and ",
           source.dtype());
  Tensor m =
      raw_contiguous(expand_view(mask, broadcast_shapes(self.sizes(), mask.sizes(), "masked_scatter_")));
  WT_CHECK(m.sizes() == self.sizes(), ShapeError, "masked_scatter_: mask ", mask.sizes(), " does not fit ",
           self.sizes());
  WT_CHECK(!overlap(self, mask) && !overlap(self, source), Error, "masked_scatter_", kOverlap);
  bool recorded = needs_grad(self, source);
  check_inplace(self, "masked_scatter_", recorded);
  if (!self.is_meta()) {
    int64_t count = nonzero(m).sizes()[0];
    WT_CHECK(count <= source.numel(), ShapeError, "masked_scatter_: number of elements of source (",
             source.numel(), ") < number of ones in mask (", count, ")");
  }
  Ref<Node> n;
  if (recorded) {
    n = record(kMaskedScatter, self, source);
    n->save(m);
  }
  if (!self.is_meta() && self.numel()) {
    Launch launch(self.device());
    masked_scatter_slot(launch, self.view(), m.view(), raw_contiguous(source).view());
  }
  self.bump_version();
  if (n) rebase_history(self, n);
  return self;
}
Tensor masked_scatter_impl(const Tensor& x, const Tensor& mask, const Tensor& source) {
  Shape sizes = broadcast_shapes(x.sizes(), mask.sizes(), "masked_scatter");
  return masked_scatter_inplace(clone(expand(x, sizes)), mask, source);
}

void masked_fill_backward(Node& n, Gradients& g) {
  Tensor mask = n.saved(0);
  if (g.wants(0)) g.set(0, masked_fill(g[0], mask, 0));
  if (n.edges.size() > 1 && g.wants(1))
    g.set(1, g[0] * cast(mask, g[0].dtype()));  // of a 0-dim value: the engine sums
}
constexpr NodeType kMaskedFill{"MaskedFillBackward0", masked_fill_backward};

Tensor run_masked_fill(const Tensor& self, const Tensor& mask, const PointwiseInput& value) {
  const PointwiseInput in[] = {mask, value, self};
  run_elementwise(where_slot, compute_dtype(self.dtype()), self, in);
  return self;
}

// The number as a dtype holds it: true where it is not 0, without its fraction.
Scalar fill_value(const Scalar& number, DType dtype) {
  check_fits(number, dtype);
  if (dtype == DType::Bool) return number.to_bool();
  if (is_complex(dtype)) return number;
  return is_floating(dtype) ? Scalar(number.to_double()) : Scalar(number.to_int());
}

// The value is converted to self's dtype; `value` is null for a number.
Tensor masked_fill_into(const char* op, const Tensor& self, const Tensor& mask, const Scalar& number,
                        const Tensor* value) {
  check_mask(op, self, mask);
  WT_CHECK(broadcast_shapes(self.sizes(), mask.sizes(), op) == self.sizes(), ShapeError, op, ": mask ",
           mask.sizes(), " does not broadcast to ", self.sizes());
  WT_CHECK(!value || value->ndim() == 0, ShapeError, op,
           ": masked_fill only supports a 0-dimensional value tensor, but got tensor with shape ",
           value ? value->sizes() : Shape());
  bool recorded = value ? needs_grad(self, *value) : needs_grad(self);
  check_inplace(self, op, recorded);
  Ref<Node> n;
  if (recorded) {
    n = record(kMaskedFill, self, value ? *value : Tensor());
    n->save(mask);
  }
  if (value) {
    if (value->device().is_host() && !value->device().is_meta()) check_fits(item(*value), self.dtype());
    run_masked_fill(self, mask, raw_cast(*value, self.dtype()));
  } else {
    run_masked_fill(self, mask, fill_value(number, self.dtype()));
  }
  self.bump_version();
  if (n) rebase_history(self, n);
  return self;
}
Tensor masked_fill_inplace(const Tensor& self, const Tensor& mask, const Scalar& value) {
  return masked_fill_into("masked_fill_", self, mask, value, nullptr);
}
Tensor masked_fill_tensor_inplace(const Tensor& self, const Tensor& mask, const Tensor& value) {
  return masked_fill_into("masked_fill_", self, mask, 0, &value);
}
// Out of place without a copy first: the kernel reads x and writes the result.
Tensor masked_fill_impl(const Tensor& x, const Tensor& mask, const Scalar& value) {
  check_mask("masked_fill", x, mask);
  Tensor out = empty(broadcast_shapes(x.sizes(), mask.sizes(), "masked_fill"), options_of(x));
  const PointwiseInput in[] = {mask, fill_value(value, x.dtype()), x};
  common_device("masked_fill", in);
  run_elementwise(where_slot, compute_dtype(x.dtype()), out, in);
  if (needs_grad(x)) {
    Ref<Node> n = record(kMaskedFill, x, Tensor());
    n->save(mask);
    set_history(out, n);
  }
  return out;
}
Tensor masked_fill_tensor_impl(const Tensor& x, const Tensor& mask, const Tensor& value) {
  Shape sizes = broadcast_shapes(x.sizes(), mask.sizes(), "masked_fill");
  return masked_fill_into("masked_fill", clone(expand(x, sizes)), mask, 0, &value);
}

constexpr OpFacts kBoth = kFunction | kMethod;
const Arg kSelf{"input", kWritten};

}  // namespace

decltype(masked_select) masked_select{"masked_select",
                                      masked_select_impl,
                                      kBoth | kOut | kOutExact | kOutApart | kComplex,
                                      {"input", "mask"},
                                      "The elements where mask is set, in order."};
decltype(masked_scatter) masked_scatter{"masked_scatter",
                                        masked_scatter_impl,
                                        kBoth | kComplex,
                                        {"input", "mask", "source"},
                                        "A copy with source's elements, in order, where mask is set."};
decltype(masked_scatter) masked_scatter_op_ =
    in_place_of(masked_scatter, masked_scatter_inplace, kMethod,
                "Writes source's elements, in order, where mask is set.");

// The tensor first: a 0-dim tensor would do as a number too, but without its gradient.
decltype(masked_fill_tensor) masked_fill_tensor{"masked_fill",
                                                masked_fill_tensor_impl,
                                                kBoth | kComplex,
                                                {"input", "mask", "value"},
                                                "A copy with a 0-dim tensor's value where mask is set."};
decltype(masked_fill_tensor) masked_fill_tensor_ =
    in_place_of(masked_fill_tensor, masked_fill_tensor_inplace, kMethod,
                "Writes a 0-dim tensor's value where mask is set.");
decltype(masked_fill) masked_fill =
    overload_of(masked_fill_tensor, masked_fill_impl, kPointwise, "A copy with a number where mask is set.");
decltype(masked_fill) masked_fill_op_ = in_place_of(
    masked_fill_tensor, masked_fill_inplace, kMethod | kPointwise, "Writes a number where mask is set.");

}  // namespace warptape::ops
