// Shapes: R rows, k inputs, h hidden, n outputs.
#include "ops/nn/fused_linear.h"

#include "ops/elementwise/activation.h"
#include "ops/elementwise/elementwise.h"
#include "ops/linalg/matmul.h"
#include "ops/linalg/matmul_plan.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::MatmulFn> matmul_slot{"matmul"};
kernels::Slot<kernels::MatmulRowSumsFn> row_sums_slot{"matmul_row_sums"};
kernels::Slot<kernels::MatmulGeluFn> gelu_slot{"matmul_gelu_tanh"};
kernels::Slot<kernels::MatmulGeluBackwardFn> gelu_backward_slot{"matmul_gelu_tanh_backward"};

// x [..., c] as [R, c], without a record.
Tensor as_rows(const Tensor& x) {
  if (x.ndim() == 2) return x;
  const int64_t c = x.sizes().back();
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < x.sizes().size(); ++d) rows *= x.sizes()[d];
  const Tensor dense = raw_contiguous(x);
  return alias(dense, {rows, c}, {c, 1}, dense.offset());
}

Tensor swapped(const Tensor& x) {
  return alias(x, {x.sizes()[1], x.sizes()[0]}, {x.strides()[1], x.strides()[0]}, x.offset());
}

// out = a b (+ bias), of matrices.
kernels::MatmulPlan product(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& bias = {}) {
  kernels::MatmulPlan p = plan_of(a, b);
  set_result(p, out, bias);
  return p;
}

Tensor multiplied(const Tensor& a, const Tensor& b) {
  Tensor out = empty(Shape{a.sizes()[0], b.sizes()[1]}, options_of(a));
  if (out.numel() && !out.is_meta()) matmul_slot(Launch(out.device()), product(out, a, b));
  return out;
}

// ---- the node -------------------------------------------------------------------------------------------

// Saved: input, weight1, bias1, weight2, what gelu is taken of, what it gave. Gradients of input, weight1,
// bias1, weight2, bias2.
void fused_backward(Node& n, Gradients& g) {
  const Tensor grad = as_rows(g[0]), before = n.saved(4), hidden = n.saved(5);
  const bool inner = g.wants(0) || g.wants(1) || g.wants(2);
  if (g.wants(3) && g.wants(4)) {
    auto [weight, bias] = linear_gradients(grad, hidden);
    g.set(3, weight), g.set(4, bias);
  } else {
    if (g.wants(3)) g.set(3, multiplied(swapped(grad), hidden));
    if (g.wants(4)) g.set(4, g[0]);
  }
  if (!inner) return;
  const Tensor weight2 = n.saved(3);
  Tensor d_before = empty(before.sizes(), options_of(before)), sums;
  if (g.wants(2)) sums = empty(Shape{before.sizes()[1]}, options_of(before));
  if (!d_before.is_meta())
    gelu_backward_slot(Launch(before.device()), product(d_before, grad, weight2), before.data(),
                       sums.defined() ? sums.data() : nullptr);
  if (g.wants(2)) g.set(2, sums);
  const Tensor input = n.saved(0);
  if (g.wants(0)) {
    Tensor dx = multiplied(d_before, n.saved(1));
    g.set(0, alias(dx, input.sizes(), contiguous_strides(input.sizes()), 0));
  }
  if (g.wants(1)) g.set(1, multiplied(swapped(d_before), as_rows(input)));
}

// The same as differentiable ops.
void composed_backward(Node& n, Gradients& g) {
  const Tensor input = n.saved(0), weight1 = n.saved(1), bias1 = n.saved(2), weight2 = n.saved(3);
  const Tensor before = linear(input, weight1, bias1.defined() ? OptTensor(bias1) : OptTensor());
  auto rows = [](const Tensor& x) { return reshape(x, Shape{-1, x.sizes().back()}); };
  const Tensor d_before = matmul(g[0], weight2) * gelu_tanh_slope(before);
  if (g.wants(0)) g.set(0, matmul(d_before, weight1));
  if (g.wants(1)) g.set(1, matmul(transpose(rows(d_before), 0, 1), rows(input)));
  if (g.wants(2)) g.set(2, d_before);  // the engine sums the rows
  if (g.wants(3)) g.set(3, matmul(transpose(rows(g[0]), 0, 1), rows(gelu(before, "tanh"))));
  if (g.wants(4)) g.set(4, g[0]);
}

