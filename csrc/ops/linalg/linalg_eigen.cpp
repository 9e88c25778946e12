// Eigenvalues and singular values. Derivatives: Giles, "An extended collection of matrix derivative results
// for forward and reverse mode algorithmic differentiation", section 3, with adjoints where numbers are
// complex. Those of vectors exist where no two values are equal, and are refused to losses that depend on the
// phases of complex vectors, which are arbitrary.
#include "ops/linalg/linalg.h"
#include "ops/view/copy.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::EighFn> eigh_slot{"linalg_eigh"};
kernels::Slot<kernels::EigFn> eig_slot{"linalg_eig"};
kernels::Slot<kernels::SvdFn> svd_slot{"linalg_svd"};

constexpr OpFacts kFloats = kComplex | kOut | kFloat32Cpu;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;
using Name = std::string_view;
using OptName = std::optional<std::string_view>;

Shape vector_sizes(const Tensor& A) {
  Shape sizes = batch_of(A);
  sizes.push_back(std::min(A.size(-2), A.size(-1)));
  return sizes;
}

// 1 / (v_j - v_i) at [i, j], and 0 on the diagonal.
Tensor inverse_gaps(const Tensor& values) {
  const Tensor gaps = unsqueeze(values, -2) - unsqueeze(values, -1), one = identity(values.size(-1), values);
  return (1 - one) / (gaps + one);
}
// The same of their squares, without the squares' rounding.
Tensor inverse_square_gaps(const Tensor& values) {
  const Tensor a = unsqueeze(values, -2), b = unsqueeze(values, -1), one = identity(values.size(-1), values);
  return (1 - one) / ((a - b) * (a + b) + one);
}

// The diagonals of vectors^H gradient have imaginary parts that do not cancel where a loss depends on the
// vectors' phases.
void check_phases(const char* what, const Tensor& turned) {
  if (!is_complex(turned.dtype()) || turned.device().is_meta() || !turned.numel()) return;
  NoGrad off;
  const Tensor parts = abs(imag(diagonal_of(turned)));
  WT_CHECK(
      item(all(le_ts(parts, 1e-2), std::nullopt, false)).to_bool(), Error, what,
      " in the complex case are specified up to multiplication by e^{i phi}. The specified loss function "
      "depends on this quantity, so it is ill-defined.");
}

Tensor scaled_columns(const Tensor& x, const Tensor& by) { return x * unsqueeze(by, -2); }
Tensor on_diagonal(const Tensor& x) { return diag_embed(x, 0, -2, -1); }

std::string no_convergence(int info, const char* what) {
  if (info == -4)
    return "The algorithm failed to converge because the input matrix contained non-finite values.";
  return message(
      "The algorithm failed to converge because the input matrix is ill-conditioned or has too many "
      "repeated ",
      what, " (error code: ", info, ").");
}
std::string eigen_failed(int info) { return no_convergence(info, "eigenvalues"); }
std::string svd_failed(int info) { return no_convergence(info, "singular values"); }

// ---- Hermitian matrices --------------------------------------------------------------------------------

void eigh_backward(Node& n, Gradients& g) {
  const Tensor values = n.saved(0), V = n.saved(1);
  Tensor left;
  if (g[0].defined()) left = scaled_columns(V, g[0]);
  if (g[1].defined()) {
    const Tensor m = matmul(adjoint(V), g[1]);
    check_phases("linalg_eigh_backward: The eigenvectors", m);
    const Tensor part = matmul(V, m * inverse_gaps(values));
    left = left.defined() ? left + part : part;
  }
  if (left.defined()) g.set(0, hermitian_part(matmul(left, adjoint(V))));
}
constexpr NodeType kEigh{"LinalgEighBackward0", eigh_backward};

