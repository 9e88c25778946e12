// A chain of which one step is a norm: its kernel, but for the steps, which chain_source.cpp writes as a
// struct:
//   struct Chain {
//     using Row = T;                                       // of the norm's input
//     template <int W> struct Values { Packed<T, W> v0; .. };  // inputs that the steps before the norm need
//     template <int W> static void read(args, offsets, values&);
//     template <int W> static void row(args, values, x&);      // what the norm reads; of backward also dy
//     template <int W> static void write(args, offsets, values&, stats);  // runs all steps, stores the
//     outputs template <int W> static bool weight(args, offsets, w&);  // of backward
//   };
// Steps before the norm run twice where what they give is also needed behind it: that takes no memory.
#pragma once

#include "kernels/cuda/fused/chain.cuh"
#include "kernels/cuda/norm/norm_rows.cuh"

namespace warptape::kernels::cuda {

// Groups of `chain` are pieces of 16 bytes of the norm's input.
template <int N, int D>
struct RowChainArgs {
  ChainArgs<N, D> chain;
  int64_t rows, n;
  int lanes;
  double eps;
  uint64_t mean, rstd;  // [rows] or null; forward writes, backward reads them
  uint64_t parts;       // of backward: [block, 2, n] or null
};

template <int N, int D>
WT_DEVICE Offsets<N> piece_of(const ChainArgs<N, D>& a, Offsets<N> at, int64_t piece) {
#pragma unroll
  for (int k = 0; k < N; ++k) at.of[k] += piece * a.strides[D - 1][k];
  return at;
}

// What the norm gives of one element, as it stores it.
template <class T, class W, class B>
WT_DEVICE T norm_step(T x, const RowStats<Compute<T>>& stats, bool scales, W weight, bool shifts, B bias) {
  using C = Compute<T>;
  return narrow<T>(
      scale_and_shift(stats.normal(widen<C>(x)), scales, widen<C>(weight), shifts, widen<C>(bias)));
}
template <class T, class W>
WT_DEVICE T norm_step(T dy, T x, const RowGradient<Compute<T>>& gradient, bool scales, W weight) {
  using C = Compute<T>;
  const C up = widen<C>(dy);
  return narrow<T>(gradient(scales ? up * widen<C>(weight) : up, widen<C>(x)));
}

// The pieces of a row that a thread has.
template <class Chain, int K, int N, int D>
struct ChainRow {
  using T = typename Chain::Row;
  static constexpr int W = kPackedWidth<T>;
  const ChainArgs<N, D>& args;
  RowTile<T, K> tile;
  Offsets<N> begin;
  typename Chain::template Values<W> values[K];

  WT_DEVICE ChainRow(const RowChainArgs<N, D>& r, int64_t row)
      : args(r.chain),
        tile(nullptr, row < r.rows ? r.n : 0, true, r.lanes),
        begin(locate(r.chain, row < r.rows ? row * (r.n / W) : 0)) {
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (has(k)) Chain::template read<W>(args, at(k), values[k]);
  }
  WT_DEVICE bool has(int k) const { return tile.has(tile.first(k)); }
  WT_DEVICE Offsets<N> at(int k) const { return piece_of(args, begin, tile.first(k) / W); }
};

template <class Chain, bool kCentered, int N, int D>
WT_DEVICE void run_norm_chain(const RowChainArgs<N, D>& r) {
  using T = typename Chain::Row;
  using C = Compute<T>;
  constexpr int K = kRowPieces, W = kPackedWidth<T>;
  __shared__ C shared[kNormThreads / kWarp];
  const int64_t row = int64_t(blockIdx.x) * (blockDim.x / r.lanes) + threadIdx.x / r.lanes;
  const ChainRow<Chain, K, N, D> mine(r, row);
  Packed<T, W> raw[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
#pragma unroll
    for (int j = 0; j < W; ++j) raw[k][j] = narrow<T>(C(0));
    if (mine.has(k)) Chain::template row<W>(r.chain, mine.values[k], raw[k]);
  }
  const RowStats<C> stats = row_stats<kCentered>(raw, mine.tile, r.n, C(r.eps), shared);
  if (row < r.rows && mine.tile.lane == 0) {
    if (r.mean) reinterpret_cast<C*>(r.mean)[row] = stats.mean;
    if (r.rstd) reinterpret_cast<C*>(r.rstd)[row] = stats.rstd;
  }
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (mine.has(k)) Chain::template write<W>(r.chain, mine.at(k), mine.values[k], stats);
}

// As backward_kernel of norm.cu.
template <class Chain, bool kCentered, int N, int D>
WT_DEVICE void run_norm_backward_chain(const RowChainArgs<N, D>& r) {
  using T = typename Chain::Row;
  using C = Compute<T>;
  using Sums = RowSums<C>;
  constexpr int K = kHeld<T>, W = kPackedWidth<T>;
  __shared__ Sums shared[kNormBackwardThreads / kWarp];
  C sums[2][K][W] = {};
  const int groups = int(blockDim.x) / r.lanes;
  for (int64_t first = int64_t(blockIdx.x) * groups; first < r.rows; first += int64_t(gridDim.x) * groups) {
    const int64_t row = first + threadIdx.x / r.lanes;
    const bool mine = row < r.rows;
    const ChainRow<Chain, K, N, D> held(r, row);
    const RowStats<C> stats{kCentered && mine ? reinterpret_cast<const C*>(r.mean)[row] : C(0),
                            mine ? reinterpret_cast<const C*>(r.rstd)[row] : C(0)};
    Sums s{C(0), C(0)};
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!held.has(k)) continue;
      Packed<T, W> dy, x;
      C w[W];
      Chain::template row<W>(r.chain, held.values[k], dy, x);
      const bool scales = Chain::template weight<W>(r.chain, held.at(k), w);
      add_gradients<kCentered>(dy, x, stats, scales, w, sums[0][k], sums[1][k], s);
    }
    s = group_join(s, r.lanes, Sums{C(0), C(0)}, Sums::join, shared);
    const RowGradient<C> gradient(stats, kCentered, s, r.n);
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (held.has(k)) Chain::template write<W>(r.chain, held.at(k), held.values[k], gradient);
  }
  if (r.parts)
    store_parts(reinterpret_cast<C*>(r.parts), r.n, RowTile<T, K>(nullptr, r.n, true, r.lanes), sums);
}

}  // namespace warptape::kernels::cuda
