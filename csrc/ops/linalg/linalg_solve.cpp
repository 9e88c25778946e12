// Systems of equations, inverses, determinants.
#include "ops/factory/factory.h"
#include "ops/index/masked.h"
#include "ops/linalg/linalg.h"
#include "ops/view/copy.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::SolveFn> solve_slot{"linalg_solve"};
kernels::Slot<kernels::TriangularFn> triangular_slot{"linalg_triangular"};
kernels::Slot<kernels::DeterminantFn> determinant_slot{"linalg_determinant"};

constexpr OpFacts kBoth = kFunction | kMethod;
constexpr OpFacts kFloats = kComplex | kOut | kFloat32Cpu;
using Pair = std::tuple<Tensor, Tensor>;
using Unary = Op<Tensor(const Tensor&)>;

// ---- triangular systems --------------------------------------------------------------------------------

struct TriangularData {
  bool upper, left, unit;
};
void triangular_backward(Node& n, Gradients& g) {
  const auto d = n.data<TriangularData>();
  const Tensor A = n.saved(0), X = n.saved(1);
  const Tensor gB = solve_triangular(adjoint(A), g[0], !d.upper, d.left, d.unit);
  if (g.wants(0)) {
    const Tensor gA = -(d.left ? matmul(gB, adjoint(X)) : matmul(adjoint(X), gB));
    g.set(0, d.upper ? triu(gA, d.unit) : tril(gA, -int64_t{d.unit}));
  }
  g.set(1, gB);
}
constexpr NodeType kTriangular{"LinalgSolveTriangularBackward0", triangular_backward};

Tensor triangular(const Tensor& A, const Tensor& B, TriangularData d) {
  const Shape batch = broadcast_shapes(batch_of(A), batch_of(B), "linalg.solve_triangular");
  const Tensor a = as_matrices(A, batch), X = matrix_copy(B, batch);
  launch(triangular_slot, X, Flat(a, 2), Flat(X, 2), d.left, d.upper, d.unit);
  if (needs_grad(A, B)) {
    Ref<Node> n = record(kTriangular, A, B);
    n->emplace<TriangularData>(d);
    n->save(A);
    set_history(X, n);
    n->save_output(X);
  }
  return X;
}

Tensor solve_triangular_impl(const Tensor& A, const Tensor& B, bool upper, bool left, bool unit) {
  const char* op = "linalg.solve_triangular";
  check_square(op, A);
  check_equation(op, A, B, left);
  return triangular(A, B, {upper, left, unit});
}

Pair triangular_solve_impl(const Tensor& B, const Tensor& A, bool upper, bool transposes, bool unit) {
  const char* op = "triangular_solve";
  check_square(op, A);
  check_equation(op, A, B, true);
  const Tensor X = triangular(transposes ? transposed(A) : A, B, {upper != transposes, true, unit});
  const Shape sizes = with_matrix(batch_of(X), A.size(-1), A.size(-1));
  const Tensor copied = new_matrices(sizes, A.dtype(), A);
  return {X, copy_(copied, expand(A, sizes), false)};
}

Tensor cholesky_solve_impl(const Tensor& B, const Tensor& L, bool upper) {
  const char* op = "cholesky_solve";
  check_matrices(op, B, "b");
  check_square(op, L);
  check_equation(op, L, B, true);
  const Tensor lower = upper ? adjoint(L) : L, Lh = upper ? L : adjoint(L);
  return triangular(Lh, triangular(lower, B, {false, true, false}), {true, true, false});
}
Tensor cholesky_inverse_impl(const Tensor& L, bool upper) {
  check_square("cholesky_inverse", L);
  return cholesky_solve_impl(expand(identity(L.size(-1), L), L.sizes()), L, upper);
}

// ---- general systems -----------------------------------------------------------------------------------

std::string singular(int) { return "The solver failed because the input matrix is singular."; }
std::string not_invertible(int info) {
  return message("The diagonal element ", info,
                 " is zero, the inversion could not be completed because the input matrix is singular.");
}

