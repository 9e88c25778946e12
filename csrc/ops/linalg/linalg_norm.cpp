// Norms of matrices and condition numbers.
#include <cmath>

#include "op/forms.h"
#include "ops/index/masked.h"
#include "ops/linalg/linalg.h"
#include "ops/view/copy.h"

namespace warptape::ops {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
using OptScalar = std::optional<Scalar>;
using Name = std::string_view;

// ---- matrix_norm ---------------------------------------------------------------------------------------

struct Dims {
  int64_t row, column;
};
Dims check_norm(const char* op, const Tensor& A, IntList dims) {
  WT_CHECK(A.ndim() >= 2, ShapeError, op, ": The input tensor A must have at least 2 dimensions, got shape ",
           A.sizes());
  WT_CHECK(is_floating(A.dtype()) || is_complex(A.dtype()), DtypeError, op,
           ": Expected a floating point or complex tensor as input. Got ", A.dtype());
  WT_CHECK(dims.size() == 2, ShapeError, op, ": dim must be a 2-tuple. Got ", AsShape{dims});
  const Dims d{wrap_dim(dims[0], A.ndim(), op), wrap_dim(dims[1], A.ndim(), op)};
  WT_CHECK(d.row != d.column, ShapeError, op, ": dims must be different. Got ", AsShape{dims});
  return d;
}

Tensor singular_values(const Tensor& A, Dims d) {
  Shape order;
  for (int64_t i = 0; i < A.ndim(); ++i)
    if (i != d.row && i != d.column) order.push_back(i);
  order.push_back(d.row), order.push_back(d.column);
  return svdvals(permute(A, order), std::nullopt);
}

// One number for each matrix, as the two dims of A of size 1 if they are kept.
Tensor kept_dims(const Tensor& x, const Tensor& A, Dims d, bool keepdim) {
  if (!keepdim) return x;
  Shape sizes = A.sizes();
  sizes[d.row] = sizes[d.column] = 1;
  return reshape(x, sizes);
}

Tensor with_dtype(const Tensor& A, OptDType dtype) { return dtype ? cast(A, *dtype) : A; }
// Of values that are none the largest counts as 0.
Tensor largest(const Tensor& x, int64_t dim, bool keepdim) {
  const int64_t d = wrap_dim(dim, x.ndim(), "linalg.matrix_norm");
  if (x.sizes()[d]) return amax(x, IntList{&d, 1}, keepdim);
  return sum(x, IntList{&d, 1}, keepdim, std::nullopt);
}

Tensor matrix_norm_impl(const Tensor& given, const Scalar& ord, IntList dims, bool keepdim, OptDType dtype) {
  const Dims d = check_norm("linalg.matrix_norm", given, dims);
  const double p = ord.to_double(), size = std::abs(p);
  WT_CHECK(size == 1 || size == 2 || size == kInf, Error, "linalg.matrix_norm: Order ", p, " not supported.");
  const Tensor A = with_dtype(given, dtype);
  if (size == 2) {  // of equal values amax and amin share the gradient
    const Tensor values = singular_values(A, d);
    const int64_t last = -1;
    return kept_dims(p > 0 ? largest(values, -1, false) : amin(values, IntList{&last, 1}, false), A, d,
                     keepdim);
  }
  const int64_t summed = size == 1 ? d.row : d.column, other = size == 1 ? d.column : d.row;
  const Tensor sums = sum(abs(A), IntList{&summed, 1}, true, std::nullopt);
  const Tensor out = p > 0 ? largest(sums, other, true) : amin(sums, IntList{&other, 1}, true);
  return keepdim ? out : squeeze_dim(squeeze_dim(out, std::max(d.row, d.column)), std::min(d.row, d.column));
}

Tensor matrix_norm_name_impl(const Tensor& given, Name ord, IntList dims, bool keepdim, OptDType dtype) {
  const Dims d = check_norm("linalg.matrix_norm", given, dims);
  WT_CHECK(ord == "fro" || ord == "nuc", Error, "linalg.matrix_norm: Order ", ord, " not supported.");
  const Tensor A = with_dtype(given, dtype);
  if (ord == "fro") return vector_norm(A, 2.0, dims, keepdim, std::nullopt);
  const int64_t last = -1;
  return kept_dims(sum(singular_values(A, d), IntList{&last, 1}, false, std::nullopt), A, d, keepdim);
}

// ---- norm ----------------------------------------------------------------------------------------------

constexpr int64_t kLastTwo[] = {-2, -1};

// Whether an order means that of a matrix.
bool of_matrices(const Tensor& A, const OptDims& dims) {
  WT_CHECK(!dims || dims->size() == 1 || dims->size() == 2, ShapeError,
           "linalg.norm: If dim is specified, it must be of length 1 or 2. Got ", AsShape{*dims});
  WT_CHECK(dims || A.ndim() == 1 || A.ndim() == 2, ShapeError,
           "linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got ", A.ndim(),
           "D.");
  return dims ? dims->size() == 2 : A.ndim() == 2;
}
Tensor norm_impl(const Tensor& A, const OptScalar& ord, OptDims dims, bool keepdim, OptDType dtype) {
  if (ord && of_matrices(A, dims)) return matrix_norm_impl(A, *ord, dims.value_or(kLastTwo), keepdim, dtype);
  return vector_norm(A, ord ? ord->to_double() : 2.0, dims, keepdim, dtype);
}
Tensor norm_name_impl(const Tensor& A, Name ord, OptDims dims, bool keepdim, OptDType dtype) {
  of_matrices(A, dims);
  return matrix_norm_name_impl(A, ord, dims.value_or(kLastTwo), keepdim, dtype);
}

Tensor dist_impl(const Tensor& a, const Tensor& b, const Scalar& p) {
  return vector_norm(a - b, p.to_double(), std::nullopt, false, std::nullopt);
}

// ---- cond ----------------------------------------------------------------------------------------------

void check_cond(const Tensor& A) {
  WT_CHECK(A.ndim() >= 2, ShapeError,
           "linalg.cond: The input tensor must have at least 2 dimensions, got shape ", A.sizes());
}
// The norm times the norm of the inverse: infinite where there is none.
template <class F>
Tensor cond_by(const Tensor& A, F&& norm) {
  check_square("linalg.cond", A);
  auto [inverse, info] = inv_ex(A, false);
  const Tensor found = norm(A) * norm(inverse);
  return masked_fill(found, logical_or(ne_ts(info, 0), isnan(found)), kInf);
}
Tensor cond_impl(const Tensor& A, const OptScalar& p) {
  check_cond(A);
  if (A.numel() == 0) return zeros(batch_of(A), {real_of(A.dtype()), A.device()});
  const double order = p ? p->to_double() : 2.0, size = std::abs(order);
  WT_CHECK(size == 1 || size == 2 || size == kInf, Error, "linalg.cond got an invalid norm type: ", order);
  if (size == 2) {
    const Tensor values = svdvals(A, std::nullopt), first = select(values, -1, 0),
                 last = select(values, -1, -1);
    return order > 0 ? first / last : last / first;
  }
  return cond_by(A,
                 [&](const Tensor& x) { return matrix_norm_impl(x, order, kLastTwo, false, std::nullopt); });
}
Tensor cond_name_impl(const Tensor& A, Name p) {
  check_cond(A);
  WT_CHECK(p == "fro" || p == "nuc", Error, "linalg.cond got an invalid norm type: ", p);
  if (A.numel() == 0) return zeros(batch_of(A), {real_of(A.dtype()), A.device()});
  if (p == "nuc") {
    const int64_t last = -1;
    check_square("linalg.cond", A);
    const Tensor values = svdvals(A, std::nullopt);
    return sum(values, IntList{&last, 1}, false, std::nullopt) *
           sum(reciprocal(values), IntList{&last, 1}, false, std::nullopt);
  }
  return cond_by(A,
                 [&](const Tensor& x) { return matrix_norm_name_impl(x, p, kLastTwo, false, std::nullopt); });
}

constexpr OpFacts kNorm = kLinalg | kOut | kComplex | kFloat32Cuda;
const Arg kKeep{"keepdim", false}, kDtype{"dtype", none, kKeywordOnly}, kMatrix{"dim", {-2, -1}};

const Op<Tensor(const Tensor&, const Scalar&, IntList, bool, OptDType)> matrix_norm_op{
    "matrix_norm",
    matrix_norm_impl,
    kNorm,
    {"A", "ord", kMatrix, kKeep, kDtype},
    "The norms of the matrices that lie along two dims: of order 2, -2 (the largest and the smallest "
    "singular "
    "value), 1, -1, inf or -inf."};
}  // namespace
decltype(matrix_norm_name) matrix_norm_name{
    "matrix_norm",
    matrix_norm_name_impl,
    kNorm,
    {"A", {"ord", "fro"}, kMatrix, kKeep, kDtype},
    "matrix_norm by name: \"fro\", or \"nuc\", the sum of the singular values."};
