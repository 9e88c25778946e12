#include "ops/compose.h"

#include "kernels/index.h"

namespace warptape::ops {
namespace {

ElementwiseSlot rsqrt_slot{"rsqrt"};
kernels::Slot<kernels::GatherFn> gather_slot{"gather"};
kernels::Slot<kernels::ScatterFn> scatter_slot{"scatter"};

void inverse_sqrt_backward(Node& n, Gradients& g) {
  Tensor y = n.saved(0);
  g.set(0, g[0] * y * y * y * Scalar(-0.5));
}
constexpr NodeType kInverseSqrt{"RsqrtBackward0", inverse_sqrt_backward};

void reshaped_backward(Node& n, Gradients& g) { g.set(0, reshaped(g[0], n.data<Shape>())); }
constexpr NodeType kReshaped{"ReshapeBackward0", reshaped_backward};

struct PickData {
  const char* op;
  int64_t dim;
  Shape sizes;
};
void pick_backward(Node& n, Gradients& g) {
  auto& d = n.data<PickData>();
  g.set(0, place(d.op, g[0], n.saved(0), d.dim, d.sizes));
}
void place_backward(Node& n, Gradients& g) {
  auto& d = n.data<PickData>();
  g.set(0, pick(d.op, g[0], n.saved(0), d.dim));
}
constexpr NodeType kPick{"GatherBackward0", pick_backward}, kPlace{"ScatterAddBackward0", place_backward};

Tensor with_pick_history(const char* op, const NodeType& type, const Tensor& out, const Tensor& x,
                         const Tensor& index, int64_t dim) {
  if (needs_grad(x)) {
    Ref<Node> n = record(type, x);
    n->save(index);
    n->emplace<PickData>(op, dim, x.sizes());
    set_history(out, n);
  }
  return out;
}

}  // namespace

Tensor inverse_sqrt(const Tensor& x) {
  Tensor out = pointwise("rsqrt", rsqrt_slot, ResultRule::Float, {x});
  if (needs_grad(x)) {
    Ref<Node> n = record(kInverseSqrt, x);
    set_history(out, n);
    n->save_output(out);
  }
  return out;
}

Tensor reshaped(const Tensor& x, const Shape& sizes) {
  Tensor c = raw_contiguous(x);
  Tensor out = alias(c, sizes, contiguous_strides(sizes), c.offset());
  if (needs_grad(x)) {
    Ref<Node> n = record(kReshaped, x);
    n->emplace<Shape>(x.sizes());
    set_history(out, n);
  }
  return out;
}

Tensor pick(const char* op, const Tensor& x, const Tensor& index, int64_t dim) {
  Tensor out = empty(index.sizes(), options_of(x));
  if (out.numel() && !out.is_meta()) {
    Launch launch(x.device());
    gather_slot(launch, out.view(), x.view(), index.view(), static_cast<int>(dim));
    launch.check_index(op, dim);
  }
  return with_pick_history(op, kPick, out, x, index, dim);
}

Tensor place(const char* op, const Tensor& x, const Tensor& index, int64_t dim, const Shape& sizes) {
  Tensor out = zeros(sizes, options_of(x));
  if (x.numel() && !out.is_meta()) {
    Launch launch(x.device());
    scatter_slot(launch, out.view(), index.view(), x.view(), static_cast<int>(dim),
                 kernels::ScatterMode::Add);
    launch.check_index(op, dim);
  }
  return with_pick_history(op, kPlace, out, x, index, dim);
}

void check_floating(const char* op, const Tensor& x) {
  WT_CHECK(is_floating(x.dtype()), DtypeError, op, ": expected a floating point tensor, got ", x,
           "; convert it with .float()");
}

void check_same_device(const char* op, const Tensor& x, const Tensor& other, const char* what) {
  WT_CHECK(!other.defined() || other.device() == x.device(), DeviceError, op,
           ": Expected all tensors to be on the same device, but found at least two devices, ", x.device(),
           " and, for ", what, ", ", other.device(), "! Move one with .to(device)");
}

}  // namespace warptape::ops
