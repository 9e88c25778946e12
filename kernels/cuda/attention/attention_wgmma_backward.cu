// The gradients of attention by WGMMA and TMA (sm_90a), from the log-sum-exp that forward left. Two kernels,
// as in attention_mma_backward.cu, so that each sum has one owner and one order and no addition is atomic:
// blocks of queries walk over keys, blocks of keys walk over queries. A producer warpgroup and two consumer
// warpgroups as in attention_wgmma.cu; the products that use a tile's slopes run beside the scores of the
// next tile.
//
//   grid      a block for each 128 queries, or keys, of a head      block   3 warpgroups
//   fragment (one wgmma)  64 x N x 16 for scores, N rows a tile of the other side; 64 x D x 16 for gradients
#include "kernels/cuda/attention/attention_wgmma.cuh"
#include "kernels/cuda/libraries/plain.h"

namespace warptape::kernels::cuda {
namespace {

// Of a tile: a gradient is in registers, too, and bits with a mask or dropout.
template <int D, bool Plain> constexpr int kKeys = D == 64 && Plain ? 128 : 64;
constexpr int kQueries = 64;  // of a tile: two gradients are

struct Barriers {
  uint64_t own, cleared[kConsumers];  // the tiles of the block's own rows; for TailClearing
  TileRing ring;                      // pairs of tiles of the other side
};

// The block's own rows, and the pairs of tiles that it walks over.
template <int N, int D>
struct Tiles {
  Tile<kWgmmaRows, D> own[2];
  struct Pair {
    Tile<N, D> of[2];
  } pairs[kTurns];
};

struct Args {
  Problem p;
  const float *lse, *delta;  // [B, H, T]
  Heads to, to_values;
  int64_t blocks;
  TensorMap own[2], other[2];  // of queries and their gradients, or of keys and values
};

template <int N, int D>
WT_DEVICE void fetch_own(const Args& args, Tiles<N, D>& tiles, Barriers& barriers, int row, int h, int b) {
  arrive_and_expect(&barriers.own, sizeof tiles.own);
  for (int i = 0; i < 2; ++i) fetch_tile(tiles.own[i], args.own[i], row, h, b, &barriers.own);
}
template <int N, int D>
WT_DEVICE void fetch_pair(const Args& args, Tiles<N, D>& tiles, Barriers& barriers, const TileTurn& turn,
                          int row, int h, int b) {
  uint64_t* full = &barriers.ring.full[turn.stage];
  wait_barrier(&barriers.ring.empty[turn.stage], turn.parity ^ 1);
  arrive_and_expect(full, sizeof tiles.pairs[0]);
  for (int i = 0; i < 2; ++i) fetch_tile(tiles.pairs[turn.stage].of[i], args.other[i], row, h, b, full);
}

// Both scores of the next pair: of the block's rows with each tile, to be waited for. Of the pair's rows
// `count` are there.
template <class T, int N, int D>
WT_DEVICE void ask_both(float (&s)[N / 8][4], float (&up)[N / 8][4], Tiles<N, D>& tiles, int group,
                        Barriers& barriers, const TileTurn& turn, TailClearing& tail, int count) {
  wait_barrier(&barriers.ring.full[turn.stage], turn.parity);
  tail.clear(count, tiles.pairs[turn.stage].of[0], tiles.pairs[turn.stage].of[1]);
  fence_products();
  ask_scores<T>(s, tiles.own[0], group, tiles.pairs[turn.stage].of[0]);
  ask_scores<T>(up, tiles.own[1], group, tiles.pairs[turn.stage].of[1]);
  commit_products();
}

// ---- the gradient of queries ----

template <int D, bool Plain>
WT_DEVICE void produce_for_queries(const Args& args, Tiles<kKeys<D, Plain>, D>& tiles, Barriers& barriers) {
  const QueryPlace at(args.p, args.blocks, kKeys<D, Plain>);
  if (at.from >= at.seen) return;
  const int b = int(at.part.b), first = int(at.part.key);
  fetch_own(args, tiles, barriers, int(at.part.query) + at.t0, at.h, b);
  TileTurn turn;
  for (int s0 = at.from; s0 < at.seen; s0 += kKeys<D, Plain>, turn.next())
    fetch_pair(args, tiles, barriers, turn, first + s0, at.shared, b);
}

template <class T, int D, bool Plain>
WT_DEVICE void consume_for_queries(const Args& args, Tiles<kKeys<D, Plain>, D>& tiles, Barriers& barriers) {
  constexpr int N = kKeys<D, Plain>;
  const Problem& p = args.p;
  const QueryPlace at(args.p, args.blocks, N);
  const Part& part = at.part;
  const Consumer me;
  const float scale = float(p.scale) * kLog2E;
  float result[D / 8][4] = {}, s[N / 8][4], up[N / 8][4];
  uint32_t slopes[N / 16][4];
  Query of[2];
  int from[2], until[2];  // the keys that each of the lane's two queries sees
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = at.t0 + me.row + 8 * half;
    if (t < part.queries) of[half] = query_of(args.lse, args.delta, p.line(part, at.h) + t);
    from[half] = t + part.first - me.column(),
    until[half] = minimum(t + part.last + 1, part.keys) - me.column();
  }
  TileTurn turn;
  TailClearing tail{p.sequences.count > 0, &barriers.cleared[me.group]};
  auto places = [&](int s0) { return Places<false>{part.b, at.h, at.t0 + me.row, s0 + me.column()}; };
  PairBits<N / 8> bits;
  auto ask_scores_from = [&](int s0) {
    ask_both<T, N, D>(s, up, tiles, me.group, barriers, turn, tail, part.keys - s0);
    if constexpr (!Plain) bits.find(p, part, places(s0));  // beside the products
  };
  auto ask_gradient = [&](int s0) {  // with both scores there
    if constexpr (!Plain) mask_scores<T>(s, p, part, places(s0), bits);
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int key = s0 + j * 8 + c % 2;
        if constexpr (Plain) {
          const bool seen = key < until[c / 2] && key >= from[c / 2];
          const float probability = seen ? power_of_two(s[j][c] * scale - of[c / 2].lse) : 0.0f;
          up[j][c] = probability * (up[j][c] - of[c / 2].delta);
        } else {
          make_slope(s[j][c], up[j][c], bits.keeps(j, c) ? float(p.keep) : 0.0f, of[c / 2]);
        }
      }
    pack_rows<T, N>(slopes, up);
    fence_products();
    ask_product<T>(result, slopes, tiles.pairs[turn.stage].of[0]);
    commit_products();
  };
  if (at.from < at.seen) {
    wait_barrier(&barriers.own, 0);
    ask_scores_from(at.from);
    wait_products<0>();
    int s0 = at.from;
    for (; s0 + N < at.seen; s0 += N) {
      ask_gradient(s0);
      uint64_t* last = &barriers.ring.empty[turn.stage];
      turn.next();
      ask_scores_from(s0 + N);
      wait_products<0>();  // the gradient of the last keys, the scores of these
      release(last);
    }
    ask_gradient(s0);
    wait_products<0>();
  }
  const float factors[2] = {float(p.scale), float(p.scale)};
  store_rows<D>(query_rows<T>(args.to, part, at.h, p.n.d), at.t0 + me.warp_row(), result, factors);
}

