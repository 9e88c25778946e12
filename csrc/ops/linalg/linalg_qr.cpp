// QR and products of Householder reflectors. Derivative of QR: Walter and Lehmann, "Algorithmic
// differentiation of linear algebra functions", section 4, with adjoints where numbers are complex.
#include "ops/linalg/linalg.h"
#include "ops/random/random.h"
#include "ops/view/copy.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::QrFn> qr_slot{"linalg_qr"};
kernels::Slot<kernels::ReflectorsFn> reflectors_slot{"linalg_reflectors"};
kernels::Slot<kernels::MultiplyReflectorsFn> multiply_slot{"linalg_multiply_reflectors"};

constexpr OpFacts kBoth = kFunction | kMethod;
constexpr OpFacts kFloats = kComplex | kOut | kFloat32Cpu;
using Pair = std::tuple<Tensor, Tensor>;

// ---- reflectors ----------------------------------------------------------------------------------------

// R and reflectors in one matrix, and tau [*, k].
Pair factored(const Tensor& A) {
  Shape sizes = batch_of(A);
  sizes.push_back(std::min(A.size(-2), A.size(-1)));
  Tensor packed = matrix_copy(A), tau = new_zeros(sizes, A.dtype(), A);
  launch(qr_slot, packed, Flat(packed, 2), Flat(tau, 1));
  return {packed, tau};
}
Pair geqrf_impl(const Tensor& A) {
  check_matrices("geqrf", A, "input");
  auto [packed, tau] = factored(A);
  return {packed, tau};
}

void check_reflectors(const char* op, const Tensor& A, const Tensor& tau) {
  check_matrices(op, A, "input");
  WT_CHECK(A.size(-2) >= A.size(-1), ShapeError, op,
           ": input.shape[-2] must be greater than or equal to input.shape[-1], got ", A.sizes());
  WT_CHECK(tau.ndim() == A.ndim() - 1, ShapeError, op,
           ": Expected tau to have one dimension less than input, but got tau.ndim equal to ", tau.ndim(),
           " and input.ndim is equal to ", A.ndim());
  WT_CHECK(A.size(-1) >= tau.size(-1), ShapeError, op,
           ": input.shape[-1] must be greater than or equal to tau.shape[-1], got ", A.sizes(), " and ",
           tau.sizes());
  WT_CHECK(std::equal(tau.sizes().begin(), tau.sizes().end() - 1, A.sizes().begin()), ShapeError, op,
           ": Expected batch dimensions of tau to be equal to input.shape[:-2], but got ", tau.sizes());
  WT_CHECK(tau.dtype() == A.dtype(), DtypeError, op, ": tau dtype ", tau.dtype(),
           " does not match input dtype ", A.dtype());
}

// Reflector i is I - tau_i v v^H, v with 1 in row i, zeros above and column i of A below. Q is the product of
// all in order; the last one is applied first. This form serves where a derivative is wanted.
Tensor reflected(const Tensor& A, const Tensor& tau, Tensor x, bool adjoined) {
  const int64_t k = tau.size(-1);
  const Tensor ones = columns(identity(A.size(-2), A), 0, std::min(k, A.size(-2)));
  const Tensor V = tril(columns(A, 0, k), -1) + ones;
  for (int64_t step = 0; step < k; ++step) {
    const int64_t i = adjoined ? step : k - 1 - step;
    const Tensor v = columns(V, i, 1), t = unsqueeze(narrow(tau, -1, i, 1), -1);
    x = x - matmul(v, matmul(adjoint(v), x)) * (adjoined ? conjugate(t) : t);
  }
  return x;
}

Tensor householder_product_impl(const Tensor& A, const Tensor& tau) {
  check_reflectors("linalg.householder_product", A, tau);
  if (needs_grad(A, tau))
    return reflected(A, tau, copy_(clone(A), columns(identity(A.size(-2), A), 0, A.size(-1)), false), false);
  const Tensor Q = matrix_copy(A), t = raw_contiguous(tau);
  launch(reflectors_slot, Q, Flat(Q, 2), Flat(t, 1));
  return Q;
}

Tensor ormqr_impl(const Tensor& A, const Tensor& tau, const Tensor& C, bool left, bool transposed_q) {
  const char* op = "ormqr";
  check_matrices(op, A, "input");
  check_matrices(op, C, "other");
  const int64_t dim = left ? -2 : -1;
  WT_CHECK(tau.ndim() > 0 && tau.size(-1) == std::min(C.size(dim), A.size(-1)), ShapeError, op,
           ": tau.shape[-1] must be equal to min(other.shape[", dim, "], input.shape[-1]), got ", tau.sizes(),
           ", ", C.sizes(), " and ", A.sizes());
  WT_CHECK(C.size(dim) == A.size(-2), ShapeError, op, ": other.shape[", dim,
           "] must be equal to input.shape[-2], got ", C.sizes(), " and ", A.sizes());
  WT_CHECK(tau.ndim() == A.ndim() - 1 && A.ndim() == C.ndim() && batch_of(A) == batch_of(C) &&
               std::equal(tau.sizes().begin(), tau.sizes().end() - 1, A.sizes().begin()),
           ShapeError, op, ": Expected batch dimensions of input, tau and other to be equal, got ", A.sizes(),
           ", ", tau.sizes(), " and ", C.sizes());
  WT_CHECK(tau.dtype() == A.dtype() && C.dtype() == A.dtype(), DtypeError, op,
           ": Expected input, tau and other to have the same dtype, got ", A.dtype(), ", ", tau.dtype(),
           " and ", C.dtype());
  if (needs_grad(A, tau, C)) {
    if (left) return reflected(A, tau, C, transposed_q);
    return adjoint(reflected(A, tau, adjoint(C), !transposed_q));
  }
  const Tensor a = matrix_copy(A), out = matrix_copy(C), t = raw_contiguous(tau);
  launch(multiply_slot, out, Flat(a, 2), Flat(t, 1), Flat(out, 2), left, transposed_q);
  return out;
}

