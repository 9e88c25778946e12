// Reading and writing by index along one dim, and the ops made of it.
#include "ops/index/gather.h"
#include "op/forms.h"

#include "op/batching.h"
#include "ops/elementwise/elementwise.h"
#include "ops/index/index.h"
#include "ops/index/masked.h"
#include "ops/kernel_inputs.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

using kernels::ScatterMode;
kernels::Slot<kernels::GatherFn> gather_slot{"gather"};
kernels::Slot<kernels::ScatterFn> scatter_slot{"scatter"};
kernels::Slot<kernels::IndexSelectFn> index_select_slot{"index_select"};
kernels::Slot<kernels::IndexAddFn> index_add_slot{"index_add"};

struct DimData {
  int64_t dim;
  Shape sizes;
};

Tensor zeros_of(const Shape& sizes, const Tensor& like) { return zeros(sizes, options_of(like)); }

void check_index_dtype(const char* op, const Tensor& index, const Tensor& x) {
  WT_CHECK(index.dtype() == DType::Int64 || index.dtype() == DType::Int32, DtypeError, op,
           ": Expected dtype int64 for index, got ", index.dtype());
  check_same_device(op, x, index, "index");
}

// The class that PyTorch raises for gather and scatter.
void check_in_range(const Launch& launch, const char* op, int64_t dim) try {
  launch.check_index(op, dim);
} catch (const IndexError& e) {
  throw Error(e.what());
}

// A 0-dim tensor is worked on as one of one element.
Tensor at_least_1d(const Tensor& t) { return t.ndim() ? t : alias(t, Shape{1}, Shape{1}, t.offset()); }

// ---- gather and scatter --------------------------------------------------------------------------------

void check_gather(const char* op, const Tensor& x, const Tensor& index, int64_t dim) {
  if (index.numel()) check_index_dtype(op, index, x);  // none at all may have any dtype
  Tensor a = at_least_1d(x), b = at_least_1d(index);
  WT_CHECK(a.ndim() == b.ndim() || index.numel() == 0, ShapeError, op,
           ": Index tensor must have the same number of dimensions as input tensor, got ", index, " for ", x);
  for (int64_t d = 0; d < b.ndim() && index.numel(); ++d)
    WT_CHECK(d == dim || b.sizes()[d] <= a.sizes()[d], ShapeError, op, ": Size does not match at dimension ",
             d, " expected index ", index.sizes(), " to be smaller than self ", x.sizes(),
             " apart from dimension ", dim);
}

void gather_backward(Node& n, Gradients& g) {
  const DimData& d = n.data<DimData>();
  g.set(0, scatter_add(zeros_of(d.sizes, g[0]), d.dim, n.saved(0), g[0]));
}
constexpr NodeType kGather{"GatherBackward0", gather_backward};

template <class F>
Tensor gathered(const char* op, const Tensor& x, int64_t dim, const Tensor& index, F&& check) {
  dim = wrap_dim(dim, x.ndim(), op);
  check_gather(op, x, index, dim);
  Tensor out = empty(index.sizes(), options_of(x));
  if (!out.is_meta() && out.numel()) {
    Launch launch(x.device());
    Tensor i = raw_cast(at_least_1d(index), DType::Int64);
    gather_slot(launch, at_least_1d(out).view(), at_least_1d(x).view(), i.view(), static_cast<int>(dim));
    check(launch, op, dim);
  }
  if (needs_grad(x)) {
    Ref<Node> n = record(kGather, x);
    n->emplace<DimData>(dim, x.sizes());
    n->save(index);
    set_history(out, n);
  }
  return out;
}
Tensor gather_impl(const Tensor& x, int64_t dim, const Tensor& index, bool) {
  return gathered("gather", x, dim, index, check_in_range);
}

}  // namespace

Tensor gather_classes(const char* op, const Tensor& x, int64_t dim, const Tensor& index) {
  return gathered(op, x, dim, index, std::mem_fn(&Launch::check_index));
}

void check_no_overlap(const char* op, const Tensor& self, const Tensor& index, const Tensor& source) {
  WT_CHECK(!overlap(self, index) && !overlap(self, source), Error, op, kOverlap);
}

