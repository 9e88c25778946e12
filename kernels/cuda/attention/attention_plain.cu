// Attention without a library, forward and backward, after "FlashAttention-2" (algorithms 1 and 2): a block
// of 256 threads keeps 64 rows of one side (queries, or keys for the gradients of keys and values) and walks
// over the other side 64 at a time; scores live in registers and one tile of shared memory. Every head size:
// products along it are made in slices, results wider than kWide are cut among blocks, which then repeat the
// scores.
//
// Threads are 16 x 16 (ty, tx): of a 64 x 64 tile each has rows ty * 4 + i and columns tx + 16 * j, i, j < 4;
// of a result [64, kWide] rows ty * 4 + i and columns g * 64 + tx * 4 + c, g < 2, c < 4. The 16 threads of a
// row are half a warp.
#include "kernels/cuda/attention/attention_problem.cuh"
#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/common/memory.cuh"
#include "kernels/cuda/libraries/plain.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kSide = 16, kThreads = kSide * kSide;
constexpr int kBlock = 64;                                   // queries and keys of a tile
constexpr int kDepth = 32;                                   // of a slice of the operands
constexpr int kWide = 128;                                   // columns of the result
constexpr int kPitch = kDepth + 4, kTilePitch = kBlock + 4;  // rows apart: 16-byte steps, no bank met twice
constexpr int kTileSize = kBlock * kTilePitch;
constexpr int kShared = kTileSize + 2 * kBlock * kPitch;
template <class T> constexpr int kBlocksAtOnce = sizeof(Compute<T>) == 4 ? 2 : 1;  // on a multiprocessor
static_assert(kDepth * kWide <= 2 * kBlock * kPitch);

// ---- products -------------------------------------------------------------------------------------------

// slice [rows][pitch] = x[first.., from..] of `cols` columns, 0 outside.
template <class T>
WT_DEVICE void load_slice(Compute<T>* slice, int rows, int cols, int pitch, const Rows<T>& x, int64_t first,
                          int64_t from) {
  for (int i = threadIdx.x; i < rows * cols; i += kThreads) {
    const int r = i / cols, c = i % cols;
    const bool inside = first + r < x.count && from + c < x.width;
    slice[r * pitch + c] =
        inside ? widen<Compute<T>>(x.data[(first + r) * x.stride + from + c]) : Compute<T>(0);
  }
}

// s = x[x0..] y[y0..]^T.
template <class T>
WT_DEVICE void make_scores(Compute<T> (&s)[4][4], const Rows<T>& x, int64_t x0, const Rows<T>& y, int64_t y0,
                           Compute<T>* slices) {
  using C = Compute<T>;
  C *left = slices, *right = slices + kBlock * kPitch;
  const int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
  for (auto& row : s)
    for (C& value : row) value = C(0);
  for (int64_t from = 0; from < x.width; from += kDepth) {
    __syncthreads();  // the last slices have been read
    load_slice(left, kBlock, kDepth, kPitch, x, x0, from);
    load_slice(right, kBlock, kDepth, kPitch, y, y0, from);
    __syncthreads();
#pragma unroll 2
    for (int at = 0; at < kDepth; at += 4) {
      Packed<C, 4> a[4], b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = load_packed<4>(left + (ty * 4 + i) * kPitch + at);
        b[i] = load_packed<4>(right + (tx + kSide * i) * kPitch + at);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int c = 0; c < 4; ++c) s[i][j] += a[i][c] * b[j][c];
    }
  }
}

template <class C>
struct Result {
  C of[4][2][4];

  WT_DEVICE void clear() {
    for (auto& row : of)
      for (auto& group : row)
        for (C& value : group) value = C(0);
  }
};

// The thread's values of a tile into shared memory, for all to read after the next barrier.
template <class C>
WT_DEVICE void store_tile(C* tile, const C (&s)[4][4]) {
  const int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
  __syncthreads();  // the last tile has been read
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) tile[(ty * 4 + i) * kTilePitch + tx + kSide * j] = s[i][j];
}

// result += tile z[z0.., from..].
template <class T>
WT_DEVICE void add_product(Result<Compute<T>>& result, const Compute<T>* tile, const Rows<T>& z, int64_t z0,
                           int64_t from, Compute<T>* slice) {
  using C = Compute<T>;
  const int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
  const int groups = z.width - from > kBlock ? 2 : 1;
  for (int first = 0; first < kBlock && z0 + first < z.count; first += kDepth) {
    __syncthreads();  // the tile is there, the last slice has been read
    load_slice(slice, kDepth, groups * kBlock, kWide, z, z0 + first, from);
    __syncthreads();
#pragma unroll 2
    for (int at = 0; at < kDepth; at += 4) {
      Packed<C, 4> a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = load_packed<4>(tile + (ty * 4 + i) * kTilePitch + first + at);
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int g = 0; g < 2; ++g) {
          if (g >= groups) break;
          const Packed<C, 4> b = load_packed<4>(slice + (at + r) * kWide + g * kBlock + tx * 4);
#pragma unroll
          for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int c = 0; c < 4; ++c) result.of[i][g][c] += a[i][r] * b[c];
        }
    }
  }
}