// A's factors, X with A X = B, and the infos.
struct Solved {
  Tensor LU, pivots, X, info;
};
Solved solved(const Tensor& A, const Tensor& B) {
  const Shape batch = broadcast_shapes(batch_of(A), batch_of(B), "linalg.solve");
  const Tensor a = matrix_copy(A, batch), x = matrix_copy(B, batch);
  Shape steps = batch;
  steps.push_back(A.size(-1));
  const Tensor pivots = new_empty(steps, DType::Int32, A), info = new_zeros(batch, DType::Int32, A);
  launch(solve_slot, x, Flat(a, 2), Flat(pivots, 1), Flat(x, 2), Flat(info, 0));
  return {a, pivots, x, info};
}

// By the factors, unless a derivative of the derivative is wanted: they have no history.
void solve_backward(Node& n, Gradients& g) {
  const Tensor A = n.saved(0), X = n.saved(1);
  const Tensor gB = needs_grad(A, g[0]) ? linalg_solve(adjoint(A), g[0], true)
                                        : linalg_lu_solve(n.saved(2), n.saved(3), g[0], true, true);
  if (g.wants(0)) g.set(0, -matmul(gB, adjoint(X)));
  g.set(1, gB);
}
constexpr NodeType kSolve{"LinalgSolveExBackward0", solve_backward};

Pair solve_checked(const char* op, const Tensor& A, const Tensor& B, bool left, bool check_errors) {
  check_square(op, A);
  const bool vector = B.ndim() == 1 || (B.ndim() == A.ndim() - 1 &&
                                        std::equal(B.sizes().begin(), B.sizes().end(), A.sizes().begin()));
  if (vector) {
    auto [X, info] = solve_checked(op, A, unsqueeze(B, -1), true, check_errors);
    return {squeeze_dim(X, -1), info};
  }
  check_equation(op, A, B, left);
  if (!left) {
    auto [X, info] = solve_checked(op, transposed(A), transposed(B), true, check_errors);
    return {transposed(X), info};
  }
  auto [LU, pivots, X, info] = solved(A, B);
  if (check_errors) check_info(op, info, singular);
  if (needs_grad(A, B)) {
    Ref<Node> n = record(kSolve, A, B);
    n->save(A);
    set_history(X, n);
    n->save_output(X);
    n->save(LU);
    n->save(pivots);
  }
  return {X, info};
}
Tensor linalg_solve_impl(const Tensor& A, const Tensor& B, bool left) {
  return std::get<0>(solve_checked("linalg.solve", A, B, left, true));
}
Pair solve_ex_impl(const Tensor& A, const Tensor& B, bool left, bool check_errors) {
  return solve_checked("linalg.solve_ex", A, B, left, check_errors);
}

void inv_backward(Node& n, Gradients& g) {
  const Tensor Xh = adjoint(n.saved(0));
  g.set(0, -matmul(Xh, matmul(g[0], Xh)));
}
constexpr NodeType kInv{"LinalgInvExBackward0", inv_backward};

Pair inverted(const char* op, const Tensor& A, bool check_errors) {
  check_square(op, A);
  auto [LU, pivots, X, info] = solved(A, identity(A.size(-1), A));
  if (check_errors) check_info(op, info, not_invertible);
  if (needs_grad(A)) {
    Ref<Node> n = record(kInv, A);
    set_history(X, n);
    n->save_output(X);
  }
  return {X, info};
}
Tensor inv_impl(const Tensor& A) { return std::get<0>(inverted("linalg.inv", A, true)); }
Pair inv_ex_impl(const Tensor& A, bool check_errors) { return inverted("linalg.inv_ex", A, check_errors); }

// ---- determinants --------------------------------------------------------------------------------------

// What is kept of a determinant: the factors, as PyTorch those of the transpose where that is laid out as
// LAPACK wants it.
struct DeterminantFactors {
  explicit DeterminantFactors(const Tensor& A)
      : transpose(A.is_contiguous() && !is_complex(A.dtype())),
        LU(matrix_copy(transpose ? transposed(A) : A)),
        pivots(new_empty(Shape(A.sizes().begin(), A.sizes().end() - 1), DType::Int32, A)) {}
  bool transpose;
  Tensor LU, pivots;
};
const kernels::View kNone{};

Tensor times(const Tensor& number, const Tensor& x) { return unsqueeze(unsqueeze(number, -1), -1) * x; }

