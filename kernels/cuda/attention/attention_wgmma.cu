// Attention by WGMMA and TMA (sm_90a), forward, after "FlashAttention-3" (Shah et al. 2024, sections 3.1 and
// 3.2): one thread of a producer warpgroup asks TMA for tiles of keys and values, two consumer warpgroups
// keep 64 queries each. Scores are a warpgroup's registers; the products of one tile's probabilities and
// values run beside the scores of the next tile. Masks and dropout are a kernel of their own.
//
//   grid      a block for each 128 queries of a head      block   3 warpgroups; 128 keys a tile
//   fragment (one wgmma)  64 x 128 x 16 for scores, 64 x D x 16 for the output
#include "kernels/cuda/attention/attention_choice.h"
#include "kernels/cuda/attention/attention_wgmma.cuh"
#include "kernels/cuda/libraries/plain.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kKeys = 128;

template <int D>
struct Tiles {
  Tile<kWgmmaRows, D> q;
  Tile<kKeys, D> k[kTurns], v[kTurns];
};

struct Barriers {
  uint64_t q, cleared[kConsumers];
  TileRing k, v;
};

struct Args {
  Problem p;
  Heads out;
  float* lse;
  int64_t blocks;
  TensorMap q, k, v;
};

template <int D>
WT_DEVICE void produce(const Args& args, Tiles<D>& tiles, Barriers& barriers) {
  const QueryPlace at(args.p, args.blocks, kKeys);
  if (at.from >= at.seen) return;
  const int b = int(at.part.b), first = int(at.part.key);
  prefetch_map(&args.q), prefetch_map(&args.k), prefetch_map(&args.v);
  arrive_and_expect(&barriers.q, sizeof tiles.q);
  fetch_tile(tiles.q, args.q, int(at.part.query) + at.t0, at.h, b, &barriers.q);
  TileTurn turn;
  auto fetch = [&](Tile<kKeys, D>(&to)[kTurns], const TensorMap& map, TileRing& ring, int s0) {
    wait_barrier(&ring.empty[turn.stage], turn.parity ^ 1);
    arrive_and_expect(&ring.full[turn.stage], sizeof to[0]);
    fetch_tile(to[turn.stage], map, first + s0, at.shared, b, &ring.full[turn.stage]);
  };
  for (int s0 = at.from; s0 < at.seen; s0 += kKeys, turn.next()) {
    fetch(tiles.k, args.k, barriers.k, s0);
    fetch(tiles.v, args.v, barriers.v, s0);
  }
}

// Minus infinity for the keys that query t, or t + 8, does not see, of those from s0 on.
WT_DEVICE void hide_scores(float (&s)[kKeys / 8][4], const Part& part, int t, int s0) {
  int first[2], last[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    first[half] = t + 8 * half + part.first - s0;
    last[half] = minimum(t + 8 * half + part.last, part.keys - 1) - s0;
  }
#pragma unroll
  for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c)
      if (j * 8 + c % 2 > last[c / 2] || j * 8 + c % 2 < first[c / 2]) s[j][c] = -INFINITY;
}

