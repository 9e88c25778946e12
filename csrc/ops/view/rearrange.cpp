// Other arrangements of the same elements: triangles, mirrors, rotations, repetitions, padding, windows.
#include "ops/view/rearrange.h"
#include "op/forms.h"

#include "kernels/index/index.h"
#include "op/batching.h"
#include "ops/elementwise/elementwise.h"
#include "ops/factory/factory.h"
#include "ops/index/gather.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"
#include "ops/view/view_copy.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::TriangleFn> tril_slot{"tril"}, triu_slot{"triu"};
kernels::Slot<kernels::FlipFn> flip_slot{"flip"};

constexpr OpFacts kBoth = kFunction | kMethod;

// ---- triangles -----------------------------------------------------------------------------------------

void tril_backward(Node& n, Gradients& g) { g.set(0, tril(g[0], n.data<int64_t>())); }
void triu_backward(Node& n, Gradients& g) { g.set(0, triu(g[0], n.data<int64_t>())); }
constexpr NodeType kTril{"TrilBackward0", tril_backward}, kTriu{"TriuBackward0", triu_backward};

Tensor triangle(const char* op, kernels::Slot<kernels::TriangleFn>& slot, const NodeType& type,
                const Tensor& x, int64_t k) {
  WT_CHECK(x.ndim() >= 2, ShapeError, op, ": input tensor must have at least 2 dimensions, got ", x);
  Tensor out = empty(x.sizes(), options_of(x));
  k = std::clamp(k, -x.size(-2) - 1, x.size(-1) + 1);
  if (!out.is_meta() && out.numel()) {
    Launch launch(x.device());
    slot(launch, out.view(), x.view(), k);
  }
  if (needs_grad(x)) {
    Ref<Node> n = record(type, x);
    n->emplace<int64_t>(k);
    set_history(out, n);
  }
  return out;
}
Tensor tril_impl(const Tensor& x, int64_t k) { return triangle("tril", tril_slot, kTril, x, k); }
Tensor triu_impl(const Tensor& x, int64_t k) { return triangle("triu", triu_slot, kTriu, x, k); }
Tensor tril_inplace(const Tensor& x, int64_t k) { return copy_(x, tril_impl(x, k), false); }
Tensor triu_inplace(const Tensor& x, int64_t k) { return copy_(x, triu_impl(x, k), false); }

}  // namespace

decltype(tril) tril{"tril",
                    tril_impl,
                    kBoth | kOut | kComplex | kLeading,
                    {"input", Arg::integer("diagonal", 0)},
                    "The lower triangle; zeros above the diagonal."};
decltype(triu) triu{"triu",
                    triu_impl,
                    kBoth | kOut | kComplex | kLeading,
                    {"input", Arg::integer("diagonal", 0)},
                    "The upper triangle; zeros below the diagonal."};

