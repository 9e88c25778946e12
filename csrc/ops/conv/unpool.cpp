// Maxima put back in place, and maxima of windows at pseudo-random distances. Legend: N batch, C channels.
#include <array>

#include "op/constant.h"
#include "ops/elementwise/elementwise.h"
#include "ops/factory/factory.h"
#include "ops/index/gather.h"
#include "ops/random/random.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

// One size for each spatial dim.
Shape per_dim(const char* op, const char* what, IntList given, int64_t spatial) {
  const auto count = static_cast<int64_t>(given.size());
  WT_CHECK(count == 1 || count == spatial, ShapeError, op, ": expected ", what, " of 1 or ", spatial,
           " ints, got ", AsShape{given});
  Shape out;
  for (int64_t d = 0; d < spatial; ++d) out.push_back(given[count == 1 ? 0 : static_cast<size_t>(d)]);
  return out;
}

// ---- max_unpool ----------------------------------------------------------------------------------------

// The spatial sizes of what was pooled: as given, or the least.
Shape unpooled_sizes(const char* op, IntList pooled, const std::optional<IntList>& given, const Shape& kernel,
                     const Shape& stride, const Shape& padding) {
  const size_t n = kernel.size();
  Shape least;
  for (size_t d = 0; d < n; ++d)
    least.push_back((pooled[pooled.size() - n + d] - 1) * stride[d] + kernel[d] - 2 * padding[d]);
  if (!given) return least;
  WT_CHECK(given->size() == n || given->size() == n + 2, ValueError, op,
           ": output_size should be a sequence containing ", n, " or ", n + 2,
           " elements, but it has a length of '", given->size(), "'");
  const IntList wanted = given->last(n);
  for (size_t d = 0; d < n; ++d)
    WT_CHECK(wanted[d] > least[d] - stride[d] && wanted[d] < least[d] + stride[d], ValueError, op,
             ": invalid output_size \"", AsShape{wanted}, "\" (dim ", d, " must be between ",
             least[d] - stride[d], " and ", least[d] + stride[d], ")");
  return Shape(wanted.begin(), wanted.end());
}

template <int N>
Tensor max_unpool_impl(const Tensor& x, const Tensor& indices, IntList kernel_size,
                       std::optional<IntList> stride, IntList padding, std::optional<IntList> output_size) {
  constexpr const char* op = N == 1 ? "max_unpool1d" : N == 2 ? "max_unpool2d" : "max_unpool3d";
  WT_CHECK(indices.dtype() == DType::Int64, DtypeError, op, ": indices should be type int64, got ",
           indices.dtype());
  WT_CHECK(x.ndim() == N + 1 || x.ndim() == N + 2, ShapeError, op, ": expected ", N + 1, "D or ", N + 2,
           "D input, got ", x.sizes());
  WT_CHECK(indices.sizes() == x.sizes(), ShapeError, op,
           ": Expected shape of indices to be same as that of the input tensor (", x.sizes(),
           ") but got indices tensor with shape: ", indices.sizes());
  const Shape kernel = per_dim(op, "kernel_size", kernel_size, N);
  const Shape step = stride && !stride->empty() ? per_dim(op, "stride", *stride, N) : kernel;
  Shape spatial =
      unpooled_sizes(op, x.sizes(), output_size, kernel, step, per_dim(op, "padding", padding, N));
  Shape planes(x.sizes().begin(), x.sizes().end() - N), sizes = planes, flat = planes;
  sizes.append(spatial.begin(), spatial.end());
  flat.push_back(numel_of(spatial, op));
  planes.push_back(-1);
  if (x.numel() == 0) return zeros(sizes, options_of(x));
  Tensor out =
      scatter(zeros(flat, options_of(x)), -1, reshape(indices, planes), reshape(x, planes), std::nullopt);
  return reshape(out, sizes);
}

// ---- fractional max pooling ----------------------------------------------------------------------------

