// Running reductions along one dim. A line is cut into segments: where lines alone do not fill the device, a
// first launch finds the total of every segment, a second one runs over the totals of each line, and the last
// one scans the segments from there. Floats run as double, so a sum does not gather an error at every step.
//
// Lines of the last dim are scanned by a warp or a block each; other lines lie side by side, a thread for
// each.
#include "kernels/reduce/reduce.h"

#include "kernels/cuda/common/groups.cuh"
#include "kernels/cuda/reduce/reducers.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

inline constexpr int kScanThreads = 256;
inline constexpr int kScanRun = 4;           // neighbouring elements of a thread
inline constexpr int64_t kScanLines = 1056;  // with these many blocks no line is cut
inline constexpr int64_t kShortestSegment = 4096;

// ---- operations: State of one element, join(before, after), store ----
struct Sum {
  template <class C> WT_DEVICE static C none() { return C(0); }
  template <class C> WT_DEVICE static C join(C a, C b) { return a + b; }
};
struct Product {
  template <class C> WT_DEVICE static C none() { return C(1); }
  template <class C> WT_DEVICE static C join(C a, C b) { return a * b; }
};
struct LogAdd {
  template <class C> WT_DEVICE static C none() { return -C(__builtin_inf()); }
  template <class C> WT_DEVICE static C join(C a, C b) {
    if (isnan(a) || isnan(b)) return a + b;
    const C top = a > b ? a : b, low = a > b ? b : a;
    return isinf(top) ? top : top + log1p(exp(low - top));
  }
};
template <class C, class Op>
struct Running {
  using Value = C;
  using State = C;
  Output out;
  WT_DEVICE State none() const { return Op::template none<C>(); }
  WT_DEVICE State of(C x, int64_t) const { return x; }
  WT_DEVICE State join(State a, State b) const { return Op::join(a, b); }
  WT_DEVICE void store(const State& s, int64_t to) const { out.put(s, to); }
};

// The last of equal values is taken, and a NaN stays until the next one.
template <class C>
struct RunningBest {
  using Value = C;
  struct State {
    C value;
    int64_t index;  // -1 before the first value
  };
  Output values, indices;
  bool least;
  WT_DEVICE State none() const { return {C(0), -1}; }
  WT_DEVICE State of(C x, int64_t index) const { return {x, index}; }
  WT_DEVICE State join(const State& a, const State& b) const {
    if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
    if (isnan(b.value)) return b;
    return !isnan(a.value) && (least ? b.value <= a.value : b.value >= a.value) ? b : a;
  }
  WT_DEVICE void store(const State& s, int64_t to) const {
    values.put(s.value, to);
    indices.put(s.index, to);
  }
};

template <class Run>
struct ScanArgs {
  Run run;
  const char* in;
  DType dtype;
  bool packed;  // in is contiguous; else it lies by these dims, strides in elements
  int dims;
  int64_t sizes[kMaxDims], strides[kMaxDims];
  int64_t outer, length, inner;
  int64_t segment, segments;
  int lanes;                    // threads of a line, for the last dim
  typename Run::State* totals;  // [segment, line] or null
  bool totals_only;

  WT_DEVICE int64_t place(int64_t i) const {
    if (packed) return i;
    int64_t at = 0;
#pragma unroll 1
    for (int d = dims - 1; d >= 0; --d) {
      const int64_t size = sizes[d];
      const int64_t q = i <= UINT32_MAX ? uint32_t(i) / uint32_t(size) : i / size;
      at += (i - q * size) * strides[d];
      i = q;
    }
    return at;
  }
  // The N elements from packed index i on, `step` apart. What they become is stored elsewhere, so all loads
  // may be in flight at once.
  template <int N>
  WT_DEVICE void load(typename Run::Value (&x)[N], int64_t i, int64_t step, int count) const {
    int64_t at[N];
#pragma unroll
    for (int k = 0; k < N; ++k) at[k] = k < count ? place(i + k * step) : 0;
    dispatch(AllTypes{}, dtype, [&](auto t) {
      using T = typename decltype(t)::type;
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (k < count) x[k] = widen<typename Run::Value>(reinterpret_cast<const T*>(in)[at[k]]);
    });
  }
};

