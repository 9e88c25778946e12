// Pseudo-inverses, ranks, least squares.
#include "op/forms.h"
#include "ops/linalg/linalg.h"
#include "ops/view/copy.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::LeastSquaresFn> least_squares_slot{"linalg_least_squares"};

constexpr OpFacts kFloats = kComplex | kOut | kFloat32Cpu;
using kernels::LeastSquares;
using OptDouble = std::optional<double>;
using LstSq = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// ---- what counts as 0 ----------------------------------------------------------------------------------

double epsilon(DType t) { return itemsize(real_of(t)) == 4 ? 0x1p-23 : 0x1p-52; }
double largest_size(const Tensor& A) { return static_cast<double>(std::max(A.size(-2), A.size(-1))); }

// A cutoff is one number, or one for each matrix.
struct Cutoff {
  OptTensor atol, rtol;
};
Cutoff cutoff(const Tensor& A, OptDouble atol, OptDouble rtol) {
  const DType dtype = real_of(A.dtype());
  auto number = [&](double x) { return scalar_tensor(x, dtype, A.device()); };
  Cutoff c;
  if (atol) c.atol = number(*atol);
  c.rtol = number(rtol ? *rtol : atol && *atol > 0 ? 0 : epsilon(dtype) * largest_size(A));
  return c;
}
Cutoff cutoff(const Tensor& A, const OptTensor& atol, const OptTensor& rtol) {
  const DType dtype = real_of(A.dtype());
  for (const OptTensor& t : {atol, rtol})
    WT_CHECK(!t || !is_complex(t->dtype()), DtypeError,
             "linalg: atol, rtol and tol of complex type are not supported, got ", t->dtype());
  Cutoff c{atol, rtol};
  if (rtol) return c;
  const Tensor usual = scalar_tensor(epsilon(dtype) * largest_size(A), dtype, A.device());
  c.rtol = atol ? where(gt_ts(*atol, 0), usual * 0, usual) : usual;
  return c;
}

// Of values that fall, sizes of at most max(atol, rtol * largest) count as 0.
Tensor above(const Tensor& sizes, const Cutoff& c) {
  auto spread_out = [](const Tensor& t) { return t.ndim() ? unsqueeze(t, -1) : t; };
  const int64_t last = -1;
  Tensor least = amax(sizes, IntList{&last, 1}, true) * spread_out(*c.rtol);
  if (c.atol) least = maximum(least, cast(spread_out(*c.atol), least.dtype()));
  return gt(sizes, least);
}

Tensor sizes_of_values(const Tensor& A, bool hermitian) {
  return hermitian ? abs(eigvalsh(A, "L")) : svdvals(A, std::nullopt);
}

// ---- rank ----------------------------------------------------------------------------------------------

Tensor count(const Tensor& kept) {
  const int64_t last = -1;
  return sum(kept, IntList{&last, 1}, false, std::nullopt);
}
template <class T>
Tensor rank_by(const Tensor& A, const T& atol, const T& rtol, bool hermitian) {
  check_matrices("linalg.matrix_rank", A, "input");
  NoGrad off;
  const Cutoff c = cutoff(A, atol, rtol);
  if (A.numel() == 0) return zeros(batch_of(A), {DType::Int64, A.device()});
  return count(above(sizes_of_values(A, hermitian), c));
}
Tensor rank_tol_tensor(const Tensor& A, const Tensor& tol, bool hermitian) {
  return rank_by<OptTensor>(A, tol, full(Shape{}, 0.0, {real_of(A.dtype()), A.device()}), hermitian);
}
Tensor rank_tol(const Tensor& A, double tol, bool hermitian) {
  return rank_by<OptDouble>(A, tol, 0.0, hermitian);
}
Tensor rank_numbers(const Tensor& A, OptDouble atol, OptDouble rtol, bool hermitian) {
  return rank_by(A, atol, rtol, hermitian);
}
Tensor rank_tensors(const Tensor& A, const OptTensor& atol, const OptTensor& rtol, bool hermitian) {
  return rank_by(A, atol, rtol, hermitian);
}