// First positions [N, C, count] of windows, from a number of [0, 1) each in `sample` [N, C].
Tensor window_starts(const Tensor& sample, int64_t size, int64_t pool, int64_t count) {
  Shape one = sample.sizes();
  one.push_back(1);
  Tensor last = full(one, size - pool, {DType::Int64, sample.device()});
  if (count == 1) return last;
  const double alpha = static_cast<double>(size - pool) / static_cast<double>(count - 1);
  Tensor first = unsqueeze(sample, -1);
  Tensor steps = cast(index_range(count - 1, sample.device()), sample.dtype()) + first;
  Tensor starts = cast(steps * alpha, DType::Int64) - cast(first * alpha, DType::Int64);
  return cat(std::vector<Tensor>{starts, last}, -1);
}

// The flat places [N, C, *sizes, elements of a window].
template <int N>
Tensor window_places(const Tensor& samples, IntList spatial, const Shape& kernel, const Shape& sizes) {
  Tensor place;
  for (int64_t d = 0; d < N; ++d) {
    const int64_t which = N == 2 ? 1 - d : d;  // PyTorch's order: the first number of a plane is the width's
    Tensor at = unsqueeze(window_starts(select(samples, 2, which), spatial[d], kernel[d], sizes[d]), -1) +
                index_range(kernel[d], samples.device());
    Shape shape(2 + 2 * N, 1);
    shape[0] = at.sizes()[0], shape[1] = at.sizes()[1], shape[2 + d] = sizes[d], shape[2 + N + d] = kernel[d];
    at = reshape(at, shape);
    place = d == 0 ? at : place * spatial[d] + at;
  }
  return flatten(place, N + 2, -1);
}

template <int N>
Tensor fractional_places(const Tensor& input, IntList kernel_size, std::optional<IntList> output_size,
                         std::optional<std::span<const double>> output_ratio,
                         const OptTensor& random_samples) {
  constexpr const char* op = N == 2 ? "fractional_max_pool2d" : "fractional_max_pool3d";
  WT_CHECK(output_size || output_ratio, ValueError, op,
           " requires specifying either an output_size or an output_ratio");
  WT_CHECK(input.ndim() == N + 1 || input.ndim() == N + 2, ShapeError, op, ": expected ", N + 1, "D or ",
           N + 2, "D input, got ", input.sizes());
  NoGrad no_grad_of_places;
  Tensor x = input.ndim() == N + 2 ? detach(input) : unsqueeze(detach(input), 0);
  const IntList spatial = IntList(x.sizes()).last(N);
  const Shape kernel = per_dim(op, "kernel_size", kernel_size, N);
  Shape sizes;
  if (output_size) {
    sizes = per_dim(op, "output_size", *output_size, N);
  } else {
    WT_CHECK(output_ratio->size() == 1 || output_ratio->size() == N, ValueError, op,
             ": expected output_ratio of 1 or ", N, " numbers, got ", output_ratio->size());
    for (size_t d = 0; d < N; ++d)
      sizes.push_back(static_cast<int64_t>(static_cast<double>(spatial[d]) *
                                           (*output_ratio)[output_ratio->size() == 1 ? 0 : d]));
  }
  for (size_t d = 0; d < N; ++d)
    WT_CHECK(sizes[d] > 0 && sizes[d] + kernel[d] - 1 <= spatial[d], ShapeError, op, ": pool size ",
             kernel[d], " and output size ", sizes[d], " too large for size ", spatial[d]);
  const Shape drawn{x.sizes()[0], x.sizes()[1], N};
  Tensor samples = random_samples ? *random_samples : draw_uniform(drawn, options_of(x), 0, 1);
  WT_CHECK(samples.ndim() == 3 && samples.sizes()[0] >= drawn[0] && samples.sizes()[1] == drawn[1] &&
               samples.sizes()[2] == drawn[2],
           ShapeError, op, ": expected _random_samples of shape ", drawn, " at least, got ", samples.sizes());
  samples = narrow(samples, 0, 0, drawn[0]);
  Tensor windows = window_places<N>(samples, spatial, kernel, sizes);
  Tensor values = reshape(gather(flatten(x, 2, -1), 2, flatten(windows, 2, -1), false), windows.sizes());
  Tensor places = squeeze_dim(gather(windows, -1, argmax(values, -1, true), false), -1);
  if (input.ndim() == N + 1) places = select(places, 0, 0);
  return places;
}
template <int N>
std::vector<Tensor> fractional_both(const Tensor& x, IntList kernel_size, std::optional<IntList> output_size,
                                    std::optional<std::span<const double>> output_ratio, bool,
                                    const OptTensor& random_samples) {
  check_constant("fractional_max_pool", "_random_samples", random_samples);
  Tensor places = fractional_places<N>(x, kernel_size, output_size, output_ratio, random_samples);
  const int64_t planes = x.ndim() - N;
  Tensor values = gather(flatten(x, planes, -1), -1, flatten(places, planes, -1), false);
  return {reshape(values, places.sizes()), places};
}
template <int N>
OneOrMany fractional_impl(const Tensor& x, IntList kernel_size, std::optional<IntList> output_size,
                          std::optional<std::span<const double>> output_ratio, bool return_indices,
                          const OptTensor& random_samples) {
  auto both = fractional_both<N>(x, kernel_size, output_size, output_ratio, return_indices, random_samples);
  if (return_indices) return both;
  return both[0];
}

