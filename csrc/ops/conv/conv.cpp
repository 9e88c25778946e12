// Convolution y = C(x, w), its transpose by the input x' = X(g, w) and by the weight w' = W(g, x). Each is
// linear in both operands and the gradients of one are the other two, so three nodes close under
// differentiation of any order:
//   dC: x' = X(g, w), w' = W(g, x)      dX: g' = C(h, w), w' = W(g, h)      dW: g' = C(x, h), x' = X(g, h)
// with g the gradient that flows into y and h the one that flows into the transpose's result. A transposed
// convolution is X itself.
#include "ops/conv/conv_plan.h"

#include "op/batching.h"
#include "ops/elementwise/elementwise.h"
#include "ops/linalg/matmul_plan.h"
#include "ops/nn/pad.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

using ConvSlot = kernels::Slot<kernels::ConvFn>;
using InputSlot = kernels::Slot<kernels::ConvBackwardInputFn>;
using WeightSlot = kernels::Slot<kernels::ConvBackwardWeightFn>;
ConvSlot conv_slots[]{ConvSlot("conv"), ConvSlot("conv_channels_last"), ConvSlot("conv_depthwise"),
                      ConvSlot("conv_planes")};
InputSlot input_slots[]{InputSlot("conv_backward_input"), InputSlot("conv_channels_last_backward_input"),
                        InputSlot("conv_depthwise_backward_input"), InputSlot("conv_planes_backward_input")};
WeightSlot weight_slots[]{
    WeightSlot("conv_backward_weight"), WeightSlot("conv_channels_last_backward_weight"),
    WeightSlot("conv_depthwise_backward_weight"), WeightSlot("conv_planes_backward_weight")};
kernels::Slot<kernels::ChainFn> chain_slot{"chain"};

// The kernel that suits the layout, of those in `slots`.
template <class Slot>
Slot& kernel_of(const ConvPlan& p, Slot (&slots)[4]) {
  return slots[static_cast<size_t>(p.kernel_used)];
}

// As PyTorch does: in the layout of the images or of the weight.
void choose_layout(ConvPlan& p, const Tensor& x, const Tensor& w) {
  const bool depthwise = p.in_channels == p.groups && p.out_channels == p.groups;
  if (x.ndim() != 4 || !(suggests_channels_last(x) || suggests_channels_last(w))) {
    if (depthwise && !x.device().is_accelerator()) p.kernel_used = ConvKernel::Planes;
    return;
  }
  p.format = MemoryFormat::ChannelsLast;
  if (x.device().is_accelerator()) {
    p.kernel_used = ConvKernel::ChannelsLast;
    return;
  }
  const int64_t narrowest = std::min(p.in_channels, p.out_channels) / p.groups;
  if (p.groups == 1 || narrowest >= 8)
    p.kernel_used = ConvKernel::ChannelsLast;
  else if (depthwise)
    p.kernel_used = ConvKernel::Depthwise;
}

// ---- the three products ---------------------------------------------------------------------------------

// Plans are two-dimensional; tensors of one spatial dim leave the height out.
Shape with_spatial(int64_t first, int64_t second, const int64_t* spatial, int64_t ndim) {
  Shape s{first, second};
  s.append(spatial + (4 - ndim), spatial + 2);
  return s;
}
Shape input_sizes(const ConvPlan& p, int64_t ndim) {
  return with_spatial(p.batch, p.in_channels, p.in, ndim);
}
Shape output_sizes(const ConvPlan& p, int64_t ndim) {
  return with_spatial(p.batch, p.out_channels, p.out, ndim);
}
Shape weight_sizes(const ConvPlan& p, int64_t ndim) {
  return with_spatial(p.out_channels, p.in_channels / p.groups, p.kernel, ndim);
}

Tensor conv(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvPlan& p,
            const ConvTail* tail = nullptr);
Tensor conv_input(const Tensor& g, const Tensor& w, const ConvPlan& p);
Tensor conv_weight(const Tensor& g, const Tensor& x, const ConvPlan& p);

Tensor bias_gradient(const Tensor& g, const ConvPlan& p) {
  Shape ones(static_cast<size_t>(g.ndim()), 1);
  ones[1] = p.out_channels;
  return reshape(tape_reduce_to(g, ones), Shape{p.out_channels});
}

