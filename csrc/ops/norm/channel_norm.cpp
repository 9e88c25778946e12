// Group and batch norm: tensors [batch, channels, inner], inner being all further dims.
#include "kernels/norm/norm.h"
#include "op/batching.h"
#include "op/constant.h"
#include "ops/kernel_inputs.h"
#include "ops/norm/norm.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"
#include "tensor/before_write.h"
#include "tensor/memory_format.h"
#include "tensor/run_kernel.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::GroupNormFn> group_norm_slot{"group_norm"};
kernels::Slot<kernels::GroupNormBackwardFn> group_norm_backward_slot{"group_norm_backward"};
kernels::Slot<kernels::BatchNormStatsFn> batch_norm_stats_slot{"batch_norm_stats"};
kernels::Slot<kernels::BatchNormCoefficientsFn> batch_norm_coefficients_slot{"batch_norm_coefficients"};
ElementwiseSlot add_scaled_slot{"add_scaled"};  // a + c * b
kernels::Slot<kernels::BatchNormApplyFn> batch_norm_apply_slot{"batch_norm_apply"};
kernels::Slot<kernels::BatchNormBackwardFn> batch_norm_backward_slot{"batch_norm_backward"};

using kernels::View;
constexpr KernelInfo kBatchNormStats{"batch_norm_stats"}, kCoefficients{"batch_norm_coefficients"};

struct ChannelData {
  int64_t batch, channels, inner;
  MemoryFormat format;  // of the data
  int64_t groups;       // of group norm
  double eps;
  bool train;  // of batch norm
};

ChannelData channel_data(const char* op, const Tensor& x) {
  check_floating(op, x);
  WT_CHECK(x.ndim() >= 2, ShapeError, op,
           ": expected an input of at least 2 dims [batch, channels, ...], got ", x);
  int64_t inner = 1;
  for (int64_t d = 2; d < x.ndim(); ++d) inner *= x.sizes()[d];
  return {x.sizes()[0], x.sizes()[1], inner, suggested_format(x), 1, 0, false};
}

// What batch norm's kernels see: channels last are [batch * inner, channels, 1].
struct Extent {
  int64_t batch, inner;
  explicit Extent(const ChannelData& d)
      : batch(d.format == MemoryFormat::Contiguous ? d.batch : d.batch * d.inner),
        inner(d.format == MemoryFormat::Contiguous ? d.inner : 1) {}
};

void check_channels(const char* op, const Tensor& x, const Tensor& t, const char* what) {
  if (!t.defined()) return;
  check_floating(op, t);
  WT_CHECK(t.ndim() == 1, ShapeError, op, ": expected ", what, " to be a vector, got shape ", t.sizes());
  WT_CHECK(t.sizes()[0] == x.sizes()[1], ShapeError, op, ": input has ", x.sizes()[1],
           " channels, layer expects ", t.sizes()[0], ": ", what, " should contain ", x.sizes()[1],
           " elements not ", t.sizes()[0]);
}

Tensor contiguous_or_undefined(const Tensor& t) { return t.defined() ? raw_contiguous(t) : t; }

// Makes dx, dweight and dbias where wanted, lets `launch` fill them, and hands them over.
template <class F>
void fused_gradients(Gradients& g, const Tensor& x, const Tensor& weight, const ChannelData& d, F&& launch) {
  Tensor dx, dw, db;
  const TensorOptions like_weight{weight.defined() ? weight.dtype() : x.dtype(), x.device()};
  if (g.wants(0)) dx = empty_in(x.sizes(), options_of(x), d.format);
  if (g.wants(1)) dw = empty(Shape{d.channels}, like_weight);
  if (g.wants(2)) db = empty(Shape{d.channels}, like_weight);
  set_gradients(g, x, dx, dw, db, [&] { launch(dx, dw, db); });
}

// ---- group norm ----------------------------------------------------------------------------------------