Pair eigh_raw(const char* op, const Tensor& A, Name uplo, bool vectors) {
  check_square(op, A);
  const char triangle = uplo.empty() ? ' ' : static_cast<char>(std::toupper(uplo[0]));
  WT_CHECK(triangle == 'L' || triangle == 'U', Error, op,
           ": Expected UPLO argument to be 'L' or 'U', but got ", uplo);
  const Tensor V = matrix_copy(A), info = new_zeros(batch_of(A), DType::Int32, A),
               values = new_empty(vector_sizes(A), real_of(A.dtype()), A);
  launch(eigh_slot, V, Flat(V, 2), Flat(values, 1), triangle == 'U', vectors, Flat(info, 0));
  check_info(op, info, eigen_failed);
  return {values, vectors ? V : Tensor()};
}
Pair eigh_recorded(const char* op, const Tensor& A, Name uplo) {
  auto [values, V] = eigh_raw(op, A, uplo, true);
  if (needs_grad(A)) {
    Ref<Node> n = record(kEigh, A);
    set_history(values, n);
    set_history(V, n);
    n->save_output(values, 0);
    n->save_output(V, 1);
  }
  return {values, V};
}
Pair eigh_impl(const Tensor& A, Name uplo) { return eigh_recorded("linalg.eigh", A, uplo); }
Tensor eigvalsh_impl(const Tensor& A, Name uplo) {
  const bool recorded = needs_grad(A);
  return std::get<0>(recorded ? eigh_recorded("linalg.eigvalsh", A, uplo)
                              : eigh_raw("linalg.eigvalsh", A, uplo, false));
}

// ---- any square matrices -------------------------------------------------------------------------------

struct EigData {
  bool real;
};
void eig_backward(Node& n, Gradients& g) {
  const Tensor values = n.saved(0), V = n.saved(1);
  Tensor inner;
  if (g[0].defined()) inner = on_diagonal(g[0]);
  if (g[1].defined()) {
    const Tensor Vh = adjoint(V), m = matmul(Vh, g[1]);
    check_phases("linalg_eig_backward: The eigenvectors", m);
    // The columns stay of norm 1.
    const Tensor kept = unsqueeze(real(diagonal_of(m)), -2);
    const Tensor turned = (m - matmul(Vh, V) * kept) * conjugate(inverse_gaps(values));
    inner = inner.defined() ? inner + turned : turned;
  }
  if (!inner.defined()) return;
  const Tensor found = linalg_solve(adjoint(V), matmul(inner, adjoint(V)), true);
  g.set(0, n.data<EigData>().real ? real(found) : found);
}
constexpr NodeType kEig{"LinalgEigBackward0", eig_backward};

Pair eig_raw(const char* op, const Tensor& A, bool vectors) {
  check_square(op, A);
  const DType dtype = complex_of(A.dtype());
  const Tensor a = matrix_copy(A), info = new_zeros(batch_of(A), DType::Int32, A),
               values = new_empty(vector_sizes(A), dtype, A);
  const Tensor V = new_matrices(vectors ? A.sizes() : Shape{0, 0}, dtype, A);
  const kernels::View none{nullptr, nullptr, nullptr, 0, dtype, false};
  const Flat flat(V, 2);
  launch(eig_slot, a, Flat(a, 2), Flat(values, 1), vectors ? static_cast<const kernels::View&>(flat) : none,
         Flat(info, 0));
  check_info(op, info, eigen_failed);
  return {values, vectors ? V : Tensor()};
}
Pair eig_recorded(const Tensor& A) {
  auto [values, V] = eig_raw("linalg.eig", A, true);
  if (needs_grad(A)) {
    Ref<Node> n = record(kEig, A);
    n->emplace<EigData>(!is_complex(A.dtype()));
    set_history(values, n);
    set_history(V, n);
    n->save_output(values, 0);
    n->save_output(V, 1);
  }
  return {values, V};
}
Pair eig_impl(const Tensor& A) {
  Pair out = eig_recorded(A);
  NoGrad off;
  WT_CHECK(A.device().is_meta() || !item(any(isnan(abs(std::get<0>(out))), std::nullopt, false)).to_bool(),
           LinAlgError,
           "linalg.eig: input tensor should not contain infs or NaNs, but there are non-finite values");
  return out;
}
Tensor eigvals_impl(const Tensor& A) {
  const bool recorded = needs_grad(A);
  return std::get<0>(recorded ? eig_recorded(A) : eig_raw("linalg.eigvals", A, false));
}