namespace {

const Op<Tensor(const Tensor&, int64_t)> tril_op_ =
                                             in_place_of(tril, tril_inplace, kMethod, "tril in place."),
                                         triu_op_ =
                                             in_place_of(triu, triu_inplace, kMethod, "triu in place.");

// ---- flip, roll ----------------------------------------------------------------------------------------

void flip_backward(Node& n, Gradients& g) { g.set(0, flip(g[0], n.data<Shape>())); }
constexpr NodeType kFlip{"FlipBackward0", flip_backward};

Tensor flip_impl(const Tensor& x, IntList dims) {
  Shape wrapped = wrap_dims(dims, x.ndim(), "flip");
  uint32_t mask = 0;
  for (int64_t d : wrapped) mask |= x.ndim() ? 1u << d : 0;
  Tensor out = empty(x.sizes(), options_of(x));
  if (!out.is_meta() && out.numel()) {
    Launch launch(x.device());
    flip_slot(launch, out.view(), x.view(), mask);
  }
  out = raw_in(out, suggested_format(x));
  if (needs_grad(x)) {
    Ref<Node> n = record(kFlip, x);
    n->emplace<Shape>(wrapped);
    set_history(out, n);
  }
  return out;
}
Tensor roll_impl(const Tensor& x, IntList shifts, IntList dims) {
  if (dims.empty()) {
    WT_CHECK(shifts.size() == 1, ShapeError, "roll: shifts and dimensions must align, got ", AsShape{shifts},
             " and no dims");
    int64_t zero = 0;
    return reshape(roll_impl(reshape(x, Shape{-1}), shifts, IntList{&zero, 1}), x.sizes());
  }
  WT_CHECK(shifts.size() == dims.size(), ShapeError, "roll: shifts and dimensions must align, got ",
           AsShape{shifts}, " and ", AsShape{dims});
  Tensor out = x;
  for (size_t i = 0; i < dims.size(); ++i) {
    WT_CHECK(x.ndim() > 0, IndexError, "roll: Dimension specified as ", dims[i],
             " but tensor has no dimensions");
    int64_t d = wrap_dim(dims[i], x.ndim(), "roll"), n = x.sizes()[d];
    int64_t by = n ? ((shifts[i] % n) + n) % n : 0;
    if (by == 0) continue;
    const Tensor parts[] = {narrow(out, d, n - by, by), narrow(out, d, 0, n - by)};
    out = cat(parts, d);
  }
  return out.same(x) ? clone(x) : out;
}
const Op<Tensor(const Tensor&, IntList, IntList)> roll_op{
    "roll",
    roll_impl,
    kBoth | kComplex,
    {"input", "shifts", {"dims", {}}},
    "Elements moved along dims, those that fall off come in at the other end."};

// ---- repetition ----------------------------------------------------------------------------------------

Tensor repeat_impl(const Tensor& x, IntList times) {
  auto k = static_cast<int64_t>(times.size());
  WT_CHECK(k >= x.ndim(), ShapeError,
           "repeat: Number of dimensions of repeat dims can not be smaller than number of dimensions of "
           "tensor, got ",
           AsShape{times}, " for ", x.sizes());
  // [r0, s0, r1, s1, ...] by expansion, then merged: one copy.
  Shape spread, expanded, merged;
  for (int64_t d = 0; d < k; ++d) {
    WT_CHECK(times[d] >= 0, ValueError, "repeat: expected repeats of at least 0, got ", AsShape{times});
    int64_t n = d < k - x.ndim() ? 1 : x.sizes()[d - (k - x.ndim())];
    spread.push_back(1), spread.push_back(n);
    expanded.push_back(times[d]), expanded.push_back(n);
    merged.push_back(times[d] * n);
  }
  Tensor wide = expand(reshape(x, spread), expanded);
  return reshape(clone(wide), merged);
}
Tensor tile_impl(const Tensor& x, IntList times) {
  Shape full(static_cast<size_t>(std::max<int64_t>(0, x.ndim() - static_cast<int64_t>(times.size()))), 1);
  full.append(times.begin(), times.end());
  return repeat_impl(x, full);
}
const Op<Tensor(const Tensor&, IntList)> repeat_op{"repeat",
                                                   repeat_impl,
                                                   kMethod | kComplex,
                                                   {"input", {"repeats", kVarArgs}},
                                                   "A copy repeated along each dim."},
    tile_op{"tile",
            tile_impl,
            kBoth | kComplex,
            {"input", {"dims", kVarArgs}},
            "repeat, with missing leading counts taken as 1."};

using OptInt = std::optional<int64_t>;

void check_output_size(OptInt asked, int64_t size) {
  WT_CHECK(!asked || *asked == size, ShapeError,
           "repeat_interleave: allocated size does not match required size: ", "output_size is ",
           asked.value_or(0), ", the repeats sum to ", size);
}

Tensor repeat_interleave_impl(const Tensor& x, int64_t times, OptInt dim, OptInt output_size) {
  WT_CHECK(times >= 0, ValueError, "repeat_interleave: Repeats must be non-negative, got ", times);
  if (!dim) return repeat_interleave_impl(reshape(x, Shape{-1}), times, 0, output_size);
  int64_t d = wrap_dim(*dim, x.ndim(), "repeat_interleave");
  if (x.ndim() == 0) return repeat_interleave_impl(reshape(x, Shape{1}), times, 0, output_size);
  Shape wide = x.sizes(), merged = x.sizes();
  wide.insert(d + 1, times);
  merged[d] *= times;
  check_output_size(output_size, merged[d]);
  return reshape(clone(expand(unsqueeze(x, d + 1), wide)), merged);
}

// 0, 1, 2, ..., each as often as its count says.
Tensor repeated_range(const Tensor& repeats, OptInt output_size) {
  WT_CHECK(repeats.ndim() == 1, ShapeError,
           "repeat_interleave: repeat_interleave only accept 1D vector as repeat, got ", repeats);
  WT_CHECK(repeats.dtype() == DType::Int64 || repeats.dtype() == DType::Int32, DtypeError,
           "repeat_interleave: repeats has to be Long or Int tensor, got ", repeats.dtype());
  WT_CHECK(!repeats.device().is_meta(), DeviceError,
           "repeat_interleave: the counts of a meta tensor are not known");
  const Tensor counts = empty(repeats.sizes(), {DType::Int64, {}});
  raw_copy(counts, repeats);
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < counts.numel(); ++i) {
    const int64_t c = counts.data_as<int64_t>()[i];
    WT_CHECK(c >= 0, ValueError, "repeat_interleave: repeats can not be negative, got ", c);
    rows.insert(rows.end(), static_cast<size_t>(c), i);
  }
  check_output_size(output_size, static_cast<int64_t>(rows.size()));
  Tensor index = empty(Shape{static_cast<int64_t>(rows.size())}, {DType::Int64, {}});
  std::copy(rows.begin(), rows.end(), index.data_as<int64_t>());
  return to(index, repeats.device(), repeats.dtype(), false, false);
}
Tensor repeat_interleave_tensor_impl(const Tensor& x, const Tensor& repeats, OptInt dim, OptInt output_size) {
  if (!dim || x.ndim() == 0) {
    wrap_dim(dim.value_or(0), x.ndim(), "repeat_interleave");
    return repeat_interleave_tensor_impl(reshape(x, Shape{-1}), repeats, 0, output_size);
  }
  const int64_t d = wrap_dim(*dim, x.ndim(), "repeat_interleave"), n = x.sizes()[d];
  WT_CHECK(repeats.ndim() <= 1 && (repeats.numel() == n || repeats.numel() == 1), ShapeError,
           "repeat_interleave: repeats must have the same size as input along dim (", n, "), got ", repeats);
  return index_select(x, d, repeated_range(expand(reshape(repeats, Shape{-1}), Shape{n}), output_size));
}
const Arg kDimOfRepeats{"dim", none}, kOutputSize{"output_size", none, kKeywordOnly};
const Op<Tensor(const Tensor&, int64_t, OptInt, OptInt)> repeat_interleave_op{
    "repeat_interleave",
    repeat_interleave_impl,
    kBoth | kComplex,
    {"input", "repeats", kDimOfRepeats, kOutputSize},
    "Each element repeated in place."};