// x as [batch, groups, channels of a group, inner]; sums over the last two.
void group_norm_composed(Gradients& g, const ChannelData& d, const Tensor& input, const Tensor& weight) {
  const DType compute = stats_dtype(input.dtype());
  const int64_t per = d.channels / d.groups;
  const Shape split{d.batch, d.groups, per, d.inner}, kept{d.batch, d.groups, 1, 1},
      channel{1, d.groups, per, 1};
  Tensor x = reshape(tape_cast(input, compute), split), up = reshape(tape_cast(g[0], compute), split);
  const Scalar share(1.0 / static_cast<double>(per * d.inner));
  Tensor c = x - sum_to(x, kept) * share;
  Tensor rstd = rsqrt(sum_to(c * c, kept) * share + Scalar(d.eps));
  Tensor h = c * rstd;
  Tensor gw = weight.defined() ? up * reshape(tape_cast(weight, compute), channel) : up;
  if (g.wants(0)) {
    Tensor dx = (gw - sum_to(gw, kept) * share - h * (sum_to(gw * h, kept) * share)) * rstd;
    g.set(0, reshape(dx, input.sizes()));
  }
  if (g.wants(1)) g.set(1, reshape(sum_to(up * h, channel), Shape{d.channels}));
  if (g.wants(2)) g.set(2, reshape(sum_to(up, channel), Shape{d.channels}));
}

void group_norm_backward(Node& n, Gradients& g) {
  const ChannelData& d = n.data<ChannelData>();
  Tensor x = n.saved(0), weight = n.saved(1);
  if (needs_grad(g[0], x, weight)) return group_norm_composed(g, d, x, weight);
  Tensor mean = n.saved(2), rstd = n.saved(3);
  Tensor from = raw_contiguous(x), up = raw_contiguous(g[0]), w = contiguous_or_undefined(weight);
  fused_gradients(g, x, weight, d, [&](const Tensor& dx, const Tensor& dw, const Tensor& db) {
    const bool plain = !dx.defined() || dx.is_contiguous();
    const Tensor to = plain ? dx : empty(dx.sizes(), options_of(dx));
    group_norm_backward_slot(Launch(x.device()), view_of(to), view_of(dw), view_of(db), up.view(),
                             from.view(), mean.view(), rstd.view(), view_of(w), d.batch, d.channels, d.inner,
                             d.groups);
    if (!plain) raw_copy(dx, to);
  });
}
constexpr NodeType kGroupNorm{"NativeGroupNormBackward0", group_norm_backward};

Tensor group_norm_impl(const Tensor& input, int64_t groups, const OptTensor& weight, const OptTensor& bias,
                       double eps) {
  ChannelData d = channel_data("group_norm", input);
  WT_CHECK(groups > 0, ValueError, "group_norm: expected num_groups to be greater than 0, got ", groups);
  WT_CHECK(d.channels % groups == 0, ShapeError,
           "group_norm: expected number of channels in input to be divisible by num_groups, but got input of "
           "shape ",
           input.sizes(), " and num_groups=", groups);
  Tensor w = or_undefined(weight), b = or_undefined(bias);
  check_channels("group_norm", input, w, "weight");
  check_channels("group_norm", input, b, "bias");
  d.groups = groups;
  d.eps = eps;
  const TensorOptions stats{stats_dtype(input.dtype()), input.device()};
  Tensor out = empty(input.sizes(), options_of(input));
  Tensor mean = empty(Shape{d.batch, groups}, stats), rstd = empty(Shape{d.batch, groups}, stats);
  if (out.numel() && !out.is_meta()) {
    Tensor x = raw_contiguous(input), cw = contiguous_or_undefined(w), cb = contiguous_or_undefined(b);
    group_norm_slot(Launch(input.device()), out.view(), mean.view(), rstd.view(), x.view(), view_of(cw),
                    view_of(cb), d.batch, d.channels, d.inner, groups, eps);
  }
  out = raw_in(out, d.format);
  if (needs_grad(input, w, b)) {
    Ref<Node> n = record(kGroupNorm, input, w, b);
    for (const Tensor& t : {input, w, mean, rstd}) n->save(t);
    n->emplace<ChannelData>(d);
    set_history(out, n);
  }
  return out;
}

// ---- batch norm ----------------------------------------------------------------------------------------