// ---- singular values -----------------------------------------------------------------------------------

void svd_backward(Node& n, Gradients& g) {
  Tensor U = n.saved(0), Vh = n.saved(2), gU = g[0], gVh = g[2];
  const Tensor S = n.saved(1);
  const Tensor& gS = g[1];
  const int64_t k = S.size(-1);
  // Of full matrices the rest of the vectors is arbitrary.
  U = columns(U, 0, k), Vh = rows(Vh, 0, k);
  if (gU.defined()) gU = columns(gU, 0, k);
  if (gVh.defined()) gVh = rows(gVh, 0, k);
  if (!gU.defined() && !gVh.defined()) {
    if (gS.defined()) g.set(0, matmul(scaled_columns(U, gS), Vh));
    return;
  }
  if (!gU.defined()) gU = zeros(U.sizes(), options_of(U));
  if (!gVh.defined()) gVh = zeros(Vh.sizes(), options_of(Vh));
  const Tensor mU = matmul(adjoint(U), gU), mV = matmul(Vh, adjoint(gVh));
  check_phases("svd_backward: The singular vectors", mU + mV);
  const Tensor squares = inverse_square_gaps(S), across = unsqueeze(S, -2), down = unsqueeze(S, -1);
  Tensor inner = (mU - adjoint(mU)) * squares * across + down * ((mV - adjoint(mV)) * squares);
  if (gS.defined()) inner = inner + on_diagonal(gS);
  if (is_complex(U.dtype())) {  // each turns by half of the difference that the diagonal makes
    const Tensor turned = imag(diagonal_of(mU - mV)) / (2 * S);
    inner = inner + on_diagonal(complex(turned * 0, turned));
  }
  Tensor out = matmul(matmul(U, inner), Vh);
  if (U.size(-2) > k) out = out + matmul((gU - matmul(U, mU)) / across, Vh);
  if (Vh.size(-1) > k) out = out + matmul(U / across, gVh - matmul(adjoint(mV), Vh));
  g.set(0, out);
}
constexpr NodeType kSvd{"LinalgSvdBackward0", svd_backward};

Triple svd_raw(const char* op, const Tensor& A, bool full, bool vectors, OptName driver) {
  check_matrices(op, A);
  WT_CHECK(!driver || A.device().is_cuda(), Error, op,
           ": keyword argument `driver=` is only supported on CUDA inputs with cuSOLVER backend.");
  const int64_t m = A.size(-2), n = A.size(-1), k = std::min(m, n);
  const Shape batch = batch_of(A);
  const Tensor a = matrix_copy(A), info = new_zeros(batch, DType::Int32, A),
               S = new_empty(vector_sizes(A), real_of(A.dtype()), A);
  const Tensor U = new_matrices(vectors ? with_matrix(batch, m, full ? m : k) : Shape{0, 0}, A.dtype(), A),
               Vh = new_matrices(vectors ? with_matrix(batch, full ? n : k, n) : Shape{0, 0}, A.dtype(), A);
  if (k == 0 && vectors && !a.is_meta()) {  // the vectors of what is empty: any, so the identity
    for (const Tensor& t : {U, Vh})
      if (t.numel()) raw_copy(t, expand_view(identity(t.size(-1), t), t.sizes()));
  } else {
    const kernels::View none{nullptr, nullptr, nullptr, 0, A.dtype(), false};
    const Flat left(U, 2), right(Vh, 2);
    launch(svd_slot, a, Flat(a, 2), vectors ? static_cast<const kernels::View&>(left) : none, Flat(S, 1),
           vectors ? static_cast<const kernels::View&>(right) : none, Flat(info, 0));
  }
  check_info(op, info, svd_failed);
  if (!vectors) return {Tensor(), S, Tensor()};
  return {U, S, Vh};
}
Triple svd_recorded(const char* op, const Tensor& A, bool full, OptName driver) {
  auto [U, S, Vh] = svd_raw(op, A, full, true, driver);
  if (needs_grad(A)) {
    Ref<Node> n = record(kSvd, A);
    for (const Tensor& t : {U, S, Vh}) set_history(t, n);
    n->save_output(U, 0);
    n->save_output(S, 1);
    n->save_output(Vh, 2);
  }
  return {U, S, Vh};
}
Triple linalg_svd_impl(const Tensor& A, bool full_matrices, OptName driver) {
  return svd_recorded("linalg.svd", A, full_matrices, driver);
}
Tensor svdvals_impl(const Tensor& A, OptName driver) {
  const bool recorded = needs_grad(A);
  return std::get<1>(recorded ? svd_recorded("linalg.svdvals", A, false, driver)
                              : svd_raw("linalg.svd", A, false, false, driver));
}
Triple svd_impl(const Tensor& A, bool some, bool compute_uv) {
  if (compute_uv) {
    auto [U, S, Vh] = svd_recorded("svd", A, !some, std::nullopt);
    return {U, S, adjoint(Vh)};
  }
  const Tensor S = svdvals_impl(A, std::nullopt);
  auto none = [&](int64_t n) { return zeros(with_matrix(batch_of(A), n, n), options_of(A)); };
  return {none(A.size(-2)), S, none(A.size(-1))};
}

}  // namespace

