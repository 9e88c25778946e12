// Eigenvalues, singular values, least squares. LAPACK's iterations need not end on matrices that are not
// finite: those are not given to it.
#include "kernels/cpu/common/lapack.h"

#include <limits>

namespace warptape::kernels::cpu {
namespace {

template <class T>
void fill_nan(T* a, int64_t n) {
  auto* parts = reinterpret_cast<Real<T>*>(a);
  std::fill_n(parts, a ? n * static_cast<int64_t>(sizeof(T) / sizeof(Real<T>)) : 0,
              std::numeric_limits<Real<T>>::quiet_NaN());
}

// ---- Hermitian matrices --------------------------------------------------------------------------------

struct EighSizes {
  int work, real, integer;
};
template <class T>
void eigh(const Matrices<T>& A, T* a, Real<T>* values, char job, char triangle, T* work, const int* size,
          Real<T>* real, const int* real_size, int* integer, const int* integer_size, int* info) {
  const char *j = &job, *t = &triangle;
  if constexpr (kIsComplex<T>)
    call<T, "heevd">(j, t, &A.n, a, &A.ld, values, work, size, real, real_size, integer, integer_size, info);
  else
    call<T, "syevd">(j, t, &A.n, a, &A.ld, values, work, size, integer, integer_size, info);
}

// What the triangle that is read holds; the other one is cleared.
template <class T>
Content triangle_content(const Matrices<T>& A, T* a, bool upper) {
  clear_other_triangle(A, a, upper);
  return content(a, A.size());
}

void lapack_eigh(const LaunchContext&, const View& a, const View& values, bool upper, bool vectors,
                 const View& info) {
  dispatch(LapackTypes{}, a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const Matrices<T> A(a);
    const char job = vectors ? 'V' : 'N', triangle = upper ? 'U' : 'L';
    EighSizes sizes{};
    int ask = -1, done = 0, integer = 0;
    Real<T> real = 0;
    sizes.work = workspace<T>([&](T* w, int* s) {
      eigh<T>(A, A.data, values.as<Real<T>>(), job, triangle, w, s, &real, &ask, &integer, &ask, &done);
    });
    sizes.real = std::max(1, static_cast<int>(real)), sizes.integer = std::max(1, integer);
    each_matrix(A.count, 10 * work_of(A), [&](int64_t i) {
      auto* w = vector<Real<T>>(values, i);
      const Content is = triangle_content(A, A[i], upper);
      *vector<int>(info, i) = is == Content::NaN ? -4 : 0;
      if (is != Content::Finite) return fill_nan(A[i], A.size()), fill_nan(w, A.n);
      auto work = room<T>(sizes.work);
      auto reals = room<Real<T>>(sizes.real);
      auto integers = room<int>(sizes.integer);
      eigh<T>(A, A[i], w, job, triangle, work.get(), &sizes.work, reals.get(), &sizes.real, integers.get(),
              &sizes.integer, vector<int>(info, i));
    });
  });
}

// ---- any square matrices -------------------------------------------------------------------------------

// Of a real matrix a pair of conjugate eigenvectors comes as its real part and its imaginary part.
template <class R>
void join_pairs(int n, const R* imaginary, const R* parts, Complex<R>* vectors) {
  for (int64_t j = 0; j < n; ++j)
    for (int64_t i = 0; i < n; ++i) {
      const bool first = imaginary[j] > 0, second = imaginary[j] < 0;
      const R re = parts[(second ? j - 1 : j) * n + i];
      const R im = first ? parts[(j + 1) * n + i] : second ? -parts[j * n + i] : R(0);
      vectors[j * n + i] = {re, im};
    }
}

template <class T>
void eig(const Matrices<T>& A, T* a, Complex<Real<T>>* values, Complex<Real<T>>* vectors, T* work,
         const int* size, int* info) {
  using R = Real<T>;
  const char none = 'N', right = vectors ? 'V' : 'N';
  const char *no = &none, *job = &right;
  const int one = 1;
  const int ld = vectors ? A.ld : 1;
  if constexpr (kIsComplex<T>) {
    auto real = room<R>(2 * int64_t{A.n});
    call<T, "geev">(no, job, &A.n, a, &A.ld, values, static_cast<T*>(nullptr), &one, vectors, &ld, work, size,
                    real.get(), info);
  } else {
    auto re = room<R>(A.n), im = room<R>(A.n), parts = room<R>(vectors ? A.size() : 1);
    call<T, "geev">(no, job, &A.n, a, &A.ld, re.get(), im.get(), static_cast<T*>(nullptr), &one, parts.get(),
                    &ld, work, size, info);
    if (*size < 0) return;
    for (int j = 0; j < A.n; ++j) values[j] = {re[j], im[j]};
    if (vectors) join_pairs(A.n, im.get(), parts.get(), vectors);
  }
}

void lapack_eig(const LaunchContext&, const View& a, const View& values, const View& vectors,
                const View& info) {
  dispatch(LapackTypes{}, a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Complex<Real<T>>;
    const Matrices<T> A(a);
    int done;
    const int size =
        workspace<T>([&](T* w, int* s) { eig<T>(A, A.data, values.as<C>(), vectors.as<C>(), w, s, &done); });
    each_matrix(A.count, 25 * work_of(A), [&](int64_t i) {
      C* v = vectors.data ? vectors.as<C>() + i * A.size() : nullptr;
      C* w = vector<C>(values, i);
      const Content is = content(A[i], A.size());
      *vector<int>(info, i) = is == Content::NaN ? -4 : 0;
      if (is != Content::Finite) return fill_nan(w, A.n), fill_nan(v, A.size());
      auto work = room<T>(size);
      eig<T>(A, A[i], w, v, work.get(), &size, vector<int>(info, i));
    });
  });
}

