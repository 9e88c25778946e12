// Factors of matrices: Cholesky, LU, LDL. Derivatives: Murray, "Differentiation of the Cholesky
// decomposition", section 3; for LU, L^-1 dA U^-1 is L^-1 dL, strictly lower, plus dU U^-1, upper.
#include <numeric>

#include "ops/factory/factory.h"
#include "ops/index/gather.h"
#include "ops/index/sort.h"
#include "ops/linalg/linalg.h"
#include "ops/view/copy.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::CholeskyFn> cholesky_slot{"linalg_cholesky"};
kernels::Slot<kernels::LuFn> lu_slot{"linalg_lu"};
kernels::Slot<kernels::LuSolveFn> lu_solve_slot{"linalg_lu_solve"};
kernels::Slot<kernels::RowOrderFn> row_order_slot{"linalg_row_order"};
kernels::Slot<kernels::HasLdlFn> has_ldl_slot{"linalg_has_ldl"};
kernels::Slot<kernels::LdlFn> ldl_slot{"linalg_ldl"};
kernels::Slot<kernels::LdlSolveFn> ldl_solve_slot{"linalg_ldl_solve"};

constexpr OpFacts kBoth = kFunction | kMethod;
constexpr OpFacts kFloats = kComplex | kOut | kFloat32Cpu;
using Factored = std::tuple<Tensor, Tensor>;
using FactoredInfo = std::tuple<Tensor, Tensor, Tensor>;

// ---- Cholesky ------------------------------------------------------------------------------------------

std::string not_positive(int info) {
  return message(
      "The factorization could not be completed because the input is not positive-definite (the leading "
      "minor "
      "of order ",
      info, " is not positive-definite).");
}

// L^-H times the lower half of L^H gL and its adjoint, times L^-1: from both sides by triangular systems.
void cholesky_backward(Node& n, Gradients& g) {
  const bool upper = n.data<bool>();
  const Tensor L = upper ? adjoint(n.saved(0)) : n.saved(0), gL = upper ? adjoint(g[0]) : g[0];
  const Tensor half = tril(matmul(adjoint(L), gL), 0) * 0.5;
  const Tensor inner = solve_triangular(adjoint(L), half + adjoint(tril(half, -1)), true, true, false);
  g.set(0, solve_triangular(L, inner, false, false, false));
}
constexpr NodeType kCholesky{"LinalgCholeskyExBackward0", cholesky_backward};

Factored cholesky_factored(const char* op, const Tensor& A, bool upper, bool check_errors) {
  check_square(op, A);
  const Tensor L = matrix_copy(A), info = new_zeros(batch_of(A), DType::Int32, A);
  launch(cholesky_slot, L, Flat(L, 2), upper, Flat(info, 0));
  if (check_errors) check_info(op, info, not_positive);
  if (needs_grad(A)) {
    Ref<Node> n = record(kCholesky, A);
    n->emplace<bool>(upper);
    set_history(L, n);
    n->save_output(L);
  }
  return {L, info};
}
Factored cholesky_ex_impl(const Tensor& A, bool upper, bool check_errors) {
  return cholesky_factored("linalg.cholesky_ex", A, upper, check_errors);
}
Tensor linalg_cholesky_impl(const Tensor& A, bool upper) {
  return std::get<0>(cholesky_factored("linalg.cholesky", A, upper, true));
}
Tensor cholesky_impl(const Tensor& A, bool upper) {
  return std::get<0>(cholesky_factored("cholesky", A, upper, true));
}

const Op<Factored(const Tensor&, bool, bool)> cholesky_ex{
    "cholesky_ex",
    cholesky_ex_impl,
    kLinalg | kFloats | kLeading,
    {"A", {"upper", false, kKeywordOnly}, {"check_errors", false, kKeywordOnly}},
    "cholesky, with the order of the first leading minor that is not positive as info (*), 0 where all are; "
    "L is factored until there.",
    {"L", "info"}};
const Op<Tensor(const Tensor&, bool)> linalg_cholesky{
    "cholesky",
    linalg_cholesky_impl,
    kLinalg | kFloats | kLeading,
    {"A", {"upper", false, kKeywordOnly}},
    "The lower factor L with L L^H = A of Hermitian positive definite matrices, or its adjoint; only one "
    "triangle of A is read."},
    cholesky{"cholesky",
             cholesky_impl,
             kBoth | kOutRows | kFloats | kLeading,
             {"input", {"upper", false}},
             "linalg.cholesky under its older name."};

