// max, min, median and their kin, and running reductions.
#include <algorithm>
#include <limits>

#include "kernels/dispatch.h"
#include "kernels/reduce/reduce.h"
#include "op/forms.h"
#include "ops/elementwise/elementwise.h"
#include "ops/index/gather.h"
#include "ops/index/sort.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::ReduceFn> amax_slot{"amax"}, amin_slot{"amin"};
kernels::Slot<kernels::ArgReduceFn> argmax_slot{"argmax"}, argmin_slot{"argmin"};
kernels::Slot<kernels::ValueIndexFn> max_slot{"max_dim"}, min_slot{"min_dim"};
kernels::Slot<kernels::ScanFn> cumsum_slot{"cumsum"}, cumprod_slot{"cumprod"},
    logcumsumexp_slot{"logcumsumexp"};
kernels::Slot<kernels::ScanIndexFn> cummax_slot{"cummax"}, cummin_slot{"cummin"};

using Pair = std::tuple<Tensor, Tensor>;
constexpr OpFacts kBoth = kFunction | kMethod;

// ---- the value alone: equal elements share the gradient ------------------------------------------------

struct SharedData {
  Shape kept, sizes;
};
// Where the value is nan, the nans share it if `Nans`; else, as in PyTorch's amax, every gradient is nan.
template <bool Nans>
void shared_backward(Node& n, Gradients& g) {
  const SharedData& d = n.data<SharedData>();
  Tensor x = n.saved(0), out = n.saved(1), share;
  {
    NoGrad off;  // which elements are extreme does not change by a small step
    Tensor value = spread(out, d.kept, d.sizes), hit = eq(x, value);
    if (Nans) hit = logical_or(hit, logical_and(ne(x, x), ne(value, value)));
    hit = cast(hit, g[0].dtype());
    Shape dims;
    for (size_t i = 0; i < d.kept.size(); ++i)
      if (d.kept[i] == 1) dims.push_back(static_cast<int64_t>(i));
    share = hit / sum(hit, dims.empty() ? OptDims() : OptDims(dims), true, std::nullopt);
  }
  g.set(0, spread(g[0], d.kept, d.sizes) * share);
}
constexpr NodeType kAmax{"AmaxBackward0", shared_backward<false>},
    kAmin{"AminBackward0", shared_backward<false>}, kMaxAll{"MaxBackward1", shared_backward<true>},
    kMinAll{"MinBackward1", shared_backward<true>}, kMedianAll{"MedianBackward0", shared_backward<true>},
    kNanmedianAll{"NanmedianBackward0", shared_backward<true>};

void refuse_storage(const char* op, const Tensor& x) {
  WT_CHECK(!is_storage_only(x.dtype()), NotImplementedError, op, ": not implemented for ", x.dtype(),
           ", which is for storage; convert with .to(dtype) first");
}

Tensor extreme(const char* op, kernels::Slot<kernels::ReduceFn>& slot, const NodeType& type, const Tensor& x,
               OptDims dims, bool keepdim) {
  refuse_storage(op, x);
  Reduced r = reduced_shape(op, x, dims, keepdim);
  WT_CHECK(r.count > 0 || (dims && !dims->empty()), Error, op,
           ": Expected reduction dim to be specified for input.numel() == 0. Specify the "
           "reduction dim with the 'dim' argument; got ",
           x);
  WT_CHECK(r.count > 0, IndexError, op, ": Expected reduction dim to have non-zero size, got ", x);
  Tensor out = empty(r.kept, options_of(x));
  if (!out.is_meta() && out.numel()) {
    Launch launch(x.device());
    slot(launch, out.view(), x.view());
  }
  out = alias(out, r.sizes, contiguous_strides(r.sizes), 0);
  if (needs_grad(x)) {
    Ref<Node> n = record(type, x);
    n->emplace<SharedData>(r.kept, x.sizes());
    n->save(x);
    set_history(out, n);
    n->save_output(out);
  }
  return out;
}
Tensor amax_impl(const Tensor& x, OptDims dims, bool keep) {
  return extreme("amax", amax_slot, kAmax, x, dims, keep);
}
Tensor amin_impl(const Tensor& x, OptDims dims, bool keep) {
  return extreme("amin", amin_slot, kAmin, x, dims, keep);
}
// Of nothing: RuntimeError as in PyTorch, where amax and amin raise an IndexError.
Tensor extreme_of_all(const char* op, kernels::Slot<kernels::ReduceFn>& slot, const NodeType& type,
                      const Tensor& x) {
  refuse_storage(op, x);
  WT_CHECK(
      x.numel() > 0, Error, op,
      ": Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the "
      "'dim' argument; got ",
      x);
  return extreme(op, slot, type, x, std::nullopt, false);
}
Tensor max_all_impl(const Tensor& x) { return extreme_of_all("max", amax_slot, kMaxAll, x); }
Tensor min_all_impl(const Tensor& x) { return extreme_of_all("min", amin_slot, kMinAll, x); }
Pair aminmax_impl(const Tensor& x, std::optional<int64_t> dim, bool keep) {
  OptDims dims = dim ? OptDims(IntList{&*dim, 1}) : OptDims();
  return {amin(x, dims, keep), amax(x, dims, keep)};
}

