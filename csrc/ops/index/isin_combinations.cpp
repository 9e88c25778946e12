// Members of sets, runs of equal elements, combinations and coordinates.
#include <cmath>

#include "kernels/dispatch.h"
#include "op/forms.h"
#include "ops/elementwise/elementwise.h"
#include "ops/index/gather.h"
#include "ops/index/sort.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

// ---- isin ----------------------------------------------------------------------------------------------

constexpr int64_t kFewElements = 32;  // up to here each is compared with all, on the host

Tensor is_among_few(const Tensor& x, const Tensor& few, bool invert) {
  Tensor out = empty(x.sizes(), {DType::Bool, {}});
  const Tensor values = raw_contiguous(x), others = raw_contiguous(few);
  kernels::dispatch(kernels::AllTypes{}, x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = kernels::Compute<T>;
    const T *p = values.data_as<T>(), *q = others.data_as<T>();
    auto* to = out.data_as<kernels::Bool>();
    for (int64_t i = 0; i < values.numel(); ++i) {
      bool found = false;
      for (int64_t j = 0; j < others.numel(); ++j) found |= static_cast<C>(p[i]) == static_cast<C>(q[j]);
      to[i] = found != invert;
    }
  });
  return out;
}

Tensor isin_impl(const Tensor& elements, const Tensor& test, bool, bool invert) {
  NoGrad off;
  const PointwiseInput both[] = {elements, test};
  const DType t = promoted_dtype(both);
  const Device device = common_device("isin", both);
  if (test.numel() == 0 || elements.numel() == 0 || device.is_meta())
    return full(elements.sizes(), invert, {DType::Bool, device});
  const Tensor x = raw_cast(elements, t), others = raw_cast(test, t);
  if (device.is_host() && others.numel() <= kFewElements) return is_among_few(x, others, invert);
  const Tensor ordered = std::get<0>(sort(reshape(others, Shape{-1}), 0, false, false));
  const Tensor place = clamp(searchsorted(ordered, x, false, false, std::nullopt, std::nullopt), std::nullopt,
                             Scalar(ordered.numel() - 1));
  const Tensor nearest = reshape(index_select(ordered, 0, reshape(place, Shape{-1})), x.sizes());
  return invert ? ne(nearest, x) : eq(nearest, x);
}
Tensor isin_number(const Tensor& elements, const Scalar& test, bool, bool invert) {
  NoGrad off;
  return invert ? ne_ts(elements, test) : eq_ts(elements, test);
}
Tensor number_isin(const Scalar& element, const Tensor& test, bool unique, bool invert) {
  return isin_impl(scalar_tensor(element, element.dtype(), test.device()), test, unique, invert);
}

// ---- unique_consecutive --------------------------------------------------------------------------------

// Where slice i + 1 along dim 0 of x differs from slice i, bools on the host.
Tensor changes(const Tensor& x) {
  const int64_t n = x.sizes()[0];
  Tensor differs = ne(narrow(x, 0, 1, n - 1), narrow(x, 0, 0, n - 1));
  if (x.ndim() > 1) {
    const Shape rest{1};
    differs = any(reshape(differs, Shape{n - 1, -1}), OptDims(rest), false);
  }
  return raw_contiguous(to(differs, Device{}, std::nullopt, false, false));
}

struct Runs {
  Tensor starts, inverse, counts;  // int64, on the host
};
Runs runs_of(const Tensor& x) {
  const TensorOptions longs{DType::Int64, {}};
  const int64_t n = x.sizes()[0];
  const Tensor differs = n > 1 ? changes(x) : Tensor();
  const auto* fresh = n > 1 ? differs.data_as<uint8_t>() : nullptr;
  int64_t count = n ? 1 : 0;
  for (int64_t i = 1; i < n; ++i) count += fresh[i - 1] != 0;
  Runs r{empty(Shape{count}, longs), empty(Shape{n}, longs), empty(Shape{count}, longs)};
  auto *starts = r.starts.data_as<int64_t>(), *inverse = r.inverse.data_as<int64_t>(),
       *counts = r.counts.data_as<int64_t>();
  int64_t run = -1;
  for (int64_t i = 0; i < n; ++i) {
    if (i == 0 || fresh[i - 1]) starts[++run] = i;
    inverse[i] = run;
    counts[run] = i + 1 - starts[run];
  }
  return r;
}