// ---- QR ------------------------------------------------------------------------------------------------

Tensor slope(const Tensor& Q, const Tensor& R, const Tensor& gQ, const Tensor& gR) {
  const Tensor half = lower_half(matmul(R, adjoint(gR)) - matmul(adjoint(gQ), Q));
  return solve_triangular(adjoint(R), gQ + matmul(Q, half + adjoint(half)), false, false, false);
}

enum class Mode : uint8_t { Reduced, Complete, R };

void qr_backward(Node& n, Gradients& g) {
  const Mode mode = n.data<Mode>();
  WT_CHECK(
      mode != Mode::R, Error,
      "linalg.qr: The derivative of linalg.qr depends on Q, which is not computed when mode='r'. Please use "
      "linalg.qr(A, mode='reduced') if you are going to require gradients");
  const Tensor Q = n.saved(0), R = n.saved(1);
  const int64_t m = Q.size(-2), cols = R.size(-1);
  WT_CHECK(mode == Mode::Reduced || m <= cols, Error,
           "linalg.qr: The QR decomposition is not differentiable when mode='complete' and nrows > ncols");
  auto or_zeros = [](const Tensor& t, const Tensor& like) {
    return t.defined() ? t : zeros(like.sizes(), options_of(like));
  };
  const Tensor gQ = or_zeros(g[0], Q), gR = or_zeros(g[1], R);
  if (m >= cols) return g.set(0, slope(Q, R, gQ, gR));
  // A = [X | Y] with X square: Y = Q R2 depends on X through Q.
  const Tensor gU = columns(gR, 0, m), gV = columns(gR, m, cols - m);
  const Tensor Y = matmul(Q, columns(R, m, cols - m));
  const Tensor first = slope(Q, columns(R, 0, m), gQ + matmul(Y, adjoint(gV)), gU);
  g.set(0, cat(std::vector<Tensor>{first, matmul(Q, gV)}, -1));
}
constexpr NodeType kQr{"LinalgQrBackward0", qr_backward};

// R: the upper triangle of the first rows, in column-major order.
Tensor upper_rows(const Tensor& packed, int64_t k) {
  NoGrad off;
  const Tensor out = new_matrices(with_matrix(batch_of(packed), k, packed.size(-1)), packed.dtype(), packed);
  if (!out.is_meta() && out.numel()) raw_copy(out, triu(rows(packed, 0, k), 0));
  return out;
}

Pair qr_factored(const Tensor& A, Mode mode) {
  const int64_t m = A.size(-2), cols = A.size(-1), k = std::min(m, cols);
  const int64_t width = mode == Mode::Complete ? m : k;
  auto [packed, tau] = factored(A);
  Tensor R = upper_rows(packed, width), Q;
  if (mode == Mode::R) {
    Q = empty(Shape{0}, options_of(A));
  } else {
    Q = new_matrices(with_matrix(batch_of(A), m, width), A.dtype(), A);
    if (!Q.is_meta() && Q.numel()) {
      raw_copy(columns(Q, 0, k), columns(packed, 0, k));
      launch(reflectors_slot, Q, Flat(Q, 2), Flat(tau, 1));
    }
  }
  return {Q, R};
}
Pair qr_recorded(const Tensor& A, Mode mode) {
  Tensor Q, R;
  {
    NoGrad off;
    std::tie(Q, R) = qr_factored(A, mode);
  }
  if (needs_grad(A)) {
    Ref<Node> n = record(kQr, A);
    n->emplace<Mode>(mode);
    set_history(Q, n);
    set_history(R, n);
    n->save_output(Q, 0);
    n->save_output(R, 1);
  }
  return {Q, R};
}

Pair linalg_qr_impl(const Tensor& A, std::string_view mode) {
  check_matrices("linalg.qr", A);
  WT_CHECK(mode == "reduced" || mode == "complete" || mode == "r", ValueError,
           "qr received unrecognized mode '", mode,
           "' but expected one of 'reduced' (default), 'r', or 'complete'");
  return qr_recorded(A, mode == "r" ? Mode::R : mode == "reduced" ? Mode::Reduced : Mode::Complete);
}
Pair qr_impl(const Tensor& A, bool some) {
  check_matrices("qr", A);
  return qr_recorded(A, some ? Mode::Reduced : Mode::Complete);
}

