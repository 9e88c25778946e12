// Attention by mma.sync (sm_80), forward, after "FlashAttention-2" (Dao 2023, algorithm 1): a block keeps 64
// queries, 16 a warp, and walks over the keys 64 at a time; the scores of a warp are its registers, which are
// also the left operand of the second product. Two tiles of keys and values: one is on its way.
#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/plain.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kKeys = 64;

// Products become scores in powers of two, minus infinity where hidden.
template <class T>
WT_DEVICE void make_scores(float (&s)[kKeys / 8][4], const Problem& p, const Part& part, int64_t h, int64_t t,
                           int64_t s0, bool all_seen) {
  const int lane = threadIdx.x % kWarp;
  if (all_seen) {
    const float scale = float(p.scale) * kLog2E;
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) s[j][c] *= scale;
    return;
  }
#pragma unroll
  for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c)
      s[j][c] = p.masked<T>(s[j][c], part, h, t + c / 2 * 8, s0 + j * 8 + lane % 4 * 2 + c % 2) * kLog2E;
}

template <class T>
WT_DEVICE void drop(float (&s)[kKeys / 8][4], const Problem& p, int64_t b, int64_t h, int64_t t, int64_t s0) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c)
      s[j][c] *= p.factor<float>(b, h, t + c / 2 * 8, s0 + j * 8 + lane % 4 * 2 + c % 2);
}

template <class T, int D>
struct ForwardTiles {
  T q[kMmaRows * D], k[2][kKeys * D], v[2][kKeys * D];
};

template <class T, int D>
__global__ void __launch_bounds__(kMmaThreads, kBlocks<D>)
    mma_forward(Problem p, Heads out, float* lse, int64_t blocks) {
  auto& tiles = *dynamic_shared<ForwardTiles<T, D>>();
  const int lane = threadIdx.x % kWarp, first = threadIdx.x / kWarp * 16;
  const int64_t head = blockIdx.x / blocks, h = head % p.n.heads;
  const Part part(p, head / p.n.heads);
  // The last queries see the most keys where it is causal: they start first.
  const int64_t t0 = (blocks - 1 - blockIdx.x % blocks) * kMmaRows, t = t0 + first + lane / 4;
  if (t0 >= part.queries) return;
  const int64_t from = part.from(t0, kKeys), seen = part.until(t0, kMmaRows);
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
    float s[kKeys / 8][4];
    multiply_rows<kKeys, D>(s, tiles.q, first, tiles.k[turn]);
    make_scores<T>(s, p, part, h, t, s0, !p.mask.data && part.sees_all(t0, kMmaRows, s0, kKeys));
    softmax.advance(s, shrink);
    rescale(result, shrink);
    if (p.threshold) drop<T>(s, p, part.b, h, t, s0);
    add_product<kKeys, D>(result, s, tiles.v[turn]);
  }
  wait_copies<0>();
  float factors[2];
  softmax.finish(factors, lse ? lse + p.line(part, h) : nullptr, t, part.queries);
  store_rows<D>(query_rows<T>(out, part, h, p.n.e), t0 + first, result, factors);
}

template <class T>
void run(const LaunchContext& ctx, const View& out, const View& lse, const AttentionPlan& plan) {
  const Problem p(plan);
  const int64_t blocks = ceil_div(p.most_queries(), kMmaRows);
  with_head_size(p.n, [&](auto size) {
    constexpr int D = decltype(size)::value;
    launch(ctx, "attention", mma_forward<T, D>,
           dim3(static_cast<unsigned>(p.parts(plan) * p.n.heads * blocks)), dim3(kMmaThreads),
           sizeof(ForwardTiles<T, D>), p, Heads(out), static_cast<float*>(lse.data), blocks);
  });
}

// Rows are multiples of 16 bytes, from such an address on.
bool by_pieces(const View& v) {
  bool fits = is_aligned(v.data, 16) && v.sizes[3] % kPiece == 0;
  for (int d = 0; d < 3; ++d) fits = fits && (v.sizes[d] == 1 || v.strides[d] % kPiece == 0);
  return fits;
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
  if (suits_wgmma(ctx, plan, {&out})) return attention_wgmma(ctx, out, lse, plan);
  if (!suits_mma(plan, {&out})) return attention_plain(ctx, out, lse, plan);
  if (plan.q.dtype == DType::BFloat16) return run<BFloat16>(ctx, out, lse, plan);
  run<Half>(ctx, out, lse, plan);
}

}  // namespace warptape::kernels::cuda