// ---- pseudo-inverse ------------------------------------------------------------------------------------

// Golub and Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares problems whose
// variables separate", equation 4.12.
Tensor pinv_slope(const Tensor& A, const Tensor& P, const Tensor& grad) {
  const Tensor Ph = adjoint(P), Gh = adjoint(grad);
  const Tensor down = matmul(matmul(Gh, P), Ph), across = matmul(matmul(Ph, P), Gh);
  return down - matmul(A, matmul(P, down)) + across - matmul(matmul(across, P), A) -
         matmul(Ph, matmul(grad, Ph));
}
void pinv_backward(Node& n, Gradients& g) { g.set(0, pinv_slope(n.saved(0), n.saved(1), g[0])); }
constexpr NodeType kPinv{"LinalgPinvBackward0", pinv_backward};

Tensor pinv_raw(const Tensor& A, const Cutoff& c, bool hermitian) {
  NoGrad off;
  if (A.numel() == 0) return empty(with_matrix(batch_of(A), A.size(-1), A.size(-2)), options_of(A));
  Tensor U, S, V;
  if (hermitian) {
    std::tie(S, U) = linalg_eigh(A, "L");
    V = U;
  } else {
    Tensor Vh;
    std::tie(U, S, Vh) = linalg_svd(A, false, std::nullopt);
    V = adjoint(Vh);
  }
  const Tensor inverse = where(above(abs(S), c), 1 / S, S * 0);
  return matmul(V * unsqueeze(inverse, -2), adjoint(U));
}
template <class T>
Tensor pinv_by(const Tensor& A, const T& atol, const T& rtol, bool hermitian) {
  check_matrices("linalg.pinv", A);
  if (hermitian) check_square("linalg.pinv", A);
  Tensor P = pinv_raw(A, cutoff(A, atol, rtol), hermitian);
  if (needs_grad(A)) {
    Ref<Node> n = record(kPinv, A);
    n->save(A);
    set_history(P, n);
    n->save_output(P);
  }
  return P;
}
Tensor pinv_numbers(const Tensor& A, OptDouble atol, OptDouble rtol, bool hermitian) {
  return pinv_by(A, atol, rtol, hermitian);
}
Tensor pinv_tensors(const Tensor& A, const OptTensor& atol, const OptTensor& rtol, bool hermitian) {
  return pinv_by(A, atol, rtol, hermitian);
}
Tensor pinv_rcond(const Tensor& A, double rcond, bool hermitian) {
  return pinv_by<OptDouble>(A, 0.0, rcond, hermitian);
}
Tensor pinv_rcond_tensor(const Tensor& A, const Tensor& rcond, bool hermitian) {
  return pinv_by<OptTensor>(A, std::nullopt, rcond, hermitian);
}
Tensor pinverse_impl(const Tensor& A, double rcond) { return pinv_rcond(A, rcond, false); }

// ---- least squares -------------------------------------------------------------------------------------

std::string rank_deficient(int info) {
  return message(
      "The least squares solution could not be computed because the input matrix does not have full "
      "rank (error code: ",
      info, ").");
}

LeastSquares driver_named(std::string_view name) {
  constexpr std::pair<std::string_view, LeastSquares> all[] = {{"gels", LeastSquares::Gels},
                                                               {"gelsy", LeastSquares::Gelsy},
                                                               {"gelsd", LeastSquares::Gelsd},
                                                               {"gelss", LeastSquares::Gelss}};
  for (const auto& [known, driver] : all)
    if (known == name) return driver;
  throw Error(
      message("linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss), got ", name));
}