// Plain: no mask, and nothing is dropped.
template <class T, int D, bool Plain>
WT_DEVICE void consume(const Args& args, Tiles<D>& tiles, Barriers& barriers) {
  const Problem& p = args.p;
  const QueryPlace at(args.p, args.blocks, kKeys);
  const Part& part = at.part;
  const Consumer me;
  const int t = at.t0 + me.row, group_t0 = at.t0 + me.group * kGroupRows;
  float s[kKeys / 8][4], result[D / 8][4] = {}, shrink[2];
  uint32_t probabilities[kKeys / 16][4];
  Softmax softmax{Plain ? float(p.scale) * kLog2E : 1.0f};
  TileTurn keys, values;
  TailClearing tail{p.sequences.count > 0, &barriers.cleared[me.group]};
  auto places = [&](int s0) { return Places<false>{part.b, at.h, t, s0 + me.column()}; };
  PairBits<kKeys / 8> bits;
  auto ask_next_scores = [&] {
    wait_barrier(&barriers.k.full[keys.stage], keys.parity);
    fence_products();
    ask_scores<T>(s, tiles.q, me.group, tiles.k[keys.stage]);
    commit_products();
  };
  auto ask_last_product = [&] {
    fence_products();
    ask_product<T>(result, probabilities, tiles.v[values.stage]);
    commit_products();
  };
  // With the scores there: they become probabilities, whose values are waited for. The loop of that wait also
  // keeps the compiler from waiting for the last product before the probabilities are made.
  auto advance = [&](int s0) {
    release(&barriers.k.empty[keys.stage]);
    keys.next();
    if constexpr (!Plain)
      mask_scores<T>(s, p, part, places(s0), bits);
    else if (s0 + kKeys > part.keys || !part.is_within(group_t0, kGroupRows, s0, kKeys))
      hide_scores(s, part, t, s0 + me.column());
    softmax.advance(s, shrink);
    keep_in_place(s);
    if (!Plain && p.threshold) drop_scores(s, p, bits);
    wait_barrier(&barriers.v.full[values.stage], values.parity);
    tail.clear(part.keys - s0, tiles.v[values.stage]);
  };
  if (at.from < at.seen) {
    wait_barrier(&barriers.q, 0);
    ask_next_scores();
    if constexpr (!Plain) bits.find(p, part, places(at.from));
    wait_products<0>();
    advance(at.from);
    pack_rows<T, kKeys>(probabilities, s);
    for (int s0 = at.from + kKeys; s0 < at.seen; s0 += kKeys) {
      ask_next_scores();
      ask_last_product();
      if constexpr (!Plain) bits.find(p, part, places(s0));  // beside the products
      wait_products<1>();
      uint64_t* last = &barriers.v.empty[values.stage];
      values.next();
      advance(s0);
      wait_products<0>();  // what read the last probabilities
      release(last);
      rescale(result, shrink);
      pack_rows<T, kKeys>(probabilities, s);
    }
    ask_last_product();
    wait_products<0>();
  }
  float factors[2];
  softmax.finish(factors, args.lse ? args.lse + p.line(part, at.h) : nullptr, t, part.queries);
  store_rows<D>(query_rows<T>(args.out, part, at.h, p.n.e), at.t0 + me.warp_row(), result, factors);
}

template <class T, int D, bool Plain>
__global__ void __launch_bounds__(kWgmmaThreads, 1) wgmma_forward(const __grid_constant__ Args args) {
  __shared__ Barriers barriers;
  if (const QueryPlace at(args.p, args.blocks, kKeys); at.t0 >= at.part.queries) return;
  auto& tiles = aligned_tiles<Tiles<D>>();
  if (threadIdx.x == 0) {
    init_barrier(&barriers.q, 1);
    for (uint64_t& cleared : barriers.cleared) init_barrier(&cleared, kGroup / kWarp);
    barriers.k.init(kArrivals), barriers.v.init(kArrivals);
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < kGroup) {
    give_registers<24>();
    if (threadIdx.x == 0) produce<D>(args, tiles, barriers);
  } else {
    take_registers<240>();
    consume<T, D, Plain>(args, tiles, barriers);
  }
}

}  // namespace

bool suits_wgmma(const LaunchContext& ctx, const AttentionPlan& p,
                 std::initializer_list<const View*> others) {
  constexpr int64_t kMost = int64_t(1) << 30;  // TMA's coordinates are ints
  bool fits = capability(ctx.device_index) == 90 && attention_kernels() != AttentionKernels::Mma &&
              suits_mma(p, others) && p.scale > 0 && p.q.sizes[2] > 0;
  auto by_tma = [&](const View& v) {
    for (int d = 0; d < 4; ++d) fits = fits && v.sizes[d] < kMost && (v.sizes[d] <= 1 || v.strides[d] > 0);
  };
  for (const View* v : {&p.q, &p.k, &p.v}) by_tma(*v);
  for (const View* v : others) by_tma(*v);
  return fits;
}

void attention_wgmma(const LaunchContext& ctx, const View& out, const View& lse, const AttentionPlan& plan) {
  const char* op = "attention";
  const Problem p(plan);
  const int64_t blocks = ceil_div(p.most_queries(), kWgmmaRows);
  const Args args{p,
                  Heads(out),
                  static_cast<float*>(lse.data),
                  blocks,
                  tensor_map_of_heads(op, plan.q, kWgmmaRows),
                  tensor_map_of_heads(op, plan.k, kKeys),
                  tensor_map_of_heads(op, plan.v, kKeys)};
  const dim3 grid(static_cast<unsigned>(p.parts(plan) * p.n.heads * blocks));
  with_head_size(p.n, [&](auto size) {
    constexpr int D = decltype(size)::value;
    dispatch(Types<BFloat16, Half>{}, plan.q.dtype, [&](auto t) {
      using T = typename decltype(t)::type;
      launch(ctx, op, p.is_plain() ? wgmma_forward<T, D, true> : wgmma_forward<T, D, false>, grid,
             dim3(kWgmmaThreads), sizeof(Tiles<D>) + kAtom, args);
    });
  });
}

}  // namespace warptape::kernels::cuda