// ---- with the place: that element gets the gradient ----------------------------------------------------

struct PickData {
  int64_t dim;
  bool keepdim;
  Shape sizes;
};
void pick_backward(Node& n, Gradients& g) {
  const PickData& d = n.data<PickData>();
  if (!g[0].defined()) return;
  Tensor index = n.saved(0), grad = g[0];
  if (!d.keepdim && !d.sizes.empty()) index = unsqueeze(index, d.dim), grad = unsqueeze(grad, d.dim);
  g.set(0, scatter_add(zeros(d.sizes, options_of(grad)), d.dim, index, grad));
}
constexpr NodeType kMaxDim{"MaxBackward0", pick_backward}, kMinDim{"MinBackward0", pick_backward},
    kMedianDim{"MedianBackward1", pick_backward}, kNanmedianDim{"NanmedianBackward1", pick_backward},
    kMode{"ModeBackward0", pick_backward};

// The values of a dim with where they are, recorded.
Pair picked(const NodeType& type, const Tensor& x, int64_t dim, bool keepdim, const Tensor& values,
            const Tensor& indices) {
  if (needs_grad(x)) {
    Ref<Node> n = record(type, x);
    n->emplace<PickData>(dim, keepdim, x.sizes());
    n->save(indices);
    set_history(values, n);
  }
  return {values, indices};
}

void check_nonempty(const char* op, const Tensor& x, int64_t dim) {
  WT_CHECK(x.ndim() == 0 || x.sizes()[dim] > 0, IndexError, op, ": Expected reduction dim ", dim,
           " to have non-zero size, got ", x.sizes());
}

Tensor at_least_1d(const Tensor& t) { return t.ndim() ? t : alias(t, Shape{1}, Shape{1}, t.offset()); }

Pair extreme_dim(const char* op, kernels::Slot<kernels::ValueIndexFn>& slot, const NodeType& type,
                 const Tensor& x, int64_t dim, bool keepdim) {
  refuse_storage(op, x);
  dim = wrap_dim(dim, x.ndim(), op);
  check_nonempty(op, x, dim);
  Reduced r = reduced_shape(op, x, IntList{&dim, 1}, keepdim);
  Shape kept = x.ndim() ? r.kept : Shape{1};
  Tensor values = empty(kept, options_of(x)), indices = empty(kept, {DType::Int64, x.device()});
  if (!values.is_meta() && values.numel()) {
    Launch launch(x.device());
    slot(launch, values.view(), indices.view(), at_least_1d(x).view(), static_cast<int>(dim));
  }
  values = alias(values, r.sizes, contiguous_strides(r.sizes), 0);
  indices = alias(indices, r.sizes, contiguous_strides(r.sizes), 0);
  return picked(type, x, dim, keepdim, values, indices);
}
Pair max_dim_impl(const Tensor& x, int64_t dim, bool keep) {
  return extreme_dim("max", max_slot, kMaxDim, x, dim, keep);
}
Pair min_dim_impl(const Tensor& x, int64_t dim, bool keep) {
  return extreme_dim("min", min_slot, kMinDim, x, dim, keep);
}

// ---- median: of an even number of elements the lower of the middle two ---------------------------------