const Op<Tensor(const Tensor&, const Tensor&, OptInt, OptInt)> repeat_interleave_tensor_op =
    overload_of(repeat_interleave_op, repeat_interleave_tensor_impl, {},
                "Each element repeated as often as its count says.");
const Op<Tensor(const Tensor&, OptInt)> repeated_range_op{"repeat_interleave",
                                                          repeated_range,
                                                          kFunction,
                                                          {"repeats", kOutputSize},
                                                          "0, 1, 2, ..., each as often as its count says."};

// ---- windows and diagonals -----------------------------------------------------------------------------

struct UnfoldData {
  Shape sizes;
  int64_t dim, size, step;
};
void unfold_backward(Node& n, Gradients& g) {
  const UnfoldData& d = n.data<UnfoldData>();
  if (d.sizes.empty()) return g.set(0, d.size ? reshape(g[0], Shape{}) : zeros({}, options_of(g[0])));
  // Windows overlap, so each is added in turn, to sums that are rounded once.
  Tensor out = zeros(d.sizes, {opmath_dtype(g[0].dtype()), g[0].device()});
  for (int64_t i = 0; i < g[0].sizes()[d.dim]; ++i) {
    Tensor window = transpose(unsqueeze(select(g[0], d.dim, i), d.dim), d.dim, -1);
    Tensor place = narrow(out, d.dim, i * d.step, d.size);
    add_(place, squeeze_dim(window, -1), 1);
  }
  g.set(0, cast(out, g[0].dtype()));
}
constexpr NodeType kUnfold{"UnfoldBackward0", unfold_backward};

