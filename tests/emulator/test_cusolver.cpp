// Checks of the stand-ins for cuSOLVER and cuBLAS: what they compute is right, and each planted mistake of a
// caller is refused, or, where it shows only when the call runs, ends the process. Run with the path of
// LAPACK, and for one of those with the routine and the mistake.
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "cuda_runtime.h"
#include "cusolverDn.h"
#include "kernels/cuda/libraries/cusolver_ldl.h"
#include "kernels/runtime/services.h"

namespace {

int g_failures = 0;
std::string g_case;
#define CHECK(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      fprintf(stderr, "%s: %s:%d: %s\n", g_case.c_str(), __FILE__, __LINE__, #condition); \
      ++g_failures;                                                                       \
    }                                                                                     \
  } while (0)

using Numbers = std::vector<double>;

// Device memory of just that size.
template <class T>
struct Memory {
  explicit Memory(size_t n) : size(n) { cudaMalloc(reinterpret_cast<void**>(&data), n * sizeof(T)); }
  explicit Memory(const std::vector<T>& values) : Memory(values.size()) {
    cudaMemcpy(data, values.data(), size * sizeof(T), cudaMemcpyHostToDevice);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { cudaFree(data); }
  std::vector<T> read() const {
    cudaDeviceSynchronize();
    std::vector<T> out(size);
    cudaMemcpy(out.data(), data, size * sizeof(T), cudaMemcpyDeviceToHost);
    return out;
  }
  operator T*() const { return data; }
  T* data = nullptr;
  size_t size;
};

constexpr int kRows = 5, kColumns = 3, kLd = 7, kRight = 2, kBatch = 3;

// By columns with kLd between them; what lies between is kept.
Numbers matrix(int columns, int seed, int count = 1) {
  Numbers a(size_t(kLd * columns * count));
  for (size_t i = 0; i < a.size(); ++i) a[i] = double(int(i * 7 + i * i % 5 + size_t(seed)) % 11 - 5) / 4;
  return a;
}
Numbers definite() {
  Numbers a = matrix(kRows, 1);
  for (int j = 0; j < kRows; ++j)
    for (int i = 0; i <= j; ++i)
      a[size_t(j * kLd + i)] = a[size_t(i * kLd + j)] = i == j ? 9 : 1.0 / (1 + i + j);
  return a;
}
double at(const Numbers& a, int i, int j, int ld = kLd) { return a[size_t(j * ld + i)]; }
bool near(double x, double y) { return std::abs(x - y) <= 1e-9 * (1 + std::abs(y)); }
// Whether A [m, k] B [k, n] = C, all by columns.
bool is_product(const std::function<double(int, int)>& a, const std::function<double(int, int)>& b,
                const std::function<double(int, int)>& c, int m, int n, int k) {
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int l = 0; l < k; ++l) sum += a(i, l) * b(l, j);
      if (!near(sum, c(i, j))) return false;
    }
  return true;
}
auto entry(const Numbers& a, int ld = kLd) {
  return [&a, ld](int i, int j) { return at(a, i, j, ld); };
}
auto transposed(const Numbers& a, int ld = kLd) {
  return [&a, ld](int i, int j) { return at(a, j, i, ld); };
}

// Every argument of the calls below, right; a mistake changes one.
struct Call {
  cusolverDnHandle_t solver = nullptr;
  cublasHandle_t blas = nullptr;
  cusolverDnParams_t params = nullptr;
  gesvdjInfo_t jacobi = nullptr;
  int m = kRows, n = kColumns, k = kColumns, ld = kLd, count = kBatch, lwork = 0;
  size_t a_offset = 0, work_offset = 0;  // in numbers
  bool host_a = false, no_info = false, no_tau = false, null_host = false, host_is_device = false;
  cublasFillMode_t uplo = CUBLAS_FILL_MODE_LOWER;
  cublasOperation_t trans = CUBLAS_OP_T;
  cudaDataType type = CUDA_R_64F, values = CUDA_R_64F, compute = CUDA_R_64F, vectors = CUDA_R_64F;
  cusolverEigMode_t left = CUSOLVER_EIG_MODE_NOVECTOR;
  size_t bytes_less = 0;
  int lwork_less = 0;
};
Call opened() {
  static const Call call = [] {
    Call c;
    cusolverDnCreate(&c.solver);
    cublasCreate(&c.blas);
    cusolverDnCreateParams(&c.params);
    cusolverDnCreateGesvdjInfo(&c.jacobi);
    return c;
  }();
  return call;
}