// ---- LU ------------------------------------------------------------------------------------------------

std::string zero_pivot(int info) {
  return message(
      "U[", info, ",", info,
      "] is zero and using it on lu_solve would result in a division by zero. If you still want to "
      "perform the factorization, consider calling linalg.lu(A, pivot) or linalg.lu_factor_ex(A, "
      "pivot)");
}

void check_pivot(const char* op, int pivot, int64_t m) {
  WT_CHECK(pivot >= 1 && pivot <= m, Error, op, ": pivots must be ",
           pivot < 1 ? "greater or equal to 1" : "smaller or equal to LU.size(-2)",
           ", that is between 1 and LU.size(-2), got ", pivot, "; did you pass the result of lu_factor?");
}
// The row of A that each row of L U is, int64 [*, m]: pivots are exchanges, one after another. A device tells
// a bad one at its next synchronisation.
Tensor row_order(const char* op, const Tensor& pivots, int64_t m) {
  Shape sizes = pivots.sizes();
  const int64_t k = sizes.back();
  sizes.back() = m;
  Tensor order = new_empty(sizes, DType::Int64, pivots);
  if (order.is_meta() || !order.numel()) return order;
  const Tensor steps = raw_contiguous(detach(pivots));
  if (!order.device().is_host()) {
    launch(row_order_slot, order, Flat(order, 1), Flat(steps, 1));
    return order;
  }
  auto* row = order.data_as<int64_t>();
  const auto* step = steps.data_as<int>();
  for (int64_t b = 0; b < order.numel() / m; ++b, row += m, step += k) {
    std::iota(row, row + m, 0);
    for (int64_t i = 0; i < k; ++i) {
      check_pivot(op, step[i], m);
      if (i < m) std::swap(row[i], row[step[i] - 1]);
    }
  }
  return order;
}

// The rows of x [*, m, n] in an order [*, m]; batches broadcast.
Tensor take_rows(const Tensor& x, const Tensor& order) {
  const Shape sizes = with_matrix(
      broadcast_shapes(batch_of(x), IntList(order.sizes().data(), order.sizes().size() - 1), "lu"),
      x.size(-2), x.size(-1));
  return gather(expand(x, sizes), -2, expand(unsqueeze(order, -1), sizes), false);
}

// The triangles of the square part; what lies below or right of it depends on it by a triangular system.
void lu_backward(Node& n, Gradients& g) {
  const Tensor LU = n.saved(0), pivots = n.saved(1);
  const int64_t m = LU.size(-2), cols = LU.size(-1), k = std::min(m, cols);
  const Tensor square = columns(rows(LU, 0, k), 0, k), inner = columns(rows(g[0], 0, k), 0, k);
  const Tensor L = tril(square, -1) + identity(k, LU), U = triu(square, 0);
  Tensor gL = tril(inner, -1), gU = triu(inner, 0), rest;
  if (m > cols) {  // L2 = A2 U^-1
    rest = solve_triangular(adjoint(U), rows(g[0], k, m - k), false, false, false);
    gU = gU - matmul(adjoint(rows(LU, k, m - k)), rest);
  } else if (m < cols) {  // U2 = L^-1 A2
    rest = solve_triangular(adjoint(L), columns(g[0], k, cols - k), true, true, false);
    gL = gL - matmul(rest, adjoint(columns(LU, k, cols - k)));
  }
  const Tensor middle = tril(matmul(adjoint(L), gL), -1) + triu(matmul(gU, adjoint(U)), 0);
  Tensor found = solve_triangular(adjoint(L), middle, true, true, false);
  found = solve_triangular(adjoint(U), found, false, false, false);
  if (rest.defined()) found = cat(std::vector<Tensor>{found, rest}, m > cols ? -2 : -1);
  g.set(0, take_rows(found, argsort(row_order("lu", pivots, m), -1, false, false)));
}
constexpr NodeType kLu{"LinalgLuFactorExBackward0", lu_backward};