decltype(linalg_eigh) linalg_eigh{"eigh",
                                  eigh_impl,
                                  kLinalg | kFloats | kLeading,
                                  {"A", {"UPLO", "L"}},
                                  "Eigenvalues [*, n], ascending, and eigenvectors in columns of Hermitian "
                                  "matrices, of which only the lower "
                                  "triangle is read, or the upper with UPLO \"U\".",
                                  {"eigenvalues", "eigenvectors"}};
decltype(eigvalsh) eigvalsh{"eigvalsh",
                            eigvalsh_impl,
                            kLinalg | kFloats | kLeading,
                            {"A", {"UPLO", "L"}},
                            "The eigenvalues of eigh, with a derivative also where some are equal."};
decltype(linalg_svd) linalg_svd{"svd",
                                linalg_svd_impl,
                                kLinalg | kFloats | kLeading,
                                {"A", {"full_matrices", true}, {"driver", none, kKeywordOnly}},
                                "U [*, m, m], singular values S [*, k], descending, and Vh [*, n, n] with U "
                                "diag(S) Vh = A; [*, m, k] and "
                                "[*, k, n] without `full_matrices`.",
                                {"U", "S", "Vh"}};
decltype(svdvals) svdvals{"svdvals",
                          svdvals_impl,
                          kLinalg | kFloats | kLeading,
                          {"A", {"driver", none, kKeywordOnly}},
                          "The singular values of svd, with a derivative also where some are equal."};

namespace {

const Op<Pair(const Tensor&)> eig{"eig",
                                  eig_impl,
                                  kLinalg | kFloats | kLeading,
                                  {"A"},
                                  "Eigenvalues [*, n], in no order, and eigenvectors in columns of norm 1 of "
                                  "square matrices; complex, also "
                                  "of real matrices.",
                                  {"eigenvalues", "eigenvectors"}};
const Op<Tensor(const Tensor&)> eigvals{
    "eigvals", eigvals_impl, kLinalg | kFloats | kLeading, {"A"}, "The eigenvalues of eig."};
const Op<Triple(const Tensor&, bool, bool)> svd{
    "svd",
    svd_impl,
    kFunction | kMethod | kFloats | kLeading,
    {"input", {"some", true}, {"compute_uv", true}},
    "linalg.svd under its older name: (U, S, V), A = U diag(S) V^H; zeros for U and V without `compute_uv`.",
    {"U", "S", "V"}};

}  // namespace
}  // namespace warptape::ops
