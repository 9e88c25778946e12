// Counts: of integers, and of samples in the bins of histograms. A sample lies in the last bin whose left
// edge is not above it; the last bin has both of its edges. M samples of N numbers, B bins of one dim.
#include <algorithm>
#include <cmath>

#include "kernels/dispatch.h"
#include "kernels/index/index.h"
#include "ops/kernel_inputs.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::BincountFn> bincount_slot{"bincount"};

Tensor on_host(const Tensor& t) { return to(t, Device{}, std::nullopt, false, false); }

// ---- bincount ------------------------------------------------------------------------------------------

// The largest of some integers; an error where one is negative.
int64_t largest_count(const Tensor& x) {
  if (x.numel() == 0) return -1;
  const int64_t low = item(amin(x, OptDims(), false)).to_int(),
                high = item(amax(x, OptDims(), false)).to_int();
  WT_CHECK(low >= 0, Error, "bincount: bincount only supports 1-d non-negative integral inputs, got ", low);
  return high;
}

Tensor bincount_impl(const Tensor& x, const OptTensor& weights, int64_t minlength) {
  WT_CHECK(minlength >= 0, Error, "bincount: minlength should be >= 0, got ", minlength);
  WT_CHECK(x.ndim() == 1, Error, "bincount: bincount only supports 1-d non-negative integral inputs, got ",
           x);
  WT_CHECK(is_integral(x.dtype()), NotImplementedError, "bincount: not implemented for ", x.dtype());
  WT_CHECK(!weights || weights->sizes() == x.sizes(), Error,
           "bincount: weights should be 1-d and have the same length as input");
  WT_CHECK(!x.device().is_meta(), NotImplementedError, "bincount: a meta tensor has no data");
  NoGrad off;
  const Tensor values = raw_contiguous(x.device().is_host() ? x : raw_cast(x, DType::Int64));
  const int64_t bins = std::max(minlength, largest_count(values) + 1);
  const bool weighted = weights && x.numel();
  Tensor w;
  if (weighted)
    w = raw_contiguous(weights->dtype() == DType::Float32 ? *weights : raw_cast(*weights, DType::Float64));
  Tensor out = empty(Shape{bins}, {weighted ? w.dtype() : DType::Int64, x.device()});
  if (bins) {
    Launch launch(x.device());
    bincount_slot(launch, out.view(), values.view(), view_of(w));
    launch.check_index("bincount", 0);
  }
  return out;
}

// ---- histograms ----------------------------------------------------------------------------------------

using Range = std::optional<std::span<const double>>;
enum class Search : uint8_t {
  Scale,      // bins of equal width, by the place between the ends alone
  ScaleNear,  // the same, then by the edges near there
  Edges,      // by all edges
};

// The smallest and the largest element of each column of x [M, N], as doubles.
void column_extremes(const Tensor& x, std::vector<double>& low, std::vector<double>& high) {
  if (x.numel() == 0) return;
  const Shape rows{0};
  const Tensor least = raw_cast(amin(x, OptDims(rows), false), DType::Float64),
               most = raw_cast(amax(x, OptDims(rows), false), DType::Float64);
  std::copy_n(least.data_as<double>(), low.size(), low.begin());
  std::copy_n(most.data_as<double>(), high.size(), high.begin());
}

Tensor equal_edges(double low, double high, int64_t bins, DType dtype) {
  Tensor out = empty(Shape{bins + 1}, {dtype, {}});
  kernels::dispatch(kernels::FloatTypes{}, dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = kernels::Compute<T>;
    const C first = static_cast<C>(static_cast<T>(low)), last = static_cast<C>(static_cast<T>(high)),
            step = static_cast<C>(static_cast<T>((last - first) / static_cast<C>(bins)));
    for (int64_t i = 0; i <= bins; ++i)
      out.data_as<T>()[i] = static_cast<T>(i < (bins + 1) / 2 ? first + step * static_cast<C>(i)
                                                              : last - step * static_cast<C>(bins - i));
  });
  return out;
}

