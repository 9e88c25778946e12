// Slot "copy": from any dtype and layout to any other; a host scalar fills. Equal contiguous memory goes to
// the copy engine, casts between narrow floats 16 bytes an access, transposes through tiles in shared memory,
// and the rest through the general elementwise kernel.
#include "kernels/cuda/elementwise/elementwise.cuh"

namespace warptape::kernels::cuda {
namespace {

struct Identity : Unary<kAny> {
  template <class V>
  WT_FN static V apply(V x) {
    return x;
  }
};

bool is_flat(const ElementwisePlan& plan, const Operand& op) {
  return !op.host_scalar && (plan.numel == 1 || op.strides[0] == static_cast<int64_t>(itemsize(op.dtype)));
}

bool try_memcpy(const LaunchContext& ctx, const ElementwisePlan& plan) {
  const Operand &out = plan.operands[0], &in = plan.operands[1];
  if (plan.ndim > 1 || out.dtype != in.dtype || !is_flat(plan, out) || !is_flat(plan, in)) return false;
  use_device(ctx.device_index);
  check(cudaMemcpyAsync(out.data, in.data, static_cast<size_t>(plan.numel) * itemsize(out.dtype),
                        cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(ctx.stream)),
        "copy");
  return true;
}

// ---- casts between float32, bfloat16 and float16: both sides move as many values as 16 bytes of the wider
// dtype hold ----
template <class To, class From>
__global__ void __launch_bounds__(kThreads) cast_kernel(To* out, const From* in, int64_t n) {
  constexpr int W = 16 / (sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From));
  const int64_t block = int64_t(blockIdx.x) * (kThreads * W * kFlatLoads);
  if (block + kThreads * W * kFlatLoads <= n) {
    Packed<From, W> v[kFlatLoads];
#pragma unroll
    for (int u = 0; u < kFlatLoads; ++u) v[u] = load_packed<W>(in + block + (u * kThreads + threadIdx.x) * W);
#pragma unroll
    for (int u = 0; u < kFlatLoads; ++u) {
      Packed<To, W> r;
#pragma unroll
      for (int j = 0; j < W; ++j) r[j] = narrow<To>(widen<float>(v[u][j]));
      store_packed(out + block + (u * kThreads + threadIdx.x) * W, r);
    }
    return;
  }
  for (int64_t i = block + threadIdx.x; i < n; i += kThreads) out[i] = narrow<To>(widen<float>(in[i]));
}

using NarrowFloats = Types<float, BFloat16, Half>;

bool is_narrow_float(DType t) { return is_floating(t) && t != DType::Float64 && !is_float8(t); }

bool try_cast(const LaunchContext& ctx, const ElementwisePlan& plan) {
  const Operand &out = plan.operands[0], &in = plan.operands[1];
  if (plan.ndim > 1 || !is_flat(plan, out) || !is_flat(plan, in)) return false;
  if (!is_aligned(out.data, 16) || !is_aligned(in.data, 16)) return false;
  if (!is_narrow_float(out.dtype) || !is_narrow_float(in.dtype) || out.dtype == in.dtype) return false;
  dispatch(NarrowFloats{}, out.dtype, [&](auto to) {
    dispatch(NarrowFloats{}, in.dtype, [&](auto from) {
      using To = typename decltype(to)::type;
      using From = typename decltype(from)::type;
      if constexpr (!std::is_same_v<To, From>) {
        constexpr int W = 16 / (sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From));
        const int64_t blocks = ceil_div(plan.numel, kThreads * W * kFlatLoads);
        launch(ctx, "copy", cast_kernel<To, From>, dim3(unsigned(blocks)), dim3(kThreads), 0,
               reinterpret_cast<To*>(out.data), reinterpret_cast<const From*>(in.data), plan.numel);
      }
    });
  });
  return true;
}

// ---- transposes: the input is packed along dim d, the output along the last ----
constexpr int kTile = 32, kTileRows = 8;

struct TransposeArgs {
  char* out;
  const char* in;
  int64_t rows, cols;       // along d and along the last dim, in the output's view
  int64_t out_row, in_col;  // strides in elements
  IndexMap<2> outer;        // the other dims, strides in bytes
  unsigned row_tiles, col_tiles;
};

template <class T>
__global__ void __launch_bounds__(kTile* kTileRows)
    transpose_kernel(const __grid_constant__ TransposeArgs a) {
  __shared__ T tile[kTile][kTile + 1];  // one more column: no two lanes meet in a bank
  unsigned at = blockIdx.x;
  const int64_t col0 = int64_t(at % a.col_tiles) * kTile;
  at /= a.col_tiles;
  const int64_t row0 = int64_t(at % a.row_tiles) * kTile;
  const auto outer = a.outer(at / a.row_tiles);
  const T* in = reinterpret_cast<const T*>(a.in + outer.of[1]);
  T* out = reinterpret_cast<T*>(a.out + outer.of[0]);
#pragma unroll
  for (int i = threadIdx.y; i < kTile; i += kTileRows) {
    const int64_t row = row0 + threadIdx.x, col = col0 + i;
    if (row < a.rows && col < a.cols) tile[i][threadIdx.x] = in[col * a.in_col + row];
  }
  __syncthreads();
#pragma unroll
  for (int i = threadIdx.y; i < kTile; i += kTileRows) {
    const int64_t row = row0 + i, col = col0 + threadIdx.x;
    if (row < a.rows && col < a.cols) out[row * a.out_row + col] = tile[threadIdx.x][i];
  }
}

