// Attention by mma.sync (sm_80), forward, after "FlashAttention-2" (Dao 2023, algorithm 1): a block keeps 64
// queries, 16 a warp, and walks over the keys 64 at a time; the scores of a warp are its registers, which are
// also the left operand of the second product. Two tiles of keys and values: one is on its way.
//
// A few queries, as decoding has them, are one block for each kSplitKeys keys, and a second kernel merges
// what those leave: the number of splits depends on the keys alone, so that equal calls give equal bits.
// Where one query reads all keys, the heads that share a key head are rows of one tile.
#include <algorithm>

#include "kernels/cuda/attention/attention_choice.h"
#include "kernels/cuda/attention/attention_mma.cuh"
#include "kernels/cuda/libraries/plain.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kKeys = 64;
constexpr int kSplitKeys = 512;
constexpr size_t kMostPartial = size_t{256} << 20;  // bytes of what splits leave
constexpr int kMergeWarps = 4;

// What splits leave of each row, a line of [B, H, T]: for each split the power of two of the largest score,
// the sum of probabilities, and the E sums of values, to be divided by it.
struct Partial {
  float* data;
  int splits, width;  // width: E + 2

  size_t bytes(int64_t lines) const { return sizeof(float) * size_t(lines * splits) * size_t(width); }
  WT_DEVICE float* at(int64_t line, int split) const { return data + (line * splits + split) * width; }
};

template <int N>
WT_DEVICE void scale_scores(float (&s)[N][4], float scale) {
#pragma unroll
  for (int j = 0; j < N; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) s[j][c] *= scale;
}

template <class T, int D>
struct ForwardTiles {
  T q[kMmaRows * D], k[2][kKeys * D], v[2][kKeys * D];
};

// Rows t0.. of a split, a warp's 16.
template <int D>
WT_DEVICE void store_partial(const Partial& to, int64_t line, int64_t t, int64_t queries,
                             const float (&sums)[D / 8][4], const Softmax& softmax) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float all = reduce_four(softmax.sum[half], SumOf{});
    if (t + 8 * half >= queries) continue;
    float* row = to.at(line + t + 8 * half, int(blockIdx.y));
    if (lane % 4 == 0) row[0] = softmax.top[half], row[1] = all;
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
      if (const int at = 2 + j * 8 + lane % 4 * 2; at < to.width)
        *reinterpret_cast<Packed<float, 2>*>(row + at) = {{sums[j][2 * half], sums[j][2 * half + 1]}};
  }
}

// Blocks: (head, queries) by x, splits by y where there are any.
template <class T, int D, bool Split>
__global__ void __launch_bounds__(kMmaThreads, kBlocks<D>)
    mma_forward(Problem p, Heads out, float* lse, int64_t blocks, Partial partial) {
  auto& tiles = *dynamic_shared<ForwardTiles<T, D>>();
  const int lane = threadIdx.x % kWarp, first = threadIdx.x / kWarp * 16;
  const int64_t head = blockIdx.x / blocks, h = head % p.n.heads;
  const Part part(p, head / p.n.heads);
  // The last queries see the most keys where it is causal: they start first.
  const int64_t t0 = (blocks - 1 - blockIdx.x % blocks) * kMmaRows, t = t0 + first + lane / 4;
  if (t0 >= part.queries) return;
  int64_t from = part.from(t0, kKeys), seen = part.until(t0, kMmaRows);
  if constexpr (Split) {
    from = maximum(from, int64_t(blockIdx.y) * kSplitKeys);
    seen = minimum(seen, int64_t(blockIdx.y + 1) * kSplitKeys);
  }
  RowCopies<kKeys, D, T> k(key_rows<T>(p.k, part, h / p.n.readers, p.n.d), from);
  RowCopies<kKeys, D, T> v(key_rows<T>(p.v, part, h / p.n.readers, p.n.e), from);
  auto fetch = [&](int turn) {
    k.next(tiles.k[turn]), v.next(tiles.v[turn]);
    commit_copies();
  };
  RowCopies<kMmaRows, D, T>(query_rows<T>(p.q, part, h, p.n.d), t0).fetch(tiles.q);
  if (from < seen) fetch(0);
  float result[D / 8][4] = {}, shrink[2];
  Softmax softmax;
  for (int64_t s0 = from, turn = 0; s0 < seen; s0 += kKeys, turn ^= 1) {
    wait_copies<0>();
    __syncthreads();  // everybody's copies are there, and the other tiles have been read
    if (s0 + kKeys < seen) fetch(int(turn ^ 1));
    if (Split && t0 + first >= part.queries) continue;  // the warp has no query
    float s[kKeys / 8][4];
    multiply_rows<kKeys, D>(s, tiles.q, first, tiles.k[turn]);
    const Places<false> at{part.b, int(h), int(t), int(s0) + lane % 4 * 2};
    PairBits<kKeys / 8> bits;
    if (p.threshold || p.mask.data || !part.sees_all(t0, kMmaRows, s0, kKeys)) {
      bits.find(p, part, at);
      mask_scores<T>(s, p, part, at, bits);
    } else {
      scale_scores(s, float(p.scale) * kLog2E);
    }
    softmax.advance(s, shrink);
    rescale(result, shrink);
    if (p.threshold) drop_scores(s, p, bits);
    add_product<kKeys, D>(result, s, tiles.v[turn]);
  }
  wait_copies<0>();
  if constexpr (Split) return store_partial<D>(partial, p.line(part, h), t, part.queries, result, softmax);
  float factors[2];
  softmax.finish(factors, lse ? lse + p.line(part, h) : nullptr, t, part.queries);
  store_rows<D>(query_rows<T>(out, part, h, p.n.e), t0 + first, result, factors);
}

