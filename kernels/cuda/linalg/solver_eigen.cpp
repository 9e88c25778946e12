// Eigenvalues and singular values by cuSOLVER. Matrices that are not finite are not given to it: their values
// are NaN, as on the CPU.
#include "kernels/cuda/linalg/solver.h"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

// The matrices among `a` that are not finite: zeros meanwhile, NaN in the results.
class NotFinite {
 public:
  template <class T>
  NotFinite(const Solver& s, const Matrices<T>& a, Triangle read)
      : s_(s), count_(a.count), state_(s.scratch<int>(a.count)) {
    note_content(s.ctx(), s.op(), args_of(a), read, state_);
  }
  template <class T>
  void fill(T* results, int64_t per) const {
    if (results) spread_nan(s_.ctx(), s_.op(), results, dtype_of<T>, count_, per, state_);
  }
  void tell(int* info) const { finish_info(s_.ctx(), s_.op(), info, state_, count_); }

 private:
  const Solver& s_;
  int64_t count_;
  int* state_;
};

constexpr cusolverEigMode_t mode(bool vectors) {
  return vectors ? CUSOLVER_EIG_MODE_VECTOR : CUSOLVER_EIG_MODE_NOVECTOR;
}

// ---- Hermitian matrices --------------------------------------------------------------------------------

template <class T>
void eigh_by_solver(const Solver& s, const Matrices<T>& a, RealOf<T>* values, bool upper, bool vectors,
                    int* info) {
  using R = Routines<T>;
  Work w;
  const auto params = s.params();
  const auto job = mode(vectors);
  if (a.count > 1) {
    s.check(cusolverDnXsyevBatched_bufferSize(s.handle(), params, job, fill(upper), a.n, R::kData, a.data,
                                              a.ld, R::kReal, values, R::kData, &w.device_bytes,
                                              &w.host_bytes, a.count),
            "XsyevBatched_bufferSize");
    w.take(s);
    return s.check(cusolverDnXsyevBatched(s.handle(), params, job, fill(upper), a.n, R::kData, a.data, a.ld,
                                          R::kReal, values, R::kData, w.on_device, w.device_bytes,
                                          w.on_host.data(), w.host_bytes, info, a.count),
                   "XsyevBatched");
  }
  s.check(cusolverDnXsyevd_bufferSize(s.handle(), params, job, fill(upper), a.n, R::kData, a.data, a.ld,
                                      R::kReal, values, R::kData, &w.device_bytes, &w.host_bytes),
          "Xsyevd_bufferSize");
  w.take(s);
  s.check(
      cusolverDnXsyevd(s.handle(), params, job, fill(upper), a.n, R::kData, a.data, a.ld, R::kReal, values,
                       R::kData, w.on_device, w.device_bytes, w.on_host.data(), w.host_bytes, info),
      "Xsyevd");
}

void linalg_eigh(const LaunchContext& ctx, const View& a, const View& values, bool upper, bool vectors,
                 const View& info) {
  by_solver(ctx, "linalg.eigh", a.dtype, [&](const Solver& s, auto t) {
    using T = typename decltype(t)::type;
    const Matrices<T> A(s.op(), a);
    if (A.empty()) return;
    auto* w = values.as<RealOf<T>>();
    const NotFinite not_finite(s, A, upper ? Triangle::Upper : Triangle::Lower);
    eigh_by_solver(s, A, w, upper, vectors, info.as<int>());
    not_finite.fill(w, A.n);
    not_finite.fill(A.data, A.size());
    not_finite.tell(info.as<int>());
  });
}

// ---- any square matrices -------------------------------------------------------------------------------

// Eigenvalues are complex for real matrices, too; their vectors come in pairs of real ones.
template <class T>
void eig_by_solver(const Solver& s, const Matrices<T>& a, Complex<RealOf<T>>* values, T* vectors, int* info) {
  using R = Routines<T>;
  constexpr cudaDataType kComplex = std::is_same_v<RealOf<T>, float> ? CUDA_C_32F : CUDA_C_64F;
  Work w;
  const auto params = s.params();
  const auto job = mode(vectors != nullptr), none = mode(false);
  s.check(cusolverDnXgeev_bufferSize(s.handle(), params, none, job, a.n, R::kData, a.data, a.ld, kComplex,
                                     values, R::kData, nullptr, a.ld, R::kData, vectors, a.ld, R::kData,
                                     &w.device_bytes, &w.host_bytes),
          "Xgeev_bufferSize");
  w.take(s);
  for (int i = 0; i < a.count; ++i)
    s.check(cusolverDnXgeev(s.handle(), params, none, job, a.n, R::kData, a[i], a.ld, kComplex,
                            values + int64_t{i} * a.n, R::kData, nullptr, a.ld, R::kData,
                            vectors ? vectors + i * a.size() : nullptr, a.ld, R::kData, w.on_device,
                            w.device_bytes, w.on_host.data(), w.host_bytes, info + i),
            "Xgeev");
  w.finish(s);
}