// ---- the ops -------------------------------------------------------------------------------------------

using OptInts = std::optional<IntList>;
using UnpoolOp = Op<Tensor(const Tensor&, const Tensor&, IntList, OptInts, IntList, OptInts)>;
#define WT_UNPOOL(N)                                                                                  \
  const UnpoolOp max_unpool##N##d{                                                                    \
      "max_unpool" #N "d",                                                                            \
      max_unpool_impl<N>,                                                                             \
      kNN | kFloat32Cpu,                                                                              \
      {"input", "indices", "kernel_size", {"stride", none}, {"padding", {0}}, {"output_size", none}}, \
      "Zeros, with each element of input at its place in indices, as max_pool" #N "d returned them."}
WT_UNPOOL(1);
WT_UNPOOL(2);
WT_UNPOOL(3);

using Ratios = std::optional<std::span<const double>>;
template <class R>
using FractionalOp = Op<R(const Tensor&, IntList, OptInts, Ratios, bool, const OptTensor&)>;
#define WT_FRACTIONAL(N)                                                                                \
  const FractionalOp<OneOrMany> fractional_max_pool##N##d{                                              \
      "fractional_max_pool" #N "d",                                                                     \
      fractional_impl<N>,                                                                               \
      kNN | kRandom,                                                                                    \
      {"input",                                                                                         \
       "kernel_size",                                                                                   \
       {"output_size", none},                                                                           \
       {"output_ratio", none},                                                                          \
       {"return_indices", false},                                                                       \
       {"_random_samples", none}},                                                                      \
      "Maxima of windows at pseudo-random distances (\"Fractional Max-Pooling\", section 2), and with " \
      "return_indices their flat places."};                                                             \
  const FractionalOp<std::vector<Tensor>> fractional_max_pool##N##d_with_indices{                       \
      "fractional_max_pool" #N "d_with_indices",                                                        \
      fractional_both<N>,                                                                               \
      kNN | kRandom,                                                                                    \
      {"input",                                                                                         \
       "kernel_size",                                                                                   \
       {"output_size", none},                                                                           \
       {"output_ratio", none},                                                                          \
       {"return_indices", false},                                                                       \
       {"_random_samples", none}},                                                                      \
      "fractional_max_pool" #N "d and the flat places."}
WT_FRACTIONAL(2);
WT_FRACTIONAL(3);

}  // namespace
}  // namespace warptape::ops