// Where it is along `dim`, which stays: among all elements but nan, or the first nan if there is one.
Tensor median_index(const Tensor& x, int64_t dim, bool skip_nan) {
  const int64_t n = x.sizes()[dim];
  const Tensor order = argsort(x, dim, false, true);  // nan comes last
  if (!is_floating(x.dtype())) return narrow(order, dim, (n - 1) / 2, 1);
  const Tensor nans = sum(ne(x, x), OptDims(IntList{&dim, 1}), true, std::nullopt), others = n - nans;
  const Tensor rank = skip_nan ? floor_divide_ts(clamp(others - 1, Scalar(0), std::nullopt), 2)
                               : where_st(eq_ts(nans, 0), (n - 1) / 2, others);
  return gather(order, dim, rank, false);
}

Pair median_dim(const char* op, const NodeType& type, const Tensor& x, int64_t dim, bool keepdim,
                bool skip_nan) {
  dim = wrap_dim(dim, x.ndim(), op);
  check_nonempty(op, x, dim);
  const Reduced r = reduced_shape(op, x, IntList{&dim, 1}, keepdim);
  Tensor values, indices;
  {
    NoGrad off;
    const Tensor rows = at_least_1d(x);
    indices = median_index(rows, dim, skip_nan);
    values = reshape(gather(rows, dim, indices, false), r.sizes);
    indices = reshape(indices, r.sizes);
  }
  return picked(type, x, dim, keepdim, values, indices);
}
Pair median_impl(const Tensor& x, int64_t dim, bool keep) {
  return median_dim("median", kMedianDim, x, dim, keep, false);
}
Pair nanmedian_impl(const Tensor& x, int64_t dim, bool keep) {
  return median_dim("nanmedian", kNanmedianDim, x, dim, keep, true);
}

Tensor median_of_all(const char* op, const NodeType& type, const Tensor& x, bool skip_nan) {
  refuse_storage(op, x);
  if (x.numel() == 0 && is_floating(x.dtype()))
    return full({}, std::numeric_limits<double>::quiet_NaN(), options_of(x));
  WT_CHECK(x.numel() > 0, ValueError, op, ": expected a non-empty tensor, got ", x);
  Tensor out;
  {
    NoGrad off;
    out = std::get<0>(median_dim(op, type, reshape(x, Shape{-1}), 0, false, skip_nan));
  }
  if (needs_grad(x)) {
    Ref<Node> n = record(type, x);
    n->emplace<SharedData>(Shape(x.sizes().size(), 1), x.sizes());
    n->save(x);
    set_history(out, n);
    n->save_output(out);
  }
  return out;
}
Tensor median_all_impl(const Tensor& x) { return median_of_all("median", kMedianAll, x, false); }
Tensor nanmedian_all_impl(const Tensor& x) { return median_of_all("nanmedian", kNanmedianAll, x, true); }

// ---- mode: the most frequent value, the smallest of several, and where it last occurs ------------------

template <class C>
using Placed = std::pair<C, int64_t>;

// By the library's sort, whose order of equal values decides on the index, as in PyTorch. It looks at up to
// 16 elements in turn, and there a NaN stays where the comparisons, all false, leave it; with more it comes
// last.
template <class C>
void sort_by_value(std::vector<Placed<C>>& row) {
  using P = Placed<C>;
  if (row.size() <= 16)
    return std::sort(row.begin(), row.end(), [](const P& a, const P& b) { return a.first < b.first; });
  std::sort(row.begin(), row.end(), [](const P& a, const P& b) {
    return a.first < b.first || (a.first == a.first && b.first != b.first);
  });
}

template <class C>
int64_t mode_of(const std::vector<Placed<C>>& row) {
  size_t most = 0, run = 0;
  int64_t place = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    ++run;
    if (i + 1 < row.size() && row[i].first == row[i + 1].first) continue;
    if (run > most) most = run, place = row[i].second;
    run = 0;
  }
  return place;
}