// ---- the gradients of keys and values ----

// Of all query heads that read the keys, in order.
struct KeyPlace {
  int shared, s0, from, walk, steps;
  Part part;

  WT_DEVICE explicit KeyPlace(const Args& args, int block = int(blockIdx.x))
      : shared(int(block / args.blocks % (args.p.n.heads / args.p.n.readers))),
        s0(int(block % args.blocks) * kWgmmaRows),
        part(args.p, block / args.blocks / (args.p.n.heads / args.p.n.readers)) {
    from = int(part.query_from(s0, kQueries));
    const int queries = int(part.query_until(s0, kWgmmaRows)) - from;
    walk = queries > 0 ? int(ceil_div(queries, kQueries)) : 0;
    steps = walk * int(args.p.n.readers);
  }
};

// Where in the queries a block of keys is: of head h, the tile from t0 on.
struct Walk {
  int h, t0;

  WT_DEVICE Walk(const Args& args, const KeyPlace& at) : h(at.shared * int(args.p.n.readers)), t0(at.from) {}
  WT_DEVICE void next(const KeyPlace& at) {
    t0 += kQueries;
    if (t0 >= at.from + at.walk * kQueries) ++h, t0 = at.from;
  }
};

template <int D>
WT_DEVICE void produce_for_keys(const Args& args, Tiles<kQueries, D>& tiles, Barriers& barriers) {
  const KeyPlace at(args);
  if (at.steps == 0) return;
  const int b = int(at.part.b), first = int(at.part.query);
  fetch_own(args, tiles, barriers, int(at.part.key) + at.s0, at.shared, b);
  TileTurn turn;
  Walk here(args, at);
  for (int step = 0; step < at.steps; ++step, turn.next(), here.next(at))
    fetch_pair(args, tiles, barriers, turn, first + here.t0, here.h, b);
}