void conv_backward(Node& n, Gradients& g) {
  const ConvPlan& p = n.data<ConvPlan>();
  if (g.wants(0)) g.set(0, conv_input(g[0], n.saved(1), p));
  if (g.wants(1)) g.set(1, conv_weight(g[0], n.saved(0), p));
  if (g.inputs() > 2 && g.wants(2)) g.set(2, bias_gradient(g[0], p));
}
void conv_input_backward(Node& n, Gradients& g) {
  const ConvPlan& p = n.data<ConvPlan>();
  if (g.wants(0)) g.set(0, conv(g[0], n.saved(1), {}, p));
  if (g.wants(1)) g.set(1, conv_weight(n.saved(0), g[0], p));
}
void conv_weight_backward(Node& n, Gradients& g) {
  const ConvPlan& p = n.data<ConvPlan>();
  if (g.wants(0)) g.set(0, conv(n.saved(1), g[0], {}, p));
  if (g.wants(1)) g.set(1, conv_input(n.saved(0), g[0], p));
}
constexpr NodeType kConv{"ConvolutionBackward0", conv_backward},
    kConvInput{"ConvolutionBackwardBackward0", conv_input_backward},
    kConvWeight{"ConvolutionBackwardBackward0", conv_weight_backward};

void save_operands(const Ref<Node>& n, const Tensor& a, const Tensor& b, const ConvPlan& p) {
  n->save(requires_grad(b) ? a : Tensor()), n->save(requires_grad(a) ? b : Tensor());
  n->emplace<ConvPlan>(p);
}

// Whether a kernel has to sum anything into `out`: not where an operand is empty, which leaves the bias.
bool has_terms(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& bias = {}) {
  if (out.is_meta() || out.numel() == 0) return false;
  if (a.numel() > 0 && b.numel() > 0) return true;
  if (bias.defined()) {
    Shape column(out.sizes().size() - 1, 1);
    column[0] = bias.numel();
    const Tensor row = raw_contiguous(bias);
    raw_copy(out, alias(row, column, contiguous_strides(column), row.offset()));
  } else {
    raw_fill(out, 0);
  }
  return false;
}

// Lets `launch(result, a, b)` compute `out` from the operands, all in the layout of the kernel.
template <class F>
void compute(const ConvPlan& p, const Tensor& out, const Tensor& a, const Tensor& b, F&& launch) {
  const MemoryFormat format = p.kernel_format();
  Tensor result = p.format == format ? out : empty_in(out.sizes(), options_of(out), format);
  launch(Launch(out.device()), result.data(), raw_in(a, format).data(), raw_in(b, format).data());
  if (!result.same(out)) raw_copy(out, result);
}

// The convolution into `out`, then the tail, in the kernel where that can.
void conv_with_tail(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& bias, ConvPlan p,
                    const ConvTail& tail) {
  Tensor residual = tail.residual;
  if (residual.defined()) residual = raw_in(residual, p.format);
  const bool more = tail.relu || residual.defined();
  const kernels::ChainPlan chain = more ? tail.plan(out, residual) : kernels::ChainPlan{};
  const bool within = p.takes_epilogue();
  if (more && within) p.epilogue = &chain;
  if (tail.packed.defined() && p.kernel_used == ConvKernel::ChannelsLast) p.packed = tail.packed.data();
  compute(p, out, x, w, [&](const Launch& launch, void* to, const void* from, const void* kernel) {
    kernel_of(p, conv_slots)(launch, p, to, from, kernel, bias.defined() ? bias.data() : nullptr);
  });
  if (more && !within) chain_slot(Launch(out.device()), chain);
}

Tensor conv(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvPlan& p, const ConvTail* tail) {
  Tensor out = empty_in(output_sizes(p, x.ndim()), options_of(x), p.format);
  if (tail && (!tail->residual.defined() || tail->residual.sizes() == out.sizes())) {
    conv_with_tail(out, x, w, bias.defined() ? raw_contiguous(bias) : bias, p, *tail);
    return out;
  }
  if (has_terms(out, x, w, bias)) {
    Tensor row = bias.defined() ? raw_contiguous(bias) : bias;
    ConvPlan with = p;
    if (p.takes_epilogue()) with.epilogue = take_epilogue(out);
    compute(p, out, x, w, [&](const Launch& launch, void* to, const void* from, const void* kernel) {
      kernel_of(p, conv_slots)(launch, with, to, from, kernel, row.defined() ? row.data() : nullptr);
    });
  }
  if (needs_grad(x, w, bias)) {
    Ref<Node> n = bias.defined() ? record(kConv, x, w, bias) : record(kConv, x, w);
    save_operands(n, x, w, p);
    set_history(out, n);
  }
  return tail ? tail->after(out) : out;
}