const Op<Pair(const Tensor&, std::string_view)> linalg_qr{
    "qr",
    linalg_qr_impl,
    kLinalg | kFloats | kLeading,
    {"A", {"mode", "reduced"}},
    "Q [*, m, k] with orthonormal columns and upper triangular R [*, k, n] with Q R = A; k is m with mode "
    "\"complete\", and mode \"r\" leaves Q empty.",
    {"Q", "R"}};
const Op<Pair(const Tensor&, bool)> qr{
    "qr",
    qr_impl,
    kBoth | kFloats | kLeading,
    {"input", {"some", true}},
    "linalg.qr under its older name; without `some`, in mode \"complete\".",
    {"Q", "R"}};
const Op<Pair(const Tensor&)> geqrf{
    "geqrf",
    geqrf_impl,
    kBoth | kOutColumns | kFloats,
    {"input"},
    "R in the upper triangle and below it the reflectors of which Q is the product, with their tau.",
    {"a", "tau"}};
const Alias orgqr{"orgqr", "householder_product", kBoth};
// ---- low rank ------------------------------------------------------------------------------------------

// Orthonormal columns [*, m, q] that span nearly what the largest singular vectors of A [*, m, n] do (Halko,
// Martinsson and Tropp 2011, algorithm 4.4).
Tensor approximate_basis(const Tensor& A, int64_t q, int64_t niter) {
  const auto orthonormal = [](const Tensor& x) { return std::get<0>(linalg_qr(x, "reduced")); };
  const Tensor start = normal_of_size(0, 1, Shape{A.size(-1), q}, nullptr, A.dtype(), A.device(), false);
  Tensor Q = orthonormal(matmul(A, start));
  for (int64_t i = 0; i < niter; ++i) Q = orthonormal(matmul(A, orthonormal(matmul(adjoint(A), Q))));
  return Q;
}

MatrixTriple svd_lowrank_impl(const Tensor& given, std::optional<int64_t> rank, std::optional<int64_t> niter,
                              const OptTensor& M) {
  check_matrices("svd_lowrank", given);
  const Tensor A = M ? given - *M : given;
  const bool wide = A.size(-2) < A.size(-1);
  const Tensor tall = wide ? adjoint(A) : A;
  const Tensor Q = approximate_basis(tall, rank.value_or(6), niter.value_or(2));
  auto [U, S, Vh] = linalg_svd(matmul(adjoint(Q), tall), false, std::nullopt);
  const Tensor left = matmul(Q, U), right = adjoint(Vh);
  return wide ? MatrixTriple{right, S, left} : MatrixTriple{left, S, right};
}

MatrixTriple pca_lowrank_impl(const Tensor& A, std::optional<int64_t> q, bool center, int64_t niter) {
  check_matrices("pca_lowrank", A);
  const int64_t most = std::min(A.size(-2), A.size(-1)), rank = q.value_or(std::min<int64_t>(6, most));
  WT_CHECK(rank >= 0 && rank <= most, ValueError, "pca_lowrank: q(=", rank,
           ") must be non-negative integer and not greater than min(m, n)=", most);
  WT_CHECK(niter >= 0, ValueError, "pca_lowrank: niter(=", niter, ") must be non-negative integer");
  const int64_t rows = -2;
  const Tensor x = center ? A - mean(A, IntList{&rows, 1}, true, std::nullopt) : A;
  return svd_lowrank_impl(x, rank, niter, std::nullopt);
}

const Op<MatrixTriple(const Tensor&, std::optional<int64_t>, std::optional<int64_t>, const OptTensor&)>
    svd_lowrank{"svd_lowrank",
                svd_lowrank_impl,
                kFunction | kComplex | kRandom,
                {"A", Arg::integer("q", 6), Arg::integer("niter", 2), {"M", none}},
                "U [*, m, q], S [*, q] and V [*, n, q] of the nearest A - M of rank q, found from random "
                "directions in niter iterations."};
const Op<MatrixTriple(const Tensor&, std::optional<int64_t>, bool, int64_t)> pca_lowrank{
    "pca_lowrank",
    pca_lowrank_impl,
    kFunction | kComplex | kRandom,
    {"A", {"q", none}, {"center", true}, Arg::integer("niter", 2)},
    "svd_lowrank of A, its columns centred: the principal components of the rows of A."};

const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, bool, bool)> ormqr{
    "ormqr",
    ormqr_impl,
    kBoth | kOutColumns | kOutExact | kFloats,
    {"input", "tau", "other", {"left", true}, {"transpose", false}},
    "The product of geqrf's Q, or with `transpose` its adjoint, and `other`, or of `other` and it."};

}  // namespace

decltype(householder_product) householder_product{
    "householder_product",
    householder_product_impl,
    kLinalg | kOutColumns | kFloats,
    {"input", "tau"},
    "The first n columns [*, m, n] of the product of the reflectors that geqrf tells."};

}  // namespace warptape::ops
