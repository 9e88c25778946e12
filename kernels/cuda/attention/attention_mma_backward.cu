// The gradients of attention by mma.sync (sm_80). The scores are made again from the log-sum-exp that forward
// left. Two kernels, as in attention_plain.cu, so that each sum has one owner and one order: blocks of
// queries walk over keys, blocks of keys walk over queries. Seven products instead of the five of
// "FlashAttention-2" (algorithm 2), which adds to the queries' gradient from all blocks at once.
#include "kernels/cuda/attention/attention_mma.cuh"
#include "kernels/cuda/libraries/plain.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kKeys = 64;
template <int D> constexpr int kQueries = D == 64 ? 64 : 32;  // of a tile: two results are in registers

// query(j, c) is that of s[j][c].
template <class T, int Eights, bool ByKeys, class F>
WT_DEVICE void make_slopes(float (&s)[Eights][4], float (&up)[Eights][4], const Problem& p, const Part& part,
                           const Places<ByKeys>& at, bool plain, F&& query) {
  if (plain) {
    const float scale = float(p.scale) * kLog2E;
#pragma unroll
    for (int j = 0; j < Eights; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) make_plain_slope(s[j][c], up[j][c], scale, query(j, c));
    return;
  }
  PairBits<Eights> bits;
  bits.find(p, part, at);
  mask_scores<T>(s, p, part, at, bits);
  const float keep = float(p.keep);
#pragma unroll
  for (int j = 0; j < Eights; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) make_slope(s[j][c], up[j][c], bits.keeps(j, c) ? keep : 0.0f, query(j, c));
}

template <class T, int D>
struct QueryTiles {
  T q[kMmaRows * D], up[kMmaRows * D], k[2][kKeys * D], v[2][kKeys * D];
};

template <class T, int D>
__global__ void __launch_bounds__(kMmaThreads, kBlocks<D>)
    mma_query_gradient(Problem p, Slopes g, Heads dq, int64_t blocks) {
  auto& tiles = *dynamic_shared<QueryTiles<T, D>>();
  const int lane = threadIdx.x % kWarp, first = threadIdx.x / kWarp * 16;
  const int64_t head = blockIdx.x / blocks, h = head % p.n.heads;
  const Part part(p, head / p.n.heads);
  const int t0 = int(blocks - 1 - blockIdx.x % blocks) * kMmaRows, t = t0 + first + lane / 4;
  if (t0 >= part.queries) return;
  const int from = int(part.from(t0, kKeys)), seen = int(part.until(t0, kMmaRows));
  RowCopies<kKeys, D, T> k(key_rows<T>(p.k, part, h / p.n.readers, p.n.d), from);
  RowCopies<kKeys, D, T> v(key_rows<T>(p.v, part, h / p.n.readers, p.n.e), from);
  auto fetch = [&](int turn) {
    k.next(tiles.k[turn]), v.next(tiles.v[turn]);
    commit_copies();
  };
  RowCopies<kMmaRows, D, T>(query_rows<T>(p.q, part, h, p.n.d), t0).fetch(tiles.q);
  RowCopies<kMmaRows, D, T>(query_rows<T>(g.dout, part, h, p.n.e), t0).fetch(tiles.up);
  fetch(0);
  const int64_t line = p.line(part, h);
  auto query = [&](int at) {
    const auto *lse = static_cast<const float*>(g.lse), *delta = static_cast<const float*>(g.delta);
    return at < part.queries ? query_of(lse, delta, line + at) : Query();
  };
  const Query of[2] = {query(t), query(t + 8)};
  float result[D / 8][4] = {};
  for (int s0 = from, turn = 0; s0 < seen; s0 += kKeys, turn ^= 1) {
    wait_copies<0>();
    __syncthreads();  // everybody's copies are there, and the other tiles have been read
    if (s0 + kKeys < seen) fetch(turn ^ 1);
    float s[kKeys / 8][4], up[kKeys / 8][4];
    multiply_rows<kKeys, D>(s, tiles.q, first, tiles.k[turn]);
    multiply_rows<kKeys, D>(up, tiles.up, first, tiles.v[turn]);
    const bool plain = !p.threshold && !p.mask.data && part.sees_all(t0, kMmaRows, s0, kKeys);
    make_slopes<T>(s, up, p, part, Places<false>{part.b, int(h), t, s0 + lane % 4 * 2}, plain,
                   [&](int, int c) { return of[c / 2]; });
    add_product<kKeys, D>(result, up, tiles.k[turn]);
  }
  wait_copies<0>();
  const float scale = float(p.scale), factors[2] = {scale, scale};
  store_rows<D>(query_rows<T>(dq, part, h, p.n.d), t0 + first, result, factors);
}

template <class T, int D>
struct KeyTiles {
  T k[kMmaRows * D], v[kMmaRows * D], q[2][kQueries<D> * D], up[2][kQueries<D> * D];
};

// Where in the queries a block of keys is: of head `h`, the tile from t0 on.
struct Walk {
  int h, t0;

  // To the next tile; whether it is another head's.
  WT_DEVICE bool next(int tile, int from, int until) {
    t0 += tile;
    if (t0 < until) return false;
    ++h, t0 = from;
    return true;
  }
};