// ---- singular values -----------------------------------------------------------------------------------

template <class T>
struct Svd {
  Matrices<T> A;
  char job;
  int ldu, ldvh;
  void run(T* a, T* u, Real<T>* values, T* vh, T* work, const int* size, Real<T>* real, int* integer,
           int* info) const {
    const char* j = &job;
    if constexpr (kIsComplex<T>)
      call<T, "gesdd">(j, &A.m, &A.n, a, &A.ld, values, u, &ldu, vh, &ldvh, work, size, real, integer, info);
    else
      call<T, "gesdd">(j, &A.m, &A.n, a, &A.ld, values, u, &ldu, vh, &ldvh, work, size, integer, info);
  }
};

void lapack_svd(const LaunchContext&, const View& a, const View& u, const View& values, const View& vh,
                const View& info) {
  dispatch(LapackTypes{}, a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using R = Real<T>;
    const Matrices<T> A(a);
    const int64_t least = std::min(A.m, A.n), most = std::max(A.m, A.n);
    const int64_t columns = u.data ? u.sizes[2] : 0, rows = vh.data ? vh.sizes[1] : 0;
    const char job = !u.data ? 'N' : columns == A.m && rows == A.n ? 'A' : 'S';
    const Svd<T> svd{A, job, u.data ? A.ld : 1, std::max(1, static_cast<int>(rows))};
    const int64_t reals =
        !kIsComplex<T> ? 1
        : u.data       ? std::max(5 * least * least + 5 * least, 2 * most * least + 2 * least * least + least)
                       : 7 * least;
    int done;
    const int size = workspace<T>([&](T* w, int* s) {
      svd.run(A.data, u.as<T>(), values.as<R>(), vh.as<T>(), w, s, nullptr, nullptr, &done);
    });
    each_matrix(A.count, 20 * work_of(A), [&](int64_t i) {
      T *left = u.data ? u.as<T>() + i * A.m * columns : nullptr,
        *right = vh.data ? vh.as<T>() + i * rows * A.n : nullptr;
      R* s = vector<R>(values, i);
      const Content is = content(A[i], A.size());
      *vector<int>(info, i) = is == Content::NaN ? -4 : 0;
      if (is != Content::Finite)
        return fill_nan(left, A.m * columns), fill_nan(right, rows * A.n), fill_nan(s, least);
      auto work = room<T>(size);
      auto real = room<R>(reals);
      auto integer = room<int>(8 * least);
      svd.run(A[i], left, s, right, work.get(), &size, real.get(), integer.get(), vector<int>(info, i));
    });
  });
}