// A warp a row: merges its splits.
template <class T>
__global__ void __launch_bounds__(kMergeWarps* kWarp)
    merge_splits(Partial partial, Heads out, float* lse, int64_t heads, int64_t queries, int64_t rows) {
  const int lane = threadIdx.x % kWarp;
  const int64_t line = int64_t(blockIdx.x) * kMergeWarps + threadIdx.x / kWarp;
  if (line >= rows) return;  // whole warps
  float top = -INFINITY, sum = 0;
  for (int i = 0; i < partial.splits; ++i) top = fmaxf(top, partial.at(line, i)[0]);
  const float shift = top == -INFINITY ? 0.0f : top;
  for (int i = 0; i < partial.splits; ++i) {
    const float* row = partial.at(line, i);
    sum += power_of_two(row[0] - shift) * row[1];
  }
  const float factor = sum == 0 ? 0.0f : 1 / sum;
  const int64_t head = line / queries, t = line % queries;
  T* to = out.at<T>(head / heads, head % heads) + t * out.strides[2];
  for (int c = lane; c < partial.width - 2; c += kWarp) {
    float value = 0;
    for (int i = 0; i < partial.splits; ++i) {
      const float* row = partial.at(line, i);
      value += power_of_two(row[0] - shift) * row[2 + c];
    }
    to[c] = narrow<T>(value * factor);
  }
  if (lse && lane == 0) lse[line] = sum == 0 ? -INFINITY : top * kLn2 + logf(sum);
}

template <class T>
void run(const LaunchContext& ctx, const View& out, const View& lse, const AttentionPlan& plan) {
  const Problem p(plan);
  const int64_t blocks = ceil_div(p.most_queries(), kMmaRows);
  with_head_size(p.n, [&](auto size) {
    constexpr int D = decltype(size)::value;
    launch(ctx, "attention", mma_forward<T, D, false>,
           dim3(static_cast<unsigned>(p.parts(plan) * p.n.heads * blocks)), dim3(kMmaThreads),
           sizeof(ForwardTiles<T, D>), p, Heads(out), static_cast<float*>(lse.data), blocks, Partial{});
  });
}

// ---- a few queries --------------------------------------------------------------------------------------

// q [B, H, 1, D], or what has its sizes, as [B, K, H / K, D], in memory for the strides.
struct Folded {
  int64_t sizes[4], strides[4];

  View fold(View x, int64_t keys) {
    const int64_t readers = x.sizes[1] / keys;
    const int64_t new_sizes[4] = {x.sizes[0], keys, readers, x.sizes[3]};
    const int64_t new_strides[4] = {x.strides[0], x.strides[1] * readers, x.strides[1], x.strides[3]};
    std::copy_n(new_sizes, 4, sizes), std::copy_n(new_strides, 4, strides);
    x.sizes = sizes, x.strides = strides;
    return x;
  }
};