// A^-H times a number, by the factors.
Tensor scaled_inverse(const Tensor& LU, const Tensor& pivots, bool transpose, const Tensor& number) {
  return linalg_lu_solve(LU, pivots, times(number, identity(LU.size(-1), LU)), true, !transpose);
}

// Whether rounding leaves nothing of a determinant: it is small beside Hadamard's bound, the product of the
// rows' norms.
bool is_singular(const Tensor& A, const Tensor& value) {
  NoGrad off;
  const int64_t last = -1;
  const Tensor bound =
      prod_dim(vector_norm(A, 2.0, IntList{&last, 1}, false, std::nullopt), -1, false, std::nullopt);
  const double rounding =
      (itemsize(real_of(A.dtype())) == 4 ? 0x1p-21 : 0x1p-50) * static_cast<double>(A.size(-1));
  return item(any(le(abs(value), bound * rounding), std::nullopt, false)).to_bool();
}

// The adjoint of the adjugate, conj(det A) A^-H, also of singular matrices: U and V turn it into that of a
// diagonal.
Tensor cofactors(const Tensor& A) {
  const Tensor value = det(A);
  if (value.device().is_meta() || !is_singular(A, value))
    return times(conjugate(value), adjoint(std::get<0>(inv_ex(A, false))));
  auto [U, S, Vh] = linalg_svd(A, false, std::nullopt);
  Shape sizes = S.sizes();
  sizes.push_back(S.size(-1));
  const Tensor own = cast(identity(S.size(-1), S), DType::Bool);
  const Tensor others =
      prod_dim(masked_fill(expand(unsqueeze(S, -2), sizes), own, 1.0), -1, false, std::nullopt);
  return times(conjugate(det(U) * det(Vh)), matmul(U * unsqueeze(others, -2), Vh));
}
// The same times a number by the factors L U of a matrix near A: pivots that are only rounding are replaced
// by as much. The adjugate is a polynomial of the matrix, so that of a near one is near, also where A is
// singular.
Tensor scaled_cofactors(const Tensor& LU, const Tensor& pivots, bool transpose, const Tensor& number) {
  const bool single = itemsize(real_of(LU.dtype())) == 4;
  const int64_t whole[] = {-2, -1}, n = LU.size(-1);
  const Tensor largest = squeeze_dim(amax(abs(LU), IntList{whole, 2}, true), -1);
  const Tensor least = clamp_min_ts(largest * (single ? 0x1p-23 : 0x1p-52), single ? 0x1p-120 : 0x1p-1000);
  const Tensor own = diagonal_of(LU), kept = where(ge(abs(own), least), own, cast(least, own.dtype()));
  const Tensor exchanged = ne(pivots, add_ts(index_range(n, LU.device()), 1, 1));
  const Tensor sign = prod_dim(where(exchanged, kept * -1, kept), -1, false, std::nullopt);
  return scaled_inverse(LU + diag_embed(kept - own, 0, -2, -1), pivots, transpose, number * conjugate(sign));
}
void det_backward(Node& n, Gradients& g) {
  const Tensor A = n.saved(0);
  if (needs_grad(A, g[0]) || !A.numel()) return g.set(0, times(g[0], cofactors(A)));
  g.set(0, scaled_cofactors(n.saved(1), n.saved(2), n.data<bool>(), g[0]));
}
constexpr NodeType kDet{"LinalgDetBackward0", det_backward};

Tensor det_impl(const Tensor& A) {
  check_square("linalg.det", A);
  const DeterminantFactors f(A);
  const Tensor out = new_empty(batch_of(A), A.dtype(), A);
  launch(determinant_slot, out, Flat(f.LU, 2), Flat(f.pivots, 1), Flat(out, 0), kNone, kNone);
  if (needs_grad(A)) {
    Ref<Node> n = record(kDet, A);
    n->emplace<bool>(f.transpose);
    for (const Tensor& t : {A, f.LU, f.pivots}) n->save(t);
    set_history(out, n);
  }
  return out;
}