// The same for elements of two bytes, which move in pairs: a warp moves 128 bytes then, not 64. Sizes and
// strides are even, addresses multiples of 4.
constexpr int kPairTile = 2 * kTile;

__global__ void __launch_bounds__(kTile* kTileRows)
    transpose_pairs_kernel(const __grid_constant__ TransposeArgs a) {
  // Two lanes meet in a bank when columns are read: a row has whole pairs.
  __shared__ uint32_t tile[kPairTile][kPairTile / 2 + 1];
  unsigned at = blockIdx.x;
  const int64_t col0 = int64_t(at % a.col_tiles) * kPairTile;
  at /= a.col_tiles;
  const int64_t row0 = int64_t(at % a.row_tiles) * kPairTile;
  const auto outer = a.outer(at / a.row_tiles);
  const auto* in = reinterpret_cast<const uint16_t*>(a.in + outer.of[1]);
  auto* out = reinterpret_cast<uint16_t*>(a.out + outer.of[0]);
  const int pair = 2 * threadIdx.x;
#pragma unroll
  for (int i = threadIdx.y; i < kPairTile; i += kTileRows) {
    const int64_t row = row0 + pair, col = col0 + i;
    if (row < a.rows && col < a.cols)
      tile[i][threadIdx.x] = *reinterpret_cast<const uint32_t*>(in + col * a.in_col + row);
  }
  __syncthreads();
#pragma unroll
  for (int i = threadIdx.y; i < kPairTile; i += kTileRows) {
    const int64_t row = row0 + i, col = col0 + pair;
    const int half = i % 2 * 16;
    const uint32_t first = tile[pair][i / 2] >> half & 0xffff, second = tile[pair + 1][i / 2] >> half;
    if (row < a.rows && col < a.cols)
      *reinterpret_cast<uint32_t*>(out + row * a.out_row + col) = first | second << 16;
  }
}

// The dim along which the input is packed while the output is packed along the last one; -1 if there is none.
int transposed_dim(const ElementwisePlan& plan) {
  const Operand &out = plan.operands[0], &in = plan.operands[1];
  const int64_t item = static_cast<int64_t>(itemsize(out.dtype));
  const int last = plan.ndim - 1;
  if (last < 1 || out.dtype != in.dtype || in.host_scalar || out.strides[last] != item) return -1;
  if (in.strides[last] == item || in.strides[last] == 0 || plan.sizes[last] < 8) return -1;
  for (int d = 0; d < last; ++d)
    if (in.strides[d] == item && plan.sizes[d] >= 8) return d;
  return -1;
}

bool in_pairs(const TransposeArgs& a, int outer_dims) {
  int64_t all = a.rows | a.cols | a.in_col | a.out_row;
  for (int d = 0; d < outer_dims; ++d) all |= a.outer.strides[0][d] / 2 | a.outer.strides[1][d] / 2;
  return all % 2 == 0 && is_aligned(a.out, 4) && is_aligned(a.in, 4);
}

bool try_transpose(const LaunchContext& ctx, const ElementwisePlan& plan) {
  const int d = transposed_dim(plan), last = plan.ndim - 1;
  if (d < 0 || plan.ndim - 2 > kIndexDims) return false;
  const Operand &out = plan.operands[0], &in = plan.operands[1];
  const int64_t item = static_cast<int64_t>(itemsize(out.dtype));
  TransposeArgs a{};
  a.out = out.data;
  a.in = in.data;
  a.rows = plan.sizes[d];
  a.cols = plan.sizes[last];
  a.out_row = out.strides[d] / item;
  a.in_col = in.strides[last] / item;
  int64_t sizes[kMaxDims];
  int n = 0;
  for (int k = 0; k < last; ++k) {
    if (k == d) continue;
    a.outer.strides[0][n] = out.strides[k];
    a.outer.strides[1][n] = in.strides[k];
    sizes[n++] = plan.sizes[k];
  }
  const int64_t outer = plan.numel / (a.rows * a.cols);
  a.outer.set_dims(n, sizes, outer);
  const bool pairs = item == 2 && in_pairs(a, n);
  a.row_tiles = unsigned(ceil_div(a.rows, pairs ? kPairTile : kTile));
  a.col_tiles = unsigned(ceil_div(a.cols, pairs ? kPairTile : kTile));
  const int64_t blocks = outer * a.row_tiles * a.col_tiles;
  if (blocks > INT32_MAX) return false;
  if (pairs) {
    launch(ctx, "copy", transpose_pairs_kernel, dim3(unsigned(blocks)), dim3(kTile, kTileRows), 0, a);
    return true;
  }
  dispatch_size(MoveTypes{}, size_t(item), [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(ctx, "copy", transpose_kernel<T>, dim3(unsigned(blocks)), dim3(kTile, kTileRows), 0, a);
  });
  return true;
}