void linalg_eig(const LaunchContext& ctx, const View& a, const View& values, const View& vectors,
                const View& info) {
  by_solver(ctx, "linalg.eig", a.dtype, [&](const Solver& s, auto t) {
    using T = typename decltype(t)::type;
    using C = Complex<RealOf<T>>;
    const Matrices<T> A(s.op(), a);
    if (A.empty()) return;
    const NotFinite not_finite(s, A, Triangle::Whole);
    auto *w = values.as<C>(), *v = vectors.as<C>();
    T* parts = nullptr;
    if constexpr (kComplexMatrix<T>)
      parts = v;
    else if (v)
      parts = s.scratch<T>(A.count * A.size());
    eig_by_solver(s, A, w, parts, info.as<int>());
    if (!kComplexMatrix<T> && v) join_pairs(ctx, s.op(), vectors, parts, values);
    not_finite.fill(w, A.n);
    not_finite.fill(v, A.size());
    not_finite.tell(info.as<int>());
  });
}

// ---- singular values -----------------------------------------------------------------------------------

// gesvdj's: V, and not its adjoint. `all`: U [m, m] and V [n, n], else their first min(m, n) columns.
template <class T>
struct Vectors {
  T *u = nullptr, *v = nullptr;
  bool wanted = false, all = false;
};

template <class T>
void svd_one_by_one(const Solver& s, const Matrices<T>& a, RealOf<T>* values, const Vectors<T>& to,
                    int* info) {
  using R = Routines<T>;
  const int economic = to.all ? 0 : 1;
  const int64_t u_size = int64_t{a.m} * (to.all ? a.m : a.least()),
                v_size = int64_t{a.n} * (to.all ? a.n : a.least());
  const auto job = mode(to.wanted);
  const gesvdjInfo_t jacobi = s.jacobi();
  int size = 0;
  s.check(R::gesvdj_size(s.handle(), job, economic, a.m, a.n, lib(a.data), a.ld, values, lib(to.u), a.m,
                         lib(to.v), a.n, &size, jacobi),
          "gesvdj_bufferSize");
  T* work = s.scratch<T>(size);
  for (int i = 0; i < a.count; ++i)
    s.check(R::gesvdj(s.handle(), job, economic, a.m, a.n, lib(a[i]), a.ld, values + int64_t{i} * a.least(),
                      lib(to.wanted ? to.u + i * u_size : nullptr), a.m,
                      lib(to.wanted ? to.v + i * v_size : nullptr), a.n, lib(work), size, info + i, jacobi),
            "gesvdj");
}

// All at once, which cuSOLVER does up to 32 by 32; all columns come.
constexpr int kBatchedMost = 32;
template <class T>
void svd_batched(const Solver& s, const Matrices<T>& a, RealOf<T>* values, const Vectors<T>& to, int* info) {
  using R = Routines<T>;
  const auto job = mode(to.wanted);
  const gesvdjInfo_t jacobi = s.jacobi();
  int size = 0;
  s.check(R::gesvdj_batched_size(s.handle(), job, a.m, a.n, lib(a.data), a.ld, values, lib(to.u), a.m,
                                 lib(to.v), a.n, &size, jacobi, a.count),
          "gesvdjBatched_bufferSize");
  T* work = s.scratch<T>(size);
  s.check(R::gesvdj_batched(s.handle(), job, a.m, a.n, lib(a.data), a.ld, values, lib(to.u), a.m, lib(to.v),
                            a.n, lib(work), size, info, jacobi, a.count),
          "gesvdjBatched");
}

void linalg_svd(const LaunchContext& ctx, const View& a, const View& u, const View& values, const View& vh,
                const View& info) {
  by_solver(ctx, "linalg.svd", a.dtype, [&](const Solver& s, auto t) {
    using T = typename decltype(t)::type;
    const Matrices<T> A(s.op(), a);
    if (A.empty()) return;
    const NotFinite not_finite(s, A, Triangle::Whole);
    auto* w = values.as<RealOf<T>>();
    const int64_t m = A.m, n = A.n, columns = u.data ? u.sizes[2] : 0, rows = vh.data ? vh.sizes[1] : 0;
    const bool batched = A.count > 1 && m <= kBatchedMost && n <= kBatchedMost;
    Vectors<T> to{.wanted = u.data != nullptr, .all = batched || columns + rows > 2 * A.least()};
    const int64_t width = to.all ? n : A.least();  // of V
    if (to.wanted) {
      to.u = to.all && columns < m ? s.scratch<T>(A.count * m * m) : u.as<T>();
      to.v = s.scratch<T>(A.count * n * width);
    }
    (batched ? svd_batched<T> : svd_one_by_one<T>)(s, A, w, to, info.as<int>());
    if (to.wanted) {
      if (to.u != u.data) gather_matrices(ctx, s.op(), u.data, to.u, a.dtype, A.count, m * columns, m * m);
      adjoint_matrices(ctx, s.op(), vh.data, {to.v, a.dtype, A.count, n, rows}, n, n * width);
      not_finite.fill(u.as<T>(), m * columns);
      not_finite.fill(vh.as<T>(), rows * n);
    }
    not_finite.fill(w, A.least());
    not_finite.tell(info.as<int>());
  });
}

}  // namespace

WT_KERNEL(linalg_eigh, linalg_eigh);
WT_KERNEL(linalg_eig, linalg_eig);
WT_KERNEL(linalg_svd, linalg_svd);

}  // namespace warptape::kernels::cuda