Tensor conv_input(const Tensor& g, const Tensor& w, const ConvPlan& p) {
  Tensor out = empty_in(input_sizes(p, g.ndim()), options_of(g), p.format);
  if (has_terms(out, g, w))
    compute(p, out, g, w, [&](const Launch& launch, void* to, const void* from, const void* kernel) {
      kernel_of(p, input_slots)(launch, p, to, from, kernel);
    });
  if (needs_grad(g, w)) {
    Ref<Node> n = record(kConvInput, g, w);
    save_operands(n, g, w, p);
    set_history(out, n);
  }
  return out;
}

Tensor conv_weight(const Tensor& g, const Tensor& x, const ConvPlan& p) {
  Tensor out = empty_in(weight_sizes(p, g.ndim()), options_of(g), p.format);
  if (has_terms(out, g, x))
    compute(p, out, g, x, [&](const Launch& launch, void* to, const void* up, const void* from) {
      kernel_of(p, weight_slots)(launch, p, to, up, from);
    });
  if (needs_grad(g, x)) {
    Ref<Node> n = record(kConvWeight, g, x);
    save_operands(n, g, x, p);
    set_history(out, n);
  }
  return out;
}

// ---- checks ---------------------------------------------------------------------------------------------

// One number for all spatial dims, or one each.
Shape per_dim(const char* op, const char* what, IntList given, int64_t spatial, int64_t least) {
  WT_CHECK(given.size() == 1 || static_cast<int64_t>(given.size()) == spatial, ShapeError, op, ": expected ",
           what, " to be a single integer or a list of ", spatial, " values, got ", AsShape{given});
  Shape out;
  for (int64_t d = 0; d < spatial; ++d) {
    out.push_back(given[given.size() == 1 ? 0 : d]);
    WT_CHECK(out.back() <= INT32_MAX, ShapeError, op, ": ", what, " is too large, got ", AsShape{given});
    WT_CHECK(out.back() >= least, ShapeError, op, ": ", what,
             least ? " must be positive" : " must not be negative", ", got ", AsShape{given});
  }
  return out;
}

struct Settings {
  Shape stride, padding, dilation;
  int64_t groups;
  const ConvTail* tail = nullptr;
};

Settings settings(const char* op, int64_t spatial, IntList stride, IntList padding, IntList dilation,
                  int64_t groups) {
  WT_CHECK(groups > 0, ShapeError, op, ": groups must be positive, got ", groups);
  return {per_dim(op, "stride", stride, spatial, 1), per_dim(op, "padding", padding, spatial, 0),
          per_dim(op, "dilation", dilation, spatial, 1), groups, nullptr};
}

void check_operands(const char* op, int64_t spatial, const Tensor& x, const Tensor& w,
                    const OptTensor& bias) {
  WT_CHECK(x.ndim() == spatial + 2 || x.ndim() == spatial + 1, ShapeError, op, ": expected ", spatial + 1,
           "D (unbatched) or ", spatial + 2, "D (batched) input, got shape ", x.sizes());
  WT_CHECK(w.ndim() == spatial + 2, ShapeError, op, ": expected a ", spatial + 2, "D weight, got shape ",
           w.sizes());
  for (const Tensor* t : {&w, bias ? &*bias : &w}) {
    WT_CHECK(t->dtype() == x.dtype(), DtypeError, op, ": input (", scalar_type(x.dtype()),
             "), weight and bias (", scalar_type(t->dtype()),
             ") must have the same dtype; convert one with .to(dtype)");
    WT_CHECK(t->device() == x.device(), DeviceError, op,
             ": Expected all tensors to be on the same device, but found ", x.device(), " and ", t->device(),
             "; move one with .to(device)");
  }
  WT_CHECK(is_floating(x.dtype()), DtypeError, op, ": not implemented for ", x.dtype(),
           "; convert to a floating dtype first");
}

void check_bias(const char* op, const OptTensor& bias, int64_t channels, const Tensor& w) {
  WT_CHECK(!bias || (bias->ndim() == 1 && bias->sizes()[0] == channels), ShapeError, op,
           ": given weight of size ", w.sizes(), ", expected bias to be 1-dimensional with ", channels,
           " elements, but got bias of size ", bias->sizes());
}