// Edges of equal bins over `range` (low and high of each dim), or over the samples x [M, N]. An empty range
// is widened by `margin` to both sides.
std::vector<Tensor> edges_over(const char* op, const Tensor& x, const std::vector<int64_t>& bins, Range range,
                               double margin) {
  const auto dims = bins.size();
  std::vector<double> low(dims, 0.0), high(dims, 1.0);
  WT_CHECK(!range || range->size() == 2 * dims, Error, op, ": for a ", dims,
           "-dimensional histogram range should have ", 2 * dims, " elements, but got ", range->size());
  if (range)
    for (size_t d = 0; d < dims; ++d) low[d] = (*range)[2 * d], high[d] = (*range)[2 * d + 1];
  else
    column_extremes(x, low, high);
  std::vector<Tensor> edges;
  for (size_t d = 0; d < dims; ++d) {
    WT_CHECK(std::isfinite(low[d]) && std::isfinite(high[d]), Error, op, ": dimension ", d, "'s range of [",
             low[d], ", ", high[d], "] is not finite");
    WT_CHECK(low[d] <= high[d], Error, op, ": max must be larger than min, but got min ", low[d], " max ",
             high[d], " for dimension ", d);
    WT_CHECK(bins[d] > 0, Error, op, ": bins must be > 0, but got ", bins[d], " for dimension ", d);
    if (low[d] == high[d]) low[d] -= margin, high[d] += margin;
    edges.push_back(equal_edges(low[d], high[d], bins[d], x.dtype()));
  }
  return edges;
}

// The bin of x, or -1 outside of all. Rounded to T at each step, as PyTorch's bins are.
template <class T>
int64_t bin_of(T value, const T* edges, int64_t count, Search search) {
  using C = kernels::Compute<T>;
  const auto rounded = [](C v) { return static_cast<C>(static_cast<T>(v)); };
  const auto x = static_cast<C>(value), low = static_cast<C>(edges[0]),
             high = static_cast<C>(edges[count - 1]);
  if (!(x >= low && x <= high)) return -1;
  const T *first = edges, *last = edges + count;
  int64_t bin = 0;
  if (search != Search::Edges) {
    const C scaled = rounded(rounded(x - low) * rounded(static_cast<C>(count - 1)));
    bin = static_cast<int64_t>(rounded(scaled / rounded(high - low)));
    first = edges + std::max<int64_t>(0, bin - 1);
    last = edges + std::min(bin + 2, count);
  }
  if (search != Search::Scale)
    bin = std::upper_bound(first, last, x, [](C v, const T& e) { return v < static_cast<C>(e); }) - edges - 1;
  return std::min(bin, count - 2);
}

// Of narrow floats there are few: how often each occurs is counted first, and each is put into its bin once.
template <class T>
void count_narrow(const T* x, int64_t n, const T* edges, int64_t count, Search search, double* to) {
  std::vector<int64_t> times(size_t{1} << 16);
  for (int64_t i = 0; i < n; ++i) ++times[x[i].bits];
  for (size_t bits = 0; bits < times.size(); ++bits) {
    if (times[bits] == 0) continue;
    T value;
    value.bits = static_cast<uint16_t>(bits);
    const int64_t bin = bin_of(value, edges, count, search);
    if (bin >= 0) to[bin] += static_cast<double>(times[bits]);
  }
}

// How many of x [M, N], or the sum of their weights [M], lie in each cell between the edges.
Tensor counted(const Tensor& x, const std::vector<Tensor>& edges, const OptTensor& weight, Search search) {
  Shape sizes;
  for (const Tensor& e : edges) sizes.push_back(e.numel() - 1);
  Tensor sums = zeros(sizes, {DType::Float64, {}});
  const Tensor samples = raw_contiguous(x), weights = weight ? raw_contiguous(*weight) : Tensor();
  kernels::dispatch(kernels::FloatTypes{}, x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto dims = static_cast<int64_t>(edges.size());
    const T* sample = samples.data_as<T>();
    const T* w = weights.defined() ? weights.data_as<T>() : nullptr;
    auto* to = sums.data_as<double>();
    if constexpr (sizeof(T) == 2)
      if (dims == 1 && !w)
        return count_narrow(sample, samples.numel(), edges[0].data_as<T>(), edges[0].numel(), search, to);
    for (int64_t i = 0; i < samples.sizes()[0]; ++i, sample += dims) {
      int64_t cell = 0, bin = 0;
      for (int64_t d = 0; d < dims && bin >= 0; ++d) {
        bin = bin_of(sample[d], edges[d].data_as<T>(), edges[d].numel(), search);
        cell = cell * sizes[d] + bin;
      }
      if (bin >= 0) to[cell] += w ? static_cast<double>(static_cast<kernels::Compute<T>>(w[i])) : 1.0;
    }
  });
  return raw_cast(sums, x.dtype());
}

Tensor as_density(Tensor hist, const std::vector<Tensor>& edges) {
  hist = hist / sum(hist, std::nullopt, false, std::nullopt);
  for (size_t d = 0; d < edges.size(); ++d) {
    const int64_t bins = edges[d].numel() - 1;
    Shape along(edges.size(), 1);
    along[d] = bins;
    hist = hist / reshape(narrow(edges[d], 0, 1, bins) - narrow(edges[d], 0, 0, bins), along);
  }
  return hist;
}