void check_scatter(const char* op, const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src) {
  check_gather(op, self, index, dim);
  check_same_device(op, self, src, "src");
  WT_CHECK(self.dtype() == src.dtype(), DtypeError, op,
           ": Expected self.dtype to be equal to src.dtype, got ", self.dtype(), " and ", src.dtype());
  Tensor i = at_least_1d(index), s = at_least_1d(src);
  bool fits = i.ndim() == s.ndim() || index.numel() == 0;
  for (int64_t d = 0; fits && d < i.ndim() && index.numel(); ++d) fits = i.sizes()[d] <= s.sizes()[d];
  WT_CHECK(fits, ShapeError, op, ": Expected index ", index.sizes(), " to be no larger than src ",
           src.sizes(), " in every dimension");
}

void run_scatter(const char* op, const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src,
                 ScatterMode mode) {
  if (self.is_meta() || index.numel() == 0) return;
  Launch launch(self.device());
  Tensor to = at_least_1d(self), i = raw_cast(at_least_1d(index), DType::Int64), from = at_least_1d(src);
  // Only the part of src that index covers is read.
  from = alias(from, i.sizes(), from.strides(), from.offset());
  scatter_slot(launch, to.view(), i.view(), from.view(), static_cast<int>(dim), mode);
  check_in_range(launch, op, dim);
}

