#include "ops/view/view.h"
#include "op/forms.h"

#include <memory>
#include <numeric>

#include "op/batching.h"
#include "ops/elementwise/elementwise.h"
#include "ops/view/copy.h"
#include "ops/view/view_copy.h"

namespace warptape::ops {
namespace {

// Makes the view, remembers its base and records it. `fill` stores what backward needs.
template <class F>
Tensor make_view(const NodeType& type, const Tensor& x, Shape sizes, Shape strides, int64_t offset,
                 F&& fill) {
  Tensor out = alias(x, std::move(sizes), std::move(strides), offset);
  set_view(out, x);
  if (needs_grad(x)) {
    Ref<Node> n = record(type, x);
    fill(*n);
    set_history(out, n);
  }
  return out;
}

// ---- same elements in the same order -------------------------------------------------------------------

void reshape_backward(Node& n, Gradients& g) { g.set(0, reshape(g[0], n.data<Shape>())); }
constexpr NodeType kView{"ViewBackward0", reshape_backward},
    kUnsqueeze{"UnsqueezeBackward0", reshape_backward}, kSqueeze{"SqueezeBackward0", reshape_backward};

Tensor reshaped(const NodeType& type, const Tensor& x, Shape sizes, Shape strides) {
  return make_view(type, x, std::move(sizes), std::move(strides), x.offset(),
                   [&](Node& n) { n.emplace<Shape>(x.sizes()); });
}

Tensor view_impl(const Tensor& x, IntList to) {
  Shape sizes = infer_size(to, x.numel(), "view");
  auto strides = view_strides(x, sizes);
  WT_CHECK(strides, ShapeError,
           "view: view size is not compatible with input tensor's size and stride (at least one dimension "
           "spans across two contiguous subspaces). Use .reshape(...) instead. Input ",
           x, " strides ", x.strides(), ", asked ", sizes);
  return reshaped(kView, x, std::move(sizes), *std::move(strides));
}

Tensor reshape_impl(const Tensor& x, IntList to) {
  Shape sizes = infer_size(to, x.numel(), "reshape");
  if (auto strides = view_strides(x, sizes)) return reshaped(kView, x, std::move(sizes), *std::move(strides));
  const Tensor dense = contiguous(x);  // of its own, so that the result is no view
  Tensor out = alias(dense, sizes, contiguous_strides(sizes), dense.offset());
  if (needs_grad(dense)) {
    Ref<Node> n = record(kView, dense);
    n->emplace<Shape>(x.sizes());
    set_history(out, n);
  }
  return out;
}

Tensor view_as_impl(const Tensor& x, const Tensor& other) { return view(x, other.sizes()); }
Tensor reshape_as_impl(const Tensor& x, const Tensor& other) { return reshape(x, other.sizes()); }

Tensor flatten_impl(const Tensor& x, int64_t start, int64_t end) {
  if (x.ndim() == 0) return reshape(x, Shape{1});
  start = wrap_dim(start, x.ndim(), "flatten");
  end = wrap_dim(end, x.ndim(), "flatten");
  WT_CHECK(start <= end, ShapeError, "flatten: start_dim cannot come after end_dim, got ", start, " and ",
           end);
  Shape sizes;
  for (int64_t d = 0; d < x.ndim(); ++d) {
    if (d > start && d <= end) {
      sizes.back() *= x.sizes()[d];
    } else {
      sizes.push_back(x.sizes()[d]);
    }
  }
  return start == end ? x : reshape(x, sizes);
}

Tensor unflatten_impl(const Tensor& x, int64_t dim, IntList into) {
  WT_CHECK(x.ndim() > 0, IndexError, "unflatten: Dimension specified as ", dim,
           " but tensor has no dimensions");
  dim = wrap_dim(dim, x.ndim(), "unflatten");
  WT_CHECK(!into.empty(), ShapeError, "unflatten: sizes must be non-empty");
  Shape inner = infer_size(into, x.sizes()[dim], "unflatten");
  Shape sizes(x.sizes().begin(), x.sizes().begin() + dim);
  sizes.append(inner.begin(), inner.end());
  sizes.append(x.sizes().begin() + dim + 1, x.sizes().end());
  return reshape(x, sizes);
}

Tensor unsqueeze_impl(const Tensor& x, int64_t dim) {
  dim = wrap_dim(dim, x.ndim() + 1, "unsqueeze");
  Shape sizes = x.sizes(), strides = x.strides();
  sizes.insert(dim, 1);
  strides.insert(dim, dim < x.ndim() ? x.sizes()[dim] * x.strides()[dim] : 1);
  return reshaped(kUnsqueeze, x, std::move(sizes), std::move(strides));
}

Tensor squeeze_dims(const Tensor& x, IntList dims, bool all) {
  Shape wrapped = wrap_dims(dims, x.ndim(), "squeeze"), sizes, strides;
  for (int64_t d = 0; d < x.ndim(); ++d) {
    bool asked = all || std::find(wrapped.begin(), wrapped.end(), d) != wrapped.end();
    if (asked && x.sizes()[d] == 1) continue;
    sizes.push_back(x.sizes()[d]);
    strides.push_back(x.strides()[d]);
  }
  return reshaped(kSqueeze, x, std::move(sizes), std::move(strides));
}
Tensor squeeze_impl(const Tensor& x) { return squeeze_dims(x, {}, true); }
Tensor squeeze_dim_impl(const Tensor& x, int64_t dim) { return squeeze_dims(x, IntList{&dim, 1}, false); }
Tensor squeeze_list_impl(const Tensor& x, IntList dims) { return squeeze_dims(x, dims, false); }

// ---- another order of dims -----------------------------------------------------------------------------

void permute_backward(Node& n, Gradients& g) {
  const Shape& dims = n.data<Shape>();
  Shape inverse(dims.size(), 0);
  for (size_t i = 0; i < dims.size(); ++i) inverse[dims[i]] = static_cast<int64_t>(i);
  g.set(0, permute(g[0], inverse));
}
constexpr NodeType kPermute{"PermuteBackward0", permute_backward},
    kTranspose{"TransposeBackward0", permute_backward};

Tensor permuted(const NodeType& type, const Tensor& x, const Shape& dims) {
  Shape sizes, strides;
  for (int64_t d : dims) {
    sizes.push_back(x.sizes()[d]);
    strides.push_back(x.strides()[d]);
  }
  return make_view(type, x, std::move(sizes), std::move(strides), x.offset(),
                   [&](Node& n) { n.emplace<Shape>(dims); });
}

Tensor permute_impl(const Tensor& x, IntList dims) {
  WT_CHECK(static_cast<int64_t>(dims.size()) == x.ndim(), ShapeError, "permute: expected ", x.ndim(),
           " dims for a tensor of shape ", x.sizes(), ", got ", AsShape{dims});
  return permuted(kPermute, x, wrap_dims(dims, x.ndim(), "permute"));
}

Shape identity_dims(const Tensor& x) {
  Shape dims(x.sizes().size(), 0);
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

Tensor transpose_impl(const Tensor& x, int64_t a, int64_t b) {
  a = wrap_dim(a, x.ndim(), "transpose");
  b = wrap_dim(b, x.ndim(), "transpose");
  Shape dims = identity_dims(x);
  if (x.ndim()) std::swap(dims[a], dims[b]);
  return permuted(kTranspose, x, dims);
}

Tensor t_impl(const Tensor& x) {
  WT_CHECK(x.ndim() <= 2, ShapeError, "t: t() expects a tensor with <= 2 dimensions, but self is ", x.ndim(),
           "D");
  return x.ndim() < 2 ? transpose(x, 0, x.ndim() ? 0 : -1) : transpose(x, 0, 1);
}

Tensor movedim_impl(const Tensor& x, IntList from, IntList to) {
  Shape source = wrap_dims(from, x.ndim(), "movedim"), target = wrap_dims(to, x.ndim(), "movedim");
  WT_CHECK(source.size() == target.size(), ShapeError, "movedim: Invalid source or destination dims: source ",
           source, " and destination ", target, " must have the same number of elements");
  Shape dims(x.sizes().size(), -1);
  for (size_t i = 0; i < source.size(); ++i) dims[target[i]] = source[i];
  int64_t next = 0;
  for (int64_t& d : dims) {
    if (d >= 0) continue;
    while (std::find(source.begin(), source.end(), next) != source.end()) ++next;
    d = next++;
  }
  return permute(x, dims);
}

// ---- repeated ------------------------------------------------------------------------------------------

void expand_backward(Node&, Gradients& g) { g.set(0, g[0]); }  // the engine sums over what was repeated
constexpr NodeType kExpand{"ExpandBackward0", expand_backward};

Tensor expand_impl(const Tensor& x, IntList to) {
  Shape sizes(to);
  int64_t shift = static_cast<int64_t>(sizes.size()) - x.ndim();
  for (int64_t d = std::max<int64_t>(shift, 0); d < static_cast<int64_t>(sizes.size()); ++d)
    if (sizes[d] == -1) sizes[d] = x.sizes()[d - shift];
  Shape strides = broadcast_strides(x.sizes(), x.strides(), sizes, "expand");
  numel_of(sizes, "expand");
  for (int64_t d = shift - 1; d >= 0; --d)  // new dims of one element, as unsqueeze makes them
    if (x.ndim() && sizes[d] == 1) strides[d] = sizes[d + 1] * strides[d + 1];
  return make_view(kExpand, x, std::move(sizes), std::move(strides), x.offset(), [](Node&) {});
}
Tensor expand_as_impl(const Tensor& x, const Tensor& other) { return expand(x, other.sizes()); }

// ---- a part --------------------------------------------------------------------------------------------

void region_backward(Node& n, Gradients& g) {
  g.set(0, tape_replace_region(Tensor(), g[0], n.data<Region>()));
}
constexpr NodeType kSelect{"SelectBackward0", region_backward},
    kDiagonal{"DiagonalBackward0", region_backward};

Tensor select_impl(const Tensor& x, int64_t dim, int64_t index) {
  WT_CHECK(x.ndim() > 0, IndexError, "select: select() cannot be applied to a 0-dim tensor.");
  dim = wrap_dim(dim, x.ndim(), "select");
  int64_t n = x.sizes()[dim];
  WT_CHECK(index >= -n && index < n, IndexError, "select: index ", index, " is out of bounds for dimension ",
           dim, " with size ", n);
  if (index < 0) index += n;
  auto geometry = [&](Shape& sizes, Shape& strides, int64_t& offset) {
    offset = index * strides[dim];
    sizes.erase(dim);
    strides.erase(dim);
  };
  return region(x, geometry, kSelect);
}

Tensor slice_of(const Tensor& x, int64_t dim, int64_t start, int64_t length) {
  return region(x, [&](Shape& sizes, Shape& strides, int64_t& offset) {
    offset = length > 0 ? start * strides[dim] : 0;
    sizes[dim] = length;
  });
}

Tensor slice_impl(const Tensor& x, int64_t dim, int64_t start, int64_t length, int64_t step) {
  WT_CHECK(x.ndim() > 0, IndexError, "slice: slice() cannot be applied to a 0-dim tensor.");
  const auto d = static_cast<size_t>(wrap_dim(dim, x.ndim(), "slice"));
  const int64_t n = x.sizes()[d];
  WT_CHECK(step > 0, ValueError, "slice: slice step must be positive, got ", step);
  WT_CHECK(
      start >= 0 && length >= 0 && (length == 0 || (start < n && (length - 1) <= (n - 1 - start) / step)),
      IndexError, "slice: ", length, " indices from ", start, " on in steps of ", step,
      " reach beyond dimension ", dim, " with size ", n);
  return region(x, [&](Shape& sizes, Shape& strides, int64_t& offset) {
    if (length) offset += start * strides[d];
    sizes[d] = length;
    if (int64_t s; !__builtin_mul_overflow(strides[d], step, &s)) strides[d] = s;  // of one index: any
  });
}

// Bounds as Python has them: negative ones count from the end, and all are cut to the dim.
Tensor slice_range_impl(const Tensor& x, int64_t dim, int64_t start, int64_t end, int64_t step) {
  WT_CHECK(x.ndim() > 0, IndexError, "slice: slice() cannot be applied to a 0-dim tensor.");
  WT_CHECK(step > 0, ValueError, "slice: slice step must be positive, got ", step);
  const int64_t n = x.sizes()[wrap_dim(dim, x.ndim(), "slice")];
  const auto cut = [n](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + n : i, 0, n); };
  start = cut(start);
  end = cut(end);
  const int64_t length = end > start ? (end - start - 1) / step + 1 : 0;
  return slice_impl(x, dim, length ? start : 0, length, step);
}

Tensor narrow_impl(const Tensor& x, int64_t dim, int64_t start, int64_t length) {
  WT_CHECK(x.ndim() > 0, ShapeError, "narrow: narrow() cannot be applied to a 0-dim tensor.");
  dim = wrap_dim(dim, x.ndim(), "narrow");
  int64_t n = x.sizes()[dim];
  WT_CHECK(length >= 0, ValueError, "narrow: narrow(): length must be non-negative, got ", length);
  WT_CHECK(start >= -n && start <= n, IndexError, "narrow: start out of range (expected to be in range of [",
           -n, ", ", n, "], but got ", start, ")");
  if (start < 0) start += n;
  WT_CHECK(length <= n - start, ShapeError, "narrow: start (", start, ") + length (", length,
           ") exceeds dimension size (", n, ").");
  return slice_of(x, dim, start, length);
}

Tensor narrow_tensor_impl(const Tensor& x, int64_t dim, const Tensor& start, int64_t length) {
  WT_CHECK(start.ndim() == 0 && category(start.dtype()) == DTypeCategory::Integral, Error,
           "narrow: start must be an 0-dim integral Tensor.");
  return narrow(x, dim, item(start).to_int(), length);
}

Tensor diagonal_impl(const Tensor& x, int64_t offset, int64_t a, int64_t b) {
  a = wrap_dim(a, x.ndim(), "diagonal");
  b = wrap_dim(b, x.ndim(), "diagonal");
  WT_CHECK(a != b && x.ndim() >= 2, ShapeError, "diagonal: diagonal dimensions cannot be identical ", a, ", ",
           b);
  int64_t rows = x.sizes()[a], columns = x.sizes()[b];
  int64_t length =
      std::max<int64_t>(0, offset >= 0 ? std::min(rows, columns - offset) : std::min(rows + offset, columns));
  auto geometry = [&](Shape& sizes, Shape& strides, int64_t& start) {
    if (length) start = offset >= 0 ? offset * strides[b] : -offset * strides[a];
    sizes.push_back(length);
    strides.push_back(strides[a] + strides[b]);
    for (int64_t d : {std::max(a, b), std::min(a, b)}) {
      sizes.erase(d);
      strides.erase(d);
    }
  };
  return region(x, geometry, kDiagonal);
}

void detach_check(const Tensor& x) {
  WT_CHECK(!is_view(x), Error, "detach_: Can't detach views in-place. Use detach() instead.");
}
Tensor detach_impl(const Tensor& x) { return warptape::detach(x); }
Tensor detach_inplace(const Tensor& x) {
  detach_check(x);
  if (x->extra) set_gradient_edge(x, {});
  return x;
}

// ---- the same bytes as another dtype: has no gradient --------------------------------------------------

Tensor view_dtype_impl(const Tensor& x, DType dtype) {
  const auto from = static_cast<int64_t>(itemsize(x.dtype())), to = static_cast<int64_t>(itemsize(dtype));
  Shape sizes = x.sizes(), strides = x.strides();
  int64_t offset = x.offset();
  if (from == to) return alias(x, std::move(sizes), std::move(strides), offset, dtype);
  const auto require = [&](bool ok, const auto&... what) {
    WT_CHECK(ok, ShapeError, "view: ", what..., " to view ", x.dtype(), " as ", dtype,
             " (different element sizes), but got ", x, " with strides ", x.strides());
  };
  require(x.ndim() > 0, "self.dim() cannot be 0");
  const int64_t last = x.ndim() - 1, narrower = from / to, wider = to / from;
  require(strides[last] == 1, "self.stride(-1) must be 1");
  const auto rescale = [&](int64_t& n, const auto&... what) {
    if (wider) require(n % wider == 0, what..., " must be divisible by ", wider);
    n = wider ? n / wider : n * narrower;
  };
  rescale(sizes[last], "self.size(-1)");
  rescale(offset, "self.storage_offset()");
  for (int64_t d = 0; d < last; ++d) rescale(strides[d], "self.stride(", d, ")");
  return alias(x, std::move(sizes), std::move(strides), offset, dtype);
}

Tensor ravel_impl(const Tensor& x) { return reshape(contiguous(x), Shape{-1}); }

// ---- attributes: x.T, x.mT, x.H, x.mH ----

Tensor reversed_impl(const Tensor& x) {
  Shape dims = identity_dims(x);
  std::reverse(dims.begin(), dims.end());
  return permute(x, dims);
}
Tensor matrices_transposed(const char* name, const Tensor& x) {
  WT_CHECK(x.ndim() >= 2, ShapeError, name, ": tensor.", name,
           " is only supported on matrices or batches of matrices. Got ", x.ndim(), "-D tensor.");
  return transpose(x, -2, -1);
}
Tensor mt_impl(const Tensor& x) { return matrices_transposed("mT", x); }
Tensor mh_impl(const Tensor& x) { return x.ndim() ? conjugate(matrices_transposed("mH", x)) : conjugate(x); }
Tensor h_impl(const Tensor& x) {
  WT_CHECK(x.ndim() == 0 || x.ndim() == 2, ShapeError,
           "H: tensor.H is only supported on matrices (2-D tensors). Got ", x.ndim(), "-D tensor.");
  return mh_impl(x);
}

constexpr OpFacts kBoth = kFunction | kMethod, kMoves = kBoth | kComplex | kAlongDims | kLinear;

}  // namespace

Tensor become_view(const char* op, const Tensor& self, const Tensor& view) {
  bool recorded = needs_grad(self);
  check_inplace(self, op, recorded);
  Edge history = recorded ? gradient_edge(view) : Edge();
  self->set_geometry(view.sizes(), view.strides(), view.offset());
  self.bump_version();
  if (history) set_gradient_edge(self, std::move(history));
  return self;
}

const NodeType kRegionNode{"SliceBackward0", region_backward};

decltype(view) view{"view",
                    view_impl,
                    kMethod | kComplex | kToSizes | kLinear | Aliasing::Reshape,
                    {"input", {"size", kVarArgs}},
                    "The same memory with other sizes; one may be -1."};
const Op<Tensor(const Tensor&, DType)> view_dtype{
    "view",
    view_dtype_impl,
    kMethod | kComplex | kToSizes | kLinear | kNonDifferentiable | Aliasing::Reshape,
    {"input", "dtype"},
    "The same bytes as numbers of another dtype, without "
    "history; the last dim shrinks or grows with its size."};
decltype(reshape) reshape{"reshape",
                          reshape_impl,
                          kBoth | kComplex | kToSizes | kLinear | Aliasing::Reshape,
                          {"input", {"shape", kVarArgs}},
                          "Other sizes, a view where strides allow, else a copy."};
decltype(view_as) view_as{"view_as",
                          view_as_impl,
                          kMethod | kComplex | Aliasing::Reshape,
                          {"input", {"other", kNoGradient}},
                          "view with other's sizes."};
decltype(reshape_as) reshape_as{"reshape_as",
                                reshape_as_impl,
                                kMethod | kComplex | Aliasing::Reshape,
                                {"input", {"other", kNoGradient}},
                                "reshape with other's sizes."};
decltype(flatten) flatten{
    "flatten",
    flatten_impl,
    kMoves | Aliasing::Reshape | batching::flatten,
    {"input", Arg::integer("start_dim", 0, kDimIndex), Arg::integer("end_dim", -1, kDimIndex)},
    "Merges the dims from start_dim to end_dim."};
const Op<Tensor(const Tensor&, int64_t, IntList)> unflatten{
    "unflatten",
    unflatten_impl,
    kMoves | Aliasing::Reshape,
    {"input", {"dim", kDimIndex}, {"sizes", kVarArgs}},
    "Splits a dim into several."};
decltype(unsqueeze) unsqueeze{"unsqueeze",
                              unsqueeze_impl,
                              kBoth | kComplex | kLinear | Aliasing::View | batching::unsqueeze,
                              {"input", "dim"},
                              "A view with a dim of size 1 inserted."};
decltype(squeeze) squeeze{"squeeze",
                          squeeze_impl,
                          kMoves | Aliasing::Reshape | batching::squeeze,
                          {"input"},
                          "A view without the dims of size 1."};
decltype(squeeze_dim) squeeze_dim{"squeeze",
                                  squeeze_dim_impl,
                                  kMoves | Aliasing::Reshape,
                                  {"input", {"dim", kDimIndex}},
                                  "A view without dim, where it has size 1."};
const auto squeeze_list =
    overload_with(squeeze_dim, squeeze_list_impl, {"input", {"dim", kVarArgs | kDimIndex}}, {},
                  "A view without those dims that have size 1.");
decltype(permute) permute{"permute",
                          permute_impl,
                          kBoth | kComplex | Aliasing::View | batching::permute,
                          {"input", {"dims", kVarArgs}},
                          "A view with the dims in another order."};
decltype(transpose) transpose{"transpose",
                              transpose_impl,
                              kMoves | Aliasing::View,
                              {"input", {"dim0", kDimIndex}, {"dim1", kDimIndex}},
                              "A view with two dims swapped."};
decltype(transpose) swapaxes{"swapaxes",
                             transpose_impl,
                             kMoves | Aliasing::View,
                             {"input", "axis0", "axis1"},
                             "transpose under NumPy's name."};
const Alias swapdims{"swapdims", "transpose"};
decltype(t) t{"t",
              t_impl,
              kBoth | kComplex | Aliasing::View | batching::t,
              {"input"},
              "The transpose of a tensor of at most two dims."};
const Op<Tensor(const Tensor&, IntList, IntList)> movedim{
    "movedim",
    movedim_impl,
    kMoves | Aliasing::View,
    {"input", {"source", kDimIndex}, {"destination", kDimIndex}},
    "Moves dims to other places."};
const Alias moveaxis{"moveaxis", "movedim"};
decltype(expand) expand{"expand",
                        expand_impl,
                        kMethod | kComplex | kToSizes | kLinear | Aliasing::Reshape,
                        {"input", {"size", kVarArgs}},
                        "A view in which dims of size 1 are repeated; -1 keeps a size."};
const Alias broadcast_to{"broadcast_to", "expand", kBoth};
decltype(expand_as) expand_as{"expand_as",
                              expand_as_impl,
                              kMethod | kComplex | Aliasing::Reshape,
                              {"input", {"other", kNoGradient}},
                              "expand to other's sizes."};
decltype(select) select{"select",
                        select_impl,
                        kMoves | Aliasing::View,
                        {"input", {"dim", kDimIndex}, "index"},
                        "A view of one index of a dim, which goes away."};
decltype(narrow) narrow{"narrow",
                        narrow_impl,
                        kMoves | Aliasing::Reshape,
                        {"input", {"dim", kDimIndex}, "start", "length"},
                        "A view of a range of a dim."};
decltype(slice) slice{"_slice",
                      slice_impl,
                      kPrivate | kComplex | kAlongDims | kLinear | Aliasing::Reshape | kChecked,
                      {"input", {"dim", kDimIndex}, "start", "length", "step"},
                      "A view of every step-th index of a dim from start on."};
decltype(slice) slice_range{"slice",
                            slice_range_impl,
                            kPrivate | kComplex | kAlongDims | kLinear | Aliasing::Reshape | kChecked,
                            {"input", {"dim", kDimIndex}, "start", "end", "step"},
                            "input[start:end:step] of a dim, with bounds as Python's slices have them."};
// After the ints, among which a 0-dim tensor counts.
const Op<Tensor(const Tensor&, int64_t, const Tensor&, int64_t)> narrow_tensor =
    overload_of(narrow, narrow_tensor_impl, {}, "narrow with the start in a 0-dim tensor.");
decltype(diagonal) diagonal{"diagonal",
                            diagonal_impl,
                            kMoves | Aliasing::View,
                            {"input", Arg::integer("offset", 0), Arg::integer("dim1", 0, kDimIndex),
                             Arg::integer("dim2", 1, kDimIndex)},
                            "A view of a diagonal; it becomes the last dim."},
    linalg_diagonal{
        "diagonal",
        diagonal_impl,
        kLinalg | kComplex | kAlongDims | kLinear | Aliasing::View,
        {"A", Arg::integer("offset", 0, kKeywordOnly), Arg::integer("dim1", -2, kKeywordOnly | kDimIndex),
         Arg::integer("dim2", -1, kKeywordOnly | kDimIndex)},
        "A view of the diagonals of matrices."};
decltype(detach) detach{"detach",
                        detach_impl,
                        kBoth | kComplex | kPointwise | kNonDifferentiable | Aliasing::View | kDetaches,
                        {"input"},
                        "The same memory without history."};
const Op<Tensor(const Tensor&)> ravel{"ravel",
                                      ravel_impl,
                                      kBoth | kComplex | Aliasing::Reshape,
                                      {"input"},
                                      "All elements in one dim, a view of contiguous ones."};
const Op<Tensor(const Tensor&)> reversed{"numpy_T",
                                         reversed_impl,
                                         kPrivate | kComplex | Aliasing::View | kChecked,
                                         {"input"},
                                         "The tensor with its dims reversed."},
    mt{"mT",
       mt_impl,
       kPrivate | kComplex | Aliasing::View | kChecked,
       {"input"},
       "The tensor with its last two dims swapped."},
    h{"matrix_H",
      h_impl,
      kPrivate | kComplex | Aliasing::View | kChecked,
      {"input"},
      "The conjugate of the transpose of a matrix."},
    mh{"mH",
       mh_impl,
       kPrivate | kComplex | Aliasing::View | kChecked,
       {"input"},
       "The conjugate of the tensor with its last two dims swapped."};
const auto squeeze_ = in_place_view<squeeze>("squeeze_"), t_ = in_place_view<t>("t_");
const auto squeeze_dim_ = in_place_view<squeeze_dim>("squeeze_"),
           unsqueeze_ = in_place_view<unsqueeze>("unsqueeze_");
const auto squeeze_list_ = in_place_view<squeeze_list>("squeeze_");
const auto transpose_ = in_place_view<transpose>("transpose_"),
           swapaxes_ = in_place_view<swapaxes>("swapaxes_");
const Op<Tensor(const Tensor&)> detach_{"detach_",
                                        detach_inplace,
                                        kMethod | kComplex | kNonDifferentiable | kDetaches,
                                        {{"input", kWritten}},
                                        "Forgets the tensor's history."};

const Op<Tensor(const Tensor&)> alias_copy{
    "alias_copy", fresh_copy, kFunction | kOut | kComplex, {"input"}, "The tensor in new memory."};
const auto view_copy = copy_of<view>("view_copy");
const auto view_dtype_copy = copy_of<view_dtype>("view_copy");
const auto unsqueeze_copy = copy_of<unsqueeze>("unsqueeze_copy");
const auto squeeze_copy = copy_of<squeeze>("squeeze_copy");
const auto squeeze_dim_copy = copy_of<squeeze_dim>("squeeze_copy");
const auto squeeze_list_copy = copy_of<squeeze_list>("squeeze_copy");
const auto permute_copy = copy_of<permute>("permute_copy");
const auto transpose_copy = copy_of<transpose>("transpose_copy");
const auto t_copy = copy_of<t>("t_copy");
const auto expand_copy = copy_of<expand>("expand_copy");
const auto select_copy = copy_of<select>("select_copy");
const auto diagonal_copy = copy_of<diagonal>("diagonal_copy");
const auto detach_copy = copy_of<detach>("detach_copy");

}  // namespace warptape::ops