// The plan without its sizes of input and output.
ConvPlan plan_of(const char* op, const Tensor& w, const Settings& s) {
  WT_CHECK(w.sizes()[0] >= s.groups, ShapeError, op, ": Given groups=", s.groups,
           ", expected weight to be at least ", s.groups, " at dimension 0, but got weight of size ",
           w.sizes(), " instead");
  ConvPlan p{};
  int64_t spatial = w.ndim() - 2;
  p.dtype = w.dtype();
  p.groups = s.groups;
  p.in[0] = p.out[0] = p.kernel[0] = p.stride[0] = p.dilation[0] = 1;
  for (int64_t d = 0; d < spatial; ++d) {
    int64_t to = d + 2 - spatial;
    p.kernel[to] = w.sizes()[2 + d];
    p.stride[to] = s.stride[d], p.padding[to] = s.padding[d], p.dilation[to] = s.dilation[d];
  }
  return p;
}

void check_channels(const char* op, const Tensor& x, const Tensor& w, int64_t groups) {
  WT_CHECK(w.sizes()[0] % groups == 0, ShapeError, op, ": with groups=", groups,
           " the weight's first dim must be divisible by groups, but the weight has size ", w.sizes());
  WT_CHECK(x.sizes()[1] == w.sizes()[1] * groups, ShapeError, op, ": given groups=", groups,
           ", weight of size ", w.sizes(), ", expected input ", x.sizes(), " to have ", w.sizes()[1] * groups,
           " channels, but got ", x.sizes()[1], " channels instead");
}

// ---- convolution ----------------------------------------------------------------------------------------

// `after`: padding behind the input, per spatial dim.
Tensor convolve(const char* op, int64_t spatial, const Tensor& x, const Tensor& w, const OptTensor& bias,
                const Settings& s, const Shape& after) {
  check_operands(op, spatial, x, w, bias);
  if (x.ndim() == spatial + 1)
    return squeeze_dim(convolve(op, spatial, unsqueeze(x, 0), w, bias, s, after), 0);
  check_bias(op, bias, w.sizes()[0], w);
  ConvPlan p = plan_of(op, w, s);
  p.batch = x.sizes()[0], p.in_channels = x.sizes()[1], p.out_channels = w.sizes()[0];
  check_channels(op, x, w, s.groups);
  for (int64_t d = 0; d < spatial; ++d) {
    int64_t to = d + 2 - spatial, size = x.sizes()[2 + d];
    int64_t padded = size + s.padding[d] + after[d], reach = s.dilation[d] * (p.kernel[to] - 1) + 1;
    WT_CHECK(p.kernel[to] > 0 && reach <= padded, ShapeError, op, ": padded input size per channel ", padded,
             " in dim ", 2 + d, " of ", x.sizes(), " is smaller than the kernel's reach of ", reach,
             "; kernel size can't be greater than actual input size");
    p.in[to] = size;
    p.out[to] = (padded - reach) / s.stride[d] + 1;
  }
  choose_layout(p, x, w);
  return conv(x, w, bias ? *bias : Tensor(), p, s.tail);
}