// The states of the line's earlier threads joined, and of all in `total`. As group_join.
template <class Run>
WT_DEVICE typename Run::State scan_lanes(const Run& run, typename Run::State value, int lanes,
                                         typename Run::State& total, typename Run::State* shared) {
  using State = typename Run::State;
  const int lane = threadIdx.x % kWarp, width = min(lanes, kWarp), at = lane % width;
  for (int step = 1; step < width; step *= 2) {
    const State before = shuffle_up(value, step);
    if (at >= step) value = run.join(before, value);
  }
  State earlier = shuffle_up(value, 1);
  if (at == 0) earlier = run.none();
  total = shuffle_from(value, lane / width * width + width - 1);
  if (lanes <= kWarp) return earlier;
  const int warp = threadIdx.x / kWarp;  // a line has the whole block
  __syncthreads();
  if (lane == 0) shared[warp] = total;
  __syncthreads();
  State before = run.none();
  for (int w = 0; w < kScanThreads / kWarp; ++w) {
    if (w == warp) earlier = run.join(before, earlier);
    before = run.join(before, shared[w]);
  }
  total = before;
  return earlier;
}

template <class Run>
__global__ void __launch_bounds__(kScanThreads) scan_rows_kernel(const __grid_constant__ ScanArgs<Run> a) {
  using State = typename Run::State;
  __shared__ State shared[kScanThreads / kWarp];
  const int lane = threadIdx.x % a.lanes;
  const int64_t line = int64_t(blockIdx.x) * (kScanThreads / a.lanes) + threadIdx.x / a.lanes;
  const int64_t begin = blockIdx.y * a.segment;
  const int64_t end = line < a.outer ? min(a.length, begin + a.segment) : 0;
  const int64_t last = min(a.length, begin + a.segment);  // the same for all of the block: barriers below
  State carry =
      a.totals && !a.totals_only && line < a.outer ? a.totals[blockIdx.y * a.outer + line] : a.run.none();
  for (int64_t tile = begin; tile < last; tile += int64_t(a.lanes) * kScanRun) {
    const int64_t first = tile + lane * kScanRun;
    const int count = int(max(int64_t(0), min(int64_t(kScanRun), end - first)));
    State x[kScanRun];
    typename Run::Value values[kScanRun];
    a.load(values, line * a.length + first, 1, count);
    State all = a.run.none();
#pragma unroll
    for (int k = 0; k < kScanRun; ++k)
      if (k < count) x[k] = all = a.run.join(all, a.run.of(values[k], first + k));
    State total;
    const State before = a.run.join(carry, scan_lanes(a.run, all, a.lanes, total, shared));
    carry = a.run.join(carry, total);
    if (a.totals_only) continue;
#pragma unroll
    for (int k = 0; k < kScanRun; ++k)
      if (k < count) a.run.store(a.run.join(before, x[k]), line * a.length + first + k);
  }
  if (a.totals_only && lane == 0 && line < a.outer) a.totals[blockIdx.y * a.outer + line] = carry;
}

template <class Run>
__global__ void __launch_bounds__(kScanThreads) scan_columns_kernel(const __grid_constant__ ScanArgs<Run> a) {
  using State = typename Run::State;
  const int64_t lines = a.outer * a.inner, line = int64_t(blockIdx.x) * kScanThreads + threadIdx.x;
  if (line >= lines) return;
  const int64_t first = line / a.inner * a.length * a.inner + line % a.inner;
  const int64_t begin = blockIdx.y * a.segment, end = min(a.length, begin + a.segment);
  State carry = a.totals && !a.totals_only ? a.totals[blockIdx.y * lines + line] : a.run.none();
  for (int64_t k = begin; k < end; k += kScanRun) {
    const int count = int(min(int64_t(kScanRun), end - k));
    typename Run::Value x[kScanRun];
    a.load(x, first + k * a.inner, a.inner, count);
#pragma unroll
    for (int u = 0; u < kScanRun; ++u) {
      if (u >= count) break;
      carry = a.run.join(carry, a.run.of(x[u], k + u));
      if (!a.totals_only) a.run.store(carry, first + (k + u) * a.inner);
    }
  }
  if (a.totals_only) a.totals[blockIdx.y * lines + line] = carry;
}

// Every segment's total becomes what all earlier ones join to.
template <class Run>
__global__ void __launch_bounds__(kScanThreads)
    scan_totals_kernel(Run run, typename Run::State* totals, int64_t lines, int64_t segments) {
  const int64_t line = int64_t(blockIdx.x) * kScanThreads + threadIdx.x;
  if (line >= lines) return;
  typename Run::State carry = run.none();
  for (int64_t s = 0; s < segments; ++s) {
    const typename Run::State total = totals[s * lines + line];
    totals[s * lines + line] = carry;
    carry = run.join(carry, total);
  }
}