namespace {

struct ScatterData {
  int64_t dim;
  ScatterMode mode;
};
void scatter_backward(Node& n, Gradients& g) {
  const ScatterData& d = n.data<ScatterData>();
  Tensor index = n.saved(0);
  if (g.wants(0)) {
    Tensor own = g[0];
    if (d.mode == ScatterMode::Assign) own = scatter_value(own, d.dim, index, 0);
    g.set(0, own);
  }
  if (!g.wants(1)) return;
  Tensor part = gather(g[0], d.dim, index, false);
  // src may be larger than index: the rest has no gradient.
  const Shape& sizes = n.edges[1].node->outputs[n.edges[1].index].sizes;
  if (part.sizes() != sizes) {
    Region r{sizes, contiguous_strides(sizes), part.sizes(), contiguous_strides(sizes), 0};
    part = tape_replace_region(Tensor(), part, r);
  }
  g.set(1, part);
}
constexpr NodeType kScatter{"ScatterBackward0", scatter_backward},
    kScatterAdd{"ScatterAddBackward0", scatter_backward};

Tensor scatter_into(const char* op, const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src,
                    ScatterMode mode) {
  check_no_overlap(op, self, index, src);
  dim = wrap_dim(dim, self.ndim(), op);
  check_scatter(op, self, dim, index, src);
  WT_CHECK(!is_complex(self.dtype()) || mode < ScatterMode::AMin, DtypeError, op,
           ": complex numbers have no order; reduce with add or multiply");
  bool recorded = needs_grad(self, src);
  WT_CHECK(!recorded || mode == ScatterMode::Assign || mode == ScatterMode::Add, NotImplementedError, op,
           ": this reduce has no gradient yet; use scatter_add");
  check_inplace(self, op, recorded);
  Ref<Node> n;
  if (recorded) {
    n = record(mode == ScatterMode::Add ? kScatterAdd : kScatter, self, src);
    n->emplace<ScatterData>(dim, mode);
    n->save(index);
  }
  run_scatter(op, self, dim, index, src->storage == self->storage ? raw_clone(src) : src, mode);
  self.bump_version();
  if (n) rebase_history(self, n);
  return self;
}

ScatterMode mode_named(const char* op, const std::optional<std::string_view>& reduce) {
  if (!reduce) return ScatterMode::Assign;
  if (*reduce == "add" || *reduce == "sum") return ScatterMode::Add;
  if (*reduce == "multiply" || *reduce == "prod") return ScatterMode::Multiply;
  if (*reduce == "amin") return ScatterMode::AMin;
  if (*reduce == "amax") return ScatterMode::AMax;
  throw ValueError(message(op, ": reduce argument must be either add or multiply, got ", *reduce));
}

using Reduce = std::optional<std::string_view>;
Tensor scatter_inplace(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src,
                       Reduce reduce) {
  return scatter_into("scatter_", self, dim, index, src, mode_named("scatter_", reduce));
}
Tensor number_like(const Tensor& self, const Tensor& index, const Scalar& value) {
  return expand_view(full({}, value, options_of(self)), index.sizes());
}
Tensor scatter_value_inplace(const Tensor& self, int64_t dim, const Tensor& index, const Scalar& value,
                             Reduce reduce) {
  return scatter_into("scatter_", self, dim, index, number_like(self, index, value),
                      mode_named("scatter_", reduce));
}
Tensor scatter_add_inplace(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src) {
  return scatter_into("scatter_add_", self, dim, index, src, ScatterMode::Add);
}
Tensor scatter_impl(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src, Reduce reduce) {
  return scatter_into("scatter", clone(x), dim, index, src, mode_named("scatter", reduce));
}
Tensor scatter_number_impl(const Tensor& x, int64_t dim, const Tensor& index, const Scalar& value,
                           Reduce reduce) {
  return scatter_into("scatter", clone(x), dim, index, number_like(x, index, value),
                      mode_named("scatter", reduce));
}
Tensor scatter_plain_number(const Tensor& x, int64_t dim, const Tensor& index, const Scalar& value) {
  return scatter_number_impl(x, dim, index, value, std::nullopt);
}
Tensor scatter_add_impl(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src) {
  return scatter_into("scatter_add", clone(x), dim, index, src, ScatterMode::Add);
}

Tensor take_along_dim_impl(const Tensor& x, const Tensor& indices, std::optional<int64_t> dim) {
  WT_CHECK(indices.dtype() == DType::Int64, DtypeError,
           "take_along_dim: dtype of indices should be Long (int64), got ", indices.dtype());
  if (!dim) return gather(reshape(x, Shape{-1}), 0, reshape(indices, Shape{-1}), false);
  int64_t d = wrap_dim(*dim, x.ndim(), "take_along_dim");
  WT_CHECK(x.ndim() == indices.ndim(), ShapeError,
           "take_along_dim: input and indices should have the same number of dimensions, but got ", x.ndim(),
           " and ", indices.ndim());
  Shape a = x.sizes(), b = indices.sizes();
  a[d] = b[d] = 1;
  Shape common = broadcast_shapes(a, b, "take_along_dim"), to_x = common, to_i = common;
  to_x[d] = x.sizes()[d];
  to_i[d] = indices.sizes()[d];
  // Negative indices count from the end.
  const Tensor places = where(lt_ts(indices, 0), indices + x.sizes()[d], indices);
  return gather(expand(x, to_x), d, expand(places, to_i), false);
}

// ---- index_select, index_add ---------------------------------------------------------------------------

void index_select_backward(Node& n, Gradients& g) {
  const DimData& d = n.data<DimData>();
  g.set(0, index_add(zeros_of(d.sizes, g[0]), d.dim, n.saved(0), g[0], 1));
}
constexpr NodeType kIndexSelect{"IndexSelectBackward0", index_select_backward};

Tensor index_select_impl(const Tensor& x, int64_t dim, const Tensor& index) {
  dim = wrap_dim(dim, x.ndim(), "index_select");
  check_index_dtype("index_select", index, x);
  WT_CHECK(index.ndim() <= 1, IndexError, "index_select: Index is supposed to be a vector, got ", index);
  Tensor source = at_least_1d(x), i = raw_contiguous(raw_cast(at_least_1d(index), DType::Int64));
  WT_CHECK(x.ndim() || i.numel() == 1, IndexError,
           "index_select: Index to scalar can have only 1 value, got ", i.numel(), " value(s)");
  Shape sizes = source.sizes();
  sizes[dim] = i.numel();
  Tensor out = empty(x.ndim() ? sizes : Shape{}, options_of(x));
  if (!out.is_meta() && out.numel()) {
    Launch launch(x.device());
    index_select_slot(launch, at_least_1d(out).view(), source.view(), i.view(), static_cast<int>(dim));
    launch.check_index("index_select", dim);
  }
  if (needs_grad(x)) {
    Ref<Node> n = record(kIndexSelect, x);
    n->emplace<DimData>(dim, x.sizes());
    n->save(index);
    set_history(out, n);
  }
  return out;
}

struct AddData {
  int64_t dim;
  Scalar alpha;
};
void index_add_backward(Node& n, Gradients& g) {
  const AddData& d = n.data<AddData>();
  if (g.wants(0)) g.set(0, g[0]);
  if (g.wants(1)) g.set(1, index_select(g[0], d.dim, n.saved(0)) * conjugate(d.alpha));
}
constexpr NodeType kIndexAdd{"IndexAddBackward0", index_add_backward};

Tensor index_add_inplace(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source,
                         const Scalar& alpha) {
  dim = wrap_dim(dim, self.ndim(), "index_add_");
  check_index_dtype("index_add_", index, self);
  check_same_device("index_add_", self, source, "source");
  Tensor i = raw_contiguous(raw_cast(at_least_1d(index), DType::Int64));
  Tensor to = at_least_1d(self), from = at_least_1d(source);
  check_no_overlap("index_add_", self, index, source);
  Shape expected = to.sizes();
  expected[dim] = i.numel();
  WT_CHECK(self.dtype() == source.dtype(), DtypeError, "index_add_: self (", self.dtype(), ") and source (",
           source.dtype(), ") must have the same scalar type");
  WT_CHECK(i.ndim() == 1 && from.sizes() == expected, ShapeError, "index_add_: expected source of shape ",
           expected, ", got ", source);
  check_fits(alpha, self.dtype());
  bool recorded = needs_grad(self, source);
  check_inplace(self, "index_add_", recorded);
  Ref<Node> n;
  if (recorded) {
    n = record(kIndexAdd, self, source);
    n->emplace<AddData>(dim, alpha);
    n->save(index);
  }
  if (!self.is_meta() && from.numel()) {
    Launch launch(self.device());
    // The kernel's factor is a double, which is exact for floating numbers alone.
    const bool scaled = is_floating(self.dtype());
    if (!scaled && !alpha.equal(1))
      from = raw_cast(mul_ts(from, is_complex(self.dtype()) ? alpha : Scalar(alpha.to_int())), self.dtype());
    index_add_slot(launch, to.view(), i.view(), from.view(), static_cast<int>(dim),
                   scaled ? alpha.to_double() : 1.0);
    // PyTorch's classes: IndexError for a vector, RuntimeError for slices of more dims.
    self.ndim() > 1 ? check_in_range(launch, "index_add_", dim) : launch.check_index("index_add_", dim);
  }
  self.bump_version();
  if (n) rebase_history(self, n);
  return self;
}
Tensor index_add_impl(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source,
                      const Scalar& alpha) {
  return index_add_inplace(clone(x), dim, index, source, alpha);
}

// For the tape, a 0-dim tensor as one of one element.
Tensor one_dim_view(const Tensor& t) { return t.ndim() ? t : unsqueeze(t, 0); }

Tensor index_fill_tensor_inplace(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& value) {
  dim = wrap_dim(dim, self.ndim(), "index_fill_");
  WT_CHECK(value.ndim() == 0, ShapeError, "index_fill_: expected a number or a 0-dim value tensor, got ",
           value);
  if (needs_grad(value)) {  // by a mask, where a slice that index names twice counts once
    Shape row(self.sizes().size(), 1);
    if (self.ndim()) row[dim] = self.sizes()[dim];
    const Tensor mask = zeros(Shape{numel_of(row)}, {DType::Bool, self.device()});
    const OptTensor at = index;
    index_put_(mask, {&at, 1}, full({}, true, options_of(mask)), false);
    return masked_fill_tensor_(self, reshape(mask, row), value);
  }
  std::vector<OptTensor> indices(static_cast<size_t>(dim + 1));
  indices.back() = index;
  index_put_(one_dim_view(self), indices, cast(value, self.dtype()), false);
  return self;
}
Tensor index_fill_inplace(const Tensor& self, int64_t dim, const Tensor& index, const Scalar& value) {
  WT_CHECK(is_complex(self.dtype()) || !value.is_complex(), DtypeError,
           "index_fill_: Converting complex Scalar to non-complex type is not supported");
  return index_fill_tensor_inplace(self, dim, index, full({}, value, options_of(self)));
}
Tensor index_copy_inplace(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source) {
  dim = wrap_dim(dim, self.ndim(), "index_copy_");
  check_no_overlap("index_copy_", self, index, source);
  std::vector<OptTensor> indices(static_cast<size_t>(dim + 1));
  indices.back() = one_dim_view(index);
  index_put_(one_dim_view(self), indices, source, false);
  return self;
}
Tensor index_fill_impl(const Tensor& x, int64_t dim, const Tensor& index, const Scalar& value) {
  return index_fill_inplace(clone(x), dim, index, value);
}
Tensor index_fill_tensor(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& value) {
  return index_fill_tensor_inplace(clone(x), dim, index, value);
}
Tensor index_copy_impl(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  return index_copy_inplace(clone(x), dim, index, source);
}

constexpr OpFacts kBoth = kFunction | kMethod;
const Arg kSelf{"input", kWritten};

}  // namespace