// Rows x0.. of `to`, columns from `from` on, times a factor for each of the thread's rows.
template <class T>
WT_DEVICE void store_result(const Rows<T>& to, int64_t x0, int64_t from, const Result<Compute<T>>& result,
                            const Compute<T> (&factors)[4]) {
  const int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int g = 0; g < 2; ++g)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int64_t row = x0 + ty * 4 + i, col = from + g * kBlock + tx * 4 + c;
        if (row < to.count && col < to.width)
          to.data[row * to.stride + col] = narrow<T>(result.of[i][g][c] * factors[i]);
      }
}

// Over the threads of a row. All 32 lanes must call.
template <class C, class Op>
WT_DEVICE C reduce_row(C value, Op op) {
#pragma unroll
  for (int step = kSide / 2; step > 0; step /= 2) value = op(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

// ---- forward --------------------------------------------------------------------------------------------

// Scores become probabilities by the largest score so far; what was summed before shrinks when that grows.
template <class C>
WT_DEVICE void softmax_step(C (&s)[4][4], C (&top)[4], C (&sum)[4], Result<C>& result) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    C found = top[i];
    for (C value : s[i]) found = maximum(found, value);
    found = reduce_row(found, MaximumOf{});
    // While a query has seen no key its exponentials are to be 0, not NaN.
    const C shift = found == -C(__builtin_inf()) ? C(0) : found, shrink = exp(top[i] - shift);
    top[i] = found;
    sum[i] *= shrink;
    for (C& value : s[i]) {
      value = exp(value - shift);
      sum[i] += value;
    }
    for (auto& group : result.of[i])
      for (C& value : group) value *= shrink;
  }
}

// Blocks: (head, queries) by x, columns of the output by y.
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce<T>)
    forward(Problem p, Heads out, void* lse, int64_t blocks) {
  using C = Compute<T>;
  C *tile = dynamic_shared<C>(), *slices = tile + kTileSize;
  const int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
  const int64_t head = blockIdx.x / blocks, h = head % p.n.heads;
  const Part part(p, head / p.n.heads);
  // The last queries see the most keys where it is causal: they start first.
  const int64_t t0 = (blocks - 1 - blockIdx.x % blocks) * kBlock, from = int64_t(blockIdx.y) * kWide;
  if (t0 >= part.queries) return;
  const Rows<T> q = query_rows<T>(p.q, part, h, p.n.d);
  const Rows<T> k = key_rows<T>(p.k, part, h / p.n.readers, p.n.d);
  const Rows<T> v = key_rows<T>(p.v, part, h / p.n.readers, p.n.e);
  const int64_t seen = part.until(t0, kBlock);
  C top[4], sum[4], factors[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) top[i] = -C(__builtin_inf()), sum[i] = C(0);
  Result<C> result;
  result.clear();
  for (int64_t s0 = part.from(t0, kBlock); s0 < seen; s0 += kBlock) {
    C s[4][4];
    make_scores(s, q, t0, k, s0, slices);
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j)
        s[i][j] = p.masked<T>(s[i][j], part, h, t0 + ty * 4 + i, s0 + tx + kSide * j);
    softmax_step(s, top, sum, result);
    if (p.threshold) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) s[i][j] *= p.factor<C>(part.b, h, t0 + ty * 4 + i, s0 + tx + kSide * j);
    }
    store_tile(tile, s);
    add_product(result, tile, v, s0, from, slices);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum[i] = reduce_row(sum[i], SumOf{});
    factors[i] = sum[i] == C(0) ? C(0) : C(1) / sum[i];
    const int64_t t = t0 + ty * 4 + i;
    if (lse && blockIdx.y == 0 && tx == 0 && t < part.queries)
      static_cast<C*>(lse)[p.line(part, h) + t] = sum[i] == C(0) ? -C(__builtin_inf()) : top[i] + log(sum[i]);
  }
  store_result(query_rows<T>(out, part, h, p.n.e), t0, from, result, factors);
}

// ---- backward -------------------------------------------------------------------------------------------