// Over three spatial dims: a convolution over two, with the output's depth as batch. What the kernel sees at
// its steps along depth lies side by side in the channels of a group, so that one sum takes in all.
Tensor convolve_deep(const Tensor& x, const Tensor& w, const OptTensor& bias, const Settings& s,
                     const Shape& after) {
  check_operands("conv3d", 3, x, w, bias);
  if (x.ndim() == 4) return squeeze_dim(convolve_deep(unsqueeze(x, 0), w, bias, s, after), 0);
  check_bias("conv3d", bias, w.sizes()[0], w);
  plan_of("conv3d", w, s);
  check_channels("conv3d", x, w, s.groups);
  int64_t depth = x.sizes()[2], steps = w.sizes()[2], reach = s.dilation[0] * (steps - 1) + 1,
          padded = depth + s.padding[0] + after[0];
  WT_CHECK(steps > 0 && reach <= padded, ShapeError, "conv3d: padded input depth ", padded, " of ", x.sizes(),
           " is smaller than the kernel's reach of ", reach,
           "; kernel size can't be greater than actual input size");
  int64_t out_depth = (padded - reach) / s.stride[0] + 1, batch = x.sizes()[0], channels = w.sizes()[1];
  const Shape image{x.sizes()[3], x.sizes()[4]};
  const int64_t sides[] = {0, 0, 0, 0, s.padding[0], after[0]};
  const Tensor deep = padded > depth ? pad(x, sides, "constant", std::nullopt) : x;
  std::vector<Tensor> seen;  // [D', N, G, C / G, H, W] at each step
  for (int64_t step = 0; step < steps; ++step) {
    const Tensor planes = slice(deep, 2, step * s.dilation[0], out_depth, s.stride[0]);
    seen.push_back(reshape(permute(planes, Shape{2, 0, 1, 3, 4}),
                           Shape{out_depth, batch, s.groups, channels, image[0], image[1]}));
  }
  const int64_t wide = steps * channels;
  const Tensor kernel = reshape(transpose(w, 1, 2), Shape{w.sizes()[0], wide, w.sizes()[3], w.sizes()[4]});
  const Tensor total = convolve(
      "conv3d", 2, reshape(stack(seen, 3), Shape{out_depth * batch, s.groups * wide, image[0], image[1]}),
      kernel, bias,
      {{s.stride[1], s.stride[2]}, {s.padding[1], s.padding[2]}, {s.dilation[1], s.dilation[2]}, s.groups},
      {after[1], after[2]});
  Shape sizes{out_depth, batch};
  sizes.append(total.sizes().begin() + 1, total.sizes().end());
  Tensor out = permute(reshape(total, sizes), Shape{1, 2, 0, 3, 4});
  return suggests_channels_last(x) ? contiguous_in(out, MemoryFormat::ChannelsLast3d) : out;
}

template <int Spatial>
Tensor convolve_with(const char* op, const Tensor& x, const Tensor& w, const OptTensor& bias,
                     const Settings& s, const Shape& after) {
  if constexpr (Spatial == 3) return convolve_deep(x, w, bias, s, after);
  return convolve(op, Spatial, x, w, bias, s, after);
}

constexpr const char* kNames[] = {"", "conv1d", "conv2d", "conv3d"};

// f(x, w, no bias) of complex tensors by three real ones (Gauss's product), plus the bias.
template <int Spatial, class F>
Tensor by_parts(const Tensor& x, const Tensor& w, const OptTensor& bias, F&& f) {
  const Tensor xr = real(x), xi = imag(x), wr = real(w), wi = imag(w);
  const Tensor a = f(xr, wr, OptTensor()), b = f(xi, wi, OptTensor());
  const Tensor out = complex(a - b, f(xr + xi, wr + wi, OptTensor()) - a - b);
  if (!bias) return out;
  const int64_t channels = out.sizes()[out.ndim() - Spatial - 1];
  WT_CHECK(bias->dtype() == x.dtype(), DtypeError, "expected bias of dtype ", x.dtype(),
           " as the input, got ", *bias);
  WT_CHECK(bias->sizes() == Shape{channels}, ShapeError, "expected bias of shape [", channels, "], got ",
           *bias);
  Shape sizes(Spatial + 1, 1);
  sizes[0] = channels;
  return out + reshape(*bias, sizes);
}
bool both_complex(const Tensor& x, const Tensor& w) {
  return is_complex(x.dtype()) && x.dtype() == w.dtype() && w.ndim() > 0;
}

// f(x, w, bias) of int64 tensors by one in double: exact below 2^53.
template <class F>
Tensor by_double(const Tensor& x, const Tensor& w, const OptTensor& bias, F&& f) {
  const auto wide = [](const Tensor& t) { return raw_cast(t, DType::Float64); };
  return raw_cast(f(wide(x), wide(w), bias ? OptTensor(wide(*bias)) : OptTensor()), DType::Int64);
}
bool all_int64(const Tensor& x, const Tensor& w, const OptTensor& bias) {
  return x.dtype() == DType::Int64 && w.dtype() == DType::Int64 && (!bias || bias->dtype() == DType::Int64);
}

template <int Spatial>
Tensor conv_impl(const Tensor& x, const Tensor& w, const OptTensor& bias, IntList stride, IntList padding,
                 IntList dilation, int64_t groups) {
  if (both_complex(x, w))
    return by_parts<Spatial>(x, w, bias, [&](const Tensor& a, const Tensor& b, const OptTensor& none) {
      return conv_impl<Spatial>(a, b, none, stride, padding, dilation, groups);
    });
  if (all_int64(x, w, bias))
    return by_double(x, w, bias, [&](const Tensor& a, const Tensor& b, const OptTensor& c) {
      return conv_impl<Spatial>(a, b, c, stride, padding, dilation, groups);
    });
  Settings s = settings(kNames[Spatial], Spatial, stride, padding, dilation, groups);
  return convolve_with<Spatial>(kNames[Spatial], x, w, bias, s, s.padding);
}

