// Matrices of vectors, and what is read from a matrix: diag, trace, vander, triangles' indices, rotations.
#include "ops/arrange.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/gather.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace warptape::ops {
namespace {

constexpr uint32_t kBoth = kFunction | kMethod | kComplex;

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
             kBoth,
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
    kBoth | kMovesOnly,
    {"input", Arg::integer("k", 1), {"dims", {0, 1}}},
    "The plane of two dims turned by 90 degrees k times, from the first towards the second."};
const Op<Tensor(const Tensor&)> fliplr{
    "fliplr", fliplr_impl, kBoth | kMovesOnly, {"input"}, "Columns in reverse order."},
    flipud{"flipud", flipud_impl, kBoth | kMovesOnly, {"input"}, "Rows in reverse order."};

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
    kFunction | kComplex,
    {"x", {"N", none}, {"increasing", false}},
    "The matrix of powers of x, from the highest to the lowest unless `increasing`."};

// ---- positions -----------------------------------------------------------------------------------------

// int64 [2, count]: (row, column) of the places of an [rows, columns] matrix whose column is in the range
// that `range(row)` gives.
template <class F>
Tensor positions(const char* op, int64_t rows, int64_t columns, OptDType dtype, std::optional<Device> device,
                 F&& range) {
  const TensorOptions options{dtype.value_or(DType::Int64), device ? *device : default_device()};
  WT_CHECK(rows >= 0 && columns >= 0, ValueError, op, ": row and col must be non-negative, got ", rows,
           " and ", columns);
  WT_CHECK(options.dtype == DType::Int64 || options.dtype == DType::Int32, NotImplementedError, op,
           ": not implemented for ", options.dtype);
  numel_of(Shape{rows, columns}, op);
  int64_t count = 0;
  for (int64_t r = 0; r < rows; ++r) {
    auto [begin, end] = range(r);
    count += std::max<int64_t>(end - begin, 0);
  }
  if (options.device.is_meta()) return empty(Shape{2, count}, options);
  Tensor host = empty(Shape{2, count}, {DType::Int64, {}});
  auto *row = host.data_as<int64_t>(), *column = row + count;
  for (int64_t r = 0; r < rows; ++r) {
    auto [begin, end] = range(r);
    for (int64_t c = begin; c < end; ++c) *row++ = r, *column++ = c;
  }
  return to(host, options.device, options.dtype, false, false);
}
Tensor tril_indices_impl(int64_t rows, int64_t columns, int64_t offset, OptDType dtype,
                         std::optional<Device> device) {
  return positions("tril_indices", rows, columns, dtype, device, [=](int64_t r) {
    return std::pair<int64_t, int64_t>{0, std::clamp<int64_t>(r + offset + 1, 0, columns)};
  });
}
Tensor triu_indices_impl(int64_t rows, int64_t columns, int64_t offset, OptDType dtype,
                         std::optional<Device> device) {
  return positions("triu_indices", rows, columns, dtype, device, [=](int64_t r) {
    return std::pair<int64_t, int64_t>{std::clamp<int64_t>(r + offset, 0, columns), columns};
  });
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