// Of all heads that read these keys, in order.
template <class T, int D>
__global__ void __launch_bounds__(kMmaThreads, 2)
    mma_key_gradients(Problem p, Slopes g, Heads dk, Heads dv, int64_t blocks) {
  constexpr int kTile = kQueries<D>;
  auto& tiles = *dynamic_shared<KeyTiles<T, D>>();
  const int lane = threadIdx.x % kWarp, first = threadIdx.x / kWarp * 16;
  const int64_t shared_heads = p.n.heads / p.n.readers, head = blockIdx.x / blocks;
  const int64_t shared = head % shared_heads, s0 = blockIdx.x % blocks * kMmaRows;
  const Part part(p, head / shared_heads);
  if (s0 >= part.keys) return;
  const int key = int(s0) + first + lane / 4;
  const int64_t seen = part.query_until(s0, kMmaRows);
  const int until = int(seen), from = int(minimum(part.query_from(s0, kTile), seen));
  auto queries = [&](int h) { return RowCopies<kTile, D, T>(query_rows<T>(p.q, part, h, p.n.d), from); };
  auto slopes_of_out = [&](int h) {
    return RowCopies<kTile, D, T>(query_rows<T>(g.dout, part, h, p.n.e), from);
  };
  Walk here{int(shared * p.n.readers), from};
  const int last = from < until ? here.h + int(p.n.readers) : here.h;
  auto q = queries(here.h), up_rows = slopes_of_out(here.h);
  auto fetch = [&](int turn) {
    q.next(tiles.q[turn]), up_rows.next(tiles.up[turn]);
    commit_copies();
  };
  RowCopies<kMmaRows, D, T>(key_rows<T>(p.k, part, shared, p.n.d), s0).fetch(tiles.k);
  RowCopies<kMmaRows, D, T>(key_rows<T>(p.v, part, shared, p.n.e), s0).fetch(tiles.v);
  if (here.h < last) fetch(0);
  float keys[D / 8][4] = {}, values[D / 8][4] = {};
  for (int turn = 0; here.h < last; turn ^= 1) {
    wait_copies<0>();
    __syncthreads();
    const auto [h, t0] = here;
    if (here.next(kTile, from, until)) q = queries(here.h), up_rows = slopes_of_out(here.h);
    if (here.h < last) fetch(turn ^ 1);
    float s[kTile / 8][4], up[kTile / 8][4];
    multiply_rows<kTile, D>(s, tiles.k, first, tiles.q[turn]);
    multiply_rows<kTile, D>(up, tiles.v, first, tiles.up[turn]);
    const bool plain = !p.threshold && !p.mask.data && part.sees_all(t0, kTile, s0, kMmaRows);
    const int at = t0 + lane % 4 * 2;
    const int64_t line = p.line(part, h);
    make_slopes<T>(s, up, p, part, Places<true>{part.b, int(h), at, key}, plain, [&](int j, int c) {
      const int t = at + j * 8 + c % 2;
      const auto *lse = static_cast<const float*>(g.lse), *delta = static_cast<const float*>(g.delta);
      return plain || t < part.queries ? query_of(lse, delta, line + t) : Query();
    });
    add_product<kTile, D>(values, s, tiles.up[turn]);
    add_product<kTile, D>(keys, up, tiles.q[turn]);
  }
  wait_copies<0>();
  const float scale = float(p.scale), scales[2] = {scale, scale}, ones[2] = {1, 1};
  store_rows<D>(key_rows<T>(dk, part, shared, p.n.d), s0 + first, keys, scales);
  store_rows<D>(key_rows<T>(dv, part, shared, p.n.e), s0 + first, values, ones);
}

struct Gradients {
  const View &q, &k, &v;
};

template <class T>
void run(const LaunchContext& ctx, const Gradients& to, const Slopes& g, const AttentionPlan& plan) {
  const char* op = "attention_backward";
  const Problem p(plan);
  const int64_t query_blocks = ceil_div(p.most_queries(), kMmaRows);
  const int64_t key_blocks = ceil_div(p.most_keys(), kMmaRows);
  const int64_t heads = p.parts(plan) * p.n.heads, shared = p.parts(plan) * plan.k.sizes[1];
  with_head_size(p.n, [&](auto size) {
    constexpr int D = decltype(size)::value;
    launch(ctx, op, mma_query_gradient<T, D>, dim3(static_cast<unsigned>(heads * query_blocks)),
           dim3(kMmaThreads), sizeof(QueryTiles<T, D>), p, g, Heads(to.q), query_blocks);
    launch(ctx, op, mma_key_gradients<T, D>, dim3(static_cast<unsigned>(shared * key_blocks)),
           dim3(kMmaThreads), sizeof(KeyTiles<T, D>), p, g, Heads(to.k), Heads(to.v), key_blocks);
  });
}

}  // namespace

void attention_backward_own(const LaunchContext& ctx, const View& dq, const View& dk, const View& dv,
                            const View& dout, const View& out, const View& lse, const AttentionPlan& plan) {
  if (!suits_mma(plan, {&dq, &dk, &dv, &dout}) || plan.q.sizes[2] == 0)
    return attention_backward_plain(ctx, dq, dk, dv, dout, out, lse, plan);
  const Slopes g{Heads(dout), lse.data, attention_delta(ctx, dout, out, plan)};
  if (suits_wgmma(ctx, plan, {&dq, &dk, &dv, &dout}))
    return attention_backward_wgmma(ctx, dq, dk, dv, dout, lse, g.delta, plan);
  if (plan.q.dtype == DType::BFloat16) return run<BFloat16>(ctx, {dq, dk, dv}, g, plan);
  run<Half>(ctx, {dq, dk, dv}, g, plan);
}

}  // namespace warptape::kernels::cuda
