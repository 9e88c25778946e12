// Kernels around cuSOLVER's routines: see linalg_kernels.h. One thread takes one element, or one matrix where
// what it does goes on from one to the next.
#include "kernels/cuda/linalg/linalg_kernels.h"

#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/common/complex.cuh"
#include "kernels/cuda/common/memory.cuh"
#include "kernels/linalg/linalg.h"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 256;
using MatrixTypes = Types<float, double, Complex<float>, Complex<double>>;
template <class T> struct PartOf {
  using type = T;
};
template <class R> struct PartOf<Complex<R>> {
  using type = R;
};
template <class T> using Part = typename PartOf<T>::type;

dim3 blocks_for(int64_t n) { return dim3(unsigned(ceil_div(n, kThreads))); }
WT_DEVICE int64_t own_index() { return int64_t(blockIdx.x) * kThreads + threadIdx.x; }

// Launches one thread for each of n.
template <class... P, class... A>
void launch_each(const LaunchContext& ctx, const char* op, int64_t n, void (*kernel)(P...), A&&... args) {
  if (n > 0) launch(ctx, op, kernel, blocks_for(n), dim3(kThreads), 0, static_cast<A&&>(args)...);
}

template <class T>
WT_DEVICE T conjugated(T x) {
  if constexpr (kIsComplex<T>)
    return T(x.re, -x.im);
  else
    return x;
}
template <class T>
WT_DEVICE Part<T> size_of(T x) {
  if constexpr (kIsComplex<T>)
    return hypot(x.re, x.im);
  else
    return abs(x);
}
template <class T>
WT_DEVICE bool is_zero(T x) {
  return x == T(0);
}

__global__ void __launch_bounds__(kThreads)
    pointers_kernel(void** at, char* first, int64_t step_bytes, int64_t count) {
  const int64_t i = own_index();
  if (i < count) at[i] = first + i * step_bytes;
}