Tensor unfold_impl(const Tensor& x, int64_t dim, int64_t size, int64_t step) {
  dim = wrap_dim(dim, x.ndim(), "unfold");
  int64_t n = x.ndim() ? x.sizes()[dim] : 1;
  WT_CHECK(size >= 0 && size <= n, ShapeError, "unfold: maximum size for tensor at dimension ", dim, " is ",
           n, " but size is ", size);
  WT_CHECK(step > 0, ValueError, "unfold: step is ", step, " but must be > 0");
  Shape sizes = x.sizes(), strides = x.strides();
  int64_t by = x.ndim() ? strides[dim] : 1;
  sizes.push_back(size);
  strides.push_back(by);
  if (x.ndim()) sizes[dim] = (n - size) / step + 1, strides[dim] = by * step;
  Tensor out = alias(x, sizes, strides, x.offset());
  set_view(out, x);
  if (needs_grad(x)) {
    Ref<Node> node = record(kUnfold, x);
    node->emplace<UnfoldData>(x.sizes(), dim, size, step);
    set_history(out, node);
  }
  return out;
}
const Op<Tensor(const Tensor&, int64_t, int64_t, int64_t)> unfold_op{
    "unfold",
    unfold_impl,
    kMethod | kComplex | kAlongDims | kLinear | Aliasing::View,
    {"input", {"dimension", kDimIndex}, "size", "step"},
    "A view of the windows of a dim; their elements become the last dim."};
const auto unfold_copy = copy_of<unfold_op>("unfold_copy");

Tensor diag_embed_impl(const Tensor& x, int64_t offset, int64_t a, int64_t b) {
  WT_CHECK(x.ndim() >= 1, ShapeError, "diag_embed: expected at least one dimension, got ", x);
  int64_t ndim = x.ndim() + 1, n = x.sizes().back() + std::abs(offset);
  a = wrap_dim(a, ndim, "diag_embed");
  b = wrap_dim(b, ndim, "diag_embed");
  WT_CHECK(a != b, ShapeError, "diag_embed: diagonal dimensions cannot be identical ", a, ", ", b);
  Shape sizes(x.sizes().begin(), x.sizes().end() - 1);
  sizes.insert(std::min(a, b), n);
  sizes.insert(std::max(a, b), n);
  // The region of the diagonal in a tensor of zeros.
  Shape strides = contiguous_strides(sizes);
  Region r{sizes, strides, sizes, strides, offset >= 0 ? offset * strides[b] : -offset * strides[a]};
  r.sizes.push_back(x.sizes().back());
  r.strides.push_back(strides[a] + strides[b]);
  for (int64_t d : {std::max(a, b), std::min(a, b)}) r.sizes.erase(d), r.strides.erase(d);
  return tape_replace_region(Tensor(), x, r);
}

// The places of a window's elements, counted from the lowest place of the tensor it was cut from and of its
// own.
struct StridedData {
  Shape sizes, own_sizes, own_strides, strides;
  int64_t own_start, start;  // in the range below
  int64_t range;             // how many places both reach over
};