// delta [B, H, T] = sum over the head of dout * out: a warp a query.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_slopes(Heads dout, Heads out, Compute<T>* delta, int64_t heads, int64_t queries, int64_t e,
               int64_t rows) {
  using C = Compute<T>;
  const int lane = threadIdx.x % kWarp;
  const int64_t row = int64_t(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= rows) return;  // whole warps
  const int64_t head = row / queries, t = row % queries;
  const T* x = dout.at<T>(head / heads, head % heads) + t * dout.strides[2];
  const T* y = out.at<T>(head / heads, head % heads) + t * out.strides[2];
  C sum = C(0);
  for (int64_t i = lane; i < e; i += kWarp) sum += widen<C>(x[i]) * widen<C>(y[i]);
  sum = warp_reduce(sum, SumOf{});
  if (lane == 0) delta[row] = sum;
}

enum class Of { Query, Key, Value };

// With P the probabilities, F dropout's factors, G = dout V^T: a tile of P F for the gradient of values, else
// of P (G F - delta). One side's rows are the tile's, whichever it is: `by_keys`.
template <class T>
WT_DEVICE void slope_tile(Compute<T> (&s)[4][4], const Problem& p, const Part& part, const Slopes& g, Of of,
                          int64_t h, int64_t x0, int64_t y0, Compute<T>* slices) {
  using C = Compute<T>;
  const int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
  const bool by_keys = of != Of::Query;
  const int64_t shared = h / p.n.readers, line = p.line(part, h);
  const Rows<T> q = query_rows<T>(p.q, part, h, p.n.d), k = key_rows<T>(p.k, part, shared, p.n.d);
  make_scores(s, by_keys ? k : q, x0, by_keys ? q : k, y0, slices);
  C up[4][4];
  if (of != Of::Value) {
    const Rows<T> v = key_rows<T>(p.v, part, shared, p.n.e);
    const Rows<T> grad = query_rows<T>(g.dout, part, h, p.n.e);
    make_scores(up, by_keys ? v : grad, x0, by_keys ? grad : v, y0, slices);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t x = x0 + ty * 4 + i, y = y0 + tx + kSide * j;
      const int64_t t = by_keys ? y : x, key = by_keys ? x : y;
      const C lse = t < part.queries ? static_cast<const C*>(g.lse)[line + t] : -C(__builtin_inf());
      // A query that saw no key has an lse of minus infinity: all its probabilities are 0.
      const C score = p.masked<T>(s[i][j], part, h, t, key);
      const C probability = lse == -C(__builtin_inf()) ? C(0) : exp(score - lse);
      const C factor = p.threshold ? p.factor<C>(part.b, h, t, key) : C(1);
      if (of == Of::Value) {
        s[i][j] = probability * factor;
      } else {
        const C delta = t < part.queries ? static_cast<const C*>(g.delta)[line + t] : C(0);
        s[i][j] = probability * (up[i][j] * factor - delta);
      }
    }
}

// The gradient of queries: blocks of queries walk over the keys they see.
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce<T>)
    query_gradient(Problem p, Slopes g, Heads dq, int64_t blocks) {
  using C = Compute<T>;
  C *tile = dynamic_shared<C>(), *slices = tile + kTileSize;
  const int64_t head = blockIdx.x / blocks, h = head % p.n.heads;
  const Part part(p, head / p.n.heads);
  const int64_t t0 = (blocks - 1 - blockIdx.x % blocks) * kBlock, from = int64_t(blockIdx.y) * kWide;
  if (t0 >= part.queries) return;
  const Rows<T> k = key_rows<T>(p.k, part, h / p.n.readers, p.n.d);
  const int64_t seen = part.until(t0, kBlock);
  Result<C> result;
  result.clear();
  for (int64_t s0 = part.from(t0, kBlock); s0 < seen; s0 += kBlock) {
    C s[4][4];
    slope_tile<T>(s, p, part, g, Of::Query, h, t0, s0, slices);
    store_tile(tile, s);
    add_product(result, tile, k, s0, from, slices);
  }
  const C scale = C(p.scale), factors[4] = {scale, scale, scale, scale};
  store_result(query_rows<T>(dq, part, h, p.n.d), t0, from, result, factors);
}