OneOrMany unique_consecutive_impl(const Tensor& x, bool return_inverse, bool return_counts,
                                  std::optional<int64_t> dim) {
  WT_CHECK(!x.device().is_meta(), NotImplementedError, "unique_consecutive: a meta tensor has no data");
  std::vector<Tensor> out;
  {
    NoGrad off;
    const int64_t d = dim ? wrap_dim(*dim, x.ndim(), "unique_consecutive") : 0;
    const bool flat = !dim || x.ndim() == 0;
    const Tensor values = flat ? reshape(x, Shape{-1}) : transpose(x, 0, d);
    WT_CHECK(flat || x.numel() || x.sizes()[d] == 0, ShapeError,
             "unique_consecutive: There are 0 sized dimensions, and they aren't selected, so unique cannot "
             "be applied");
    const Runs r = runs_of(values);
    const auto here = [&](const Tensor& t) { return to(t, x.device(), std::nullopt, false, false); };
    out.push_back(flat ? index_select(values, 0, here(r.starts)) : index_select(x, d, here(r.starts)));
    if (return_inverse) out.push_back(here(flat && !dim ? reshape(r.inverse, x.sizes()) : r.inverse));
    if (return_counts) out.push_back(here(r.counts));
  }
  if (out.size() == 1) return out[0];
  return out;
}

// ---- combinations --------------------------------------------------------------------------------------

int64_t binomial_coefficient(int64_t n, int64_t r) {
  double count = 1;
  for (int64_t i = 1; i <= r; ++i)
    count = std::round(count * static_cast<double>(n - r + i) / static_cast<double>(i));
  WT_CHECK(count < 0x1p60, ShapeError, "combinations: ", count, " rows are too many");
  return static_cast<int64_t>(count);
}

// The next of the rows of r positions below n, in lexical order.
void advance(int64_t* row, int64_t n, int64_t r, bool repeats) {
  int64_t k = r - 1;
  while (k > 0 && row[k] == n - 1 - (repeats ? 0 : r - 1 - k)) --k;
  ++row[k];
  for (int64_t j = k + 1; j < r; ++j) row[j] = repeats ? row[k] : row[j - 1] + 1;
}

Tensor combinations_impl(const Tensor& x, int64_t r, bool repeats) {
  WT_CHECK(x.ndim() == 1, ShapeError, "combinations: Expect a 1D vector, but got shape ", x.sizes());
  WT_CHECK(r >= 0, Error, "combinations: Expect a non-negative number, but got ", r);
  if (r == 0) return empty(Shape{0}, options_of(x));
  const int64_t n = x.numel(), from = repeats && n ? n + r - 1 : n;
  const int64_t count = r > from || n == 0 ? 0 : binomial_coefficient(from, r);
  const TensorOptions longs{DType::Int64, x.is_meta() ? x.device() : Device{}};
  Tensor places = empty(Shape{count * r}, longs);
  if (count && !x.is_meta()) {
    auto* row = places.data_as<int64_t>();
    for (int64_t j = 0; j < r; ++j) row[j] = repeats ? 0 : j;
    for (int64_t i = 1; i < count; ++i, row += r) {
      std::copy_n(row, r, row + r);
      advance(row + r, n, r, repeats);
    }
  }
  return reshape(index_select(x, 0, to(places, x.device(), std::nullopt, false, false)), Shape{count, r});
}