template <class T>
void run_few(const LaunchContext& ctx, const View& out, const View& lse, const AttentionPlan& plan,
             Partial partial) {
  const Problem p(plan);
  const int64_t rows = plan.q.sizes[0] * p.n.heads * p.n.queries;
  with_head_size(p.n, [&](auto size) {
    constexpr int D = decltype(size)::value;
    launch(ctx, "attention", mma_forward<T, D, true>,
           dim3(unsigned(plan.q.sizes[0] * p.n.heads), unsigned(partial.splits)), dim3(kMmaThreads),
           sizeof(ForwardTiles<T, D>), p, Heads(out), nullptr, 1, partial);
  });
  launch(ctx, "attention", merge_splits<T>, dim3(unsigned(ceil_div(rows, kMergeWarps))),
         dim3(kMergeWarps * kWarp), 0, partial, Heads(out), static_cast<float*>(lse.data), p.n.heads,
         p.n.queries, rows);
}

// Rows are multiples of 16 bytes, from such an address on.
bool by_pieces(const View& v) {
  bool fits = is_aligned(v.data, 16) && v.sizes[3] % kPiece == 0;
  for (int d = 0; d < 3; ++d) fits = fits && (v.sizes[d] == 1 || v.strides[d] % kPiece == 0);
  return fits;
}

// What splits of this call leave, without memory; no splits where it is not to be cut.
Partial partial_of(const View& out, const AttentionPlan& p) {
  const int64_t splits = ceil_div(p.k.sizes[2], kSplitKeys);
  const Partial partial{nullptr, int(splits), int(p.v.sizes[3]) + 2};
  const bool fits = p.q.sizes[2] <= kFewQueries && p.q.sizes[2] > 0 && !p.sequences.count && splits > 1 &&
                    splits <= kMaxGridY && suits_mma(p, {&out}) &&
                    partial.bytes(out.numel() / out.sizes[3]) <= kMostPartial;  // more rows are blocks enough
  return fits ? partial : Partial{};
}

// The heads that share a key head as the queries of one, where one query reads all keys: dropout's numbers
// and the band go by query.
void attention_few(const LaunchContext& ctx, const View& out, const View& lse, const AttentionPlan& plan,
                   Partial partial) {
  partial.data = static_cast<float*>(ctx.scratch(partial.bytes(out.numel() / out.sizes[3])));
  AttentionPlan folded = plan;
  View to = out;
  Folded of_q, of_out, of_mask;
  const int64_t keys = plan.k.sizes[1];
  if (plan.q.sizes[2] == 1 && plan.q.sizes[1] <= keys * kMmaRows && plan.band.is_all() &&
      plan.dropout_p == 0) {
    folded.q = of_q.fold(plan.q, keys), to = of_out.fold(out, keys);
    if (plan.mask.data) folded.mask = of_mask.fold(plan.mask, keys);
  }
  if (plan.q.dtype == DType::BFloat16) return run_few<BFloat16>(ctx, to, lse, folded, partial);
  run_few<Half>(ctx, to, lse, folded, partial);
}

}  // namespace

bool suits_mma(const AttentionPlan& p, std::initializer_list<const View*> others) {
  bool fits = attention_kernels() != AttentionKernels::Plain &&
              (p.q.dtype == DType::BFloat16 || p.q.dtype == DType::Float16) && p.q.sizes[3] <= 128 &&
              p.v.sizes[3] <= 128 && p.q.sizes[3] > 0 && p.v.sizes[3] > 0 && p.k.sizes[2] > 0;
  for (const View* v : {&p.q, &p.k, &p.v}) fits = fits && by_pieces(*v);
  for (const View* v : others) fits = fits && by_pieces(*v);
  return fits;
}

void attention_own(const LaunchContext& ctx, const View& out, const View& lse, const AttentionPlan& plan) {
  if (const Partial partial = partial_of(out, plan); partial.splits)
    return attention_few(ctx, out, lse, plan, partial);
  if (suits_wgmma(ctx, plan, {&out})) return attention_wgmma(ctx, out, lse, plan);
  if (!suits_mma(plan, {&out})) return attention_plain(ctx, out, lse, plan);
  if (plan.q.dtype == DType::BFloat16) return run<BFloat16>(ctx, out, lse, plan);
  run<Half>(ctx, out, lse, plan);
}

}  // namespace warptape::kernels::cuda