// Where the mode of each row of x [.., n] is: [.., 1].
Tensor mode_index(const Tensor& x) {
  Shape sizes = x.sizes();
  const int64_t n = sizes.back();
  sizes.back() = 1;
  const Tensor rows = raw_contiguous(to(x, Device{}, std::nullopt, false, false));
  Tensor out = empty(sizes, {DType::Int64, {}});
  kernels::dispatch(kernels::AllTypes{}, x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = kernels::Compute<T>;
    std::vector<Placed<C>> row(static_cast<size_t>(n));
    for (int64_t r = 0; r < out.numel(); ++r) {
      for (int64_t i = 0; i < n; ++i) row[i] = {static_cast<C>(rows.data_as<T>()[r * n + i]), i};
      sort_by_value(row);
      out.data_as<int64_t>()[r] = mode_of(row);
    }
  });
  return to(out, x.device(), std::nullopt, false, false);
}

Pair mode_impl(const Tensor& x, int64_t dim, bool keepdim) {
  dim = wrap_dim(dim, x.ndim(), "mode");
  check_nonempty("mode", x, dim);
  const Reduced r = reduced_shape("mode", x, IntList{&dim, 1}, keepdim);
  if (x.is_meta()) return {empty(r.sizes, options_of(x)), empty(r.sizes, {DType::Int64, x.device()})};
  Tensor values, indices;
  {
    NoGrad off;
    const Tensor rows = transpose(at_least_1d(x), dim, -1), index = mode_index(rows);
    values = reshape(transpose(gather(rows, -1, index, false), dim, -1), r.sizes);
    indices = reshape(transpose(index, dim, -1), r.sizes);
  }
  return picked(kMode, x, dim, keepdim, values, indices);
}

// ---- of two, and places --------------------------------------------------------------------------------

Tensor max_two_impl(const Tensor& a, const Tensor& b) { return maximum(a, b); }
Tensor min_two_impl(const Tensor& a, const Tensor& b) { return minimum(a, b); }

Tensor arg_extreme(const char* op, kernels::Slot<kernels::ArgReduceFn>& slot, const Tensor& x,
                   std::optional<int64_t> dim, bool keepdim) {
  refuse_storage(op, x);
  WT_CHECK(x.dtype() != DType::Bool, DtypeError, op, ": not implemented for bool");
  if (!dim) {
    WT_CHECK(x.numel() > 0, IndexError, op,
             ": Expected reduction dim to be specified for input.numel() == 0.");
    Tensor out = arg_extreme(op, slot, reshape(x, Shape{-1}), 0, false);
    return keepdim ? alias(out, Shape(x.sizes().size(), 1), Shape(x.sizes().size(), 1), 0) : out;
  }
  int64_t d = wrap_dim(*dim, x.ndim(), op);
  check_nonempty(op, x, d);
  Reduced r = reduced_shape(op, x, IntList{&d, 1}, keepdim);
  Tensor out = empty(x.ndim() ? r.kept : Shape{1}, {DType::Int64, x.device()});
  if (!out.is_meta() && out.numel()) {
    Launch launch(x.device());
    slot(launch, out.view(), at_least_1d(x).view(), static_cast<int>(d));
  }
  return alias(out, r.sizes, contiguous_strides(r.sizes), 0);
}
Tensor argmax_impl(const Tensor& x, std::optional<int64_t> dim, bool keep) {
  NoGrad off;
  return arg_extreme("argmax", argmax_slot, x, dim, keep);
}
Tensor argmin_impl(const Tensor& x, std::optional<int64_t> dim, bool keep) {
  NoGrad off;
  return arg_extreme("argmin", argmin_slot, x, dim, keep);
}

// ---- running reductions --------------------------------------------------------------------------------