Tensor histc_impl(const Tensor& x, int64_t bins, double low, double high) {
  WT_CHECK(is_floating(x.dtype()), NotImplementedError, "histc: not implemented for ", x.dtype());
  WT_CHECK(bins > 0, Error, "histc: bins must be > 0, got ", bins);
  if (x.is_meta()) return empty(Shape{bins}, options_of(x));
  Tensor out;
  {
    NoGrad off;
    const Tensor samples = reshape(on_host(x), Shape{x.numel(), 1});
    const double ends[] = {low, high};
    const bool given = low != high || x.numel() == 0;
    out = to(counted(samples, edges_over("histc", samples, {bins}, given ? Range(ends) : Range(), 1.0),
                     std::nullopt, Search::Scale),
             x.device(), std::nullopt, false, false);
  }
  return out;
}

void check_samples(const char* op, const Tensor& x, const OptTensor& weight) {
  WT_CHECK(x.dtype() == DType::Float32 || x.dtype() == DType::Float64, NotImplementedError, op,
           ": not implemented for ", x.dtype());
  WT_CHECK(
      !weight || weight->dtype() == x.dtype(), DtypeError, op,
      ": if weight tensor is provided, input tensor and weight tensor should have the same dtype, but got ",
      x.dtype(), " and ", weight->dtype());
  WT_CHECK(!x.device().is_meta(), NotImplementedError, op, ": a meta tensor has no data");
}

void check_edges(const char* op, const Tensor& x, TensorList edges) {
  for (size_t d = 0; d < edges.size(); ++d) {
    WT_CHECK(edges[d].dtype() == x.dtype(), DtypeError, op,
             ": input tensor and bins tensors should have the same dtype, but got input with dtype ",
             x.dtype(), " and bins for dimension ", d, " with dtype ", edges[d].dtype());
    WT_CHECK(edges[d].ndim() == 1, ShapeError, op, ": bins tensor should have one dimension, but got ",
             edges[d].ndim(), " dimensions for dimension ", d);
    WT_CHECK(edges[d].numel() > 1, Error, op, ": bins must be > 0, but got 0 for dimension ", d);
  }
}

// Over samples x [.., N] with weights [..]. Results on x's device.
TensorAndList histogram_of(const char* op, const Tensor& x, const std::vector<Tensor>& edges,
                           const OptTensor& weight, bool density, Search search) {
  TensorAndList out;
  {
    NoGrad off;
    const auto dims = static_cast<int64_t>(edges.size());
    std::vector<Tensor> host;
    for (const Tensor& e : edges) host.push_back(raw_contiguous(on_host(e)));
    OptTensor weights;
    if (weight) {
      const Shape expected(x.sizes().begin(), x.sizes().end() - 1);
      WT_CHECK(weight->sizes() == expected, ShapeError, op,
               ": if weight tensor is provided it should have the same shape as the input tensor excluding "
               "its innermost dimension, but got input with shape ",
               x.sizes(), " and weight with shape ", weight->sizes());
      weights = reshape(on_host(*weight), Shape{weight->numel()});
    }
    const Tensor samples = reshape(on_host(x), Shape{x.numel() / std::max<int64_t>(1, dims), dims});
    Tensor hist = counted(samples, host, weights, search);
    if (density) hist = as_density(hist, host);
    const auto here = [&](const Tensor& t) { return to(t, x.device(), std::nullopt, false, false); };
    out.first = here(hist);
    for (size_t d = 0; d < edges.size(); ++d)
      out.second.push_back(edges[d].is_contiguous() && search == Search::Edges ? raw_clone(edges[d])
                                                                               : here(edges[d]));
  }
  return out;
}

// One number per sample: x [..] as [numel, 1], the weight as [numel].
std::tuple<Tensor, Tensor> one_dim_histogram(const Tensor& x, const std::vector<Tensor>& edges,
                                             const OptTensor& weight, bool density, Search search) {
  OptTensor weights;
  if (weight) weights = reshape(*weight, Shape{-1});
  auto out = histogram_of("histogram", reshape(x, Shape{x.numel(), 1}), edges, weights, density, search);
  return {out.first, out.second[0]};
}
std::tuple<Tensor, Tensor> histogram_edges_impl(const Tensor& x, const Tensor& edges, const OptTensor& weight,
                                                bool density) {
  check_samples("histogram", x, weight);
  check_edges("histogram", x, TensorList{&edges, 1});
  return one_dim_histogram(x, {edges}, weight, density, Search::Edges);
}
std::tuple<Tensor, Tensor> histogram_impl(const Tensor& x, int64_t bins, Range range, const OptTensor& weight,
                                          bool density) {
  check_samples("histogram", x, weight);
  const Tensor samples = detach(reshape(on_host(x), Shape{x.numel(), 1}));
  return one_dim_histogram(x, edges_over("histogram", samples, {bins}, range, 0.5), weight, density,
                           Search::ScaleNear);
}