namespace {
const Op<Tensor(const Tensor&, const OptScalar&, OptDims, bool, OptDType)> norm_op{
    "norm",
    norm_impl,
    kNorm,
    {"A", {"ord", none}, {"dim", none}, kKeep, kDtype},
    "The norm of vectors along one dim, or of matrices along two; without an order the 2-norm of all "
    "elements."};
const auto norm_name_op = overload_with(norm_op, norm_name_impl, {"A", "ord", {"dim", none}, kKeep, kDtype},
                                        {}, "norm by name: \"fro\" or \"nuc\".");
const Op<Tensor(const Tensor&, const Tensor&, const Scalar&)> dist{
    "dist",
    dist_impl,
    kFunction | kMethod | kComplex | kFloat32Cuda,
    {"input", "other", Arg::integer("p", 2)},
    "The p-norm of the difference of all elements."};
const Op<Tensor(const Tensor&, const OptScalar&)> cond{
    "cond",
    cond_impl,
    kLinalg | kOut | kComplex | kFloat32Cpu | kLeading,
    {"A", {"p", none}},
    "The condition numbers: the ratio of the largest and the smallest singular value, of which p=-2 is the "
    "inverse, or the norm times that of the inverse; inf for singular matrices."};
const auto cond_name =
    overload_with(cond, cond_name_impl, {"A", "p"}, {}, "cond by the norms \"fro\" or \"nuc\".");

}  // namespace
}  // namespace warptape::ops