void linear_gelu_linear_backward(Node& n, Gradients& g) {
  (thread_state().grad_mode ? composed_backward : fused_backward)(n, g);
}
constexpr NodeType kLinearGeluLinear{"LinearGeluLinearBackward0", linear_gelu_linear_backward};

// ---- the op ---------------------------------------------------------------------------------------------

// Whether these fit the fused form; what does not, and errors, are the composed ops' matter.
bool fits(const Tensor& x, const Tensor& w1, const OptTensor& b1, const Tensor& w2, const OptTensor& b2) {
  if (!x.device().is_accelerator() || !is_floating(x.dtype()) || x.ndim() < 1 || x.numel() == 0) return false;
  if (w1.ndim() != 2 || w2.ndim() != 2 || w1.numel() == 0 || w2.numel() == 0) return false;
  if (w1.sizes()[1] != x.sizes().back() || w2.sizes()[1] != w1.sizes()[0]) return false;
  auto same = [&](const Tensor& t) { return t.device() == x.device() && t.dtype() == x.dtype(); };
  auto bias = [&](const OptTensor& b, const Tensor& w) {
    return !b || (same(*b) && b->ndim() == 1 && b->sizes()[0] == w.sizes()[0]);
  };
  return same(w1) && same(w2) && bias(b1, w1) && bias(b2, w2);
}

Tensor fused(const Tensor& x, const Tensor& w1, const OptTensor& b1, const Tensor& w2, const OptTensor& b2) {
  const Tensor rows = as_rows(x);
  const int64_t hidden_width = w1.sizes()[0], width = w2.sizes()[0];
  Tensor before = empty(Shape{rows.sizes()[0], hidden_width}, options_of(x));
  Tensor hidden = empty(before.sizes(), options_of(x));
  Shape sizes = x.sizes();
  sizes.back() = width;
  Tensor out = empty(sizes, options_of(x));
  auto row = [](const OptTensor& b) { return b ? raw_contiguous(*b) : Tensor(); };
  const Tensor bias1 = row(b1), bias2 = row(b2);
  if (!out.is_meta()) {
    gelu_slot(Launch(x.device()), product(hidden, rows, swapped(w1), bias1), before.data());
    matmul_slot(Launch(x.device()), product(as_rows(out), hidden, swapped(w2), bias2));
  }
  if (needs_grad(x, w1, b1, w2, b2)) {
    Ref<Node> n = record(kLinearGeluLinear, x, w1, b1, w2, b2);
    for (const Tensor& t : {x, w1, b1 ? *b1 : Tensor(), w2, before, hidden}) n->save(t);
    set_history(out, n);
  }
  return out;
}

Tensor linear_gelu_linear_impl(const Tensor& x, const Tensor& w1, const OptTensor& b1, const Tensor& w2,
                               const OptTensor& b2, std::string_view approximate) {
  if (approximate == "tanh" && fits(x, w1, b1, w2, b2)) return fused(x, w1, b1, w2, b2);
  return linear(gelu(linear(x, w1, b1), approximate), w2, b2);
}

}  // namespace

LinearGradients linear_gradients(const Tensor& grad, const Tensor& input) {
  if (!grad.device().is_accelerator() || thread_state().grad_mode || !is_floating(grad.dtype()) ||
      grad.sizes()[0] == 0 || input.sizes()[1] == 0)
    return {};
  LinearGradients made{empty(Shape{grad.sizes()[1], input.sizes()[1]}, options_of(grad)),
                       empty(Shape{grad.sizes()[1]}, options_of(grad))};
  if (!made.weight.is_meta())
    row_sums_slot(Launch(grad.device()), product(made.weight, swapped(grad), input), made.bias.data());
  return made;
}

decltype(linear_gelu_linear) linear_gelu_linear{
    "linear_gelu_linear",
    linear_gelu_linear_impl,
    kNN | kLower,
    {"input", "weight1", "bias1", "weight2", {"bias2", none}, {"approximate", "none", kKeywordOnly}},
    "The two layers of a transformer's MLP: linear(gelu(linear(input, weight1, bias1), approximate), "
    "weight2, bias2). Not in PyTorch. With approximate='tanh' on CUDA, GELU, its derivative and the "
    "biases' gradients are parts of the products."};

}  // namespace warptape::ops