// What a routine was given and left.
struct Ran {
  int status = -1;
  Numbers given, a, b, tau, s, u, v;
  std::vector<int> pivots, info;
};
struct Buffers {
  Numbers given;
  Memory<double> a, b, tau, work, s, u, v;
  Memory<int> pivots, info;
  explicit Buffers(const Numbers& matrix)
      : given(matrix),
        a(matrix),
        b(::matrix(kRows, 3, kBatch)),
        tau(64),
        work(size_t(512)),
        s(64),
        u(512),
        v(512),
        pivots(64),
        info(64) {}
};
Ran ran(int status, const Buffers& m) {
  return {status,     m.given,    m.a.read(), m.b.read(),      m.tau.read(),
          m.s.read(), m.u.read(), m.v.read(), m.pivots.read(), m.info.read()};
}

double g_on_host[512];
double* a_of(const Call& c, const Buffers& m) { return c.host_a ? g_on_host : m.a + c.a_offset; }
int* info_of(const Call& c, const Buffers& m) { return c.no_info ? nullptr : m.info.data; }
// Work memory that ends where the size says, less the mistake.
double* work_of(const Call& c, const Buffers& m, int lwork) {
  return m.work + (m.work.size - size_t(lwork)) + c.work_offset;
}

Ran lu(const Call& c) {
  const Buffers m(matrix(kRows, 1));
  int lwork = 0;
  cusolverDnDgetrf_bufferSize(c.solver, kRows, kRows, m.a, kLd, &lwork);
  return ran(
      cusolverDnDgetrf(c.solver, c.m, kRows, a_of(c, m), c.ld, work_of(c, m, lwork), m.pivots, info_of(c, m)),
      m);
}
Ran lu_solve(const Call& c) {
  const Buffers m(lu(opened()).a);
  cudaMemcpy(m.pivots.data, lu(opened()).pivots.data(), kRows * sizeof(int), cudaMemcpyHostToDevice);
  return ran(cusolverDnDgetrs(c.solver, CUBLAS_OP_N, kRows, kRight, a_of(c, m), c.ld, m.pivots, m.b, kLd,
                              info_of(c, m)),
             m);
}
Ran cholesky(const Call& c) {
  const Buffers m(definite());
  int lwork = 0;
  cusolverDnDpotrf_bufferSize(c.solver, CUBLAS_FILL_MODE_LOWER, kRows, m.a, kLd, &lwork);
  return ran(cusolverDnDpotrf(c.solver, c.uplo, kRows, a_of(c, m), c.ld, work_of(c, m, lwork),
                              lwork - c.lwork_less, info_of(c, m)),
             m);
}
Ran qr(const Call& c) {
  const Buffers m(matrix(kColumns, 1));
  int lwork = 0;
  cusolverDnDgeqrf_bufferSize(c.solver, kRows, kColumns, m.a, kLd, &lwork);
  return ran(cusolverDnDgeqrf(c.solver, c.m, c.n, a_of(c, m), c.ld, c.no_tau ? nullptr : m.tau.data,
                              work_of(c, m, lwork), lwork - c.lwork_less, info_of(c, m)),
             m);
}
Ran form_q(const Call& c) {
  const Ran factors = qr(opened());
  const Buffers m(factors.a);
  cudaMemcpy(m.tau.data, factors.tau.data(), kColumns * sizeof(double), cudaMemcpyHostToDevice);
  int lwork = 0;
  cusolverDnDorgqr_bufferSize(c.solver, kRows, kColumns, kColumns, m.a, kLd, m.tau, &lwork);
  return ran(cusolverDnDorgqr(c.solver, c.m, c.n, c.k, a_of(c, m), c.ld, m.tau, work_of(c, m, lwork),
                              lwork - c.lwork_less, info_of(c, m)),
             m);
}
Ran multiply_q(const Call& c) {
  const Ran factors = qr(opened());
  const Buffers m(factors.a);
  cudaMemcpy(m.tau.data, factors.tau.data(), kColumns * sizeof(double), cudaMemcpyHostToDevice);
  int lwork = 0;
  cusolverDnDormqr_bufferSize(c.solver, CUBLAS_SIDE_LEFT, CUBLAS_OP_T, kRows, kRight, kColumns, m.a, kLd,
                              m.tau, m.b, kLd, &lwork);
  return ran(cusolverDnDormqr(c.solver, CUBLAS_SIDE_LEFT, c.trans, kRows, kRight, c.k, a_of(c, m), c.ld,
                              m.tau, m.b, kLd, work_of(c, m, lwork), lwork - c.lwork_less, info_of(c, m)),
             m);
}
Ran svd(const Call& c) {
  const Buffers m(matrix(kColumns, 1));
  int lwork = 0;
  cusolverDnDgesvdj_bufferSize(c.solver, CUSOLVER_EIG_MODE_VECTOR, 1, kRows, kColumns, m.a, kLd, m.s, m.u,
                               kLd, m.v, kLd, &lwork, opened().jacobi);
  return ran(cusolverDnDgesvdj(c.solver, CUSOLVER_EIG_MODE_VECTOR, 1, c.m, c.n, a_of(c, m), c.ld, m.s, m.u,
                               kLd, m.v, c.n == kColumns ? kLd : 2, work_of(c, m, lwork),
                               lwork - c.lwork_less, info_of(c, m), c.jacobi),
             m);
}
Ran svd_batched(const Call& c) {
  const Buffers m(matrix(kColumns, 1, kBatch));
  int lwork = 0;
  cusolverDnDgesvdjBatched_bufferSize(c.solver, CUSOLVER_EIG_MODE_VECTOR, kRows, kColumns, m.a, kLd, m.s, m.u,
                                      kLd, m.v, kLd, &lwork, opened().jacobi, kBatch);
  return ran(cusolverDnDgesvdjBatched(c.solver, CUSOLVER_EIG_MODE_VECTOR, c.m, kColumns, a_of(c, m), c.ld,
                                      m.s, m.u, std::max(c.m, kLd), m.v, kLd, work_of(c, m, lwork), lwork,
                                      info_of(c, m), c.jacobi, c.count),
             m);
}
// The two that name types by arguments.
Ran eigh(const Call& c) {
  const Buffers m(definite());
  size_t on_device = 0, on_host = 0;
  cusolverDnXsyevd_bufferSize(c.solver, opened().params, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER,
                              kRows, CUDA_R_64F, m.a, kLd, CUDA_R_64F, m.s, CUDA_R_64F, &on_device, &on_host);
  std::vector<char> host(on_host);
  void* at_host = c.null_host ? nullptr : c.host_is_device ? static_cast<void*>(m.u.data) : host.data();
  return ran(cusolverDnXsyevd(c.solver, c.params, CUSOLVER_EIG_MODE_VECTOR, c.uplo, kRows, c.type, a_of(c, m),
                              c.ld, c.values, m.s, c.compute, m.work.data, on_device - c.bytes_less, at_host,
                              on_host, info_of(c, m)),
             m);
}
Ran eig(const Call& c) {
  const Buffers m(matrix(kRows, 1));
  size_t on_device = 0, on_host = 0;
  cusolverDnXgeev_bufferSize(c.solver, opened().params, CUSOLVER_EIG_MODE_NOVECTOR, CUSOLVER_EIG_MODE_VECTOR,
                             kRows, CUDA_R_64F, m.a, kLd, CUDA_C_64F, m.s, CUDA_R_64F, nullptr, 1, CUDA_R_64F,
                             m.v, kLd, CUDA_R_64F, &on_device, &on_host);
  std::vector<char> host(on_host);
  return ran(cusolverDnXgeev(c.solver, c.params, c.left, CUSOLVER_EIG_MODE_VECTOR, kRows, c.type, a_of(c, m),
                             c.ld, c.values == CUDA_R_64F ? CUDA_C_64F : c.values, m.s, CUDA_R_64F, nullptr,
                             1, c.vectors, m.v, kLd, c.compute, m.work.data, on_device - c.bytes_less,
                             c.null_host ? nullptr : host.data(), on_host, info_of(c, m)),
             m);
}
// Symmetric, with blocks of two on D: its diagonal is 0 in places.
Numbers indefinite() {
  Numbers a = definite();
  for (int j = 0; j < 3; ++j) a[size_t(j * kLd + j)] = 0;
  return a;
}
Ran ldl(const Call& c, std::vector<int64_t>* pivots = nullptr) {
  const Buffers m(indefinite());
  const Memory<int64_t> steps(kRows);
  size_t on_device = 0, on_host = 0;
  cusolverDnXsytrf_bufferSize(c.solver, opened().params, CUBLAS_FILL_MODE_LOWER, kRows, CUDA_R_64F, m.a, kLd,
                              steps, CUDA_R_64F, &on_device, &on_host);
  std::vector<char> host(on_host);
  const Ran out =
      ran(cusolverDnXsytrf(c.solver, c.params, c.uplo, kRows, c.type, a_of(c, m), c.ld,
                           c.no_tau ? nullptr : steps.data, c.compute, m.work.data, on_device - c.bytes_less,
                           c.null_host ? nullptr : host.data(), on_host, info_of(c, m)),
          m);
  if (pivots) *pivots = steps.read();
  return out;
}
Ran factor_ldl(const Call& c) { return ldl(c); }
Ran hermitian_ldl(const Call& c) {  // which a real matrix is not given to, and a mistake by itself
  const Buffers m(indefinite());
  const Memory<int64_t> steps(kRows);
  std::vector<char> host(512);
  return ran(cusolverDnXhetrf(c.solver, c.params, c.uplo, 2, c.type, a_of(c, m), c.ld, steps, c.type,
                              m.work.data, 512, host.data(), host.size(), info_of(c, m)),
             m);
}
Ran ldl_solve(const Call& c) {
  std::vector<int64_t> pivots;
  const Ran factors = ldl(opened(), &pivots);
  const Buffers m(factors.a);
  const Memory<int64_t> steps(pivots);
  size_t on_device = 0, on_host = 0;
  cusolverDnXsytrs_bufferSize(c.solver, CUBLAS_FILL_MODE_LOWER, kRows, kRight, CUDA_R_64F, m.a, kLd, steps,
                              CUDA_R_64F, m.b, kLd, &on_device, &on_host);
  std::vector<char> host(on_host);
  return ran(
      cusolverDnXsytrs(c.solver, c.uplo, kRows, kRight, c.type, a_of(c, m), c.ld,
                       c.no_tau ? nullptr : steps.data, c.values, m.b, c.k + kLd - kColumns, m.work.data,
                       on_device - c.bytes_less, c.null_host ? nullptr : host.data(), on_host, info_of(c, m)),
      m);
}
Ran triangle(const Call& c) {
  const Buffers m(definite());
  const double two = 2;
  return ran(cublasDtrsm(c.blas, CUBLAS_SIDE_LEFT, c.uplo, CUBLAS_OP_T, CUBLAS_DIAG_NON_UNIT, kRows, kRight,
                         c.no_tau ? nullptr : &two, a_of(c, m), c.ld, m.b, kLd),
             m);
}
std::vector<double*> pointers(double* first, int columns, const Call& c) {
  std::vector<double*> all;
  for (int i = 0; i < kBatch; ++i) all.push_back(first + i * kLd * columns);
  if (c.host_a) all[1] = g_on_host;
  if (c.a_offset) all[2] += c.a_offset;
  return all;
}
Ran lu_batched(const Call& c) {
  const Buffers m(matrix(kRows, 1, kBatch));
  const auto all = pointers(m.a, kRows, c);
  const Memory<double*> on_device(all);
  const double* const* list = c.host_is_device ? all.data() : on_device.data;
  return ran(cublasDgetrfBatched(c.blas, kRows, const_cast<double* const*>(list), c.ld, m.pivots,
                                 info_of(c, m), c.count),
             m);
}
Ran qr_batched(const Call& c) {
  const Buffers m(matrix(kColumns, 1, kBatch));
  const auto all = pointers(m.a, kColumns, c);
  std::vector<double*> tau;
  for (int i = 0; i < kBatch; ++i) tau.push_back(c.no_tau && i == 1 ? g_on_host : m.tau + i * kColumns);
  const Memory<double*> matrices(all), taus(tau);
  int refused = 0;
  return ran(
      cublasDgeqrfBatched(c.blas, c.m, kColumns, matrices.data, c.ld, c.null_host ? tau.data() : taus.data,
                          c.no_info          ? nullptr
                          : c.host_is_device ? m.info.data
                                             : &refused,
                          c.count),
      m);
}
Ran lu_solve_batched(const Call& c) {
  const Ran factors = lu_batched(opened());
  const Buffers m(factors.a);
  cudaMemcpy(m.pivots.data, factors.pivots.data(), kRows * kBatch * sizeof(int), cudaMemcpyHostToDevice);
  const Memory<double*> a(pointers(m.a, kRows, c)), b(pointers(m.b, kRows, opened()));
  int refused = 0;
  return ran(cublasDgetrsBatched(c.blas, CUBLAS_OP_N, kRows, kRight, a.data, c.ld, m.pivots, b.data, kLd,
                                 c.no_info          ? nullptr
                                 : c.host_is_device ? m.info.data
                                                    : &refused,
                                 kBatch),
             m);
}
Ran cholesky_batched(const Call& c) {
  const Buffers m(definite());
  const Memory<double*> a(std::vector<double*>{c.host_a ? g_on_host : m.a.data});
  return ran(cusolverDnDpotrfBatched(c.solver, c.uplo, kRows, a.data, c.ld, info_of(c, m), 1), m);
}