// The solution is the pseudo-inverse times B; a residual is a squared norm of A X - B.
void lstsq_backward(Node& n, Gradients& g) {
  const Tensor A = n.saved(0), B = n.saved(1), X = n.saved(2);
  Tensor gX = g[0], gA, gB;
  if (g[1].defined() && g[1].numel()) {
    const Tensor rest = (matmul(A, X) - B) * (2 * unsqueeze(g[1], -2)), back = matmul(adjoint(A), rest);
    gA = matmul(rest, adjoint(X)), gB = -rest;
    gX = gX.defined() ? gX + back : back;
  }
  if (!gX.defined()) return;
  const Tensor P = pinv_numbers(A, std::nullopt, std::nullopt, false);
  const Tensor slope = pinv_slope(A, P, matmul(gX, adjoint(B))), right = matmul(adjoint(P), gX);
  g.set(0, gA.defined() ? gA + slope : slope);
  g.set(1, gB.defined() ? gB + right : right);
}
constexpr NodeType kLstsq{"LinalgLstsqBackward0", lstsq_backward};

bool is_full_rank(const Tensor& rank, int64_t n) {
  return rank.device().is_meta() || item(all(eq_ts(rank, n), std::nullopt, false)).to_bool();
}

// B [*, m, k]. A device has "gels" alone: the others are LAPACK's, on the host.
LstSq least_squares(const Tensor& given, const Tensor& B, OptDouble rcond, LeastSquares driver) {
  const Tensor A = driver == LeastSquares::Gels ? given : on_host(given);
  const int64_t m = A.size(-2), n = A.size(-1), k = B.size(-1);
  const bool iterates = driver == LeastSquares::Gelsd || driver == LeastSquares::Gelss;
  const Shape batch = broadcast_shapes(batch_of(A), batch_of(B), "linalg.lstsq");
  const DType real_dtype = real_of(A.dtype());
  const Tensor a = matrix_copy(A, batch),
               X = new_matrices(with_matrix(batch, std::max(m, n), k), A.dtype(), A),
               info = new_zeros(batch, DType::Int32, A);
  Shape values = batch;
  values.push_back(std::min(m, n));
  Tensor rank = new_zeros(driver == LeastSquares::Gels ? Shape{0} : batch, DType::Int64, A),
         S = new_empty(iterates ? values : Shape{0}, real_dtype, A),
         residuals = empty(Shape{0}, {real_dtype, A.device()});
  if (!X.is_meta()) {
    raw_fill(X, 0);
    raw_copy(rows(X, 0, m), expand_view(B, with_matrix(batch, m, k)));
    if (a.numel()) {
      const kernels::View none{};
      const Flat ranks(rank, driver == LeastSquares::Gels ? 1 : 0);
      launch(least_squares_slot, X, Flat(a, 2), Flat(X, 2),
             driver == LeastSquares::Gels ? none : static_cast<const kernels::View&>(ranks), Flat(S, 1),
             driver, rcond.value_or(epsilon(A.dtype()) * largest_size(A)), Flat(info, 0));
    } else {
      raw_fill(X, 0);
    }
    check_info("linalg.lstsq", info, rank_deficient);
  }
  // LAPACK leaves behind the solution what its norm was computed from.
  if (m > n && driver != LeastSquares::Gelsy && (!iterates || is_full_rank(rank, n))) {
    const Tensor rest = abs(rows(X, n, m - n));
    const int64_t dim = -2;
    residuals = sum(rest * rest, IntList{&dim, 1}, false, std::nullopt);
  }
  auto back = [&](const Tensor& t) { return placed(t, given); };
  return {back(rows(X, 0, n)), back(residuals), back(rank), back(S)};
}

LstSq lstsq_impl(const Tensor& A, const Tensor& B, OptDouble rcond, std::optional<std::string_view> name) {
  const char* op = "linalg.lstsq";
  check_matrices(op, A);
  WT_CHECK(B.ndim() >= 1, ShapeError, op, ": other must have at least 1 dimension, got ", B);
  const LeastSquares driver = driver_named(name.value_or(A.device().is_accelerator() ? "gels" : "gelsy"));
  const bool vector = B.ndim() == 1 || (B.ndim() == A.ndim() - 1 &&
                                        std::equal(B.sizes().begin(), B.sizes().end(), A.sizes().begin()));
  const Tensor right = vector ? unsqueeze(B, -1) : B;
  check_equation(op, A, right, true);
  Tensor X, residuals, rank, values;
  {
    NoGrad off;
    std::tie(X, residuals, rank, values) = least_squares(A, right, rcond, driver);
  }
  if (needs_grad(A, B)) {
    Ref<Node> n = record(kLstsq, A, right);
    n->save(A);
    n->save(right);
    set_history(X, n);
    set_history(residuals, n);
    n->save_output(X, 0);
  }
  return {vector ? squeeze_dim(X, -1) : X, residuals, rank, values};
}

