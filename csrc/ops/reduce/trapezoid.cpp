// Integrals of samples by the trapezoidal rule, and their derivatives by finite differences.
#include "op/forms.h"
#include "ops/elementwise/elementwise.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

Tensor sum_over(const Tensor& x, int64_t dim) {
  return sum(x, OptDims(IntList{&dim, 1}), false, std::nullopt);
}
// The elements of a dim from `begin` on, less `less` at the end.
Tensor part(const Tensor& x, int64_t dim, int64_t begin, int64_t less) {
  const int64_t n = x.sizes()[dim];
  begin = std::min(begin, n);
  return narrow(x, dim, begin, std::max<int64_t>(0, n - begin - less));
}
Tensor one(const Tensor& x, int64_t dim, int64_t place) {
  return narrow(x, dim, place < 0 ? x.sizes()[dim] + place : place, 1);
}

// ---- integrals -----------------------------------------------------------------------------------------

int64_t checked_dim(const char* op, const Tensor& y, int64_t dim) {
  WT_CHECK(y.dtype() != DType::Bool, DtypeError, op,
           ": received a bool input for `x` or `y`, but bool is not supported");
  return wrap_dim(dim, y.ndim(), op);
}

Tensor zero_integral(const Tensor& y, int64_t dim) {
  Shape sizes;
  for (int64_t d = 0; d < y.ndim(); ++d)
    if (d != dim) sizes.push_back(y.sizes()[d]);
  return zeros(sizes, options_of(y));
}

// The widths between the places x, which broadcasts with y.
Tensor widths(const char* op, const Tensor& y, const Tensor& x, int64_t dim) {
  WT_CHECK(x.dtype() != DType::Bool, DtypeError, op,
           ": received a bool input for `x` or `y`, but bool is not supported");
  Shape sizes = x.sizes();
  if (x.ndim() == 1) {
    WT_CHECK(x.numel() == y.sizes()[dim], ShapeError, op,
             ": There must be one `x` value for each sample point, got ", x.numel(), " for ", y.sizes()[dim]);
    sizes = Shape(y.sizes().size(), 1);
    sizes[dim] = x.numel();
  } else if (x.ndim() < y.ndim()) {
    sizes = Shape(static_cast<size_t>(y.ndim() - x.ndim()), 1);
    for (const int64_t n : x.sizes()) sizes.push_back(n);
  }
  const Tensor places = reshape(x, sizes);
  return part(places, dim, 1, 0) - part(places, dim, 0, 1);
}
// Twice the mean heights.
Tensor heights(const Tensor& y, int64_t dim) { return part(y, dim, 0, 1) + part(y, dim, 1, 0); }

Tensor trapezoid_places(const Tensor& y, const Tensor& x, int64_t dim) {
  dim = checked_dim("trapezoid", y, dim);
  if (y.ndim() == 0 || y.sizes()[dim] == 0) return zero_integral(y, dim);
  return sum_over(heights(y, dim) * widths("trapezoid", y, x, dim), dim) / 2.0;
}
Tensor trapezoid_step(const Tensor& y, const Scalar& dx, int64_t dim) {
  dim = checked_dim("trapezoid", y, dim);
  if (y.ndim() == 0 || y.sizes()[dim] == 0) return zero_integral(y, dim);
  const Tensor ends = select(y, dim, 0) + select(y, dim, -1);
  return (sum_over(y, dim) - ends * 0.5) * dx;
}
Tensor cumulative_places(const Tensor& y, const Tensor& x, int64_t dim) {
  dim = checked_dim("cumulative_trapezoid", y, dim);
  const Tensor areas = heights(y, dim) * widths("cumulative_trapezoid", y, x, dim);
  return cumsum(areas, dim, std::nullopt) / 2.0;
}
Tensor cumulative_step(const Tensor& y, const Scalar& dx, int64_t dim) {
  dim = checked_dim("cumulative_trapezoid", y, dim);
  const Scalar half = dx.is_complex()
                          ? Scalar(Complex<double>(dx.to_complex().re / 2, dx.to_complex().im / 2))
                          : Scalar(dx.to_double() / 2);
  return cumsum(heights(y, dim) * half, dim, std::nullopt);
}

// ---- derivatives ---------------------------------------------------------------------------------------

using Dims = std::optional<IntList>;

// `spacings` is how many were given, nothing where one serves all dims.
Shape derivative_dims(const Tensor& y, Dims given, std::optional<size_t> spacings, int64_t edge_order) {
  WT_CHECK(y.dtype() != DType::UInt8, Error, "gradient: torch.gradient does not support uint8 input.");
  WT_CHECK(edge_order == 1 || edge_order == 2, Error,
           "gradient: torch.gradient only supports edge_order=1 and edge_order=2, got ", edge_order);
  Shape dims;
  if (given)
    dims = wrap_dims(*given, y.ndim(), "gradient");
  else
    for (int64_t d = 0; d < y.ndim(); ++d) dims.push_back(d);
  WT_CHECK(
      !spacings || *spacings == dims.size(), Error,
      "gradient: torch.gradient expected spacing to be unspecified, a scalar, or a list of length equal to "
      "'self.dim() = ",
      dims.size(), "', but got a list of length ", spacings.value_or(0));
  for (const int64_t d : dims)
    WT_CHECK(y.sizes()[d] >= edge_order + 1, Error,
             "gradient: torch.gradient expected each dimension size to be at least edge_order+1, got ",
             y.sizes()[d], " in dimension ", d);
  return dims;
}