// ---- fills ----
struct alignas(16) Pattern {
  unsigned char bytes[16];
};

// n bytes, the last of which may be part of a pattern; out is 16-byte aligned.
__global__ void __launch_bounds__(kThreads) fill_kernel(char* out, Pattern pattern, int64_t n) {
  const int64_t first = int64_t(blockIdx.x) * (kThreads * 16 * kFlatLoads) + threadIdx.x * 16;
#pragma unroll
  for (int u = 0; u < kFlatLoads; ++u) {
    const int64_t i = first + u * (kThreads * 16);
    if (i + 16 <= n)
      *reinterpret_cast<Pattern*>(out + i) = pattern;
    else
      for (int j = 0; j < 16 && i + j < n; ++j) out[i + j] = static_cast<char>(pattern.bytes[j]);
  }
}

bool try_fill(const LaunchContext& ctx, const ElementwisePlan& plan) {
  const Operand &out = plan.operands[0], &in = plan.operands[1];
  if (!in.host_scalar || is_storage_only(out.dtype) || plan.ndim > 1 || !is_flat(plan, out) ||
      !is_aligned(out.data, 16))
    return false;
  Pattern pattern;
  const size_t item = itemsize(out.dtype);
  pack_value(pattern.bytes, out.dtype, in.data, in.dtype);
  for (size_t at = item; at < sizeof pattern; at += item)
    std::memcpy(pattern.bytes + at, pattern.bytes, item);
  const int64_t bytes = plan.numel * static_cast<int64_t>(item);
  launch(ctx, "fill_", fill_kernel, dim3(unsigned(ceil_div(bytes, kThreads * 16 * kFlatLoads))),
         dim3(kThreads), 0, out.data, pattern, bytes);
  return true;
}

// ---- casts from and to what is only stored, an element a thread ----
using EveryReal = decltype(joined(joined(AllTypes{}, WideUnsignedTypes{}), Float8Types{}));

template <class C>
__global__ void __launch_bounds__(kThreads) storage_kernel(const __grid_constant__ GeneralArgs<C, 1> a) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= a.n) return;
  const auto at = a.map(i);
  C x = a.host[0];
  if (!a.host_mask)
    dispatch(EveryReal{}, a.dtypes[1], [&](auto t) {
      using T = typename decltype(t)::type;
      const T raw = *reinterpret_cast<const T*>(a.data[1] + at.of[1]);
      if constexpr (is_float8(dtype_of<T>))
        x = C(float(raw));
      else
        x = widen<C>(raw);
    });
  dispatch(EveryReal{}, a.dtypes[0], [&](auto t) {
    using T = typename decltype(t)::type;
    T* to = reinterpret_cast<T*>(a.data[0] + at.of[0]);
    if constexpr (is_float8(dtype_of<T>))
      *to = T(float(x));
    else
      *to = narrow<T>(x);
  });
}
template <class C>
void copy_storage(const LaunchContext& ctx, const ElementwisePlan& given) {
  for_inner_dims(given, kIndexDims, [&](const ElementwisePlan& plan) {
    launch(ctx, "copy", storage_kernel<C>, dim3(unsigned(ceil_div(plan.numel, kThreads))), dim3(kThreads), 0,
           general_args<C, 1>(plan));
  });
}
bool try_storage(const LaunchContext& ctx, const ElementwisePlan& plan) {
  const DType to = plan.operands[0].dtype, from = plan.operands[1].dtype;
  if (!is_storage_only(to) && !is_storage_only(from)) return false;
  if (is_complex(to) || is_complex(from)) unhandled_dtype("copy", is_complex(to) ? from : to);
  if (from == DType::Float64 || (from == DType::UInt64 && is_floating(to)))
    copy_storage<double>(ctx, plan);
  else if (is_floating(from))
    copy_storage<float>(ctx, plan);
  else
    copy_storage<int64_t>(ctx, plan);
  return true;
}

// A type that holds every value of the input: the output's rounding is then the only one.
void copy(const LaunchContext& ctx, const ElementwisePlan& plan) {
  if (plan.numel == 0 || try_memcpy(ctx, plan) || try_fill(ctx, plan) || try_cast(ctx, plan) ||
      try_transpose(ctx, plan) || try_storage(ctx, plan))
    return;
  const DType from = plan.operands[1].dtype, to = plan.operands[0].dtype;
  if (is_complex(from) || is_complex(to))
    run_general<Identity, Complex<double>>(ctx, "copy", plan);
  else if (from == DType::Float64)
    run_general<Identity, double>(ctx, "copy", plan);
  else if (is_floating(from))
    run_general<Identity, float>(ctx, "copy", plan);
  else
    run_general<Identity, int64_t>(ctx, "copy", plan);
}
WT_KERNEL(copy, copy);

}  // namespace
}  // namespace warptape::kernels::cuda