FactoredInfo lu_factored(const char* op, const Tensor& A, bool pivot, bool check_errors) {
  check_matrices(op, A);
  WT_CHECK(pivot || A.device().is_cuda(), Error,
           "linalg.lu_factor: LU without pivoting is not implemented on the CPU");
  Shape steps = batch_of(A);
  steps.push_back(std::min(A.size(-2), A.size(-1)));
  const Tensor LU = matrix_copy(A), pivots = new_zeros(steps, DType::Int32, A),
               info = new_zeros(batch_of(A), DType::Int32, A);
  if (pivot) {
    launch(lu_slot, LU, Flat(LU, 2), Flat(pivots, 1), Flat(info, 0));
  } else {  // no row is exchanged: each stands for itself
    launch(lu_slot, LU, Flat(LU, 2), kernels::View{}, Flat(info, 0));
    raw_copy(pivots, add_ts(index_range(steps.back(), A.device()), 1, 1));
  }
  if (check_errors) check_info(op, info, zero_pivot);
  if (needs_grad(A)) {
    Ref<Node> n = record(kLu, A);
    set_history(LU, n);
    n->save_output(LU);
    n->save(pivots);
  }
  return {LU, pivots, info};
}
FactoredInfo lu_factor_ex_impl(const Tensor& A, bool pivot, bool check_errors) {
  return lu_factored("linalg.lu_factor_ex", A, pivot, check_errors);
}
Factored lu_factor_impl(const Tensor& A, bool pivot) {
  auto [LU, pivots, info] = lu_factored("linalg.lu_factor", A, pivot, true);
  return {LU, pivots};
}
std::vector<Tensor> old_lu_impl(const Tensor& A, bool pivot, bool get_infos) {
  auto [LU, pivots, info] = lu_factored("lu", A, pivot, !get_infos);
  if (get_infos) return {LU, pivots, info};
  return {LU, pivots};
}

FactoredInfo lu_unpack_impl(const Tensor& LU, const Tensor& pivots, bool data, bool permutation) {
  WT_CHECK(pivots.dtype() == DType::Int32, DtypeError, "lu_unpack: expected LU_pivots of int32, got ",
           pivots.dtype(), "; it is meant for the result of linalg.lu_factor");
  const int64_t m = LU.size(-2), cols = LU.size(-1), k = std::min(m, cols);
  Tensor P, L, U;
  if (permutation) {
    const Tensor order = row_order("lu_unpack", narrow(pivots, -1, 0, std::min(k, pivots.size(-1))), m);
    // Column j has its one in row order[j].
    P = zeros(with_matrix(Shape(order.sizes().begin(), order.sizes().end() - 1), m, m), options_of(LU));
    P = scatter_value(P, -2, unsqueeze(order, -2), 1);
  } else {
    P = empty(Shape{0}, options_of(LU));
  }
  if (data) {
    const Tensor ones = columns(identity(std::max(m, k), LU), 0, k);
    L = tril(columns(LU, 0, k), -1) + ones;
    U = triu(rows(LU, 0, k), 0);
  } else {
    L = empty(Shape{0}, options_of(LU)), U = empty(Shape{0}, options_of(LU));
  }
  return {P, L, U};
}
FactoredInfo lu_impl(const Tensor& A, bool pivot) {
  auto [LU, pivots, info] = lu_factored("linalg.lu", A, pivot, false);
  return lu_unpack_impl(LU, pivots, true, pivot);
}

// By LAPACK, where no derivative is wanted.
Tensor solved_on_host(const char* op, const Tensor& LU, const Tensor& pivots, const Tensor& B,
                      bool adjoined) {
  const Shape batch = broadcast_shapes(batch_of(LU), batch_of(B), op);
  Shape steps = batch;
  steps.push_back(LU.size(-1));
  const Tensor a = as_matrices(LU, batch), x = matrix_copy(B, batch),
               p = raw_contiguous(expand_view(detach(pivots), steps));
  const int* all = p.data_as<int>();
  for (int64_t i = 0; i < p.numel(); ++i) check_pivot(op, all[i], LU.size(-1));
  launch(lu_solve_slot, x, Flat(a, 2), Flat(p, 1), Flat(x, 2), adjoined);
  return x;
}

