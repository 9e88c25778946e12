// Matrices of vectors, and what is read from a matrix: diag, trace, vander, triangles' indices, rotations.
#include "ops/elementwise/elementwise.h"
#include "ops/index/gather.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/rearrange.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

constexpr OpFacts kBoth = kFunction | kMethod | kComplex;

// ---- diagonals -----------------------------------------------------------------------------------------

Tensor diag_impl(const Tensor& x, int64_t offset) {
  WT_CHECK(x.ndim() == 1 || x.ndim() == 2, ShapeError, "diag: diag(): Supports 1D or 2D tensors. Got ",
           x.ndim(), "D");
  return x.ndim() == 1 ? diag_embed(x, offset, -2, -1) : clone(diagonal(x, offset, 0, 1));
}
Tensor diagflat_impl(const Tensor& x, int64_t offset) {
  return diag_embed(reshape(x, Shape{-1}), offset, -2, -1);
}
Tensor trace_impl(const Tensor& x) {
  WT_CHECK(x.ndim() == 2, ShapeError, "trace: expected a matrix, but got tensor with dim ", x.ndim());
  WT_CHECK(x.dtype() != DType::Bool, NotImplementedError, "trace: not implemented for ", x.dtype());
  return sum(diagonal(x, 0, 0, 1), std::nullopt, false, std::nullopt);
}
const Op<Tensor(const Tensor&, int64_t)> diag{
    "diag",
    diag_impl,
    kBoth | kOut,
    {"input", Arg::integer("diagonal", 0)},
    "The diagonal of a matrix, or the matrix with a vector as its diagonal."},
    diagflat{"diagflat",
             diagflat_impl,
             kBoth | kAlongDims | kLinear,
             {"input", Arg::integer("offset", 0)},
             "The matrix with the flattened input as its diagonal."};
const Op<Tensor(const Tensor&)> trace{
    "trace", trace_impl, kBoth | kFloat32, {"input"}, "The sum of a matrix's diagonal."};

// ---- mirrors and rotations -----------------------------------------------------------------------------

Tensor rot90_impl(const Tensor& x, int64_t k, IntList dims) {
  WT_CHECK(dims.size() == 2, ShapeError,
           "rot90: expected total rotation dims == 2, but got dims = ", dims.size());
  WT_CHECK(x.ndim() >= 2, ShapeError, "rot90: expected total dims >= 2, but got total dims = ", x.ndim());
  const int64_t a = wrap_dim(dims[0], x.ndim(), "rot90"), b = wrap_dim(dims[1], x.ndim(), "rot90");
  WT_CHECK(a != b, ShapeError, "rot90: expected rotation dims to be different, but got dim0 = ", dims[0],
           " and dim1 = ", dims[1]);
  switch ((k % 4 + 4) % 4) {
    case 1:
      return transpose(flip(x, Shape{b}), a, b);
    case 2:
      return flip(x, Shape{a, b});
    case 3:
      return transpose(flip(x, Shape{a}), a, b);
    default:
      return clone(x);
  }
}
Tensor fliplr_impl(const Tensor& x) {
  WT_CHECK(x.ndim() >= 2, ShapeError, "fliplr: Input must be >= 2-d, got ", x);
  return flip(x, Shape{1});
}
Tensor flipud_impl(const Tensor& x) {
  WT_CHECK(x.ndim() >= 1, ShapeError, "flipud: Input must be >= 1-d, got ", x);
  return flip(x, Shape{0});
}
const Op<Tensor(const Tensor&, int64_t, IntList)> rot90{
    "rot90",
    rot90_impl,
    kBoth,
    {"input", Arg::integer("k", 1), {"dims", {0, 1}}},
    "The plane of two dims turned by 90 degrees k times, from the first towards the second."};
const Op<Tensor(const Tensor&)> fliplr{"fliplr", fliplr_impl, kBoth, {"input"}, "Columns in reverse order."},
    flipud{"flipud", flipud_impl, kBoth, {"input"}, "Rows in reverse order."};

// ---- powers --------------------------------------------------------------------------------------------