template <int Spatial>
Tensor conv_named_impl(const Tensor& x, const Tensor& w, const OptTensor& bias, IntList stride,
                       std::string_view padding, IntList dilation, int64_t groups) {
  if (both_complex(x, w))
    return by_parts<Spatial>(x, w, bias, [&](const Tensor& a, const Tensor& b, const OptTensor& none) {
      return conv_named_impl<Spatial>(a, b, none, stride, padding, dilation, groups);
    });
  if (all_int64(x, w, bias))
    return by_double(x, w, bias, [&](const Tensor& a, const Tensor& b, const OptTensor& c) {
      return conv_named_impl<Spatial>(a, b, c, stride, padding, dilation, groups);
    });
  const char* op = kNames[Spatial];
  constexpr int64_t kZero[] = {0};
  Settings s = settings(op, Spatial, stride, kZero, dilation, groups);
  if (padding == "valid") return convolve_with<Spatial>(op, x, w, bias, s, s.padding);
  WT_CHECK(padding == "same", ShapeError, op, ": padding must be integers, 'valid' or 'same', got '", padding,
           "'");
  WT_CHECK(w.ndim() == Spatial + 2, ShapeError, op, ": expected a ", Spatial + 2, "D weight, got shape ",
           w.sizes());
  Shape after;
  for (int64_t d = 0; d < Spatial; ++d) {
    WT_CHECK(s.stride[d] == 1, ShapeError, op, ": padding='same' is not supported for strided convolutions");
    int64_t total = s.dilation[d] * (w.sizes()[2 + d] - 1);
    s.padding[d] = total / 2;
    after.push_back(total - total / 2);
  }
  return convolve_with<Spatial>(op, x, w, bias, s, after);
}

// ---- transposed convolution -----------------------------------------------------------------------------

Tensor transpose_convolve(const char* op, int64_t spatial, const Tensor& x, const Tensor& w,
                          const OptTensor& bias, const Settings& s, const Shape& extra) {
  check_operands(op, spatial, x, w, bias);
  if (x.ndim() == spatial + 1)
    return squeeze_dim(transpose_convolve(op, spatial, unsqueeze(x, 0), w, bias, s, extra), 0);
  ConvPlan p = plan_of(op, w, s);
  p.batch = x.sizes()[0], p.out_channels = x.sizes()[1], p.in_channels = w.sizes()[1] * s.groups;
  check_bias(op, bias, p.in_channels, w);
  WT_CHECK(p.out_channels == w.sizes()[0] && p.out_channels % s.groups == 0, ShapeError, op,
           ": given groups=", s.groups, ", weight of size ", w.sizes(), ", expected input ", x.sizes(),
           " to have ", w.sizes()[0], " channels, but got ", p.out_channels, " channels instead");
  for (int64_t d = 0; d < spatial; ++d) {
    int64_t to = d + 2 - spatial;
    WT_CHECK(extra[d] < std::max(s.stride[d], s.dilation[d]), ShapeError, op,
             ": output padding must be smaller than either stride or dilation, got output_padding ", extra,
             ", stride ", s.stride, ", dilation ", s.dilation);
    p.out[to] = x.sizes()[2 + d];
    p.in[to] =
        (p.out[to] - 1) * s.stride[d] - 2 * s.padding[d] + s.dilation[d] * (p.kernel[to] - 1) + extra[d] + 1;
    WT_CHECK(p.kernel[to] > 0 && p.out[to] > 0 && p.in[to] > 0, ShapeError, op,
             ": calculated output size in dim ", 2 + d, " is ", p.in[to], ", too small, for input ",
             x.sizes());
  }
  choose_layout(p, x, w);
  Tensor out = conv_input(x, w, p);
  if (!bias) return out;
  Shape column(static_cast<size_t>(spatial + 1), 1);
  column[0] = p.in_channels;
  return out + reshape(*bias, column);
}