WT_DEVICE bool in_triangle(int64_t row, int64_t column, Triangle which) {
  return which == Triangle::Whole || (which == Triangle::Upper ? row <= column : row >= column);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    clear_kernel(T* a, int64_t m, int64_t n, int64_t numel, Triangle kept) {
  const int64_t i = own_index();
  if (i < numel && !in_triangle(i % m, i / m % n, kept)) a[i] = T(0);
}

template <class T>
WT_DEVICE int content_of(T x) {
  if constexpr (kIsComplex<T>)
    return content_of(x.re) | content_of(x.im);
  else
    return isnan(x) ? 2 : isinf(x) ? 1 : 0;
}
template <class T>
__global__ void __launch_bounds__(kThreads)
    content_kernel(const T* a, int64_t m, int64_t n, int64_t numel, Triangle read, int* state) {
  const int64_t i = own_index();
  if (i >= numel || !in_triangle(i % m, i / m % n, read)) return;
  if (const int found = content_of(a[i])) atomicOr(state + i / (m * n), found);
}
template <class T>
__global__ void __launch_bounds__(kThreads)
    fill_noted_kernel(T* x, int64_t per, int64_t numel, T value, const int* state) {
  const int64_t i = own_index();
  if (i < numel && state[i / per]) x[i] = value;
}
__global__ void __launch_bounds__(kThreads) info_kernel(int* info, const int* state, int64_t count) {
  const int64_t i = own_index();
  if (i < count && state[i]) info[i] = state[i] & 2 ? -4 : 0;
}
template <class T>
__global__ void __launch_bounds__(kThreads)
    zero_diagonal_kernel(const T* a, int64_t m, int64_t n, int64_t count, int* info) {
  const int64_t i = own_index();
  if (i >= count) return;
  int found = 0;
  for (int64_t j = 0; j < m && j < n && !found; ++j)
    if (is_zero(a[(i * n + j) * m + j])) found = int(j) + 1;
  info[i] = found;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    adjoint_kernel(T* out, const T* from, int64_t m, int64_t n, int64_t numel, int64_t ld, int64_t step) {
  const int64_t i = own_index();
  if (i >= numel) return;
  const int64_t matrix = i / (m * n), row = i % n, column = i / n % m;  // of out
  out[i] = conjugated(from[matrix * step + row * ld + column]);
}
template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(T* out, const T* from, int64_t per, int64_t numel, int64_t step) {
  const int64_t i = own_index();
  if (i < numel) out[i] = from[i / per * step + i % per];
}

template <class To, class From>
__global__ void __launch_bounds__(kThreads) convert_kernel(To* out, const From* from, int64_t n) {
  const int64_t i = own_index();
  if (i < n) out[i] = static_cast<To>(from[i]);
}

template <class T>
__global__ void __launch_bounds__(kThreads) identity_kernel(T* a, int64_t m, int64_t n, int64_t numel) {
  const int64_t i = own_index();
  if (i < numel) a[i] = T(i % m == i / m % n);
}

// One warp's line of C: a column, or a row if not `left`. Its numbers are `stride` apart.
struct Line {
  int64_t rows, k, stride;  // rows: of the reflectors
  bool left, adjoint;
};
template <class T>
WT_DEVICE T warp_sum(T x) {
  auto add = [](auto a, auto b) { return a + b; };
  if constexpr (kIsComplex<T>)
    return T(warp_reduce(x.re, add), warp_reduce(x.im, add));
  else
    return warp_reduce(x, add);
}
// x -= t v (v^H x); of a row, transposed, v's conjugate takes the place of v. Each lane keeps to its own
// numbers, so that no lane waits for what another has written.
template <class T>
WT_DEVICE void reflect(T* x, const T* v, T t, int64_t i, const Line& line) {
  const int lane = threadIdx.x % kWarp;
  auto of_v = [&](int64_t p) {
    const T value = p == i ? T(1) : v[p];
    return line.left ? value : conjugated(value);
  };
  T sum(0);
  const int64_t first = i / kWarp * kWarp + lane;
  for (int64_t p = first; p < line.rows; p += kWarp)
    if (p >= i) sum = sum + conjugated(of_v(p)) * x[p * line.stride];
  t = (line.adjoint ? conjugated(t) : t) * warp_sum(sum);
  for (int64_t p = first; p < line.rows; p += kWarp)
    if (p >= i) x[p * line.stride] = x[p * line.stride] - t * of_v(p);
}
template <class T>
__global__ void __launch_bounds__(kThreads)
    reflectors_kernel(T* c, int64_t count, int64_t m, int64_t n, const T* v, int64_t v_step, const T* tau,
                      Line line) {
  const int64_t lines = line.left ? n : m, at = own_index() / kWarp, matrix = at / lines;
  if (matrix >= count) return;
  T* x = c + matrix * m * n + at % lines * (line.left ? m : 1);
  v += matrix * v_step, tau += matrix * line.k;
  // Q is the first reflector times the others: the last one comes first to what stands right of it.
  const bool forward = line.left == line.adjoint;
  for (int64_t step = 0; step < line.k; ++step) {
    const int64_t i = forward ? step : line.k - 1 - step;
    reflect(x, v + i * line.rows, tau[i], i, line);
  }
}

template <class R>
__global__ void __launch_bounds__(kThreads)
    pairs_kernel(Complex<R>* vectors, const R* parts, const Complex<R>* values, int64_t n, int64_t numel) {
  const int64_t i = own_index();
  if (i >= numel) return;
  const R imaginary = values[i / n].im;  // the pair's first one has a positive part
  if (imaginary > 0)
    vectors[i] = {parts[i], parts[i + n]};
  else if (imaginary < 0)
    vectors[i] = {parts[i - n], -parts[i]};
  else
    vectors[i] = {parts[i], R(0)};
}

template <class T>
WT_DEVICE T sign_of(T x) {
  if constexpr (kIsComplex<T>) {
    const Part<T> size = size_of(x);
    return size == 0 ? T(0) : T(x.re / size, x.im / size);
  } else {
    return T(x > 0) - T(x < 0);  // 0 for NaN
  }
}
template <class T>
__global__ void __launch_bounds__(kThreads)
    determinant_kernel(const T* lu, const int* pivots, int64_t n, int64_t count, T* value, T* sign,
                       Part<T>* log) {
  const int64_t i = own_index();
  if (i >= count) return;
  T product(1), signs(1);
  Part<T> sum = 0;
  for (int64_t j = 0; j < n; ++j) {
    T x = lu[(i * n + j) * n + j];
    if (log) sum += device::log(size_of(x));
    if (pivots[i * n + j] != j + 1) x = T(0) - x;
    product = product * x;
    signs = signs * sign_of(x);
  }
  if (value) value[i] = product;
  if (sign) sign[i] = signs;
  if (log) log[i] = sum;
}

__global__ void __launch_bounds__(kThreads) row_order_kernel(int64_t* order, const int* pivots, int64_t m,
                                                             int64_t k, int64_t count, FaultSink fault) {
  const int64_t i = own_index();
  if (i >= count) return;
  int64_t* row = order + i * m;
  for (int64_t r = 0; r < m; ++r) row[r] = r;
  for (int64_t j = 0; j < k && j < m; ++j) {
    const int64_t other = pivots[i * k + j] - 1;
    if (other < 0 || other >= m) {
      fault.report(other, m);
      return;
    }
    const int64_t kept = row[j];
    row[j] = row[other], row[other] = kept;
  }
}

void row_order(const LaunchContext& ctx, const View& order, const View& pivots) {
  launch_each(ctx, "lu", order.sizes[0], row_order_kernel, order.as<int64_t>(), pivots.as<const int>(),
              order.sizes[1], pivots.sizes[1], order.sizes[0], fault_sink(ctx, "lu: pivots"));
}

template <class F>
void by_type(DType dtype, const char* op, F&& f) {
  dispatch(MatrixTypes{}, dtype, f, op);
}

}  // namespace

void matrix_pointers(const LaunchContext& ctx, const char* op, void** at, void* first, int64_t step_bytes,
                     int64_t count) {
  launch_each(ctx, op, count, pointers_kernel, at, static_cast<char*>(first), step_bytes, count);
}

void clear_outside(const LaunchContext& ctx, const char* op, const MatrixArgs& a, Triangle kept) {
  const int64_t numel = a.count * a.m * a.n;
  by_type(a.dtype, op, [&](auto t) {
    using T = typename decltype(t)::type;
    launch_each(ctx, op, numel, clear_kernel<T>, static_cast<T*>(a.data), a.m, a.n, numel, kept);
  });
}

void note_content(const LaunchContext& ctx, const char* op, const MatrixArgs& a, Triangle read, int* state) {
  const int64_t numel = a.count * a.m * a.n;
  use_device(ctx.device_index);
  check(cudaMemsetAsync(state, 0, size_t(a.count) * sizeof(int), static_cast<cudaStream_t>(ctx.stream)), op);
  by_type(a.dtype, op, [&](auto t) {
    using T = typename decltype(t)::type;
    auto* data = static_cast<T*>(a.data);
    launch_each(ctx, op, numel, content_kernel<T>, data, a.m, a.n, numel, read, state);
    launch_each(ctx, op, numel, fill_noted_kernel<T>, data, a.m * a.n, numel, T(0), state);
  });
}

void spread_nan(const LaunchContext& ctx, const char* op, void* x, DType dtype, int64_t count, int64_t per,
                const int* state) {
  by_type(dtype, op, [&](auto t) {
    using T = typename decltype(t)::type;
    const auto none = std::numeric_limits<Part<T>>::quiet_NaN();
    T value(none);
    if constexpr (kIsComplex<T>) value = T(none, none);
    launch_each(ctx, op, count * per, fill_noted_kernel<T>, static_cast<T*>(x), per, count * per, value,
                state);
  });
}

void finish_info(const LaunchContext& ctx, const char* op, int* info, const int* state, int64_t count) {
  launch_each(ctx, op, count, info_kernel, info, state, count);
}

void note_zero_diagonal(const LaunchContext& ctx, const char* op, const MatrixArgs& a, int* info) {
  by_type(a.dtype, op, [&](auto t) {
    using T = typename decltype(t)::type;
    launch_each(ctx, op, a.count, zero_diagonal_kernel<T>, static_cast<const T*>(a.data), a.m, a.n, a.count,
                info);
  });
}

void adjoint_matrices(const LaunchContext& ctx, const char* op, void* out, const MatrixArgs& from, int64_t ld,
                      int64_t step) {
  const int64_t numel = from.count * from.m * from.n;
  by_type(from.dtype, op, [&](auto t) {
    using T = typename decltype(t)::type;
    launch_each(ctx, op, numel, adjoint_kernel<T>, static_cast<T*>(out), static_cast<const T*>(from.data),
                from.m, from.n, numel, ld, step);
  });
}

void gather_matrices(const LaunchContext& ctx, const char* op, void* out, const void* from, DType dtype,
                     int64_t count, int64_t per, int64_t step) {
  by_type(dtype, op, [&](auto t) {
    using T = typename decltype(t)::type;
    launch_each(ctx, op, count * per, gather_kernel<T>, static_cast<T*>(out), static_cast<const T*>(from),
                per, count * per, step);
  });
}

void narrow_pivots(const LaunchContext& ctx, const char* op, int* out, const int64_t* from, int64_t n) {
  launch_each(ctx, op, n, convert_kernel<int, int64_t>, out, from, n);
}
void widen_pivots(const LaunchContext& ctx, const char* op, int64_t* out, const int* from, int64_t n) {
  launch_each(ctx, op, n, convert_kernel<int64_t, int>, out, from, n);
}

void fill_identity(const LaunchContext& ctx, const char* op, const MatrixArgs& a) {
  const int64_t numel = a.count * a.m * a.n;
  by_type(a.dtype, op, [&](auto t) {
    using T = typename decltype(t)::type;
    launch_each(ctx, op, numel, identity_kernel<T>, static_cast<T*>(a.data), a.m, a.n, numel);
  });
}

void apply_reflectors(const LaunchContext& ctx, const char* op, const MatrixArgs& c, const ReflectorArgs& q) {
  const Line line{q.left ? c.m : c.n, q.k, q.left ? 1 : c.m, q.left, q.adjoint};
  const int64_t lines = c.count * (q.left ? c.n : c.m);
  by_type(c.dtype, op, [&](auto t) {
    using T = typename decltype(t)::type;
    launch_each(ctx, op, lines * kWarp, reflectors_kernel<T>, static_cast<T*>(c.data), c.count, c.m, c.n,
                static_cast<const T*>(q.v.data), q.v.m * q.v.n, static_cast<const T*>(q.tau), line);
  });
}

void join_pairs(const LaunchContext& ctx, const char* op, const View& vectors, const void* parts,
                const View& values) {
  const int64_t n = vectors.sizes[1], numel = vectors.numel();
  dispatch(
      ComplexTypes{}, vectors.dtype,
      [&](auto t) {
        using T = typename decltype(t)::type;
        launch_each(ctx, op, numel, pairs_kernel<Part<T>>, vectors.as<T>(),
                    static_cast<const Part<T>*>(parts), values.as<const T>(), n, numel);
      },
      op);
}

void determinants(const LaunchContext& ctx, const char* op, const MatrixArgs& lu, const int* pivots,
                  void* value, void* sign, void* log) {
  by_type(lu.dtype, op, [&](auto t) {
    using T = typename decltype(t)::type;
    launch_each(ctx, op, lu.count, determinant_kernel<T>, static_cast<const T*>(lu.data), pivots, lu.n,
                lu.count, static_cast<T*>(value), static_cast<T*>(sign), static_cast<Part<T>*>(log));
  });
}

WT_KERNEL(linalg_row_order, row_order);

}  // namespace warptape::kernels::cuda