template <class T, int D, bool Plain>
WT_DEVICE void consume_for_keys(const Args& args, Tiles<kQueries, D>& tiles, Barriers& barriers) {
  constexpr int N = kQueries;
  const Problem& p = args.p;
  const KeyPlace at(args);
  const Part& part = at.part;
  const Consumer me;
  const float scale = float(p.scale) * kLog2E;
  // The first query that sees the lane's key, and the last one; its other key is 8 further.
  const int first = at.s0 + me.row - part.last, last_one = at.s0 + me.row - part.first;
  float keys[D / 8][4] = {}, values[D / 8][4] = {}, s[N / 8][4], up[N / 8][4];
  uint32_t probabilities[N / 16][4], slopes[N / 16][4];
  TileTurn turn;
  TailClearing tail{p.sequences.count > 0, &barriers.cleared[me.group]};
  Walk here(args, at);
  auto places = [&] { return Places<true>{part.b, here.h, here.t0 + me.column(), at.s0 + me.row}; };
  PairBits<N / 8> bits;
  auto ask_scores_here = [&] {
    if constexpr (!Plain) bits.find(p, part, places());  // while these scores have no registers
    ask_both<T, N, D>(s, up, tiles, me.group, barriers, turn, tail, part.queries - here.t0);
  };
  auto ask_gradients = [&] {  // with both scores there
    const int t0 = here.t0 + me.column();
    const int64_t line = p.line(part, here.h);
    if constexpr (!Plain) mask_scores<T>(s, p, part, places(), bits);
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int t = t0 + j * 8 + c;
        const bool there = t < part.queries;  // else dout and query are zeros
        const Query of = !there  ? Query()
                         : Plain ? Query{args.lse[line + t] * kLog2E, args.delta[line + t]}
                                 : query_of(args.lse, args.delta, line + t);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float &score = s[j][c + 2 * half], &slope = up[j][c + 2 * half];
          if constexpr (Plain) {
            const bool seen = t >= first + 8 * half && t <= last_one + 8 * half;
            score = seen ? power_of_two(score * scale - of.lse) : 0.0f;
            slope = score * (slope - of.delta);
          } else {
            make_slope(score, slope, bits.keeps(j, c + 2 * half) ? float(p.keep) : 0.0f, of);
          }
        }
      }
    pack_rows<T, N>(probabilities, s);
    pack_rows<T, N>(slopes, up);
    fence_products();
    ask_product<T>(values, probabilities, tiles.pairs[turn.stage].of[1]);
    ask_product<T>(keys, slopes, tiles.pairs[turn.stage].of[0]);
    commit_products();
  };
  if (at.steps > 0) {
    wait_barrier(&barriers.own, 0);
    ask_scores_here();
    wait_products<0>();
    for (int step = 1; step < at.steps; ++step) {
      ask_gradients();
      if constexpr (D == 128) wait_products<0>();  // both at once would take more registers than there are
      uint64_t* last = &barriers.ring.empty[turn.stage];
      turn.next();
      here.next(at);
      ask_scores_here();
      wait_products<0>();  // the gradients by the last queries, these scores
      release(last);
    }
    ask_gradients();
    wait_products<0>();
  }
  const float factors[2] = {float(p.scale), float(p.scale)}, ones[2] = {1, 1};
  int block = int(blockIdx.x);
  forget(block);  // what is needed again here had no registers meanwhile
  const KeyPlace end(args, block);
  const int64_t row = end.s0 + Consumer().warp_row();
  store_rows<D>(key_rows<T>(args.to, end.part, end.shared, p.n.d), row, keys, factors);
  store_rows<D>(key_rows<T>(args.to_values, end.part, end.shared, p.n.e), row, values, ones);
}

// ---- kernels ----

WT_DEVICE void make_barriers(Barriers& barriers) {
  if (threadIdx.x == 0) {
    init_barrier(&barriers.own, 1);
    for (uint64_t& cleared : barriers.cleared) init_barrier(&cleared, kGroup / kWarp);
    barriers.ring.init(kArrivals);
    publish_barriers();
  }
  __syncthreads();
}