// Over three spatial dims: one transposed convolution over two for each step along the kernel's depth, with
// depth as batch; its planes are added where the step takes them.
Tensor transpose_convolve_deep(const Tensor& x, const Tensor& w, const OptTensor& bias, const Settings& s,
                               const Shape& extra) {
  const char* op = "conv_transpose3d";
  check_operands(op, 3, x, w, bias);
  if (x.dtype() == DType::BFloat16 || x.dtype() == DType::Float16) {  // rounds the sum of all steps once
    const auto wide = [](const Tensor& t) { return tape_cast(t, DType::Float32); };
    const OptTensor row = bias ? OptTensor(wide(*bias)) : std::nullopt;
    return tape_cast(transpose_convolve_deep(wide(x), wide(w), row, s, extra), x.dtype());
  }
  if (x.ndim() == 4) return squeeze_dim(transpose_convolve_deep(unsqueeze(x, 0), w, bias, s, extra), 0);
  const int64_t batch = x.sizes()[0], channels = x.sizes()[1], depth = x.sizes()[2];
  const int64_t steps = w.sizes()[2], out_channels = w.sizes()[1] * s.groups;
  check_bias(op, bias, out_channels, w);
  WT_CHECK(extra[0] < std::max(s.stride[0], s.dilation[0]), ShapeError, op,
           ": output padding must be smaller than either stride or dilation, got output_padding ", extra,
           ", stride ", s.stride, ", dilation ", s.dilation);
  const int64_t out_depth =
      (depth - 1) * s.stride[0] - 2 * s.padding[0] + s.dilation[0] * (steps - 1) + extra[0] + 1;
  WT_CHECK(depth > 0 && steps > 0 && out_depth > 0, ShapeError, op, ": calculated output depth is ",
           out_depth, ", too small, for input ", x.sizes());
  Settings flat{
      {s.stride[1], s.stride[2]}, {s.padding[1], s.padding[2]}, {s.dilation[1], s.dilation[2]}, s.groups};
  Tensor planes =
      reshape(permute(x, Shape{2, 0, 1, 3, 4}), Shape{depth * batch, channels, x.sizes()[3], x.sizes()[4]});
  std::vector<Tensor> parts(out_depth);  // [N, O, H', W'] each
  Tensor last;
  for (int64_t kz = 0; kz < steps; ++kz) {
    last = transpose_convolve(op, 2, planes, select(w, 2, kz), {}, flat, {extra[1], extra[2]});
    for (int64_t z = 0; z < depth; ++z) {
      const int64_t at = z * s.stride[0] - s.padding[0] + kz * s.dilation[0];
      if (at < 0 || at >= out_depth) continue;
      Tensor plane = narrow(last, 0, z * batch, batch);
      parts[at] = parts[at].defined() ? parts[at] + plane : plane;
    }
  }
  for (Tensor& part : parts)
    if (!part.defined())
      part = zeros(Shape{batch, out_channels, last.sizes()[2], last.sizes()[3]}, options_of(x));
  Tensor out = stack(parts, 2);
  if (suggests_channels_last(x)) out = contiguous_in(out, MemoryFormat::ChannelsLast3d);
  return bias ? out + reshape(*bias, Shape{out_channels, 1, 1, 1}) : out;
}

template <int Spatial>
Tensor conv_transpose_impl(const Tensor& x, const Tensor& w, const OptTensor& bias, IntList stride,
                           IntList padding, IntList output_padding, int64_t groups, IntList dilation) {
  if (both_complex(x, w))
    return by_parts<Spatial>(x, w, bias, [&](const Tensor& a, const Tensor& b, const OptTensor& none) {
      return conv_transpose_impl<Spatial>(a, b, none, stride, padding, output_padding, groups, dilation);
    });
  if (all_int64(x, w, bias))
    return by_double(x, w, bias, [&](const Tensor& a, const Tensor& b, const OptTensor& c) {
      return conv_transpose_impl<Spatial>(a, b, c, stride, padding, output_padding, groups, dilation);
    });
  constexpr const char* names[] = {"", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"};
  const char* op = names[Spatial];
  Settings s = settings(op, Spatial, stride, padding, dilation, groups);
  Shape extra = per_dim(op, "output_padding", output_padding, Spatial, 0);
  if constexpr (Spatial == 3) return transpose_convolve_deep(x, w, bias, s, extra);
  return transpose_convolve(op, Spatial, x, w, bias, s, extra);
}

const Arg kStride{"stride", {1}}, kPadding{"padding", {0}}, kDilation{"dilation", {1}},
    kOutputPadding{"output_padding", {0}}, kGroups = Arg::integer("groups", 1);

}  // namespace

