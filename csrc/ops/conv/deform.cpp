// Convolution at displaced places ("Deformable Convolutional Networks" v1 and v2, 1703.06211 and 1811.11168),
// found as torch.ops.torchvision.deform_conv2d: columns read at the places, times the weight. Legend: N
// images, C channels, H x W pixels, O channels of the output of P x Q, kh x kw taps, G groups of the weight,
// F of the offsets.
#include "kernels/extra/vision.h"
#include "ops/index/gather.h"
#include "ops/kernel_inputs.h"
#include "ops/linalg/matmul.h"
#include "ops/recompute.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::DeformColumnsFn> columns_slot{"deform_columns"};
kernels::Slot<kernels::DeformInputFn> input_slot{"deform_input"};
kernels::Slot<kernels::DeformPlacesFn> places_slot{"deform_places"};

using Plan = kernels::DeformPlan;

const void* data_of(const Tensor& t) { return t.defined() ? t.data() : nullptr; }

// ---- composed: what second gradients are made of -------------------------------------------------------

// Where tap t reads for place l along one dim (0 y, 1 x) before it is moved, [taps, P * Q].
Tensor unmoved(const Plan& p, int dim, const TensorOptions& options) {
  const int64_t taps = p.kernel[0] * p.kernel[1], length = p.out_height * p.out_width;
  Tensor at = empty(Shape{taps, length}, {DType::Float64, Device{}});
  for (int64_t t = 0; t < taps; ++t)
    for (int64_t l = 0; l < length; ++l) {
      const int64_t tap = dim ? t % p.kernel[1] : t / p.kernel[1];
      const int64_t place = dim ? l % p.out_width : l / p.out_width;
      at.data_as<double>()[t * length + l] =
          static_cast<double>(place * p.stride[dim] - p.padding[dim] + tap * p.dilation[dim]);
    }
  return to(at, options.device, options.dtype, false, false);
}

// The columns by differentiable ops.
Tensor composed_columns(const Tensor& x, const Tensor& offset, const Tensor& mask, const Plan& p) {
  const int64_t f = p.groups, each = p.channels / f, taps = p.kernel[0] * p.kernel[1],
                length = p.out_height * p.out_width;
  const Tensor flat = reshape(x, Shape{p.n, f, each, p.height * p.width});
  const Tensor moves = reshape(offset, Shape{p.n, f, taps, 2, length});
  const Tensor y = select(moves, 3, 0) + unmoved(p, 0, options_of(x)),
               z = select(moves, 3, 1) + unmoved(p, 1, options_of(x));
  const Tensor top = floor(detach(y)), left = floor(detach(z));
  Tensor total;
  for (int corner = 0; corner < 4; ++corner) {
    const Tensor row = top + corner / 2, column = left + corner % 2;
    Tensor weight = (corner / 2 ? y - top : top - y + 1) * (corner % 2 ? z - left : left - z + 1);
    const Tensor in = logical_and(logical_and(ge_ts(row, 0), lt_ts(row, p.height)),
                                  logical_and(ge_ts(column, 0), lt_ts(column, p.width)));
    const Tensor at = cast(where_ts(in, row * p.width + column, Scalar(0.0)), DType::Int64);
    const Tensor values = gather(
        flat, 3, expand(reshape(at, Shape{p.n, f, 1, taps * length}), Shape{p.n, f, each, taps * length}),
        false);
    weight = where_ts(in, weight, Scalar(0.0));
    if (mask.defined()) weight = weight * reshape(mask, Shape{p.n, f, taps, length});
    const Tensor part = values * reshape(weight, Shape{p.n, f, 1, taps * length});
    total = total.defined() ? total + part : part;
  }
  return reshape(total, Shape{p.n, p.channels, taps, length});
}

// ---- fused ---------------------------------------------------------------------------------------------