// The sum of what comes after, itself included.
Tensor reverse_cumsum(const Tensor& x, int64_t dim) {
  return x.ndim() ? flip(cumsum(flip(x, Shape{dim}), dim, std::nullopt), Shape{dim}) : x;
}
void cumsum_backward(Node& n, Gradients& g) { g.set(0, reverse_cumsum(g[0], n.data<int64_t>())); }
// d out_j / d x_i = out_j / x_i for j >= i where no zero stands between; with zeros, the product of the
// others.
void cumprod_backward(Node& n, Gradients& g) {
  int64_t dim = n.data<int64_t>();
  Tensor x = conjugate(cast(n.saved(0), g[0].dtype()));
  if (x.numel() == 0 || x.ndim() == 0) return g.set(0, g[0]);
  if (x.device().is_host() && !is_complex(x.dtype()) && !needs_grad(g[0], x))
    return g.set(0, products_backward(g[0], x, dim));
  int64_t count = x.sizes()[dim];
  // With z the products before each element: gradient_i = z_i * t_i, where t_i = g_i + x_(i+1) * t_(i+1).
  // Windows double: before the step of s, t holds s terms, and `ahead` the product of the s elements after i.
  auto part = [&](const Tensor& v, int64_t begin, int64_t length) { return narrow(v, dim, begin, length); };
  Tensor t = g[0], ahead = part(x, 1, count - 1);
  for (int64_t s = 1; s < count; s *= 2) {
    t = cat(std::vector<Tensor>{part(t, 0, count - s) + ahead * part(t, s, count - s), part(t, count - s, s)},
            dim);
    int64_t left = std::max<int64_t>(0, count - 2 * s);
    ahead = part(ahead, 0, left) * part(ahead, std::min(s, count - s), left);
  }
  g.set(0, products_before(x, dim) * t);
}
constexpr NodeType kCumsum{"CumsumBackward0", cumsum_backward},
    kCumprod{"CumprodBackward0", cumprod_backward};

// One after the other: the order decides between imaginary parts that differ by 2 pi.
Tensor complex_logcumsumexp(const Tensor& x, int64_t dim) {
  if (x.numel() == 0) return clone(x);
  std::vector<Tensor> parts = unbind(x, dim);
  for (size_t i = 1; i < parts.size(); ++i) parts[i] = logaddexp(parts[i], parts[i - 1]);
  return stack(parts, dim);
}
Tensor scan(const char* op, kernels::Slot<kernels::ScanFn>& slot, const NodeType& type, const Tensor& x,
            int64_t dim, OptDType dtype) {
  dim = wrap_dim(dim, x.ndim(), op);
  DType t = dtype.value_or(is_differentiable(x.dtype()) ? x.dtype() : DType::Int64);
  if (is_complex(t) && x.ndim() == 0) return clone(cast(x, t));
  const bool products = &slot == &cumprod_slot;
  if (is_complex(t) && products && !x.device().is_host())
    return x.numel() ? products_before(cast(x, t), dim) * cast(x, t) : clone(cast(x, t));
  if (is_complex(t) && &slot == &logcumsumexp_slot) return complex_logcumsumexp(cast(x, t), dim);
  if (is_complex(t) && !products) return view_as_complex(cumsum(view_as_real(cast(x, t)), dim, std::nullopt));
  Tensor from = raw_cast(x, t), out = empty(x.sizes(), {t, x.device()});
  if (is_complex(t)) from = raw_contiguous(from);
  if (!out.is_meta() && out.numel()) {
    Launch launch(x.device());
    slot(launch, at_least_1d(out).view(), at_least_1d(from).view(), static_cast<int>(dim));
  }
  if (needs_grad(x)) {
    Ref<Node> n = record(type, x);
    n->emplace<int64_t>(dim);
    n->save(x);
    set_history(out, n);
  }
  return out;
}
Tensor cumsum_impl(const Tensor& x, int64_t dim, OptDType t) {
  return scan("cumsum", cumsum_slot, kCumsum, x, dim, t);
}
Tensor cumprod_impl(const Tensor& x, int64_t dim, OptDType t) {
  return scan("cumprod", cumprod_slot, kCumprod, x, dim, t);
}
Tensor cumsum_inplace(const Tensor& x, int64_t dim, OptDType t) { return copy_(x, cumsum(x, dim, t), false); }
Tensor cumprod_inplace(const Tensor& x, int64_t dim, OptDType t) {
  // The gradient needs x as it was.
  return copy_(x, cumprod(needs_grad(x) ? clone_with_history(x) : x, dim, t), false);
}