decltype(gather) gather{"gather",
                        gather_impl,
                        kBoth | kOut | kOutExact | kOutApart | kComplex | kAlongDims | kLinear,
                        {"input", {"dim", kDimIndex}, "index", {"sparse_grad", false, kKeywordOnly}},
                        "out[i][j] = input[index[i][j]][j] for dim 0, and so on."};
decltype(scatter_add) scatter_add{"scatter_add",
                                  scatter_add_impl,
                                  kBoth | kOut | kOutExact | kComplex | kWidestCuda | kAlongDims,
                                  {"input", {"dim", kDimIndex}, "index", "src"},
                                  "A copy of input with src added at index along dim."};
decltype(scatter_value) scatter_value{"_scatter_value",
                                      scatter_plain_number,
                                      kPrivate | kComplex | kChecked,
                                      {"input", "dim", "index", "value"},
                                      "scatter of one number."};
decltype(scatter) scatter{"scatter",
                          scatter_impl,
                          kBoth | kOut | kOutExact | kComplex | kAlongDims,
                          {"input", {"dim", kDimIndex}, "index", "src", {"reduce", none, kKeywordOnly}},
                          "A copy of input with src written at index along dim."};
const Op<Tensor(const Tensor&, int64_t, const Tensor&, const Tensor&, Reduce)> scatter_inplace_op =
    in_place_of(scatter, scatter_inplace, kMethod, "Writes src at index along dim.");