void columns_backward(Node& n, Gradients& g) {
  const Tensor saved[]{n.saved(0), n.saved(1), n.saved(2)};
  const auto& [x, offset, mask] = saved;
  const Plan& p = n.data<Plan>();
  if (needs_grad(g[0], x, offset, mask))
    return recomputed_backward(
        saved, g, [&](std::span<const Tensor> in) { return composed_columns(in[0], in[1], in[2], p); });
  const Tensor up = raw_contiguous(g[0]);
  const bool empty_one = up.is_meta() || !up.numel();
  const auto grad_of = [&](const Tensor& t) {
    return empty_one && !t.is_meta() ? zeros(t.sizes(), options_of(t)) : empty(t.sizes(), options_of(t));
  };
  const Launch launch(up.device());
  if (g.wants(0)) {
    Tensor dx = grad_of(x);
    if (!empty_one) input_slot(launch, p, dx.data(), up.data(), offset.data(), data_of(mask));
    g.set(0, std::move(dx));
  }
  const bool wants_mask = mask.defined() && g.wants(2);
  if (!g.wants(1) && !wants_mask) return;
  Tensor doffset = grad_of(offset), dmask = wants_mask ? grad_of(mask) : Tensor();
  if (!empty_one)
    places_slot(launch, p, doffset.data(), wants_mask ? dmask.data() : nullptr, up.data(), x.data(),
                offset.data(), data_of(mask));
  if (g.wants(1)) g.set(1, std::move(doffset));
  if (wants_mask) g.set(2, std::move(dmask));
}
constexpr NodeType kColumns{"DeformColumnsBackward0", columns_backward};

// [N, C, kh * kw, P * Q]; `mask` may be undefined.
Tensor columns_of(const Tensor& input, const Tensor& offset, const Tensor& mask, const Plan& p) {
  const auto dense = [](const Tensor& t) { return t.defined() ? contiguous(t) : t; };
  const Tensor x = dense(input), places = dense(offset), factors = dense(mask);
  // Kernels are the CPU's: on other devices gather and its ordered backward serve.
  if (x.device().is_accelerator() && x.numel()) return composed_columns(x, places, factors, p);
  Tensor out =
      empty(Shape{p.n, p.channels, p.kernel[0] * p.kernel[1], p.out_height * p.out_width}, options_of(x));
  if (out.numel() && !out.is_meta())
    columns_slot(Launch(x.device()), p, out.data(), x.data(), places.data(), data_of(factors));
  if (needs_grad(x, places, factors)) {
    Ref<Node> n = record(kColumns, x, places, factors);
    for (const Tensor& t : {x, places, factors}) n->save(t);
    n->emplace<Plan>(p);
    set_history(out, n);
  }
  return out;
}

struct Weights {
  int64_t groups;
  bool use_mask;
};

void check_kinds(const char* op, const Tensor& x, std::initializer_list<const Tensor*> others) {
  WT_CHECK(x.ndim() == 4, ShapeError, op, ": expected input [N, C, H, W], got ", x);
  WT_CHECK(x.dtype() == DType::Float32 || x.dtype() == DType::Float64, DtypeError, op,
           ": expected float32 or float64, got ", x, "; convert it with .float()");
  for (const Tensor* t : others)
    WT_CHECK(t->dtype() == x.dtype(), DtypeError, op, ": expected tensors of one dtype, got ", x, " and ",
             *t);
}