// ---- numbers -------------------------------------------------------------------------------------------

void check_factors() {
  const Numbers square = matrix(kRows, 1), tall = matrix(kColumns, 1), right = matrix(kRows, 3, kBatch);
  g_case = "getrs";
  const Ran solved = lu_solve(opened());
  CHECK(solved.status == 0 && is_product(entry(square), entry(solved.b), entry(right), kRows, kRight, kRows));
  g_case = "potrf";
  const Numbers d = definite();
  for (const Ran& l : {cholesky(opened()), cholesky_batched(opened())}) {
    auto lower = [&](int i, int j) { return i < j ? 0 : at(l.a, i, j); };
    auto upper = [&](int i, int j) { return lower(j, i); };
    CHECK(l.status == 0 && l.info[0] == 0 && is_product(lower, upper, entry(d), kRows, kRows, kRows));
    CHECK(at(l.a, 0, 1) == at(d, 0, 1));  // the other triangle is left alone
  }
  g_case = "orgqr";
  const Ran factors = qr(opened()), q = form_q(opened()), turned = multiply_q(opened());
  auto r = [&](int i, int j) { return i > j ? 0 : at(factors.a, i, j); };
  CHECK(q.status == 0 && is_product(entry(q.a), r, entry(tall), kRows, kColumns, kColumns));
  g_case = "ormqr";
  CHECK(turned.status == 0 &&
        is_product(transposed(q.a), entry(right), entry(turned.b), kColumns, kRight, kRows));
  g_case = "Xsytrs";
  const Ran by_ldl = ldl_solve(opened());
  const Numbers symmetric = indefinite();
  CHECK(by_ldl.status == 0 &&
        is_product(entry(symmetric), entry(by_ldl.b), entry(right), kRows, kRight, kRows));
  std::vector<int64_t> pivots;
  const Ran l_and_d = ldl(opened(), &pivots);
  CHECK(pivots[0] < 0 && pivots[0] == pivots[1]);     // a block of two
  CHECK(at(l_and_d.a, 0, 1) == at(symmetric, 0, 1));  // the other triangle is left alone
  g_case = "geqrfBatched";
  const Ran batch = qr_batched(opened());
  CHECK(batch.status == 0);
  for (int j = 0; j < kColumns; ++j)  // its first matrix is the one above
    for (int i = 0; i < kRows; ++i) CHECK(at(batch.a, i, j) == at(factors.a, i, j));
  g_case = "trsm";
  const Ran x = triangle(opened());
  auto l = [&](int i, int j) { return i > j ? 0 : at(d, i, j); };  // the transpose of the lower triangle
  auto twice = [&](int i, int j) { return 2 * at(right, i, j); };
  CHECK(x.status == 0 && is_product(l, entry(x.b), twice, kRows, kRight, kRows));
  g_case = "getrsBatched";
  const Ran all = lu_solve_batched(opened());
  const Numbers squares = matrix(kRows, 1, kBatch);
  for (int i = 0; i < kBatch; ++i) {
    const int first = i * kRows;  // columns
    auto part = [first](const Numbers& a) {
      return [&a, first](int r, int j) { return at(a, r, first + j); };
    };
    CHECK(all.status == 0 && is_product(part(squares), part(all.b), part(right), kRows, kRight, kRows));
  }
}