// Of a complex determinant, log and the sign's angle are the parts of its logarithm; the sign of a real one
// is constant.
void slogdet_backward(Node& n, Gradients& g) {
  const Tensor A = n.saved(0), sign = n.saved(1);
  Tensor grad = g[1].defined() ? g[1] : zeros(sign.sizes(), {real_of(sign.dtype()), sign.device()});
  if (is_complex(A.dtype())) grad = complex(grad, g[0].defined() ? imag(g[0] * conjugate(sign)) : grad * 0);
  if (needs_grad(A, grad)) return g.set(0, times(grad, adjoint(std::get<0>(inv_ex(A, false)))));
  g.set(0, scaled_inverse(n.saved(2), n.saved(3), n.data<bool>(), grad));
}
constexpr NodeType kSlogdet{"LinalgSlogdetBackward0", slogdet_backward};

Pair slogdet_of(const char* op, const Tensor& A) {
  check_square(op, A);
  const Shape batch = batch_of(A);
  const DeterminantFactors f(A);
  const Tensor sign = new_empty(batch, A.dtype(), A), log = new_empty(batch, real_of(A.dtype()), A);
  launch(determinant_slot, sign, Flat(f.LU, 2), Flat(f.pivots, 1), kNone, Flat(sign, 0), Flat(log, 0));
  if (needs_grad(A)) {
    Ref<Node> n = record(kSlogdet, A);
    n->save(A);
    set_history(sign, n);
    set_history(log, n);
    n->emplace<bool>(f.transpose);
    n->save_output(sign, 0);
    n->save(f.LU);
    n->save(f.pivots);
  }
  return {sign, log};
}
Pair slogdet_impl(const Tensor& A) { return slogdet_of("linalg.slogdet", A); }

Tensor logdet_impl(const Tensor& A) {
  auto [sign, logarithm] = slogdet_of("logdet", A);
  if (is_complex(A.dtype())) return log(sign) + logarithm;
  return where_st(lt_ts(sign, 0), std::numeric_limits<double>::quiet_NaN(), logarithm);
}

// ---- tensors as maps -----------------------------------------------------------------------------------

int64_t product(IntList sizes) { return numel_of(sizes, "linalg.tensorinv"); }

Tensor tensorinv_impl(const Tensor& A, int64_t ind) {
  WT_CHECK(ind > 0, Error, "linalg.tensorinv: Expected a strictly positive integer for 'ind', but got ", ind);
  const IntList sizes(A.sizes().data(), A.sizes().size());
  const size_t cut = std::min<size_t>(static_cast<size_t>(ind), sizes.size());
  const IntList rows = sizes.first(cut), cols = sizes.subspan(cut);
  WT_CHECK(product(rows) == product(cols), ShapeError,
           "linalg.tensorinv: Expected self to satisfy the requirement prod(self.shape[ind:]) == "
           "prod(self.shape[:ind]), but got ",
           product(cols), " != ", product(rows));
  Shape out(cols.begin(), cols.end());
  out.append(rows.begin(), rows.end());
  return reshape(linalg_inv(reshape(A, Shape{product(rows), product(cols)})), out);
}

Tensor tensorsolve_impl(const Tensor& given, const Tensor& B, std::optional<IntList> dims) {
  Tensor A = given;
  if (dims) {  // these dims to the end
    const Shape last = wrap_dims(*dims, A.ndim(), "linalg.tensorsolve");
    Shape order;
    for (int64_t d = 0; d < A.ndim(); ++d)
      if (std::find(last.begin(), last.end(), d) == last.end()) order.push_back(d);
    order.append(last.begin(), last.end());
    A = permute(A, order);
  }
  const size_t cut = std::min(static_cast<size_t>(B.ndim()), A.sizes().size());
  const IntList sizes(A.sizes().data(), A.sizes().size()), out = sizes.subspan(cut), rows = sizes.first(cut);
  WT_CHECK(product(out) == product(rows), ShapeError,
           "linalg.tensorsolve: Expected self to satisfy the requirement prod(self.shape[other.ndim:]) == "
           "prod(self.shape[:other.ndim]), but got ",
           product(out), " != ", product(rows));
  const Tensor X = linalg_solve(reshape(A, Shape{product(out), product(out)}), reshape(B, Shape{-1}), true);
  return reshape(X, out);
}