const Arg kHermitian{"hermitian", false, kKeywordOnly}, kHermitianToo{"hermitian", false},
    kAtol{"atol", none, kKeywordOnly}, kRtol{"rtol", none, kKeywordOnly};
constexpr const char* kRankDoc =
    "The number of singular values above max(atol, rtol * largest), int64; rtol is the dtype's epsilon times "
    "max(m, n) unless one of them is given. Only the lower triangle is read of matrices that are "
    "`hermitian`.";
constexpr const char* kPinvDoc =
    "The pseudo-inverses [*, n, m]. Singular values of at most max(atol, rtol * largest) count as 0; rtol is "
    "the "
    "dtype's epsilon times max(m, n) unless one of them is given. Only the lower triangle is read of "
    "matrices "
    "that are `hermitian`.";

using ByNumbers = Op<Tensor(const Tensor&, OptDouble, OptDouble, bool)>;
using ByTensors = Op<Tensor(const Tensor&, const OptTensor&, const OptTensor&, bool)>;
using ByNumber = Op<Tensor(const Tensor&, double, bool)>;
using ByTensor = Op<Tensor(const Tensor&, const Tensor&, bool)>;
const ByNumbers rank_numbers_op{
    "matrix_rank", rank_numbers, kLinalg | kFloats | kLeading, {"A", kAtol, kRtol, kHermitian}, kRankDoc},
    pinv_numbers_op{
        "pinv", pinv_numbers, kLinalg | kFloats | kLeading, {"A", kAtol, kRtol, kHermitian}, kPinvDoc};
const ByTensors rank_tensors_op = overload_of(rank_numbers_op, rank_tensors),
                pinv_tensors_op = overload_of(pinv_numbers_op, pinv_tensors);
const ByNumber rank_tol_op = overload_with(rank_numbers_op, rank_tol, {"A", "tol", kHermitianToo}),
               pinv_rcond_op = overload_with(pinv_numbers_op, pinv_rcond, {"A", "rcond", kHermitianToo});
const ByTensor rank_tol_tensor_op = overload_of(rank_tol_op, rank_tol_tensor),
               pinv_rcond_tensor_op = overload_of(pinv_rcond_op, pinv_rcond_tensor);
const Op<Tensor(const Tensor&, double)> pinverse{"pinverse",
                                                 pinverse_impl,
                                                 kFunction | kMethod | kComplex | kFloat32Cpu,
                                                 {"input", {"rcond", 1e-15}},
                                                 "linalg.pinv under its older name."};
const Op<LstSq(const Tensor&, const Tensor&, OptDouble, std::optional<std::string_view>)> lstsq{
    "lstsq",
    lstsq_impl,
    kLinalg | kOutColumns | kFloats,
    {"A", "B", {"rcond", none}, {"driver", none, kKeywordOnly}},
    "The X [*, n, k] of least norm among those that make A X - B smallest, by LAPACK's routine `driver`, "
    "\"gelsy\" unless given, on CUDA \"gels\", which wants full rank and alone runs there; the others do on "
    "the "
    "host. What that does not tell is empty: residuals [*, k], the squared norms, only "
    "with "
    "\"gels\", \"gelsd\" and \"gelss\", where m > n and A has full rank; rank not with \"gels\"; "
    "singular_values only with \"gelsd\" and \"gelss\".",
    {"solution", "residuals", "rank", "singular_values"}};

}  // namespace
}  // namespace warptape::ops