Tensor cartesian_prod_impl(TensorList tensors) {
  WT_CHECK(!tensors.empty(), Error, "cartesian_prod: expected a non-empty list of tensors");
  Shape sizes;
  for (const Tensor& t : tensors) {
    WT_CHECK(t.ndim() == 1, ShapeError, "cartesian_prod: Expect a 1D vector, but got shape ", t.sizes());
    WT_CHECK(t.dtype() == tensors[0].dtype(), DtypeError,
             "cartesian_prod: expected all tensors to have the same dtype, got ", tensors[0].dtype(), " and ",
             t.dtype());
    sizes.push_back(t.numel());
  }
  if (tensors.size() == 1) return tensors[0];
  std::vector<Tensor> columns;
  for (size_t i = 0; i < tensors.size(); ++i) {
    Shape own(sizes.size(), 1);
    own[i] = sizes[i];
    columns.push_back(expand(view(contiguous(tensors[i]), own), sizes));
  }
  return reshape(stack(columns, -1), Shape{numel_of(sizes), static_cast<int64_t>(tensors.size())});
}

// ---- unravel_index -------------------------------------------------------------------------------------

std::vector<Tensor> unravel_index_impl(const Tensor& indices, IntList shape) {
  WT_CHECK(is_integral(indices.dtype()), TypeError,
           "unravel_index: expected 'indices' to be integer dtype, but got ", indices.dtype());
  for (const int64_t n : shape)
    WT_CHECK(n >= 0, ValueError, "unravel_index: 'shape' cannot have negative values, but got ",
             AsShape{shape});
  const Tensor flat = raw_cast(indices, DType::Int64);
  const Shape steps = contiguous_strides(shape);
  std::vector<Tensor> out;
  for (size_t d = 0; d < shape.size(); ++d)
    out.push_back(remainder_ts(steps[d] == 1 ? flat : floor_divide_ts(flat, steps[d]), shape[d]));
  return out;
}

#define WT_ISIN_OPTIONS \
  {"assume_unique", false, kKeywordOnly}, { "invert", false, kKeywordOnly }
const char kIsinDoc[] = "Whether each of elements is among test_elements; with invert whether not.";
const Op<Tensor(const Tensor&, const Tensor&, bool, bool)> isin{
    "isin",
    isin_impl,
    kFunction | kOut | kOutExact,
    {"elements", "test_elements", WT_ISIN_OPTIONS},
    kIsinDoc};
const auto isin_number_op = overload_with(isin, isin_number, {"elements", "test_element", WT_ISIN_OPTIONS});
const auto number_isin_op = overload_with(isin, number_isin, {"element", "test_elements", WT_ISIN_OPTIONS});
const Op<OneOrMany(const Tensor&, bool, bool, std::optional<int64_t>)> unique_consecutive{
    "unique_consecutive",
    unique_consecutive_impl,
    kFunction | kMethod,
    {"input", {"return_inverse", false}, {"return_counts", false}, {"dim", none}},
    "Without elements (slices along dim) equal to the one before; then inverse and counts, if asked."};
const Op<Tensor(const Tensor&, int64_t, bool)> combinations{
    "combinations",
    combinations_impl,
    kFunction | kComplex,
    {"input", Arg::integer("r", 2), {"with_replacement", false}},
    "The combinations of r elements, as rows, in the order of itertools."};
const Op<Tensor(TensorList)> cartesian_prod{
    "cartesian_prod",
    cartesian_prod_impl,
    kFunction | kComplex | Aliasing::Argument,
    {{"tensors", kVarArgs}},
    "All combinations of one element of each tensor, as rows; of one tensor, the tensor."};
const Op<std::vector<Tensor>(const Tensor&, IntList)> unravel_index{
    "unravel_index",
    unravel_index_impl,
    kFunction,
    {"indices", "shape"},
    "The coordinates, by dim, of flat indices into a tensor of this shape."};

}  // namespace
}  // namespace warptape::ops