// saved: x, weight, mean, rstd (constants in evaluation, recomputed from x in training)
void batch_norm_composed(Gradients& g, const ChannelData& d, const Tensor& input, const Tensor& weight,
                         Tensor mean, Tensor rstd) {
  const DType compute = stats_dtype(input.dtype());
  const Shape split{d.batch, d.channels, d.inner}, channel{1, d.channels, 1};
  Tensor x = reshape(tape_cast(input, compute), split), up = reshape(tape_cast(g[0], compute), split);
  const Scalar share(1.0 / static_cast<double>(d.batch * d.inner));
  if (d.train) {
    mean = sum_to(x, channel) * share;
    Tensor c = x - mean;
    rstd = rsqrt(sum_to(c * c, channel) * share + Scalar(d.eps));
  } else {
    mean = reshape(mean, channel);
    rstd = reshape(rstd, channel);
  }
  Tensor h = (x - mean) * rstd;
  Tensor gw = weight.defined() ? up * reshape(tape_cast(weight, compute), channel) : up;
  if (g.wants(0)) {
    Tensor dx = gw;
    if (d.train) dx = gw - sum_to(gw, channel) * share - h * (sum_to(gw * h, channel) * share);
    g.set(0, reshape(dx * rstd, input.sizes()));
  }
  if (g.wants(1)) g.set(1, reshape(sum_to(up * h, channel), Shape{d.channels}));
  if (g.wants(2)) g.set(2, reshape(sum_to(up, channel), Shape{d.channels}));
}

void batch_norm_backward(Node& n, Gradients& g) {
  const ChannelData& d = n.data<ChannelData>();
  Tensor x = n.saved(0), weight = n.saved(1), mean = n.saved(2), rstd = n.saved(3);
  if (needs_grad(g[0], x, weight)) return batch_norm_composed(g, d, x, weight, mean, rstd);
  Tensor from = raw_in(x, d.format), up = raw_in(g[0], d.format), w = contiguous_or_undefined(weight);
  const Extent e(d);
  fused_gradients(g, x, weight, d, [&](const Tensor& dx, const Tensor& dw, const Tensor& db) {
    batch_norm_backward_slot(Launch(x.device()), view_of(dx), view_of(dw), view_of(db), up.view(),
                             from.view(), mean.view(), rstd.view(), view_of(w), e.batch, d.channels, e.inner,
                             d.train);
  });
}
constexpr NodeType kBatchNorm{"NativeBatchNormBackward0", batch_norm_backward};

// Mean and 1 / sqrt(variance + eps) per channel: of the batch, or the running ones.
std::pair<Tensor, Tensor> batch_statistics(const ChannelData& d, const Tensor& x, const Tensor& running_mean,
                                           const Tensor& running_var, double momentum) {
  NoGrad no_grad;
  const TensorOptions stats{stats_dtype(x.dtype()), x.device()};
  if (!d.train) {
    Tensor variance = raw_cast(running_var, stats.dtype);
    return {raw_contiguous(raw_cast(running_mean, stats.dtype)), rsqrt(variance + Scalar(d.eps))};
  }
  before_write(running_mean);
  before_write(running_var);
  Tensor mean = empty(Shape{d.channels}, stats), rstd = empty(Shape{d.channels}, stats);
  run_kernel(kBatchNormStats, {x, running_mean, running_var}, {running_mean, running_var, mean, rstd}, 1,
             [e = Extent(d), channels = d.channels, momentum, eps = d.eps](const auto& ctx, const View* in,
                                                                           const View* out, int64_t) {
               batch_norm_stats_slot(ctx, out[2], out[3], out[0], out[1], in[0], e.batch, channels, e.inner,
                                     momentum, eps);
             });
  if (running_mean.defined()) running_mean.bump_version();
  if (running_var.defined()) running_var.bump_version();
  return {mean, rstd};
}