int64_t sample_dims(const Tensor& x, size_t bins) {
  WT_CHECK(x.ndim() >= 2, ShapeError, "histogramdd: input tensor should have at least 2 dimensions, but got ",
           x.ndim());
  const int64_t n = x.sizes().back();
  WT_CHECK(bins == 0 || static_cast<int64_t>(bins) == n, ShapeError,
           "histogramdd: The size of bins must be equal to the innermost dimension of the input, got ", bins,
           " and ", n);
  return n;
}
TensorAndList histogramdd_edges_impl(const Tensor& x, TensorList bins, Range, const OptTensor& weight,
                                     bool density) {
  check_samples("histogramdd", x, weight);
  sample_dims(x, std::max<size_t>(1, bins.size()));
  check_edges("histogramdd", x, bins);
  return histogram_of("histogramdd", x, {bins.begin(), bins.end()}, weight, density, Search::Edges);
}
// One number of bins for all dims, or one for each.
TensorAndList histogramdd_impl(const Tensor& x, IntList bins, Range range, const OptTensor& weight,
                               bool density) {
  check_samples("histogramdd", x, weight);
  const int64_t n = sample_dims(x, bins.size() == 1 ? 0 : bins.size());
  std::vector<int64_t> each(bins.begin(), bins.end());
  if (each.size() == 1) each.assign(static_cast<size_t>(n), bins[0]);
  const Tensor samples = detach(reshape(on_host(x), Shape{x.numel() / std::max<int64_t>(1, n), n}));
  return histogram_of("histogramdd", x, edges_over("histogramdd", samples, each, range, 0.5), weight, density,
                      Search::ScaleNear);
}

const Arg kWeight{"weight", none, kKeywordOnly}, kDensity{"density", false, kKeywordOnly};
const Op<Tensor(const Tensor&, const OptTensor&, int64_t)> bincount{
    "bincount",
    bincount_impl,
    kFunction | kMethod,
    {"input", {"weights", none}, Arg::integer("minlength", 0)},
    "How often each of 0, 1, .. occurs among integers, or the sum of the weights of those."};
const Op<Tensor(const Tensor&, int64_t, double, double)> histc{
    "histc",
    histc_impl,
    kFunction | kMethod | kOut | kNonDifferentiable,
    {"input", Arg::integer("bins", 100), {"min", 0.0}, {"max", 0.0}},
    "How many elements lie in each of `bins` equal parts of [min, max], or of their own range where both are "
    "equal."};
using Pair = std::tuple<Tensor, Tensor>;
const Op<Pair(const Tensor&, const Tensor&, const OptTensor&, bool)> histogram_edges{
    "histogram",
    histogram_edges_impl,
    kFunction | kMethod | kOut | Aliasing::Argument,
    {"input", "bins", kWeight, kDensity},
    "How many elements lie between each two edges, or the sum of their weights.",
    {"hist", "bin_edges"}};
const Op<Pair(const Tensor&, int64_t, Range, const OptTensor&, bool)> histogram{
    "histogram",
    histogram_impl,
    kFunction | kMethod | kOut,
    {"input", Arg::integer("bins", 100), {"range", none, kKeywordOnly}, kWeight, kDensity},
    "How many elements lie in each of `bins` equal parts of range, or of their own range.",
    {"hist", "bin_edges"}};
const Op<TensorAndList(const Tensor&, TensorList, Range, const OptTensor&, bool)> histogramdd_edges{
    "histogramdd",
    histogramdd_edges_impl,
    kFunction,
    {"input", "bins", {"range", none}, {"weight", none}, {"density", false}},
    "The counts of samples [.., N] in the cells between the edges of each of N dims.",
    {"hist", "bin_edges"}};
const Op<TensorAndList(const Tensor&, IntList, Range, const OptTensor&, bool)> histogramdd{
    "histogramdd",
    histogramdd_impl,
    kFunction,
    {"input", "bins", {"range", none}, {"weight", none}, {"density", false}},
    "The counts of samples [.., N] in cells of equal size.",
    {"hist", "bin_edges"}};

}  // namespace
}  // namespace warptape::ops