int64_t reach(const Shape& sizes, const Shape& strides) {
  int64_t last = 0;
  for (size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * strides[d];
  return numel_of(sizes) ? last + 1 : 0;
}

Tensor places(const StridedData& d, const Shape& sizes, const Shape& strides, int64_t start, Device device) {
  Tensor found = raw_contiguous(alias(index_range(d.range, device), sizes, strides, start));
  return alias(found, Shape{numel_of(sizes)}, Shape{1}, found.offset());
}

// The gradient of the memory, then of the tensor that lies in it. A place that several elements of the tensor
// share gives each of them an equal part.
void as_strided_backward(Node& n, Gradients& g) {
  const auto& d = n.data<StridedData>();
  if (g[0].device().is_meta()) return g.set(0, zeros(d.own_sizes, options_of(g[0])));
  const Device device = g[0].device();
  const Shape flat{-1};
  Tensor memory = index_add(zeros(Shape{d.range}, options_of(g[0])), 0,
                            places(d, d.sizes, d.strides, d.start, device), reshape(g[0], flat), 1);
  Tensor own = places(d, d.own_sizes, d.own_strides, d.own_start, device);
  Tensor mine = index_select(memory, 0, own);
  if (own.numel() > reach(d.own_sizes, d.own_strides)) {
    TensorOptions options{DType::Float64, device};
    Tensor count = index_add(zeros(Shape{d.range}, options), 0, own, full(own.sizes(), 1.0, options), 1);
    mine = mine / cast(index_select(count, 0, own), mine.dtype());
  }
  g.set(0, reshape(mine, d.own_sizes));
}
constexpr NodeType kAsStrided{"AsStridedBackward0", as_strided_backward};

Tensor as_strided_impl(const Tensor& x, IntList size, IntList stride, std::optional<int64_t> offset) {
  if (is_opaque(x)) x.data();  // raises: there is no storage to step over
  WT_CHECK(size.size() == stride.size(), ShapeError,
           "as_strided: mismatch in length of strides and shape: ", AsShape{size}, " and ", AsShape{stride});
  int64_t start = offset.value_or(x.offset()), last = start;
  WT_CHECK(start >= 0, ValueError, "as_strided: expected a storage_offset of at least 0, got ", start);
  bool any = numel_of(size, "as_strided") > 0;
  for (size_t d = 0; d < size.size(); ++d) {
    WT_CHECK(stride[d] >= 0, ValueError, "as_strided: Negative strides are not supported at the moment, got ",
             AsShape{stride});
    int64_t step;
    bool overflow = any && (__builtin_mul_overflow(size[d] - 1, stride[d], &step) ||
                            __builtin_add_overflow(last, step, &last));
    WT_CHECK(!overflow, ShapeError, "as_strided: strides reach beyond 63 bits");
  }
  auto held = static_cast<int64_t>(x.storage().bytes() / x.itemsize());
  WT_CHECK(!any || last < held, ShapeError, "as_strided: setStorage: sizes ", AsShape{size}, ", strides ",
           AsShape{stride}, ", offset ", start, " need ", last + 1, " elements, the storage holds ", held);
  Tensor out = alias(x, Shape(size), Shape(stride), start);
  set_view(out, x);
  if (needs_grad(x)) {
    Ref<Node> n = record(kAsStrided, x);
    const int64_t low = std::min(start, x.offset());
    const int64_t end =
        std::max(start + reach(out.sizes(), out.strides()), x.offset() + reach(x.sizes(), x.strides()));
    n->emplace<StridedData>(out.sizes(), x.sizes(), x.strides(), out.strides(), x.offset() - low, start - low,
                            end - low);
    set_history(out, n);
  }
  return out;
}

}  // namespace

decltype(as_strided) as_strided{"as_strided",
                                as_strided_impl,
                                kBoth | kComplex | Aliasing::View | batching::as_strided,
                                {"input", "size", "stride", {"storage_offset", none}},
                                "A view with any sizes and strides in the storage."};

decltype(flip) flip{"flip",
                    flip_impl,
                    kBoth | kComplex | kAlongDims | kLinear,
                    {"input", {"dims", kVarArgs | kDimIndex}},
                    "The tensor mirrored in the given dims."};

decltype(diag_embed) diag_embed{
    "diag_embed",
    diag_embed_impl,
    kBoth | kComplex,
    {"input", Arg::integer("offset", 0), Arg::integer("dim1", -2), Arg::integer("dim2", -1)},
    "The last dim as a diagonal of zeros' matrices."};

namespace {
const auto as_strided_copy = copy_of<as_strided>("as_strided_copy");
const auto as_strided_ = in_place_view<as_strided>("as_strided_");
}  // namespace
}  // namespace warptape::ops
