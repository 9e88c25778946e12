// The distinct elements of a tensor, or its distinct slices along a dim.
#include <algorithm>
#include <numeric>

#include "kernels/dispatch.h"
#include "ops/elementwise/elementwise.h"
#include "ops/index/gather.h"
#include "ops/index/index.h"
#include "ops/index/sort.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

// Items in an order in which equal ones are neighbours: which item stands at each place, and which places
// hold one that differs from the item before.
struct Runs {
  Tensor order, starts;
};
Tensor positions(const Tensor& starts) { return reshape(nonzero(starts), Shape{-1}); }

// What return_inverse and return_counts ask for, by one pass over host memory.
void count_runs(const Runs& runs, int64_t* inverse, int64_t* counts) {
  const auto* order = runs.order.data_as<int64_t>();
  const auto* starts = runs.starts.data_as<kernels::Bool>();
  int64_t run = -1;
  for (int64_t i = 0; i < runs.order.numel(); ++i) {
    run += starts[i];
    if (inverse) inverse[order[i]] = run;
    if (counts) ++counts[run];
  }
}

// [values, inverse?, counts?]. `values` are the items at the places `first`.
OneOrMany results(Tensor values, const Tensor& first, const Runs& runs, const Shape& inverse_sizes,
                  bool inverse, bool counts) {
  if (!inverse && !counts) return values;
  const int64_t n = runs.order.numel();
  const TensorOptions ints{DType::Int64, runs.order.device()};
  Tensor to = inverse ? empty(Shape{n}, ints) : Tensor();
  Tensor count = counts ? zeros(Shape{first.numel()}, ints) : Tensor();
  if (ints.device.is_host()) {
    count_runs(runs, inverse ? to.data_as<int64_t>() : nullptr, counts ? count.data_as<int64_t>() : nullptr);
  } else {
    const Tensor run = cumsum(runs.starts, 0, DType::Int64) - Scalar(1);  // the one that each place is in
    const OptTensor places[] = {runs.order}, own[] = {run};
    if (inverse) index_put_(to, places, run, false);
    if (counts) index_put_(count, own, full(Shape{}, 1, ints), true);
  }
  std::vector<Tensor> out{std::move(values)};
  if (inverse) out.push_back(reshape(to, inverse_sizes));
  if (counts) out.push_back(count);
  return out;
}

OneOrMany unique_elements(const Tensor& x, bool inverse, bool counts) {
  const auto [sorted, order] = sort(reshape(x, Shape{-1}), 0, false, true);
  const int64_t n = sorted.numel();
  Tensor starts = full(Shape{n}, true, {DType::Bool, x.device()});
  if (n > 1) {
    const Tensor differs = ne(narrow(sorted, 0, 1, n - 1), narrow(sorted, 0, 0, n - 1));
    raw_copy(narrow(starts, 0, 1, n - 1), differs);
  }
  const Tensor first = positions(starts);
  return results(index_select(sorted, 0, first), first, {order, starts}, x.sizes(), inverse, counts);
}

// The order of the rows of a matrix in host memory by their elements from the left, and where runs start.
Runs ordered_rows(const Tensor& rows) {
  const int64_t n = rows.sizes()[0], width = rows.sizes()[1];
  Runs runs{empty(Shape{n}, {DType::Int64, {}}), empty(Shape{n}, {DType::Bool, {}})};
  auto* order = runs.order.data_as<int64_t>();
  auto* starts = runs.starts.data_as<kernels::Bool>();
  std::iota(order, order + n, 0);
  const auto run = [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = kernels::Compute<T>;
    const T* data = rows.data_as<T>();
    const auto row = [&](int64_t i) { return data + i * width; };
    const auto less = [](T a, T b) { return static_cast<C>(a) < static_cast<C>(b); };
    const auto same = [](T a, T b) { return static_cast<C>(a) == static_cast<C>(b); };
    std::stable_sort(order, order + n, [&](int64_t a, int64_t b) {
      return std::lexicographical_compare(row(a), row(a + 1), row(b), row(b + 1), less);
    });
    for (int64_t i = 0; i < n; ++i)
      starts[i] = i == 0 || !std::equal(row(order[i]), row(order[i] + 1), row(order[i - 1]), same);
  };
  kernels::dispatch(kernels::AllTypes{}, rows.dtype(), run, "unique");
  return runs;
}

OneOrMany unique_slices(const Tensor& x, int64_t dim, bool inverse, bool counts) {
  WT_CHECK(x.ndim() > 0, IndexError, "unique: Dimension specified as ", dim, " but tensor has no dimensions");
  dim = wrap_dim(dim, x.ndim(), "unique");
  const int64_t n = x.sizes()[dim];
  WT_CHECK(
      x.numel() > 0 || (n == 0 && std::count(x.sizes().begin(), x.sizes().end(), 0) == 1), ShapeError,
      "unique: There are 0 sized dimensions, and they aren't selected, so unique cannot be applied, got ", x);
  Shape order{dim}, back;
  for (int64_t d = 0; d < x.ndim(); ++d) {
    if (d != dim) order.push_back(d);
    back.push_back(d == dim ? 0 : d + (d < dim));
  }
  const Tensor slices = permute(x, order), rows = reshape(slices, Shape{n, n ? x.numel() / n : 0});
  Runs runs = ordered_rows(raw_contiguous(to(rows, Device{}, std::nullopt, false, false)));
  for (Tensor* t : {&runs.order, &runs.starts}) *t = to(*t, x.device(), std::nullopt, false, false);
  const Tensor first = positions(runs.starts);
  const Tensor distinct = permute(index_select(slices, 0, index_select(runs.order, 0, first)), back);
  return results(distinct, first, runs, Shape{n}, inverse, counts);
}

OneOrMany unique_impl(const Tensor& x, bool, bool inverse, bool counts, std::optional<int64_t> dim) {
  WT_CHECK(!x.device().is_meta(), NotImplementedError, "unique: the elements of a meta tensor are not known");
  OneOrMany out;
  {
    NoGrad off;
    out = dim ? unique_slices(x, *dim, inverse, counts) : unique_elements(x, inverse, counts);
  }
  return out;
}

const Op<OneOrMany(const Tensor&, bool, bool, bool, std::optional<int64_t>)> unique{
    "unique",
    unique_impl,
    kFunction | kMethod,
    {"input", {"sorted", true}, {"return_inverse", false}, {"return_counts", false}, {"dim", none}},
    "The distinct elements in order, or the distinct slices along dim; on request where each element went, "
    "and "
    "how often each occurs."};

}  // namespace
}  // namespace warptape::ops