void check_values() {
  const Numbers tall = matrix(kColumns, 1), d = definite(), square = matrix(kRows, 1);
  g_case = "gesvdj";
  for (const Ran& s : {svd(opened()), svd_batched(opened())}) {
    auto scaled = [&](int i, int j) { return at(s.u, i, j) * s.s[size_t(j)]; };
    CHECK(s.status == 0 && s.s[0] >= s.s[1] && s.s[1] >= s.s[2] && s.s[2] > 0);
    CHECK(is_product(scaled, transposed(s.v), entry(tall), kRows, kColumns, kColumns));
    CHECK(at(s.a, 0, 0) != at(tall, 0, 0));  // destroyed
  }
  g_case = "Xsyevd";
  const Ran e = eigh(opened());
  auto values = [&](int i, int j) { return at(e.a, i, j) * e.s[size_t(j)]; };
  CHECK(e.status == 0 && e.s[0] <= e.s[1] && is_product(entry(d), entry(e.a), values, kRows, kRows, kRows));
  g_case = "Xgeev";
  const Ran g = eig(opened());
  // A V = V W, with a block [re, im; -im, re] of W for each pair.
  auto block = [&](int i, int j) {
    const double re = g.s[size_t(2 * j)], im = g.s[size_t(2 * j + 1)];
    if (i == j) return re;
    return (i == j + 1 && im > 0) ? -im : (i + 1 == j && im < 0) ? -im : 0.0;
  };
  auto product = [&](int i, int j) {
    double sum = 0;
    for (int l = 0; l < kRows; ++l) sum += at(g.v, i, l) * block(l, j);
    return sum;
  };
  CHECK(g.status == 0 && is_product(entry(square), entry(g.v), product, kRows, kRows, kRows));
}