Tensor vander_impl(const Tensor& x, std::optional<int64_t> given, bool increasing) {
  WT_CHECK(x.ndim() == 1, ShapeError, "vander: x must be a one-dimensional tensor, got ", x);
  const int64_t n = given.value_or(x.numel());
  WT_CHECK(n >= 0, ValueError, "vander: N must be non-negative, got ", n);
  const DType dtype = promote(x.dtype(), DType::Int64);
  const Tensor ones = full(Shape{x.numel(), std::min<int64_t>(n, 1)}, 1, {dtype, x.device()});
  if (n < 2) return ones;
  const Tensor column = unsqueeze(cast(x, dtype), 1);
  const Tensor powers[] = {ones, cumprod(expand(column, Shape{x.numel(), n - 1}), 1, std::nullopt)};
  const Tensor out = cat(powers, 1);
  return increasing ? out : flip(out, Shape{1});
}
const Op<Tensor(const Tensor&, std::optional<int64_t>, bool)> vander{
    "vander",
    vander_impl,
    kFunction | kComplex | kNonDifferentiable,  // of at most one column, in which nothing of x is
    {"x", {"N", none}, {"increasing", false}},
    "The matrix of powers of x, from the highest to the lowest unless `increasing`."};

// ---- positions -----------------------------------------------------------------------------------------

// How many places (r, c) with c < min(r + offset, columns) the rows below `rows` have; a double where int64
// may be too narrow.
double below_diagonal(int64_t rows, int64_t columns, int64_t offset) {
  const auto height = static_cast<double>(rows), width = static_cast<double>(columns),
             shift = static_cast<double>(offset);
  const double first = std::clamp(-shift, 0.0, height), full = std::clamp(width - shift, first, height);
  return (full - first) * (first + full - 1 + 2 * shift) / 2 + (height - full) * width;
}

// int64 [2, count]: (row, column) of the places of an [rows, columns] matrix on one side of a diagonal, which
// belongs to it.
Tensor triangle_indices(const char* op, bool lower, int64_t rows, int64_t columns, int64_t offset,
                        OptDType dtype, std::optional<Device> device) {
  const TensorOptions options{dtype.value_or(DType::Int64), device ? *device : default_device()};
  WT_CHECK(rows >= 0 && columns >= 0, ValueError, op, ": row and col must be non-negative, got ", rows,
           " and ", columns);
  WT_CHECK(options.dtype == DType::Int64 || options.dtype == DType::Int32, NotImplementedError, op,
           ": not implemented for ", options.dtype);
  numel_of(Shape{rows, columns}, op);
  offset = std::clamp(offset, -rows - 1, columns + 1);
  const double places = lower ? below_diagonal(rows, columns, offset + 1)
                              : static_cast<double>(rows) * static_cast<double>(columns) -
                                    below_diagonal(rows, columns, offset);
  WT_CHECK(places < 0x1p53, ShapeError, op, ": ", places, " places are too many");
  const auto count = static_cast<int64_t>(places);
  if (options.device.is_meta()) return empty(Shape{2, count}, options);
  Tensor host = empty(Shape{2, count}, {DType::Int64, {}});
  auto *row = host.data_as<int64_t>(), *column = row + count, *end = column;
  for (int64_t r = lower ? std::max<int64_t>(-offset, 0) : 0; row < end; ++r) {
    const int64_t from = lower ? 0 : std::max<int64_t>(r + offset, 0),
                  last = lower ? std::min(r + offset + 1, columns) : columns;
    for (int64_t c = from; c < last; ++c) *row++ = r, *column++ = c;
  }
  return to(host, options.device, options.dtype, false, false);
}
Tensor tril_indices_impl(int64_t rows, int64_t columns, int64_t offset, OptDType dtype,
                         std::optional<Device> device) {
  return triangle_indices("tril_indices", true, rows, columns, offset, dtype, device);
}
Tensor triu_indices_impl(int64_t rows, int64_t columns, int64_t offset, OptDType dtype,
                         std::optional<Device> device) {
  return triangle_indices("triu_indices", false, rows, columns, offset, dtype, device);
}
const Arg kOffset = Arg::integer("offset", 0), kDType{"dtype", none, kKeywordOnly},
          kDevice{"device", none, kKeywordOnly};
const Op<Tensor(int64_t, int64_t, int64_t, OptDType, std::optional<Device>)> tril_indices{
    "tril_indices",
    tril_indices_impl,
    kFunction,
    {"row", "col", kOffset, kDType, kDevice},
    "Positions of the lower triangle, [2, count]."},
    triu_indices{"triu_indices",
                 triu_indices_impl,
                 kFunction,
                 {"row", "col", kOffset, kDType, kDevice},
                 "Positions of the upper triangle, [2, count]."};

}  // namespace
}  // namespace warptape::ops