const Op<Tensor(const Tensor&, int64_t, const Tensor&, const Scalar&, Reduce)>
    scatter_number_op =
        overload_with(scatter, scatter_number_impl,
                      {"input", {"dim", kDimIndex}, "index", "value", {"reduce", none, kKeywordOnly}}, {},
                      "A copy of input with a number written at index along dim."),
    scatter_number_inplace_op =
        in_place_of(scatter_number_op, scatter_value_inplace, kMethod, "Writes a number at index along dim.");
const Op<Tensor(const Tensor&, int64_t, const Tensor&, const Tensor&)> scatter_add_op_ =
    in_place_of(scatter_add, scatter_add_inplace, kMethod, "Adds src at index along dim.");
const Op<Tensor(const Tensor&, const Tensor&, std::optional<int64_t>)> take_along_dim_op{
    "take_along_dim",
    take_along_dim_impl,
    kBoth | kOut | kOutExact | kOutApart | kComplex | kAlongDims | kLinear,
    {"input", "indices", {"dim", none, kDimIndex}},
    "gather with broadcasting; over the flattened input without dim."};
decltype(index_select) index_select{
    "index_select",
    index_select_impl,
    kBoth | kOut | kOutExact | kOutApart | kComplex | kAlongDims | kLinear | batching::index_select,
    {"input", {"dim", kDimIndex}, "index"},
    "The slices of a dim at index."};
decltype(index_add) index_add{"index_add",
                              index_add_impl,
                              kBoth | kOut | kOutExact | kComplex | batching::index_slices,
                              {"input", "dim", "index", "source", Arg::integer("alpha", 1, kKeywordOnly)},
                              "A copy of input with alpha * source added at index along dim."};
const Op<Tensor(const Tensor&, int64_t, const Tensor&, const Tensor&, const Scalar&)> index_add_op_{
    "index_add_",
    index_add_inplace,
    kMethod | kComplex | batching::index_slices,
    {kSelf, {"dim", kDimIndex}, "index", "source", Arg::integer("alpha", 1, kKeywordOnly)},
    "Adds alpha * source at index along dim."};
// Before the numbers: a tensor may want a gradient.
const Op<Tensor(const Tensor&, int64_t, const Tensor&, const Tensor&)> index_fill_tensor_op{
    "index_fill",
    index_fill_tensor,
    kBoth | kComplex | batching::index_slices,
    {"input", "dim", "index", "value"},
    "A copy with a 0-dim tensor's value in the slices at index."},
    index_fill_tensor_op_{"index_fill_",
                          index_fill_tensor_inplace,
                          kMethod | kComplex | batching::index_slices,
                          {kSelf, {"dim", kDimIndex}, "index", "value"},
                          "Writes a 0-dim tensor's value into the slices at index."};
const Op<Tensor(const Tensor&, int64_t, const Tensor&, const Scalar&)>
    index_fill_op = overload_of(index_fill_tensor_op, index_fill_impl, {},
                                "A copy with a number in the slices at index."),
    index_fill_op_ = overload_of(index_fill_tensor_op_, index_fill_inplace, {},
                                 "Writes a number into the slices at index.");
const Op<Tensor(const Tensor&, int64_t, const Tensor&, const Tensor&)> index_copy_op{
    "index_copy",
    index_copy_impl,
    kBoth | kOut | kOutExact | kComplex | kWidest,
    {"input", "dim", "index", "source"},
    "A copy with source in the slices at index."},
    index_copy_op_ =
        in_place_of(index_copy_op, index_copy_inplace, kMethod, "Writes source into the slices at index.");
}  // namespace warptape::ops