const Arg kUpper{"upper", kKeywordOnly}, kLeft{"left", true, kKeywordOnly},
    kCheck{"check_errors", false, kKeywordOnly};

}  // namespace

decltype(solve_triangular) solve_triangular{
    "solve_triangular",
    solve_triangular_impl,
    kLinalg | kFloats | kLeading,
    {"A", "B", kUpper, kLeft, {"unitriangular", false, kKeywordOnly}},
    "X with A X = B, or X A = B without `left`, for triangular A: only one triangle is read, and with "
    "`unitriangular` its diagonal is taken as ones."};
decltype(linalg_solve) linalg_solve{
    "solve",
    linalg_solve_impl,
    kLinalg | kFloats | kLeading,
    {"A", "B", kLeft},
    "X with A X = B, or X A = B without `left`. B holds vectors if it has one dim, or A's shape without the "
    "last dim."};
decltype(linalg_inv) linalg_inv{
    "inv", inv_impl, kLinalg | kFloats | kLeading, {"A"}, "The inverses of square matrices."};
decltype(inv_ex) inv_ex{
    "inv_ex",
    inv_ex_impl,
    kLinalg | kFloats | kLeading,
    {"A", kCheck},
    "inv, with info (*) that is not 0 where a matrix is singular; its inverse then holds inf "
    "and nan.",
    {"inverse", "info"}};
decltype(det) det{
    "det", det_impl, kBoth | kLinalg | kFloats | kLeading, {"input"}, "The determinants of square matrices."};
decltype(slogdet) slogdet{
    "slogdet",
    slogdet_impl,
    kBoth | kLinalg | kFloats | kLeading,
    {"input"},
    "Sign, of absolute value 1 where complex, and logarithm of the absolute value of the "
    "determinants.",
    {"sign", "logabsdet"}};

namespace {

const Op<Pair(const Tensor&, const Tensor&, bool, bool)> solve_ex{
    "solve_ex",
    solve_ex_impl,
    kLinalg | kFloats,
    {"A", "B", kLeft, kCheck},
    "solve, with info (*) that is not 0 where a matrix is singular.",
    {"result", "info"}};
const Unary inverse{"inverse", inv_impl, kBoth | kFloats, {"input"}, "linalg.inv under its older name."},
    logdet{"logdet",
           logdet_impl,
           kBoth | kComplex | kFloat32Cpu | kLeading,
           {"input"},
           "The logarithms of the determinants; -inf for 0, nan below unless they are complex."};
const Op<Pair(const Tensor&, const Tensor&, bool, bool, bool)> triangular_solve{
    "triangular_solve",
    triangular_solve_impl,
    kBoth | kFloats,
    {"b", "A", {"upper", true}, {"transpose", false}, {"unitriangular", false}},
    "linalg.solve_triangular under its older name.",
    {"solution", "cloned_coefficient"}};
const Op<Tensor(const Tensor&, const Tensor&, bool)> cholesky_solve{
    "cholesky_solve",
    cholesky_solve_impl,
    kBoth | kOutRows | kFloats | kLeading,
    {"B", "L", {"upper", false}},
    "X with A X = B [*, n, k], from A's Cholesky factor L [*, n, n]."};
const Op<Tensor(const Tensor&, bool)> cholesky_inverse{
    "cholesky_inverse",
    cholesky_inverse_impl,
    kBoth | kOutColumns | kFloats | kLeading,
    {"L", {"upper", false}},
    "The inverse of a Hermitian matrix from its Cholesky factor."};
const Op<Tensor(const Tensor&, int64_t)> tensorinv{
    "tensorinv",
    tensorinv_impl,
    kLinalg | kOutRows | kFloats,
    {"A", Arg::integer("ind", 2)},
    "The inverse of A as a map between its last dims and its first `ind`."};
const Op<Tensor(const Tensor&, const Tensor&, std::optional<IntList>)> tensorsolve{
    "tensorsolve",
    tensorsolve_impl,
    kLinalg | kFloats,
    {"A", "B", {"dims", none}},
    "X with tensordot(A, X, X.ndim) = B; `dims` of A are moved to its end first."};

}  // namespace
}  // namespace warptape::ops