// out = (x - mean) * rstd * w + b. In a region on the CPU the coefficients of the channels are noted as a
// kernel and the map as an elementwise launch, which others join and which may be a convolution's epilogue.
void normalise(const ChannelData& d, const Tensor& out, const Tensor& x, const Tensor& mean,
               const Tensor& rstd, const Tensor& w, const Tensor& b) {
  if (out.numel() == 0) return;
  Tensor cw = contiguous_or_undefined(w), cb = contiguous_or_undefined(b);
  if (!thread_state().deferral || !out.device().is_host()) {
    if (out.is_meta()) return;
    const Extent e(d);
    return batch_norm_apply_slot(Launch(out.device()), out.view(), x.view(), mean.view(), rstd.view(),
                                 view_of(cw), view_of(cb), e.batch, d.channels, e.inner);
  }
  Tensor factor = empty(Shape{d.channels}, options_of(mean)),
         offset = empty(Shape{d.channels}, options_of(mean));
  run_kernel(kCoefficients, {mean, rstd, cw, cb}, {factor, offset}, 1,
             [channels = d.channels](const auto& ctx, const View* in, const View* to, int64_t) {
               batch_norm_coefficients_slot(ctx, to[0], to[1], in[0], in[1], in[2], in[3], channels);
             });
  Shape column(x.sizes().size() - 1, 1);
  column[0] = d.channels;
  const auto as_column = [&](const Tensor& t) { return alias(t, column, contiguous_strides(column), 0); };
  const Tensor by = as_column(factor), onto = as_column(offset);
  const ElementwiseInput inputs[] = {onto, x, by};
  run_elementwise(add_scaled_slot, mean.dtype(), out, inputs);
}

void check_batch_norm(const ChannelData& d, const Tensor& x, const Tensor& running_mean,
                      const Tensor& running_var, bool training) {
  WT_CHECK(training || (running_mean.defined() && running_var.defined()), ValueError,
           "batch_norm: expected running_mean and running_var to be defined when training=False");
  WT_CHECK(!training || d.batch * d.inner != 1, ValueError,
           "batch_norm: Expected more than 1 value per channel when training, got input size ", x.sizes());
  for (const Tensor& t : {running_mean, running_var})
    WT_CHECK(!training || !t.defined() || t.is_contiguous(), ValueError,
             "batch_norm: expected contiguous running statistics; call .contiguous() on them");
}

Tensor batch_norm_impl(const Tensor& input, const OptTensor& running_mean, const OptTensor& running_var,
                       const OptTensor& weight, const OptTensor& bias, bool training, double momentum,
                       double eps) {
  if (input.ndim() == 1 && input.numel() == 0) return clone(input);
  ChannelData d = channel_data("batch_norm", input);
  Tensor rm = or_undefined(running_mean), rv = or_undefined(running_var), w = or_undefined(weight),
         b = or_undefined(bias);
  check_channels("batch_norm", input, rm, "running_mean");
  check_channels("batch_norm", input, rv, "running_var");
  check_channels("batch_norm", input, w, "weight");
  check_channels("batch_norm", input, b, "bias");
  check_batch_norm(d, input, rm, rv, training);
  check_constant("batch_norm", "running_mean", rm);
  check_constant("batch_norm", "running_var", rv);
  if (training && input.numel() == 0) {  // no statistics: the running ones stay
    Shape row(input.sizes().size(), 1);
    row[1] = d.channels;
    Tensor out = clone(input);
    if (w.defined()) out = out * reshape(w, row);
    return b.defined() ? out + reshape(b, row) : out;
  }
  d.eps = eps;
  d.train = training;
  Tensor x = raw_in(input, d.format);
  Tensor out = empty_in(input.sizes(), options_of(input), d.format);
  auto [mean, rstd] = batch_statistics(d, x, rm, rv, momentum);
  normalise(d, out, x, mean, rstd, w, b);
  if (needs_grad(input, w, b)) {
    Ref<Node> n = record(kBatchNorm, input, w, b);
    for (const Tensor& t : {input, w, mean, rstd}) n->save(t);
    n->emplace<ChannelData>(d);
    set_history(out, n);
  }
  return out;
}

}  // namespace

decltype(group_norm) group_norm{
    "group_norm",
    group_norm_impl,
    kFunction | kNN | kFloat32Cuda | batching::group_norm,
    {"input", "num_groups", {"weight", none}, {"bias", none}, {"eps", 1e-5}},
    "Normalises [batch, channels, ...] over each group of channels, then scales and shifts "
    "by channel."};
decltype(batch_norm) batch_norm{
    "batch_norm",
    batch_norm_impl,
    kNN | batching::batch_norm,
    {"input",
     {"running_mean", none, kUpdated},
     {"running_var", none, kUpdated},
     {"weight", none},
     {"bias", none},
     {"training", false, kSwitch},
     {"momentum", 0.1},
     {"eps", 1e-5}},
    "Normalises [batch, channels, ...] over all dims but the channels: in training with the "
    "batch's statistics, towards which running_mean and running_var move in place by "
    "momentum; else with the running ones."};

}  // namespace warptape::ops