// ---- mistakes ------------------------------------------------------------------------------------------

struct Mistake {
  const char* name;
  std::function<Ran(const Call&)> run;
  std::function<void(Call&)> plant;
};

void check_mistakes() {
  auto short_ld = [](Call& c) { c.ld = kRows - 1; };
  auto host = [](Call& c) { c.host_a = true; };
  auto beyond = [](Call& c) { c.a_offset = 3; };
  auto no_info = [](Call& c) { c.no_info = true; };
  auto less_work = [](Call& c) { c.lwork_less = 1; };
  auto short_work = [](Call& c) { c.work_offset = 1; };
  auto odd_fill = [](Call& c) { c.uplo = static_cast<cublasFillMode_t>(2); };
  const Mistake mistakes[] = {
      {"getrf: a leading dim below the rows", lu, short_ld},
      {"getrf: memory of the host", lu, host},
      {"getrf: a matrix beyond its memory", lu, beyond},
      {"getrf: work memory too small", lu, short_work},
      {"getrf: no info", lu, no_info},
      {"getrs: a leading dim below the rows", lu_solve, short_ld},
      {"getrs: memory of the host", lu_solve, host},
      {"potrf: a size below what was asked for", cholesky, less_work},
      {"potrf: work memory too small", cholesky, short_work},
      {"potrf: an unknown triangle", cholesky, odd_fill},
      {"geqrf: no tau", qr, [](Call& c) { c.no_tau = true; }},
      {"geqrf: work memory too small", qr, short_work},
      {"orgqr: more reflectors than columns", form_q, [](Call& c) { c.k = kColumns + 1; }},
      {"orgqr: more columns than rows", form_q, [](Call& c) { c.m = kColumns - 1; }},
      {"ormqr: the adjoint of a real matrix", multiply_q, [](Call& c) { c.trans = CUBLAS_OP_C; }},
      {"ormqr: more reflectors than rows", multiply_q, [](Call& c) { c.k = kRows + 1; }},
      {"ormqr: a size below what was asked for", multiply_q, less_work},
      {"gesvdj: no parameters", svd, [](Call& c) { c.jacobi = nullptr; }},
      {"gesvdj: ldv below the columns", svd, [](Call& c) { c.n = kColumns + 1; }},
      {"gesvdj: work memory too small", svd, short_work},
      {"gesvdjBatched: more than 32 rows", svd_batched, [](Call& c) { c.m = c.ld = 33; }},
      {"gesvdjBatched: more matrices than there are", svd_batched, [](Call& c) { c.count = kBatch + 1; }},
      {"Xsyevd: values of another type", eigh, [](Call& c) { c.values = CUDA_R_32F; }},
      {"Xsyevd: complex values", eigh, [](Call& c) { c.values = CUDA_C_64F; }},
      {"Xsyevd: another compute type", eigh, [](Call& c) { c.compute = CUDA_R_32F; }},
      {"Xsyevd: no parameters", eigh, [](Call& c) { c.params = nullptr; }},
      {"Xsyevd: no work memory on the host", eigh, [](Call& c) { c.null_host = true; }},
      {"Xsyevd: the host's work memory on the device", eigh, [](Call& c) { c.host_is_device = true; }},
      {"Xsyevd: work memory too small", eigh, [](Call& c) { c.bytes_less = 1; }},
      {"Xgeev: left vectors", eig, [](Call& c) { c.left = CUSOLVER_EIG_MODE_VECTOR; }},
      {"Xgeev: vectors of another type", eig, [](Call& c) { c.vectors = CUDA_C_64F; }},
      {"Xgeev: values of another precision", eig, [](Call& c) { c.values = CUDA_C_32F; }},
      {"Xgeev: work memory too small", eig, [](Call& c) { c.bytes_less = 1; }},
      {"trsm: no alpha", triangle, [](Call& c) { c.no_tau = true; }},
      {"trsm: a leading dim below the rows", triangle, short_ld},
      {"trsm: memory of the host", triangle, host},
      {"getrfBatched: pointers on the host", lu_batched, [](Call& c) { c.host_is_device = true; }},
      {"getrfBatched: a leading dim below the rows", lu_batched, short_ld},
      {"getrsBatched: info on the device", lu_solve_batched, [](Call& c) { c.host_is_device = true; }},
      {"potrfBatched: no info", cholesky_batched, no_info},
      {"Xsytrf: no pivots", factor_ldl, [](Call& c) { c.no_tau = true; }},
      {"Xsytrf: a leading dim below the rows", factor_ldl, short_ld},
      {"Xsytrf: another compute type", factor_ldl, [](Call& c) { c.compute = CUDA_R_32F; }},
      {"Xsytrf: an unknown triangle", factor_ldl, odd_fill},
      {"Xsytrf: no work memory on the host", factor_ldl, [](Call& c) { c.null_host = true; }},
      {"Xsytrf: work memory too small", factor_ldl, [](Call& c) { c.bytes_less = 1; }},
      {"Xsytrf: no info", factor_ldl, no_info},
      {"Xsytrs: right sides of another type", ldl_solve, [](Call& c) { c.values = CUDA_R_32F; }},
      {"Xsytrs: a leading dim of the right sides below the rows", ldl_solve, [](Call& c) { c.k = 0; }},
      {"Xsytrs: pivots are not there", ldl_solve, [](Call& c) { c.no_tau = true; }},
      {"Xsytrs: work memory too small", ldl_solve, [](Call& c) { c.bytes_less = 1; }},
      {"geqrfBatched: a leading dim below the rows", qr_batched, short_ld},
      {"geqrfBatched: pointers to tau on the host", qr_batched, [](Call& c) { c.null_host = true; }},
      {"geqrfBatched: info on the device", qr_batched, [](Call& c) { c.host_is_device = true; }},
      {"geqrfBatched: no info", qr_batched, no_info},
      {"geqrfBatched: more matrices than pointers", qr_batched, [](Call& c) { c.count = kBatch + 1; }},
  };
  for (const Mistake& mistake : mistakes) {
    g_case = mistake.name;
    Call wrong = opened();
    mistake.plant(wrong);
    const Ran before = mistake.run(opened()), out = mistake.run(wrong);
    CHECK(before.status == 0);  // right but for the mistake
    CHECK(out.status != 0);
    CHECK(out.a == out.given);  // nothing ran
  }
  g_case = "Xhetrf: a real matrix";
  Call complex = opened();
  complex.type = CUDA_C_64F;
  complex.ld = 2;  // of numbers twice as large
  CHECK(hermitian_ldl(complex).status == 0 && hermitian_ldl(opened()).status != 0);
  g_case = "a handle of another device";
  Call call = opened();
  cudaSetDevice(1);
  CHECK(lu(call).status != 0 && triangle(call).status != 0);
  cudaSetDevice(0);
}

struct TestServices final : warptape::kernels::Services {
  std::string lapack;
  std::string lapack_library() override { return lapack; }
};

// Ends the process: a pointer among those of a batch is wrong.
int run_fatal(const std::string& routine, const std::string& mistake) {
  Call call = opened();
  if (mistake == "host") call.host_a = true;
  if (mistake == "beyond") call.a_offset = 3;
  if (mistake == "tau") call.no_tau = true;
  (routine == "getrfBatched"   ? lu_batched
   : routine == "getrsBatched" ? lu_solve_batched
   : routine == "geqrfBatched" ? qr_batched
                               : cholesky_batched)(call);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  TestServices services;
  services.lapack = argv[1];
  warptape::kernels::install(services);
  if (argc > 3) return run_fatal(argv[2], argv[3]);
  check_factors();
  check_values();
  check_mistakes();
  return g_failures ? 1 : 0;
}
