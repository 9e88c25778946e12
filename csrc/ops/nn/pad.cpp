// Padding: constant, or with the input's own elements (reflect, replicate, circular). A constant pad and its
// gradient are each other with the opposite sizes; the other modes and their gradients form such a pair, too.
#include "ops/nn/pad.h"

#include "kernels/nn/pad.h"

#include "kernels/elementwise/elementwise.h"
#include "ops/kernel_inputs.h"
#include "tensor/memory_format.h"

namespace warptape::ops {
namespace {

using kernels::PadMode;
using kernels::PadPlan;

// What is added before and after each dim of the input; negative takes away.
struct Widths {
  Shape before, after;
};

Widths widths_of(const Tensor& x, IntList pad) {
  WT_CHECK(pad.size() % 2 == 0, Error, "pad: Padding length must be divisible by 2, got ", pad.size(),
           " entries");
  WT_CHECK(static_cast<int64_t>(pad.size()) <= 2 * x.ndim(), Error,
           "pad: Padding length should be less than or equal to two times the input dimension, got ",
           pad.size(), " entries for ", x.ndim(), " dims");
  Widths w{Shape(x.ndim(), 0), Shape(x.ndim(), 0)};
  for (size_t i = 0; i < pad.size(); i += 2) {
    const size_t d = x.ndim() - 1 - i / 2;
    w.before[d] = pad[i];
    w.after[d] = pad[i + 1];
  }
  return w;
}

Shape padded_sizes(const Tensor& x, const Widths& w) {
  Shape sizes = x.sizes();
  for (size_t d = 0; d < sizes.size(); ++d) {
    const int64_t n = sizes[d];
    const bool fits = !__builtin_add_overflow(n, w.before[d], &sizes[d]) &&
                      !__builtin_add_overflow(sizes[d], w.after[d], &sizes[d]);
    // Either side may take no more than there is, and both together leave something that is not negative.
    WT_CHECK(fits && sizes[d] >= 0 && n + std::min(w.before[d], int64_t{0}) >= 0 &&
                 n + std::min(w.after[d], int64_t{0}) >= 0,
             Error, "pad: The input size ", n, ", plus padding ", w.before[d], " and ", w.after[d],
             ", resulted in a negative output size at dimension ", d,
             "; length must be non-negative. Check dimension ", d, " of the input");
  }
  return sizes;
}

kernels::Slot<kernels::PadConstantFn> pad_constant_slot{"pad_constant"};
kernels::Slot<kernels::PadFn> pad_slot{"pad"};
kernels::Slot<kernels::PadBackwardFn> pad_backward_slot{"pad_backward"};

struct Padding {
  PadMode mode;
  Shape in, out;  // sizes of the tensors
  Widths widths;
};

PadPlan plan_of(const Padding& p, DType dtype) {
  PadPlan plan{p.mode, dtype, 1, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {0, 0, 0}};
  const int64_t ndim = static_cast<int64_t>(p.in.size());
  for (int64_t d = 0; d < ndim; ++d) {
    const int64_t at = d - ndim + kernels::kPaddedDims;
    if (at < 0) {
      plan.planes *= p.in[d];
      continue;
    }
    plan.in[at] = p.in[d];
    plan.out[at] = p.out[d];
    plan.before[at] = p.widths.before[d];
    plan.after[at] = p.widths.after[d];
  }
  return plan;
}

// ---- constant ------------------------------------------------------------------------------------------

// The part of t that is left without `less` at the beginning of every dim, of the given sizes.
Tensor inner(const Tensor& t, const Shape& less, const Shape& sizes) {
  int64_t offset = t.offset();
  for (size_t d = 0; d < sizes.size(); ++d) offset += less[d] * t.strides()[d];
  return alias(t, sizes, t.strides(), offset);
}

Tensor pad_constant(const Tensor& x, const Widths& w, const Scalar& value);

void constant_backward(Node& n, Gradients& g) {
  Widths w = n.data<Widths>();
  for (Shape* s : {&w.before, &w.after})
    for (int64_t& width : *s) width = -width;
  g.set(0, pad_constant(g[0], w, Scalar(0.0)));
}
constexpr NodeType kConstant{"ConstantPadNdBackward0", constant_backward};

// Any strides and any dims: fills all, then copies what stays of x into its place.
void fill_and_copy(const Tensor& out, const Tensor& x, const Widths& w, const Scalar& value) {
  Shape from(out.sizes().size(), 0), to = from, kept = x.sizes();
  for (size_t d = 0; d < kept.size(); ++d) {
    from[d] = std::max(-w.before[d], int64_t{0});
    to[d] = std::max(w.before[d], int64_t{0});
    kept[d] = std::max(x.sizes()[d] - from[d] - std::max(-w.after[d], int64_t{0}), int64_t{0});
  }
  if (kept != out.sizes()) raw_fill(out, value);
  if (numel_of(kept)) raw_copy(inner(out, to, kept), inner(x, from, kept));
}

bool only_last_dims(const Widths& w) {
  for (size_t d = 0; d + kernels::kPaddedDims < w.before.size(); ++d)
    if (w.before[d] != 0 || w.after[d] != 0) return false;
  return true;
}

Tensor pad_constant(const Tensor& x, const Widths& w, const Scalar& value) {
  const Shape sizes = padded_sizes(x, w);
  // Strides of dims of size 1 say nothing about an order.
  Tensor out = x.is_contiguous()
                   ? empty(sizes, options_of(x))
                   : empty_strided(sizes, ordered_strides(sizes, {&x.strides(), 1}), options_of(x));
  if (out.numel() && !out.is_meta()) {
    if (x.is_contiguous() && only_last_dims(w)) {
      const Tensor element = scalar_tensor(value, x.dtype());
      pad_constant_slot(Launch(x.device()), out.view(), x.view(),
                        plan_of({PadMode::Constant, x.sizes(), out.sizes(), w}, x.dtype()), element.data());
    } else {
      fill_and_copy(out, x, w, value);
    }
  }
  if (needs_grad(x)) {
    Ref<Node> n = record(kConstant, x);
    n->emplace<Widths>(w);
    set_history(out, n);
  }
  return out;
}

// ---- with the input's own elements ---------------------------------------------------------------------

Tensor pad_by_index(const Tensor& given, const Padding& p);

void by_index_backward(Node& n, Gradients& g);
void by_index_twice_backward(Node& n, Gradients& g) { g.set(0, pad_by_index(g[0], n.data<Padding>())); }
// One name per mode that is not constant, as PyTorch's nodes have, without the number of dims.
constexpr NodeType kByIndex[] = {{"ReflectionPadBackward0", by_index_backward},
                                 {"ReplicationPadBackward0", by_index_backward},
                                 {"CircularPadBackward0", by_index_backward}},
                   kByIndexBackward{"PadBackwardBackward0", by_index_twice_backward};

Tensor with_history(const Tensor& out, const NodeType& type, const Tensor& x, const Padding& p) {
  if (!needs_grad(x)) return out;
  Ref<Node> n = record(type, x);
  n->emplace<Padding>(p);
  set_history(out, n);
  return out;
}

Tensor pad_by_index(const Tensor& given, const Padding& p) {
  Tensor out = empty(p.out, options_of(given));
  if (out.numel() && !out.is_meta()) {
    Tensor x = raw_contiguous(given);
    pad_slot(Launch(x.device()), out.view(), x.view(), plan_of(p, x.dtype()));
  }
  out = raw_in(out, suggested_format(given));
  return with_history(out, kByIndex[static_cast<int>(p.mode) - 1], given, p);
}

void by_index_backward(Node& n, Gradients& g) {
  const Padding& p = n.data<Padding>();
  Tensor dx = empty(p.in, options_of(g[0]));
  if (dx.numel() && !dx.is_meta()) {
    Tensor dout = raw_contiguous(g[0]);
    pad_backward_slot(Launch(dx.device()), dx.view(), dout.view(), plan_of(p, dx.dtype()));
  }
  dx = raw_in(dx, suggested_format(g[0]));
  g.set(0, with_history(dx, kByIndexBackward, g[0], p));
}

void check_dims(PadMode mode, const Tensor& x, size_t entries) {
  const int64_t padded = static_cast<int64_t>(entries / 2);
  const bool known = padded >= 1 && padded <= 3 && (x.ndim() == padded + 1 || x.ndim() == padded + 2);
  WT_CHECK(known, NotImplementedError, "pad: Padding size ", entries, " is not supported for ", x.ndim(),
           "D input tensor in a mode other than constant. Supported are 2 entries for 2D or 3D input, 4 for "
           "3D or 4D, 6 for 4D or 5D");
  if (mode == PadMode::Circular) return;
  for (int64_t d = x.ndim() == padded + 2; d < x.ndim(); ++d)
    WT_CHECK(x.sizes()[d] > 0, Error, "pad: Expected ", padded + 1, "D or ", padded + 2,
             "D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for input, but "
             "got: ",
             x.sizes());
}

Tensor by_index_impl(const Tensor& x, IntList pad, std::string_view mode) {
  const std::string name(mode);
  Padding p{PadMode::Circular, x.sizes(), x.sizes(), widths_of(x, pad)};
  if (mode != "circular") p.mode = mode == "reflect" ? PadMode::Reflect : PadMode::Replicate;
  check_dims(p.mode, x, pad.size());
  for (size_t d = 0; d < p.out.size(); ++d) {
    const int64_t n = p.in[d], before = p.widths.before[d], after = p.widths.after[d];
    if (before == 0 && after == 0) continue;
    const int64_t limit = p.mode == PadMode::Reflect    ? n - 1
                          : p.mode == PadMode::Circular ? n
                                                        : INT64_MAX / 4;
    WT_CHECK(
        std::max(before, after) <= limit, Error,
        "pad: Padding size should be less than the corresponding input dimension in mode reflect, and at "
        "most as large in mode circular, here at most ",
        limit, ", but got: padding (", before, ", ", after, ") at dimension ", d, " of input ", x.sizes());
    const bool sane = before > -INT64_MAX / 4 && after > -INT64_MAX / 4;
    const int64_t size = sane ? n + before + after : -1;
    // Circular padding may leave nothing, but cannot repeat nothing.
    const bool left = n + std::min(before, int64_t{0}) + std::min(after, int64_t{0}) > 0;
    WT_CHECK(sane && (p.mode == PadMode::Circular ? size == 0 || (size > 0 && left) : size > 0), Error,
             "pad: input of size ", n, " at dimension ", d, " is too small for padding (", before, ", ",
             after, ") in mode ", name);
    p.out[d] = size;
  }
  return pad_by_index(x, p);
}

// Reflection and replication are computed in float32 under autocast, circular padding is not.
const Op<Tensor(const Tensor&, IntList, std::string_view)> pad_wide{
    "_pad_by_index",
    by_index_impl,
    kPrivate | kChecked | kComplex | kFloat32,
    {"input", "pad", "mode"},
    "pad in the modes reflect and replicate."};

Tensor pad_impl(const Tensor& x, IntList pad, std::string_view mode, std::optional<double> value) {
  if (mode == "constant") return pad_constant(x, widths_of(x, pad), value.value_or(0.0));
  WT_CHECK(mode == "reflect" || mode == "replicate" || mode == "circular", NotImplementedError,
           "pad: Unrecognised padding mode ", mode, "; expected constant, reflect, replicate or circular");
  WT_CHECK(!value || *value == 0, Error, "pad: Padding mode \"", mode, "\" doesn't take in value argument");
  return mode == "circular" ? by_index_impl(x, pad, mode) : pad_wide(x, pad, mode);
}

Tensor constant_pad_impl(const Tensor& x, IntList pad, const Scalar& value) {
  return pad_constant(x, widths_of(x, pad), value);
}
const Op<Tensor(const Tensor&, IntList, const Scalar&)> constant_pad_nd{
    "constant_pad_nd",
    constant_pad_impl,
    kFunction | kComplex,
    {"input", "pad", Arg::integer("value", 0)},
    "nn.functional.pad in the mode constant."};

}  // namespace

decltype(pad) pad{
    "pad",
    pad_impl,
    kNN | kComplex,
    {"input", "pad", {"mode", "constant"}, {"value", none}},
    "Adds (where negative, removes) elements at both ends of the last dims: pad is (before, after) of the "
    "last "
    "dim, then of the one before, and so on; mode 'constant', 'reflect', 'replicate' or 'circular'."};

}  // namespace warptape::ops
