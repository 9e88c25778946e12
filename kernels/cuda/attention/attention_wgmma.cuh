// Attention by WGMMA and TMA (sm_90a): tiles in shared memory and the products of a warpgroup. See
// attention_wgmma.cu.
//
// A tile is rows of D numbers of 16 bits, D = 64 or 128, as D / 64 parts of rows of 128 bytes; TMA exchanges
// the 16-byte pieces of each 8 rows, as wgmma's descriptors say, and fills narrower heads up with zeros.
#pragma once

#include "kernels/cuda/attention/attention_mma.cuh"
#include "kernels/cuda/common/tma_ring.cuh"

namespace warptape::kernels::cuda {

inline constexpr int kGroup = 128, kConsumers = 2;  // threads of a warpgroup; warpgroups that multiply
inline constexpr int kWgmmaThreads = (kConsumers + 1) * kGroup;
inline constexpr int kGroupRows = 64, kWgmmaRows = kConsumers * kGroupRows;  // of a warpgroup, of a block
inline constexpr int kArrivals = kConsumers * kGroup / kWarp;  // each warp for itself: its waits are its own
inline constexpr int kRowBytes = 128, kAtom = 8 * kRowBytes;   // what the swizzle permutes within
inline constexpr int kPart = 64;                               // columns of a part
inline constexpr int kTurns = 2;                               // tiles of a ring
using TileRing = Ring<kTurns>;
using TileTurn = Turn<kTurns>;

template <int Rows, int D>
struct Tile {
  char parts[D / kPart][Rows * kRowBytes];
};

// One thread asks for rows row.. of head h; zeros outside of the head. `full` must expect sizeof(Tile).
template <int Rows, int D>
WT_DEVICE void fetch_tile(Tile<Rows, D>& to, const TensorMap& map, int row, int h, int b, uint64_t* full) {
#pragma unroll
  for (int part = 0; part < D / kPart; ++part) load_box(to.parts[part], &map, part * kPart, row, h, b, full);
}

// The block's tiles: dynamic shared memory, of which kAtom bytes more than they take were asked for.
template <class Tiles>
WT_DEVICE Tiles& aligned_tiles() {
  char* memory = dynamic_shared<char>();
  return *reinterpret_cast<Tiles*>(memory + (0 - shared_address(memory)) % kAtom);
}

// Asks for sums [64, N] = X Y^T over D: the warpgroup's 64 rows of `x`, N rows of `y`.
template <class T, int N, int Rows, int D>
WT_DEVICE void ask_scores(float (&sums)[N / 8][4], const Tile<Rows, D>& x, int group, const Tile<N, D>& y) {
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    const int part = d / kPart, within = d % kPart * 2;
    const uint64_t a = swizzled_operand(x.parts[part] + group * kGroupRows * kRowBytes + within, 16, kAtom);
    const uint64_t b = swizzled_operand(y.parts[part] + within, 16, kAtom);
    if (d == 0)
      multiply_rows_async<T, false>(sums, a, b);
    else
      multiply_rows_async<T, true>(sums, a, b);
  }
}

// Asks for sums [64, D] += P Z: P [64, N] from pack_rows, which must stay until the wait; N rows of `z`.
template <class T, int N, int D>
WT_DEVICE void ask_product(float (&sums)[D / 8][4], const uint32_t (&p)[N / 16][4], const Tile<N, D>& z) {
#pragma unroll
  for (int s = 0; s < N; s += 16)
    add_product_async<T>(sums, p[s / 16],
                         swizzled_operand(z.parts[0] + s * kRowBytes, sizeof z.parts[0], kAtom));
}

// Sums become the words of a left operand.
template <class T, int N>
WT_DEVICE void pack_rows(uint32_t (&p)[N / 16][4], const float (&s)[N / 8][4]) {
#pragma unroll
  for (int i = 0; i < N / 16; ++i)
#pragma unroll
    for (int w = 0; w < 4; ++w)
      p[i][w] = pack_two<T>(s[2 * i + w / 2][w % 2 * 2], s[2 * i + w / 2][w % 2 * 2 + 1]);
}

// A warp is done with a buffer.
WT_DEVICE void release(uint64_t* empty) {
  if (threadIdx.x % kWarp == 0) arrive(empty);
}

// The consumers' place in a block.
struct Consumer {
  int group, row, lane;  // row: the lane's first one within the block's kWgmmaRows

  WT_DEVICE Consumer()
      : group(threadIdx.x / kGroup - 1),
        row(group * kGroupRows + threadIdx.x % kGroup / kWarp * 16 + threadIdx.x % kWarp / 4),
        lane(threadIdx.x % kWarp) {}
  WT_DEVICE int warp_row() const { return row - lane / 4; }
  // Of the sums that the lane holds of a row, s[j][c] is that of column j * 8 + column() + c % 2.
  WT_DEVICE int column() const { return lane % 4 * 2; }
};

// What a block makes: kWgmmaRows queries of a head from t0 on, which see keys within from .. seen - 1, of
// which it walks over tiles; a head has `blocks` of them. No queries where t0 is not below part.queries, no
// keys where from is not below seen.
struct QueryPlace {
  int h, shared, t0, from, seen;
  Part part;

  WT_DEVICE QueryPlace(const Problem& p, int64_t blocks, int tile)
      : h(int(blockIdx.x / blocks % p.n.heads)),
        shared(h / int(p.n.readers)),
        // The last queries see the most keys where it is causal: they start first.
        t0(int(blocks - 1 - blockIdx.x % blocks) * kWgmmaRows),
        part(p, blockIdx.x / blocks / p.n.heads) {
    from = int(part.from(t0, tile)), seen = int(part.until(t0, kWgmmaRows));
  }
};

// By a warpgroup: rows from `count` on become zeros.
template <int Rows, int D>
WT_DEVICE void clear_rows(Tile<Rows, D>& tile, int count) {
#pragma unroll
  for (auto& part : tile.parts)
    for (int at = count * kRowBytes + int(threadIdx.x % kGroup) * 16; at < Rows * kRowBytes;
         at += kGroup * 16)
      *reinterpret_cast<Packed<uint32_t, 4>*>(part + at) = {};
}

// Of a tile that reaches beyond a sequence TMA brought rows of the next one, in which anything may lie: they
// become zeros, as they are behind a tensor's end, for 0 times what is not finite is no 0.
struct TailClearing {
  bool has_sequences;
  uint64_t* barrier;  // of the warpgroup, for an arrival of each warp
  uint32_t parity = 0;

  // Rows of tiles from `count` on, which may be none. Whole warpgroups call. Two of them may write the same
  // zeros.
  template <int Rows, int D, class... More>
  WT_DEVICE void clear(int count, Tile<Rows, D>& tile, More&... more) {
    if (!has_sequences || count >= Rows) return;
    clear_rows(tile, count), (clear_rows(more, count), ...);
    publish_writes();
    __syncwarp();
    release(barrier);
    wait_barrier(barrier, parity);
    parity ^= 1;
  }
};

}  // namespace warptape::kernels::cuda
