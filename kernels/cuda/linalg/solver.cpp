// Factors and systems of equations by cuSOLVER; triangular systems, and batches of small matrices, by cuBLAS.
#include "kernels/cuda/linalg/solver.h"

#include <array>

#include "kernels/cuda/common/relaxed_capture.h"
#include "kernels/cuda/libraries/cusolver_ldl.h"
#include "kernels/cuda/libraries/library.h"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {

// ---- handles -------------------------------------------------------------------------------------------

namespace {
constexpr size_t kMaxDevices = 64;
// cuBLAS's batched LU and QR are made for small matrices; larger ones fill the device one by one.
constexpr int kBatchedRows = 256;

[[noreturn]] void raise_status(const char* op, const char* routine, const char* library, int status) {
  raise_library_error(std::string(op) + ": " + routine + " of " + library + " failed with status " +
                      std::to_string(status));
}
}  // namespace

struct Solver::Handles {
  cusolverDnHandle_t solver = nullptr;
  cublasHandle_t blas = nullptr;
  cusolverDnParams_t params = nullptr;
  gesvdjInfo_t jacobi = nullptr;
  std::mutex mutex;
};

Solver::Handles& Solver::handles_of(int device) {
  static std::array<Handles*, kMaxDevices> all{};
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  Handles*& entry = all[static_cast<size_t>(device)];
  if (!entry) entry = new Handles;  // never freed: threads may outlive main
  return *entry;
}

Solver::Solver(const LaunchContext& ctx, const char* op)
    : ctx_(ctx), op_(op), handles_(handles_of(ctx.device_index)), lock_(handles_.mutex) {
  use_device(ctx.device_index);
  const auto stream = static_cast<cudaStream_t>(ctx.stream);
  if (!handles_.solver) {
    RelaxedCapture relaxed;
    check(cusolverDnCreate(&handles_.solver), "cusolverDnCreate");
  }
  check(cusolverDnSetStream(handles_.solver, stream), "cusolverDnSetStream");
}

cusolverDnHandle_t Solver::handle() const { return handles_.solver; }
cublasHandle_t Solver::blas() const {
  if (!handles_.blas) {
    RelaxedCapture relaxed;
    check(cublasCreate(&handles_.blas), "cublasCreate");
  }
  check(cublasSetStream(handles_.blas, static_cast<cudaStream_t>(ctx_.stream)), "cublasSetStream");
  return handles_.blas;
}
cusolverDnParams_t Solver::params() const {
  if (!handles_.params) check(cusolverDnCreateParams(&handles_.params), "cusolverDnCreateParams");
  return handles_.params;
}
gesvdjInfo_t Solver::jacobi() const {
  if (!handles_.jacobi) check(cusolverDnCreateGesvdjInfo(&handles_.jacobi), "cusolverDnCreateGesvdjInfo");
  return handles_.jacobi;
}

void Solver::check(cusolverStatus_t status, const char* routine) const {
  if (__builtin_expect(status != CUSOLVER_STATUS_SUCCESS, 0))
    raise_status(op_, routine, "cuSOLVER", static_cast<int>(status));
}
void Solver::check(cublasStatus_t status, const char* routine) const {
  if (__builtin_expect(status != CUBLAS_STATUS_SUCCESS, 0))
    raise_status(op_, routine, "cuBLAS", static_cast<int>(status));
}

// ---- what several slots do -----------------------------------------------------------------------------