template <class T, int D, bool Plain>
__global__ void __launch_bounds__(kWgmmaThreads, 1) wgmma_query_gradient(const __grid_constant__ Args args) {
  __shared__ Barriers barriers;
  if (const QueryPlace at(args.p, args.blocks, kKeys<D, Plain>); at.t0 >= at.part.queries) return;
  auto& tiles = aligned_tiles<Tiles<kKeys<D, Plain>, D>>();
  make_barriers(barriers);
  if (threadIdx.x < kGroup) {
    give_registers<24>();
    if (threadIdx.x == 0) produce_for_queries<D, Plain>(args, tiles, barriers);
  } else {
    take_registers<240>();
    consume_for_queries<T, D, Plain>(args, tiles, barriers);
  }
}

template <class T, int D, bool Plain>
__global__ void __launch_bounds__(kWgmmaThreads, 1) wgmma_key_gradients(const __grid_constant__ Args args) {
  __shared__ Barriers barriers;
  if (const KeyPlace at(args); at.s0 >= at.part.keys) return;
  auto& tiles = aligned_tiles<Tiles<kQueries, D>>();
  make_barriers(barriers);
  if (threadIdx.x < kGroup) {
    give_registers<24>();
    if (threadIdx.x == 0) produce_for_keys<D>(args, tiles, barriers);
  } else {
    take_registers<240>();
    consume_for_keys<T, D, Plain>(args, tiles, barriers);
  }
}

struct Gradients {
  const View &q, &k, &v;
};

template <class T, int D, bool Plain>
void run(const LaunchContext& ctx, const Gradients& to, const View& dout, const Slopes& g,
         const AttentionPlan& plan) {
  const char* op = "attention_backward";
  const Problem p(plan);
  const auto *lse = static_cast<const float*>(g.lse), *delta = static_cast<const float*>(g.delta);
  auto map = [&](const View& v, int rows) { return tensor_map_of_heads(op, v, rows); };
  const int64_t query_blocks = ceil_div(p.most_queries(), kWgmmaRows);
  const int64_t key_blocks = ceil_div(p.most_keys(), kWgmmaRows);
  const int64_t heads = p.parts(plan) * p.n.heads, shared = p.parts(plan) * plan.k.sizes[1];
  const Args by_queries{p,
                        lse,
                        delta,
                        Heads(to.q),
                        Heads(to.q),
                        query_blocks,
                        {map(plan.q, kWgmmaRows), map(dout, kWgmmaRows)},
                        {map(plan.k, kKeys<D, Plain>), map(plan.v, kKeys<D, Plain>)}};
  const Args by_keys{p,
                     lse,
                     delta,
                     Heads(to.k),
                     Heads(to.v),
                     key_blocks,
                     {map(plan.k, kWgmmaRows), map(plan.v, kWgmmaRows)},
                     {map(plan.q, kQueries), map(dout, kQueries)}};
  launch(ctx, op, wgmma_query_gradient<T, D, Plain>, dim3(static_cast<unsigned>(heads * query_blocks)),
         dim3(kWgmmaThreads), sizeof(Tiles<kKeys<D, Plain>, D>) + kAtom, by_queries);
  launch(ctx, op, wgmma_key_gradients<T, D, Plain>, dim3(static_cast<unsigned>(shared * key_blocks)),
         dim3(kWgmmaThreads), sizeof(Tiles<kQueries, D>) + kAtom, by_keys);
}

}  // namespace

void attention_backward_wgmma(const LaunchContext& ctx, const View& dq, const View& dk, const View& dv,
                              const View& dout, const View& lse, const void* delta,
                              const AttentionPlan& plan) {
  const Slopes g{Heads(dout), lse.data, delta};
  const Gradients to{dq, dk, dv};
  const Problem p(plan);
  with_head_size(p.n, [&](auto size) {
    constexpr int D = decltype(size)::value;
    dispatch(Types<BFloat16, Half>{}, plan.q.dtype, [&](auto t) {
      using T = typename decltype(t)::type;
      p.is_plain() ? run<T, D, true>(ctx, to, dout, g, plan) : run<T, D, false>(ctx, to, dout, g, plan);
    });
  });
}

}  // namespace warptape::kernels::cuda