template <class Run>
void launch_scan(const LaunchContext& ctx, const char* name, ScanArgs<Run>& a) {
  const int64_t lines = a.outer * a.inner;
  int64_t blocks, steps;  // a line's steps, one after the other
  if (a.inner == 1) {
    a.lanes = a.length > 8 * kWarp * kScanRun
                  ? kScanThreads
                  : min(kWarp, ceil_power_of_2(ceil_div(a.length, int64_t(kScanRun))));
    blocks = ceil_div(lines, kScanThreads / a.lanes);
    steps = a.length;
  } else {
    blocks = ceil_div(lines, kScanThreads);
    steps = a.length * 32;  // a thread alone takes longer than a block
  }
  int64_t segments =
      blocks < kScanLines / 4 ? min(ceil_div(kScanLines, blocks), steps / kShortestSegment) : 1;
  segments = max(int64_t(1), min(segments, min(a.length, int64_t(1024))));
  a.segment = ceil_div(ceil_div(a.length, segments), int64_t(kScanRun)) * kScanRun;
  a.segments = ceil_div(a.length, a.segment);
  const dim3 grid(unsigned(blocks), unsigned(a.segments)), block(kScanThreads);
  auto scan = [&](bool totals_only) {
    a.totals_only = totals_only;
    if (a.inner == 1)
      launch(ctx, name, scan_rows_kernel<Run>, grid, block, 0, a);
    else
      launch(ctx, name, scan_columns_kernel<Run>, grid, block, 0, a);
  };
  if (a.segments > 1) {
    a.totals = static_cast<typename Run::State*>(
        ctx.scratch(size_t(a.segments * lines) * sizeof(typename Run::State)));
    scan(true);
    launch(ctx, name, scan_totals_kernel<Run>, dim3(unsigned(ceil_div(lines, kScanThreads))), block, 0, a.run,
           a.totals, lines, a.segments);
  }
  scan(false);
}

template <class Run>
void scan(const LaunchContext& ctx, const char* name, const View& in, int dim, const Run& run) {
  if (in.numel() == 0) return;
  ScanArgs<Run> a{};
  a.run = run;
  a.in = static_cast<const char*>(in.data);
  a.dtype = in.dtype;
  a.packed = in.contiguous();
  a.outer = a.length = a.inner = 1;
  a.dims = in.ndim;
  for (int d = 0; d < in.ndim; ++d) {
    (d < dim ? a.outer : d == dim ? a.length : a.inner) *= in.sizes[d];
    a.sizes[d] = in.sizes[d];
    a.strides[d] = in.strides[d];
  }
  launch_scan(ctx, name, a);
}

template <class Op>
void scan_numbers(const LaunchContext& ctx, const char* name, const View& out, const View& in, int dim) {
  const Output to{out.data, out.dtype};
  if (is_floating(out.dtype)) return scan(ctx, name, in, dim, Running<double, Op>{to});
  if constexpr (!std::is_same_v<Op, LogAdd>) scan(ctx, name, in, dim, Running<int64_t, Op>{to});
}
void cumsum(const LaunchContext& ctx, const View& out, const View& in, int dim) {
  scan_numbers<Sum>(ctx, "cumsum", out, in, dim);
}
void cumprod(const LaunchContext& ctx, const View& out, const View& in, int dim) {
  scan_numbers<Product>(ctx, "cumprod", out, in, dim);
}
void logcumsumexp(const LaunchContext& ctx, const View& out, const View& in, int dim) {
  scan_numbers<LogAdd>(ctx, "logcumsumexp", out, in, dim);
}

void scan_best(const LaunchContext& ctx, const char* name, const View& values, const View& indices,
               const View& in, int dim, bool least) {
  const Output v{values.data, values.dtype}, i{indices.data, indices.dtype};
  if (is_floating(in.dtype))
    scan(ctx, name, in, dim, RunningBest<double>{v, i, least});
  else
    scan(ctx, name, in, dim, RunningBest<int64_t>{v, i, least});
}
void cummax(const LaunchContext& ctx, const View& values, const View& indices, const View& in, int dim) {
  scan_best(ctx, "cummax", values, indices, in, dim, false);
}
void cummin(const LaunchContext& ctx, const View& values, const View& indices, const View& in, int dim) {
  scan_best(ctx, "cummin", values, indices, in, dim, true);
}

WT_KERNEL(cumsum, cumsum);
WT_KERNEL(cumprod, cumprod);
WT_KERNEL(logcumsumexp, logcumsumexp);
WT_KERNEL(cummax, cummax);
WT_KERNEL(cummin, cummin);

}  // namespace
}  // namespace warptape::kernels::cuda