void logcumsumexp_backward(Node& n, Gradients& g) {
  // d out_j / d x_i = exp(x_i - out_j) for j >= i, summed by logarithms: exp(x) alone would overflow.
  const int64_t dim = n.data<int64_t>();
  const Tensor x = n.saved(0);
  if (x.numel() == 0 || x.ndim() == 0) return g.set(0, g[0]);
  const Tensor out = logcumsumexp(x, dim);
  // Finite, for the gradient of this gradient takes differences of such logarithms.
  const double least = x.dtype() == DType::Float64 ? -1e308 : x.dtype() == DType::Float16 ? -65504.0 : -3e38;
  const auto part = [&](const Tensor& v) {  // from the gradients that are positive
    const Tensor positive = gt_ts(v, 0);
    const Tensor logs = where_ts(positive, log(where_ts(positive, v, 1)), least);
    const Shape dims{dim};
    return exp(x + flip(logcumsumexp(flip(logs - out, dims), dim), dims));
  };
  g.set(0, part(g[0]) - part(-g[0]));
}
constexpr NodeType kLogcumsumexp{"LogcumsumexpBackward0", logcumsumexp_backward};
Tensor logcumsumexp_impl(const Tensor& x, int64_t dim) {
  WT_CHECK(is_differentiable(x.dtype()), DtypeError, "logcumsumexp: expected a floating tensor, got ",
           x.dtype());
  return scan("logcumsumexp", logcumsumexp_slot, kLogcumsumexp, x, dim, std::nullopt);
}

void cumpick_backward(Node& n, Gradients& g) {
  const PickData& d = n.data<PickData>();
  if (g[0].defined()) g.set(0, scatter_add(zeros(d.sizes, options_of(g[0])), d.dim, n.saved(0), g[0]));
}
constexpr NodeType kCummax{"CummaxBackward0", cumpick_backward}, kCummin{"CumminBackward0", cumpick_backward};
Pair scan_index(const char* op, kernels::Slot<kernels::ScanIndexFn>& slot, const NodeType& type,
                const Tensor& x, int64_t dim) {
  refuse_storage(op, x);
  dim = wrap_dim(dim, x.ndim(), op);
  Tensor values = empty(x.sizes(), options_of(x)), indices = empty(x.sizes(), {DType::Int64, x.device()});
  if (!values.is_meta() && values.numel()) {
    Launch launch(x.device());
    slot(launch, at_least_1d(values).view(), at_least_1d(indices).view(), at_least_1d(x).view(),
         static_cast<int>(dim));
  }
  if (needs_grad(x)) {
    Ref<Node> n = record(type, x);
    n->emplace<PickData>(dim, true, x.sizes());
    n->save(indices);
    set_history(values, n);
  }
  return {values, indices};
}
Pair cummax_impl(const Tensor& x, int64_t dim) { return scan_index("cummax", cummax_slot, kCummax, x, dim); }
Pair cummin_impl(const Tensor& x, int64_t dim) { return scan_index("cummin", cummin_slot, kCummin, x, dim); }

const Arg kDims{"dim", none}, kKeep{"keepdim", false};
const Op<Tensor(const Tensor&)> max_all_op{
    "max", max_all_impl, kBoth | kOut, {"input"}, "The largest element; equal ones share the gradient."},
    min_all_op{
        "min", min_all_impl, kBoth | kOut, {"input"}, "The smallest element; equal ones share the gradient."};
// Before the dims: an integer tensor of one element could be read as one.
const Op<Tensor(const Tensor&, const Tensor&)> max_two_op{
    "max", max_two_impl, kBoth | kOut | kPointwise, {"input", "other"}, "maximum."},
    min_two_op{"min", min_two_impl, kBoth | kOut | kPointwise, {"input", "other"}, "minimum."};
const Op<Pair(const Tensor&, int64_t, bool)> max_dim_op{"max",
                                                        max_dim_impl,
                                                        kBoth | kOut | kAlongDims,
                                                        {"input", {"dim", kDimIndex}, kKeep},
                                                        "The largest of a dim and where it is.",
                                                        {"values", "indices"}},
    min_dim_op{"min",
               min_dim_impl,
               kBoth | kOut | kAlongDims,
               {"input", {"dim", kDimIndex}, kKeep},
               "The smallest of a dim and where it is.",
               {"values", "indices"}};
const Op<Tensor(const Tensor&)> median_all_op{
    "median", median_all_impl, kBoth, {"input"}, "The lower middle value; nan if there is one."},
    nanmedian_all_op{"nanmedian",
                     nanmedian_all_impl,
                     kBoth,
                     {"input"},
                     "The lower middle value of those that are not nan."};