// ---- least squares -------------------------------------------------------------------------------------

template <class T>
struct LeastSquaresCall {
  LeastSquares driver;
  Real<T> rcond;
  Matrices<T> A, B;
  // `real` and `integer` are given one number where the size is asked for.
  void run(T* a, T* b, int* rank, Real<T>* values, T* work, const int* size, Real<T>* real, int* integer,
           int* info) const {
    const char none = 'N';
    const char* no = &none;
    const int *m = &A.m, *n = &A.n, *k = &B.n, *lda = &A.ld, *ldb = &B.ld;
    const auto* r = &rcond;
    if (driver == LeastSquares::Gels) return call<T, "gels">(no, m, n, k, a, lda, b, ldb, work, size, info);
    if constexpr (kIsComplex<T>) {
      if (driver == LeastSquares::Gelsy)
        return call<T, "gelsy">(m, n, k, a, lda, b, ldb, integer, r, rank, work, size, real, info);
      if (driver == LeastSquares::Gelss)
        return call<T, "gelss">(m, n, k, a, lda, b, ldb, values, r, rank, work, size, real, info);
      call<T, "gelsd">(m, n, k, a, lda, b, ldb, values, r, rank, work, size, real, integer, info);
    } else {
      if (driver == LeastSquares::Gelsy)
        return call<T, "gelsy">(m, n, k, a, lda, b, ldb, integer, r, rank, work, size, info);
      if (driver == LeastSquares::Gelss)
        return call<T, "gelss">(m, n, k, a, lda, b, ldb, values, r, rank, work, size, info);
      call<T, "gelsd">(m, n, k, a, lda, b, ldb, values, r, rank, work, size, integer, info);
    }
  }
};

void lapack_least_squares(const LaunchContext&, const View& a, const View& b, const View& rank,
                          const View& values, LeastSquares driver, double rcond, const View& info) {
  dispatch(LapackTypes{}, a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using R = Real<T>;
    const Matrices<T> A(a), B(b);
    const LeastSquaresCall<T> solver{driver, R(rcond), A, B};
    const int least = std::min(A.m, A.n);
    int ignored = 0, integers = 0, done;
    R reals = 0;
    const int size = workspace<T>([&](T* w, int* s) {
      solver.run(A.data, B.data, &ignored, values.as<R>(), w, s, &reals, &integers, &done);
    });
    const int64_t real_size =
        std::max<int64_t>({static_cast<int64_t>(reals), 5 * int64_t{least}, 2 * int64_t{A.n}});
    each_matrix(A.count, 20 * work_of(A) + double(A.m) * double(B.size()), [&](int64_t i) {
      int found = 0;
      *vector<int>(info, i) = 0;
      const bool iterates = driver == LeastSquares::Gelsd || driver == LeastSquares::Gelss;
      R* s = iterates ? vector<R>(values, i) : nullptr;
      if (iterates &&
          (content(A[i], A.size()) != Content::Finite || content(B[i], B.size()) != Content::Finite)) {
        fill_nan(B[i], B.size()), fill_nan(s, least);
      } else {
        auto work = room<T>(size);
        auto real = room<R>(real_size);
        auto integer = room<int>(std::max(integers, A.n));
        std::fill_n(integer.get(), A.n, 0);  // for gelsy: every column may be exchanged
        solver.run(A[i], B[i], &found, s, work.get(), &size, real.get(), integer.get(), vector<int>(info, i));
      }
      if (rank.data) rank.as<int64_t>()[i] = found;
    });
  });
}

}  // namespace

WT_KERNEL(linalg_eigh, lapack_eigh);
WT_KERNEL(linalg_eig, lapack_eig);
WT_KERNEL(linalg_svd, lapack_svd);
WT_KERNEL(linalg_least_squares, lapack_least_squares);

}  // namespace warptape::kernels::cpu