// The gradients of keys and of values: blocks of keys walk over the queries that see them, of all heads that
// read theirs, in order. By y first columns of the one, then of the other.
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce<T>)
    key_gradients(Problem p, Slopes g, Heads dk, Heads dv, int64_t blocks, int64_t key_parts) {
  using C = Compute<T>;
  C *tile = dynamic_shared<C>(), *slices = tile + kTileSize;
  const Of of = blockIdx.y < key_parts ? Of::Key : Of::Value;
  const int64_t from = (of == Of::Key ? blockIdx.y : blockIdx.y - key_parts) * kWide;
  const int64_t shared_heads = p.n.heads / p.n.readers, head = blockIdx.x / blocks;
  const int64_t shared = head % shared_heads, s0 = blockIdx.x % blocks * kBlock;
  const Part part(p, head / shared_heads);
  if (s0 >= part.keys) return;
  const int64_t until = part.query_until(s0, kBlock);
  Result<C> result;
  result.clear();
  for (int64_t reader = 0; reader < p.n.readers; ++reader) {
    const int64_t h = shared * p.n.readers + reader;
    const Rows<T> z =
        of == Of::Key ? query_rows<T>(p.q, part, h, p.n.d) : query_rows<T>(g.dout, part, h, p.n.e);
    for (int64_t t0 = part.query_from(s0, kBlock); t0 < until; t0 += kBlock) {
      C s[4][4];
      slope_tile<T>(s, p, part, g, of, h, s0, t0, slices);
      store_tile(tile, s);
      add_product(result, tile, z, t0, from, slices);
    }
  }
  const C scale = of == Of::Key ? C(p.scale) : C(1), factors[4] = {scale, scale, scale, scale};
  const Heads& to = of == Of::Key ? dk : dv;
  store_result(key_rows<T>(to, part, shared, of == Of::Key ? p.n.d : p.n.e), s0, from, result, factors);
}

dim3 grid_of(int64_t blocks, int64_t parts) {
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(parts));
}

struct Gradients {
  const View &q, &k, &v;
};

template <class T>
void run_backward(const LaunchContext& ctx, const Gradients& to, const View& dout, const View& out,
                  const View& lse, const AttentionPlan& plan) {
  using C = Compute<T>;
  const char* op = "attention_backward";
  const Problem p(plan);
  const int64_t heads = p.parts(plan) * p.n.heads, shared = p.parts(plan) * plan.k.sizes[1];
  const int64_t query_blocks = ceil_div(p.most_queries(), kBlock);
  const int64_t key_blocks = ceil_div(p.most_keys(), kBlock);
  const int64_t d_parts = ceil_div(p.n.d, kWide), e_parts = ceil_div(p.n.e, kWide);
  const Slopes g{Heads(dout), lse.data, attention_delta(ctx, dout, out, plan)};
  const dim3 threads(kThreads);
  const size_t bytes = sizeof(C) * kShared;
  launch(ctx, op, query_gradient<T>, grid_of(heads * query_blocks, d_parts), threads, bytes, p, g,
         Heads(to.q), query_blocks);
  launch(ctx, op, key_gradients<T>, grid_of(shared * key_blocks, d_parts + e_parts), threads, bytes, p, g,
         Heads(to.k), Heads(to.v), key_blocks, d_parts);
}

}  // namespace

void attention_plain(const LaunchContext& ctx, const View& out, const View& lse, const AttentionPlan& plan) {
  const Problem p(plan);
  const int64_t blocks = ceil_div(p.most_queries(), kBlock);
  dispatch(FloatTypes{}, plan.q.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    // One part also where values have no columns: it writes the lse.
    const int64_t parts = p.n.e > 0 ? ceil_div(p.n.e, kWide) : 1;
    launch(ctx, "attention", forward<T>, grid_of(p.parts(plan) * p.n.heads * blocks, parts), dim3(kThreads),
           sizeof(Compute<T>) * kShared, p, Heads(out), lse.data, blocks);
  });
}

const void* attention_delta(const LaunchContext& ctx, const View& dout, const View& out,
                            const AttentionPlan& plan) {
  const Problem p(plan);
  const int64_t rows = plan.q.sizes[0] * p.n.heads * p.n.queries;
  const void* found = nullptr;
  dispatch(FloatTypes{}, plan.q.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    auto* delta = static_cast<C*>(ctx.scratch(sizeof(C) * static_cast<size_t>(rows + 1)));
    launch(ctx, "attention_backward", sum_slopes<T>, grid_of(ceil_div(rows, kThreads / kWarp), 1),
           dim3(kThreads), 0, Heads(dout), Heads(out), delta, p.n.heads, p.n.queries, p.n.e, rows);
    found = delta;
  });
  return found;
}

void attention_backward_plain(const LaunchContext& ctx, const View& dq, const View& dk, const View& dv,
                              const View& dout, const View& out, const View& lse, const AttentionPlan& plan) {
  dispatch(FloatTypes{}, plan.q.dtype, [&](auto t) {
    run_backward<typename decltype(t)::type>(ctx, {dq, dk, dv}, dout, out, lse, plan);
  });
}

}  // namespace warptape::kernels::cuda