namespace {

template <class T>
constexpr cublasOperation_t turned(bool adjoint) {
  return !adjoint ? CUBLAS_OP_N : kComplexMatrix<T> ? CUBLAS_OP_C : CUBLAS_OP_T;
}
template <class T>
bool is_small_batch(const Matrices<T>& a) {
  return a.count > 1 && a.m == a.n && a.n <= kBatchedRows;
}

template <class T>
void factor_lu(const Solver& s, const Matrices<T>& a, int* pivots, int* info) {
  using R = Routines<T>;
  if (a.empty()) return;
  if (is_small_batch(a)) {
    const auto blas = s.blas();
    return s.check(R::getrf_batched(blas, a.n, s.pointers(a), a.ld, pivots, info, a.count), "getrfBatched");
  }
  int size = 0;
  s.check(R::getrf_size(s.handle(), a.m, a.n, lib(a.data), a.ld, &size), "getrf_bufferSize");
  T* work = s.scratch<T>(size);
  for (int i = 0; i < a.count; ++i)
    s.check(R::getrf(s.handle(), a.m, a.n, lib(a[i]), a.ld, lib(work),
                     pivots ? pivots + int64_t{i} * a.least() : nullptr, info + i),
            "getrf");
}

// As PyTorch: 16 rows more are worth a matrix more.
template <class T>
bool is_qr_batch(const Matrices<T>& a) {
  return a.m <= kBatchedRows && a.count >= std::max(2, a.m / 16);
}

template <class T>
void factor_qr(const Solver& s, const Matrices<T>& a, T* tau) {
  using R = Routines<T>;
  if (a.empty()) return;
  if (is_qr_batch(a)) {
    int refused = 0;  // on the host: an argument that cuBLAS does not take
    const auto blas = s.blas();
    return s.check(R::geqrf_batched(blas, a.m, a.n, s.pointers(a), a.ld, s.pointers(tau, a.least(), a.count),
                                    &refused, a.count),
                   "geqrfBatched");
  }
  int size = 0, *info = s.scratch<int>(1);
  s.check(R::geqrf_size(s.handle(), a.m, a.n, lib(a.data), a.ld, &size), "geqrf_bufferSize");
  T* work = s.scratch<T>(size);
  for (int i = 0; i < a.count; ++i)
    s.check(R::geqrf(s.handle(), a.m, a.n, lib(a[i]), a.ld, lib(tau + int64_t{i} * a.least()), lib(work),
                     size, info),
            "geqrf");
}

// C becomes Q C, or C Q, by k reflectors in A's columns.
template <class T>
void multiply_by_q(const Solver& s, const Matrices<T>& a, T* tau, int k, const Matrices<T>& c, bool left,
                   bool adjoint) {
  using R = Routines<T>;
  if (c.empty() || k == 0) return;
  if (is_qr_batch(a))
    return apply_reflectors(s.ctx(), s.op(), args_of(c), {args_of(a), tau, k, left, adjoint});
  const cublasSideMode_t side = left ? CUBLAS_SIDE_LEFT : CUBLAS_SIDE_RIGHT;
  const cublasOperation_t op = turned<T>(adjoint);
  int size = 0, *info = s.scratch<int>(1);
  s.check(R::multiply_size(s.handle(), side, op, c.m, c.n, k, lib(a.data), a.ld, lib(tau), lib(c.data), c.ld,
                           &size),
          "ormqr_bufferSize");
  T* work = s.scratch<T>(size);
  for (int i = 0; i < c.count; ++i)
    s.check(R::multiply(s.handle(), side, op, c.m, c.n, k, lib(a[i]), a.ld, lib(tau + int64_t{i} * k),
                        lib(c[i]), c.ld, lib(work), size, info),
            "ormqr");
}

struct TriangularForm {
  bool left, upper, unit = false, adjoint = false;
};
// Of B's rows the first `rows`, which become X with op(A) X = B, or X op(A) = B; of A the first ones
// likewise.
template <class T>
void solve_by_triangle(const Solver& s, const Matrices<T>& a, const Matrices<T>& b, int rows,
                       TriangularForm f) {
  using R = Routines<T>;
  if (b.empty() || rows == 0) return;
  const cublasSideMode_t side = f.left ? CUBLAS_SIDE_LEFT : CUBLAS_SIDE_RIGHT;
  const cublasDiagType_t ones = f.unit ? CUBLAS_DIAG_UNIT : CUBLAS_DIAG_NON_UNIT;
  const cublasOperation_t op = turned<T>(f.adjoint);
  T one(1);
  const auto blas = s.blas();
  if (b.count == 1)
    return s.check(R::trsm(blas, side, fill(f.upper), op, ones, rows, b.n, lib(&one), lib(a.data), a.ld,
                           lib(b.data), b.ld),
                   "trsm");
  s.check(R::trsm_batched(blas, side, fill(f.upper), op, ones, rows, b.n, lib(&one), s.pointers(a), a.ld,
                          s.pointers(b), b.ld, b.count),
          "trsmBatched");
}

// ---- slots ---------------------------------------------------------------------------------------------

void linalg_lu(const LaunchContext& ctx, const View& a, const View& pivots, const View& info) {
  by_solver(ctx, "linalg.lu_factor", a.dtype, [&](const Solver& s, auto t) {
    using T = typename decltype(t)::type;
    factor_lu(s, Matrices<T>(s.op(), a), pivots.as<int>(), info.as<int>());
  });
}

// B [n, k] becomes X by the factors.
template <class T>
void solve_by_lu(const Solver& s, const Matrices<T>& a, int* pivots, const Matrices<T>& b) {
  using R = Routines<T>;
  if (b.empty()) return;
  if (is_small_batch(a)) {
    int refused = 0;  // on the host: an argument that cuBLAS does not take
    const auto blas = s.blas();
    return s.check(R::getrs_batched(blas, CUBLAS_OP_N, a.n, b.n, s.pointers(a), a.ld, pivots, s.pointers(b),
                                    b.ld, &refused, b.count),
                   "getrsBatched");
  }
  int* done = s.scratch<int>(1);
  for (int i = 0; i < a.count; ++i)
    s.check(R::getrs(s.handle(), CUBLAS_OP_N, a.n, b.n, lib(a[i]), a.ld, pivots + int64_t{i} * a.n, lib(b[i]),
                     b.ld, done),
            "getrs");
}
void linalg_solve(const LaunchContext& ctx, const View& a, const View& pivots, const View& b,
                  const View& info) {
  by_solver(ctx, "linalg.solve", a.dtype, [&](const Solver& s, auto t) {
    using T = typename decltype(t)::type;
    const Matrices<T> A(s.op(), a), B(s.op(), b);
    factor_lu(s, A, pivots.as<int>(), info.as<int>());
    solve_by_lu(s, A, pivots.as<int>(), B);
  });
}

void linalg_determinant(const LaunchContext& ctx, const View& a, const View& pivots, const View& value,
                        const View& sign, const View& log) {
  by_solver(ctx, "linalg.det", a.dtype, [&](const Solver& s, auto t) {
    using T = typename decltype(t)::type;
    const Matrices<T> A(s.op(), a);
    factor_lu(s, A, pivots.as<int>(), s.scratch<int>(A.count));
    determinants(ctx, s.op(), args_of(A), pivots.as<int>(), value.data, sign.data, log.data);
  });
}

void linalg_triangular(const LaunchContext& ctx, const View& a, const View& b, bool left, bool upper,
                       bool unit) {
  by_solver(ctx, "linalg.solve_triangular", a.dtype, [&](const Solver& s, auto t) {
    using T = typename decltype(t)::type;
    const Matrices<T> A(s.op(), a), B(s.op(), b);
    solve_by_triangle(s, A, B, B.m, {left, upper, unit});
  });
}

void linalg_cholesky(const LaunchContext& ctx, const View& a, bool upper, const View& info) {
  by_solver(ctx, "linalg.cholesky", a.dtype, [&](const Solver& s, auto t) {
    using T = typename decltype(t)::type;
    using R = Routines<T>;
    const Matrices<T> A(s.op(), a);
    if (A.empty()) return;
    if (is_small_batch(A)) {
      s.check(R::potrf_batched(s.handle(), fill(upper), A.n, s.pointers(A), A.ld, info.as<int>(), A.count),
              "potrfBatched");
    } else {
      int size = 0;
      s.check(R::potrf_size(s.handle(), fill(upper), A.n, lib(A.data), A.ld, &size), "potrf_bufferSize");
      T* work = s.scratch<T>(size);
      for (int i = 0; i < A.count; ++i)
        s.check(R::potrf(s.handle(), fill(upper), A.n, lib(A[i]), A.ld, lib(work), size, info.as<int>() + i),
                "potrf");
    }
    clear_outside(ctx, s.op(), args_of(A), upper ? Triangle::Upper : Triangle::Lower);
  });
}

void linalg_qr(const LaunchContext& ctx, const View& a, const View& tau) {
  by_solver(ctx, "linalg.qr", a.dtype, [&](const Solver& s, auto t) {
    using T = typename decltype(t)::type;
    factor_qr(s, Matrices<T>(s.op(), a), tau.as<T>());
  });
}

// Of many small matrices: their product with the identity.
template <class T>
void form_batched(const Solver& s, const Matrices<T>& a, T* tau, int k) {
  Matrices<T> v = a;
  v.data = s.scratch<T>(a.count * a.size());
  gather_matrices(s.ctx(), s.op(), v.data, a.data, dtype_of<T>, a.count, a.size(), a.size());
  fill_identity(s.ctx(), s.op(), args_of(a));
  if (k) apply_reflectors(s.ctx(), s.op(), args_of(a), {args_of(v), tau, k, true, false});
}
void linalg_reflectors(const LaunchContext& ctx, const View& a, const View& tau) {
  by_solver(ctx, "linalg.householder_product", a.dtype, [&](const Solver& s, auto t) {
    using T = typename decltype(t)::type;
    using R = Routines<T>;
    const Matrices<T> A(s.op(), a);
    if (A.empty()) return;
    const int k = static_cast<int>(tau.sizes[1]);
    if (is_qr_batch(A)) return form_batched(s, A, tau.as<T>(), k);
    int size = 0, *info = s.scratch<int>(1);
    s.check(R::form_size(s.handle(), A.m, A.n, k, lib(A.data), A.ld, lib(tau.as<T>()), &size),
            "orgqr_bufferSize");
    T* work = s.scratch<T>(size);
    for (int i = 0; i < A.count; ++i)
      s.check(
          R::form(s.handle(), A.m, A.n, k, lib(A[i]), A.ld, lib(vector<T>(tau, i)), lib(work), size, info),
          "orgqr");
  });
}

void linalg_multiply_reflectors(const LaunchContext& ctx, const View& a, const View& tau, const View& c,
                                bool left, bool adjoint) {
  by_solver(ctx, "ormqr", a.dtype, [&](const Solver& s, auto t) {
    using T = typename decltype(t)::type;
    multiply_by_q(s, Matrices<T>(s.op(), a), tau.as<T>(), static_cast<int>(tau.sizes[1]),
                  Matrices<T>(s.op(), c), left, adjoint);
  });
}

// ---- LDL -----------------------------------------------------------------------------------------------

bool linalg_has_ldl(const LaunchContext&) {
  static const bool there = [] {
    for (const char* name : {"cusolverDnXsytrf", "cusolverDnXhetrf", "cusolverDnXsytrs", "cusolverDnXhetrs"})
      if (!library_has(Library::Cusolver, name)) return false;
    return true;
  }();
  return there;
}

void linalg_ldl(const LaunchContext& ctx, const View& a, const View& pivots, bool hermitian,
                const View& info) {
  by_solver(ctx, "linalg.ldl_factor", a.dtype, [&](const Solver& s, auto t) {
    using T = typename decltype(t)::type;
    constexpr cudaDataType kData = Routines<T>::kData;
    const Matrices<T> A(s.op(), a);
    if (A.empty()) return;
    const bool adjoint = hermitian && kComplexMatrix<T>;
    const int64_t steps = int64_t{A.count} * A.n;
    auto* p = s.scratch<int64_t>(steps);
    Work w;
    s.check((adjoint ? cusolverDnXhetrf_bufferSize : cusolverDnXsytrf_bufferSize)(
                s.handle(), s.params(), fill(false), A.n, kData, A.data, A.ld, p, kData, &w.device_bytes,
                &w.host_bytes),
            "Xsytrf_bufferSize");
    w.take(s);
    for (int i = 0; i < A.count; ++i)
      s.check((adjoint ? cusolverDnXhetrf : cusolverDnXsytrf)(
                  s.handle(), s.params(), fill(false), A.n, kData, A[i], A.ld, p + int64_t{i} * A.n, kData,
                  w.on_device, w.device_bytes, w.on_host.data(), w.host_bytes, info.as<int>() + i),
              "Xsytrf");
    narrow_pivots(ctx, s.op(), pivots.as<int>(), p, steps);
    clear_outside(ctx, s.op(), args_of(A), Triangle::Lower);
    w.finish(s);
  });
}

template <class T>
struct LdlSystem {
  const Matrices<T>&A, &B;
  bool adjoint;
  void ask(const Solver& s, const int64_t* pivots, Work& w) const {
    constexpr cudaDataType kData = Routines<T>::kData;
    s.check(
        adjoint
            ? cusolverDnXhetrs_bufferSize(s.handle(), s.params(), fill(false), A.n, B.n, kData, A.data, A.ld,
                                          pivots, kData, B.data, B.ld, &w.device_bytes, &w.host_bytes)
            : cusolverDnXsytrs_bufferSize(s.handle(), fill(false), A.n, B.n, kData, A.data, A.ld, pivots,
                                          kData, B.data, B.ld, &w.device_bytes, &w.host_bytes),
        "Xsytrs_bufferSize");
  }
  void solve(const Solver& s, int i, const int64_t* pivots, Work& w, int* info) const {
    constexpr cudaDataType kData = Routines<T>::kData;
    s.check(adjoint
                ? cusolverDnXhetrs(s.handle(), s.params(), fill(false), A.n, B.n, kData, A[i], A.ld, pivots,
                                   kData, B[i], B.ld, w.on_device, w.device_bytes, w.on_host.data(),
                                   w.host_bytes, info)
                : cusolverDnXsytrs(s.handle(), fill(false), A.n, B.n, kData, A[i], A.ld, pivots, kData, B[i],
                                   B.ld, w.on_device, w.device_bytes, w.on_host.data(), w.host_bytes, info),
            "Xsytrs");
  }
};
void linalg_ldl_solve(const LaunchContext& ctx, const View& a, const View& pivots, const View& b,
                      bool hermitian) {
  by_solver(ctx, "linalg.ldl_solve", a.dtype, [&](const Solver& s, auto t) {
    using T = typename decltype(t)::type;
    const Matrices<T> A(s.op(), a), B(s.op(), b);
    if (B.empty()) return;
    const int64_t steps = int64_t{A.count} * A.n;
    auto* p = s.scratch<int64_t>(steps);
    widen_pivots(ctx, s.op(), p, pivots.as<const int>(), steps);
    const LdlSystem<T> system{A, B, hermitian && kComplexMatrix<T>};
    Work w;
    system.ask(s, p, w);
    w.take(s);
    int* info = s.scratch<int>(1);
    for (int i = 0; i < A.count; ++i) system.solve(s, i, p + int64_t{i} * A.n, w, info);
    w.finish(s);
  });
}

// ---- least squares -------------------------------------------------------------------------------------

// A = Q R: X is R^-1 Q^H B. A wide A's adjoint is Q R: X is Q R^-H B, of least norm.
template <class T>
void least_squares(const Solver& s, const Matrices<T>& a, const Matrices<T>& b, int* info) {
  if (a.empty()) return;
  const bool wide = a.m < a.n;
  Matrices<T> factors = a;
  if (wide) {
    factors.data = s.scratch<T>(a.count * a.size());
    factors.m = factors.ld = a.n, factors.n = a.m;
    adjoint_matrices(s.ctx(), s.op(), factors.data, args_of(a), a.ld, a.size());
  }
  const int k = a.least();
  T* tau = s.scratch<T>(int64_t{a.count} * k);
  factor_qr(s, factors, tau);
  note_zero_diagonal(s.ctx(), s.op(), args_of(factors), info);
  if (!wide) multiply_by_q(s, factors, tau, k, b, true, true);
  solve_by_triangle(s, factors, b, k, {.left = true, .upper = true, .unit = false, .adjoint = wide});
  if (wide) multiply_by_q(s, factors, tau, k, b, true, false);
}
void linalg_least_squares(const LaunchContext& ctx, const View& a, const View& b, const View&, const View&,
                          LeastSquares driver, double, const View& info) {
  if (driver != LeastSquares::Gels) raise_library_error("linalg.lstsq: cuSOLVER has the driver gels alone");
  by_solver(ctx, "linalg.lstsq", a.dtype, [&](const Solver& s, auto t) {
    using T = typename decltype(t)::type;
    least_squares(s, Matrices<T>(s.op(), a), Matrices<T>(s.op(), b), info.as<int>());
  });
}

}  // namespace

WT_KERNEL(linalg_lu, linalg_lu);
WT_KERNEL(linalg_solve, linalg_solve);
WT_KERNEL(linalg_determinant, linalg_determinant);
WT_KERNEL(linalg_triangular, linalg_triangular);
WT_KERNEL(linalg_cholesky, linalg_cholesky);
WT_KERNEL(linalg_has_ldl, linalg_has_ldl);
WT_KERNEL(linalg_ldl, linalg_ldl);
WT_KERNEL(linalg_ldl_solve, linalg_ldl_solve);
WT_KERNEL(linalg_qr, linalg_qr);
WT_KERNEL(linalg_reflectors, linalg_reflectors);
WT_KERNEL(linalg_multiply_reflectors, linalg_multiply_reflectors);
WT_KERNEL(linalg_least_squares, linalg_least_squares);

}  // namespace warptape::kernels::cuda
