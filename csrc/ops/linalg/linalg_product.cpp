// Powers, exponentials and products of matrices and vectors.
#include <cmath>

#include "ops/index/gather.h"
#include "ops/index/sort.h"
#include "ops/linalg/linalg.h"
#include "ops/view/copy.h"

namespace warptape::ops {
namespace {

constexpr OpFacts kBoth = kFunction | kMethod;
using Unary = Op<Tensor(const Tensor&)>;
using Binary = Op<Tensor(const Tensor&, const Tensor&, int64_t)>;

// ---- powers --------------------------------------------------------------------------------------------

// By squaring; of the inverse for negative n.
Tensor matrix_power_impl(const Tensor& given, int64_t n) {
  WT_CHECK(given.ndim() >= 2, ShapeError,
           "linalg.matrix_power: The input tensor A must have at least 2 dimensions, got shape ",
           given.sizes());
  WT_CHECK(given.size(-1) == given.size(-2), ShapeError,
           "linalg.matrix_power: A must be batches of square matrices, but they are ", given.size(-2), " by ",
           given.size(-1), " matrices");
  if (n == 0) return copy_(clone(given), identity(given.size(-1), given), false);
  Tensor A = n < 0 ? linalg_inv(given) : given, out;
  for (auto rest = static_cast<uint64_t>(n < 0 ? -n : n);;) {
    if (rest & 1) out = out.defined() ? matmul(out, A) : A;
    if (!(rest >>= 1)) break;
    A = matmul(A, A);
  }
  return out.same(given) ? clone(out) : out;
}

// ---- exponential ---------------------------------------------------------------------------------------

// The Pade approximant of degree 13 of A / 2^times, squared as often: Higham, "The scaling and squaring
// method for the matrix exponential revisited", table 10.4 and algorithm 10.20.
constexpr double kPade[] = {64764752532480000,
                            32382376266240000,
                            7771770303897600,
                            1187353796428800,
                            129060195264000,
                            10559470521600,
                            670442572800,
                            33522128640,
                            1323241920,
                            40840800,
                            960960,
                            16380,
                            182,
                            1};
constexpr double kPadeRadius = 5.371920351148152;

Tensor pade(const Tensor& A, int64_t times) {
  const auto b = [](int k) { return Scalar(kPade[k]); };
  const Tensor scaled = times ? A * std::ldexp(1.0, -static_cast<int>(times)) : A;
  const Tensor one = identity(A.size(-1), A);
  const Tensor A2 = matmul(scaled, scaled), A4 = matmul(A2, A2), A6 = matmul(A4, A2);
  Tensor odd =
      matmul(A6, b(13) * A6 + b(11) * A4 + b(9) * A2) + b(7) * A6 + b(5) * A4 + b(3) * A2 + b(1) * one;
  const Tensor even =
      matmul(A6, b(12) * A6 + b(10) * A4 + b(8) * A2) + b(6) * A6 + b(4) * A4 + b(2) * A2 + b(0) * one;
  odd = matmul(scaled, odd);
  Tensor out = linalg_solve(even - odd, even + odd, true);
  for (int64_t i = 0; i < times; ++i) out = matmul(out, out);
  return out;
}

// How often each matrix [batch, n, n] is halved, by its own 1-norm.
std::vector<int64_t> scales(const Tensor& flat) {
  NoGrad off;
  const int64_t row = -2, last = -1;
  const Tensor norms = amax(sum(abs(flat), IntList{&row, 1}, false, std::nullopt), IntList{&last, 1}, false);
  const Tensor host = raw_contiguous(to(norms, Device(), DType::Float64, false, false));
  std::vector<int64_t> times;
  for (int64_t i = 0; i < host.numel(); ++i) {
    const double size = std::ceil(std::log2(host.data_as<double>()[i] / kPadeRadius));
    times.push_back(std::isfinite(size) && size > 0 ? static_cast<int64_t>(size) : 0);
  }
  return times;
}

Tensor matrix_exp_impl(const Tensor& A) {
  check_square("linalg.matrix_exp", A);
  if (A.numel() == 0) return clone(A);
  if (A.device().is_meta()) return empty(A.sizes(), options_of(A));
  const Tensor flat = reshape(A, Shape{-1, A.size(-2), A.size(-1)});
  const std::vector<int64_t> times = scales(flat);
  // Those of one scale together.
  std::vector<int64_t> order(times.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return times[a] < times[b]; });
  if (times[order.front()] == times[order.back()]) return pade(A, times[0]);
  const auto count = static_cast<int64_t>(order.size());
  const Tensor host = empty(Shape{count}, {DType::Int64, Device()});
  std::copy(order.begin(), order.end(), host.data_as<int64_t>());
  const Tensor index = placed(host, A), sorted = index_select(flat, 0, index);
  std::vector<Tensor> parts;
  for (int64_t begin = 0, end; begin < count; begin = end) {
    for (end = begin; end < count && times[order[end]] == times[order[begin]];) ++end;
    parts.push_back(pade(narrow(sorted, 0, begin, end - begin), times[order[begin]]));
  }
  return reshape(index_select(cat(parts, 0), 0, argsort(index, 0, false, false)), A.sizes());
}

// ---- vectors -------------------------------------------------------------------------------------------

// Element i becomes element i + by of three.
Tensor turned(const Tensor& x, int64_t dim, int64_t by) {
  return cat(std::vector<Tensor>{narrow(x, dim, by, 3 - by), narrow(x, dim, 0, by)}, dim);
}
Tensor linalg_cross_impl(const Tensor& a, const Tensor& b, int64_t dim) {
  WT_CHECK(a.ndim() == b.ndim(), ShapeError,
           "linalg.cross: inputs must have the same number of dimensions, got shapes ", a.sizes(), " and ",
           b.sizes());
  WT_CHECK(a.size(dim) == 3 && b.size(dim) == 3, ShapeError, "linalg.cross: inputs dimension ", dim,
           " must have length 3. Got ", a.size(dim), " and ", b.size(dim));
  return turned(a, dim, 1) * turned(b, dim, 2) - turned(a, dim, 2) * turned(b, dim, 1);
}
Tensor cross_impl(const Tensor& a, const Tensor& b, std::optional<int64_t> dim) {
  if (dim) return linalg_cross_impl(a, b, *dim);
  const Shape sizes = broadcast_shapes(a.sizes(), b.sizes(), "cross");
  const auto* three = std::find(sizes.begin(), sizes.end(), 3);
  WT_CHECK(three != sizes.end(), ShapeError, "cross: no dimension of size 3 in input, got shapes ", a.sizes(),
           " and ", b.sizes());
  return linalg_cross_impl(expand(a, sizes), expand(b, sizes), three - sizes.begin());
}

Tensor vecdot_impl(const Tensor& x, const Tensor& y, int64_t dim) {
  WT_CHECK(is_floating(x.dtype()) || is_complex(x.dtype()), DtypeError,
           "linalg.vecdot: Expected a floating point or complex tensor as input. Got ", x.dtype());
  WT_CHECK(x.dtype() == y.dtype(), DtypeError, "linalg.vecdot: Expected x and y to have the same dtype, got ",
           x.dtype(), " and ", y.dtype());
  return sum(conjugate(x) * y, IntList{&dim, 1}, false, std::nullopt);
}

Tensor vander_impl(const Tensor& given, std::optional<int64_t> n) {
  WT_CHECK(given.dtype() != DType::Bool, DtypeError,
           "linalg.vander: supports floating point, complex, and integer tensors, but got bool");
  const Tensor x = given.ndim() ? given : unsqueeze(given, 0);
  const int64_t count = n.value_or(x.size(-1));
  WT_CHECK(count > 1, Error, "linalg.vander: N must be greater than 1, got ", count);
  Shape sizes = x.sizes(), one = sizes;
  sizes.push_back(count - 1), one.push_back(1);
  const Tensor ones = full(one, 1, options_of(x));
  return cumprod(cat(std::vector<Tensor>{ones, expand(unsqueeze(x, -1), sizes)}, -1), -1, std::nullopt);
}

// ---- chains --------------------------------------------------------------------------------------------

// In the order that takes the fewest multiplications. Cormen, Leiserson, Rivest and Stein, "Introduction to
// Algorithms", section 15.2: split[i][j] is where the product of the matrices i .. j is cut.
class Chain {
 public:
  explicit Chain(std::vector<Tensor> list) : list_(std::move(list)), split_(list_.size() * list_.size()) {
    const size_t n = list_.size();
    std::vector<double> cost(n * n, 0);
    auto dim = [&](size_t i) {
      return static_cast<double>(i < n ? list_[i].sizes()[0] : list_[n - 1].sizes()[1]);
    };
    for (size_t length = 1; length < n; ++length)
      for (size_t i = 0; i + length < n; ++i) {
        const size_t j = i + length;
        cost[i * n + j] = std::numeric_limits<double>::infinity();
        for (size_t k = i; k < j; ++k) {
          const double all = cost[i * n + k] + cost[(k + 1) * n + j] + dim(i) * dim(k + 1) * dim(j + 1);
          if (all < cost[i * n + j]) cost[i * n + j] = all, split_[i * n + j] = k;
        }
      }
  }
  Tensor product() const { return product(0, list_.size() - 1); }