Tensor linalg_lu_solve_impl(const Tensor& LU, const Tensor& pivots, const Tensor& B, bool left,
                            bool adjoined) {
  const char* op = "linalg.lu_solve";
  check_square(op, LU, "LU");
  WT_CHECK(pivots.dtype() == DType::Int32, DtypeError, op,
           ": pivots should be a Tensor of scalar type torch.int32, got ", pivots.dtype());
  WT_CHECK(pivots.ndim() == LU.ndim() - 1 && pivots.size(-1) == LU.size(-1), ShapeError, op,
           ": Number of pivots per batch should be same as the dimension of the matrix, got pivots ", pivots,
           " for LU ", LU);
  check_equation(op, LU, B, left);
  const Tensor right = left ? B : adjoint(B);
  Tensor x;
  if (LU.device().is_host() && !needs_grad(LU, B)) {
    x = solved_on_host(op, LU, pivots, right, adjoined == left);
    return left ? x : adjoint(x);
  }
  const Tensor order = row_order(op, pivots, LU.size(-1));
  if (adjoined == left) {
    x = solve_triangular(adjoint(LU), right, false, true, false);
    x = solve_triangular(adjoint(LU), x, true, true, true);
    // Column-major, as the solutions of the other branch are.
    x = transposed(contiguous(transposed(take_rows(x, argsort(order, -1, false, false)))));
  } else {
    x = solve_triangular(LU, take_rows(right, order), false, true, true);
    x = solve_triangular(LU, x, true, true, false);
  }
  return left ? x : adjoint(x);
}
Tensor lu_solve_impl(const Tensor& b, const Tensor& LU, const Tensor& pivots) {
  return linalg_lu_solve_impl(LU, pivots, b, true, false);
}

const Arg kPivot{"pivot", true, kKeywordOnly};

}  // namespace

decltype(lu_factor_ex) lu_factor_ex{"lu_factor_ex",
                                    lu_factor_ex_impl,
                                    kLinalg | kFloats,
                                    {"A", kPivot, {"check_errors", false, kKeywordOnly}},
                                    "lu_factor, with the place, from 1, of the first zero on U's diagonal as "
                                    "info (*), 0 where there is none.",
                                    {"LU", "pivots", "info"}};
decltype(linalg_lu_solve) linalg_lu_solve{
    "lu_solve",
    linalg_lu_solve_impl,
    kLinalg | kFloats | kLeading,
    {"LU", "pivots", "B", {"left", true, kKeywordOnly}, {"adjoint", false, kKeywordOnly}},
    "X with A X = B, or X A = B without `left`, or of A^H with `adjoint`, by the result of lu_factor."};