Tensor conv2d_with(const ConvTail& tail, const Tensor& x, const Tensor& w, const OptTensor& bias,
                   IntList stride, IntList padding, IntList dilation, int64_t groups) {
  Settings s = settings("conv2d", 2, stride, padding, dilation, groups);
  s.tail = &tail;
  return convolve("conv2d", 2, x, w, bias, s, s.padding);
}

ConvPlan plan_of_weight(const Tensor& w, int64_t groups) {
  ConvPlan p = plan_of("conv2d", w, {{1, 1}, {0, 0}, {1, 1}, groups});
  p.out_channels = w.sizes()[0], p.in_channels = w.sizes()[1] * groups;
  choose_layout(p, w, w);
  return p;
}

#define WT_CONV(N, facts, doc)                                                                      \
  decltype(conv##N##d) conv##N##d{                                                                  \
      "conv" #N "d",                                                                                \
      conv_impl<N>,                                                                                 \
      kFunction | kNN | kComplex | kLower | Role::Convolution | batching::conv##N##d | facts,       \
      {"input", "weight", {"bias", none}, kStride, kPadding, kDilation, kGroups},                   \
      doc};                                                                                         \
  decltype(conv##N##d_named) conv##N##d_named {                                                     \
    "conv" #N "d", conv_named_impl<N>,                                                              \
        kFunction | kNN | kComplex | kLower | Role::Convolution | kFold##N##d | facts,              \
        {"input", "weight", {"bias", none}, kStride, {"padding", "valid"}, kDilation, kGroups}, doc \
  }
WT_CONV(
    1, kEpilogue,
    "input [N, C, L] or [C, L], weight [O, C / groups, K] -> [N, O, L']; padding an int, 'same' or 'valid'.");
WT_CONV(2, kEpilogue, "input [N, C, H, W] or [C, H, W], weight [O, C / groups, KH, KW] -> [N, O, H', W'].");
WT_CONV(3, 0,
        "input [N, C, D, H, W] or without N, weight [O, C / groups, KD, KH, KW] -> [N, O, D', H', W'].");
#define WT_CONV_TRANSPOSE(N, doc)                                                                       \
  decltype(conv_transpose##N##d) conv_transpose##N##d {                                                 \
    "conv_transpose" #N "d", conv_transpose_impl<N>, kFunction | kNN | kComplex | kLower | kFold##N##d, \
        {"input", "weight", {"bias", none}, kStride, kPadding, kOutputPadding, kGroups, kDilation}, doc \
  }
WT_CONV_TRANSPOSE(1, "input [N, C, L], weight [C, O / groups, K] -> [N, O, L']; the transpose of conv1d.");
WT_CONV_TRANSPOSE(
    2, "input [N, C, H, W], weight [C, O / groups, KH, KW] -> [N, O, H', W']; the transpose of conv2d.");
WT_CONV_TRANSPOSE(3,
                  "input [N, C, D, H, W], weight [C, O / groups, KD, KH, KW] -> [N, O, D', H', W']; the "
                  "transpose of conv3d.");

namespace {
// Time first, channels last: [T, N, C] and weight [K, C, O] -> [T', N, O].
Tensor conv_tbc_impl(const Tensor& x, const Tensor& w, const Tensor& bias, int64_t pad) {
  WT_CHECK(
      x.ndim() == 3 && w.ndim() == 3, ShapeError,
      "conv_tbc: Input must have 3 dims: time, batch, in_channel, and weight 3: kernel_width, in_channels, "
      "out_channels, got ",
      x.sizes(), " and ", w.sizes());
  const int64_t one[] = {1}, padding[] = {pad}, in[] = {1, 2, 0}, filters[] = {2, 1, 0}, back[] = {2, 0, 1};
  Tensor out = conv1d(permute(x, IntList(in)), permute(w, IntList(filters)), bias, IntList(one),
                      IntList(padding), IntList(one), 1);
  return permute(out, IntList(back));
}
const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, int64_t)> conv_tbc{
    "conv_tbc",
    conv_tbc_impl,
    kFunction | kNN | kLower,
    {"input", "weight", "bias", Arg::integer("pad", 0)},
    "input [T, N, C], weight [K, C, O], bias [O] -> [T', N, O]."};
}  // namespace

}  // namespace warptape::ops