 private:
  Tensor product(size_t i, size_t j) const {
    if (i == j) return list_[i];
    const size_t k = split_[i * list_.size() + j];
    return mm(product(i, k), product(k + 1, j));
  }
  std::vector<Tensor> list_;
  std::vector<size_t> split_;
};

Tensor multi_dot_impl(TensorList given) {
  const size_t n = given.size();
  WT_CHECK(n >= 2, ShapeError, "multi_dot(): expected at least 2 tensors but got ", n);
  std::vector<Tensor> list(given.begin(), given.end());
  auto check_end = [](const Tensor& t, const char* which) {
    WT_CHECK(t.ndim() == 1 || t.ndim() == 2, ShapeError, "multi_dot(): the ", which,
             " tensor must be 1D or 2D but got ", t.ndim(), "D");
    return t.ndim() == 1;
  };
  const bool row = check_end(list[0], "first"), column = check_end(list[n - 1], "last");
  if (row) list[0] = unsqueeze(list[0], 0);
  if (column) list[n - 1] = unsqueeze(list[n - 1], -1);
  for (size_t i = 0; i < n; ++i) {
    WT_CHECK(list[i].ndim() == 2, ShapeError, "multi_dot(): tensor ", i, " must be 2D but got ",
             list[i].ndim(), "D");
    WT_CHECK(list[i].dtype() == list[0].dtype(), DtypeError,
             "multi_dot(): all tensors must be the same dtype, but tensor 0 is ", list[0].dtype(),
             " and tensor ", i, " ", list[i].dtype());
    WT_CHECK(!i || list[i - 1].size(1) == list[i].size(0), ShapeError, "multi_dot(): tensors ", i - 1,
             " and ", i, " with shapes ", given[i - 1].sizes(), " and ", given[i].sizes(),
             " cannot be multiplied");
  }
  Tensor out = Chain(std::move(list)).product();
  if (row) out = squeeze_dim(out, 0);
  return column ? squeeze_dim(out, -1) : out;
}

Tensor chain_matmul_impl(TensorList list) {
  WT_CHECK(!list.empty(), ShapeError, "chain_matmul(): Expected one or more matrices");
  for (const Tensor& t : list)
    WT_CHECK(t.ndim() == 2, ShapeError, "chain_matmul(): Tensor dimension is ", t.ndim(),
             ", expected 2 instead.");
  return list.size() == 1 ? list[0] : multi_dot_impl(list);
}

const Op<Tensor(const Tensor&, int64_t)> matrix_power{
    "matrix_power",
    matrix_power_impl,
    kBoth | kLinalg | kOut | kComplex | kLeading,
    {"input", "n"},
    "Square matrices times themselves n times; of the inverse for negative n."};
const Unary matrix_exp{"matrix_exp",
                       matrix_exp_impl,
                       kBoth | kLinalg | kComplex | kLeading,
                       {"input"},
                       "The exponentials of square matrices, by scaling and squaring."};
const Binary linalg_cross{"cross",
                          linalg_cross_impl,
                          kLinalg | kOut | kComplex,
                          {"input", "other", Arg::integer("dim", -1, kKeywordOnly)},
                          "The cross products of vectors of three elements along `dim`; shapes broadcast."},
    vecdot{"vecdot",
           vecdot_impl,
           kLinalg | kOut | kComplex,
           {"x", "y", Arg::integer("dim", -1, kKeywordOnly)},
           "The dot products of vectors along `dim`, x conjugated; shapes broadcast."};
const Op<Tensor(const Tensor&, const Tensor&, std::optional<int64_t>)> cross{
    "cross",
    cross_impl,
    kBoth | kOut | kComplex,
    {"input", "other", {"dim", none}},
    "linalg.cross along `dim`; without it, along the first dim of size 3."};
const Op<Tensor(const Tensor&, std::optional<int64_t>)> vander{
    "vander",
    vander_impl,
    kLinalg | kComplex,
    {"x", {"N", none, kKeywordOnly}},
    "The powers 0 ... N - 1 of each element of [*, n], as [*, n, N]; N is n unless given."};
const Op<Tensor(TensorList)> multi_dot{"multi_dot",
                                       multi_dot_impl,
                                       kLinalg | kOut | kComplex,
                                       {"tensors"},
                                       "The product of a list of matrices, in the order that takes the "
                                       "fewest multiplications; the first and the "
                                       "last may be vectors."},
    chain_matmul{"chain_matmul",
                 chain_matmul_impl,
                 kFunction | kOut | kComplex,
                 {{"matrices", kVarArgs}},
                 "linalg.multi_dot under its older name."};

}  // namespace
}  // namespace warptape::ops