namespace {

const Op<Factored(const Tensor&, bool)> lu_factor{
    "lu_factor",
    lu_factor_impl,
    kLinalg | kFloats | kLeading,
    {"A", kPivot},
    "The factors of A = P L U in one tensor (L below the diagonal, without its ones), and int32 pivots [*, "
    "k]: "
    "step i exchanged the rows i and pivots[i], counted from 1.",
    {"LU", "pivots"}};
const Op<FactoredInfo(const Tensor&, bool)> lu{
    "lu",
    lu_impl,
    kLinalg | kFloats | kLeading,
    {"A", kPivot},
    "P [*, m, m], L [*, m, k] with ones on its diagonal, and U [*, k, n], with P L U = A.",
    {"P", "L", "U"}};
const Op<std::vector<Tensor>(const Tensor&, bool, bool)> old_lu{
    "lu",
    old_lu_impl,
    kBoth | kOut | kOutRows | kComplex | kFloat32Cpu | kLeading,
    {"A", {"pivot", true}, {"get_infos", false}},
    "linalg.lu_factor under its older name; with `get_infos`, linalg.lu_factor_ex."};
const Op<FactoredInfo(const Tensor&, const Tensor&, bool, bool)> lu_unpack{
    "lu_unpack",
    lu_unpack_impl,
    kFunction | kFloats,
    {"LU_data", "LU_pivots", {"unpack_data", true}, {"unpack_pivots", true}},
    "linalg.lu's P, L and U from the result of linalg.lu_factor; what is not asked for is empty.",
    {"P", "L", "U"}};
const Op<Tensor(const Tensor&, const Tensor&, const Tensor&)> lu_solve{
    "lu_solve",
    lu_solve_impl,
    kBoth | kFloats | kLeading,
    {"b", "LU_data", "LU_pivots"},
    "linalg.lu_solve under its older name."};

// ---- LDL -----------------------------------------------------------------------------------------------

std::string zero_block(int info) {
  return message("D[", info, ",", info,
                 "] is exactly zero: the factorization has been completed, but the block "
                 "diagonal factor D is singular");
}

// On the host where the device's library has no LDL.
Tensor for_ldl(const Tensor& x) {
  return x.is_meta() || x.device().is_host() || has_ldl_slot(launch_context(x.device())) ? x : on_host(x);
}

FactoredInfo ldl_factored(const char* op, const Tensor& given, bool hermitian, bool check_errors) {
  check_square(op, given);
  const Tensor A = for_ldl(given);
  Shape steps = batch_of(A);
  steps.push_back(A.size(-1));
  const Tensor LD = matrix_copy(A), pivots = new_zeros(steps, DType::Int32, A),
               info = new_zeros(batch_of(A), DType::Int32, A);
  launch(ldl_slot, LD, Flat(LD, 2), Flat(pivots, 1), hermitian, Flat(info, 0));
  if (check_errors) check_info(op, info, zero_block);
  return {placed(LD, given), placed(pivots, given), placed(info, given)};
}
FactoredInfo ldl_factor_ex_impl(const Tensor& A, bool hermitian, bool check_errors) {
  return ldl_factored("linalg.ldl_factor_ex", A, hermitian, check_errors);
}
Factored ldl_factor_impl(const Tensor& A, bool hermitian) {
  auto [LD, pivots, info] = ldl_factored("linalg.ldl_factor", A, hermitian, true);
  return {LD, pivots};
}

Tensor ldl_solve_impl(const Tensor& LD, const Tensor& pivots, const Tensor& B, bool hermitian) {
  const char* op = "linalg.ldl_solve";
  check_square(op, LD, "LD");
  WT_CHECK(is_integral(pivots.dtype()), DtypeError, op, ": Expected pivots to be integers. Got ",
           pivots.dtype());
  WT_CHECK(IntList(pivots.sizes()).size() == LD.sizes().size() - 1 &&
               std::equal(pivots.sizes().begin(), pivots.sizes().end(), LD.sizes().begin()),
           ShapeError, op,
           ": Expected LD.shape[:-1] and pivots.shape to be the same, but got pivots with shape ",
           pivots.sizes(), " instead");
  check_equation(op, LD, B, true);
  const Shape batch = broadcast_shapes(batch_of(LD), batch_of(B), op);
  const Tensor a = as_matrices(for_ldl(LD), batch), x = matrix_copy(for_ldl(B), batch);
  Shape steps = batch;
  steps.push_back(LD.size(-1));
  const Tensor p = new_empty(steps, DType::Int32, a);
  if (!p.is_meta()) raw_copy(p, expand_view(for_ldl(pivots), steps));
  launch(ldl_solve_slot, x, Flat(a, 2), Flat(p, 1), Flat(x, 2), hermitian);
  return placed(x, B);
}

const Arg kHermitian{"hermitian", false, kKeywordOnly};
const Op<FactoredInfo(const Tensor&, bool, bool)> ldl_factor_ex{
    "ldl_factor_ex",
    ldl_factor_ex_impl,
    kLinalg | kFloats,
    {"A", kHermitian, {"check_errors", false, kKeywordOnly}},
    "ldl_factor, with the place, from 1, of the first zero block of D as info (*), 0 where there is none.",
    {"LD", "pivots", "info"}};
const Op<Factored(const Tensor&, bool)> ldl_factor{
    "ldl_factor",
    ldl_factor_impl,
    kLinalg | kFloats,
    {"A", kHermitian},
    "L and block diagonal D with L D L^T = A of symmetric matrices, or L D L^H with `hermitian`, packed as "
    "LAPACK's sytrf does, and its pivots. Not differentiable.",
    {"LD", "pivots"}};
const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, bool)> ldl_solve{
    "ldl_solve",
    ldl_solve_impl,
    kLinalg | kFloats,
    {"LD", "pivots", "B", kHermitian},
    "X with A X = B by the result of ldl_factor. Not differentiable."};

}  // namespace
}  // namespace warptape::ops