Tensor evenly_spaced(const Tensor& y, int64_t dim, double dx, int64_t edge_order) {
  const auto at = [&](int64_t place) { return one(y, dim, place); };
  const Tensor centre = (part(y, dim, 2, 0) - part(y, dim, 0, 2)) / (2 * dx);
  if (edge_order == 1)
    return cat(std::vector<Tensor>{(at(1) - at(0)) / dx, centre, (at(-1) - at(-2)) / dx}, dim);
  const Tensor first = (at(0) * -1.5 + at(1) * 2 - at(2) * 0.5) / dx,
               last = (at(-3) * 0.5 - at(-2) * 2 + at(-1) * 1.5) / dx;
  return cat(std::vector<Tensor>{first, centre, last}, dim);
}

Tensor at_places(const Tensor& y, int64_t dim, const Tensor& x, int64_t edge_order) {
  WT_CHECK(
      x.ndim() == 1 && x.numel() == y.sizes()[dim], ShapeError,
      "gradient: torch.gradient expected each tensor to have one dimension of the size of its dimension, "
      "but got ",
      x.sizes(), " for size ", y.sizes()[dim]);
  const Tensor h = part(x, 0, 1, 0) - part(x, 0, 0, 1), a = part(h, 0, 0, 1), b = part(h, 0, 1, 0);
  const auto at = [&](int64_t place) { return one(y, dim, place); };
  const auto step = [&](int64_t place) { return one(h, 0, place); };
  Shape along(y.sizes().size(), 1);
  along[dim] = a.numel();
  const Tensor below = reshape(-b / (a * (a + b)), along), here = reshape((b - a) / (a * b), along),
               above = reshape(a / (b * (a + b)), along);
  const Tensor centre = below * part(y, dim, 0, 2) + here * part(y, dim, 1, 1) + above * part(y, dim, 2, 0);
  Tensor first = (at(1) - at(0)) / reshape(step(0), Shape{}),
         last = (at(-1) - at(-2)) / reshape(step(-1), Shape{});
  if (edge_order == 2) {
    const auto number = [](const Tensor& t) { return reshape(t, Shape{}); };
    const Tensor p = number(step(0)), q = number(step(1)), r = number(step(-2)), s = number(step(-1));
    first = -(p * 2 + q) / (p * (p + q)) * at(0) + (p + q) / (p * q) * at(1) - p / (q * (p + q)) * at(2);
    last = s / (r * (s + r)) * at(-3) - (s + r) / (s * r) * at(-2) + (s * 2 + r) / (s * (s + r)) * at(-1);
  }
  return cat(std::vector<Tensor>{first, centre, last}, dim);
}

std::vector<Tensor> gradient_places(const Tensor& y, TensorList spacing, Dims given, int64_t edge_order) {
  const Shape dims = derivative_dims(y, given, spacing.size(), edge_order);
  std::vector<Tensor> out;
  for (size_t i = 0; i < dims.size(); ++i) out.push_back(at_places(y, dims[i], spacing[i], edge_order));
  return out;
}
std::vector<Tensor> gradient_steps(const Tensor& y, std::span<const double> spacing, Dims given,
                                   int64_t edge_order) {
  const Shape dims = derivative_dims(y, given, spacing.size(), edge_order);
  std::vector<Tensor> out;
  for (size_t i = 0; i < dims.size(); ++i) out.push_back(evenly_spaced(y, dims[i], spacing[i], edge_order));
  return out;
}
std::vector<Tensor> gradient_step(const Tensor& y, std::optional<double> spacing, Dims given,
                                  int64_t edge_order) {
  std::vector<Tensor> out;
  for (const int64_t d : derivative_dims(y, given, std::nullopt, edge_order))
    out.push_back(evenly_spaced(y, d, spacing.value_or(1.0), edge_order));
  return out;
}

const Arg kDim = Arg::integer("dim", -1, kKeywordOnly), kDx = Arg::integer("dx", 1, kKeywordOnly);
const Op<Tensor(const Tensor&, const Tensor&, int64_t)> trapezoid{
    "trapezoid",
    trapezoid_places,
    kFunction | kComplex,
    {"y", "x", kDim},
    "The integral of y along dim over the places x, by the trapezoidal rule."},
    cumulative_trapezoid{"cumulative_trapezoid",
                         cumulative_places,
                         kFunction | kComplex,
                         {"y", "x", kDim},
                         "The integrals of y over the places x up to each place after the first."};
const Op<Tensor(const Tensor&, const Scalar&, int64_t)>
    trapezoid_dx = overload_with(trapezoid, trapezoid_step, {"y", kDx, kDim}, {},
                                 "The integral of y along dim in steps of dx, by the trapezoidal rule."),
    cumulative_trapezoid_dx =
        overload_with(cumulative_trapezoid, cumulative_step, {"y", kDx, kDim}, {},
                      "The integrals of y in steps of dx up to each place after the first.");
const Alias trapz{"trapz", "trapezoid"};

const Arg kSpacing{"spacing", kKeywordOnly}, kDims{"dim", none, kKeywordOnly},
    kEdgeOrder = Arg::integer("edge_order", 1, kKeywordOnly);
const char kGradientDoc[] =
    "The derivative along each dim: of second order inside, of edge_order at the ends; spacing is a step, "
    "one "
    "for each dim, or coordinates.";
const Op<std::vector<Tensor>(const Tensor&, std::optional<double>, Dims, int64_t)> gradient{
    "gradient",
    gradient_step,
    kFunction | kComplex,
    {"input", {"spacing", none, kKeywordOnly}, kDims, kEdgeOrder},
    kGradientDoc};
const auto gradient_coordinates =
    overload_with(gradient, gradient_places, {"input", kSpacing, kDims, kEdgeOrder});
const Op<std::vector<Tensor>(const Tensor&, std::span<const double>, Dims, int64_t)> gradient_list =
    overload_of(gradient_coordinates, gradient_steps);

}  // namespace
}  // namespace warptape::ops