// Refuses what does not fit together.
void check_shapes(const char* op, const Plan& p, const Weights& w, const Tensor& x, const Tensor& weight,
                  const Tensor& offset, const Tensor& mask, const Tensor& bias) {
  const int64_t taps = p.kernel[0] * p.kernel[1], out = weight.sizes()[0];
  WT_CHECK(w.groups > 0 && p.channels == weight.sizes()[1] * w.groups && out % w.groups == 0, ShapeError, op,
           ": weight ", weight, " does not fit input ", x, " in ", w.groups, " groups");
  WT_CHECK(p.groups > 0 && p.channels % p.groups == 0, ShapeError, op, ": ", p.channels,
           " channels are not a multiple of ", p.groups, " offset groups");
  const Shape moved{p.n, p.groups * 2 * taps, p.out_height, p.out_width},
      masked{p.n, p.groups * taps, p.out_height, p.out_width};
  WT_CHECK(p.out_height > 0 && p.out_width > 0, ShapeError, op, ": Calculated output size too small, got ",
           p.out_height, " x ", p.out_width);
  WT_CHECK(offset.sizes() == moved, ShapeError, op, ": expected offset ", moved, ", got ", offset);
  WT_CHECK(!w.use_mask || mask.sizes() == masked, ShapeError, op, ": expected mask ", masked, ", got ", mask);
  WT_CHECK(bias.sizes() == Shape{out}, ShapeError, op, ": expected bias of ", out, ", got ", bias);
}

Tensor deform_conv2d_impl(const Tensor& x, const Tensor& weight, const Tensor& offset, const Tensor& mask,
                          const Tensor& bias, int64_t stride_h, int64_t stride_w, int64_t pad_h,
                          int64_t pad_w, int64_t dilation_h, int64_t dilation_w, int64_t groups,
                          int64_t offset_groups, bool use_mask) {
  const char* op = "deform_conv2d";
  check_kinds(op, x, {&weight, &offset, &bias});
  WT_CHECK(weight.ndim() == 4, ShapeError, op, ": expected weight [O, C / groups, kh, kw], got ", weight);
  WT_CHECK(stride_h > 0 && stride_w > 0 && pad_h >= 0 && pad_w >= 0 && dilation_h > 0 && dilation_w > 0,
           ValueError, op, ": expected positive strides and dilations and no negative padding, got ",
           stride_h, ", ", stride_w, ", ", dilation_h, ", ", dilation_w, ", ", pad_h, ", ", pad_w);
  const Shape &in = x.sizes(), &ws = weight.sizes();
  const auto length = [](int64_t size, int64_t pad, int64_t dilation, int64_t taps, int64_t stride) {
    const int64_t room = size + 2 * pad - dilation * (taps - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
  };
  const Plan p{x.dtype(),
               in[0],
               in[1],
               in[2],
               in[3],
               {ws[2], ws[3]},
               {stride_h, stride_w},
               {pad_h, pad_w},
               {dilation_h, dilation_w},
               offset_groups,
               length(in[2], pad_h, dilation_h, ws[2], stride_h),
               length(in[3], pad_w, dilation_w, ws[3], stride_w)};
  if (use_mask) check_kinds(op, x, {&mask});
  check_shapes(op, p, {groups, use_mask}, x, weight, offset, mask, bias);
  const int64_t each = p.channels / groups * ws[2] * ws[3], places = p.out_height * p.out_width;
  const Tensor columns =
      reshape(columns_of(x, offset, use_mask ? mask : Tensor(), p), Shape{p.n, groups, each, places});
  const Tensor product = matmul(reshape(weight, Shape{groups, ws[0] / groups, each}), columns);
  return reshape(product, Shape{p.n, ws[0], p.out_height, p.out_width}) +
         reshape(bias, Shape{1, ws[0], 1, 1});
}

const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t,
                int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool)>
    deform_conv2d{
        "torchvision_deform_conv2d",
        deform_conv2d_impl,
        kPrivate | kChecked,
        {"input", "weight", "offset", "mask", "bias", "stride_h", "stride_w", "pad_h", "pad_w", "dilation_h",
         "dilation_w", "groups", "offset_groups", "use_mask"},
        "Convolution of [N, C, H, W] whose taps are moved by offset [N, F * kh * kw * 2, P, Q], (y, x) "
        "in pixels, and with use_mask weighed by mask [N, F * kh * kw, P, Q]."};

}  // namespace
}  // namespace warptape::ops
