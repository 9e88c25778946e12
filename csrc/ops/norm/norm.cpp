// Layer and RMS norm: statistics over the last dims of each row.
#include "ops/norm/norm.h"

#include <limits>

#include "kernels/norm/norm.h"
#include "op/batching.h"
#include "ops/kernel_inputs.h"
#include "tensor/run_kernel.h"

namespace warptape::ops {
namespace {

using kernels::View;
kernels::Slot<kernels::RowNormFn> layer_norm_slot{"layer_norm"}, rms_norm_slot{"rms_norm"};
kernels::Slot<kernels::RowNormBackwardFn> layer_norm_backward_slot{"layer_norm_backward"},
    rms_norm_backward_slot{"rms_norm_backward"};

template <bool kCentered>
constexpr KernelInfo kForward{kCentered ? "layer_norm" : "rms_norm", 0b001, 0b111};
// The gradients of weight and bias are sums over all rows.
template <bool kCentered>
constexpr KernelInfo kBackward{kCentered ? "layer_norm_backward" : "rms_norm_backward", 0b01111, 0b001};

template <bool kCentered>
struct RunForward {
  int64_t n;
  double number;  // eps
  void operator()(const kernels::LaunchContext& ctx, const View* in, const View* to, int64_t rows) const {
    (kCentered ? layer_norm_slot : rms_norm_slot)(ctx, to[0], to[1], to[2], in[0], in[1], in[2], rows, n,
                                                  number);
  }
};

struct RowData {
  int64_t rows, n;
  int64_t dims;  // normalised ones, the last
  double eps;
};

// saved: x, weight, mean (layer norm), rstd
template <bool kCentered>
void fused_backward(Gradients& g, const RowData& d, const Tensor& x, const Tensor& weight, const Tensor& mean,
                    const Tensor& rstd) {
  Tensor from = raw_contiguous(x), w = weight.defined() ? raw_contiguous(weight) : Tensor(),
         up = raw_contiguous(g[0]);
  Tensor dx, dw, db;
  if (g.wants(0)) dx = empty(x.sizes(), options_of(x));
  if (g.wants(1)) dw = empty(weight.sizes(), options_of(weight));
  // The bias has the weight's shape, and its gradient takes part in the same sums; without a weight, x's
  // dtype serves.
  if (kCentered && g.wants(2)) {
    Shape tail(x.sizes().end() - d.dims, x.sizes().end());
    db = empty(tail, {weight.defined() ? weight.dtype() : x.dtype(), x.device()});
  }
  if (x.numel()) {
    if (dx.defined() || dw.defined() || db.defined())
      run_kernel(kBackward<kCentered>, {up, from, mean, rstd, w}, {dx, dw, db}, d.rows,
                 [n = d.n](const auto& ctx, const View* in, const View* out, int64_t rows) {
                   (kCentered ? layer_norm_backward_slot : rms_norm_backward_slot)(
                       ctx, out[0], out[1], out[2], in[0], in[1], in[2], in[3], in[4], rows, n);
                 });
  } else {
    if (dw.defined()) raw_fill(dw, 0);
    if (db.defined()) raw_fill(db, 0);
  }
  if (dx.defined()) g.set(0, dx);
  if (dw.defined()) g.set(1, dw);
  if (db.defined()) g.set(2, db);
}

// The same from differentiable ops: statistics are computed anew, so that gradients flow through them.
template <bool kCentered>
void composed_backward(Gradients& g, const RowData& d, const Tensor& input, const Tensor& weight) {
  const DType compute = stats_dtype(input.dtype());
  Tensor x = tape_cast(input, compute), up = tape_cast(g[0], compute);
  Shape kept = input.sizes(), tail(input.sizes().end() - d.dims, input.sizes().end());
  for (int64_t i = 0; i < d.dims; ++i) kept[kept.size() - 1 - i] = 1;
  const Scalar share(1.0 / static_cast<double>(d.n));
  Tensor c = kCentered ? x - sum_to(x, kept) * share : x;
  Tensor rstd = rsqrt(sum_to(c * c, kept) * share + Scalar(d.eps));
  Tensor h = c * rstd;
  Tensor gw = weight.defined() ? up * tape_cast(weight, compute) : up;
  if (g.wants(0)) {
    Tensor r = gw - h * (sum_to(gw * h, kept) * share);
    if (kCentered) r = r - sum_to(gw, kept) * share;
    g.set(0, r * rstd);
  }
  if (g.wants(1)) g.set(1, sum_to(up * h, tail));
  if (kCentered && g.wants(2)) g.set(2, sum_to(up, tail));
}

template <bool kCentered>
void backward(Node& n, Gradients& g) {
  const RowData d = n.data<RowData>();
  Tensor x = n.saved(0), weight = n.saved(1);
  if (needs_grad(g[0], x, weight)) return composed_backward<kCentered>(g, d, x, weight);
  fused_backward<kCentered>(g, d, x, weight, kCentered ? n.saved(3) : Tensor(), n.saved(2));
}
constexpr NodeType kLayerNorm{"NativeLayerNormBackward0", backward<true>},
    kRmsNorm{"RmsNormBackward0", backward<false>};

void check_rows(const char* op, const Tensor& x, IntList shape, const Tensor& weight, const Tensor& bias) {
  if (!is_complex(x.dtype())) check_floating(op, x);
  const auto k = static_cast<int64_t>(shape.size());
  WT_CHECK(k >= 1, ShapeError, op, ": expected normalized_shape to have at least one dim, got ",
           AsShape{shape});
  bool fits = x.ndim() >= k;
  for (int64_t i = 0; fits && i < k; ++i) fits = x.sizes()[x.ndim() - k + i] == shape[i];
  WT_CHECK(fits, ShapeError, op, ": given normalized_shape=", AsShape{shape},
           ", expected input to end in these sizes, but got input of size ", x.sizes());
  auto same_shape = [&](const Tensor& t, const char* what) {
    if (!t.defined()) return;
    if (!is_complex(t.dtype())) check_floating(op, t);
    check_same_device(op, x, t, what);
    WT_CHECK(t.sizes() == Shape(shape.begin(), shape.end()), ShapeError, op, ": expected ", what,
             " to be of same shape as normalized_shape, but got ", what, " of shape ", t.sizes(),
             " and normalized_shape = ", AsShape{shape});
  };
  same_shape(weight, "weight");
  same_shape(bias, "bias");
}

template <bool kCentered>
Tensor forward(const char* op, const Tensor& input, IntList shape, const Tensor& weight, const Tensor& bias,
               double eps) {
  check_rows(op, input, shape, weight, bias);
  RowData d{1, 1, static_cast<int64_t>(shape.size()), eps};
  for (int64_t i = 0; i < input.ndim(); ++i) (i < input.ndim() - d.dims ? d.rows : d.n) *= input.sizes()[i];
  Tensor out = empty(input.sizes(), options_of(input));
  const bool recorded = needs_grad(input, weight, bias);
  Tensor mean, rstd;
  if (recorded) {
    const TensorOptions stats{stats_dtype(input.dtype()), input.device()};
    if (kCentered) mean = empty(Shape{d.rows}, stats);
    rstd = empty(Shape{d.rows}, stats);
  }
  if (out.numel()) {
    Tensor w = weight.defined() ? raw_contiguous(weight) : weight,
           b = bias.defined() ? raw_contiguous(bias) : bias;
    run_kernel(kForward<kCentered>, {raw_contiguous(input), w, b}, {out, mean, rstd}, d.rows,
               RunForward<kCentered>{d.n, eps});
  }
  if (recorded) {
    Ref<Node> n = record(kCentered ? kLayerNorm : kRmsNorm, input, weight, bias);
    n->save(input);
    n->save(weight);
    n->save(rstd);
    if (kCentered) n->save(mean);
    n->emplace<RowData>(d);
    set_history(out, n);
  }
  return out;
}

Tensor layer_norm_impl(const Tensor& x, IntList shape, const OptTensor& weight, const OptTensor& bias,
                       double eps) {
  return forward<true>("layer_norm", x, shape, or_undefined(weight), or_undefined(bias), eps);
}

// The machine epsilon of what is computed in, which is float32 for narrower dtypes.
double epsilon_of(DType t) {
  return real_of(t) == DType::Float64 ? std::numeric_limits<double>::epsilon()
                                      : double{std::numeric_limits<float>::epsilon()};
}

Tensor rms_norm_impl(const Tensor& x, IntList shape, const OptTensor& weight, std::optional<double> eps) {
  if (is_complex(x.dtype())) {  // the mean of the squares, which are complex, too
    check_rows("rms_norm", x, shape, or_undefined(weight), Tensor());
    Shape kept = x.sizes();
    for (size_t i = 0; i < shape.size(); ++i) kept[kept.size() - 1 - i] = 1;
    const double n = static_cast<double>(numel_of(shape));
    const Tensor out = x * rsqrt(sum_to(x * x, kept) / n + eps.value_or(epsilon_of(x.dtype())));
    return weight ? out * *weight : out;
  }
  return forward<false>("rms_norm", x, shape, or_undefined(weight), Tensor(),
                        eps.value_or(epsilon_of(x.dtype())));
}

}  // namespace

decltype(layer_norm) layer_norm{
    "layer_norm",
    layer_norm_impl,
    kFunction | kNN | kFloat32Cuda | batching::layer_norm,
    {"input", "normalized_shape", {"weight", none}, {"bias", none}, {"eps", 1e-5}},
    "(input - mean) / sqrt(var + eps) * weight + bias, with mean and biased variance over "
    "the last dims, whose sizes are normalized_shape."};
decltype(rms_norm) rms_norm{
    "rms_norm",
    rms_norm_impl,
    kFunction | kNN | kComplex | kLeading | batching::rms_norm,
    {"input", "normalized_shape", {"weight", none}, {"eps", none}},
    "input / sqrt(mean(input^2) + eps) * weight over the last dims; eps defaults to the machine "
    "epsilon of float32, of float64 for float64."};

}  // namespace warptape::ops