const Op<Pair(const Tensor&, int64_t, bool)> median_op{"median",
                                                       median_impl,
                                                       kBoth | kOut | kAlongDims,
                                                       {"input", {"dim", kDimIndex}, kKeep},
                                                       "The lower middle value of a dim and where it is.",
                                                       {"values", "indices"}};
}  // namespace
decltype(nanmedian_dim) nanmedian_dim{"nanmedian",
                                      nanmedian_impl,
                                      kBoth | kOut | kAlongDims,
                                      {"input", {"dim", kDimIndex}, kKeep},
                                      "The lower middle value of a dim but for nan and where it is.",
                                      {"values", "indices"}};
namespace {
const Op<Pair(const Tensor&, int64_t, bool)> mode_op{
    "mode",
    mode_impl,
    kBoth | kOut | kAlongDims,
    {"input", Arg::integer("dim", -1, kDimIndex), kKeep},
    "The most frequent value of a dim, the smallest of several, and where it last is.",
    {"values", "indices"}};
const Op<Pair(const Tensor&, std::optional<int64_t>, bool)> aminmax_op{
    "aminmax",
    aminmax_impl,
    kBoth | kOut | kOutExact | kAlongDims,
    {"input", {"dim", none, kKeywordOnly | kDimIndex}, {"keepdim", false, kKeywordOnly}},
    "The smallest and the largest element.",
    {"min", "max"}};
}  // namespace
decltype(argmin) argmin{"argmin",
                        argmin_impl,
                        kBoth | kOut | kOutExact | kAlongDims,
                        {"input", {"dim", none, kDimIndex}, kKeep},
                        "Where the smallest element is; the first of equal ones."};
namespace {
const Op<Pair(const Tensor&, int64_t)> cummax_op{"cummax",
                                                 cummax_impl,
                                                 kBoth | kOut | kOutExact | kAlongDims,
                                                 {"input", {"dim", kDimIndex}},
                                                 "The largest so far along dim and where it was.",
                                                 {"values", "indices"}},
    cummin_op{"cummin",
              cummin_impl,
              kBoth | kOut | kOutExact | kAlongDims,
              {"input", {"dim", kDimIndex}},
              "The smallest so far along dim and where it was.",
              {"values", "indices"}};
}  // namespace

decltype(argmax) argmax{"argmax",
                        argmax_impl,
                        kBoth | kOut | kOutExact | kAlongDims,
                        {"input", {"dim", none, kDimIndex}, kKeep},
                        "Where the largest element is; the first of equal ones."};
decltype(amax) amax{"amax",
                    amax_impl,
                    kBoth | kOut | kOutExact | kAlongDims,
                    {"input", {"dim", {}, kDimIndex}, kKeep},
                    "The largest over dims; equal ones share the gradient."};
decltype(amin) amin{"amin",
                    amin_impl,
                    kBoth | kOut | kOutExact | kAlongDims,
                    {"input", {"dim", {}, kDimIndex}, kKeep},
                    "The smallest over dims; equal ones share the gradient."};
decltype(cumsum) cumsum{"cumsum",
                        cumsum_impl,
                        kBoth | kOut | kOutExact | kOutDtype | kComplex | kFloat32Cuda | kAlongDims | kLinear,
                        {"input", {"dim", kDimIndex}, {"dtype", none, kKeywordOnly}},
                        "The running sum along dim."};
decltype(cumprod) cumprod{"cumprod",
                          cumprod_impl,
                          kBoth | kOut | kOutExact | kOutDtype | kComplex | kFloat32Cuda | kAlongDims,
                          {"input", {"dim", kDimIndex}, {"dtype", none, kKeywordOnly}},
                          "The running product along dim."};
namespace {
const auto cumsum_ = in_place_of(cumsum, cumsum_inplace, kMethod, "cumsum in place.");
const auto cumprod_ = in_place_of(cumprod, cumprod_inplace, kMethod, "cumprod in place.");
}  // namespace
decltype(logcumsumexp) logcumsumexp{"logcumsumexp",
                                    logcumsumexp_impl,
                                    kBoth | kOut | kComplex | kOutExact | kAlongDims,
                                    {"input", {"dim", kDimIndex}},
                                    "log of the running sum of exp along dim."};

}  // namespace warptape::ops
